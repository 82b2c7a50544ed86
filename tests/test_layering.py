"""The arrows of the design: which room may import which, and which libraries are kept to one room."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

NUMERIC = {"numpy", "scipy", "sklearn", "pandas"}
# The most specific entry counts; a name covers everything below it.
ALLOWED = {
    "manifolds": {"jax", "numpy", "manifolds"},
    "manifolds.optim": {"jax", "optax", "manifolds"},
    "fedgeo.protocol": {"jax"},
    "fedgeo.trees": {"jax", "numpy", "fedgeo.protocol"},
    "fedgeo.data": NUMERIC | {"fedgeo.protocol", "fedgeo.data"},
    "fedgeo.data.csv_files": NUMERIC | {"fedgeo.data", "fedgeo.deploy.runtime"},
    "fedgeo.data.downloads": {"pooch", "fedgeo.data"},
    "fedgeo.arguments": set(),
    "fedgeo.shuffling": {"jax", "fedgeo.protocol"},
    "fedgeo.models": {"jax", "flax", "manifolds"}
    | {f"fedgeo.{n}" for n in ("arguments", "protocol", "shuffling", "models")},
    "fedgeo.algorithms": {
        "jax",
        "numpy",
        "optax",
        "manifolds",
        "fedgeo.arguments",
        "fedgeo.protocol",
        "fedgeo.shuffling",
        "fedgeo.trees",
        "fedgeo.algorithms",
    },
    "fedgeo.federation": {"jax", "numpy", "orbax"}
    | {f"fedgeo.{n}" for n in ("arguments", "protocol", "trees", "federation")},
    "fedgeo.evaluation": NUMERIC | {"fedgeo.evaluation"},
    "fedgeo.evaluation.significance": NUMERIC | {"scikit_posthocs", "baycomp"},
    "fedgeo.baselines": NUMERIC | {"xgboost", "fedgeo.data", "fedgeo.baselines"},
    "fedgeo.runs": NUMERIC
    | {"jax", "optax"}
    | {f"fedgeo.{n}" for n in ("protocol", "trees", "data", "models", "algorithms", "federation")}
    | {f"fedgeo.{n}" for n in ("evaluation", "baselines", "runs")},
    "fedgeo.estimators": NUMERIC
    | {"jax", "optax", "manifolds", "fedgeo.deploy.runtime"}
    | {f"fedgeo.{n}" for n in ("protocol", "trees", "data", "models", "algorithms", "federation")}
    | {f"fedgeo.{n}" for n in ("evaluation", "estimators")},
    "fedgeo.report": NUMERIC
    | {"jax", "matplotlib", "scikit_posthocs", "fedgeo.runs", "fedgeo.evaluation", "fedgeo.algorithms"},
    "fedgeo.page": NUMERIC
    | {"matplotlib", "jinja2", "markupsafe", "fedgeo.report", "fedgeo.runs", "fedgeo.evaluation"},
    "fedgeo.profile": {"jax", "numpy", "pandas", "optax", "fedgeo.protocol"}
    | {f"fedgeo.{n}" for n in ("models", "algorithms", "federation")},
    "fedgeo.deploy": {"jax", "numpy", "fedgeo.protocol", "fedgeo.trees", "fedgeo.federation"},
    "fedgeo.deploy.flower": {"jax", "numpy", "flwr", "fedgeo.protocol", "fedgeo.trees", "fedgeo.federation"},
    "fedgeo.deploy.runtime": {"numpy"},
    "fedgeo.deploy.export": {
        "jax",
        "numpy",
        "onnx",
        "fedgeo.algorithms",
        "fedgeo.models",
        "fedgeo.deploy.runtime",
    },
    "fedgeo.cli": {"numpy", "pandas", "tyro", "rich", "fedgeo"},
    "fedgeo": {"fedgeo"},
}


def modules():
    for package in ("fedgeo", "manifolds"):
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def covers(entry, name):
    return name == entry or name.startswith(entry + ".")


@pytest.mark.parametrize(
    ("module", "path"), list(modules()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_arrows_run_one_way(module, path):
    rule = max((entry for entry in ALLOWED if covers(entry, module)), key=len)
    for name in imports(path):
        if name.split(".")[0] in sys.stdlib_module_names:
            continue
        assert any(covers(entry, name) for entry in ALLOWED[rule]), f"{module} may not import {name}"


@pytest.mark.parametrize(
    ("module", "path"), list(modules()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_no_module_changes_the_configuration_or_prints(module, path):
    tree = ast.parse(path.read_text())
    for node in list(tree.body):
        if (module, getattr(node, "name", "")) == ("fedgeo.federation.sweeps", "one_device_a_core"):
            tree.body.remove(node)  # does what it says, when its caller asks for it
    called = [ast.unparse(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)]
    assert not any(name.endswith("config.update") for name in called)
    assert module == "fedgeo.cli" or "print" not in called


def test_packages_say_that_they_are_typed():
    assert (ROOT / "fedgeo" / "py.typed").exists()
    assert (ROOT / "manifolds" / "py.typed").exists()
