import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedgeo import federation, trees
from fedgeo.algorithms import compression, fedkad, koopman, moments
from fedgeo.protocol import Series

KEY = jax.random.key(0)
X = jax.random.normal(KEY, (7, 5))


def through(codec, x, key=KEY):
    message = codec.encode(key, x)
    return np.asarray(codec.decode(message), np.float64), trees.nbytes(message)


def test_half_precision_keeps_eleven_bits():
    got, size = through(compression.float16(), X)
    assert size == 2 * 35
    np.testing.assert_allclose(got, X, rtol=2.0**-11)


def test_whole_numbers_lose_at_most_a_step_and_nothing_on_average():
    codec = compression.int8()
    got, size = through(codec, X)
    assert size == 35 + 4
    step = float(jnp.max(jnp.abs(X))) / 127
    assert np.abs(got - np.asarray(X)).max() <= step * (1 + 1e-5)
    keys = jax.random.split(KEY, 4000)
    mean = np.asarray(jax.vmap(lambda key: codec.decode(codec.encode(key, X)))(keys), np.float64).mean(axis=0)
    np.testing.assert_allclose(mean, X, atol=5 * step / 2 / np.sqrt(4000))
    assert not through(codec, jnp.zeros(3))[0].any()


def test_the_largest_entries_are_kept():
    got, size = through(compression.top_k(0.2), X)
    assert size == 7 * 8
    want = np.asarray(X).ravel().copy()
    want[np.argsort(np.abs(want))[:-7]] = 0
    np.testing.assert_array_equal(got.ravel(), want)
    with pytest.raises(ValueError, match=r"share of the entries in \(0, 1\], got 0"):
        compression.top_k(0)


@pytest.fixture(scope="module")
def federated():
    x = np.random.default_rng(0).normal(size=(4, 60, 3)).cumsum(axis=1) / 5
    series = Series(jnp.asarray(x, jnp.float32), jnp.ones((4, 60), bool))
    lift = koopman.random_lift(KEY, 3, window=4, size=6)
    alg = fedkad.fedkad(lift, rank=3, projection="tangent")
    return alg, moments.prepare(lift, series)


@pytest.mark.parametrize(
    ("codec", "bytes_of", "tolerance"),
    [
        (compression.float16(), lambda n: 2 * n, 1e-3),
        (compression.int8(), lambda n: n + 4, 0.02),
        (compression.top_k(0.5), lambda n: 8 * ((n + 1) // 2), 0.2),
    ],
    ids=["float16", "int8", "top_k"],
)
def test_a_federation_with_small_messages(federated, codec, bytes_of, tolerance):
    alg, data = federated
    small = compression.compressed(alg, codec, reference=lambda server: server)
    state, history = federation.fit(small, KEY, data, rounds=6)
    want, _ = federation.fit(alg, KEY, data, rounds=6)
    chex.assert_tree_all_finite(state)
    assert federation.upload_bytes(small, state, data) == bytes_of(state.server.size)
    gap = float(jnp.linalg.norm(state.server - want.server) / jnp.linalg.norm(want.server))
    assert 0 < gap < tolerance
    error = np.asarray(history.metrics["upload_error"])
    assert ((error > 0) & (error < tolerance)).all()


def test_error_is_that_of_the_message(federated):
    alg, data = federated
    small = compression.compressed(alg, compression.float16())
    state = federation.init(alg, KEY, data)
    one = jax.tree.map(lambda leaf: leaf[0], (state.clients, data))
    _, message, metrics = small.update(KEY, state.server, *one)
    _, upload, _ = alg.update(KEY, state.server, *one)
    lost = np.asarray(upload, np.float64) - np.asarray(upload.astype(jnp.float16), np.float64)
    want = np.linalg.norm(lost) / np.linalg.norm(np.asarray(upload, np.float64))
    assert float(metrics["upload_error"]) == pytest.approx(want, rel=1e-3)
    assert trees.nbytes(message) == 2 * upload.size


def test_a_message_that_is_not_finite_is_set_aside(federated):
    alg, data = federated
    damaged = data._replace(xx=data.xx.at[1].set(jnp.nan))
    for codec in (compression.float16(), compression.int8(), compression.top_k(0.5)):
        small = compression.compressed(alg, codec)
        state, history = federation.fit(small, KEY, damaged, rounds=2)
        chex.assert_tree_all_finite(state)
        assert np.asarray(history.quarantined).tolist() == [[False, True, False, False]] * 2


def test_a_robust_mean_is_one_argument(federated):
    alg, data = federated
    lift = koopman.random_lift(KEY, 3, window=4, size=6)
    spoiler = alg._replace(
        update=lambda key, server, client, data_k: (
            lambda c, upload, m: (c, jnp.where(data_k.pairs < 0, 0, upload) + 100 * (data_k.yy[0] > 1e3), m)
        )(*alg.update(key, server, client, data_k))
    )
    bad = data._replace(yy=data.yy.at[2].set(2e3))  # a client that sends nonsense, finite
    plain, _ = federation.fit(spoiler, KEY, bad, rounds=1)
    for mean in (trees.median, trees.trimmed_mean(0.25)):
        robust = fedkad.fedkad(lift, rank=3, projection="tangent", mean=mean)
        state, _ = federation.fit(spoiler._replace(aggregate=robust.aggregate), KEY, bad, rounds=1)
        assert np.abs(np.asarray(state.server)).max() < 1.5
    assert np.abs(np.asarray(plain.server)).max() > 20
