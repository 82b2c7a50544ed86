"""The README is true: its Python blocks run and its commands exist."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def run(block):
    namespace = {}
    exec(compile(block, "README.md", "exec"), namespace)
    return namespace


def test_there_are_three_short_examples():
    assert len(BLOCKS) == 3
    for block in BLOCKS:
        code = [line for line in block.splitlines() if line and not line.startswith(("import", "from"))]
        assert len(code) <= 10


def test_simulate():
    got = run(BLOCKS[0])
    assert np.isfinite(got["state"].server).all()
    assert got["history"].client.shape == (30, 2)


def test_compose():
    got = run(BLOCKS[1])
    best = np.linalg.svd(np.asarray(got["a"], np.float64), compute_uv=False)[:4]
    assert -got["loss"](got["z"]) == pytest.approx(np.sum(best**2), rel=1e-4)
    assert np.linalg.norm(got["middle"]) == pytest.approx(1, abs=1e-6)
    assert abs(got["middle"] @ got["z"][:, 0]) < 1e-6


def test_detect():
    got = run(BLOCKS[2])
    labels = got["fg"].data.plants().labels
    assert set(got["alarms"]) == set(labels)
    aurocs = [
        got["fg"].evaluation.auroc(s, labels[name]) for name, s in got["score"](got["scaled"].test).items()
    ]
    assert (
        np.mean(aurocs) > 0.6
    )  # a random score has 0.5 with a standard error of 0.01 over these 24,000 rows
    assert 0 < np.mean([a.mean() for a in got["alarms"].values()]) < 0.5
    jax.clear_caches()


@pytest.mark.parametrize("line", re.findall(r"^fedgeo .*$", README, flags=re.MULTILINE))
def test_commands_parse(line, monkeypatch):
    import tyro

    from fedgeo import cli

    words = re.split(r" {2,}", line)[0].split()[1:]
    assert tyro.cli(cli.Command, args=words)
