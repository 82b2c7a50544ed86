"""FedKAD: a federated low-rank Koopman model by ADMM on the Stiefel manifold. arXiv 2607.08978, Algorithm 1."""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedgeo import trees
from fedgeo.algorithms import koopman
from fedgeo.algorithms.moments import Moments
from fedgeo.protocol import Cohort, FedAlgorithm, FedState, Key
from manifolds import grassmann, stiefel

Start = Literal["shared", "independent", "warm"]

POWER_ITERATIONS = 10
"""Exchanges of the warm start; each sends one more D x r matrix up and down."""


class FedKADClient(NamedTuple):
    """One client's ADMM variables, ``(D, r)`` each.

    Attributes:
        frame: P, orthonormal.
        dual: Lambda.
    """

    frame: jax.Array
    dual: jax.Array


def fedkad(
    lift: koopman.Lift,
    *,
    rank: int = 24,
    rho: float = 1.0,
    step_size: float = 0.05,
    inner_steps: int = 5,
    ridge: float = 1e-2,
    projection: Literal["horizontal", "tangent"] = "horizontal",
    start: Start = "shared",
    spectral_cap: float = 0.995,
    horizon: int = 1,
    smoothing: int = 5,
) -> FedAlgorithm:
    """FedKAD as a :class:`FedAlgorithm`; defaults are the paper's (section VI-A1, Table II).

    The server holds Z, each client P and Lambda, an upload is ``P + Lambda / rho`` (eq. 16). ``data`` are the clients'
    :class:`Moments`, ``score`` takes a stream ``(T, C)``. The local loss is divided by M D: only then does a step of
    0.05 stand in proportion to the penalty, and the paper's loss curves show the same scale.

    Args:
        lift: the observables of eq. 7, shared by all clients.
        rank: r.
        rho: ADMM penalty.
        step_size: eta of eq. 20.
        inner_steps: C of Algorithm 1.
        ridge: see :func:`koopman.fit_operator`.
        projection: ``"horizontal"`` is eq. 19, which cannot rotate a frame within its span; ``"tangent"`` is the
            Riemannian gradient on the Stiefel manifold.
        start: all clients from one random frame (``"shared"``), each from its own (``"independent"``), the paper does
            not say which; or all from the leading subspace of the clients' mean second moments (``"warm"``, ours),
            found by :data:`POWER_ITERATIONS` exchanges before the first round.
        spectral_cap: bound on the spectral radius of the deployed operators.
        horizon: H of the score.
        smoothing: rows of the causal moving mean over scores, 1 for none.

    Raises:
        ValueError: an argument out of its range, or a rank above D.
    """
    size = sum(lift.weight.shape)
    if not 1 <= rank <= size:
        raise ValueError(f"rank must lie between 1 and the lifted dimension D = {size}, got {rank}")
    for name, value in {
        "rho": rho,
        "step_size": step_size,
        "ridge": ridge,
        "spectral_cap": spectral_cap,
    }.items():
        if not isinstance(value, jax.core.Tracer) and not value > 0:  # a swept penalty is traced
            raise ValueError(f"{name} must be positive, got {value}")
    for name, count in {"inner_steps": inner_steps, "horizon": horizon, "smoothing": smoothing}.items():
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")
    if start not in ("shared", "independent", "warm"):
        raise ValueError(f'start must be "shared", "independent" or "warm", got {start!r}')
    if projection not in ("horizontal", "tangent"):
        raise ValueError(f'projection must be "horizontal" or "tangent", got {projection!r}')
    project = grassmann.project_horizontal if projection == "horizontal" else stiefel.project_tangent

    def init(key: Key, data: Moments) -> FedState:
        num_clients = data.pairs.shape[0]
        server = stiefel.random(key, (size, rank), data.xx.dtype)
        if start == "warm":
            server = power_iterations(server, data)
        if start == "independent":
            keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(num_clients))
            frames = jax.vmap(lambda k: stiefel.random(k, (size, rank), data.xx.dtype))(keys)
        else:
            frames = jnp.broadcast_to(server, (num_clients, size, rank))
        return FedState(server, FedKADClient(frames, jnp.zeros_like(frames)))

    def update(
        key: Key, server: jax.Array, client: FedKADClient, data_k: Moments
    ) -> tuple[FedKADClient, jax.Array, dict[str, jax.Array]]:
        del key
        operator = fit_frame(data_k, client.frame, ridge)

        def step(frame: jax.Array, _: None) -> tuple[jax.Array, None]:
            gradient = local_gradient(data_k, frame, operator)
            gradient = gradient + rho * (frame - server) + client.dual  # of eq. 18
            return stiefel.retract(frame, -step_size * project(frame, gradient)), None

        frame, _ = jax.lax.scan(step, client.frame, length=inner_steps)
        metrics = {
            "local_loss": local_loss(data_k, frame, operator),
            "consensus_residual": jnp.linalg.norm(frame - server),
            "orthonormality_error": orthonormality_error(frame),
        }
        return FedKADClient(frame, client.dual), frame + client.dual / rho, metrics

    def weight(data_k: Moments) -> jax.Array:
        return (data_k.pairs > 0).astype(data_k.xx.dtype)

    def aggregate(server: jax.Array, uploads: jax.Array, weights: jax.Array, cohort: Cohort) -> jax.Array:
        del server, cohort
        return trees.mean(uploads, weights)  # eq. 16

    def sync(server: jax.Array, client: FedKADClient) -> FedKADClient:
        return FedKADClient(client.frame, client.dual + rho * (client.frame - server))  # eq. 14

    def deploy(server: jax.Array, client: FedKADClient, data_k: Moments) -> koopman.Detector:
        del client
        basis = stiefel.project(server)  # a mean of orthonormal frames is not one
        operator = koopman.cap_spectrum(fit_frame(data_k, basis, ridge), spectral_cap)
        return koopman.Detector(lift, basis, operator)

    def score(detector: koopman.Detector, x: jax.Array) -> jax.Array:
        return koopman.smooth(koopman.residuals(detector, x, horizon=horizon), smoothing)

    return FedAlgorithm(init, update, weight, aggregate, sync, deploy, score)


