"""Autoencoders of windows: LSTM-AE and USAD, with the sizes that FedKAD's communication figures imply.

Shapes: B windows, W rows each, C channels, d latent.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import linen as nn

from fedgeo.arguments import whole
from fedgeo.protocol import Key, Model, PyTree


def masked_mean(values: jax.Array, mask: jax.Array) -> jax.Array:
    """Mean of ``values (B,)`` where ``mask (B,)``; 0 where nothing is."""
    return jnp.sum(jnp.where(mask, values, 0)) / jnp.maximum(jnp.sum(mask), 1)


def no_anchor(params: PyTree, x: jax.Array, mask: jax.Array) -> tuple[()]:
    """The anchor of a model whose loss has no target."""
    del params, x, mask
    return ()


def first_round(params: PyTree, x: jax.Array, mask: jax.Array) -> jax.Array:
    """The anchor of a model whose loss depends on the number of the round, counted from 1."""
    del params, mask
    return jnp.ones((), x.dtype)


def next_round(number: jax.Array) -> jax.Array:
    """That number one round later."""
    return number + 1


def squared_error(x: jax.Array, y: jax.Array) -> jax.Array:
    """Mean over all axes but the first: ``(B, ...) -> (B,)``."""
    return jnp.mean((x - y) ** 2, axis=tuple(range(1, x.ndim)))


def bounded(x: jax.Array, bound: float) -> jax.Array:
    """``bound tanh(x / bound)``: up to an affine map, what a sigmoid is for data scaled from +-bound to [0, 1]."""
    return bound * jnp.tanh(x / bound)


def check_sizes(**sizes: int) -> None:
    """Raise ValueError for a size that is no whole number of at least 1."""
    for name, size in sizes.items():
        whole(name, size, 1)


class LSTMAutoencoder(nn.Module):
    """An LSTM whose last state starts a second one, which reads that state at every step and runs backwards in time.

    Attributes:
        latent: d, units of both.
    """

    latent: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """``(B, W, C) -> (B, W, C)``."""
        carry, _ = nn.RNN(nn.OptimizedLSTMCell(self.latent), return_carry=True, name="encoder")(x)
        code = carry[1]
        repeated = jnp.broadcast_to(code[:, None], (*x.shape[:2], self.latent))
        hidden = nn.RNN(nn.OptimizedLSTMCell(self.latent), name="decoder")(repeated, initial_carry=carry)
        return nn.Dense(x.shape[-1])(hidden)[:, ::-1]


def lstm_autoencoder(*, latent: int = 64) -> Model:
    """LSTM-AE: mean squared error of a window that went through an LSTM encoder and decoder.

    LSTM(C, 64), LSTM(64, 64) and Dense(64, C) are the only sizes that agree with the 227 KB of FedKAD's section VI-B4;
    a cell here has one bias where PyTorch's has two, 0.9 % less. The score is that of a window, without the Mahalanobis
    distance of the original.

    Args:
        latent: d.

    References:
        Malhotra et al. (2016), LSTM-based Encoder-Decoder for Multi-sensor Anomaly Detection.
    """
    check_sizes(latent=latent)
    network = LSTMAutoencoder(latent)

    def error(params: PyTree, x: jax.Array) -> jax.Array:
        return squared_error(x, network.apply(params, x))  # type: ignore[arg-type]

    def loss(key: Key, params: PyTree, anchor: tuple[()], x: jax.Array, mask: jax.Array) -> jax.Array:
        del key, anchor
        return masked_mean(error(params, x), mask)

    def score(params: PyTree, anchor: tuple[()], x: jax.Array) -> jax.Array:
        del anchor
        return error(params, x)

    return Model(network.init, no_anchor, loss, score)


class Perceptron(nn.Module):
    """Dense layers with a ReLU between them, and after the last one if ``rectify``.

    Attributes:
        sizes: of the layers' outputs.
        rectify: whether the output goes through the ReLU.
    """

    sizes: Sequence[int]
    rectify: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """``(B, n) -> (B, sizes[-1])``."""
        for size in self.sizes[:-1]:
            x = nn.relu(nn.Dense(size)(x))
        x = nn.Dense(self.sizes[-1])(x)
        return nn.relu(x) if self.rectify else x


def usad(
    *, window: int = 20, channels: int, latent: int = 40, bound: float = 10.0, cap: float = 1.0
) -> Model:
    """USAD: two decoders of one encoder, the second trained to tell windows from what the first one made of them.

    With ``w1 = D1(E(x))``, ``w2 = D2(E(x))``, ``w3 = D2(E(w1))`` and n the number of the round, from 1:
    encoder and first decoder descend on ``1/n |x - w1|^2 + (1 - 1/n) |x - w3|^2``, then encoder and second decoder on
    ``1/n |x - w2|^2 - (1 - 1/n) |x - w3|^2``, each with an Adam of its own. The score is half the sum of ``|x - w1|^2``
    and ``|x - w3|^2``. A latent of 40 is the one that agrees with FedKAD's 129 MB a round.

    The original has data that fill [0, 1], and a sigmoid. Data here are z-scores cut at +-bound, of which most are
    small, so the sigmoid becomes :func:`bounded`, and what the second loss gains by ``|x - w3|^2`` ends, window by
    window, at ``cap |x|^2``, where w3 is no worse than no reconstruction at all: without it w3 is driven to +-bound,
    which is worth hundreds of times the reconstruction.

    Args:
        window: W.
        channels: C.
        latent: d.
        bound: largest absolute value of the data.
        cap: of the adversarial term, in units of a window's own mean square; infinity for none.

    Raises:
        ValueError: a size below 1, a window and channels of fewer than 4 values together, or a bound or cap that is
            not positive.

    References:
        Audibert et al. (2020), USAD: UnSupervised Anomaly Detection on Multivariate Time Series.
    """
    check_sizes(window=window, channels=channels, latent=latent)
    wide = window * channels
    if wide < 4 or not bound > 0 or not cap > 0:
        raise ValueError(f"want window * channels >= 4, bound > 0 and cap > 0, got {wide}, {bound} and {cap}")
    encoder = Perceptron((wide // 2, wide // 4, latent), rectify=True)
    decoder = Perceptron((wide // 4, wide // 2, wide), rectify=False)

    def init(key: Key, x: jax.Array) -> PyTree:
        if x.shape[1:] != (window, channels):
            raise ValueError(f"this USAD reads windows ({window}, {channels}), got {x.shape[1:]}")
        keys = jax.random.split(key, 3)
        code = jnp.zeros((1, latent), x.dtype)
        return {
            "encoder": encoder.init(keys[0], jnp.zeros((1, wide), x.dtype)),
            "first": decoder.init(keys[1], code),
            "second": decoder.init(keys[2], code),
        }

    def encode(params: PyTree, w: jax.Array) -> jax.Array:
        return encoder.apply(params["encoder"], w)  # type: ignore[return-value]

    def decode(params: PyTree, code: jax.Array) -> jax.Array:
        return bounded(decoder.apply(params, code), bound)  # type: ignore[arg-type]

    def flat(x: jax.Array) -> jax.Array:
        return x.reshape(x.shape[0], wide)

    def first_loss(key: Key, params: PyTree, n: jax.Array, x: jax.Array, mask: jax.Array) -> jax.Array:
        del key
        w = flat(x)
        w1 = decode(params["first"], encode(params, w))
        w3 = decode(jax.lax.stop_gradient(params["second"]), encode(params, w1))
        return masked_mean(squared_error(w, w1) / n + (1 - 1 / n) * squared_error(w, w3), mask)

    def second_loss(key: Key, params: PyTree, n: jax.Array, x: jax.Array, mask: jax.Array) -> jax.Array:
        del key
        w = flat(x)
        code = encode(params, w)
        w2 = decode(params["second"], code)
        w3 = decode(params["second"], encode(params, decode(jax.lax.stop_gradient(params["first"]), code)))
        gain = jnp.minimum(squared_error(w, w3), cap * jnp.mean(w * w, axis=1))
        return masked_mean(squared_error(w, w2) / n - (1 - 1 / n) * gain, mask)

    def score(params: PyTree, n: jax.Array, x: jax.Array) -> jax.Array:
        del n
        w = flat(x)
        w1 = decode(params["first"], encode(params, w))
        w3 = decode(params["second"], encode(params, w1))
        return 0.5 * squared_error(w, w1) + 0.5 * squared_error(w, w3)

    return Model(init, first_round, first_loss, score, (second_loss,), next_round)
