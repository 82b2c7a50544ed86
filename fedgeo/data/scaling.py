"""Scalers as fitted values, per client or for a whole federation.

A federation fits its scaler without moving rows: each client sends :class:`Moments`, its count, mean and sum
of squared deviations (the numerically stable form of count, sum and sum of squares), and :func:`merge`
combines them exactly. Shapes: K clients, N rows, C columns (channels or features).
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from fedgeo.data.streams import Streams, split


class Moments(NamedTuple):
    """What a client reveals of its rows to fit a scaler.

    Attributes:
        rows: ``(C,)`` number of rows with a value in each column.
        mean: ``(C,)``; zeros for columns without a value.
        m2: ``(C,)`` sums of squared deviations from ``mean``.
    """

    rows: np.ndarray
    mean: np.ndarray
    m2: np.ndarray


@dataclass(frozen=True, eq=False)
class Scaler:
    """An affine map of the columns, ``(x - center) / scale``, then clipped to ``[-clip, clip]``.

    Attributes:
        center: ``(C,)``.
        scale: ``(C,)``, positive; 1 for the columns in ``constant``, which therefore become 0.
        constant: the positions of the columns that did not vary when the scaler was fitted.
        clip: largest absolute value let through, infinity for none.
    """

    center: np.ndarray
    scale: np.ndarray
    constant: tuple[int, ...] = ()
    clip: float = math.inf

    def transform(self, x: np.ndarray) -> np.ndarray:
        """Scale rows ``(..., C)``."""
        if x.shape[-1] != len(self.center):
            raise ValueError(f"got {x.shape[-1]} columns, want the {len(self.center)} of the fitted scaler")
        z = (x - self.center) / self.scale
        return z if math.isinf(self.clip) else np.clip(z, -self.clip, self.clip)


def moments(x: np.ndarray) -> Moments:
    """Count, mean and squared deviations of rows ``(N, C)``; NaN is a missing value and left out.

    Exact for a constant column of any size.
    """
    known = ~np.isnan(x)
    rows = known.sum(axis=0)
    first = x[known.argmax(axis=0), np.arange(x.shape[1])] if len(x) else np.zeros(x.shape[1])
    first = np.where(rows > 0, first, 0.0)
    with np.errstate(
        over="ignore", invalid="ignore"
    ):  # what is too large is refused by name when a scaler is made
        shifted = np.where(known, x - first, 0.0)  # keeps a large offset out of the sums
        mean = shifted.sum(axis=0) / np.maximum(rows, 1)
        m2 = np.square(np.where(known, shifted - mean, 0.0)).sum(axis=0)
    return Moments(rows, first + mean, m2)


def merge(parts: Iterable[Moments]) -> Moments:
    """Moments of all rows together, from the parts' moments alone.

    References:
        Chan, Golub and LeVeque (1983), Algorithms for computing the sample variance.
    """
    parts = list(parts)
    if not parts:
        raise ValueError("no moments to merge; want those of at least one client")
    total = parts[0]
    for part in parts[1:]:
        if len(part.mean) != len(total.mean):
            raise ValueError(f"moments of {len(total.mean)} and of {len(part.mean)} columns do not merge")
        rows = total.rows + part.rows
        share = part.rows / np.maximum(rows, 1)
        with np.errstate(over="ignore", invalid="ignore"):
            gap = np.where(part.rows > 0, part.mean - total.mean, 0.0)
            mean = np.where(total.rows > 0, total.mean + gap * share, part.mean)
            m2 = total.m2 + part.m2 + np.square(gap) * total.rows * share
        total = Moments(rows, mean, m2)
    return total


def standard(fitted: Moments, *, clip: float = math.inf) -> Scaler:
    """Zero mean and unit population standard deviation; a column without variance keeps scale 1.

    A deviation at the level of rounding, a few units in the last place of the mean, counts as none. Without
    any value a column is left as it is.
    """
    if not clip > 0:
        raise ValueError(f"clip={clip}; want a positive bound, or infinity for none")
    sd = np.sqrt(fitted.m2 / np.maximum(fitted.rows, 1))
    if not (np.isfinite(sd).all() and np.isfinite(fitted.mean).all()):
        column = int(np.argmin(np.isfinite(sd) & np.isfinite(fitted.mean)))
        raise ValueError(f"column {column} has no finite moments; remove infinite or huge values first")
    flat = sd <= 8 * np.finfo(np.float64).eps * np.abs(fitted.mean)
    constant = tuple(int(c) for c in np.flatnonzero(flat & (fitted.rows > 0)))
    return Scaler(fitted.mean, np.where(flat, 1.0, sd), constant, clip)


def fit_scaler(x: np.ndarray, *, clip: float = math.inf) -> Scaler:
    """The standard scaler of one client's rows ``(N, C)``."""
    return standard(moments(x), clip=clip)


