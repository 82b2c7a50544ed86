import socket

import jax
import numpy as np
import pytest

from fedgeo import federation
from fedgeo.federation import sharding
from fedgeo.protocol import Cohort
from tests.federation import common


def test_lengths_hold_every_client_and_every_cohort():
    for clients in (1, 5, 13, 16):
        for size in range(1, clients + 1):
            for devices in (1, 2, 8):
                length = sharding.filled_length(clients, size, devices)
                index = jax.numpy.arange(size)
                filled = sharding.fill_cohort(Cohort(index, index >= 0), clients, devices)
                assert length % devices == 0
                assert len(filled.index) % devices == 0
                assert max(filled.index.tolist()) < length
                assert len(set(filled.index.tolist())) == len(filled.index)
                assert filled.active.tolist() == [True] * size + [False] * (len(filled.index) - size)


def test_meshes_are_checked():
    with pytest.raises(ValueError, match="asked for 1000 devices, but JAX sees"):
        federation.client_mesh(1000)
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:1]).reshape(1, 1), ("a", "b"))
    with pytest.raises(ValueError, match=r"a mesh of one axis, got the axes \('a', 'b'\)"):
        sharding.check_mesh(mesh)


@pytest.fixture(scope="module")
def on_one_device(tmp_path_factory):
    return common.run(tmp_path_factory.mktemp("one") / "out.npz", 6)


def close(got, want):
    """Z, P and Lambda to 1e-6; metrics such as a ratio of two small differences are known less well.

    Metrics, which follow nine leaves of state and rounds, are NaN for clients that did not count, and nowhere else.
    """
    counts = want[4] > 0
    assert not counts.all()
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        assert a.shape == b.shape
        np.testing.assert_array_equal(np.isfinite(b), counts if i >= 9 else True)
        np.testing.assert_allclose(a, b, rtol=0 if i < 3 else 1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "devices", [8, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
def test_devices_change_nothing(tmp_path, on_one_device, devices):
    """Thirteen clients, six a round: neither is a multiple of the devices."""
    close(common.run(tmp_path / "out.npz", 6, "--virtual", 8, "--devices", devices), on_one_device)


@pytest.mark.slow
def test_blocks_on_devices_change_nothing(tmp_path, on_one_device):
    close(
        common.run(tmp_path / "out.npz", 6, "--virtual", 2, "--devices", 2, "--block-size", 2), on_one_device
    )


@pytest.mark.slow
def test_processes_change_nothing(tmp_path, on_one_device):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    common_options = ("--virtual", 2, "--devices", 4, "--processes", 2, "--port", port)
    other = common.start(tmp_path / "other.npz", 6, *common_options, "--process", 1)
    got = common.run(tmp_path / "out.npz", 6, *common_options, "--process", 0)
    other.communicate(timeout=100)
    assert other.returncode == 0
    close(got, on_one_device)
