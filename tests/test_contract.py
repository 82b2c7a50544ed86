"""What every algorithm owes its engines. Adding an algorithm is adding a row to ``ALGORITHMS``.

It is given tables, ``Rows (K, N, F)``, and scores every row. The name of one that takes windows of streams,
``Series (K, T, C)``, stands in ``WINDOWS`` too, that of one that takes the moments of a lift in ``SERIES``:
``make_data`` gives each its kind, and while the first window fills their scores are NaN. ``SLOW`` leaves one to
``-m slow``.
"""

import inspect
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedgeo import federation
from fedgeo.algorithms import koopman, moments
from fedgeo.algorithms.examples import windows
from fedgeo.algorithms.fedavg import fedavg
from fedgeo.algorithms.fedkad import RECOMMENDED, fedkad
from fedgeo.algorithms.local import local_only
from fedgeo.algorithms.one_shot import one_shot
from fedgeo.models.autoencoders import lstm_autoencoder, usad
from fedgeo.models.encoder import geodesic_svdd, mlp_svdd
from fedgeo.models.tranad import tranad
from fedgeo.models.window_svdd import window_svdd
from fedgeo.protocol import Cohort, FedAlgorithm, Rows, Series

K, CHANNELS = 5, 3
LENGTHS = (23, 40, 0, 31, 1)  # one client has no row, one has a single one


class Case(NamedTuple):
    alg: FedAlgorithm
    pad: int  # rows added behind the longest client
    lengths: tuple[int, ...] = LENGTHS


MODEL = geodesic_svdd(latent=4, width=8, blocks=1)
WINDOW = 3
LIFT = koopman.random_lift(jax.random.key(9), CHANNELS, window=WINDOW, size=4)
ALGORITHMS = {
    "fedkad": fedkad(LIFT, rank=2, inner_steps=2),
    "fedkad_tangent": fedkad(LIFT, rank=2, inner_steps=2, projection="tangent", start="independent"),
    "fedkad_warm": fedkad(LIFT, rank=2, inner_steps=2, start="warm"),
    "fedkad_recommended": fedkad(LIFT, rank=2, inner_steps=2, **RECOMMENDED),
    "geodesic_iter": fedavg(MODEL, epochs=2, batch_size=16),
    "fedavg_mlp": fedavg(mlp_svdd(latent=4, width=8), epochs=2, batch_size=16, stateful=True),
    "geodesic_one_shot": one_shot(MODEL, epochs=2, batch_size=16),
    "window_svdd": fedavg(
        window_svdd(sizes=(8, 4)), epochs=2, batch_size=16, examples=windows(WINDOW, stride=2)
    ),
    "lstm_autoencoder": fedavg(lstm_autoencoder(latent=4), epochs=2, batch_size=16, examples=windows(WINDOW)),
    "usad": fedavg(
        usad(window=WINDOW, channels=CHANNELS, latent=2), epochs=2, batch_size=16, examples=windows(WINDOW)
    ),
    # The loss does not depend on the bias of attention's keys: Adam would make whole steps of its gradient's rounding.
    "tranad": fedavg(
        tranad(hidden=4), optimizer=optax.sgd(1e-2), epochs=2, batch_size=16, examples=windows(WINDOW)
    ),
    "local_fedkad": local_only(fedkad(LIFT, rank=2, inner_steps=2)),
    "local_geodesic": local_only(fedavg(MODEL, epochs=2, batch_size=16)),
}
SERIES = {"fedkad", "fedkad_tangent", "fedkad_warm", "fedkad_recommended", "local_fedkad"}
WINDOWS = {"window_svdd", "lstm_autoencoder", "usad", "tranad"}
SLOW = {"lstm_autoencoder", "usad", "tranad", "local_geodesic"}


THREE = federation.uniform(3)
fed_round = jax.jit(federation.fed_round, static_argnames="alg")


def rows(client):
    return np.random.default_rng(client).standard_normal((LENGTHS[client], CHANNELS)).astype(np.float32)


