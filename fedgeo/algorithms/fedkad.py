"""FedKAD: a federated low-rank Koopman model by ADMM on the Stiefel manifold. arXiv 2607.08978, Algorithm 1."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedgeo import trees
from fedgeo.algorithms import koopman
from fedgeo.algorithms.moments import Moments
from fedgeo.arguments import whole
from fedgeo.protocol import Cohort, FedAlgorithm, FedState, Key
from manifolds import grassmann, stiefel

Start = Literal["shared", "independent", "warm"]

POWER_ITERATIONS = 10
"""Exchanges of the warm start; each sends one more D x r matrix up and down."""

RECOMMENDED: Mapping[str, Any] = MappingProxyType(
    {"start": "warm", "residual": "newest", "scale": "variance", "smoothing": 20}
)
"""What to detect with: ``fedkad(lift, **RECOMMENDED)``; without it the settings are the paper's.

The newest row alone, in units of its own training residual, smoothed over a window's rows, in which the paper's
residual counts it too. How it was chosen and what it gains is in ``experiments/fedkad_scores.md``.
"""


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
    residual: koopman.Residual = "full",
    scale: koopman.Scale = "none",
    mean: Callable[[jax.Array, jax.Array], jax.Array] = trees.mean,
) -> FedAlgorithm:
    """FedKAD as a :class:`FedAlgorithm`; defaults are the paper's (section VI-A1, Table II).

    The server holds Z, each client P and Lambda, an upload is ``P + Lambda / rho`` (eq. 16). ``data`` are the clients'
    :class:`Moments`, ``score`` takes a stream ``(T, C)``. The local loss is divided by M D: only then does a step of
    0.05 stand in proportion to the penalty, and the paper's loss curves show the same scale.

    Every update reports, about the client after its local steps: ``local_loss`` (eq. 8), ``augmented_lagrangian`` (its
    term of eq. 12, with the Z it was sent), ``consensus_residual`` ``|P - Z|``, ``gradient_norm`` (Riemannian, of eq.
    18), ``orthonormality_error``, ``spectral_radius`` of Q, and ``lipschitz`` and ``convexity``, what the round's move
    says of L and mu in assumptions A1 and A2; see :func:`penalty_margin` and :func:`stationary`.

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
        residual: see :func:`koopman.residuals`; ``"full"`` is the paper's. For ``"newest"`` a client reads the next row
            off the shared subspace by a ridge regression of its own instead of ``Z Q``.
        scale: see :func:`koopman.residuals`; ``"none"`` is the paper's.
        mean: ``(uploads, weights) -> Z``, the mean of eq. 16; or a robust one, :func:`fedgeo.trees.median` or
            ``fedgeo.trees.trimmed_mean(0.1)``.

    Raises:
        ValueError: an argument out of its range, or a rank above D.
    """
    if not isinstance(lift, koopman.Lift):
        raise ValueError(f"lift must be a Lift, such as fedgeo.random_lift makes, got {lift!r}")
    size = lift.dimension
    rank = whole("rank", rank, 1)
    if rank > size:
        raise ValueError(f"rank must lie between 1 and the lifted dimension D = {size}, got {rank}")
    for name, value in {
        "rho": rho,
        "step_size": step_size,
        "ridge": ridge,
        "spectral_cap": spectral_cap,
    }.items():
        if not isinstance(value, jax.core.Tracer) and not 0 < value < math.inf:  # a swept penalty is traced
            raise ValueError(f"{name} must be positive and finite, got {value}")
    inner_steps = whole("inner_steps", inner_steps, 1)
    horizon, smoothing = whole("horizon", horizon, 1), whole("smoothing", smoothing, 1)
    if start not in ("shared", "independent", "warm"):
        raise ValueError(f'start must be "shared", "independent" or "warm", got {start!r}')
    if projection not in ("horizontal", "tangent"):
        raise ValueError(f'projection must be "horizontal" or "tangent", got {projection!r}')
    if residual not in ("full", "newest"):
        raise ValueError(f'residual must be "full" or "newest", got {residual!r}')
    if scale not in ("none", "variance", "log"):
        raise ValueError(f'scale must be "none", "variance" or "log", got {scale!r}')
    project = grassmann.project_horizontal if projection == "horizontal" else stiefel.project_tangent

    def init(key: Key, data: Moments) -> FedState:
        if not isinstance(data, Moments):
            raise ValueError(
                f"FedKAD trains on the moments of its lift, got {type(data).__name__}; "
                "pass fedgeo.prepare(lift, series)"
            )
        if data.xx.shape[-1] != size:
            raise ValueError(
                f"the moments are of a lift with D = {data.xx.shape[-1]}, and FedKAD was made with one of D = {size}; "
                "prepare them with the same lift"
            )
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
        start = products(data_k, client.frame)
        operator = operator_of(client.frame, start, ridge)

        def subproblem(frame: jax.Array, of_frame: Products) -> tuple[jax.Array, jax.Array]:
            """Gradients of the local loss and of eq. 18, both up to what every projection removes."""
            loss = gradient_of(data_k, of_frame, operator)
            return loss, loss + rho * (frame - server) + client.dual

        def step(carry: tuple[jax.Array, Products], _: None) -> tuple[tuple[jax.Array, Products], None]:
            frame, of_frame = carry
            direction = project(frame, subproblem(frame, of_frame)[1])
            frame = stiefel.retract(frame, -step_size * direction)
            return (frame, products(data_k, frame)), None

        (frame, end), _ = jax.lax.scan(step, (client.frame, start), length=inner_steps)
        (before, _), (after, full) = subproblem(client.frame, start), subproblem(frame, end)
        move, gap = frame - client.frame, frame - server
        change = stiefel.project_tangent(frame, after) - stiefel.project_tangent(client.frame, before)
        loss = loss_of(data_k, frame, end, operator)
        metrics = {
            "local_loss": loss,
            "augmented_lagrangian": loss + jnp.sum(client.dual * gap) + rho / 2 * jnp.sum(gap * gap),
            "consensus_residual": jnp.linalg.norm(gap),
            "gradient_norm": jnp.linalg.norm(stiefel.project_tangent(frame, full)),
            "orthonormality_error": orthonormality_error(frame),
            "spectral_radius": koopman.spectral_radius(operator),
            "lipschitz": _ratio(jnp.linalg.norm(change), jnp.linalg.norm(move)),
            "convexity": rho + _ratio(jnp.sum(change * move), jnp.sum(move * move)),
        }
        return FedKADClient(frame, client.dual), frame + client.dual / rho, metrics

    def weight(data_k: Moments) -> jax.Array:
        return (data_k.pairs > 0).astype(data_k.xx.dtype)

    def aggregate(server: jax.Array, uploads: jax.Array, weights: jax.Array, cohort: Cohort) -> jax.Array:
        del server, cohort
        return mean(uploads, weights)  # eq. 16

    def sync(server: jax.Array, client: FedKADClient) -> FedKADClient:
        return FedKADClient(client.frame, client.dual + rho * (client.frame - server))  # eq. 14

    def deploy(server: jax.Array, client: FedKADClient, data_k: Moments) -> koopman.Detector:
        del client
        basis = stiefel.project(server)  # a mean of orthonormal frames is not one
        of_basis = products(data_k, basis)
        operator = koopman.cap_spectrum(operator_of(basis, of_basis, ridge), spectral_cap)
        detector = koopman.Detector(lift, basis, operator)
        if residual == "newest":
            detector = detector._replace(readout=_readout(basis, of_basis, ridge))
        if scale != "none":
            detector = detector._replace(
                variance=residual_variance(data_k, basis, of_basis, detector.predicts())
            )
        return detector

    def score(detector: koopman.Detector, x: jax.Array) -> jax.Array:
        errors = koopman.residuals(detector, x, horizon=horizon, residual=residual, scale=scale)
        return koopman.smooth(errors, smoothing)

    merge = trees.mean if mean is trees.mean else None
    return FedAlgorithm(init, update, weight, aggregate, sync, deploy, score, merge)


def power_iterations(frame: jax.Array, data: Moments) -> jax.Array:
    """Turn a frame ``(D, r)`` towards the leading subspace of the clients' mean second moments, leaves ``(K, ...)``.

    Each client sends only its ``D x r`` product. A client without rows, or with moments that are not finite, has no
    part in it.
    """
    scale, moments = _mean_weights(data)
    trace = jnp.sum(scale * jnp.trace(moments, axis1=1, axis2=2))
    shift = jnp.where(trace > 0, 1e-4 * trace, 1)  # keeps a singular product orthonormalisable

    def step(frame: jax.Array, _: None) -> tuple[jax.Array, None]:
        product = jnp.einsum("k,kij,jr->ir", scale, moments, frame, precision="highest")
        return stiefel.qf(stiefel.qf(product + shift * frame)), None

    return jax.lax.scan(step, frame, length=POWER_ITERATIONS)[0]


def _mean_weights(data: Moments) -> tuple[jax.Array, jax.Array]:
    """``1 / M`` by client, 0 for one left out of the mean, and the moments that it multiplies, all finite."""
    counts = (data.pairs > 0) & trees.all_finite(data, batch_axes=1)
    scale = jnp.where(counts, 1 / jnp.maximum(data.pairs, 1), 0)
    return scale, jnp.where(counts[:, None, None], data.xx, 0)


def rank_by_energy(data: Moments, energy: float, *, most: int, key: Key) -> int:
    """Smallest rank whose subspace holds a share of the clients' mean second moments; for ``fedkad(rank=...)``.

    The leading eigenvalues of the pooled moments (the squared singular values of the pooled snapshots) come from the
    exchanges of the warm start, ``D x most`` numbers each; no client sends its moments. Runs on the host, because a
    rank is a shape.

    Args:
        data: all clients' moments, leaves ``(K, ...)``.
        energy: share of the trace in (0, 1].
        most: largest rank considered, also the answer where even that holds less.
        key: seeds the start.

    Raises:
        ValueError: an argument out of its range.
    """
    size = data.xx.shape[-1]
    if not 0 < energy <= 1:
        raise ValueError(f"energy must be a share in (0, 1], got {energy}")
    if not 1 <= most <= size:
        raise ValueError(f"most must lie between 1 and the lifted dimension D = {size}, got {most}")
    scale, moments = _mean_weights(data)
    frame = power_iterations(stiefel.random(key, (size, most), data.xx.dtype), data)
    reduced = jnp.einsum("k,ir,kij,js->rs", scale, frame, moments, frame, precision="highest")
    values = np.clip(np.linalg.eigvalsh(np.asarray(reduced, np.float64))[::-1], 0, None)
    total = float(jnp.sum(scale * jnp.trace(moments, axis1=1, axis2=2)))
    enough = np.flatnonzero(np.cumsum(values) >= energy * total * (1 - 1e-6))
    return int(enough[0]) + 1 if len(enough) else most


def stationary(
    metrics: dict[str, jax.Array], weight: jax.Array, *, consensus: float, gradient: float
) -> jax.Array:
    """The stopping rule: whether a round left its clients at a stationary point in consensus, ``(R,)``.

    Means over the clients that counted, of the consensus residual and of the norm of the Riemannian gradient, must both
    be at most their tolerance. ``fit(..., stop=...)`` takes it between blocks of rounds of one compiled program: a loop
    that stops by itself inside the program would give up the history's fixed shape.

    Args:
        metrics: of a history, leaves ``(R, S)``.
        weight: ``(R, S)``, of a history.
        consensus: largest mean of ``|P - Z|``.
        gradient: largest mean of the gradient's norm.
    """
    counts = weight > 0
    number = jnp.maximum(jnp.sum(counts, axis=-1), 1)

    def mean(name: str) -> jax.Array:
        return jnp.sum(jnp.where(counts, metrics[name], 0), axis=-1) / number

    small = (mean("consensus_residual") <= consensus) & (mean("gradient_norm") <= gradient)
    return small & jnp.any(counts, axis=-1)


def penalty_margin(metrics: dict[str, jax.Array], rho: float) -> jax.Array:
    """``rho mu / (2 L^2)`` along the iterates: theorem V.5 asks for more than 1. Elementwise over the metrics.

    L and mu are what each round's move shows of the curvature of the loss at fixed Q, so a value above 1 is evidence
    and no proof, and one below 1 a counterexample along this path. Infinite where the gradient did not change.
    """
    curvature = 2 * metrics["lipschitz"] ** 2
    return jnp.where(
        curvature > 0, rho * metrics["convexity"] / jnp.where(curvature > 0, curvature, 1), jnp.inf
    )


def diagnose(
    server: jax.Array, clients: FedKADClient, data: Moments, *, rho: float, ridge: float = 1e-2
) -> dict[str, jax.Array]:
    """The state of a whole federation, whoever took part: the three curves of the paper's Fig. 5.

    Args:
        server: Z, ``(D, r)``.
        clients: leaves ``(K, ...)``.
        data: leaves ``(K, ...)``; clients without rows are left out.
        rho: ADMM penalty.
        ridge: of the operators.

    Returns:
        ``consensus_residual``, the mean of ``|P - Z|``; ``augmented_lagrangian``, eq. 12; ``local_objective``, the sum
        of the local losses with Q refitted to P.
    """

    def one(item: tuple[FedKADClient, Moments]) -> tuple[jax.Array, jax.Array, jax.Array]:
        client, data_k = item
        of_frame = products(data_k, client.frame)
        loss = loss_of(data_k, client.frame, of_frame, operator_of(client.frame, of_frame, ridge))
        gap = client.frame - server
        penalty = jnp.sum(client.dual * gap) + rho / 2 * jnp.sum(gap * gap)
        return jnp.linalg.norm(gap), loss + penalty, loss

    counts = data.pairs > 0
    gap, lagrangian, loss = (jnp.where(counts, part, 0) for part in jax.lax.map(one, (clients, data)))
    return {
        "consensus_residual": jnp.sum(gap) / jnp.maximum(jnp.sum(counts), 1),
        "augmented_lagrangian": jnp.sum(lagrangian),
        "local_objective": jnp.sum(loss),
    }


class Products(NamedTuple):
    """A client's moments times a frame P; all that a step needs of the data.

    Attributes:
        xx: ``X X' P``, ``(D, r)``.
        yx: ``Y X' P``, ``(D, r)``.
        xy: ``X Y' P``, ``(D, r)``.
    """

    xx: jax.Array
    yx: jax.Array
    xy: jax.Array


def products(moments: Moments, frame: jax.Array) -> Products:
    """The three large matrix products of a step, 6 D^2 r operations; everything else is small.

    The tall factor stands on the left and transposed: on a CPU the square matrices are then packed along their rows.
    """
    rows = frame.T
    xx = _matmul(rows, moments.xx).T  # symmetric
    return Products(xx, _matmul(rows, moments.yx.T).T, _matmul(rows, moments.yx).T)


def _matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.matmul(a, b, precision="highest")


def _ratio(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.where(b > 0, a / jnp.where(b > 0, b, 1), 0)


def _pair_scale(moments: Moments) -> jax.Array:
    return 1 / (jnp.maximum(moments.pairs, 1) * moments.xx.shape[-1])


def operator_of(frame: jax.Array, of_frame: Products, ridge: float) -> jax.Array:
    """:func:`fit_frame` from products already made."""
    return koopman.fit_operator(_matmul(frame.T, of_frame.xx), _matmul(frame.T, of_frame.yx), ridge)


def _readout(frame: jax.Array, of_frame: Products, ridge: float) -> jax.Array:
    """``(D, r)``: ridge regression of all of ``Phi(t+1)`` on ``P' Phi(t)``."""
    return koopman.fit_operator(_matmul(frame.T, of_frame.xx), of_frame.yx, ridge)


