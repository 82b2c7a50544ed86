"""From scores to alarms. An alarm is a score strictly above the threshold, everywhere.

Honest rules see scores of normal rows (:func:`quantile`, :func:`target_rate`) or a labelled validation set
(:func:`youden`). :func:`oracle_best_f1` looks at the very labels it is judged by: an upper bound, never a
result. Shapes: T rows, N calibration scores.
"""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Literal, NamedTuple

import numpy as np

from fedgeo.evaluation.adjust import Rule, exact_k, needed_hits, segments
from fedgeo.evaluation.ranking import checked, scored


class Youden(NamedTuple):
    """A threshold that separates labelled rows best.

    Attributes:
        threshold: alarms are the scores strictly above it.
        lowest_alarm: the lowest score that is alarmed.
        j: true positive rate minus false positive rate.
    """

    threshold: float
    lowest_alarm: float
    j: float


class OracleF1(NamedTuple):
    """The best F1 that any threshold reaches, chosen with the labels it is judged by."""

    oracle_threshold: float
    oracle_f1: float
    oracle_precision: float
    oracle_recall: float


def alarms(score: np.ndarray, threshold: float) -> np.ndarray:
    """``(T,)`` booleans: scores strictly above the threshold; False for NaN."""
    return np.asarray(score, dtype=np.float64) > float(threshold)


def quantile(scores: np.ndarray, q: float = 0.99) -> float:
    """The smallest calibration score that at least a share ``q`` of them do not exceed.

    At most a share ``1 - q`` of the calibration scores ``(N,)`` raises an alarm, none if all are equal.
    """
    if not 0.0 < q <= 1.0:
        raise ValueError(f"q={q}; want a probability in (0, 1], such as 0.99")
    return float(np.quantile(calibration_scores(scores), q, method="inverted_cdf"))


def target_rate(scores: np.ndarray, rate: float = 0.01) -> float:
    """The lowest of the calibration scores ``(N,)`` above which at most a share ``rate`` of them lies."""
    if not 0.0 <= rate < 1.0:
        raise ValueError(f"rate={rate}; want a share of rows in [0, 1), such as 0.01")
    descending = np.sort(calibration_scores(scores))[::-1]
    return float(descending[int(Fraction(rate).limit_denominator(10**6) * len(descending))])


def calibrate(scores: Mapping[str, np.ndarray], rule: Callable[[np.ndarray], float]) -> dict[str, float]:
    """A threshold for each client by ``rule``, such as :func:`quantile`; NaN for clients without scores."""
    return {name: float("nan") if np.isnan(s).all() else rule(s) for name, s in scores.items()}


def youden(score: np.ndarray, labels: np.ndarray) -> Youden:
    """Maximise Youden's J over the alarms ``score >= level``; of equal maxima the highest level.

    Args:
        score: ``(T,)`` scores of a validation set.
        labels: ``(T,)`` its labels; both classes are needed.
    """
    score, y = scored(score, labels)
    if y.all() or not y.any():
        raise ValueError(
            f"Youden's J needs scored rows of both classes, got {int(y.sum())} anomalous and "
            f"{int((~y).sum())} normal ones; calibrate with quantile or target_rate instead"
        )
    levels, true_alarms, false_alarms = _sweep(score, y.astype(np.int64), ~y)
    j = true_alarms / y.sum() - false_alarms / (~y).sum()
    best = int(np.argmax(j))
    return Youden(_just_below(levels[best]), float(levels[best]), float(j[best]))