def make_data(name, order=range(K), pad=0, spoil=None):
    size = max(LENGTHS) + pad
    x, mask = np.zeros((K, size, CHANNELS), np.float32), np.zeros((K, size), bool)
    for place, client in enumerate(order):
        x[place, : LENGTHS[client]], mask[place, : LENGTHS[client]] = rows(client), True
        if client == spoil:
            x[place, 2, 1] = np.nan
    x, mask = jnp.asarray(x), jnp.asarray(mask)
    if name in WINDOWS:
        return Series(x, mask)
    return moments.prepare(LIFT, Series(x, mask)) if name in SERIES else Rows(x, mask)


@pytest.fixture(params=[pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in ALGORITHMS])
def name(request):
    return request.param


@pytest.fixture
def alg(name):
    return ALGORITHMS[name]


def assert_same(got, want, rtol):
    chex.assert_tree_all_finite((got, want))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol), got, want)


def client_of(tree, k):
    return jax.tree.map(lambda leaf: leaf[k], tree)


def test_signatures(alg):
    want = {
        "init": ["key", "data"],
        "update": ["key", "server", "client", "data_k"],
        "weight": 1,
        "aggregate": ["server", "uploads", "weights", "cohort"],
        "sync": ["server", "client"],
        "deploy": ["server", "client", "data_k"],
        "score": ["detector", "x"],
    }
    for field, names in want.items():
        got = list(inspect.signature(getattr(alg, field)).parameters)
        assert got == names or len(got) == names, field


def test_a_run_is_finite_traced_twice_and_keeps_its_structure(name, alg):
    data = make_data(name)
    key = jax.random.key(0)
    start = federation.init(alg, key, data)
    traces = []
    counted = alg._replace(update=lambda *arguments: traces.append(1) or alg.update(*arguments))
    state, history = federation.fit(counted, key, data, rounds=4, sampler=THREE)
    assert len(traces) == 2  # by the check of what it returns, and for the program
    chex.assert_trees_all_equal_shapes_and_dtypes(state, start)
    chex.assert_tree_all_finite(state)
    chex.assert_tree_all_finite(history._replace(metrics={}))
    for values in history.metrics.values():
        np.testing.assert_array_equal(np.isfinite(values), history.weight > 0)
    assert history.client.shape == (4, 3)
    assert all(len(set(ids)) == 3 for ids in np.asarray(history.client).tolist())
    again, _ = federation.fit(counted, key, data, rounds=4, sampler=THREE)
    chex.assert_trees_all_equal(again, state)
    other, _ = federation.fit(counted, jax.random.key(1), data, rounds=4, sampler=THREE)
    assert len(traces) == 2
    assert any(
        not np.array_equal(a, b) for a, b in zip(jax.tree.leaves(other), jax.tree.leaves(state), strict=True)
    )


def test_blocks_and_progress_change_no_result(name, alg):
    data, key = make_data(name), jax.random.key(0)
    want, _ = federation.fit(alg, key, data, rounds=2)
    done = []
    got, history = federation.fit(alg, key, data, rounds=2, block_size=2, on_progress=done.append)
    assert done == [1, 2]
    assert history.client.shape == (2, K)
    assert_same(got, want, 2e-5)
    half, _ = federation.fit(alg, key, data, rounds=1)
    resumed, _ = federation.fit(alg, key, data, rounds=1, state=half, first_round=1)
    chex.assert_trees_all_equal(resumed, want)


def test_a_merged_upload_stands_for_those_it_is_made_of(name, alg):
    if alg.merge is None:
        pytest.skip("this server must see every upload")
    data, key = make_data(name), jax.random.key(0)
    state = federation.init(alg, key, data)
    three = jax.tree.map(lambda leaf: leaf[jnp.asarray([0, 1, 3])], (state.clients, data))
    uploads = jax.jit(jax.vmap(alg.update, in_axes=(None, None, 0, 0)))(key, state.server, *three)[1]
    weights = jnp.asarray([2.0, 0.0, 5.0])
    two = jax.tree.map(lambda leaf: leaf[:2], uploads)
    merged = jax.tree.map(lambda a, b: jnp.stack([a, b[2]]), alg.merge(two, weights[:2]), uploads)
    want = alg.aggregate(state.server, uploads, weights, Cohort(jnp.asarray([0, 1, 3]), weights > 0))
    got = alg.aggregate(
        state.server, merged, jnp.asarray([2.0, 5.0]), Cohort(jnp.arange(2), jnp.ones(2, bool))
    )
    assert_same(got, want, 2e-6)


