import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgeo.evaluation import adjust, events, metrics

METRICS = [events.affiliation, events.range_based, events.event_wise]

streams = (
    st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 7)), min_size=1, max_size=40)
    .map(lambda rows: tuple(np.array(column) for column in zip(*rows, strict=True)))
    .map(lambda s: (s[0], s[1], s[2] > 0))
)


def _rows(text: str) -> np.ndarray:
    return np.array([int(digit) for digit in text])


# Affiliation: the authors' example and its limits, and one event with one alarm, by hand.


@pytest.mark.parametrize(
    ("labels", "alarm", "precision", "recall"),
    [
        ("0001000111", "0000100010", 0.8181818181818181, 0.8442760942760943),
        ("0001000111", "0001000111", 1.0, 1.0),
        ("0001000111", "0000000000", np.nan, 0.0),
        ("0001000111", "1111111111", 0.6193755739210285, 1.0),
        ("00000000001100000000", "00000010000000000000", 0.55, 0.60),
    ],
)
def test_affiliation_of_the_authors_example(labels: str, alarm: str, precision: float, recall: float) -> None:
    found = events.affiliation(_rows(alarm), _rows(labels))
    assert found[:2] == pytest.approx((precision, recall), nan_ok=True)
    f1 = 2 * precision * recall / (precision + recall)
    assert found.f1 == pytest.approx(0.0 if np.isnan(f1) else f1)


def _inside(low: float, high: float, zone: tuple[float, float]) -> float:
    return max(min(high, zone[1]) - max(low, zone[0]), 0.0)


