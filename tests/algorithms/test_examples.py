"""Minibatches of windows that are never stored."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedgeo import federation
from fedgeo.algorithms import local
from fedgeo.algorithms.examples import ROWS, complete, score_windows, windows
from fedgeo.algorithms.fedavg import fedavg
from fedgeo.models.window_svdd import window_svdd
from fedgeo.protocol import Rows, Series


def gapped(rows=40, gap=17):
    rng = np.random.default_rng(0)
    x, mask = rng.standard_normal((rows, 3)).astype(np.float32), np.ones(rows, bool)
    mask[gap], mask[-4:] = False, False
    return np.where(mask[:, None], x, 0), mask


@pytest.mark.parametrize(("window", "stride"), [(1, 1), (5, 1), (5, 3), (7, 7)])
def test_windows_are_those_cut_out_by_hand(window, stride):
    x, mask = gapped()
    examples = windows(window, stride=stride)
    series = Series(jnp.asarray(x), jnp.asarray(mask))
    starts = range(0, len(x) - window + 1, stride)
    want = [mask[s : s + window].all() for s in starts]
    np.testing.assert_array_equal(examples.mask(series), want)
    assert 0 < sum(want) < len(want)
    got = examples.take(series, jnp.arange(len(want)))
    np.testing.assert_array_equal(got, [x[s : s + window] for s in starts])
    assert np.isfinite(examples.take(series, jnp.asarray([len(want), 10**6]))).all()


def test_data_that_are_no_streams_are_refused():
    with pytest.raises(
        ValueError, match=r"this algorithm trains on Series, got Rows; make them with .*stack_series"
    ):
        windows(5).mask(Rows(jnp.ones((9, 2)), jnp.ones(9, bool)))


@pytest.mark.parametrize("rows", [3, 9])
def test_whole_numbers_have_windows_too(rows):
    x = jnp.arange(2 * rows).reshape(rows, 2)
    got, want = (score_windows(lambda w: w.sum((1, 2)), data, 5, 4) for data in (x, x.astype(jnp.float32)))
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


def test_a_stream_shorter_than_the_window_has_no_example_and_no_score():
    series = Series(jnp.ones((3, 2)), jnp.ones(3, bool))
    examples = windows(5)
    assert not np.any(examples.mask(series))
    assert np.isfinite(examples.take(series, jnp.arange(1))).all()
    assert np.isnan(examples.score(lambda w: jnp.sum(w, axis=(1, 2)), series.x)).all()
    assert complete(jnp.ones(5, bool), 5).tolist() == [True]


@pytest.mark.parametrize("chunk", [1, 7, 4096])
def test_scores_stand_at_the_windows_last_row_whatever_the_chunk(chunk):
    x = gapped()[0]
    got = np.asarray(score_windows(lambda w: jnp.sum(w * w, axis=(1, 2)), jnp.asarray(x), 5, chunk))
    assert np.isnan(got[:4]).all()
    want = [np.sum(x[t - 4 : t + 1].astype(np.float64) ** 2) for t in range(4, len(x))]
    np.testing.assert_allclose(got[4:], want, rtol=1e-5)


def test_smoothing_is_a_causal_mean_of_known_scores():
    x = jnp.asarray(gapped()[0])
    raw, smoothed = (np.asarray(windows(5, smoothing=s).score(lambda w: w[:, -1, 0], x)) for s in (1, 3))
    np.testing.assert_allclose(smoothed[6:], [raw[t - 2 : t + 1].mean() for t in range(6, len(x))], rtol=1e-5)
    np.testing.assert_allclose(smoothed[4:6], [raw[4], raw[4:6].mean()], rtol=1e-5)


MODEL = window_svdd(sizes=(8, 4))


def test_training_on_windows_cut_when_needed_is_training_on_stored_ones():
    x, mask = gapped(rows=60)
    series = Series(jnp.asarray(x), jnp.asarray(mask))
    examples = windows(5, stride=2)
    valid = examples.mask(series)
    stored = Rows(examples.take(series, jnp.arange(len(valid))), valid)
    key = jax.random.key(0)
    params = MODEL.init(key, stored.x)
    anchor = MODEL.anchor(params, stored.x, valid)
    settings = dict(optimizer=local.optax.adam(1e-2), epochs=2, batch_size=8)
    trainers = [
        (local.trainer(MODEL, **settings, examples=how), data)
        for how, data in ((examples, series), (ROWS, stored))
    ]
    results = [train.run(key, params, train.start(params), anchor, data) for train, data in trainers]
    assert any(
        np.any(a != b) for a, b in zip(jax.tree.leaves(results[0][0]), jax.tree.leaves(params), strict=True)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), *results)


def test_the_start_is_the_same_from_blocks(monkeypatch):
    x, mask = (np.stack([part, part]) for part in gapped(rows=60))
    series, examples = Series(jnp.asarray(x), jnp.asarray(mask)), windows(5)
    whole = local.shared_start(MODEL, jax.random.key(0), series, examples)[1]
    monkeypatch.setattr(local, "_ANCHOR_BLOCK", 9)
    np.testing.assert_allclose(
        local.shared_start(MODEL, jax.random.key(0), series, examples)[1], whole, rtol=1e-5
    )
    assert np.any(whole != 0)


def test_no_matrix_of_windows_is_stored():
    rows, channels, window = 20_000, 4, 50
    series = Series(jnp.zeros((1, rows, channels)), jnp.ones((1, rows), bool))
    alg = fedavg(MODEL, examples=windows(window), epochs=1)
    state = jax.eval_shape(lambda: federation.init(alg, jax.random.key(0), series))
    program = federation.run.lower(
        alg, jax.random.key(0), state, series, jnp.asarray(0), sampler=federation.everyone, rounds=1
    ).compile()
    assert program.memory_analysis().temp_size_in_bytes < 4 * rows * window * channels / 4
