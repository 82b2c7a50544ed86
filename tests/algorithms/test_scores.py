"""Scores beyond the paper's, their variances, the parts by channel, and streaming."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedgeo.algorithms import comparators, fedkad, koopman, moments, online
from fedgeo.protocol import Series

WINDOW, RANK, CHANNELS, SIZE = 4, 3, 3, 6
WIDE = WINDOW * CHANNELS
SETTINGS = list(itertools.product(("full", "newest"), ("none", "variance", "log")))


def close(got, want, tolerance=1e-5):
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    known = ~np.isnan(want)
    assert np.isfinite(got[known]).all()
    assert known.any()
    assert np.abs(got[known] / want[known] - 1).max() < tolerance


@pytest.fixture(scope="module")
def lift():
    return koopman.random_lift(jax.random.key(7), CHANNELS, window=WINDOW, size=SIZE)


@pytest.fixture(scope="module")
def x():
    rng = np.random.default_rng(0)
    t = np.arange(400)[:, None]
    x = np.sin(t * 0.2 + np.arange(CHANNELS) * 1.3) + 0.1 * rng.standard_normal((400, CHANNELS))
    return jnp.asarray(x, jnp.float32)


@pytest.fixture(scope="module")
def sums(lift, x):
    return jax.jit(moments.second_moments)(lift, Series(x, jnp.ones(len(x), bool)))


def make(lift, sums, residual, scale="variance"):
    alg = fedkad.fedkad(lift, rank=RANK, residual=residual, scale=scale)
    server = comparators.pooled_subspace(sums, RANK)
    return alg, alg.deploy(server, None, sums)


def float64(detector):
    """Basis, readout, operator and lifted states of a stream in NumPy."""
    return [np.asarray(part, np.float64) for part in (detector.basis, detector.predicts(), detector.operator)]


def lifted(lift, x):
    weight, bias = (np.asarray(part, np.float64) for part in (lift.matrix, lift.bias))
    z = np.lib.stride_tricks.sliding_window_view(np.asarray(x, np.float64), WINDOW, axis=0)
    z = z.transpose(0, 2, 1).reshape(len(z), -1)
    return np.concatenate([z, np.tanh(z @ weight.T + bias)], axis=1)


@pytest.mark.parametrize("residual", ["full", "newest"])
def test_variances_come_from_the_moments_alone(lift, x, sums, residual):
    _, detector = make(lift, sums, residual)
    basis, readout, _ = float64(detector)
    phi = lifted(lift, x)
    errors = phi[1:] - phi[:-1] @ basis @ readout.T
    want = np.mean(errors**2, axis=0)
    floor = fedkad.VARIANCE_FLOOR * want.mean()
    close(detector.variance, np.maximum(want, floor), 1e-3)  # a difference of sums 100 times as large
    chex.assert_tree_all_finite(detector)


@pytest.mark.parametrize(("residual", "scale"), SETTINGS)
@pytest.mark.parametrize("horizon", [3])
def test_scores_follow_their_definition_and_add_up_over_channels(lift, x, sums, residual, scale, horizon):
    _, detector = make(lift, sums, residual)
    basis, readout, operator = float64(detector)
    phi = lifted(lift, x)
    entries = slice(WIDE - CHANNELS, WIDE) if residual == "newest" else slice(None)
    want = np.full(len(x), np.nan)
    variance = np.asarray(detector.variance, np.float64)[entries]
    for t in range(len(phi) - horizon):
        state, total = basis.T @ phi[t], 0.0
        for h in range(1, horizon + 1):
            squares = (phi[t + h] - readout @ state)[entries] ** 2
            state = operator @ state
            squares = squares / (1 if scale == "none" else variance)
            total += np.sum(np.log1p(squares) if scale == "log" else squares)
        want[t + WINDOW - 1 + horizon] = total / horizon
    names = dict(horizon=horizon, residual=residual, scale=scale)
    got = koopman.residuals(detector, x, **names)
    close(got, want, 1e-4)
    parts = koopman.contributions(detector, x, chunk=64, **names)
    assert parts.shape == (len(x), CHANNELS + 1)
    close(jnp.sum(parts, axis=1), got)
    if residual == "newest":
        assert np.nanmax(np.abs(parts[:, -1])) == 0


def test_the_channel_that_breaks_contributes_most(lift, x, sums):
    for residual, scale in (("full", "variance"), ("newest", "log")):
        _, detector = make(lift, sums, residual)
        parts = koopman.contributions(detector, x.at[200, 1].add(6), residual=residual, scale=scale)
        assert np.isfinite(parts[200]).all()
        assert np.argmax(parts[200, :CHANNELS]) == 1


@pytest.mark.parametrize(("residual", "scale"), SETTINGS)
def test_row_by_row_equals_the_whole(lift, x, sums, residual, scale):
    _, detector = make(lift, sums, residual)
    for horizon, smoothing in ((1, 5), (3, 1)):
        watch = online.begin(detector, CHANNELS, horizon=horizon, smoothing=smoothing)

        def step(watch, row):
            return online.update(detector, watch, row, residual=residual, scale=scale)

        _, got = jax.jit(lambda watch, step=step: jax.lax.scan(step, watch, x))(watch)
        errors = koopman.residuals(detector, x, horizon=horizon, residual=residual, scale=scale)
        want = koopman.smooth(errors, smoothing)
        assert np.isnan(want).sum() == WINDOW - 1 + horizon
        close(got, want)


def test_the_recommended_score_is_streamed_alike(lift, x, sums):
    alg = fedkad.fedkad(lift, rank=RANK, **fedkad.RECOMMENDED)
    detector = alg.deploy(comparators.pooled_subspace(sums, RANK), None, sums)
    watch = online.begin(detector, CHANNELS, smoothing=fedkad.RECOMMENDED["smoothing"])
    names = {name: fedkad.RECOMMENDED[name] for name in ("residual", "scale")}

    def step(watch, row):
        return online.update(detector, watch, row, **names)

    close(jax.jit(lambda: jax.lax.scan(step, watch, x)[1])(), alg.score(detector, x))


def test_a_hundred_thousand_rows_keep_a_state_of_one_size(lift, sums):
    _, detector = make(lift, sums, "full")
    t = np.arange(100_000)[:, None]
    noise = np.random.default_rng(1).standard_normal((len(t), CHANNELS))
    x = jnp.asarray(np.sin(t * 0.2 + np.arange(CHANNELS)) + 0.1 * noise, jnp.float32)
    watch = online.begin(detector, CHANNELS)
    update = jax.jit(online.update)
    after, _ = update(detector, watch, x[0])
    chex.assert_trees_all_equal_shapes_and_dtypes(after, watch)
    _, got = jax.jit(lambda: jax.lax.scan(lambda w, row: online.update(detector, w, row), watch, x))()
    close(got, koopman.smooth(koopman.residuals(detector, x), 5))


def test_names_are_checked(lift, x, sums):
    for arguments, message in (
        (dict(residual="old"), 'residual must be "full" or "newest"'),
        (dict(scale="range"), 'scale must be "none", "variance" or "log"'),
    ):
        with pytest.raises(ValueError, match=message):
            fedkad.fedkad(lift, rank=RANK, **arguments)
        with pytest.raises(ValueError, match=message):
            koopman.residuals(make(lift, sums, "full")[1], x, **arguments)
    plain = make(lift, sums, "full", "none")[1]
    with pytest.raises(ValueError, match="needs a detector with variances"):
        koopman.residuals(plain, x, scale="log")


def test_a_constant_stream_scores_zero_and_a_small_change_stays_small(lift):
    flat = jnp.zeros((100, CHANNELS))
    sums = moments.second_moments(lift, Series(flat, jnp.ones(100, bool)))
    alg, detector = make(lift, sums, "newest")
    chex.assert_tree_all_finite(detector)
    assert np.nanmax(alg.score(detector, flat)) == 0
    assert np.nanmax(alg.score(detector, flat.at[50].set(1e-6))) < 1e-5
    assert np.nanmax(alg.score(detector, flat.at[50].set(1.0))) > 1e3


def test_optimal_modes_are_no_worse_than_where_they_start(sums):
    start = comparators.pooled_subspace(sums, RANK)
    frame = jax.jit(comparators.optimal_modes)(sums, start)
    assert fedkad.orthonormality_error(frame) < 1e-5

    def loss(frame):
        return float(fedkad.local_loss(sums, frame, fedkad.fit_frame(sums, frame, 1e-2)))

    assert np.isfinite(loss(frame))
    assert loss(frame) < loss(start)
    far = jnp.linalg.qr(jax.random.normal(jax.random.key(0), start.shape))[0]
    found = jax.jit(comparators.optimal_modes, static_argnames="steps")(sums, far, steps=400)
    assert loss(found) < 1.02 * loss(frame)


def test_pooling_weighs_clients_alike_and_leaves_out_those_without_rows(lift, x):
    lengths = (400, 40, 0)
    mask = jnp.arange(400)[None] < jnp.asarray(lengths)[:, None]
    each = moments.prepare(lift, Series(jnp.broadcast_to(x, (3, *x.shape)), mask))
    got = comparators.pool(each)
    want = np.mean([np.asarray(each.xx[k]) / each.pairs[k] for k in (0, 1)], axis=0)
    np.testing.assert_allclose(got.xx, want, rtol=1e-5, atol=1e-6)
    assert got.pairs == 1


def test_autoregression_is_ridge_regression_on_the_window(lift, x, sums):
    detector = comparators.autoregression(lift, sums, ridge=1e-3)
    z = lifted(lift, x)[:, :WIDE]
    past, new = z[:-1], z[1:, -CHANNELS:]
    gram = past.T @ past
    ridge = 1e-3 * np.trace(gram) / WIDE * np.eye(WIDE)
    errors = new - past @ np.linalg.solve(gram + ridge, past.T @ new)
    got = koopman.residuals(detector, x, residual="newest")
    close(got[WINDOW:], np.sum(errors**2, axis=1), 1e-3)
    close(detector.variance[WIDE - CHANNELS : WIDE], np.mean(errors**2, axis=0), 1e-2)
