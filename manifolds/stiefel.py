"""Stiefel manifold St(n, p): frames X of p orthonormal columns, arrays ``(..., n, p)`` with n >= p.

The metric is the Euclidean one, ``<U, V> = tr(U^T V)``. A tangent vector V at X satisfies ``sym(X^T V) = 0``.
Leading axes are a batch and broadcast. St(n, n) is the orthogonal group with its two components: retractions,
``exp`` and ``project`` keep the sign of the determinant, so no descent from one reaches the other.

There is no ``log`` and no ``dist``: the geodesic distance of two frames has no closed form. That of the
subspaces they span has one, :func:`manifolds.grassmann.dist`.

References:
    Edelman, Arias and Smith, "The geometry of algorithms with orthogonality constraints", 1998.
    Absil, Mahony and Sepulchre, "Optimization algorithms on matrix manifolds", 2008.
"""

import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp

from manifolds._arrays import check_count, normal, operation, safe_norm
from manifolds.linalg import expm, identity, inverse, inverse_cholesky, inverse_sqrt, matmul, sym

_Pair = tuple[jax.Array, jax.Array]
Method = Literal["qr", "polar", "cayley", "householder"]


@operation("X", "G", core=2)
def project_tangent(X: jax.Array, G: jax.Array) -> jax.Array:
    """Orthogonal projection of G onto the tangent space at X: ``G - X sym(X^T G)``.

    Linear, idempotent and self-adjoint. It differs from :func:`manifolds.grassmann.project_horizontal` by the
    rotations ``X skew(X^T G)``: keep those whenever the objective tells frames of one subspace apart.

    Args:
        X: ``(..., n, p)`` frames.
        G: ``(..., n, p)`` any matrices, such as the gradient of a function of the entries of X.

    Returns:
        ``(..., n, p)``. Source: Absil et al., equation (3.35).
    """
    return G - matmul(X, sym(matmul(X.mT, G)))


def egrad2rgrad(X: jax.Array, G: jax.Array) -> jax.Array:
    """Riemannian gradient from the gradient G of the entries of X; the map of :func:`project_tangent`."""
    return project_tangent(X, G)


@operation("X", "G", "HG", "V", core=2)
def ehess2rhess(X: jax.Array, G: jax.Array, HG: jax.Array, V: jax.Array) -> jax.Array:
    """Riemannian Hessian applied to V: ``Proj(HG - V sym(X^T G))``.

    Args:
        X: ``(..., n, p)`` frames.
        G: ``(..., n, p)`` gradient of the entries at X.
        HG: ``(..., n, p)`` derivative of that gradient along V, such as ``jax.jvp(grad, (X,), (V,))[1]``.
        V: ``(..., n, p)`` tangent at X.

    Returns:
        ``(..., n, p)`` tangent. Source: Absil, Mahony and Trumpf, "An extrinsic look at the Riemannian
        Hessian", 2013.
    """
    return project_tangent(X, HG - matmul(V, sym(matmul(X.mT, G))))


@operation("X", "U", "V", core=2)
def inner(X: jax.Array, U: jax.Array, V: jax.Array) -> jax.Array:
    """Inner product of tangent vectors ``tr(U^T V)``, ``(...)``; the same at every X."""
    return jnp.sum(U * V, (-2, -1))


@operation("X", "V", core=2)
def norm(X: jax.Array, V: jax.Array) -> jax.Array:
    """Norm of a tangent vector ``tr(V^T V)^(1/2)``, ``(...)``; gradient 0 at ``V = 0``; cannot overflow.

    For its square call :func:`inner`: from ``norm ** 2`` the second derivative at ``V = 0`` comes out as 0.
    """
    return safe_norm(V, (-2, -1))[..., 0, 0]


