"""Unit sphere S^(d-1): unit vectors x, arrays ``(..., d)`` with d >= 2, with the metric of R^d."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from manifolds._arrays import normal, operation


def _dot(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.sum(x * y, -1, keepdims=True)


@operation("y", core=1)
def project(y: jax.Array) -> jax.Array:
    """Nearest unit vector ``y / |y|``; at ``y = 0`` the first basis vector, with gradient 0."""
    return _project(y)


def _project(y: jax.Array) -> jax.Array:
    scale = jax.lax.stop_gradient(jnp.max(jnp.abs(y), -1, keepdims=True))
    zero = scale == 0
    y = jnp.where(zero, _basis_vector(y, 0), y / jnp.where(zero, 1, scale))
    return y / jnp.sqrt(_dot(y, y))


def _basis_vector(like: jax.Array, index: jax.Array | int) -> jax.Array:
    return (jax.lax.broadcasted_iota(jnp.int32, like.shape, like.ndim - 1) == index).astype(like.dtype)


@operation("x", "g", core=1)
def project_tangent(x: jax.Array, g: jax.Array) -> jax.Array:
    """Orthogonal projection onto the tangent space at x: ``g - <x, g> x``."""
    return _tangent(x, g)


def _tangent(x: jax.Array, g: jax.Array) -> jax.Array:
    return g - _dot(x, g) * x


class _Arc(NamedTuple):
    """The geodesic from x to y: ``cos(t angle) x + sin(t angle) direction``; all with a kept last axis."""

    direction: jax.Array
    cosine: jax.Array
    sine: jax.Array
    angle: jax.Array


def _arc(x: jax.Array, y: jax.Array) -> _Arc:
    """Accurate at every angle, with finite derivatives; ``sine`` is exactly 0 for equal and opposite points."""
    cosine = _dot(x, y)
    acute = cosine >= 0
    # y - x and y + x are exact where they are small, so the direction survives at tiny and near-straight angles.
    w = _tangent(x, jnp.where(acute, y - x, y + x))
    # Half the exponent range as a fixed power of two: |w| <= sqrt(2), so its square can neither overflow nor vanish.
    scale = 2.0 ** (jnp.finfo(w.dtype).maxexp // 2 - 4)
    square = _dot(w * scale, w * scale)
    resolved = square > 0
    length = jnp.sqrt(jnp.where(resolved, square, 1))
    u = w * (scale / length)
    # For angles near the rounding of the inputs, w may still lean on x: straighten it, or give it up.
    lean = _dot(x, u)
    resolved &= jnp.abs(lean) < 0.5
    lean = jnp.where(resolved, lean, 0)
    u = (u - lean * x) / jnp.sqrt(1 - lean * lean)
    sine = jnp.where(resolved, length / scale, 0)
    direction = jnp.where(resolved, u, _orthogonal(x))
    angle = jnp.arctan2(sine, jnp.where(resolved, cosine, jnp.where(acute, 1, -1).astype(w.dtype)))
    return _Arc(direction, cosine, sine, angle)


def _orthogonal(x: jax.Array) -> jax.Array:
    """The unit tangent at x nearest to the less aligned of the first two axes."""
    first = jnp.abs(x[..., :1]) <= jnp.abs(x[..., 1:2])
    entry = jnp.where(first, x[..., :1], x[..., 1:2])
    axis = _basis_vector(x, jnp.where(first, 0, 1))
    return (axis - entry * x) / jnp.sqrt(1 - entry * entry)


@operation("x", "y", core=1)
def slerp(x: jax.Array, y: jax.Array, t: jax.Array | float) -> jax.Array:
    """Point at the fraction t of the great-circle arc from x to y."""
    t = jnp.asarray(t, x.dtype)
    rank = max(x.ndim, t.ndim + 1)
    x, y, t = (jnp.expand_dims(a, tuple(range(rank - a.ndim))) for a in (x, y, t[..., None]))
    return _slerp(x, y, t)


@jax.custom_jvp
def _slerp(x: jax.Array, y: jax.Array, t: jax.Array) -> jax.Array:
    return _along(_arc(x, y), x, y, t)


def _along(arc: _Arc, x: jax.Array, y: jax.Array, t: jax.Array) -> jax.Array:
    point = jnp.cos(t * arc.angle) * x + jnp.sin(t * arc.angle) * arc.direction
    return jnp.where(t == 0, x, jnp.where(t == 1, y, point))


@_slerp.defjvp
def _slerp_jvp(primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
    """Jacobi field along the arc: its ends move by dx and dy, of which only the tangent parts count."""
    x, y, t = primals
    dx, dy, dt = tangents
    arc = _arc(x, y)
    _, cosine, sine, angle = arc
    velocity = -jnp.sin(t * angle) * x + jnp.cos(t * angle) * arc.direction
    arrival = -sine * x + cosine * arc.direction
    along_x, along_y = _dot(arc.direction, dx), _dot(arrival, dy)
    across_x = _tangent(x, dx) - along_x * arc.direction
    across_y = _tangent(y, dy) - along_y * arrival

    # sin((1-t) angle) / sin(angle) and sin(t angle) / sin(angle), each exact where its end is near.
    open_arc = sine > 0
    safe = jnp.where(open_arc, sine, 1)
    near, far = jnp.sin(t * angle) / safe, jnp.sin((1 - t) * angle) / safe
    early = t < 0.5
    share_x = jnp.where(early, jnp.cos(t * angle) - cosine * near, far)
    share_y = jnp.where(early, near, jnp.cos((1 - t) * angle) - cosine * far)
    share_x, share_y = jnp.where(open_arc, share_x, 1 - t), jnp.where(open_arc, share_y, t)

    along = (1 - t) * along_x + t * along_y + angle * dt
    return _along(arc, x, y, t), along * velocity + share_x * across_x + share_y * across_y


def mean(X: jax.Array, weights: jax.Array | None = None, axis: int = 0) -> jax.Array:
    """Extrinsic mean over one of the leading axes: ``project(sum_i w_i x_i)``."""
    total = X if weights is None else X * weights[..., None]
    return project(jnp.sum(total, axis))


def random(key: jax.Array, shape: tuple[int, ...], dtype: Any = float) -> jax.Array:
    """Points from the uniform distribution: normal draws, normalised."""
    return project(normal(key, shape, dtype)).astype(dtype)
