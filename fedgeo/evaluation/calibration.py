"""A client's threshold from scores of its own normal rows, by one of three rules. No label is used.

Shapes: N calibration scores, T rows.
"""

from typing import Literal, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from fedgeo.evaluation.tails import pot
from fedgeo.evaluation.thresholds import alarms, target_rate
from fedgeo.evaluation.thresholds import quantile as quantile_of

Kind = Literal["quantile", "pot", "rate"]


class Rule(NamedTuple):
    """How thresholds are set.

    Attributes:
        kind: "quantile" of the calibration scores; "pot", peaks over threshold, which can name a level above every
            score seen; "rate", the lowest threshold with at most that share of alarms.
        quantile: for "quantile".
        level: for "pot", the quantile over which the tail is fitted.
        q: for "pot", share of normal rows that may raise an alarm.
        rate: for "rate", likewise.
    """

    kind: Kind = "quantile"
    quantile: float = 0.99
    level: float = 0.98
    q: float = 1e-3
    rate: float = 0.01

    def check(self) -> None:
        """Raise ValueError for a value out of its range."""
        if self.kind not in ("quantile", "pot", "rate"):
            raise ValueError(f'threshold={self.kind!r}; want "quantile", "pot" or "rate"')
        for name, valid in (
            ("quantile", 0 < self.quantile <= 1),
            ("level", 0 <= self.level < 1),
            ("q", 0 < self.q < 1),
            ("rate", 0 <= self.rate < 1),
        ):
            if not valid:
                raise ValueError(f"{name}={getattr(self, name)}; want a share of rows between 0 and 1")
        if self.kind == "pot" and self.q + self.level > 1 - 1e-9:
            raise ValueError(f"q={self.q} must be below 1 - level = {1 - self.level:g}")

    def __str__(self) -> str:
        if self.kind == "pot":
            return f"pot q={self.q:g} level={self.level:g}"
        return f"quantile {self.quantile:g}" if self.kind == "quantile" else f"rate {self.rate:g}"


class Calibration(NamedTuple):
    """A threshold and what it rests on.

    Attributes:
        threshold: alarms are the scores strictly above; NaN without a calibration score.
        rule: that set it.
        rows: calibration scores.
        alarm_rate: share of them above the threshold.
        fallback: why "pot" fitted no tail and took the ``1 - q`` quantile instead; empty otherwise.
    """

    threshold: float
    rule: str
    rows: int
    alarm_rate: float
    fallback: str = ""


def calibrated(scores: np.ndarray, rule: Rule, *, least: float = -np.inf) -> Calibration:
    """The threshold of calibration scores ``(N,)``; NaN is a row without a score.

    Args:
        scores: of normal rows.
        rule: see :class:`Rule`.
        least: the threshold is not lower: the smallest score that means anything.
    """
    known = np.asarray(scores, np.float64)
    known = known[~np.isnan(known)]
    if not len(known):
        return Calibration(float("nan"), str(rule), 0, float("nan"))
    fallback = ""
    if rule.kind == "quantile":
        threshold = quantile_of(known, rule.quantile)
    elif rule.kind == "rate":
        threshold = target_rate(known, rule.rate)
    else:
        found = pot(known, rule.q, rule.level, on_degenerate="quantile")
        threshold, fallback = found.threshold, found.fallback
    threshold = max(threshold, least)
    return Calibration(threshold, str(rule), len(known), float(alarms(known, threshold).mean()), fallback)


def moving_mean(values: np.ndarray, width: int) -> np.ndarray:
    """Causal mean of the last ``width`` known values: ``(T, ...) -> (T, ...)``; NaN where the value itself is.

    Summed anew for each row, so that a row's mean depends on no row further back. An infinite value makes it infinite.
    """
    values = np.asarray(values, np.float64)
    if not len(values):
        return values
    known = ~np.isnan(values)
    before = np.zeros((width - 1, *values.shape[1:]))
    summed = np.concatenate([before, np.where(known, values, 0.0)])
    counted = np.concatenate([before, known.astype(np.float64)])
    total, count = (sliding_window_view(part, width, axis=0).sum(axis=-1) for part in (summed, counted))
    return np.where(known, total / np.maximum(count, 1), np.nan)
