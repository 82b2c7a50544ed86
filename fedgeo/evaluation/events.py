"""Metrics that count events instead of rows: affiliation, range-based, and event-wise.

An event is a run of anomalous rows, a prediction a run of alarmed rows; runs that touch the first or the last row of
the stream count like all others. Rows without a score are cut out of the time axis. Precision is NaN without alarms,
recall and F1 are NaN without events, and F1 is 0 where all events are missed. Shapes: T rows, M events.

References:
    Huet et al. (2022), Local Evaluation of Time Series Anomaly Detection Algorithms.
    Tatbul et al. (2018), Precision and Recall for Time Series.
    Garg et al. (2021), An Evaluation of Anomaly Detection and Diagnosis in Multivariate Time Series.
"""

from typing import NamedTuple

import numpy as np

from fedgeo.evaluation import metrics
from fedgeo.evaluation.adjust import scored_spans


class Detection(NamedTuple):
    """Precision, recall and their harmonic mean."""

    precision: float
    recall: float
    f1: float


class _Stream(NamedTuple):
    """Alarms ``(T,)``, runs of them and events as half-open intervals, on the time axis of the scored rows."""

    alarm: np.ndarray
    predictions: np.ndarray
    events: np.ndarray


def affiliation(alarm: np.ndarray, labels: np.ndarray, *, scored: np.ndarray | None = None) -> Detection:
    """How near alarms and events are to each other, against what a random point would achieve.

    Time is cut into one zone an event, of all that is nearest to it. Within a zone, precision is the mean over the
    predicted points of the probability that a random point of the zone is at least as far from the event; recall is
    the mean over the event's points of the probability that a random point is at least as far from it as the nearest
    prediction. Precision is averaged over the zones that hold a prediction, recall over all events.

    A few alarms spread at random reach an F1 of 0.65 and more, so read it beside a random score's.

    Args:
        alarm: ``(T,)`` booleans.
        labels: ``(T,)`` of 0 and 1.
        scored: ``(T,)`` False for rows to leave out.
    """
    stream = _stream(alarm, labels, scored)
    if not len(stream.events):
        return Detection(*[float("nan")] * 3)
    between = (stream.events[:-1, 1] + stream.events[1:, 0]) / 2
    edges = np.r_[0.0, between, len(stream.alarm)]
    precisions, recalls = [], []
    for (start, stop), low, high in zip(stream.events, edges[:-1], edges[1:], strict=True):
        inside = np.clip(stream.predictions, low, high)
        inside = inside[inside[:, 0] < inside[:, 1]]
        if len(inside):
            precisions.append(_zone_precision(inside, start, stop, low, high))
        recalls.append(_zone_recall(inside, start, stop, low, high) if len(inside) else 0.0)
    precision = float(np.mean(precisions)) if precisions else float("nan")
    return _detection(precision, float(np.mean(recalls)))


def range_based(
    alarm: np.ndarray, labels: np.ndarray, *, alpha: float = 0.0, scored: np.ndarray | None = None
) -> Detection:
    """Range-based precision and recall with flat bias and reciprocal cardinality.

    Recall is the mean over events of ``alpha * [touched] + (1 - alpha) * share found / number of predictions that
    found it``; precision is the same with events and predictions swapped and alpha 0 (Tatbul 2018, eqs. 2 to 8).

    Args:
        alarm: ``(T,)`` booleans.
        labels: ``(T,)`` of 0 and 1.
        alpha: weight in [0, 1] of an event's being touched at all.
        scored: ``(T,)`` False for rows to leave out.
    """
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(f"alpha={alpha}; want the weight of existence in [0, 1]")
    stream = _stream(alarm, labels, scored)
    precision = _mean_overlap(stream.predictions, stream.events, 0.0)
    return _detection(precision, _mean_overlap(stream.events, stream.predictions, alpha))


def event_wise(alarm: np.ndarray, labels: np.ndarray, *, scored: np.ndarray | None = None) -> Detection:
    """Composite of event recall (share of events with an alarm) and precision by rows (Garg 2021).

    Args:
        alarm: ``(T,)`` booleans.
        labels: ``(T,)`` of 0 and 1.
        scored: ``(T,)`` False for rows to leave out.
    """
    stream = _stream(alarm, labels, scored)
    found = np.diff(np.r_[0, np.cumsum(stream.alarm)][stream.events], axis=1).ravel() > 0
    recall = float(found.mean()) if len(found) else float("nan")
    return _detection(metrics.precision(metrics.count(alarm, labels, scored)), recall)