def loss_of(moments: Moments, frame: jax.Array, of_frame: Products, operator: jax.Array) -> jax.Array:
    """:func:`local_loss` from products already made."""
    pap, pbp = _matmul(frame.T, of_frame.xx), _matmul(frame.T, of_frame.yx)
    loss = jnp.sum(moments.yy) - 2 * jnp.sum(pbp * operator) + jnp.sum(_matmul(operator, pap) * operator)
    return loss * _pair_scale(moments)


def gradient_of(moments: Moments, of_frame: Products, operator: jax.Array) -> jax.Array:
    """:func:`local_gradient` from products already made."""
    curvature = _matmul(of_frame.xx, _matmul(operator.T, operator))
    forward, backward = _matmul(of_frame.yx, operator.T), _matmul(of_frame.xy, operator)
    return 2 * (curvature - forward - backward) * _pair_scale(moments)


def fit_frame(moments: Moments, frame: jax.Array, ridge: float) -> jax.Array:
    """The reduced operator ``(r, r)`` that suits a frame ``(D, r)`` best, eq. 10."""
    return operator_of(frame, products(moments, frame), ridge)


def local_loss(moments: Moments, frame: jax.Array, operator: jax.Array) -> jax.Array:
    """``|Y - P Q P'X|_F^2 / (M D)``, eq. 8, for an orthonormal frame."""
    return loss_of(moments, frame, products(moments, frame), operator)