def oracle_best_f1(
    score: np.ndarray,
    labels: np.ndarray,
    *,
    k_percent: float | None = None,
    k_fraction: float | None = None,
    rule: Rule = ">=",
    recall_cap: float | None = None,
    cap_on: Literal["raw", "adjusted"] = "raw",
) -> OracleF1:
    """Best F1 over all thresholds, point-wise or under PA%K. It uses the test labels: an oracle.

    Args:
        score: ``(T,)``.
        labels: ``(T,)``.
        k_percent: K of PA%K in percent; without any K the F1 is point-wise.
        k_fraction: the same as a fraction.
        rule: what exactly K percent means, see :data:`fedgeo.evaluation.adjust.Rule`.
        recall_cap: thresholds whose recall exceeds it are not considered.
        cap_on: the recall that the cap looks at. FedKAD does not say which; taken literally it is
            ``"adjusted"``, which rejects every useful threshold of a stream with one segment.

    Returns:
        NaN throughout for a stream without scored anomalous rows; F1 0 where no threshold is left.
    """
    if cap_on not in ("raw", "adjusted"):
        raise ValueError(f'cap_on={cap_on!r}; want "raw" or "adjusted"')
    score, y = checked(score, labels)
    has_score = ~np.isnan(score)
    runs = segments(y, has_score)
    anomalous = int(runs.lengths.sum())
    if not anomalous:
        return OracleF1(*[float("nan")] * 4)
    hit = (runs.of_row >= 0).astype(np.int64)
    gain = hit
    if k_percent is not None or k_fraction is not None:
        needed = needed_hits(runs.lengths, exact_k(k_percent=k_percent, k_fraction=k_fraction), rule)
        gain = _adjusted_gain(score, runs.of_row, runs.lengths, needed)
    levels, true_alarms, false_alarms, hits = _sweep(
        score[has_score], gain[has_score], ~y[has_score], hit[has_score]
    )
    f1 = 2 * true_alarms / (true_alarms + false_alarms + anomalous)
    if recall_cap is not None:
        capped = (hits if cap_on == "raw" else true_alarms) / anomalous
        f1 = np.where(capped > recall_cap, 0.0, f1)
    best = int(np.argmax(f1))
    if f1[best] == 0:
        return OracleF1(float(levels[0]), 0.0, float("nan"), 0.0)
    return OracleF1(
        _just_below(levels[best]),
        float(f1[best]),
        float(true_alarms[best] / (true_alarms[best] + false_alarms[best])),
        float(true_alarms[best] / anomalous),
    )


def calibration_scores(scores: np.ndarray) -> np.ndarray:
    """The calibration scores ``(N,)`` that are numbers, as float64, or an error if none is."""
    scores = np.asarray(scores, dtype=np.float64).ravel()
    kept = scores[~np.isnan(scores)]
    if not len(kept):
        raise ValueError(
            f"none of {len(scores)} calibration scores is a number; want validation rows that fill a window"
        )
    return kept


def _adjusted_gain(
    score: np.ndarray, of_row: np.ndarray, lengths: np.ndarray, needed: np.ndarray
) -> np.ndarray:
    """True alarms that each row ``(T,)`` adds as the threshold falls past it.

    The row that completes a segment's needed hits brings all of the segment's rows that are still missing.
    """
    gain = np.zeros(len(score), dtype=np.int64)
    rows = np.flatnonzero(of_row >= 0)
    rows = rows[np.lexsort((-score[rows], of_row[rows]))]  # by segment, then by falling score
    segment = of_row[rows]
    rank = np.arange(len(rows)) - np.searchsorted(segment, segment)
    missing = lengths[segment] - rank
    completes = rank + 1 == needed[segment]
    gain[rows] = np.where(completes, missing, rank + 1 < needed[segment])
    return gain


def _sweep(score: np.ndarray, *gains: np.ndarray) -> list[np.ndarray]:
    """The distinct scores, falling, and the sum of each gain over the rows that score at least as much."""
    order = np.argsort(-score, kind="stable")
    falling = score[order]
    last = np.append(np.flatnonzero(falling[1:] != falling[:-1]), len(falling) - 1)
    return [falling[last], *(np.cumsum(gain[order])[last] for gain in gains)]


def _just_below(level: np.floating) -> float:
    return float(np.nextafter(level, level.dtype.type(-np.inf)))
