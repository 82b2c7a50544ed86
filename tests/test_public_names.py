"""What ``import fedgeo`` offers."""

import ast
import importlib
import inspect
import pydoc
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedgeo
import manifolds
from fedgeo.algorithms import compression
from fedgeo.deploy import export, runtime

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.parametrize("name", fedgeo.__all__)
def test_every_name_loads_and_is_documented(name):
    value = getattr(fedgeo, name)
    if callable(value) or inspect.ismodule(value):  # a constant's documentation stands below it in the source
        assert value.__doc__


@pytest.mark.parametrize("name", ["data", "estimators", "evaluation", "federation", "runs"])
def test_help_on_a_package_shows_what_it_gathers(name):
    package = importlib.import_module(f"fedgeo.{name}")
    gathered = {
        key for key, value in vars(package).items() if not (key.startswith("_") or inspect.ismodule(value))
    }
    assert gathered == {key for key in package.__all__ if not inspect.ismodule(getattr(package, key))}
    text = pydoc.plain(pydoc.render_doc(package))
    assert all(re.search(rf"^    (class )?{key}\b", text, flags=re.M) for key in gathered)


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(fedgeo.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    assert sorted(alias.asname for node in block.body for alias in node.names) == fedgeo.__all__


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'fedprox'"):
        _ = fedgeo.fedprox


def test_importing_the_package_alone_imports_no_jax():
    subprocess.run([sys.executable, "-c", "import fedgeo, sys; assert 'jax' not in sys.modules"], check=True)


def table():
    """The README's table of public names, from their documentation; ``python -m tests.test_public_names`` writes it."""
    rows = []
    for name in fedgeo.__all__:
        value = getattr(fedgeo, name)
        if not inspect.ismodule(value):
            rows.append((f"`fg.{name}`", summary(value) if callable(value) else "settings by name"))
    for name in fedgeo.__all__:
        if inspect.ismodule(module := getattr(fedgeo, name)):
            rows.append((f"`fg.{name}`", f"{summary(module)} {listed(module)}"))
    for module in (compression, runtime, export):
        rows.append((f"`{module.__name__}`", f"{summary(module)} {listed(module)}"))
    for name in manifolds.__all__:
        module = getattr(manifolds, name)
        rows.append((f"`manifolds.{name}`", f"{summary(module)} {listed(module)}"))
    return "\n".join(["| name | what |", "|---|---|", *(f"| {name} | {what} |" for name, what in rows)])


def summary(value):
    first = inspect.getdoc(value).split("\n\n")[0].replace("\n", " ").replace("``", "`").replace("|", "\\|")
    return re.sub(r":\w+:`[~.]?([^`]+)`", r"`\1`", first)


def listed(module):
    """What a module offers of its own, or gathers if it is a package."""
    package = hasattr(module, "__path__")
    names = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and callable(value)
        and (home := getattr(value, "__module__", None))
        and (home.startswith(module.__name__) if package else home == module.__name__)
    ]
    return ", ".join(f"`{name}`" for name in sorted(names, key=str.lower))


def test_the_readme_lists_them():
    assert README.read_text().split("<!-- api -->\n")[1].split("<!-- end -->")[0].strip() == table()


if __name__ == "__main__":
    before, rest = README.read_text().split("<!-- api -->\n")
    README.write_text(f"{before}<!-- api -->\n{table()}\n<!-- end -->{rest.split('<!-- end -->', 1)[1]}")