def local_gradient(moments: Moments, frame: jax.Array, operator: jax.Array) -> jax.Array:
    """Gradient of :func:`local_loss` in P up to terms ``P S``, S symmetric, which every projection here removes."""
    return gradient_of(moments, products(moments, frame), operator)


VARIANCE_FLOOR = 1e-2
"""Share of the mean variance below which an entry's own counts as this: a constant channel gives no infinite score."""

ROUNDING_FLOOR = 1e-5
"""Share of the mean square below which a variance is rounding: it is a difference of float32 sums."""


def residual_variance(
    moments: Moments, basis: jax.Array, of_basis: Products, readout: jax.Array
) -> jax.Array:
    """Mean squared training residual of every entry of ``Phi(t+1) - readout basis' Phi(t)``, from the moments alone.

    ``diag(Y Y') - 2 diag(R P'X Y') + diag(R P'X X'P R')``, over M, not below the two floors.

    Args:
        moments: of one client.
        basis: P, ``(D, r)``.
        of_basis: its products with the moments.
        readout: R, ``(D, r)``.

    Returns:
        ``(D,)``, positive; ones for a client without rows.
    """
    explained = _matmul(readout, _matmul(basis.T, of_basis.xx)) - 2 * of_basis.yx
    variance = (moments.yy + jnp.sum(explained * readout, axis=-1)) / jnp.maximum(moments.pairs, 1)
    variance = jnp.maximum(variance, 0)
    power = jnp.mean(moments.yy) / jnp.maximum(moments.pairs, 1)
    floor = jnp.maximum(VARIANCE_FLOOR * jnp.mean(variance), ROUNDING_FLOOR * power)
    return jnp.where(floor > 0, jnp.maximum(variance, floor), 1)


def orthonormality_error(frame: jax.Array) -> jax.Array:
    """``max |P'P - I|``."""
    gram = _matmul(frame.T, frame)
    return jnp.max(jnp.abs(gram - jnp.eye(gram.shape[-1], dtype=gram.dtype)))
