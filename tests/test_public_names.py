"""What ``import fedgeo`` offers."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import fedgeo


@pytest.mark.parametrize("name", fedgeo.__all__)
def test_every_name_loads_and_is_documented(name):
    value = getattr(fedgeo, name)
    if callable(value) or inspect.ismodule(value):  # a constant's documentation stands below it in the source
        assert value.__doc__


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(fedgeo.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    assert sorted(alias.asname for node in block.body for alias in node.names) == fedgeo.__all__


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'fedprox'"):
        _ = fedgeo.fedprox


def test_importing_the_package_alone_imports_no_jax():
    subprocess.run([sys.executable, "-c", "import fedgeo, sys; assert 'jax' not in sys.modules"], check=True)
