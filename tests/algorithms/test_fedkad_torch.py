"""The benchmark's PyTorch version computes what ours computes; skipped where PyTorch is not installed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedgeo import federation
from fedgeo.algorithms import koopman, moments
from fedgeo.algorithms.fedkad import fedkad
from fedgeo.protocol import Series


def test_agrees_with_ours():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed; it is no dependency")
    from benchmarks import _fedkad_torch

    rng = np.random.default_rng(0)
    t = np.arange(60)[:, None]
    x = np.stack([np.sin(t * (0.1 + 0.1 * k) + np.arange(3)) for k in range(3)])
    x = (x + 0.1 * rng.standard_normal(x.shape)).astype(np.float32)
    lift = koopman.random_lift(jax.random.key(0), 3, window=4, size=6)
    data = moments.prepare(lift, Series(jnp.asarray(x), jnp.ones(x.shape[:2], bool)))
    alg = fedkad(lift, rank=3, step_size=0.2, inner_steps=2)
    key = jax.random.key(1)
    start = federation.init(alg, key, data).server
    state, history = federation.fit(alg, key, data, rounds=3, sampler=federation.uniform(2))
    weight, bias, frame = (torch.from_numpy(np.array(part)) for part in (lift.matrix, lift.bias, start))
    server, clients = _fedkad_torch.fit(
        [torch.from_numpy(one) for one in x],
        weight,
        bias,
        4,
        frame,
        history.client.tolist(),
        eta=0.2,
        inner=2,
    )
    assert np.isfinite(state.server).all()
    np.testing.assert_allclose(state.server, server.numpy(), atol=2e-5)
    for k, client in enumerate(clients):
        np.testing.assert_allclose(state.clients.frame[k], client.P.numpy(), atol=2e-5)
