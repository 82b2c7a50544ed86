"""Windowless moments against the dense products of windows in float64."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedgeo.algorithms import koopman, moments
from fedgeo.protocol import Series

second_moments = jax.jit(moments.second_moments, static_argnames=("chunk", "dtype"))
extend = jax.jit(moments.extend)


def dense(lift, x, mask, window):
    """The definition: every pair of neighbouring windows, lifted one by one, in float64."""
    weight, bias = (np.asarray(p, np.float64) for p in (lift.matrix, lift.bias))
    x = np.asarray(x, np.float64)
    starts = [s for s in range(len(x) - window) if mask[s : s + window + 1].all()]
    states = []
    for first in (0, 1):
        z = np.array([x[s + first : s + first + window].ravel() for s in starts])
        z = z.reshape(len(starts), window * x.shape[1])
        states.append(np.concatenate([z, np.tanh(z @ weight.T + bias)], axis=1))
    X, Y = states
    return moments.Moments(np.float64(len(starts)), X.T @ X, Y.T @ X, np.sum(Y * Y, axis=0))


def noise(seed, steps, channels):
    """Correlated channels of unit size, float32 values; one is constant at zero."""
    rng = np.random.default_rng(seed)
    x = np.cumsum(rng.standard_normal((steps, channels)), axis=0)
    x = x / (1 + np.abs(x).max(initial=0)) * 3 + rng.standard_normal((steps, channels))
    if channels > 1:
        x[:, 1] = 0
    return np.clip(x, -10, 10).astype(np.float32)


def assert_close(got, want, tolerance=1e-5):
    chex.assert_tree_all_finite(got)
    assert got.pairs == want.pairs
    for name in ("xx", "yx", "yy"):
        scale = np.abs(getattr(want, name)).max()
        error = np.abs(np.asarray(getattr(got, name), np.float64) - getattr(want, name)).max()
        assert error <= tolerance * scale, name
    assert np.asarray(got.xx) == pytest.approx(np.asarray(got.xx).T, abs=tolerance * np.abs(want.xx).max())


@pytest.mark.parametrize(
    ("channels", "window", "size"),
    [(1, 20, 16), (1, 1, 3), (2, 1, 0), (3, 4, 6), (7, 5, 0), (25, 20, 32), (38, 3, 8), (55, 20, 24)],
)
@pytest.mark.parametrize("gaps", ["none", "few", "many"])
def test_equal_to_the_dense_products(channels, window, size, gaps):
    lift = koopman.random_lift(jax.random.key(channels), channels, window=window, size=size)
    x = noise(channels, 500, channels)
    mask = np.ones(len(x), bool)
    if gaps == "few":
        mask[[0, 90, 91, 300, 499]] = False
    if gaps == "many":  # runs of random lengths around the window's
        mask = np.random.default_rng(window).random(len(x)) > 0.5 / (window + 1)
    x[~mask] = 0
    got = second_moments(lift, Series(jnp.asarray(x), jnp.asarray(mask)), chunk=128)
    assert_close(got, dense(lift, x, mask, window))


@pytest.mark.parametrize("steps", [0, 1, 3, 4, 5, 9])
def test_streams_around_the_window_length(steps):
    window, channels = 4, 3
    lift = koopman.random_lift(jax.random.key(0), channels, window=window, size=5)
    x = noise(steps, steps, channels)
    got = second_moments(lift, Series(jnp.asarray(x), jnp.ones(steps, bool)))
    assert got.pairs == max(steps - window, 0)
    assert_close(got, dense(lift, x, np.ones(steps, bool), window))


@pytest.mark.parametrize("chunk", [1, 7, 395, 10_000])
def test_the_chunk_changes_nothing_beyond_rounding(chunk):
    lift = koopman.random_lift(jax.random.key(0), 3, window=4, size=5)
    x = noise(0, 400, 3)
    mask = np.ones(400, bool)
    mask[[150, 160, 200]] = False
    x[~mask] = 0
    got = second_moments(lift, Series(jnp.asarray(x), jnp.asarray(mask)), chunk=chunk)
    assert_close(got, dense(lift, x, mask, 4), tolerance=1e-6)


def test_a_masked_row_may_hold_anything():
    lift = koopman.random_lift(jax.random.key(0), 3, window=4, size=5)
    x, mask = noise(0, 100, 3), np.ones(100, bool)
    mask[50] = False
    want = second_moments(lift, Series(jnp.asarray(x), jnp.asarray(mask)))
    x[50] = np.nan
    chex.assert_trees_all_equal(second_moments(lift, Series(jnp.asarray(x), jnp.asarray(mask))), want)
    chex.assert_tree_all_finite(want)


def test_moments_of_ragged_clients_are_those_of_each():
    lift = koopman.random_lift(jax.random.key(0), 3, window=4, size=5)
    lengths = (200, 0, 31, 3, 120, 1)
    x, mask = np.zeros((len(lengths), 200, 3), np.float32), np.zeros((len(lengths), 200), bool)
    for k, length in enumerate(lengths):
        x[k, :length], mask[k, :length] = noise(k, length, 3), True
    series = Series(jnp.asarray(x), jnp.asarray(mask))
    got = jax.jit(moments.prepare)(lift, series)
    batched = jax.jit(jax.vmap(moments.second_moments, in_axes=(None, 0)))(lift, series)
    for k, length in enumerate(lengths):
        want = dense(lift, x[k, :length], mask[k, :length], 4)
        assert_close(jax.tree.map(lambda leaf, k=k: leaf[k], got), want)
        assert_close(jax.tree.map(lambda leaf, k=k: leaf[k], batched), want)


@pytest.mark.parametrize("cuts", [(60,), (1, 2, 4, 62), (60, 61, 118)])
def test_a_stream_learned_in_parts_gives_the_moments_of_the_whole(cuts):
    lift = koopman.random_lift(jax.random.key(0), 3, window=4, size=5)
    x, mask = noise(0, 120, 3), np.ones(120, bool)
    mask[[40, 61, 62]] = False
    x[~mask] = 0
    stream = moments.begin(lift, 3)
    shapes = jax.tree.map(jnp.shape, stream)
    for part in np.split(np.arange(120), cuts):
        stream = extend(lift, stream, Series(jnp.asarray(x[part]), jnp.asarray(mask[part])))
        assert jax.tree.map(jnp.shape, stream) == shapes
    assert_close(stream.moments, dense(lift, x, mask, 4))


def test_moments_of_two_streams_add_up():
    lift = koopman.random_lift(jax.random.key(0), 3, window=4, size=5)
    first, second = noise(1, 80, 3), noise(2, 50, 3)
    parts = [second_moments(lift, Series(jnp.asarray(x), jnp.ones(len(x), bool))) for x in (first, second)]
    joined = np.concatenate([first, np.zeros((1, 3), np.float32), second])
    mask = np.arange(len(joined)) != len(first)
    assert_close(moments.merge(*parts), dense(lift, joined, mask, 4))


def test_long_streams_lose_no_digits():
    lift = koopman.random_lift(jax.random.key(0), 2, window=3, size=4)
    x = noise(0, 200_000, 2) + 1  # an offset, so that sums grow all the way
    got = second_moments(lift, Series(jnp.asarray(x), jnp.ones(len(x), bool)))
    weight, bias = (np.asarray(p, np.float64) for p in (lift.matrix, lift.bias))
    z = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), 3, axis=0)
    z = z.transpose(0, 2, 1).reshape(len(z), -1)
    phi = np.concatenate([z, np.tanh(z @ weight.T + bias)], axis=1)
    X, Y = phi[:-1], phi[1:]
    assert_close(got, moments.Moments(np.float64(len(X)), X.T @ X, Y.T @ X, np.sum(Y * Y, axis=0)))


def test_float64_is_an_option_and_never_silently_float32():
    lift = koopman.random_lift(jax.random.key(0), 3, window=4, size=5)
    x = noise(0, 300, 3)
    series = Series(jnp.asarray(x), jnp.ones(300, bool))
    with pytest.raises(ValueError, match=r"float64 is not available.*jax_enable_x64"):
        moments.second_moments(lift, series, dtype=jnp.float64)
    with jax.enable_x64(True):
        got = moments.second_moments(lift, series, dtype=jnp.float64)
        assert got.xx.dtype == jnp.float64
        assert_close(got, dense(lift, x, np.ones(300, bool), 4), tolerance=1e-12)
