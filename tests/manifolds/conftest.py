"""Precision by parameter, and strict promotion of dtypes."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import pytest


@pytest.fixture(params=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> Iterator[jnp.dtype]:
    with jax.enable_x64(request.param == "float64"):
        yield jnp.dtype(request.param)


@pytest.fixture
def x64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@pytest.fixture
def strict() -> Iterator[None]:
    with jax.numpy_dtype_promotion("strict"):
        yield