def test_padding_is_invisible(name, alg):
    key = jax.random.key(0)
    want, _ = federation.fit(alg, key, make_data(name), rounds=2)
    got, _ = federation.fit(alg, key, make_data(name, pad=16), rounds=2)
    assert_same(got, want, 2e-5)


def test_cohort_order_is_invisible(name, alg):
    data, key = make_data(name), jax.random.key(0)
    state = federation.init(alg, key, data)
    results = []
    for order in ([0, 1, 3], [3, 0, 1]):
        cohort = Cohort(jnp.asarray(order), jnp.ones(3, bool))
        results.append(fed_round(alg, key, state, data, cohort)[0])
    assert_same(results[0], results[1], 2e-5)


def test_absent_clients_are_untouched_and_an_empty_round_changes_nothing(name, alg):
    data, key = make_data(name), jax.random.key(0)
    state, _ = federation.fit(alg, key, data, rounds=1)
    cohort = Cohort(jnp.asarray([0, 1, 3]), jnp.asarray([True, False, True]))
    after, info = fed_round(alg, key, state, data, cohort)
    assert info.weight[1] == 0
    for k in (1, 2, 4):
        chex.assert_trees_all_equal(client_of(after.clients, k), client_of(state.clients, k))
    nobody = Cohort(cohort.index, jnp.zeros(3, bool))
    chex.assert_trees_all_equal(fed_round(alg, key, state, data, nobody)[0], state)
    chex.assert_tree_all_finite((after, state))


def test_a_client_that_sends_nan_is_set_aside(name, alg):
    key, spoiled = jax.random.key(0), 1
    data = make_data(name, spoil=spoiled)
    state = federation.init(alg, key, data)
    chex.assert_tree_all_finite(state)
    cohort = Cohort(jnp.arange(K), jnp.ones(K, bool))
    after, info = fed_round(alg, key, state, data, cohort)
    chex.assert_tree_all_finite(after)
    assert info.quarantined.tolist() == [k == spoiled for k in range(K)]
    chex.assert_trees_all_equal(client_of(after.clients, spoiled), client_of(state.clients, spoiled))
    without = Cohort(cohort.index, jnp.arange(K) != spoiled)
    want, _ = fed_round(alg, key, state, make_data(name), without)
    assert_same(after.server, want.server, 2e-5)
    history = jax.tree.map(lambda leaf: leaf[None], info)
    text = "\n".join(federation.incidents(history, list("abcde")))
    assert "round 0: what client b sent or kept was not finite" in text
    assert "client c has no usable rows" in text


def test_detectors_score_every_row(name, alg):
    data, key = make_data(name), jax.random.key(0)
    state, _ = federation.fit(alg, key, data, rounds=2)
    detectors = federation.deploy(alg, state, data)
    chex.assert_tree_all_finite(detectors)
    x = jnp.asarray(rows(1))
    warm_up = WINDOW if name in SERIES else WINDOW - 1 if name in WINDOWS else 0
    for k in range(K):
        scores = np.asarray(alg.score(client_of(detectors, k), x))
        assert scores.shape == (len(x),)
        assert np.isnan(scores[:warm_up]).all()
        assert np.isfinite(scores[warm_up:]).all()
        if LENGTHS[k] > 1:
            assert len(np.unique(scores[warm_up:])) > 0.9 * (len(x) - warm_up)


def test_upload_bytes_are_those_of_the_message(name, alg):
    data = make_data(name)
    state = federation.init(alg, jax.random.key(0), data)
    one = client_of((state.clients, data), 0)
    sent = jax.eval_shape(alg.update, jax.random.key(1), state.server, *one)[1]
    got = federation.upload_bytes(alg, state, data)
    assert got == sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(sent))
    if name.startswith("local"):
        assert got == 0
    elif name in SERIES:
        assert got == 4 * (3 * CHANNELS + 4) * 2  # one D x r float32 matrix
