"""Second moments of lifted streams: all that FedKAD's training needs to know of a client's data.

A window shares all but one row with the next one, so the moments of a stream need few of the products that a matrix of
its windows would ask for. With ``s`` over the first rows of the training pairs, the sums

    [x(s), h(s)]' [x(s), ..., x(s+W), h(s), h(s+1)],    h(s) = tanh(weight z(s) + bias),

hold every lag of the stream with itself and with its lift. What is missing differs from them only by the states at
which a run of pairs begins or ends, because ``Y Y' - X X'`` telescopes along a run:

    Y Y' - X X' = sum of Phi Phi' over the states that end a run - the same over those that begin one.

A gap, the border of a stream and a masked row end a run.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedgeo.algorithms.koopman import Lift
from fedgeo.protocol import Series

_EDGES = 8  # run edges handled at a time; a stream without gaps has two

_Products = tuple[jax.Array, jax.Array]

_matmul = functools.partial(jnp.matmul, precision="highest")


class Moments(NamedTuple):
    """Sums over a client's M training pairs, X holding ``Phi(t)`` and Y ``Phi(t+1)`` as columns.

    Sums, not means: those of two runs of data add up to those of both, see :func:`merge`.

    Attributes:
        pairs: M, ``()``.
        xx: ``X X'``, ``(D, D)``.
        yx: ``Y X'``, ``(D, D)``.
        yy: the diagonal of ``Y Y'``, ``(D,)``; its sum is ``|Y|_F^2``.
    """

    pairs: jax.Array
    xx: jax.Array
    yx: jax.Array
    yy: jax.Array


class Stream(NamedTuple):
    """Moments of a stream so far, and the rows that its next pairs need: what a device keeps to go on learning.

    Attributes:
        moments: of all pairs so far.
        x: ``(W, C)`` the last rows.
        mask: ``(W,)`` which of them are known.
    """

    moments: Moments
    x: jax.Array
    mask: jax.Array


def second_moments(lift: Lift, series: Series, *, chunk: int = 1024, dtype: Any = None) -> Moments:
    """Moments of one client's stream; a pair counts if all its W + 1 rows are there.

    Agrees with the dense products to rounding. Memory is O(chunk D + D^2) beside the stream; the time goes into two
    matrix products a chunk, of ``(C + d_lift) x (D + C + d_lift)`` and of ``d_lift x W C``, over the chunk's rows.

    Args:
        lift: eq. 7.
        series: ``x (T, C)`` and ``mask (T,)``.
        chunk: pairs taken at a time; changes nothing beyond rounding.
        dtype: of the arithmetic and the result, by default that of ``x``, or of the lift where ``x`` holds integers;
            float64 needs ``jax_enable_x64``.

    Raises:
        ValueError: no :class:`Series`, or a dtype that JAX would silently replace.
    """
    _check_kind(series)
    own = series.x.dtype if jnp.issubdtype(series.x.dtype, jnp.floating) else lift.weight.dtype
    dtype = jnp.dtype(own if dtype is None else dtype)
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise ValueError(
            f"dtype {dtype} is not available, JAX would compute in {jax.dtypes.canonicalize_dtype(dtype)}; "
            'enable it, for example with jax.config.update("jax_enable_x64", True)'
        )
    lift = Lift(*(part.astype(dtype) for part in lift))
    steps, channels = series.x.shape
    window = lift.window(channels)
    most = max(steps - window, 1)
    chunk = min(chunk, most)
    blocks = -(-most // chunk)
    padding = blocks * chunk + window + 1 - steps
    x = jnp.pad(jnp.where(series.mask[:, None], series.x, 0).astype(dtype), ((0, padding), (0, 0)))
    valid = _first_rows(jnp.pad(series.mask, (0, padding)), window + 1)

    lags = _lagged_products(lift, x, valid, chunk=chunk, blocks=blocks)
    gain = _edge_products(lift, x, valid)
    return _assemble(jnp.sum(valid, dtype=dtype), lags, gain, channels)


def merge(*parts: Moments) -> Moments:
    """Moments of several streams, or of several parts of one, together."""
    return jax.tree.map(lambda *leaves: functools.reduce(jnp.add, leaves), *parts)


def begin(lift: Lift, channels: int) -> Stream:
    """A :class:`Stream` of C channels of which no row has come yet."""
    window, dtype = lift.window(channels), lift.weight.dtype
    size = lift.dimension
    none = Moments(*(jnp.zeros(shape, dtype) for shape in ((), (size, size), (size, size), (size,))))
    return Stream(none, jnp.zeros((window, channels), dtype), jnp.zeros(window, bool))


def extend(lift: Lift, stream: Stream, series: Series, *, chunk: int = 1024) -> Stream:
    """Go on from where a stream stands; however it is cut, the moments are those of the whole.

    Args:
        lift: the same for all parts.
        stream: from :func:`begin` or an earlier call; its size does not grow.
        series: the next rows, ``x (T, C)`` and ``mask (T,)``; a gap before them is one row that is masked.
        chunk: see :func:`second_moments`.
    """
    x = jnp.concatenate([stream.x, series.x.astype(stream.x.dtype)])
    mask = jnp.concatenate([stream.mask, series.mask])
    new = second_moments(lift, Series(x, mask), chunk=chunk)  # every pair here ends in a new row
    window = stream.x.shape[0]
    return Stream(merge(stream.moments, new), x[x.shape[0] - window :], mask[mask.shape[0] - window :])


@jax.jit
def prepare(lift: Lift, series: Series) -> Moments:
    """Moments of all clients, one at a time: ``x (K, T, C)`` to leaves ``(K, ...)``.

    Raises:
        ValueError: as :func:`second_moments`.
    """
    _check_kind(series)
    return jax.lax.map(lambda one: second_moments(lift, one), series)


def _check_kind(series: Any) -> None:
    if not isinstance(series, Series):
        raise ValueError(
            f"moments are taken of a Series(x, mask), got {type(series).__name__}; make one with "
            "fedgeo.data.stack_series"
        )


def _first_rows(mask: jax.Array, length: int) -> jax.Array:
    """Where ``length`` known rows in a row begin: ``(T,) -> (T - length + 1,)``."""
    count = jnp.cumsum(jnp.pad(mask, (1, 0)), dtype=jnp.int32)
    return count[length:] - count[:-length] == length


def _lagged_products(lift: Lift, x: jax.Array, valid: jax.Array, *, chunk: int, blocks: int) -> jax.Array:
    """``sum [x(s), h(s)]' [x(s), ..., x(s+W), h(s), h(s+1)]`` over the valid s: ``(C + d_lift, D + C + d_lift)``."""
    channels, hidden_size = x.shape[1], lift.weight.shape[0]
    window = lift.window(channels)
    # Without barriers XLA fuses the copies of rows into loops that cost more than the products.
    barrier = jax.lax.optimization_barrier

    def add(total: _Products, start: jax.Array) -> tuple[_Products, None]:
        rows = jax.lax.dynamic_slice_in_dim(x, start, chunk + window + 1)
        counts = jax.lax.dynamic_slice_in_dim(valid, start, chunk)
        # One state more than pairs, for h(s+1) of the last pair; it counts for nothing itself.
        span = barrier(jnp.concatenate([rows[lag : lag + chunk + 1] for lag in range(window + 1)], axis=1))
        hidden = barrier(jnp.tanh(_matmul(span[:, : window * channels], lift.matrix.T) + lift.bias[None]))
        left = jnp.concatenate([rows[: chunk + 1], hidden], axis=1)
        left = barrier(jnp.where(jnp.append(counts, False)[:, None], left, 0))
        pair = barrier(jnp.concatenate([hidden, jnp.roll(hidden, -1, axis=0)], axis=1))
        return (total[0] + _matmul(left.T, span), total[1] + _matmul(left.T, pair)), None

    def step(
        total: tuple[jax.Array, jax.Array], start: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], None]:
        some = jnp.any(jax.lax.dynamic_slice_in_dim(valid, start, chunk))
        return jax.lax.cond(some, add, lambda total, _: (total, None), total, start)  # padding costs nothing

    height = channels + hidden_size
    zero = (
        jnp.zeros((height, (window + 1) * channels), x.dtype),
        jnp.zeros((height, 2 * hidden_size), x.dtype),
    )
    return jnp.concatenate(jax.lax.scan(step, zero, jnp.arange(blocks) * chunk)[0], axis=1)


