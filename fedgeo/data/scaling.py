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
        rows: their number.
        mean: ``(C,)``; zeros for a client without rows.
        m2: ``(C,)`` sums of squared deviations from ``mean``.
    """

    rows: int
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
    """Count, mean and squared deviations of rows ``(N, C)``; exact for a constant column of any size."""
    if len(x) == 0:
        return Moments(0, np.zeros(x.shape[1]), np.zeros(x.shape[1]))
    shifted = x - x[0]  # keeps a large offset out of the sums
    mean = shifted.mean(axis=0)
    return Moments(len(x), x[0] + mean, np.square(shifted - mean).sum(axis=0))


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
        if part.rows == 0:
            continue
        if total.rows == 0:
            total = part
            continue
        rows = total.rows + part.rows
        gap = part.mean - total.mean
        mean = total.mean + gap * (part.rows / rows)
        m2 = total.m2 + part.m2 + np.square(gap) * (total.rows * part.rows / rows)
        total = Moments(rows, mean, m2)
    return total


def standard(fitted: Moments, *, clip: float = math.inf) -> Scaler:
    """Zero mean and unit population standard deviation; a column without variance keeps scale 1.

    A deviation at the level of rounding, a few units in the last place of the mean, counts as none. Without
    any rows the scaler is the identity.
    """
    if not clip > 0:
        raise ValueError(f"clip={clip}; want a positive bound, or infinity for none")
    sd = np.sqrt(fitted.m2 / max(fitted.rows, 1))
    if not (np.isfinite(sd).all() and np.isfinite(fitted.mean).all()):
        column = int(np.argmin(np.isfinite(sd) & np.isfinite(fitted.mean)))
        raise ValueError(f"column {column} has no finite moments; remove NaN, infinite or huge values first")
    flat = sd <= 8 * np.finfo(np.float64).eps * np.abs(fitted.mean)
    constant = tuple(int(c) for c in np.flatnonzero(flat)) if fitted.rows else ()
    return Scaler(fitted.mean, np.where(flat, 1.0, sd), constant, clip)


def fit_scaler(x: np.ndarray, *, clip: float = math.inf) -> Scaler:
    """The standard scaler of one client's rows ``(N, C)``."""
    return standard(moments(x), clip=clip)


def federated_scaler(clients: Iterable[np.ndarray], *, clip: float = math.inf) -> Scaler:
    """The standard scaler of all clients' rows, equal to the one of the pooled rows, from K moments alone."""
    return standard(merge(moments(x) for x in clients), clip=clip)


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
