"""Grassmann manifold Gr(n, p): p-dimensional subspaces of R^n, each given by any frame ``(..., n, p)`` of it."""

import jax

from manifolds._arrays import operation
from manifolds.linalg import matmul


@operation("X", "G", core=2)
def project_horizontal(X: jax.Array, G: jax.Array) -> jax.Array:
    """Orthogonal projection onto the horizontal space at X: ``G - X (X^T G)``."""
    return G - matmul(X, matmul(X.mT, G))
