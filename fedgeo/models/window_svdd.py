"""Deep SVDD of windows: distance to a fixed centre, by a network without biases.

Shapes: B windows, W rows each, C channels, d latent.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import linen as nn

from fedgeo.models.autoencoders import masked_mean
from fedgeo.protocol import Key, Model, PyTree


class WindowEncoder(nn.Module):
    """Dense layers without biases, by which it could map everything to one point (Ruff et al. 2018).

    Attributes:
        sizes: of the layers, the last one d.
    """

    sizes: Sequence[int]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """``(B, W, C) -> (B, d)``."""
        x = x.reshape(x.shape[0], -1)
        for size in self.sizes[:-1]:
            x = nn.leaky_relu(nn.Dense(size, use_bias=False)(x))
        return nn.Dense(self.sizes[-1], use_bias=False)(x)


def window_svdd(*, sizes: Sequence[int] = (128, 64, 32)) -> Model:
    """Deep SVDD: the squared distance of a window's embedding to a centre is loss and score.

    The centre is the mean over clients of their mean embedding under the shared start, a single exchange before the
    first round in place of the centralised one that FedKAD's section VI-A2 rules out; coordinates nearer to 0 than 0.1
    are moved there. The paper states no sizes; these are ours.

    Args:
        sizes: of the dense layers, the last one d.

    Raises:
        ValueError: no layer, or a size below 1.

    References:
        Ruff et al. (2018), Deep One-Class Classification.
    """
    if not sizes or min(sizes) < 1:
        raise ValueError(f"want at least one layer of at least one unit, got sizes={tuple(sizes)}")
    network = WindowEncoder(tuple(sizes))

    def embed(params: PyTree, x: jax.Array) -> jax.Array:
        return network.apply(params, x)  # type: ignore[return-value]

    def anchor(params: PyTree, x: jax.Array, mask: jax.Array) -> jax.Array:
        z = jnp.where(mask[:, None], embed(params, x), 0)
        return jnp.sum(z, axis=0) / jnp.maximum(jnp.sum(mask), 1)

    def score(params: PyTree, anchor: jax.Array, x: jax.Array) -> jax.Array:
        near = (anchor != 0) & (jnp.abs(anchor) < 0.1)
        center = jnp.where(near, jnp.sign(anchor) * 0.1, anchor)
        return jnp.sum((embed(params, x) - center[None]) ** 2, axis=-1)

    def loss(key: Key, params: PyTree, anchor: jax.Array, x: jax.Array, mask: jax.Array) -> jax.Array:
        del key
        return masked_mean(score(params, anchor, x), mask)

    return Model(network.init, anchor, loss, score)
