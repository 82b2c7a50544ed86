"""What a minibatch is made of: rows of a table, or windows of a stream, cut out when they are needed."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedgeo.algorithms.koopman import smooth
from fedgeo.arguments import whole
from fedgeo.protocol import Examples, PyTree, Rows, Series


def _checked(data: PyTree, kind: type[Rows] | type[Series], maker: str) -> Any:
    if not isinstance(data, kind):
        raise ValueError(
            f"this algorithm trains on {kind.__name__}, got {type(data).__name__}; make them with fedgeo.data.{maker}"
        )
    return data


def _take_rows(rows: Rows, index: jax.Array) -> jax.Array:
    return jnp.take(_checked(rows, Rows, "stack_rows").x, index, axis=0, mode="fill", fill_value=0)


ROWS = Examples(
    lambda rows: _checked(rows, Rows, "stack_rows").mask, _take_rows, lambda function, x: function(x)
)
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
        ValueError: an argument that is no whole number of at least 1.
    """
    window, stride = whole("window", window, 1), whole("stride", stride, 1)
    smoothing, chunk = whole("smoothing", smoothing, 1), whole("chunk", chunk, 1)
    lags = jnp.arange(window)

    def mask(series: Series) -> jax.Array:
        known = _checked(series, Series, "stack_series").mask
        known = jnp.pad(known, (0, max(window - known.shape[0], 0)))
        return complete(known, window)[::stride]

    def take(series: Series, index: jax.Array) -> jax.Array:
        rows = index[:, None] * stride + lags[None]
        return jnp.take(_checked(series, Series, "stack_series").x, rows, axis=0, mode="fill", fill_value=0)

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
    x = x.astype(jnp.result_type(x, jnp.float32))  # integers have no NaN
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
