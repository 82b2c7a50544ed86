import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, precision_recall_fscore_support

from fedgeo.evaluation import metrics


@given(rows=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_defined_values_agree_with_scikit_learn(rows: list[tuple[bool, bool]]) -> None:
    alarm, y = (np.array(column) for column in zip(*rows, strict=True))
    counts = metrics.count(alarm, y)
    p, r, f, _ = precision_recall_fscore_support(y, alarm, average="binary", zero_division=np.nan)
    np.testing.assert_allclose([metrics.precision(counts), metrics.recall(counts)], [p, r])
    if y.any():
        np.testing.assert_allclose(metrics.f1(counts), f)
    assert metrics.accuracy(counts) == pytest.approx(accuracy_score(y, alarm))
    assert metrics.alarm_rate(counts) == pytest.approx(alarm.mean())


def test_f1_is_zero_for_missed_anomalies_and_undefined_without_any() -> None:
    assert metrics.f1(metrics.Counts(tp=0, fp=0, fn=3, tn=5)) == 0.0
    assert np.isnan(metrics.f1(metrics.Counts(tp=0, fp=2, fn=0, tn=5)))
    assert np.isnan(metrics.precision(metrics.Counts(tp=0, fp=0, fn=3, tn=5)))


def test_false_alarms_are_per_normal_rows() -> None:
    assert metrics.false_alarms_per_1000(metrics.Counts(tp=9, fp=1, fn=1, tn=199)) == 5.0
    assert np.isnan(metrics.false_alarms_per_1000(metrics.Counts(tp=9, fp=0, fn=1, tn=0)))


def test_unscored_rows_do_not_count() -> None:
    scored = np.array([False, True, True])
    assert metrics.count([True, True, False], [1, 1, 0], scored) == metrics.Counts(1, 0, 0, 1)
    assert all(
        np.isnan(m(metrics.count([True], [1], ~scored[1:2]))) for m in (metrics.accuracy, metrics.alarm_rate)
    )
    with pytest.raises(ValueError, match=r"got \(2,\) alarms and \(1,\) labels"):
        metrics.count([True, False], [1])