def _affiliation_by_points(alarm: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """The definition at points 1/8, 3/8, ... of every row: exact, as all probabilities are linear between quarters."""
    points = (np.arange(4 * len(labels)) + 0.5) / 4
    runs = adjust.spans(labels).astype(float)
    edges = [0.0, *(runs[:-1, 1] + runs[1:, 0]) / 2, float(len(labels))]
    precisions, recalls = [], []
    for (a, b), zone in zip(runs, itertools.pairwise(edges), strict=True):
        size = zone[1] - zone[0]
        here = (zone[0] < points) & (points < zone[1])
        predicted = points[here & np.repeat(alarm, 4)]
        if not len(predicted):
            recalls.append(0.0)
            continue
        away = np.maximum(np.maximum(a - predicted, predicted - b), 0)
        precisions.append(np.mean([1 - _inside(a - d, b + d, zone) / size if d else 1.0 for d in away]))
        far = []
        starts, stops = predicted - 0.125, predicted + 0.125
        for point in points[(a < points) & (points < b)]:
            d = np.maximum(np.maximum(starts - point, point - stops), 0).min()
            far.append(1 - _inside(point - d, point + d, zone) / size)
        recalls.append(np.mean(far))
    return (np.mean(precisions) if precisions else np.nan, np.mean(recalls))


@given(stream=streams.filter(lambda s: s[1].any()))
def test_affiliation_equals_its_definition(stream) -> None:
    alarm, labels, _ = stream
    found = events.affiliation(alarm, labels)
    expected = _affiliation_by_points(alarm, labels)
    np.testing.assert_allclose(found[:2], expected, atol=1e-12)


def test_affiliation_of_random_alarms_is_high() -> None:
    labels = np.zeros(1000, dtype=int)
    labels[200:220] = labels[600:650] = 1
    rng = np.random.default_rng(0)
    f1 = [events.affiliation(rng.random(1000) < 0.05, labels).f1 for _ in range(50)]
    assert 0.6 < np.mean(f1) < 0.75


# Range-based: values on which three packages agree.


@pytest.mark.parametrize(("alpha", "recall", "f1"), [(0.0, 0.5, 0.5), (0.2, 0.6, 6 / 11), (0.5, 0.75, 0.6)])
def test_range_based_of_known_values(alpha: float, recall: float, f1: float) -> None:
    found = events.range_based(_rows("0011010101"), _rows("0111100110"), alpha=alpha)
    assert found == pytest.approx((0.5, recall, f1))


def _range_recall(ranges: np.ndarray, others: np.ndarray, alpha: float) -> float:
    values = []
    for start, stop in ranges:
        shared = [min(stop, b) - max(start, a) for a, b in others if a < stop and b > start]
        values.append(alpha * bool(shared) + (1 - alpha) * sum(shared) / (stop - start) / max(len(shared), 1))
    return float(np.mean(values)) if values else np.nan


@given(stream=streams, alpha=st.sampled_from([0.0, 0.3, 1.0]))
def test_range_based_equals_its_definition(stream, alpha: float) -> None:
    alarm, labels, _ = stream
    found = events.range_based(alarm, labels, alpha=alpha)
    runs, predictions = adjust.spans(labels), adjust.spans(alarm)
    expected = _range_recall(predictions, runs, 0.0), _range_recall(runs, predictions, alpha)
    np.testing.assert_allclose(found[:2], expected, atol=1e-12)


def test_weight_of_existence_is_checked() -> None:
    with pytest.raises(ValueError, match=r"alpha=2; want the weight of existence in \[0, 1\]"):
        events.range_based(np.zeros(2), np.array([0, 1]), alpha=2)


# Event-wise: with an event that ends with the stream.


def test_event_wise_by_hand() -> None:
    assert events.event_wise(_rows("00100001"), _rows("00110001")) == (1.0, 1.0, 1.0)
    assert events.event_wise(_rows("10100000"), _rows("00110001")) == pytest.approx((0.5, 0.5, 0.5))


@given(stream=streams)
def test_event_wise_equals_its_definition(stream) -> None:
    alarm, labels, _ = stream
    found = events.event_wise(alarm, labels)
    touched = [alarm[start:stop].any() for start, stop in adjust.spans(labels)]
    np.testing.assert_allclose(found.recall, np.mean(touched) if touched else np.nan)
    np.testing.assert_allclose(found.precision, metrics.precision(metrics.count(alarm, labels)))


# What all three promise.


@pytest.mark.parametrize("metric", METRICS)
@given(stream=streams)
def test_values_are_shares_and_perfect_alarms_reach_one(metric, stream) -> None:
    alarm, labels, scored = stream
    for value in metric(alarm, labels, scored=scored):
        assert np.isnan(value) or -1e-12 <= value <= 1 + 1e-12
    if labels[scored].any():
        assert metric(labels, labels, scored=scored) == pytest.approx((1.0, 1.0, 1.0))


@pytest.mark.parametrize("metric", METRICS)
@given(stream=streams)
def test_time_may_run_backwards(metric, stream) -> None:
    alarm, labels, scored = stream
    forward = metric(alarm, labels, scored=scored)
    np.testing.assert_allclose(metric(alarm[::-1], labels[::-1], scored=scored[::-1]), forward, atol=1e-12)


@pytest.mark.parametrize("metric", METRICS)
def test_runs_at_both_ends_count(metric) -> None:
    labels = _rows("1100000011")
    assert metric(labels, labels) == pytest.approx((1.0, 1.0, 1.0))
    assert metric(_rows("1100000000"), labels).recall == pytest.approx(0.5)
    assert metric(_rows("0000000011"), labels).recall == pytest.approx(0.5)


@pytest.mark.parametrize("metric", METRICS)
def test_undefined_is_nan_and_missing_all_is_zero(metric) -> None:
    nothing, events_of = np.zeros(6, dtype=bool), _rows("001100")
    assert np.isnan(metric(nothing, nothing)).all()
    assert np.isnan(metric(_rows("010000"), nothing)[1:]).all()
    missed = metric(nothing, events_of)
    assert np.isnan(missed.precision)
    assert missed[1:] == (0.0, 0.0)
    assert np.isnan(metric(_rows("010000"), events_of, scored=nothing)).all()
    assert metric(np.ones(6), np.ones(6)) == (1.0, 1.0, 1.0)
    assert np.isnan(metric(np.zeros(0), np.zeros(0))).all()
    with pytest.raises(ValueError, match=r"got \(2,\) alarms and \(3,\) labels"):
        metric(np.zeros(2), np.zeros(3))


@pytest.mark.parametrize("metric", METRICS)
def test_rows_without_score_are_cut_out_and_join_no_events(metric) -> None:
    alarm, labels = _rows("0011010101"), _rows("0111100110")
    scored = np.r_[np.zeros(4, dtype=bool), np.ones(10, dtype=bool)]
    late = metric(np.r_[1, 1, 1, 1, alarm], np.r_[1, 1, 0, 0, labels], scored=scored)
    assert late == metric(alarm, labels)
    gap = metric(_rows("0110000"), _rows("0110110"), scored=_rows("1110111").astype(bool))
    assert gap.recall == 0.5  # one event of two, though only an unscored row keeps them apart
