"""Thresholds from scores of normal rows, and the causal mean of scores."""

import numpy as np
import pandas as pd
import pytest

from fedgeo import evaluation

SCORES = np.random.default_rng(0).exponential(size=2000)


def test_a_quantile_and_a_rate_leave_the_share_that_they_name():
    for rule, text in (
        (evaluation.Rule(quantile=0.95), "quantile 0.95"),
        (evaluation.Rule("rate", rate=0.05), "rate 0.05"),
    ):
        found = evaluation.calibrated(SCORES, rule)
        assert (found.rule, found.rows, found.fallback) == (text, 2000, "")
        assert found.alarm_rate == evaluation.alarms(SCORES, found.threshold).mean()
        assert 0.045 < found.alarm_rate <= 0.05


def test_pot_reaches_beyond_the_scores():
    found = evaluation.calibrated(SCORES, evaluation.Rule("pot", q=1e-4))
    assert found.threshold == evaluation.pot(SCORES, 1e-4, 0.98).threshold
    np.testing.assert_allclose(found.threshold, -np.log(1e-4), rtol=0.2)  # of an exponential law
    assert (
        "too few" in (few := evaluation.calibrated(SCORES[:50], evaluation.Rule("pot"))).fallback
        or few.fallback
    )
    assert few.threshold == SCORES[:50].max()


def test_what_is_not_known_is_left_out_and_nothing_is_nan():
    holed = np.where(np.arange(2000) % 2, np.nan, SCORES)
    found = evaluation.calibrated(holed, evaluation.Rule())
    assert found.rows == 1000
    assert found.threshold == evaluation.quantile(SCORES[::2], 0.99)
    nothing = evaluation.calibrated(np.full(5, np.nan), evaluation.Rule())
    assert nothing.rows == 0
    assert np.isnan(nothing.threshold)


def test_a_threshold_is_not_below_the_least_that_means_anything():
    found = evaluation.calibrated(np.zeros(100), evaluation.Rule(), least=1e-3)
    assert found.threshold == 1e-3
    assert found.alarm_rate == 0


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (dict(kind="mean"), 'threshold=\'mean\'; want "quantile", "pot" or "rate"'),
        (dict(quantile=0), "quantile=0; want a share"),
        (dict(rate=1.0), "rate=1.0; want a share"),
        (dict(kind="pot", q=0.02), "q=0.02 must be below 1 - level = 0.02"),
    ],
)
def test_rules_out_of_range_are_named(rule, message):
    with pytest.raises(ValueError, match=message):
        evaluation.Rule(**rule).check()


def test_moving_mean_is_that_of_pandas():
    x = np.where(np.random.default_rng(1).random(300) < 0.2, np.nan, np.arange(300.0))
    want = pd.Series(x).rolling(7, min_periods=1).mean().where(~np.isnan(x))
    np.testing.assert_allclose(evaluation.moving_mean(x, 7), want)
    both = evaluation.moving_mean(np.stack([x, 2 * x], axis=1), 7)
    np.testing.assert_allclose(both, np.stack([want, 2 * want], axis=1))
    assert evaluation.moving_mean(x[:0], 7).shape == (0,)
    np.testing.assert_array_equal(
        evaluation.moving_mean(np.array([1.0, np.inf, 1.0]), 2), [1, np.inf, np.inf]
    )
