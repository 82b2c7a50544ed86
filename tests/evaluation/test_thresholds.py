import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_curve

from fedgeo.evaluation import adjust, metrics, thresholds

samples = st.lists(st.integers(-30, 30), min_size=1, max_size=80).map(lambda s: np.array(s, dtype=float))
streams = st.lists(st.tuples(st.integers(0, 12), st.booleans(), st.booleans()), min_size=1, max_size=40).map(
    lambda rows: tuple(np.array(column) for column in zip(*rows, strict=True))
)

# Section 4.2's stream: one segment, whose highest score is the highest of all.
CAP_LABELS = np.array([0, 0, 0, 1, 1, 1, 1, 0, 0, 0])
CAP_SCORE = np.array([0.1, 0.3, 0.2, 0.4, 0.9, 0.2, 0.1, 0.5, 0.1, 0.2])


def test_alarms_are_strict_and_never_raised_without_a_score() -> None:
    assert thresholds.alarms(np.array([0.5, 0.6, np.nan, np.inf]), 0.5).tolist() == [False, True, False, True]
    single = np.array([0.1], dtype=np.float32)  # 0.1 in float32 lies above 0.1
    assert thresholds.alarms(single, 0.1).tolist() == [True]
    assert thresholds.alarms(single, float(single[0])).tolist() == [False]


@given(scores=samples, q=st.sampled_from([0.01, 0.5, 0.9, 0.98, 1.0]))
def test_quantile_is_the_lowest_score_that_keeps_its_promise(scores: np.ndarray, q: float) -> None:
    threshold = thresholds.quantile(scores, q)
    assert threshold in scores
    assert np.mean(scores <= threshold) >= q - 1e-12
    lower = scores[scores < threshold]
    assert not len(lower) or np.mean(scores <= lower.max()) < q


@given(scores=samples, rate=st.sampled_from([0.0, 0.01, 0.1, 0.5, 0.99]))
def test_target_rate_is_the_lowest_score_that_keeps_its_promise(scores: np.ndarray, rate: float) -> None:
    threshold = thresholds.target_rate(scores, rate)
    assert thresholds.alarms(scores, threshold).mean() <= rate + 1e-12
    lower = scores[scores < threshold]
    assert not len(lower) or thresholds.alarms(scores, lower.max()).mean() > rate


