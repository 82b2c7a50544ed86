"""TranAD: a transformer that reconstructs a window's last row twice, the second time told where it erred.

Shapes: B windows, W rows each, C channels.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from fedgeo.models.autoencoders import first_round, masked_mean, next_round, squared_error
from fedgeo.protocol import Key, Model, PyTree


def attend(query: jax.Array, key: jax.Array, value: jax.Array, **options: Any) -> jax.Array:
    """Scaled dot-product attention by sums over the few entries of a head, not by one tiny product a head.

    With two entries a head this takes two thirds of the time of ``nn.dot_product_attention`` on a CPU.

    Args:
        query: ``(B, Q, heads, n)``.
        key: ``(B, W, heads, n)``.
        value: ``(B, W, heads, n)``.
        options: what the caller says beside; nothing here depends on it.

    Returns:
        ``(B, Q, heads, n)``.
    """
    del options
    size = query.shape[-1]
    query, key, value = (part.transpose(0, 2, 3, 1) for part in (query / math.sqrt(size), key, value))
    logits = sum(query[:, :, i, :, None] * key[:, :, i, None, :] for i in range(size))
    weights = jax.nn.softmax(logits, axis=-1)  # (B, heads, Q, W)
    parts = [jnp.sum(weights * value[:, :, i, None, :], axis=-1) for i in range(size)]
    return jnp.stack(parts, axis=-1).transpose(0, 2, 1, 3)


class FeedForward(nn.Module):
    """Two dense layers. The original's ``LeakyReLU(True)`` between them has slope 1: there is no nonlinearity.

    Attributes:
        hidden: units between them.
        dropout: rate.
    """

    hidden: int
    dropout: float

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """``(B, T, d) -> (B, T, d)``."""
        drop = nn.Dropout(self.dropout, deterministic=not train)
        return nn.Dense(x.shape[-1])(drop(nn.Dense(self.hidden)(x)))


class Layer(nn.Module):
    """Attention to itself, to a memory if there is one, and a feed-forward part, each added; no layer norm.

    Attributes:
        heads: of the attention.
        hidden: of the feed-forward part.
        dropout: rate on what is added.
    """

    heads: int
    hidden: int
    dropout: float

    @nn.compact
    def __call__(self, x: jax.Array, memory: jax.Array | None = None, *, train: bool) -> jax.Array:
        """``x (B, T, d)``, ``memory (B, W, d)`` to ``(B, T, d)``."""

        def drop(added: jax.Array) -> jax.Array:
            return nn.Dropout(self.dropout, deterministic=not train)(added)

        x = x + drop(nn.MultiHeadDotProductAttention(self.heads, attention_fn=attend)(x))
        if memory is not None:
            x = x + drop(nn.MultiHeadDotProductAttention(self.heads, attention_fn=attend)(x, memory))
        return x + drop(FeedForward(self.hidden, self.dropout)(x, train=train))


def position_code(window: int, size: int) -> jax.Array:
    """``sin + cos`` of the row's number at geometric frequencies, ``(W, size)``."""
    angle = jnp.arange(window)[:, None] * jnp.exp(-math.log(10_000.0) / size * jnp.arange(size))[None]
    return jnp.sin(angle) + jnp.cos(angle)


class TranADNetwork(nn.Module):
    """One encoder, two decoders, one output layer; d = 2 C, one head a channel.

    Attributes:
        hidden: of the feed-forward parts.
        dropout: rate.
    """

    hidden: int
    dropout: float

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool = False) -> tuple[jax.Array, jax.Array]:
        """Windows ``(B, W, C)`` in [-1, 1] to two reconstructions ``(B, C)`` of their last rows."""
        window, channels = x.shape[1:]
        encoder = Layer(channels, self.hidden, self.dropout, name="encoder")
        decoders = [Layer(channels, self.hidden, self.dropout, name=f"decoder{k}") for k in (1, 2)]
        output = nn.Dense(channels, name="output")
        code = position_code(window, 2 * channels)[None]
        target = jnp.tile(x[:, -1:], (1, 1, 2))

        def reconstruct(decoder: Layer, focus: jax.Array) -> jax.Array:
            source = jnp.concatenate([x, focus], axis=-1) * math.sqrt(channels) + code
            source = nn.Dropout(self.dropout, deterministic=not train)(source)
            memory = encoder(source, train=train)
            return jnp.tanh(output(decoder(target, memory, train=train)))

        first = reconstruct(decoders[0], jnp.zeros_like(x))
        second = reconstruct(decoders[1], (first - x) ** 2)
        return first[:, 0], second[:, 0]


def tranad(*, hidden: int = 16, dropout: float = 0.1, bound: float = 10.0) -> Model:
    """TranAD: the error of two reconstructions of a window's last row.

    With ``x1`` and ``x2`` the two reconstructions of the last row t, the loss of round n, counted from 1, is
    ``1/n |x1 - t|^2 + (1 - 1/n) |x2 - t|^2``, and the score half the sum of the two errors.

    Sizes are those of the authors' code: d = 2 C, one head a channel, one encoder and two decoders of one layer. What
    differs from it: windows end at the row that is scored; data are z-scores cut at +-bound, here divided by it, and
    the output is a tanh, where the original has data in [0, 1] and a sigmoid; dropout is on what layers add, not on
    the attention's weights.

    Args:
        hidden: units of the feed-forward parts.
        dropout: rate in [0, 1).
        bound: largest absolute value of the data.

    Raises:
        ValueError: an argument out of its range.

    References:
        Tuli et al. (2022), TranAD: Deep Transformer Networks for Anomaly Detection in Multivariate Time Series Data.
    """
    if hidden < 1 or not 0 <= dropout < 1 or not bound > 0:
        raise ValueError(
            f"want hidden >= 1, 0 <= dropout < 1 and bound > 0, got {hidden}, {dropout} and {bound}"
        )
    network = TranADNetwork(hidden, dropout)

    def errors(params: PyTree, x: jax.Array, **options: Any) -> tuple[jax.Array, jax.Array]:
        first, second = network.apply(params, x / bound, **options)
        target = x[:, -1] / bound
        return squared_error(target, first), squared_error(target, second)  # type: ignore[arg-type]

    def loss(key: Key, params: PyTree, n: jax.Array, x: jax.Array, mask: jax.Array) -> jax.Array:
        first, second = errors(params, x, train=True, rngs={"dropout": key})
        return masked_mean(first / n + (1 - 1 / n) * second, mask)

    def score(params: PyTree, n: jax.Array, x: jax.Array) -> jax.Array:
        del n
        first, second = errors(params, x)
        return 0.5 * first + 0.5 * second

    return Model(network.init, first_round, loss, score, (), next_round)
