from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgeo.evaluation import adjust, metrics

# Fixture A: 4 + 2 anomalous rows, one hit in the first segment, one false alarm.
LABELS = np.array([0, 0, 1, 1, 1, 1, 0, 0, 1, 1, 0, 0])
ALARM = np.array([0.1, 0.2, 0.9, 0.1, 0.1, 0.1, 0.8, 0.1, 0.2, 0.3, 0.1, 0.1]) > 0.5

streams = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60).map(
    lambda rows: tuple(np.array(column) for column in zip(*rows, strict=True))
)
rules = st.sampled_from([">=", ">"])


@pytest.mark.parametrize(
    ("k_percent", "rule", "found"),
    [
        *[(k, ">", True) for k in (0, 1, 10, 24)],
        *[(k, ">", False) for k in (25, 50, 100)],
        *[(k, ">=", True) for k in (0, 1, 24, 25)],
        *[(k, ">=", False) for k in (26, 50, 100)],
    ],
)
def test_segment_is_adjusted_by_the_rule_at_its_boundary(
    k_percent: int, rule: adjust.Rule, found: bool
) -> None:
    adjusted = adjust.point_adjust(ALARM, LABELS, k_percent=k_percent, rule=rule)
    assert np.flatnonzero(adjusted).tolist() == ([2, 3, 4, 5, 6] if found else [2, 6])
    counts = metrics.count(adjusted, LABELS)
    expected = (0.8, 2 / 3, 8 / 11) if found else (0.5, 1 / 6, 0.25)
    assert (metrics.precision(counts), metrics.recall(counts), metrics.f1(counts)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("length", "hits", "k", "strictly_more", "at_least"),
    [
        (99, 1, 0.01, True, True),
        (100, 1, 0.01, False, True),
        (101, 1, 0.01, False, False),
        (200, 2, 0.01, False, True),
        (200, 3, 0.01, True, True),
        (9, 1, 0.1, True, True),
        (10, 1, 0.1, False, True),
        (20, 2, 0.1, False, True),
        (5, 0, 0.0, False, False),
        (5, 1, 0.0, True, True),
        (100, 7, 0.07, False, True),
        (3, 1, 1 / 3, False, True),
        (7, 7, 1.0, False, True),
    ],
)
def test_boundary_is_exact(length: int, hits: int, k: float, strictly_more: bool, at_least: bool) -> None:
    labels = np.r_[0, np.ones(length, dtype=int), 0]
    alarm = np.zeros(length + 2, dtype=bool)
    alarm[1 : 1 + hits] = True
    for rule, found in ((">", strictly_more), (">=", at_least)):
        for how in ({"k_fraction": k}, {"k_percent": 100 * k} if k != 0.07 else {"k_percent": 7}):
            total = adjust.point_adjust(alarm, labels, rule=rule, **how).sum()  # type: ignore[arg-type]
            assert total == (length if found else hits)


def test_area_over_k_of_fixture_a() -> None:
    assert adjust.area_over_k(ALARM, LABELS, rule=">") == pytest.approx(0.36693181818181818)


@given(stream=streams, rule=rules)
def test_area_over_k_is_the_trapezoid_of_the_adjusted_f1(stream, rule) -> None:
    alarm, labels = stream
    f1 = [
        metrics.f1(metrics.count(adjust.point_adjust(alarm, labels, k_percent=k, rule=rule), labels))
        for k in range(101)
    ]
    expected = np.mean((np.array(f1[1:]) + np.array(f1[:-1])) / 2)
    np.testing.assert_allclose(adjust.area_over_k(alarm, labels, rule=rule), expected, rtol=1e-12)


@given(stream=streams, rule=rules)
def test_adjustment_shrinks_as_k_grows_and_only_adds_true_alarms(stream, rule) -> None:
    alarm, labels = stream
    before = alarm.copy()
    previous = None
    for k in (0, 1, 10, 33, 50, 99, 100):
        adjusted = adjust.point_adjust(alarm, labels, k_percent=k, rule=rule)
        assert (adjusted >= alarm).all()
        assert not (adjusted & ~alarm & ~labels).any()
        assert previous is None or (adjusted <= previous).all()
        previous = adjusted
    np.testing.assert_array_equal(alarm, before)


@given(stream=streams)
def test_full_k_changes_nothing_but_what_is_complete(stream) -> None:
    alarm, labels = stream
    np.testing.assert_array_equal(adjust.point_adjust(alarm, labels, k_percent=100, rule=">"), alarm)
    np.testing.assert_array_equal(adjust.point_adjust(alarm, labels, k_percent=100, rule=">="), alarm)


def test_runs_at_both_ends_count() -> None:
    labels = np.array([1, 1, 1, 0, 0, 1, 1])
    assert adjust.spans(labels).tolist() == [[0, 3], [5, 7]]
    alarm = np.array([0, 0, 1, 0, 0, 1, 0], dtype=bool)
    adjusted = adjust.point_adjust(alarm, labels, k_fraction=0.0)
    assert adjusted.astype(int).tolist() == [1, 1, 1, 0, 0, 1, 1]
    assert adjust.spans(np.zeros(3)).shape == (0, 2)
    assert adjust.spans(np.ones(3)).tolist() == [[0, 3]]


def test_rows_without_score_neither_count_nor_join_nor_cut_segments() -> None:
    labels = np.array([1, 1, 1, 1, 0, 1, 1])
    scored = np.array([0, 0, 1, 1, 0, 1, 1], dtype=bool)  # without row 4 both runs would touch
    alarm = np.array([0, 0, 1, 0, 0, 0, 0], dtype=bool)
    adjusted = adjust.point_adjust(alarm, labels, k_percent=50, scored=scored)
    assert np.flatnonzero(adjusted).tolist() == [2, 3]  # one of two scored rows, not one of four
    cut = np.array([1, 0, 1, 1, 1, 1, 1], dtype=bool)
    assert np.flatnonzero(adjust.point_adjust(alarm, labels, k_percent=0, scored=cut)).tolist() == [0, 2, 3]
    assert np.isnan(adjust.area_over_k(alarm, labels, scored=np.zeros(7, dtype=bool)))


def test_percent_and_fraction_are_kept_apart() -> None:
    assert adjust.exact_k(k_percent=7) == adjust.exact_k(k_fraction=0.07) == Fraction(7, 100)
    for how in ({}, {"k_percent": 1, "k_fraction": 0.01}):
        with pytest.raises(ValueError, match="want exactly one of them"):
            adjust.exact_k(**how)
    with pytest.raises(ValueError, match=r"k_fraction=10; .* ten percent is k_fraction=0\.1"):
        adjust.exact_k(k_fraction=10)
    with pytest.raises(ValueError, match="k_percent=-1; want a percentage from 0 to 100"):
        adjust.exact_k(k_percent=-1)
    with pytest.raises(ValueError, match="rule='='; want \">=\""):
        adjust.point_adjust(ALARM, LABELS, k_percent=1, rule="=")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"got \(3,\) alarms and \(12,\) labels"):
        adjust.point_adjust(ALARM[:3], LABELS, k_percent=1)