def outliers(x: np.ndarray, *, times: float = 10.0) -> dict[int, np.ndarray]:
    """Rows that set a column's scale alone, such as a -9999 that stands for a missing value.

    They are at most three values, repeated in at most a twentieth of the rows, without which the standard deviation is
    ``times`` smaller. Each lies ``times`` as far from the median as any row that stays: spikes of a counter
    that is mostly idle have others of their kind, a sentinel or a glitch has none.

    Args:
        x: rows ``(N, C)``; NaN is a missing value.
        times: how much smaller.

    Returns:
        Numbers of the rows, ascending, by column; columns without such rows are left out.
    """
    found: dict[int, np.ndarray] = {}
    most = len(x) // 20
    if not most:
        return found
    scale, places = standard(moments(x)).scale, np.arange(x.shape[1])
    known = ~np.isnan(x)
    median = np.nanmedian(np.where(known.any(axis=0), x, 0.0), axis=0)
    far = np.where(known, np.abs(x - median), -1.0)
    rest = x.copy()
    for _ in range(3):
        farthest = x[far.argmax(axis=0), places]
        rest[x == farthest] = np.nan
        far[x == farthest] = -1.0
        gone = known & np.isnan(rest)
        # Where all that stays is one value, its own unit is the measure, as it is for a constant channel.
        fitted = standard(moments(rest))
        unit = np.maximum(far.max(axis=0), np.where(np.isin(places, fitted.constant), 1.0, 0.0))
        nearest = np.where(gone, np.abs(x - median), np.inf).min(axis=0)
        few = (gone.sum(axis=0) <= most) & (far.max(axis=0) >= 0)
        for c in np.flatnonzero(few & (scale >= times * fitted.scale) & (nearest >= times * unit)):
            found.setdefault(int(c), np.flatnonzero(gone[:, c]))
    return found


def federated_scaler(clients: Iterable[np.ndarray], *, clip: float = math.inf) -> Scaler:
    """The standard scaler of all clients' rows, equal to the one of the pooled rows, from K moments alone."""
    return standard(merge(moments(x) for x in clients), clip=clip)


def federated_quantiles(
    clients: Iterable[np.ndarray], shares: Iterable[float], *, exchanges: int = 60
) -> np.ndarray:
    """Quantiles of all clients' rows together, from counts alone, by bisection.

    In each exchange the server names a value for every quantile and column, and each client answers how many
    of its values do not exceed it. The result exceeds the smallest value that at least that share of all rows
    does not exceed by at most ``2**-exchanges`` of the column's range, and never falls below it.

    Args:
        clients: rows ``(N, C)``; NaN is a missing value.
        shares: Q shares in (0, 1].
        exchanges: halvings of the range.

    Returns:
        ``(Q, C)``; 0 for columns without a value.
    """
    parts = [x for x in clients if len(x)]
    q = np.asarray(list(shares), dtype=np.float64)[:, None]
    if not parts:
        raise ValueError("no rows to take quantiles of; want at least one client with rows")
    if not ((q > 0) & (q <= 1)).all():
        raise ValueError(f"shares={q.ravel().tolist()}; want values in (0, 1]")
    known = sum((~np.isnan(x)).sum(axis=0) for x in parts)
    lowest = np.min([np.where(np.isnan(x), np.inf, x).min(axis=0) for x in parts], axis=0)
    highest = np.max([np.where(np.isnan(x), -np.inf, x).max(axis=0) for x in parts], axis=0)
    lowest, highest = np.where(known > 0, lowest, 0.0), np.where(known > 0, highest, 0.0)
    needed = np.ceil(q * known - 1e-9)
    low = np.broadcast_to(np.nextafter(lowest, -np.inf), (len(q), len(lowest))).copy()
    high = np.broadcast_to(highest, low.shape).copy()
    for _ in range(exchanges):
        middle = low + (high - low) / 2
        enough = sum(_at_most(x, middle) for x in parts) >= needed
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return high


def _at_most(x: np.ndarray, values: np.ndarray) -> np.ndarray:
    """How many rows do not exceed each of the values ``(Q, C)``."""
    return np.array([(x <= row).sum(axis=0) for row in values])


def federated_robust_scaler(clients: Iterable[np.ndarray], *, clip: float = math.inf) -> Scaler:
    """Zero median and unit interquartile range of all clients' rows, by :func:`federated_quantiles`.

    Quartiles are values of the data, not interpolated between two of them. A column without a range keeps
    scale 1, and is called constant only if it does not vary at all.
    """
    clients = list(clients)
    first, median, third = federated_quantiles(clients, (0.25, 0.5, 0.75))
    spread = third - first
    flat = spread <= 8 * np.finfo(np.float64).eps * np.maximum(np.abs(first), np.abs(third))
    return Scaler(median, np.where(flat, 1.0, spread), standard(merge(map(moments, clients))).constant, clip)


def standardise(
    streams: Streams,
    *,
    by: Literal["client", "federation"] = "client",
    clip: float = 10.0,
    validation: float = 0.15,
) -> tuple[Streams, dict[str, Scaler]]:
    """Scale train and test streams with statistics of the training rows.

    Args:
        streams: the federation.
        by: ``"client"`` for one scaler a client, ``"federation"`` for one shared scaler.
        clip: bound on the scaled values.
        validation: share at the end of each training stream that the scalers must not see; 0 fits on all.

    Returns:
        The scaled federation, and the scaler of every client.
    """
    fitted_on, _ = split(streams.train, validation)
    if by == "client":
        scalers = {name: fit_scaler(x, clip=clip) for name, x in fitted_on.items()}
    elif by == "federation":
        shared = federated_scaler(fitted_on.values(), clip=clip)
        scalers = dict.fromkeys(fitted_on, shared)
    else:
        raise ValueError(f'by={by!r}; want "client" or "federation"')
    train = {name: scalers[name].transform(x) for name, x in streams.train.items()}
    test = {name: scalers[name].transform(x) for name, x in streams.test.items()}
    return replace(streams, train=train, test=test), scalers


def constant_channels(scalers: Mapping[str, Scaler], channels: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Which channels did not vary in training, by client; clients where all did are left out."""
    return {name: tuple(channels[c] for c in s.constant) for name, s in scalers.items() if s.constant}