def test_quantile_and_target_rate_by_hand() -> None:
    scores = np.r_[np.nan, np.arange(1.0, 101.0)]
    assert thresholds.quantile(scores, 0.98) == thresholds.target_rate(scores, 0.02) == 98.0
    assert thresholds.quantile(np.full(5, 3.0), 0.5) == 3.0
    assert thresholds.target_rate(scores, 0.29) == 71.0  # 0.29 * 100 is 28.999999999999996 in floats


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: thresholds.quantile(np.array([np.nan, np.nan])), "none of 2 calibration scores is a number"),
        (lambda: thresholds.quantile(np.array([])), "none of 0 calibration scores"),
        (lambda: thresholds.quantile(np.ones(3), 98), r"q=98; want a probability in \(0, 1\]"),
        (lambda: thresholds.target_rate(np.ones(3), 1.0), r"rate=1.0; want a share of rows in \[0, 1\)"),
        (lambda: thresholds.youden(np.ones(3), np.zeros(3)), "both classes, got 0 anomalous and 3 normal"),
        (lambda: thresholds.youden(np.full(2, np.nan), [0, 1]), "both classes, got 0 anomalous and 0 normal"),
        (lambda: thresholds.oracle_best_f1(np.ones(2), [0, 1], cap_on="both"), "cap_on='both'; want \"raw\""),
    ],
)
def test_degenerate_inputs_are_named(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_calibrate_gives_nan_to_clients_without_scores() -> None:
    fitted = thresholds.calibrate({"a": np.array([1.0, 2.0]), "b": np.array([np.nan])}, thresholds.quantile)
    assert fitted["a"] == 2.0
    assert np.isnan(fitted["b"])


def test_youden_of_section_4_4() -> None:
    labels = np.array([0, 0, 0, 0, 1, 1, 0, 1, 0, 0])
    score = np.array([0.1, 0.4, 0.35, 0.8, 0.9, 0.4, 0.2, 0.7, 0.3, 0.15])
    for kind in (np.float64, np.float32):
        fitted = thresholds.youden(score.astype(kind), labels)
        assert fitted.j == pytest.approx(5 / 7)
        assert fitted.lowest_alarm == kind(0.4)
        alarmed = thresholds.alarms(score.astype(kind), fitted.threshold)
        np.testing.assert_array_equal(alarmed, score >= 0.4)


@given(stream=streams.filter(lambda s: s[1].any() and not s[1].all()))
def test_youden_agrees_with_scikit_learn(stream) -> None:
    score, labels, _ = stream
    fpr, tpr, levels = roc_curve(labels, score, drop_intermediate=False)
    fitted = thresholds.youden(score, labels)
    assert fitted.j == pytest.approx((tpr - fpr)[1:].max())
    assert fitted.lowest_alarm in levels[1:][np.isclose((tpr - fpr)[1:], fitted.j)]


def _f1_of(score, labels, threshold, how) -> tuple[float, float]:
    scored = ~np.isnan(score)
    alarm = thresholds.alarms(score, threshold)
    raw = metrics.recall(metrics.count(alarm, labels, scored))
    adjusted = adjust.point_adjust(alarm, labels, scored=scored, **how) if how else alarm
    counts = metrics.count(adjusted, labels, scored)
    return metrics.f1(counts), raw


@given(
    stream=streams,
    how=st.sampled_from([{}, {"k_percent": 0}, {"k_percent": 30}, {"k_fraction": 0.5, "rule": ">"}]),
    cap=st.sampled_from([None, 0.0, 0.5, 0.995]),
)
def test_oracle_equals_a_search_over_all_thresholds(stream, how, cap) -> None:
    score, labels, unscored = stream
    score = np.where(unscored, np.nan, score.astype(float))
    found = thresholds.oracle_best_f1(score, labels, recall_cap=cap, **how)
    if not (labels & ~unscored).any():
        assert np.isnan(found).all()
        return
    tried = [_f1_of(score, labels, t, how) for t in np.arange(-0.5, 13.5)]
    best = max([f1 for f1, raw in tried if cap is None or raw <= cap], default=0.0)
    assert found.oracle_f1 == pytest.approx(best)
    assert _f1_of(score, labels, found.oracle_threshold, how)[0] == pytest.approx(found.oracle_f1)


@pytest.mark.parametrize(
    ("settings", "best"),
    [
        ({}, 1.0),
        ({"recall_cap": 0.995}, 1.0),
        ({"recall_cap": 0.995, "cap_on": "adjusted"}, 0.0),
        ({"recall_cap": 0.2}, 0.0),
    ],
)
def test_recall_cap_of_section_4_2(settings: dict, best: float) -> None:
    found = thresholds.oracle_best_f1(CAP_SCORE, CAP_LABELS, k_percent=0, **settings)
    assert found.oracle_f1 == best
    assert thresholds.alarms(CAP_SCORE, found.oracle_threshold).sum() == (1 if best else 0)


def test_f1_at_every_threshold_of_section_4_2() -> None:
    f1 = [_f1_of(CAP_SCORE, CAP_LABELS, t - 1e-9, {"k_percent": 0}) for t in (0.9, 0.5, 0.4, 0.3, 0.2, 0.1)]
    np.testing.assert_allclose([f for f, _ in f1], [1, 8 / 9, 8 / 9, 0.8, 2 / 3, 4 / 7])
    np.testing.assert_allclose([raw for _, raw in f1], [0.25, 0.25, 0.5, 0.5, 0.75, 1.0])
