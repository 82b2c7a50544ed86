"""What FedKAD is to be compared with, from the same moments: other subspaces, and regression without one.

A frame made here stands in for FedKAD's Z: ``fedkad(lift, ...).deploy(frame, None, data_k)`` gives a client's detector.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedgeo import trees
from fedgeo.algorithms import fedkad, koopman
from fedgeo.algorithms.moments import Moments
from manifolds import grassmann, stiefel

_matmul = functools.partial(jnp.matmul, precision="highest")


def pool(data: Moments) -> Moments:
    """One client in place of all: the mean of their moments a pair, leaves ``(K, ...)`` to ``(...)``, for one pair.

    Clients weigh the same, however many rows they have, as in FedKAD's objective; those without rows, and those whose
    moments are not finite, have no part.
    """
    counts = (data.pairs > 0) & trees.all_finite(data, batch_axes=1)
    data = trees.where(counts, data, jax.tree.map(jnp.zeros_like, data))
    share = counts / jnp.maximum(data.pairs, 1) / jnp.maximum(jnp.sum(counts), 1)
    sums = jax.tree.map(lambda leaf: jnp.einsum("k,k...->...", share, leaf, precision="highest"), data)
    return sums._replace(pairs=jnp.ones_like(sums.pairs))


def pooled_subspace(pooled: Moments, rank: int) -> jax.Array:
    """One-shot subspace: the leading eigenvectors of the pooled moments, ``(D, r)``.

    Every client uploads its ``D x D`` moments once; nothing is iterated.
    """
    return jnp.linalg.eigh(pooled.xx)[1][:, ::-1][:, :rank]


class _Descent(NamedTuple):
    frame: jax.Array
    of_frame: fedkad.Products
    loss: jax.Array
    step: jax.Array


def optimal_modes(pooled: Moments, frame: jax.Array, *, steps: int = 100, ridge: float = 1e-2) -> jax.Array:
    """Centralised optimal mode decomposition: descent of ``min_Q |Y - P Q P'X|`` over subspaces, all data in one place.

    A step that lowers the loss is kept and lengthened, one that does not is undone and halved.

    Args:
        pooled: from :func:`pool`, or one client's.
        frame: where to start, ``(D, r)`` orthonormal, such as :func:`pooled_subspace`.
        steps: products with the moments to spend.
        ridge: as for FedKAD.

    Returns:
        ``(D, r)``, orthonormal, with a loss that is not above the start's.

    References:
        Wynn, Pearson, Ganapathisubramani and Goulart (2013), Optimal mode decomposition for unsteady flows.
    """

    def judge(frame: jax.Array) -> tuple[fedkad.Products, jax.Array]:
        of_frame = fedkad.products(pooled, frame)
        return of_frame, fedkad.loss_of(pooled, frame, of_frame, fedkad.operator_of(frame, of_frame, ridge))

    def step(at: _Descent, _: None) -> tuple[_Descent, None]:
        operator = fedkad.operator_of(at.frame, at.of_frame, ridge)
        gradient = fedkad.gradient_of(pooled, at.of_frame, operator)
        direction = grassmann.project_horizontal(at.frame, gradient)
        frame = stiefel.retract(at.frame, -at.step * direction)
        of_frame, loss = judge(frame)
        better = loss < at.loss
        moved = _Descent(frame, of_frame, loss, 1.5 * at.step)
        stayed = at._replace(step=0.5 * at.step)
        return jax.tree.map(lambda new, old: jnp.where(better, new, old), moved, stayed), None

    of_frame, loss = judge(frame)
    # The curvature of the loss is at most about twice its largest eigenvalue over D; the trace bounds that.
    first = pooled.xx.shape[-1] * jnp.maximum(pooled.pairs, 1) / jnp.maximum(jnp.trace(pooled.xx), 1e-30)
    return jax.lax.scan(step, _Descent(frame, of_frame, loss, first), length=steps)[0].frame


def autoregression(lift: koopman.Lift, moments: Moments, *, ridge: float = 1e-2) -> koopman.Detector:
    """Vector autoregression by ridge: every entry of ``Phi(t+1)`` from the window ``z(t)``, without lift or subspace.

    Its scores are meant for ``residual="newest"`` and a horizon of 1.

    Args:
        lift: for the window's length; its features are not used.
        moments: of one client.
        ridge: relative to the mean eigenvalue of the window's moments.
    """
    size, wide = moments.xx.shape[-1], lift.wide
    gram = moments.xx[:wide, :wide]
    scale = jnp.trace(gram) / wide
    scale = jnp.where(scale > 0, scale, 1)
    eye = jnp.eye(wide, dtype=gram.dtype)
    factor = jax.scipy.linalg.cho_factor(gram / scale + ridge * eye, lower=True)
    readout = jax.scipy.linalg.cho_solve(factor, moments.yx[:, :wide].T / scale).T
    basis = jnp.eye(size, wide, dtype=gram.dtype)
    of_basis = fedkad.Products(moments.xx[:, :wide], moments.yx[:, :wide], moments.yx[:wide].T)
    variance = fedkad.residual_variance(moments, basis, of_basis, readout)
    return koopman.Detector(lift, basis, jnp.zeros((wide, wide), gram.dtype), readout, variance)
