"""Numbers of one stream's alarms. A quotient without a denominator is NaN, never 0. Shapes: T rows."""

from typing import NamedTuple

import numpy as np


class Counts(NamedTuple):
    """The four outcomes of alarms against labels."""

    tp: int
    fp: int
    fn: int
    tn: int


def count(alarm: np.ndarray, labels: np.ndarray, scored: np.ndarray | None = None) -> Counts:
    """Compare alarms ``(T,)`` with labels ``(T,)``, over the rows of ``scored`` if given."""
    alarm, y = np.asarray(alarm, dtype=bool), np.asarray(labels, dtype=bool)
    if alarm.shape != y.shape:
        raise ValueError(f"got {alarm.shape} alarms and {y.shape} labels; want one of each a row, (T,)")
    if scored is not None:
        alarm, y = alarm[scored], y[scored]
    tp, fp, fn = (int(np.sum(both)) for both in (alarm & y, alarm & ~y, ~alarm & y))
    return Counts(tp, fp, fn, len(y) - tp - fp - fn)


def precision(counts: Counts) -> float:
    """Share of alarms that are right; NaN without alarms."""
    return _share(counts.tp, counts.tp + counts.fp)


def recall(counts: Counts) -> float:
    """Share of anomalous rows that are alarmed; NaN without anomalous rows."""
    return _share(counts.tp, counts.tp + counts.fn)


def f1(counts: Counts) -> float:
    """Harmonic mean of precision and recall; 0 if all anomalies are missed, NaN where there are none."""
    if counts.tp + counts.fn == 0:
        return float("nan")
    return _share(2 * counts.tp, 2 * counts.tp + counts.fp + counts.fn)


def accuracy(counts: Counts) -> float:
    """Share of rows that are right; NaN without rows."""
    return _share(counts.tp + counts.tn, sum(counts))


def alarm_rate(counts: Counts) -> float:
    """Share of rows that are alarmed; NaN without rows."""
    return _share(counts.tp + counts.fp, sum(counts))


def false_alarms_per_1000(counts: Counts) -> float:
    """False alarms in a thousand normal rows; NaN without normal rows."""
    return 1000 * _share(counts.fp, counts.fp + counts.tn)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")
