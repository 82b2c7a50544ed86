"""A server and three nodes as processes of their own, over TLS on the loopback interface."""

import os
import signal
import time

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the extra fedgeo[flower]")

from experiments import flower_loopback

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize(("method", "rounds"), [("fedkad", 3), ("one-shot", 1)])
def test_three_processes_equal_the_simulator(tmp_path, monkeypatch, method, rounds):
    monkeypatch.setenv("FEDGEO_METHOD", method)
    with flower_loopback.Loopback(tmp_path, method, rounds) as loop:
        for k in range(3):
            loop.node(k)
        outcome = loop.outcome(loop.run())
    assert outcome["incidents"] == []
    want = flower_loopback.simulated(method, rounds)
    for a, b in zip(loop.server(), want, strict=True):
        assert np.isfinite(b).all()
        np.testing.assert_allclose(a.astype(float), b.astype(float), atol=1e-5)


def test_a_node_that_dies_and_one_that_sends_nonsense_are_named(tmp_path):
    with flower_loopback.Loopback(tmp_path, "fedkad", 4) as loop:
        nodes = [loop.node(k, **({"FEDGEO_NAN": "1"} if k == 2 else {})) for k in range(3)]
        run = loop.run()
        rounds = tmp_path / "rounds.txt"
        while not rounds.exists():  # until the first round is done
            assert run.poll() is None, (tmp_path / "run.log").read_text()
            time.sleep(0.5)
        os.killpg(nodes[1].pid, signal.SIGKILL)
        outcome = loop.outcome(run)
    assert all(np.isfinite(leaf).all() for leaf in loop.server())
    assert "round 0: what client 2 sent was not finite and was set aside" in outcome["incidents"]
    assert any("client 1" in line for line in outcome["incidents"])
    assert outcome["metrics"][-1]["counted"] == [0]


def test_a_wrong_key_and_a_plain_connection_are_refused(tmp_path):
    with flower_loopback.Loopback(tmp_path, "fedkad", 1) as loop:
        stranger = loop.node(0, register=False)
        plain = loop.node(1, register=False, plain=True)
        for process, name in ((stranger, "node0"), (plain, "node1")):
            assert process.wait(timeout=120) != 0, (tmp_path / f"{name}.log").read_text()
        log = (tmp_path / "superlink.log").read_text()
    assert 'activate-node HTTP/1.1" 200' not in log
