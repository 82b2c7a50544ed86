"""One-class encoders: the residual spherical encoder of Geodesic-SVDD (arXiv 2610.33619, section III-A), and an MLP."""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn

from fedgeo.protocol import Key, Model, PyTree
from fedgeo.shuffling import shuffled
from manifolds.sphere import project as project_to_sphere
from manifolds.sphere import slerp

Mixup = Literal["slerp", "lerp", "none"]


class ResidualBlock(nn.Module):
    """``h + W2 dropout(gelu(W1 layernorm(h)))``; the paper names the parts, not their order."""

    dropout: float

    @nn.compact
    def __call__(self, h: jax.Array, *, train: bool) -> jax.Array:
        """``(N, width) -> (N, width)``."""
        width = h.shape[-1]
        path = nn.gelu(nn.Dense(width)(nn.LayerNorm()(h)))
        path = nn.Dropout(self.dropout, deterministic=not train)(path)
        return h + nn.Dense(width)(path)


class SphericalEncoder(nn.Module):
    """Rows to the unit sphere, eq. 4.

    Attributes:
        latent: d.
        width: of the hidden layers.
        blocks: L.
        dropout: rate on the residual path.
    """

    latent: int
    width: int
    blocks: int
    dropout: float

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        """``(N, F) -> (N, d)``, unit rows."""
        h = nn.Dense(self.width)(x)
        for _ in range(self.blocks):
            h = ResidualBlock(self.dropout)(h, train=train)
        # W_head of eq. 4 has no bias, which also takes away the shortest way to the collapse phi(x) = c.
        return project_to_sphere(nn.Dense(self.latent, use_bias=False)(h))


class MLPEncoder(nn.Module):
    """Two hidden layers; without biases, so that it cannot map everything to one point by them (Ruff et al. 2018).

    Attributes:
        latent: d.
        width: of the hidden layers.
        sphere: whether rows of the output are normalised.
    """

    latent: int
    width: int
    sphere: bool

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        """``(N, F) -> (N, d)``."""
        del train
        for _ in range(2):
            x = nn.leaky_relu(nn.Dense(self.width, use_bias=False)(x))
        z = nn.Dense(self.latent, use_bias=False)(x)
        return project_to_sphere(z) if self.sphere else z


def mix(a: jax.Array, b: jax.Array, lam: jax.Array, mixup: Literal["slerp", "lerp"]) -> jax.Array:
    """Latent mixup with the paper's weights: eq. 5 puts lambda on ``b``, the linear path puts it on ``a``."""
    return slerp(a, b, lam) if mixup == "slerp" else lam * a + (1 - lam) * b


def shuffle(key: Key, mask: jax.Array) -> jax.Array:
    """A random permutation ``(N,)`` that maps rows with ``mask`` onto rows with ``mask``."""
    order = shuffled(key, mask)
    count = jnp.cumsum(mask)
    place = jnp.where(mask, count, count[-1] + jnp.cumsum(~mask)) - 1  # valid rows first, in order
    return order[place]


def geodesic_svdd(
    *,
    latent: int = 32,
    width: int = 128,
    blocks: int = 2,
    dropout: float = 0.1,
    mixup: Mixup = "slerp",
    kappa: float = 0.2,
) -> Model:
    """Single-centre SVDD on the sphere with latent mixup (Algorithm 1); the score is ``log(1 + |phi(x) - c|^2)``.

    The anchor is a client's mean embedding under the shared start; the centre c is the normalised mean over clients.
    The paper states none of the sizes nor kappa: the defaults are ours, and were chosen before any result was seen.

    Args:
        latent: d, at least 2.
        width: of the hidden layers.
        blocks: L.
        dropout: rate in [0, 1).
        mixup: along the great circle, along the chord, or none.
        kappa: of Beta(kappa, kappa), from which each batch draws lambda.

    Raises:
        ValueError: an argument out of its range.
    """
    if mixup not in ("slerp", "lerp", "none"):
        raise ValueError(f'mixup must be "slerp", "lerp" or "none", got {mixup!r}')
    if latent < 2 or width < 1 or blocks < 0 or not 0 <= dropout < 1 or not kappa > 0:
        raise ValueError(
            "want latent >= 2, width >= 1, blocks >= 0, 0 <= dropout < 1 and kappa > 0, "
            f"got {latent}, {width}, {blocks}, {dropout} and {kappa}"
        )
    return _svdd(SphericalEncoder(latent, width, blocks, dropout), project_to_sphere, mixup, kappa)


def mlp_svdd(*, latent: int = 32, width: int = 128, sphere: bool = False) -> Model:
    """Single-centre SVDD with an MLP, the paper's FedAvg baseline "with a standard MLP"; no mixup.

    Args:
        latent: d, at least 2.
        width: of the two hidden layers.
        sphere: normalise embeddings and centre ("SM" in our reading of the paper's tables), or leave them in the
            plane, where centre coordinates nearer to 0 than 0.1 are moved there (Ruff et al. 2018).

    Raises:
        ValueError: an argument out of its range.
    """
    if latent < 2 or width < 1:
        raise ValueError(f"want latent >= 2 and width >= 1, got {latent} and {width}")
    center = project_to_sphere if sphere else _away_from_zero
    return _svdd(MLPEncoder(latent, width, sphere), center, "none", 1.0)


def _away_from_zero(mean: jax.Array) -> jax.Array:
    return jnp.where((mean != 0) & (jnp.abs(mean) < 0.1), jnp.sign(mean) * 0.1, mean)


def _beta(key: Key, kappa: float) -> jax.Array:
    """What ``jax.random.beta(key, kappa, kappa)`` draws; both gammas in one loop, which compiles in half the time."""
    logs = jax.vmap(lambda k: jax.random.loggamma(k, kappa))(jax.random.split(key))
    first, second = jnp.exp(logs - jnp.max(logs))
    return first / (first + second)


def _svdd(network: nn.Module, center: Callable[[jax.Array], jax.Array], mixup: Mixup, kappa: float) -> Model:
    """Distance to a fixed centre, a function of the clients' mean embedding, as loss and score."""

    def embed(params: PyTree, x: jax.Array, **options: Any) -> jax.Array:
        return network.apply(params, x, **options)  # type: ignore[return-value]

    def init(key: Key, x: jax.Array) -> PyTree:
        return network.init(key, x)

    def anchor(params: PyTree, x: jax.Array, mask: jax.Array) -> jax.Array:
        z = embed(params, x)
        return jnp.sum(jnp.where(mask[:, None], z, 0), axis=0) / jnp.maximum(jnp.sum(mask), 1)

    def squared_distance(z: jax.Array, anchor: jax.Array) -> jax.Array:
        return jnp.sum((z - center(anchor)[None, :]) ** 2, axis=-1)

    def loss(key: Key, params: PyTree, anchor: jax.Array, x: jax.Array, mask: jax.Array) -> jax.Array:
        dropout_key, pair_key, lambda_key = jax.random.split(key, 3)
        z = embed(params, x, train=True, rngs={"dropout": dropout_key})
        if mixup != "none":
            lam = _beta(lambda_key, kappa)
            z = mix(z, z[shuffle(pair_key, mask)], lam, mixup)
        return jnp.sum(jnp.where(mask, squared_distance(z, anchor), 0)) / jnp.maximum(jnp.sum(mask), 1)

    def score(params: PyTree, anchor: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.log1p(squared_distance(embed(params, x), anchor))

    return Model(init, anchor, loss, score)
