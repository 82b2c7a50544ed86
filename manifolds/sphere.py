"""Unit sphere S^(d-1): unit vectors x, arrays ``(..., d)`` with d >= 2, with the metric of R^d.

Leading axes are a batch and broadcast. Functions of points differentiate along the sphere: the radial part
of a perturbation of x counts for nothing, so gradients with respect to x are tangent at x.

At antipodes, where every great circle is a shortest path, all functions take the one that starts at x
towards the less aligned of the first two axes: a choice that is the same under ``jit`` and ``vmap`` and needs
no search over d.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from manifolds._arrays import check_count, leading_axes, normal, operation, safe_norm

_Pair = tuple[jax.Array, jax.Array]
_Triple = tuple[jax.Array, jax.Array, jax.Array]


def _dot(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.sum(x * y, -1, keepdims=True)


def _tangent(x: jax.Array, g: jax.Array) -> jax.Array:
    return g - _dot(x, g) * x


@jax.custom_jvp
def _point(x: jax.Array) -> jax.Array:
    """The same x, of which only tangent perturbations count."""
    return x


@_point.defjvp
def _point_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> _Pair:
    return primals[0], _tangent(_point(primals[0]), tangents[0])


def _basis_vector(like: jax.Array, index: jax.Array | int) -> jax.Array:
    return (jax.lax.broadcasted_iota(jnp.int32, like.shape, like.ndim - 1) == index).astype(like.dtype)


def _spare_axis(x: jax.Array) -> _Triple:
    """The less aligned of the first two axes, its entry of x and ``1 / sin`` of its angle to x."""
    first = jnp.abs(x[..., :1]) <= jnp.abs(x[..., 1:2])
    entry = jnp.where(first, x[..., :1], x[..., 1:2])
    return _basis_vector(x, jnp.where(first, 0, 1)), entry, 1 / jnp.sqrt(1 - entry * entry)


@operation("y", core=1)
def project(y: jax.Array) -> jax.Array:
    """Nearest point of the sphere: ``y / |y|``.

    Args:
        y: ``(..., d)`` any vectors, of any finite size; XLA takes subnormal numbers, below 1e-38 in float32,
            for 0.

    Returns:
        ``(..., d)`` unit vectors; at ``y = 0``, where all are equally near, the first basis vector with
        gradient 0.
    """
    scale = jax.lax.stop_gradient(jnp.max(jnp.abs(y), -1, keepdims=True))
    zero = scale == 0
    y = jnp.where(zero, _basis_vector(y, 0), y / jnp.where(zero, 1, scale))
    return y / jnp.sqrt(_dot(y, y))


@operation("x", "g", core=1)
def project_tangent(x: jax.Array, g: jax.Array) -> jax.Array:
    """Orthogonal projection of g onto the tangent space at x: ``g - <x, g> x``.

    Args:
        x: ``(..., d)`` points.
        g: ``(..., d)`` any vectors.

    Returns:
        ``(..., d)``. Linear in g, idempotent, self-adjoint.
    """
    return _tangent(x, g)


def egrad2rgrad(x: jax.Array, g: jax.Array) -> jax.Array:
    """Riemannian gradient from the gradient g of the entries of x; the map of :func:`project_tangent`."""
    return project_tangent(x, g)


@operation("x", "g", "hg", "v", core=1)
def ehess2rhess(x: jax.Array, g: jax.Array, hg: jax.Array, v: jax.Array) -> jax.Array:
    """Riemannian Hessian applied to v: ``Proj(hg - <x, g> v)``.

    Args:
        x: ``(..., d)`` points.
        g: ``(..., d)`` gradient of the entries at x.
        hg: ``(..., d)`` derivative of that gradient along v.
        v: ``(..., d)`` tangent at x.

    Returns:
        ``(..., d)`` tangent. Source: Absil, Mahony and Trumpf, "An extrinsic look at the Riemannian Hessian",
        2013.
    """
    return _tangent(x, hg - _dot(x, g) * v)


@operation("x", "u", "v", core=1)
def inner(x: jax.Array, u: jax.Array, v: jax.Array) -> jax.Array:
    """Inner product of tangent vectors ``<u, v>``, ``(...)``; the same at every x."""
    return jnp.sum(u * v, -1)


@operation("x", "v", core=1)
def norm(x: jax.Array, v: jax.Array) -> jax.Array:
    """Norm of a tangent vector, ``(...)``; gradient 0 at ``v = 0``; cannot overflow.

    For its square call :func:`inner`: from ``norm ** 2`` the second derivative at ``v = 0`` comes out as 0.
    """
    return safe_norm(v, -1)[..., 0]


@operation("x", "v", core=1)
def retract(x: jax.Array, v: jax.Array) -> jax.Array:
    """Point that a step v from x leads to: ``project(x + v)``, ``(..., d)``; a second-order retraction."""
    return project(x + v)


@operation("x", "v", core=1)
def exp(x: jax.Array, v: jax.Array) -> jax.Array:
    """Geodesic from x along v at time 1: ``cos|v| x + (sin|v| / |v|) v``, normalised against drift.

    Args:
        x: ``(..., d)`` points.
        v: ``(..., d)`` tangent at x.

    Returns:
        ``(..., d)`` points. Smooth in v, also at ``v = 0``: the coefficients are functions of ``|v|^2``.
    """
    square = _dot(v, v)
    # Beyond the bound the next term of the series would matter; below it the root would lose derivatives.
    small = square < 30 * jnp.finfo(v.dtype).eps ** 0.5
    root = jnp.sqrt(jnp.where(small, 1, square))
    cosine = jnp.where(small, 1 - square / 2 * (1 - square / 12 * (1 - square / 30)), jnp.cos(root))
    sinc = jnp.where(small, 1 - square / 6 * (1 - square / 20 * (1 - square / 42)), jnp.sin(root) / root)
    y = cosine * _point(x) + sinc * v
    return y / jnp.sqrt(_dot(y, y))


class _Arc(NamedTuple):
    """The geodesic from x to y, ``cos(t angle) x + sin(t angle) direction``; all with a last axis of length 1.

    The direction is ``(b - radial x) / length`` with b the shorter of the chords ``y - x`` and ``y + x``, which
    are exact where they are short: it survives at tiny and straight angles. Where points are equal or opposite
    to rounding ``sine`` is 0 and the direction is that of the spare axis.
    """

    acute: jax.Array
    radial: jax.Array
    length: jax.Array
    cosine: jax.Array
    sine: jax.Array
    angle: jax.Array


def _arc(x: jax.Array, y: jax.Array) -> _Arc:
    difference, total, product = _chords(x, y)
    acute = difference <= total
    square = jnp.where(acute, difference, total)
    radial = jnp.where(acute, product - difference, total - product) / 2
    tangential = square - radial * radial
    # A chord that leans on x is the rounding of the norms and not an angle between the points.
    is_open = (tangential > square / 4) & (tangential > jnp.finfo(x.dtype).tiny ** 0.5)
    length = jnp.sqrt(jnp.where(is_open, tangential, 1))
    cosine = jnp.where(is_open, (total - difference) / 4, jnp.where(acute, 1, -1).astype(x.dtype))
    sine = jnp.where(is_open, length, 0)
    return _Arc(acute, radial, length, cosine, sine, jnp.arctan2(sine, cosine))


def _combine(arc: _Arc, x: jax.Array, y: jax.Array, along: jax.Array, across: jax.Array) -> jax.Array:
    """``along x + across direction``, as one pass over d with coefficients that do not depend on it."""
    axis, entry, scale = _spare_axis(x)
    is_open = arc.sine > 0
    step = jnp.where(is_open, across / arc.length, 0)
    turn = jnp.where(is_open, 0, across * scale)
    chord = y - jnp.where(arc.acute, 1, -1).astype(x.dtype) * x
    return (along - step * arc.radial - turn * entry) * x + step * chord + turn * axis


@jax.custom_jvp
def _chords(x: jax.Array, y: jax.Array) -> _Triple:
    """``|y - x|^2``, ``|y + x|^2`` and their inner product, with a kept last axis, in one pass over d.

    Everything that the arc needs: three sums in one loop cost as much as one on a CPU.
    """
    d, s = y - x, y + x
    zero = jnp.zeros((), d.dtype)

    def add(a: tuple[jax.Array, ...], b: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        return tuple(p + q for p, q in zip(a, b, strict=True))

    difference, total, product = jax.lax.reduce((d * d, s * s, d * s), (zero,) * 3, add, (d.ndim - 1,))
    return difference[..., None], total[..., None], product[..., None]


@_chords.defjvp
def _chords_jvp(primals: _Pair, tangents: _Pair) -> tuple[_Triple, _Triple]:
    (x, y), (dx, dy) = primals, tangents
    d, s, dd, ds = y - x, y + x, dy - dx, dy + dx
    return _chords(x, y), (2 * _dot(d, dd), 2 * _dot(s, ds), _dot(dd, s) + _dot(d, ds))


@operation("x", "y", core=1)
def log(x: jax.Array, y: jax.Array) -> jax.Array:
    """Tangent vector at x whose geodesic reaches y at time 1: ``angle * direction``.

    The direction is the tangent part of ``y - x`` (acute angles) or ``y + x`` (obtuse ones), so that tiny and
    near-straight angles keep their accuracy.

    Args:
        x: ``(..., d)`` points.
        y: ``(..., d)`` points.

    Returns:
        ``(..., d)`` tangent at x. At ``y = x``: 0 with derivative ``Proj(dy - dx)``. At ``y = -x``: length pi
        along the module's fixed great circle, with finite derivative.
    """
    x, y = _point(x), _point(y)
    arc = _arc(x, y)
    vector = _combine(arc, x, y, jnp.zeros_like(arc.angle), arc.angle)
    # Closed arcs of angle 0 still have a derivative, and angles below the square root of the smallest number.
    return jnp.where((arc.sine > 0) | ~arc.acute, vector, _tangent(x, y - x))


@operation("x", "y", core=1)
def dist(x: jax.Array, y: jax.Array) -> jax.Array:
    """Geodesic distance: the angle ``2 atan2(|x - y|, |x + y|)``, accurate for tiny and near-straight angles.

    Args:
        x: ``(..., d)`` points.
        y: ``(..., d)`` points.

    Returns:
        ``(...)`` in ``[0, pi]``. Subgradient 0 at ``y = x`` and ``y = -x``, where the distance has a corner. For
        its square call :func:`squared_dist`: from ``dist ** 2`` the second derivative at ``y = x`` comes out as 0.
        Source: Kahan, "How futile are mindless assessments of roundoff in floating-point computation?",
        2006.
    """
    x, y = _point(x), _point(y)
    return 2 * jnp.arctan2(safe_norm(x - y, -1), safe_norm(x + y, -1))[..., 0]


@operation("x", "y", core=1)
def squared_dist(x: jax.Array, y: jax.Array) -> jax.Array:
    """Square of :func:`dist`, as a function of ``|x - y|^2``: smooth, also at ``y = x``.

    Args:
        x: ``(..., d)`` points.
        y: ``(..., d)`` points.

    Returns:
        ``(...)`` in ``[0, pi^2]``. At ``y = x``: gradient 0, second derivative ``2 Proj`` in x and in y. At
        ``y = -x``, where the distance has a corner: gradient 0, and second derivatives without meaning.
    """
    x, y = _point(x), _point(y)
    square = _dot(x - y, x - y)
    # The series of 4 arcsin(|x - y| / 2)^2; beyond the bound its next term would matter.
    small = square < 30 * jnp.finfo(x.dtype).eps ** 0.5
    angle = 2 * jnp.arctan2(jnp.sqrt(jnp.where(small, 1, square)), safe_norm(x + y, -1))
    series = square * (1 + square / 12 * (1 + square * 2 / 15 * (1 + square * 9 / 56)))
    return jnp.where(small, series, angle * angle)[..., 0]


@operation("x", "y", core=1)
def slerp(x: jax.Array, y: jax.Array, t: jax.Array | float) -> jax.Array:
    """Point at the fraction t of the great-circle arc from x to y.

    ``cos(t angle) x + sin(t angle) u`` with u the unit tangent at x towards y. ``t = 0`` gives x and
    ``t = 1`` gives y exactly; other t extrapolate at the same speed. The derivative is the Jacobi field
    ``[(1 - t) a + t b + angle dt] T(t) + sin((1 - t) angle)/sin(angle) dx' + sin(t angle)/sin(angle) dy'``:
    T is the velocity direction, a and b are the parts of dx and dy along the arc, dx' and dy' those across.

    Args:
        x: ``(..., d)`` points.
        y: ``(..., d)`` points.
        t: scalar or ``(...)``, any real number.

    Returns:
        ``(..., d)`` points. At ``y = x``: x, with derivative ``(1 - t) Proj dx + t Proj dy``. At ``y = -x``:
        the module's fixed great circle, and the same weights across it. Values and gradients are finite
        everywhere.

    References:
        Shoemake, "Animating rotation with quaternion curves", 1985. do Carmo, "Riemannian geometry", 1992,
        chapter 5, for Jacobi fields.
    """
    t = jnp.asarray(t, x.dtype)
    try:
        jnp.broadcast_shapes(t.shape, x.shape[:-1], y.shape[:-1])
    except ValueError:
        points = f"x {x.shape} and y {y.shape}"
        raise ValueError(
            f"slerp: t must broadcast against the leading axes of {points}, got t {t.shape}"
        ) from None
    t = t[..., None]
    rank = max(x.ndim, t.ndim)
    return _slerp(leading_axes(x, rank), leading_axes(y, rank), leading_axes(t, rank))


geodesic = slerp


@jax.custom_jvp
def _slerp(x: jax.Array, y: jax.Array, t: jax.Array) -> jax.Array:
    return _along(_arc(x, y), x, y, t)


def _along(arc: _Arc, x: jax.Array, y: jax.Array, t: jax.Array) -> jax.Array:
    point = _combine(arc, x, y, jnp.cos(t * arc.angle), jnp.sin(t * arc.angle))
    return jnp.where(t == 1, y, point)  # t = 0 is exact as it is: x times 1 and zeros


@_slerp.defjvp
def _slerp_jvp(primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]) -> _Pair:
    x, y, t = primals
    dx, dy, dt = tangents
    arc = _arc(x, y)
    direction = _combine(arc, x, y, jnp.zeros_like(arc.angle), jnp.ones_like(arc.angle))
    velocity = jnp.cos(t * arc.angle) * direction - jnp.sin(t * arc.angle) * x
    arrival = arc.cosine * direction - arc.sine * x
    along_x, along_y = _dot(direction, dx), _dot(arrival, dy)
    across_x = _tangent(x, dx) - along_x * direction
    across_y = _tangent(y, dy) - along_y * arrival
    share_x, share_y = _shares(arc, t)
    along = (1 - t) * along_x + t * along_y + arc.angle * dt
    return _along(arc, x, y, t), along * velocity + share_x * across_x + share_y * across_y


def _shares(arc: _Arc, t: jax.Array) -> _Pair:
    """``sin((1 - t) angle) / sin(angle)`` and ``sin(t angle) / sin(angle)``, or their limits at angle 0."""
    is_open = arc.sine > 0
    sine = jnp.where(is_open, arc.sine, 1)
    # Near pi the sine is known better than the angle: take the quotient whose own angle is smaller, and the
    # other from the addition theorem.
    near, far = jnp.sin(t * arc.angle) / sine, jnp.sin((1 - t) * arc.angle) / sine
    early = t < 0.5
    share_x = jnp.where(early, jnp.cos(t * arc.angle) - arc.cosine * near, far)
    share_y = jnp.where(early, near, jnp.cos((1 - t) * arc.angle) - arc.cosine * far)
    return jnp.where(is_open, share_x, 1 - t), jnp.where(is_open, share_y, t)


@operation("x", "y", "v", core=1)
def transport(x: jax.Array, y: jax.Array, v: jax.Array) -> jax.Array:
    """Parallel transport of v from x to y along their geodesic: the reflection ``v - 2 <m, v> m``.

    m is the midpoint of the geodesic. Equal to ``v - <y, v> / (1 + <x, y>) (x + y)`` for tangent v, but an
    isometry to rounding at every angle.

    Args:
        x: ``(..., d)`` points.
        y: ``(..., d)`` points.
        v: ``(..., d)`` tangent at x.

    Returns:
        ``(..., d)`` tangent at y; at ``y = -x`` along the module's fixed great circle.
    """
    middle = slerp(x, y, 0.5)
    return v - 2 * _dot(middle, v) * middle


@operation("X", core=1, static=("axis",))
def mean(X: jax.Array, weights: jax.Array | None = None, axis: int = 0) -> jax.Array:
    """Extrinsic mean over one of the leading axes: ``project(sum_i w_i x_i)``.

    Args:
        X: ``(..., N, ..., d)`` points.
        weights: ``(N,)``, or one for each point; ones if absent. Only their ratios matter.
        axis: of N; the last axis is not allowed.

    Returns:
        X without that axis. The first basis vector with gradient 0 where the sum vanishes.
    """
    X, weights = _points_first(X, weights, axis)
    return project(jnp.sum(weights * X, 0))


@operation("X", core=1, static=("axis", "iters"))
def frechet_mean(
    X: jax.Array, weights: jax.Array | None = None, axis: int = 0, *, iters: int = 20
) -> jax.Array:
    """Point m of least ``sum_i w_i dist(m, x_i)^2``, by steps ``m <- exp(m, mean_i log(m, x_i))``.

    Args:
        X: ``(..., N, ..., d)`` points.
        weights: ``(N,)``, or one for each point, not negative; ones if absent.
        axis: of N; the last axis is not allowed.
        iters: fixed number of steps from the extrinsic mean; differentiable in either mode.

    Returns:
        X without that axis. Unique, and reached, if the points lie in an open half sphere; else a stationary
        point. Source: Karcher, "Riemannian center of mass and mollifier smoothing", 1977.
    """
    check_count("frechet_mean", "iters", iters, 0)
    X, weights = _points_first(X, weights, axis)
    total = jnp.sum(weights, 0, keepdims=True)
    shares = weights / jnp.where(total == 0, 1, total)

    def step(m: jax.Array, _: None) -> tuple[jax.Array, None]:
        return exp(m, jnp.sum(shares * log(m, X), 0)), None

    return jax.lax.scan(step, project(jnp.sum(shares * X, 0)), length=iters)[0]


def _points_first(X: jax.Array, weights: jax.Array | None, axis: int) -> _Pair:
    """Points with N in front, and weights that broadcast against them."""
    if not -X.ndim <= axis < X.ndim or axis % X.ndim == X.ndim - 1:
        raise ValueError(f"axis must be a leading axis of the points, got {axis} for shape {X.shape}")
    axis %= X.ndim
    weights = jnp.ones(X.shape[axis], X.dtype) if weights is None else jnp.asarray(weights, X.dtype)
    if weights.shape == X.shape[:-1]:
        weights = jnp.moveaxis(weights, axis, 0)[..., None]
    elif weights.shape == (X.shape[axis],):
        weights = weights.reshape(-1, *(1,) * (X.ndim - 1))
    else:
        wanted = f"{(X.shape[axis],)} or {X.shape[:-1]}"
        raise ValueError(f"weights must have shape {wanted} for points {X.shape}, got {weights.shape}")
    return jnp.moveaxis(X, axis, 0), weights


def random(key: jax.Array, shape: tuple[int, ...], dtype: Any = float) -> jax.Array:
    """Points from the uniform distribution: normal draws, normalised.

    Args:
        key: from ``jax.random.key``.
        shape: ``(..., d)``.
        dtype: real floating.
    """
    return project(normal(key, shape, dtype)).astype(dtype)


@operation("x", core=1)
def random_tangent(key: jax.Array, x: jax.Array) -> jax.Array:
    """Tangent vectors at x of norm 1 and uniform direction, ``(..., d)``."""
    v = project(_tangent(x, jax.random.normal(key, x.shape, x.dtype)))
    return project(_tangent(x, v))  # again, for draws that were nearly parallel to x