@operation("Y", core=2, static=("passes",))
def qf(Y: jax.Array, *, passes: int = 2) -> jax.Array:
    """Q of the factorisation ``Y = Q R`` whose R has a positive diagonal, by shifted Cholesky QR.

    A pass replaces Y by ``Y inv(L)^T`` with ``L L^T = Y^T Y``. All passes but the last add ``eps tr(Y^T Y)``
    to the diagonal: Q does not change when Y is multiplied by an upper triangular matrix from the right, so
    the shift costs no accuracy but keeps the factorisation alive. Two passes reach rounding for condition
    numbers up to 1e4 in float32. One is enough near the manifold, where ``Y^T Y`` is close to I.

    Args:
        Y: ``(..., n, p)`` of full column rank, of any size above subnormal numbers.
        passes: of Cholesky QR, at least 1.

    Returns:
        ``(..., n, p)`` frames, ``diag(Q^T Y) > 0``. With two or more passes NaN, never an arbitrary frame,
        where the columns of Y are dependent to working precision. The derivative is custom and exact.

    References:
        Fukaya, Kannan, Nakatsukasa, Yamamoto and Yanagisawa, "Shifted Cholesky QR for computing the QR
        factorization of ill-conditioned matrices", 2020. Derivative: Walter and Lehmann, "On evaluating
        higher-order derivatives of the QR decomposition of tall matrices with full column rank", 2012.
    """
    check_count("qf", "passes", passes, 1)
    return _qf(passes, _scale(Y) * Y)


def _scale(Y: jax.Array) -> jax.Array:
    """Power of two, for each matrix, that brings its largest entry near 1 and its Gram matrix into range.

    Orthonormal factors do not change under it, bit for bit, so neither do their derivatives.
    """
    # Sizes order as their bits do, and XLA vectorises the maximum of integers alone: half the time.
    integer = jnp.int32 if jnp.finfo(Y.dtype).bits == 32 else jnp.int64
    bits = jax.lax.bitcast_convert_type(jnp.abs(jax.lax.stop_gradient(Y)), integer)
    largest = jnp.max(jnp.max(bits, -2, keepdims=True), -1, keepdims=True)
    exponent = jnp.frexp(jax.lax.bitcast_convert_type(largest, Y.dtype))[1]
    most = -jnp.finfo(Y.dtype).minexp  # the inverse of a larger power would be flushed to 0
    return jnp.ldexp(jnp.ones((), Y.dtype), -jnp.minimum(exponent, most))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _qf(passes: int, Y: jax.Array) -> jax.Array:
    return _cholesky_qr(passes, Y)[0]