def _edge_products(lift: Lift, x: jax.Array, valid: jax.Array) -> jax.Array:
    """``Y Y' - X X'``, ``(D, D)``, from the states that begin or end a run of pairs."""
    window = lift.window(x.shape[1])
    before, after = jnp.pad(valid, (1, 0)), jnp.pad(valid, (0, 1))
    sign = before.astype(x.dtype) - after.astype(x.dtype)  # +1 for the Y that ends a run, -1 for its first X
    rank = jnp.cumsum(before != after, dtype=jnp.int32)
    rounds = -(-rank[-1] // _EDGES)

    def add(index: jax.Array, total: jax.Array) -> jax.Array:
        number = index * _EDGES + 1 + jnp.arange(_EDGES)
        state = jnp.minimum(jnp.searchsorted(rank, number), sign.shape[0] - 1)
        weight = jnp.where(number <= rank[-1], sign[state], 0)
        rows = x[state[:, None] + jnp.arange(window)[None]].reshape(_EDGES, -1)
        phi = lift(rows)
        return total + _matmul((weight[:, None] * phi).T, phi)

    size = lift.dimension
    return jax.lax.fori_loop(0, rounds, add, jnp.zeros((size, size), x.dtype))


def _assemble(pairs: jax.Array, lags: jax.Array, gain: jax.Array, channels: int) -> Moments:
    """Moments from the lagged products and ``gain``, which is ``Y Y' - X X'``."""
    hidden_size = lags.shape[0] - channels
    wide = gain.shape[0] - hidden_size  # W C
    span, pair = lags[:, : wide + channels], lags[:, wide + channels :]
    gram = _span_gram(span[:channels], gain[:wide, :wide], channels)

    lifted = span[channels:]  # h(s)' [x(s), ..., x(s+W)]
    # h(s+1)' z(s): its first row comes from the lagged products, the others are those of h(s)' z(s), one pair on.
    later = jnp.concatenate(
        [pair[:channels, hidden_size:].T, (lifted[:, :wide] + gain[wide:, :wide])[:, : wide - channels]],
        axis=1,
    )
    xx = jnp.block(
        [[gram[:wide, :wide], lifted[:, :wide].T], [lifted[:, :wide], pair[channels:, :hidden_size]]]
    )
    yx = jnp.block(
        [[gram[channels:, :wide], lifted[:, channels:].T], [later, pair[channels:, hidden_size:].T]]
    )
    return Moments(pairs, xx, yx, jnp.diagonal(xx) + jnp.diagonal(gain))


def _span_gram(first: jax.Array, gain: jax.Array, channels: int) -> jax.Array:
    """Gram matrix of ``[x(s), ..., x(s+W)]`` from its first block row and ``gain``.

    ``block(a+1, b+1) = block(a, b) + gain(a, b)``: on each block diagonal a cumulative sum.

    Args:
        first: ``(C, (W+1) C)``.
        gain: ``(W C, W C)``.
        channels: C.

    Returns:
        ``((W+1) C, (W+1) C)``, symmetric.
    """
    blocks = first.shape[1] // channels
    place = jnp.arange(blocks)
    gain = gain.reshape(blocks - 1, channels, blocks - 1, channels).transpose(0, 2, 1, 3)
    column = place[:-1, None] + place[None]
    on_diagonals = gain[place[:-1, None], jnp.minimum(column, blocks - 2)]  # (a, lag, C, C)
    on_diagonals = jnp.where((column < blocks - 1)[..., None, None], on_diagonals, 0)
    start = first.reshape(channels, 1, blocks, channels).transpose(1, 2, 0, 3)
    diagonals = jnp.concatenate([start, start + jnp.cumsum(on_diagonals, axis=0)])
    lag = place[None] - place[:, None]
    upper = diagonals[jnp.minimum(place[:, None], place[None]), jnp.abs(lag)]
    gram = jnp.where((lag >= 0)[..., None, None], upper, upper.mT)
    return gram.transpose(0, 2, 1, 3).reshape(blocks * channels, blocks * channels)
