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
        ``(..., p)``. Derivatives are those of singular values: NaN where two angles are equal.
        Source: Björck and Golub, "Numerical methods for computing angles between linear subspaces", 1973.
    """
    overlap = matmul(X.mT, Y)
    cosines = jnp.linalg.svd(overlap, compute_uv=False)
    sines = jnp.linalg.svd(Y - matmul(X, overlap), compute_uv=False)
    return jnp.arctan2(sines[..., ::-1], cosines)


@operation("X", "Y", core=2)
def dist(X: jax.Array, Y: jax.Array) -> jax.Array:
    """Geodesic distance of the subspaces of X and Y: the norm of the principal angles, ``(...)``."""
    return safe_norm(principal_angles(X, Y), -1)[..., 0]
