"""What a minibatch is made of: rows of a table, or windows of a stream, cut out when they are needed."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedgeo.algorithms.koopman import smooth
from fedgeo.protocol import Examples, Rows, Series


def _take_rows(rows: Rows, index: jax.Array) -> jax.Array:
    return jnp.take(rows.x, index, axis=0, mode="fill", fill_value=0)


ROWS = Examples(lambda rows: rows.mask, _take_rows, lambda function, x: function(x))
"""The rows of :class:`Rows`, each an example."""


def windows(window: int, *, stride: int = 1, smoothing: int = 1, chunk: int = 1024) -> Examples:
    """Windows of :class:`Series`, ``(B, W, C)``, cut out of the stream inside the compiled program.

    A window is an example if all its rows are there. A stream shorter than the window has none.

    Args:
        window: W.
        stride: rows from one training window to the next; scores have a stride of 1 in any case.
        smoothing: rows of the causal moving mean over scores, 1 for none.
        chunk: windows scored at a time, which bounds memory and changes no result.

    Raises:
        ValueError: an argument below 1.
    """
    for name, count in {"window": window, "stride": stride, "smoothing": smoothing, "chunk": chunk}.items():
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")
    lags = jnp.arange(window)

    def mask(series: Series) -> jax.Array:
        known = jnp.pad(series.mask, (0, max(window - series.mask.shape[0], 0)))
        return complete(known, window)[::stride]

    def take(series: Series, index: jax.Array) -> jax.Array:
        rows = index[:, None] * stride + lags[None]
        return jnp.take(series.x, rows, axis=0, mode="fill", fill_value=0)

    def score(function: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
        return smooth(score_windows(function, x, window, chunk), smoothing)

    return Examples(mask, take, score)


def complete(mask: jax.Array, length: int) -> jax.Array:
    """Where ``length`` rows with ``mask`` in a row begin: ``(T,) -> (T - length + 1,)``."""
    count = jnp.cumsum(jnp.pad(mask, (1, 0)), dtype=jnp.int32)
    return count[length:] - count[:-length] == length


def score_windows(
    function: Callable[[jax.Array], jax.Array], x: jax.Array, window: int, chunk: int
) -> jax.Array:
    """The score of every window of a stream, at the window's last row.

    Args:
        function: ``(B, W, C) -> (B,)``.
        x: ``(T, C)``.
        window: W.
        chunk: B.

    Returns:
        ``(T,)``; the first W - 1 are NaN.
    """
    count = x.shape[0] - window + 1
    if count <= 0:
        return jnp.full(x.shape[0], jnp.nan, x.dtype)
    chunk = min(chunk, count)
    blocks = -(-count // chunk)
    padded = jnp.pad(x, ((0, blocks * chunk - count), (0, 0)))
    rows = jnp.arange(chunk)[:, None] + jnp.arange(window)[None]

    def block(start: jax.Array) -> jax.Array:
        part = jax.lax.dynamic_slice_in_dim(padded, start, chunk + window - 1)
        return function(part[rows])

    scores = jax.lax.map(block, jnp.arange(blocks) * chunk).reshape(-1)[:count]
    return jnp.concatenate([jnp.full(window - 1, jnp.nan, scores.dtype), scores])
