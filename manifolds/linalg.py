"""Inverses of small matrices out of matrix products alone.

Batched LAPACK calls are slow for small matrices, deadlock in some JAX versions when two of them meet in
one program on two cores, and have no fast counterpart on accelerators. What is here loops a fixed number of
times over matrix products: no pivots, no library calls, derivatives of any order, short programs.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from manifolds._arrays import leading_axes

matmul = functools.partial(jnp.matmul, precision="highest")


def sym(A: jax.Array) -> jax.Array:
    """Symmetric part ``(A + A^T) / 2`` of ``(..., p, p)``."""
    return (A + A.mT) / 2


def identity(like: jax.Array) -> jax.Array:
    """Identity matrix that broadcasts against ``(..., n, p)``: shape ``(1, ..., p, p)``."""
    return leading_axes(jnp.eye(like.shape[-1], dtype=like.dtype), like.ndim)


def _check_square(name: str, A: jax.Array) -> None:
    if A.ndim < 2 or A.shape[-1] != A.shape[-2]:
        raise ValueError(f"{name}: expected square matrices (..., p, p), got shape {A.shape}")
    if not jnp.issubdtype(A.dtype, jnp.floating):
        raise TypeError(
            f"{name}: expected a real floating dtype, got {A.dtype}; cast it with astype(jnp.float32)"
        )


@jax.jit
def inverse_cholesky(G: jax.Array) -> jax.Array:
    """Inverse ``inv(L)`` of the Cholesky factor of ``G = L L^T``; then ``inv(G) = inv(L)^T inv(L)``.

    Grown by block rows: with N the inverse factor of the leading part, ``[B, C]`` the next rows of G up to the
    diagonal and ``M = B N^T``, the new rows are ``inv(L_S) [-M N, I]`` for the Schur complement
    ``S = C - M M^T``.

    Args:
        G: ``(..., p, p)`` symmetric positive definite.

    Returns:
        ``(..., p, p)`` lower triangular with a positive diagonal; not finite where ``G`` is not positive
        definite.
    """
    _check_square("inverse_cholesky", G)

    def grow(index: jax.Array, N: jax.Array, eye: jax.Array, padded: jax.Array) -> jax.Array:
        rows, here = _block_rows(padded, index), _block_rows(eye, index)
        M = matmul(rows, N.mT)
        S = _block_columns(rows, index) - matmul(M, M.mT)
        new = matmul(_small_inverse_cholesky(S), here - matmul(M, N))
        return jax.lax.dynamic_update_slice_in_dim(N, new, index * _BLOCK, -2)

    return _by_blocks(grow, G)


@jax.jit
def inverse(M: jax.Array) -> jax.Array:
    """Inverse of a matrix whose symmetric part is positive definite, by block elimination without pivots.

    Grown by bordering: with N the inverse of the leading part, ``[[A, B], [C, D]]`` the part one block larger
    and ``S = D - C N B``, add ``[N B; -I] inv(S) [C N, -I]``. Positive definiteness passes on to S, so no
    pivot vanishes; two Newton steps ``N <- N (2 I - M N)`` undo the growth of the entries under a large
    antisymmetric part.

    Args:
        M: ``(..., p, p)`` with ``sym(M)`` positive definite.

    Returns:
        ``(..., p, p)``; meaningless where ``sym(M)`` is not positive definite.
    """
    _check_square("inverse", M)

    def grow(index: jax.Array, N: jax.Array, eye: jax.Array, padded: jax.Array) -> jax.Array:
        rows, here = _block_rows(padded, index), _block_rows(eye, index)
        NB = matmul(N, _block_columns(padded, index))
        CN = matmul(rows, N)
        S = _block_columns(rows, index) - matmul(rows, NB)
        return N + matmul(NB - here.mT, matmul(_small_inverse(S), CN - here))

    N = _by_blocks(grow, M)
    for _ in range(2):
        N = 2 * N - matmul(N, matmul(M, N))
    return N


_BLOCK = 4  # the fastest of 4, 8 and 12 to compile and to run, at p = 24 and 64


def _by_blocks(grow: Callable[..., jax.Array], A: jax.Array) -> jax.Array:
    """Fold ``grow`` over the diagonal blocks of A, from zeros; one block is compiled, however large A is."""
    p = A.shape[-1]
    rest = -p % _BLOCK
    eye = jnp.eye(p + rest, dtype=A.dtype)
    padded = jnp.pad(A, [(0, 0)] * (A.ndim - 2) + [(0, rest)] * 2) + leading_axes(eye.at[:p].set(0), A.ndim)
    eye = leading_axes(eye, A.ndim)

    def step(index: jax.Array, N: jax.Array) -> jax.Array:
        return grow(index, N, eye, padded)

    return jax.lax.fori_loop(0, (p + rest) // _BLOCK, step, jnp.zeros_like(padded))[..., :p, :p]


def _block_rows(A: jax.Array, index: jax.Array) -> jax.Array:
    return jax.lax.dynamic_slice_in_dim(A, index * _BLOCK, _BLOCK, -2)


def _block_columns(A: jax.Array, index: jax.Array) -> jax.Array:
    return jax.lax.dynamic_slice_in_dim(A, index * _BLOCK, _BLOCK, -1)


def _small_inverse_cholesky(G: jax.Array) -> jax.Array:
    h = G.shape[-1] // 2
    if h == 0:
        return 1 / jnp.sqrt(G)
    A = _small_inverse_cholesky(G[..., :h, :h])
    M = matmul(G[..., h:, :h], A.mT)
    S = _small_inverse_cholesky(G[..., h:, h:] - matmul(M, M.mT))
    return _assemble(A, jnp.zeros_like(M.mT), -matmul(S, matmul(M, A)), S)


def _small_inverse(M: jax.Array) -> jax.Array:
    h = M.shape[-1] // 2
    if h == 0:
        return 1 / M
    A = _small_inverse(M[..., :h, :h])
    E, F = matmul(A, M[..., :h, h:]), matmul(M[..., h:, :h], A)
    S = _small_inverse(M[..., h:, h:] - matmul(M[..., h:, :h], E))
    SF = matmul(S, F)
    return _assemble(A + matmul(E, SF), -matmul(E, S), -SF, S)


def _assemble(A: jax.Array, B: jax.Array, C: jax.Array, D: jax.Array) -> jax.Array:
    return jnp.concatenate([jnp.concatenate([A, B], -1), jnp.concatenate([C, D], -1)], -2)


@functools.partial(jax.jit, static_argnames="steps")
def inverse_sqrt(S: jax.Array, floor: jax.Array | float, steps: int = 12) -> jax.Array:
    """Inverse square root ``S^(-1/2)`` by the coupled Newton-Schulz iteration.

    ``T = a (3 I - a^2 Z Y) / 2``, ``Y <- Y T``, ``Z <- T Z`` from ``Y = S / c``, ``Z = I`` drives ``Z Y`` to
    I and ``Z`` to ``(S / c)^(-1/2)``. The factor ``a = sqrt(3 / (1 + l + l^2))`` is the best for eigenvalues
    of ``(Z Y)^(1/2)`` in ``[l, 1]`` (Chen and Chow, "A stable scaling of Newton-Schulz for improving the sign
    function computation of a Hermitian matrix", 2014): a small eigenvalue gains up to 2.6 a step where the
    plain iteration gives it 1.5.

    Args:
        S: ``(..., p, p)`` symmetric positive definite.
        floor: a lower bound of the eigenvalues of S; one below what the steps reach is raised to that.
        steps: 12 reach rounding for condition numbers up to 1e5 in float32 and 1e6 in float64.

    Returns:
        ``(..., p, p)`` symmetric.
    """
    _check_square("inverse_sqrt", S)
    eye = identity(S)
    row_sums = jnp.max(jnp.sum(jnp.abs(S), -1, keepdims=True), -2, keepdims=True)
    frobenius = jnp.sqrt(jnp.sum(S * S, (-2, -1), keepdims=True))
    # The limit does not depend on the scale, so neither does the derivative.
    ceiling = jax.lax.stop_gradient(jnp.minimum(row_sums, frobenius))

    def step(_: int, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        Y, Z, low = carry
        a = jnp.sqrt(3 / (1 + low + low * low))
        T = (a / 2) * (3 * eye - (a * a) * matmul(Z, Y))
        return matmul(Y, T), matmul(T, Z), a * low * (3 - a * a * low * low) / 2

    start = (S / ceiling, jnp.broadcast_to(eye, S.shape), jnp.clip(jnp.sqrt(floor / ceiling), 1e-3, 1))
    return jax.lax.fori_loop(0, steps, step, start)[1] / jnp.sqrt(ceiling)


@jax.jit
def expm(M: jax.Array) -> jax.Array:
    """Matrix exponential by scaling, Taylor polynomial and squaring.

    ``exp(M) = exp(M / 2^k)^(2^k)`` with k, per matrix, such that the largest row sum of ``|M| / 2^k`` is at
    most 1/2. The number of squarings is fixed and the superfluous ones are masked, which keeps reverse mode
    and ``vmap`` available.

    Args:
        M: ``(..., p, p)`` with row sums of at most 2^15; not a number beyond.

    Returns:
        ``(..., p, p)``.
    """
    _check_square("expm", M)
    eye = identity(M)
    degree = 9 if jnp.finfo(M.dtype).bits == 32 else 14
    size = jax.lax.stop_gradient(jnp.max(jnp.sum(jnp.abs(M), -1, keepdims=True), -2, keepdims=True))
    halvings = jnp.ceil(jnp.log2(jnp.maximum(2 * size, 1)))
    most = 16
    M = jnp.where(halvings > most, jnp.nan, M * jnp.exp2(-halvings))
    E = eye + M / degree
    for order in range(degree - 1, 0, -1):
        E = eye + matmul(M, E) / order

    def square(index: jax.Array, E: jax.Array) -> jax.Array:
        return jnp.where(index < halvings, matmul(E, E), E)

    return jax.lax.fori_loop(0, most, square, E)