def power_iterations(frame: jax.Array, data: Moments) -> jax.Array:
    """Turn a frame ``(D, r)`` towards the leading subspace of the clients' mean second moments, leaves ``(K, ...)``.

    Each client sends only its ``D x r`` product. A client without rows, or with moments that are not finite, has no
    part in it.
    """
    counts = (data.pairs > 0) & trees.all_finite(data, batch_axes=1)
    scale = jnp.where(counts, 1 / jnp.maximum(data.pairs, 1), 0)
    moments = jnp.where(counts[:, None, None], data.xx, 0)
    trace = jnp.sum(scale * jnp.trace(moments, axis1=1, axis2=2))
    shift = jnp.where(trace > 0, 1e-4 * trace, 1)  # keeps a singular product orthonormalisable

    def step(frame: jax.Array, _: None) -> tuple[jax.Array, None]:
        product = jnp.einsum("k,kij,jr->ir", scale, moments, frame, precision="highest")
        return stiefel.qf(stiefel.qf(product + shift * frame)), None

    return jax.lax.scan(step, frame, length=POWER_ITERATIONS)[0]


def _pair_scale(moments: Moments) -> jax.Array:
    return 1 / (jnp.maximum(moments.pairs, 1) * moments.xx.shape[-1])


def _apply(matrix: jax.Array, frame: jax.Array) -> jax.Array:
    return jnp.matmul(matrix, frame, precision="highest")


def fit_frame(moments: Moments, frame: jax.Array, ridge: float) -> jax.Array:
    """The reduced operator ``(r, r)`` that suits a frame ``(D, r)`` best, eq. 10."""
    pap = _apply(frame.T, _apply(moments.xx, frame))
    pbp = _apply(frame.T, _apply(moments.yx, frame))
    return koopman.fit_operator(pap, pbp, ridge)


def local_loss(moments: Moments, frame: jax.Array, operator: jax.Array) -> jax.Array:
    """``|Y - P Q P'X|_F^2 / (M D)``, eq. 8, for an orthonormal frame."""
    pap = _apply(frame.T, _apply(moments.xx, frame))
    pbp = _apply(frame.T, _apply(moments.yx, frame))
    loss = moments.yy - 2 * jnp.sum(pbp * operator) + jnp.sum(_apply(operator, pap) * operator)
    return loss * _pair_scale(moments)


def local_gradient(moments: Moments, frame: jax.Array, operator: jax.Array) -> jax.Array:
    """Gradient of :func:`local_loss` in P up to terms ``P S``, S symmetric, which every projection here removes."""
    forward = _apply(_apply(moments.yx, frame), operator.T)
    backward = _apply(_apply(moments.yx.T, frame), operator)
    curvature = _apply(_apply(moments.xx, frame), _apply(operator.T, operator))
    return 2 * (curvature - forward - backward) * _pair_scale(moments)


def orthonormality_error(frame: jax.Array) -> jax.Array:
    """``max |P'P - I|``."""
    gram = _apply(frame.T, frame)
    return jnp.max(jnp.abs(gram - jnp.eye(gram.shape[-1], dtype=gram.dtype)))
