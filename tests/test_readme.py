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


def test_examples_are_short():
    assert len(BLOCKS) == 5
    for block in BLOCKS[:3]:
        code = [line for line in block.splitlines() if line and not line.startswith(("import", "from"))]
        assert len(code) <= 10


def test_detect(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    got = run(BLOCKS[0])
    labels = got["streams"].labels
    aurocs = [got["fg"].evaluation.auroc(got["scores"][name], y) for name, y in labels.items()]
    assert (
        np.mean(aurocs) > 0.6
    )  # a random score has 0.5 with a standard error of 0.01 over these 24,000 rows
    assert 0 < np.mean([alarms.mean() for alarms in got["alarms"].values()]) < 0.5
    assert "random" in capsys.readouterr().out
    assert got["fg"].load("detector").clients_[-1] == "a new machine"
    jax.clear_caches()


def test_simulate():
    got = run(BLOCKS[1])
    assert np.isfinite(got["state"].server).all()
    assert got["history"].client.shape == (30, 2)


def test_compose():
    got = run(BLOCKS[2])
    best = np.linalg.svd(np.asarray(got["a"], np.float64), compute_uv=False)[:4]
    assert -got["loss"](got["z"]) == pytest.approx(np.sum(best**2), rel=1e-4)
    assert np.linalg.norm(got["middle"]) == pytest.approx(1, abs=1e-6)
    assert abs(got["middle"] @ got["z"][:, 0]) < 1e-6


def test_an_algorithm_of_ones_own():
    got = run(BLOCKS[3])
    rows = np.concatenate([np.asarray(table, np.float64) for table in got["tables"]])
    np.testing.assert_allclose(got["state"].server, rows.mean(axis=0), rtol=1e-5)
    again, _ = got["fg"].fit(
        got["federated_mean"](),
        jax.random.key(0),
        got["fg"].data.stack_rows(got["tables"]),
        rounds=1,
        block_size=3,
    )
    np.testing.assert_allclose(again.server, rows.mean(axis=0), rtol=1e-5)


def test_a_manifold_of_ones_own():
    errors = run(BLOCKS[4])["errors"]
    assert max(errors.values()) < 1e-5
    assert np.isfinite(list(errors.values())).all()


@pytest.mark.parametrize("line", re.findall(r"^fedgeo .*$", README, flags=re.MULTILINE))
def test_commands_parse(line, monkeypatch):
    import tyro

    from fedgeo import cli

    words = re.split(r" {2,}", line)[0].split()[1:]
    assert tyro.cli(cli.Command, args=words)
