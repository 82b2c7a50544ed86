"""Volume under the surface: ROC and PR areas that forgive an alarm near an event, averaged over buffer lengths.

The labels of an event rise towards it over a buffer of ``l // 2`` rows on either side, and an alarm there counts
for what the label says. The areas are taken at every buffer length ``l = 0, 1, ..., L`` and averaged, so that no
single tolerance decides. Larger L raises both values: never compare results of different L, and always state it.

This is the definition that TSB-AD uses today. With L = 0 it is not AUROC and AP, because recall is multiplied by the
share of events that any alarm touches. A random score's VUS-PR lies near the share of anomalous rows. Shapes: T rows.

References:
    Paparrizos et al. (2022), Volume Under the Surface: A New Accuracy Evaluation Measure for Time-Series Anomaly
    Detection. Liu and Paparrizos (2024), The Elephant in the Room: Towards A Reliable Time-Series Anomaly Detection
    Benchmark.
"""

from typing import NamedTuple

import numpy as np
from scipy.integrate import trapezoid
from scipy.stats import rankdata

from fedgeo.evaluation.adjust import scored_spans
from fedgeo.evaluation.ranking import checked

DEFAULT_BUFFER = 125
"""The buffer length of a channel without a clear period, as in TSB-AD."""

_LEVELS = 250  # thresholds on the surface, at evenly spaced ranks
_LONGEST_LAG = 400
_SHORTEST_PERIOD, _LONGEST_PERIOD = 6, 303
_ROWS_OF_A_CHANNEL = 20_000


class Vus(NamedTuple):
    """Volumes under the two surfaces, and the buffer length up to which they were averaged."""

    roc: float
    pr: float
    buffer: int


def buffer_length(channel: np.ndarray) -> int:
    """Buffer length L from the period of one channel ``(T,)``, by custom the first one of the test stream.

    The period is the lag of the highest local maximum of the autocorrelation of at most the first 20,000 rows, over
    lags up to 400. Where there is none from 6 to 303 the answer is :data:`DEFAULT_BUFFER`.
    """
    from scipy.signal import argrelmax  # a second of every start of the command line otherwise

    x = np.asarray(channel, dtype=np.float64)
    if x.ndim != 1:
        raise ValueError(f"got a channel of shape {x.shape}; want one channel (T,), such as stream[:, 0]")
    if not np.isfinite(x).all():
        raise ValueError(
            f"got a channel with {np.sum(~np.isfinite(x))} NaN or infinite rows; fill them first"
        )
    correlation = _autocorrelation(x[:_ROWS_OF_A_CHANNEL], _LONGEST_LAG)[3:]
    peaks = argrelmax(correlation)[0]
    if not len(peaks):
        return DEFAULT_BUFFER
    period = int(peaks[np.argmax(correlation[peaks])]) + 3
    return period if _SHORTEST_PERIOD <= period <= _LONGEST_PERIOD else DEFAULT_BUFFER


def vus(score: np.ndarray, labels: np.ndarray, buffer: int) -> Vus:
    """VUS-ROC and VUS-PR of one stream.

    Args:
        score: ``(T,)``, higher is more anomalous. Rows with NaN are cut out of the time axis.
        labels: ``(T,)`` of 0 and 1.
        buffer: L, the longest buffer in rows, such as :func:`buffer_length` finds; it is part of the result.

    Returns:
        NaN for both without scored rows of both classes.
    """
    if int(buffer) != buffer or buffer < 0:
        raise ValueError(f"buffer={buffer}; want a whole number of rows >= 0, such as buffer_length(x[:, 0])")
    buffer = int(buffer)
    score, y = checked(score, labels)
    has_score = ~np.isnan(score)
    events = scored_spans(y, has_score)
    y, rank = y[has_score], rankdata(score[has_score], method="dense")
    if y.all() or not y.any():
        return Vus(float("nan"), float("nan"), buffer)
    reached = _first_level(rank)
    areas = [_areas(reached, y, events, length) for length in range(buffer + 1)]
    roc, pr = np.mean(areas, axis=0)
    return Vus(float(roc), float(pr), buffer)


def _first_level(rank: np.ndarray) -> np.ndarray:
    """``(T,)`` number of the first, highest of the 250 levels at which a row is alarmed (``rank >= level``)."""
    falling = np.sort(rank)[::-1]
    levels = falling[np.linspace(0, len(rank) - 1, _LEVELS).astype(int)]
    return np.searchsorted(-levels, -rank)


def _areas(reached: np.ndarray, y: np.ndarray, events: np.ndarray, length: int) -> tuple[float, float]:
    """Areas under ROC (trapezoids, to (1, 1)) and PR (right rectangles) at one buffer length."""
    rows, soft = _buffer(y, events, length)
    alarms = _up_to_level(reached)
    buffered = _up_to_level(reached[rows], soft)
    true_alarms = _up_to_level(reached[y]) + buffered
    positives = (2 * y.sum() + buffered) / 2
    touched = _share_touched(reached, events, length)
    tpr = np.minimum(true_alarms / positives, 1.0) * touched
    fpr = (alarms - true_alarms) / (len(y) - positives)
    roc = trapezoid(np.r_[0.0, tpr, 1.0], np.r_[0.0, fpr, 1.0])
    return float(roc), float(np.sum(np.diff(tpr, prepend=0.0) * true_alarms / alarms))


def _buffer(y: np.ndarray, events: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Normal rows within ``length // 2`` of an event, and their soft labels sqrt(1 - d / length), summed to <= 1."""
    distance = np.arange(1, length // 2 + 1)
    rows = np.concatenate([events[:, :1] - distance, events[:, 1:] - 1 + distance]).ravel()
    soft = np.tile(np.sqrt(1 - distance / max(length, 1)), 2 * len(events))
    inside = (rows >= 0) & (rows < len(y))
    inside[inside] = ~y[rows[inside]]
    rows, where = np.unique(rows[inside], return_inverse=True)
    return rows, np.minimum(np.bincount(where, soft[inside], minlength=len(rows)), 1.0)


def _share_touched(reached: np.ndarray, events: np.ndarray, length: int) -> np.ndarray:
    """``(250,)`` share of events with an alarm in them or their buffer; events whose buffers meet count as one."""
    half = length // 2
    apart = events[:-1, 1] - 1 + half < events[1:, 0] - half
    starts = np.maximum(events[np.r_[True, apart], 0] - half, 0)
    stops = np.minimum(events[np.r_[apart, True], 1] + half, len(reached))
    first = [reached[start:stop].min() for start, stop in zip(starts, stops, strict=True)]
    return _up_to_level(np.array(first)) / len(starts)


def _up_to_level(reached: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    return np.cumsum(np.bincount(reached, weights, minlength=_LEVELS))


def _autocorrelation(x: np.ndarray, lags: int) -> np.ndarray:
    """Autocorrelation at lags 0 to ``lags``, all sums divided by the same number; NaN for a constant."""
    centred = x - x.mean() if len(x) else x
    power = np.abs(np.fft.rfft(centred, 2 * max(len(x), 1))) ** 2
    products = np.fft.irfft(power)[: min(lags + 1, len(x))]
    if not len(x) or np.ptp(x) == 0:
        return np.full(len(products), np.nan)
    return products / products[0]
