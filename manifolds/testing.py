"""Checks that a manifold proves itself with; each returns errors as floats, and asserts and plots nothing.

A manifold is whatever fits :class:`manifolds.optim.Manifold`; the functions of a module fit as they are:

    >>> import jax
    >>> from manifolds import optim, sphere, testing
    >>> x = sphere.random(jax.random.key(0), (5,))
    >>> v = sphere.random_tangent(jax.random.key(1), x)
    >>> max(testing.check_retraction(optim.Sphere(), x, v, order=2).values()) < 1e-5
    True
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from manifolds.optim import Manifold


def _gap(a: Any, b: Any) -> float:
    """Largest absolute difference of the leaves of two trees; NaN if either has one."""
    gaps = jax.tree.leaves(jax.tree.map(lambda p, q: jnp.max(jnp.abs(p - q), initial=0), a, b))
    return float(jnp.max(jnp.stack(gaps)))


def _check_arrays(name: str, **arrays: Any) -> None:
    """Refuse what would pass every check, or fail inside JAX."""
    for label, array in arrays.items():
        if not jnp.issubdtype(jnp.result_type(array), jnp.floating):
            raise TypeError(
                f"{name}: {label} must have a real floating dtype, got {jnp.result_type(array)}; "
                f"cast it, for example {label}.astype(jnp.float32)"
            )
        if jnp.size(array) == 0:
            raise ValueError(
                f"{name}: {label} has shape {array.shape} and no entries; pass at least one point"
            )


def check_retraction(manifold: Manifold, x: jax.Array, v: jax.Array, order: int = 1) -> dict[str, float]:
    """Errors of a retraction at x along the tangent vector v, from exact derivatives of ``c(t) = R(x, t v)``.

    Args:
        manifold: with ``retract`` and ``project_tangent``.
        x: a point or a batch of them.
        v: tangent at x.
        order: 1, or 2 for a second-order retraction of a manifold with the metric of its ambient space.

    Returns:
        ``identity``, ``|c(0) - x|``; ``velocity``, ``|c'(0) - v|``; ``landing``, ``|P P u - P u|`` of the tangent
        projection P at ``c(1)`` and a random u, as P is a projection at points of the manifold alone (a manifold
        that is an open set, where every vector is tangent, is not told from its surroundings by this); and for order 2
        ``acceleration``, the tangent part of ``c''(0)``, which vanishes where the curve follows the geodesic to second
        order.
    """
    if order not in (1, 2):
        raise ValueError(f"check_retraction: order must be 1 or 2, got {order}")
    _check_arrays("check_retraction", x=x, v=v)

    def curve(t: jax.Array) -> jax.Array:
        return manifold.retract(x, t * v)

    def velocity(t: jax.Array) -> jax.Array:
        return jax.jvp(curve, (t,), (jnp.ones_like(t),))[1]

    zero = jnp.zeros((), v.dtype)
    y = curve(jnp.ones_like(zero))
    # The velocity there would be tangent too, but for quotients: a curve of frames also turns them in their subspace.
    projected = manifold.project_tangent(y, jax.random.normal(jax.random.key(0), y.shape, y.dtype))
    errors = {
        "identity": _gap(curve(zero), x),
        "velocity": _gap(velocity(zero), v),
        "landing": _gap(manifold.project_tangent(y, projected), projected),
    }
    if order == 2:
        acceleration = manifold.project_tangent(x, jax.jvp(velocity, (zero,), (jnp.ones_like(zero),))[1])
        errors["acceleration"] = _gap(acceleration, jnp.zeros_like(acceleration))
    return errors


def check_projection(manifold: Manifold, x: jax.Array, u: jax.Array, w: jax.Array) -> dict[str, float]:
    """Errors of the tangent projection at x for any ambient u and w.

    Returns:
        ``idempotent``, ``|P P u - P u|``; ``self_adjoint``, ``|<P u, w> - <u, P w>|``; ``linear``,
        ``|P (u - 2 w) - P u + 2 P w|``; ``tangent``, ``|d/dt retract(x, t P u) - P u|`` at ``t = 0``, which
        ties the projection to the retraction.
    """
    _check_arrays("check_projection", x=x, u=u, w=w)

    def project(g: jax.Array) -> jax.Array:
        return manifold.project_tangent(x, g)

    Pu, Pw = project(u), project(w)
    return {
        "idempotent": _gap(project(Pu), Pu),
        "self_adjoint": _gap(manifold.inner(x, Pu, w), manifold.inner(x, u, Pw)),
        "linear": _gap(project(u - 2 * w), Pu - 2 * Pw),
        "tangent": check_retraction(manifold, x, Pu)["velocity"],
    }


def check_transport(
    manifold: Manifold, x: jax.Array, y: jax.Array, u: jax.Array, v: jax.Array
) -> dict[str, float]:
    """Errors of the transport T from x to y of vectors u and v that are tangent at x.

    Returns:
        ``tangent``, ``|P T v - T v|`` with the tangent projection P at y; ``linear``,
        ``|T (u - 2 v) - T u + 2 T v|``; ``identity``, ``|T v - v|`` from x to x.
    """
    _check_arrays("check_transport", x=x, y=y, u=u, v=v)

    def carry(w: jax.Array) -> jax.Array:
        return manifold.transport(x, y, w)

    Tu, Tv = carry(u), carry(v)
    return {
        "tangent": max(_gap(manifold.project_tangent(y, w), w) for w in (Tu, Tv)),
        "linear": _gap(carry(u - 2 * v), Tu - 2 * Tv),
        "identity": _gap(manifold.transport(x, x, v), v),
    }


def check_inner(manifold: Manifold, x: jax.Array, u: jax.Array, v: jax.Array) -> dict[str, float]:
    """Errors of the inner product at x, for tangent vectors u and v that are not zero and no multiples of each other.

    Returns:
        ``symmetric``, ``|<u, v> - <v, u>|``; ``linear``, ``|<u - 2 v, v> - <u, v> + 2 <v, v>|``; ``positive``, the
        share of points where the smaller eigenvalue of the products of u and v with each other is not above zero.
    """
    _check_arrays("check_inner", x=x, u=u, v=v)

    def inner(a: jax.Array, b: jax.Array) -> jax.Array:
        return manifold.inner(x, a, b)

    uu, uv, vv = inner(u, u), inner(u, v), inner(v, v)
    positive = (uu > 0) & (vv > 0) & (uu * vv > uv**2)
    return {
        "symmetric": _gap(uv, inner(v, u)),
        "linear": _gap(inner(u - 2 * v, v), uv - 2 * vv),
        "positive": float(jnp.mean(~positive)),
    }


def check_gradient(
    f: Callable[[jax.Array], jax.Array], manifold: Manifold, x: jax.Array, v: jax.Array
) -> dict[str, float]:
    """Errors of the Riemannian gradient of a scalar function f of one point x, along the tangent vector v.

    Returns:
        ``tangent``, ``|P grad - grad|``; ``slope``, ``|<grad, v> - d/dt f(retract(x, t v))|`` at ``t = 0``.
    """
    _check_arrays("check_gradient", x=x, v=v)
    gradient = manifold.egrad2rgrad(x, jax.grad(f)(x))
    slope = jax.jvp(lambda w: f(manifold.retract(x, w)), (jnp.zeros_like(v),), (v,))[1]
    return {
        "tangent": _gap(manifold.project_tangent(x, gradient), gradient),
        "slope": _gap(manifold.inner(x, gradient, v), slope),
    }


def check_vmap(f: Callable[..., Any], args: tuple[Any, ...]) -> float:
    """Largest difference of ``vmap(f)(*args)`` and of ``f(*args)`` from a Python loop over the first axis."""
    length = jax.tree.leaves(args)[0].shape[0]
    one_by_one = [f(*jax.tree.map(lambda leaf, i=i: leaf[i], args)) for i in range(length)]
    looped = jax.tree.map(lambda *leaves: jnp.stack(leaves), *one_by_one)
    return max(_gap(jax.vmap(f)(*args), looped), _gap(f(*args), looped))


def check_jit(f: Callable[..., Any], args: tuple[Any, ...]) -> float:
    """Largest difference of ``jit(f)(*args)`` and ``f(*args)`` with compilation disabled throughout."""
    with jax.disable_jit():
        eager = f(*args)
    return _gap(jax.jit(f)(*args), eager)