def _stream(alarm: np.ndarray, labels: np.ndarray, scored: np.ndarray | None) -> _Stream:
    alarm, y = np.asarray(alarm, dtype=bool), np.asarray(labels, dtype=bool)
    if alarm.ndim != 1 or alarm.shape != y.shape:
        raise ValueError(f"got {alarm.shape} alarms and {y.shape} labels; want one of each a row, (T,)")
    if scored is None:
        return _Stream(alarm, scored_spans(alarm), scored_spans(y))
    # A row without a score must not cut the alarms within an event, nor join those of two.
    runs = scored_spans(np.where(scored, alarm, y), scored)
    return _Stream(alarm[scored], runs, scored_spans(y, scored))


def _detection(precision: float, recall: float) -> Detection:
    if np.isnan(recall):
        return Detection(precision, recall, float("nan"))
    both = 0.0 if np.isnan(precision) else precision + recall
    return Detection(precision, recall, 2 * precision * recall / both if both else 0.0)


def _mean_overlap(ranges: np.ndarray, others: np.ndarray, alpha: float) -> float:
    """Mean over ``ranges`` of existence and of the share that ``others`` cover, divided by how many cover it."""
    if not len(ranges):
        return float("nan")
    start, stop = ranges.T
    pieces = np.searchsorted(others[:, 0], stop) - np.searchsorted(others[:, 1], start, side="right")
    share = (_covered(others, stop) - _covered(others, start)) / (stop - start)
    return float(np.mean(alpha * (pieces > 0) + (1 - alpha) * share / np.maximum(pieces, 1)))


def _covered(ranges: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Rows before ``at`` that lie in the ascending, disjoint ``ranges``."""
    whole = np.r_[0, np.cumsum(ranges[:, 1] - ranges[:, 0])]
    begun = np.searchsorted(ranges[:, 0], at)
    beyond = np.r_[0, ranges[:, 1]][begun] - at  # of the last range that has begun
    return whole[begun] - np.maximum(beyond, 0)


def _zone_precision(inside: np.ndarray, start: float, stop: float, low: float, high: float) -> float:
    """Mean over the predicted points of a zone [low, high) of P(random point is at least as far from the event).

    At distance d on one side that is ``1 - (length + d + min(d, room)) / zone``, with the room on the other side.
    """
    length, zone = stop - start, high - low
    begin, end = inside.T

    def integral(near: np.ndarray, far: np.ndarray, room: float) -> float:
        near, far = np.maximum(near, 0.0), np.maximum(far, 0.0)
        beyond = (
            length * (far - near) + (far**2 - near**2) / 2 + _capped(far, room) - _capped(near, room)
        ) / zone
        return float(np.sum(far - near - beyond))

    hit = np.sum(np.maximum(np.minimum(end, stop) - np.maximum(begin, start), 0.0))
    before = integral(start - end, start - begin, high - stop)
    after = integral(begin - stop, end - stop, start - low)
    return float((hit + before + after) / np.sum(end - begin))


def _zone_recall(inside: np.ndarray, start: float, stop: float, low: float, high: float) -> float:
    """Mean over the event's points of P(random point of the zone is at least as far as the nearest prediction).

    At distance d from the prediction on one side that is ``1 - (d + min(d, room - d)) / zone``, with the room from the
    prediction to the zone's other end. A gap between two predictions is shared half and half.
    """
    zone = high - low
    begin, end = inside.T
    middle = (end[:-1] + begin[1:]) / 2

    def integral(near: np.ndarray, far: np.ndarray, room: np.ndarray) -> float:
        near = np.maximum(near, 0.0)
        far = np.maximum(far, near)
        beyond = ((far**2 - near**2) / 2 + _folded(far, room) - _folded(near, room)) / zone
        return float(np.sum(far - near - beyond))

    hit = np.sum(np.maximum(np.minimum(end, stop) - np.maximum(begin, start), 0.0))
    after = integral(start - end, np.minimum(stop, np.r_[middle, stop]) - end, high - end)
    before = integral(begin - stop, begin - np.maximum(start, np.r_[start, middle]), begin - low)
    return float((hit + after + before) / (stop - start))


def _capped(d: np.ndarray, room: float) -> np.ndarray:
    """Integral of min(t, room) for t from 0 to d."""
    return np.where(d <= room, d**2 / 2, room**2 / 2 + room * (d - room))


def _folded(d: np.ndarray, room: np.ndarray) -> np.ndarray:
    """Integral of min(t, room - t) for t from 0 to d <= room."""
    return np.where(d <= room / 2, d**2 / 2, room * d - d**2 / 2 - room**2 / 4)
