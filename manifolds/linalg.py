"""Dense linear algebra of small matrices out of matrix products alone.

Batched LAPACK calls are slow for small matrices, deadlock in some JAX versions when two of them meet in one
program on two cores, and have no fast counterpart on accelerators. The factorisations here are recursions over
2 x 2 blocks that end in scalars: they differentiate to any order and need neither pivots nor loops.
"""

import functools

import jax
import jax.numpy as jnp

matmul = functools.partial(jnp.matmul, precision="highest")


def sym(A: jax.Array) -> jax.Array:
    """Symmetric part ``(A + A^T) / 2``."""
    return (A + A.mT) / 2


def inverse_cholesky(G: jax.Array) -> jax.Array:
    """Inverse of the lower Cholesky factor: ``inv(L)`` with ``G = L L^T``.

    Then ``inv(G) = inv(L)^T inv(L)``. With blocks ``G = [[A, B^T], [B, C]]`` and ``M = B inv(L_A)^T`` the Schur
    complement is ``S = C - M M^T`` and ``inv(L) = [[inv(L_A), 0], [-inv(L_S) M inv(L_A), inv(L_S)]]``.

    Args:
        G: ``(..., p, p)`` symmetric positive definite; only the lower triangle is read.

    Returns:
        ``(..., p, p)`` lower triangular with positive diagonal. NaN or infinite where ``G`` is not positive
        definite. The program grows linearly with p, so p should stay below a few hundred.
    """
    p = G.shape[-1]
    if p == 1:
        return 1 / jnp.sqrt(G)
    h = p // 2
    A = inverse_cholesky(G[..., :h, :h])
    M = matmul(G[..., h:, :h], A.mT)
    S = inverse_cholesky(G[..., h:, h:] - matmul(M, M.mT))
    return _blocks(A, jnp.zeros_like(M.mT), -matmul(S, matmul(M, A)), S)


def _blocks(A: jax.Array, B: jax.Array, C: jax.Array, D: jax.Array) -> jax.Array:
    return jnp.concatenate([jnp.concatenate([A, B], -1), jnp.concatenate([C, D], -1)], -2)