@_qf.defjvp
def _qf_jvp(passes: int, primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> _Pair:
    # dQ = Q skew + (I - Q Q^T) Z with Z = dY inv(R); the skew matrix shares its lower triangle with Q^T Z.
    Q, R_inverse = _cholesky_qr(passes, *primals)
    Z = matmul(tangents[0], R_inverse)
    A = matmul(Q.mT, Z)
    low = jnp.tril(A, -1)
    return Q, Z + matmul(Q, low - low.mT - A)


def _cholesky_qr(passes: int, Y: jax.Array) -> _Pair:
    """Q and the inverse of R."""
    eps = jnp.finfo(Y.dtype).eps
    gram = matmul(Y.mT, Y)
    energy = _trace(gram)
    Q, R_inverse, pivots = Y, identity(gram), 1  # the pivots are the diagonal of R
    for left in reversed(range(passes)):
        shift = eps * _trace(gram) * identity(gram) if left else 0
        factor = inverse_cholesky(gram + shift).mT
        R_inverse = matmul(R_inverse, factor)
        pivots = pivots / jnp.diagonal(factor, axis1=-2, axis2=-1)
        if passes > 1 and not left:
            # A pivot at the level of rounding is noise, and so would be its column of Q.
            smallest = jnp.min(pivots, -1)[..., None, None]
            factor = jnp.where(smallest > 4 * eps * jnp.sqrt(energy), factor, jnp.nan)
        Q = matmul(Q, factor)
        if left:
            gram = matmul(Q.mT, Q)
    return Q, R_inverse


def _trace(A: jax.Array) -> jax.Array:
    return jnp.trace(A, axis1=-2, axis2=-1)[..., None, None]


def _householder_qf(Y: jax.Array) -> jax.Array:
    Q, R = jnp.linalg.qr(Y)
    # Not jnp.sign, which would erase a column whose diagonal entry is 0.
    return Q * jnp.where(jnp.diagonal(R, axis1=-2, axis2=-1) < 0, -1, 1)[..., None, :].astype(Q.dtype)


@operation("X", "V", core=2, static=("method",))
def retract(X: jax.Array, V: jax.Array, *, method: Method = "qr") -> jax.Array:
    """Point of the manifold that a step V from X leads to.

    * ``"qr"``: ``qf(X + V)`` by :func:`qf`; first order; 4 tall products.
    * ``"polar"``: ``(X + V) (I + V^T V)^(-1/2)`` by Newton-Schulz iteration on the p x p Gram matrix; second
      order for the Euclidean metric; 4 tall products. For condition numbers of ``X + V`` up to 100 in
      float32 and 1e3 in float64, as V with singular values up to these has.
    * ``"cayley"``: ``(2 X + K) inv(I - A/2 + K^T K/4) - X`` with ``A = X^T V`` and ``K = V - X A``; second
      order for the canonical metric; 6 tall products. In float32 for singular values of V up to 1e3.
    * ``"householder"``: ``qf(X + V)`` by LAPACK; slow in batches.

    All give ``retract(X, 0) = X`` and ``d/dt retract(X, t V) = V`` at ``t = 0``, and none can flip a column.
    The first three use matrix products only. There are no singular points for tangent V, since then
    ``(X + V)^T (X + V) = I + V^T V``, as long as this Gram matrix does not overflow: in float32 from entries of V of
    1e18 on. A pass over V to rescale it would cost every step; :func:`qf` and :func:`project` do so.

    Args:
        X: ``(..., n, p)`` frames.
        V: ``(..., n, p)`` tangent at X.
        method: one of the names above.

    Returns:
        ``(..., n, p)`` frames.

    References:
        Absil et al., section 4.1, for QR and polar. Wen and Yin, "A feasible method for optimization with
        orthogonality constraints", 2013, for Cayley; their 2p x 2p system is p x p here, because the solution
        of ``(I - W/2) Z = X`` with ``W = K X^T - X K^T + X A X^T`` is ``(X + K/2) S``.
    """
    match method:
        case "qr":
            return _qf(2, X + V)
        case "polar":
            Y = X + V
            return _polish(matmul(Y, inverse_sqrt(matmul(Y.mT, Y), floor=1)))
        case "cayley":
            A = matmul(X.mT, V)
            K = V - matmul(X, A)
            middle = identity(A) - (A - A.mT) / 4 + matmul(K.mT, K) / 4
            return _polish(matmul(2 * X + K, inverse(middle)) - X)
        case "householder":
            return _householder_qf(X + V)
    raise ValueError(f"retract: method must be qr, polar, cayley or householder, got {method!r}")


def _polish(Q: jax.Array) -> jax.Array:
    """One Newton-Schulz step towards the polar factor: squares the error of an almost orthonormal Q."""
    return Q - matmul(Q, (matmul(Q.mT, Q) - identity(Q)) / 2)


@operation("Y", core=2)
def project(Y: jax.Array) -> jax.Array:
    """Nearest frame to any matrix of full column rank: the polar factor ``Y (Y^T Y)^(-1/2)``.

    From ``Y = qf(Y) R``, the SVD of the p x p matrix R and one Newton-Schulz step. The custom derivative
    solves ``K H + H K = Q^T dY - dY^T Q`` with ``H = Q^T Y``, and is finite for equal singular values, where
    the derivatives of the SVD are not. First derivatives only: the second involve those of singular vectors.

    Args:
        Y: ``(..., n, p)`` of full column rank and any size above subnormal numbers; the mean of frames, for instance.

    Returns:
        ``(..., n, p)`` frames; NaN where the rank is not full, since then no nearest frame is unique.

    References:
        Higham, "Functions of matrices", 2008, theorem 8.4 and section 8.1.
    """
    return _polar(_scale(Y) * Y)


@jax.custom_jvp
def _polar(Y: jax.Array) -> jax.Array:
    return _polar_and_spectrum(Y)[0]


@_polar.defjvp
def _polar_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    # Y = Q H with H = U diag(s) U^T, so dQ = Q K + (I - Q Q^T) dY inv(H).
    Q, U, s = _polar_and_spectrum(*primals)
    (dY,) = tangents
    A = matmul(Q.mT, dY)
    K = matmul(U.mT, matmul(A - A.mT, U)) / (s[..., :, None] + s[..., None, :])
    across = matmul(dY - matmul(Q, A), U) / s[..., None, :]
    return Q, matmul(matmul(Q, matmul(U, K)) + across, U.mT)


def _polar_and_spectrum(Y: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    Q = _qf(2, Y)
    W, s, Ut = jnp.linalg.svd(matmul(Q.mT, Y))
    return _polish(matmul(Q, matmul(W, Ut))), Ut.mT, s


@operation("X", "V", core=2)
def exp(X: jax.Array, V: jax.Array) -> jax.Array:
    """Geodesic of the Euclidean metric from X along V, at time 1.

    ``[X, V] expm([[A, -V^T V], [I, A]]) [I; 0] expm(-A)`` with ``A = X^T V``, balanced by the norm of V and
    followed by Newton-Schulz steps. Matrix products only.

    Args:
        X: ``(..., n, p)`` frames.
        V: ``(..., n, p)`` tangent at X; the result is smooth in V, also at 0.

    Returns:
        ``(..., n, p)`` frames; NaN for ``|V| > 2^15``, where angles are lost to rounding anyway.
        Source: Edelman et al., equation (2.45).
    """
    X, V = jnp.broadcast_arrays(X, V)
    p = X.shape[-1]
    size = jax.lax.stop_gradient(jnp.maximum(safe_norm(V, (-2, -1)), 1))
    W = V / size
    A = matmul(X.mT, V)
    A = (A - A.mT) / 2
    top = jnp.concatenate([A, -size * matmul(W.mT, W)], -1)
    bottom = jnp.concatenate([size * identity(A), A], -1)
    left = expm(jnp.concatenate([top, bottom], -2))[..., :p]
    left = matmul(left, expm(-A))
    Q = matmul(X, left[..., :p, :]) + matmul(W, left[..., p:, :])
    for _ in range(3):  # in float32 the squarings for a norm of 1e3 leave an error of 0.1
        Q = _polish(Q)
    return Q


@operation("X", "Y", "V", core=2)
def transport(X: jax.Array, Y: jax.Array, V: jax.Array) -> jax.Array:
    """Carry the tangent vector V from X to Y by projection: ``project_tangent(Y, V)``, ``(..., n, p)``.

    A vector transport, not an isometry. Source: Absil et al., section 8.1.3.
    """
    return jnp.broadcast_to(project_tangent(Y, V), jnp.broadcast_shapes(X.shape, Y.shape, V.shape))


@operation("X", "Y", core=2)
def align(X: jax.Array, Y: jax.Array) -> jax.Array:
    """The frame of the subspace of X that is nearest to Y: ``X project(X^T Y)``, orthogonal Procrustes.

    Args:
        X: ``(..., n, p)`` frames whose span is kept.
        Y: ``(..., n, p)`` frames to come close to.

    Returns:
        ``(..., n, p)`` frames; not finite where a direction of one subspace is orthogonal to the other.
        Source: Schönemann, "A generalized solution of the orthogonal Procrustes problem", 1966.
    """
    return matmul(X, _polar(matmul(X.mT, Y)))


def random(key: jax.Array, shape: tuple[int, ...], dtype: Any = float) -> jax.Array:
    """Frames from the uniform (Haar) distribution: ``qf`` of normal draws.

    Args:
        key: from ``jax.random.key``.
        shape: ``(..., n, p)``.
        dtype: real floating.
    """
    return qf(normal(key, shape, dtype)).astype(dtype)


@operation("X", core=2)
def random_tangent(key: jax.Array, X: jax.Array) -> jax.Array:
    """Tangent vectors at X of norm 1, uniform direction, ``(..., n, p)``; 0 on St(1, 1)."""
    V = jax.random.normal(key, X.shape, X.dtype)
    for _ in range(2):  # again, for draws that were nearly normal to the manifold
        V = project_tangent(X, V)
        size = safe_norm(V, (-2, -1))
        V = V / jnp.where(size == 0, 1, size)
    return V
