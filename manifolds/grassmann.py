"""Grassmann manifold Gr(n, p): p-dimensional subspaces of R^n, each held as any frame ``(..., n, p)`` of it.

Points are the arrays of :mod:`manifolds.stiefel`, and its ``retract`` and ``random`` serve here too. Use this
geometry for objectives that do not change under ``X -> X O``.
"""

import jax
import jax.numpy as jnp

from manifolds._arrays import operation, safe_norm
from manifolds.linalg import matmul


@operation("X", "G", core=2)
def project_horizontal(X: jax.Array, G: jax.Array) -> jax.Array:
    """Orthogonal projection of G onto the horizontal space at X: ``G - X (X^T G)``.

    What is left moves the subspace and cannot turn the frame inside it, so descent on an objective that does
    depend on the frame, such as ``|X - Z|^2``, stalls: use :func:`manifolds.stiefel.project_tangent` there.

    Args:
        X: ``(..., n, p)`` frames.
        G: ``(..., n, p)`` any matrices.

    Returns:
        ``(..., n, p)`` with ``X^T V = 0``. Source: Edelman, Arias and Smith, "The geometry of algorithms with
        orthogonality constraints", 1998, equation (2.50).
    """
    return G - matmul(X, matmul(X.mT, G))


@operation("X", "Y", core=2)
def principal_angles(X: jax.Array, Y: jax.Array) -> jax.Array:
    """Principal angles between the subspaces of X and Y, ascending in ``[0, pi/2]``.

    The arctangent of the singular values of ``Y - X X^T Y`` (sines) over those of ``X^T Y`` (cosines); an
    arccosine would lose all angles below the root of rounding.

    Args:
        X: ``(..., n, p)`` frames.
        Y: ``(..., n, p)`` frames.

    Returns:
        ``(..., p)``. Derivatives are those of singular values and belong to distinct angles above 0: where two are
        equal, or one is 0, they hold rounding noise or NaN. :func:`dist` and :func:`squared_dist` have their own.
        Source: Björck and Golub, "Numerical methods for computing angles between linear subspaces", 1973.
    """
    cosines = jnp.linalg.svd(matmul(X.mT, Y), compute_uv=False)
    sines = jnp.linalg.svd(_across(X, Y), compute_uv=False)
    return jnp.arctan2(sines[..., ::-1], cosines)


@operation("X", "Y", core=2)
def dist(X: jax.Array, Y: jax.Array) -> jax.Array:
    """Geodesic distance of the subspaces of X and Y: the norm of the principal angles, ``(...)``.

    Gradient 0 where it is 0, as for ``Y = X``, where the distance has a corner: two frames that span one subspace to
    rounding alone may give any gradient of norm up to 1. Otherwise the derivatives are those of :func:`squared_dist`,
    which is also what to call for the square.
    """
    square = _squared_dist(X, Y)
    return jnp.where(square == 0, 0, jnp.sqrt(jnp.where(square == 0, 1, square)))


@operation("X", "Y", core=2)
def squared_dist(X: jax.Array, Y: jax.Array) -> jax.Array:
    """Sum of the squared principal angles: the square of :func:`dist`, smooth while no angle is a right one.

    Args:
        X: ``(..., n, p)`` frames.
        Y: ``(..., n, p)`` frames.

    Returns:
        ``(...)``. The gradients are horizontal, ``-2 log_X(Y)`` in X and ``-2 log_Y(X)`` in Y. First and second
        derivatives are exact at distinct angles, equal ones and ``Y = X`` alike; third ones are not available. With a
        right angle, where several shortest paths lead to Y, the gradient is that of one of them, and there are no
        second derivatives.
    """
    return _squared_dist(X, Y)


def _across(X: jax.Array, Y: jax.Array) -> jax.Array:
    """``Y - X X^T Y``, exactly 0 for ``Y = X``, whatever rounding the frame holds."""
    return Y - X - matmul(X, matmul(X.mT, Y - X))


@jax.custom_jvp
def _squared_dist(X: jax.Array, Y: jax.Array) -> jax.Array:
    # One SVD orders sines and cosines alike. Where it mixes directions of almost equal angles, the sum stays.
    _, cosines, Vt = jnp.linalg.svd(matmul(X.mT, Y))
    sines = safe_norm(matmul(_across(X, Y), Vt.mT), -2)[..., 0, :]
    return jnp.sum(jnp.arctan2(sines, cosines) ** 2, -1)


@_squared_dist.defjvp
def _squared_dist_jvp(
    primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    (X, Y), (dX, dY) = primals, tangents
    ratio = _angle_over_sine(matmul(X.mT, Y))
    log_x, log_y = matmul(_across(X, Y), ratio.mT), matmul(_across(Y, X), ratio)
    return _squared_dist(X, Y), -2 * jnp.sum(log_x * dX + log_y * dY, (-2, -1))


@jax.custom_jvp
def _angle_over_sine(M: jax.Array) -> jax.Array:
    """``U h(C) V^T`` for ``M = U C V^T`` with ``h(c) = arccos(c) / sqrt(1 - c^2)``, which is smooth at ``c = 1``."""
    U, c, Vt = jnp.linalg.svd(M)
    return matmul(U * _ratio(c)[..., None, :], Vt)


@_angle_over_sine.defjvp
def _angle_over_sine_jvp(
    primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    # In the bases U and V symmetric parts meet the difference quotients of h, and antisymmetric ones those of its odd
    # continuation (Noferini, "A formula for the Fréchet derivative of a generalized matrix function", 2017).
    U, c, Vt = jnp.linalg.svd(*primals)
    A = matmul(U.mT, matmul(tangents[0], Vt.mT))
    h, rows, columns = _ratio(c), c[..., :, None], c[..., None, :]
    apart = jnp.abs(rows - columns) > jnp.finfo(c.dtype).eps ** (1 / 3)
    quotient = (h[..., :, None] - h[..., None, :]) / jnp.where(apart, rows - columns, 1)
    even = jnp.where(apart, quotient, _ratio_slope((rows + columns) / 2))
    odd = (h[..., :, None] + h[..., None, :]) / (rows + columns)
    core = (even * (A + A.mT) + odd * (A - A.mT)) / 2
    return matmul(U * h[..., None, :], Vt), matmul(U, matmul(core, Vt))


def _ratio(c: jax.Array) -> jax.Array:
    sine = jnp.sqrt(jnp.maximum((1 - c) * (1 + c), jnp.finfo(c.dtype).tiny))
    return jnp.arctan2(sine, c) / sine


def _ratio_slope(c: jax.Array) -> jax.Array:
    """Derivative of the ratio; a series where the quotient would cancel."""
    e = 1 - c
    small = e < jnp.finfo(c.dtype).eps ** 0.25
    series = -(1 / 3 + e * (4 / 15 + e * (6 / 35 + e * 32 / 315)))
    return jnp.where(small, series, (c * _ratio(c) - 1) / jnp.where(small, 1, e * (1 + c)))
