"""Stiefel manifold St(n, p): frames X of p orthonormal columns, arrays ``(..., n, p)`` with n >= p.

The metric is the Euclidean one, ``<U, V> = tr(U^T V)``. A tangent vector V at X satisfies ``sym(X^T V) = 0``.
There is no ``log`` and no ``dist``: the geodesic distance of frames has no closed form. The distance of the
subspaces they span has one, :func:`manifolds.grassmann.dist`.
"""

import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp

from manifolds._arrays import normal, operation, safe_norm
from manifolds.linalg import inverse_cholesky, matmul, sym

Method = Literal["qr", "polar", "cayley", "householder"]


@operation("X", "G", core=2)
def project_tangent(X: jax.Array, G: jax.Array) -> jax.Array:
    """Orthogonal projection onto the tangent space at X: ``G - X sym(X^T G)``."""
    return G - matmul(X, sym(matmul(X.mT, G)))


@operation("Y", core=2, static=("passes",))
def qf(Y: jax.Array, *, passes: int = 2) -> jax.Array:
    """Q of the QR factorisation whose R has a positive diagonal, by shifted Cholesky QR."""
    return _qf(passes, Y)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _qf(passes: int, Y: jax.Array) -> jax.Array:
    return _cholesky_qr(passes, Y)[0]


@_qf.defjvp
def _qf_jvp(passes: int, primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    Q, R_inverse = _cholesky_qr(passes, *primals)
    Z = matmul(tangents[0], R_inverse)
    A = matmul(Q.mT, Z)
    low = jnp.tril(A, -1)
    return Q, Z + matmul(Q, low - low.mT - A)


def _cholesky_qr(passes: int, Y: jax.Array) -> tuple[jax.Array, jax.Array]:
    eye = jnp.eye(Y.shape[-1], dtype=Y.dtype)
    eye = jnp.expand_dims(eye, tuple(range(Y.ndim - 2)))
    R_inverse = eye
    for index in range(passes):
        gram = matmul(Y.mT, Y)
        if index < passes - 1:
            shift = jnp.finfo(Y.dtype).eps * jnp.trace(gram, axis1=-2, axis2=-1)
            gram = gram + shift[..., None, None] * eye
        factor = inverse_cholesky(gram).mT
        Y = matmul(Y, factor)
        R_inverse = matmul(R_inverse, factor) if index else factor
    return Y, R_inverse


@operation("X", "V", core=2, static=("method",))
def retract(X: jax.Array, V: jax.Array, *, method: Method = "qr") -> jax.Array:
    """Point of the manifold reached from X along V."""
    if method == "qr":
        return _qf(2, X + V)
    raise ValueError(f"retract: unknown method {method!r}")


@operation("Y", core=2)
def project(Y: jax.Array) -> jax.Array:
    """Nearest frame: the polar factor ``Y (Y^T Y)^(-1/2)``."""
    return _polar(Y)


@jax.custom_jvp
def _polar(Y: jax.Array) -> jax.Array:
    return _polar_and_spectrum(Y)[0]


@_polar.defjvp
def _polar_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    Q, U, s = _polar_and_spectrum(*primals)
    (dY,) = tangents
    # Y = Q H with H = U diag(s) U^T, so dQ = Q K + (I - Q Q^T) dY inv(H) with K skew and K H + H K known.
    A = matmul(Q.mT, dY)
    K = matmul(U.mT, matmul(A - A.mT, U)) / (s[..., :, None] + s[..., None, :])
    normal_part = matmul(dY - matmul(Q, A), U) / s[..., None, :]
    return Q, matmul(matmul(Q, matmul(U, K)) + normal_part, U.mT)


def _polar_and_spectrum(Y: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    squares, U = jnp.linalg.eigh(matmul(Y.mT, Y))
    s = jnp.sqrt(squares)
    Q = matmul(matmul(Y, U) / s[..., None, :], U.mT)
    return _polish(Q), U, s


def _polish(Q: jax.Array) -> jax.Array:
    """One Newton-Schulz step towards the polar factor: squares the error of an almost orthonormal Q."""
    gram = matmul(Q.mT, Q)
    defect = gram - jnp.expand_dims(jnp.eye(Q.shape[-1], dtype=Q.dtype), tuple(range(Q.ndim - 2)))
    return Q - matmul(Q, defect / 2)


def random(key: jax.Array, shape: tuple[int, ...], dtype: Any = float) -> jax.Array:
    """Frames from the uniform (Haar) distribution: ``qf`` of normal draws."""
    return qf(normal(key, shape, dtype)).astype(dtype)


@operation("X", "V", core=2)
def norm(X: jax.Array, V: jax.Array) -> jax.Array:
    """Norm of a tangent vector, ``(...)``; its gradient at ``V = 0`` is 0."""
    return safe_norm(V, (-2, -1))[..., 0, 0]
