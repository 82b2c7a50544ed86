"""Second moments of lifted streams: all that FedKAD's training needs to know of a client's data."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedgeo.algorithms.koopman import Lift, windows
from fedgeo.protocol import Series


class Moments(NamedTuple):
    """Sums over a client's M training pairs, X holding ``Phi(t)`` and Y ``Phi(t+1)`` as columns.

    Sums, not means: those of two runs of data add up to those of both.

    Attributes:
        pairs: M, ``()``.
        xx: ``X X'``, ``(D, D)``.
        yx: ``Y X'``, ``(D, D)``.
        yy: ``|Y|_F^2``, ``()``.
    """

    pairs: jax.Array
    xx: jax.Array
    yx: jax.Array
    yy: jax.Array


def second_moments(lift: Lift, series: Series, *, chunk: int = 1024) -> Moments:
    """Moments of one client's stream; a pair counts if all its W + 1 rows are there.

    Args:
        lift: eq. 7.
        series: ``x (T, C)`` and ``mask (T,)``.
        chunk: pairs lifted at a time; memory is O(chunk D + D^2).
    """
    steps, channels = series.x.shape
    window = lift.window(channels)
    most = max(steps - window, 1)
    chunk = min(chunk, most)
    blocks = -(-most // chunk)
    padding = blocks * chunk + window - steps
    x = jnp.pad(series.x, ((0, padding), (0, 0)))
    mask = jnp.pad(series.mask, (0, padding))

    def add(total: Moments, start: jax.Array) -> tuple[Moments, None]:
        rows = jax.lax.dynamic_slice_in_dim(x, start, chunk + window)
        known = jax.lax.dynamic_slice_in_dim(mask, start, chunk + window)
        valid = jnp.all(windows(known[:, None], window + 1), axis=-1)
        phi = lift(windows(rows, window))
        now, later = (jnp.where(valid[:, None], part, 0) for part in (phi[:-1], phi[1:]))
        return Moments(
            total.pairs + jnp.sum(valid, dtype=x.dtype),
            total.xx + jnp.matmul(now.T, now, precision="highest"),
            total.yx + jnp.matmul(later.T, now, precision="highest"),
            total.yy + jnp.sum(later * later),
        ), None

    size = sum(lift.weight.shape)
    zero = Moments(*(jnp.zeros(shape, x.dtype) for shape in ((), (size, size), (size, size), ())))
    return jax.lax.scan(add, zero, jnp.arange(blocks) * chunk)[0]


def prepare(lift: Lift, series: Series) -> Moments:
    """Moments of all clients, one at a time: ``x (K, T, C)`` to leaves ``(K, ...)``."""
    return jax.lax.map(lambda one: second_moments(lift, one), series)
