"""Point adjustment: rows of an anomalous segment count as found once enough of them are.

PA%K marks a whole segment as found if its alarms are at least K percent of its length; K = 0 is plain point
adjustment, for which one alarm suffices. A random score does well under it (a long segment is hit by
chance), so never report it without that row. K is an exact ratio and all comparisons are between integers.
One alarm is always required. Shapes: T rows.

References:
    Xu et al. (2018), Unsupervised Anomaly Detection via Variational Auto-Encoder for Seasonal KPIs.
    Kim et al. (2022), Towards a Rigorous Evaluation of Time-Series Anomaly Detection.
"""

from fractions import Fraction
from typing import Literal, NamedTuple

import numpy as np

Rule = Literal[">=", ">"]
"""Whether exactly K percent alarms find a segment: yes for ``">="`` (FedKAD), no for ``">"`` (Kim's code)."""


class Segments(NamedTuple):
    """The anomalous segments of one stream, over its scored rows.

    Attributes:
        of_row: ``(T,)`` segment of each row, -1 for a row outside all segments or without a score.
        lengths: number of scored rows of each segment; 0 for one without any.
    """

    of_row: np.ndarray
    lengths: np.ndarray


def spans(labels: np.ndarray) -> np.ndarray:
    """Runs of anomalous rows as ``(M, 2)`` half-open intervals, those at both ends of the stream included."""
    y = np.asarray(labels).astype(np.int8)
    edges = np.diff(y, prepend=0, append=0)
    return np.column_stack([np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)])


def segments(labels: np.ndarray, scored: np.ndarray | None = None) -> Segments:
    """Number the anomalous runs; rows outside ``scored`` neither count nor cut a run in two."""
    intervals = spans(labels)
    of_row = np.full(len(labels), -1)
    for number, (start, stop) in enumerate(intervals):
        of_row[start:stop] = number
    if scored is not None:
        of_row[~scored] = -1
    return Segments(of_row, np.bincount(of_row[of_row >= 0], minlength=len(intervals)))


def scored_spans(labels: np.ndarray, scored: np.ndarray | None = None) -> np.ndarray:
    """Anomalous runs as :func:`spans` on the time axis of the scored rows alone, from which the others are cut out.

    A run without scored rows is left out. Two runs that only unscored rows had kept apart stay two.
    """
    intervals = spans(labels)
    if scored is None:
        return intervals
    shifted = np.r_[0, np.cumsum(scored)][intervals]
    return shifted[shifted[:, 0] < shifted[:, 1]]


def exact_k(*, k_percent: float | None = None, k_fraction: float | None = None) -> Fraction:
    """K as an exact share of a segment, from percent (1 is one percent) or from a fraction (0.01 is)."""
    if (k_percent is None) == (k_fraction is None):
        raise ValueError(f"got k_percent={k_percent} and k_fraction={k_fraction}; want exactly one of them")
    if k_percent is not None:
        if not 0 <= k_percent <= 100:
            raise ValueError(f"k_percent={k_percent}; want a percentage from 0 to 100")
        return _ratio(k_percent) / 100
    assert k_fraction is not None
    if not 0 <= k_fraction <= 1:
        raise ValueError(
            f"k_fraction={k_fraction}; want a fraction from 0 to 1; ten percent is k_fraction=0.1"
        )
    return _ratio(k_fraction)


def needed_hits(lengths: np.ndarray, k: Fraction, rule: Rule = ">=") -> np.ndarray:
    """Fewest alarms that make a segment of each length count as found; ``length + 1`` where none do."""
    if rule not in (">=", ">"):
        raise ValueError(f'rule={rule!r}; want ">=" (at least K) or ">" (more than K)')
    share = k.numerator * np.asarray(lengths, dtype=np.int64)
    enough = -(-share // k.denominator) if rule == ">=" else share // k.denominator + 1
    return np.maximum(enough, 1)


def point_adjust(
    alarm: np.ndarray,
    labels: np.ndarray,
    *,
    k_percent: float | None = None,
    k_fraction: float | None = None,
    rule: Rule = ">=",
    scored: np.ndarray | None = None,
) -> np.ndarray:
    """PA%K: a copy of ``alarm`` in which every found segment is alarmed as a whole.

    Args:
        alarm: ``(T,)`` booleans.
        labels: ``(T,)`` 0 or 1.
        k_percent: K in percent; 0 is plain point adjustment. Give this or ``k_fraction``.
        k_fraction: K as a fraction.
        rule: what exactly K percent means.
        scored: ``(T,)`` False for rows without a score, which stay without alarm and out of the lengths.
    """
    k = exact_k(k_percent=k_percent, k_fraction=k_fraction)
    alarm = np.asarray(alarm, dtype=bool)
    if alarm.shape != np.shape(labels):
        raise ValueError(
            f"got {alarm.shape} alarms and {np.shape(labels)} labels; want one of each a row, (T,)"
        )
    if scored is not None:
        alarm = alarm & scored
    runs = segments(labels, scored)
    found = _hits(alarm, runs) >= needed_hits(runs.lengths, k, rule)
    inside = runs.of_row >= 0
    adjusted = alarm.copy()
    adjusted[inside] |= found[runs.of_row[inside]]
    return adjusted


def area_over_k(
    alarm: np.ndarray, labels: np.ndarray, *, rule: Rule = ">=", scored: np.ndarray | None = None
) -> float:
    """Area under F1 of PA%K for K = 0, 1, ..., 100 percent, in [0, 1]; NaN without anomalous rows."""
    alarm = np.asarray(alarm, dtype=bool)
    if scored is not None:
        alarm = alarm & scored
    runs = segments(labels, scored)
    anomalous = int(runs.lengths.sum())
    if not anomalous:
        return float("nan")
    hits = _hits(alarm, runs)
    false_alarms = int(alarm.sum() - hits.sum())
    curve = []
    for percent in range(101):
        found = hits >= needed_hits(runs.lengths, Fraction(percent, 100), rule)
        true_alarms = int(np.where(found, runs.lengths, hits).sum())
        curve.append(2 * true_alarms / (true_alarms + false_alarms + anomalous))
    return float((sum(curve) - (curve[0] + curve[-1]) / 2) / 100)  # trapezoids


def _hits(alarm: np.ndarray, runs: Segments) -> np.ndarray:
    return np.bincount(runs.of_row[alarm & (runs.of_row >= 0)], minlength=len(runs.lengths))


def _ratio(k: float) -> Fraction:
    return Fraction(k).limit_denominator(10**6)  # the decimal that was meant, not its binary rounding
