"""Detectors that the tests of the runtime and of exports share."""

import pytest

from tests.deploy.detectors import Fitted, MadeRows, generated


@pytest.fixture(scope="session")
def train():
    return generated()


@pytest.fixture(scope="session")
def newest(train):
    return Fitted(train, "newest")


@pytest.fixture(scope="session")
def full(train):
    return Fitted(train, "full")


@pytest.fixture(scope="session")
def x():
    return generated(seed=1)[1]


@pytest.fixture(scope="session")
def rows(tmp_path_factory):
    return MadeRows(tmp_path_factory.mktemp("rows") / "rows.fedgeo")
