"""Riemannian optimisation as optax transformations.

A manifold is a frozen object that holds the functions of its module, and :func:`riemannian` lets any optax
optimiser run on it, so that plain ``optax.apply_updates`` lands on the manifold:

    >>> import jax, jax.numpy as jnp, optax
    >>> from manifolds import optim, stiefel
    >>> A = jnp.diag(jnp.array([3.0, 2.0, 1.0]))
    >>> X = stiefel.random(jax.random.key(0), (3, 1))
    >>> optimizer = optim.riemannian(optax.sgd(0.1), optim.Stiefel())
    >>> state = optimizer.init(X)
    >>> for _ in range(100):
    ...     gradient = jax.grad(lambda X: -jnp.sum(X * (A @ X)))(X)
    ...     updates, state = optimizer.update(gradient, state, X)
    ...     X = optax.apply_updates(X, updates)
    >>> print(jnp.round(jnp.abs(X[:, 0]), 3))
    [1. 0. 0.]

Parameters are plain arrays. Trees that mix manifolds go through ``optax.multi_transform``.
"""

import dataclasses
from typing import Any, Protocol, get_args

import jax
import jax.numpy as jnp
import optax

from manifolds import grassmann, sphere, stiefel


class Manifold(Protocol):
    """What an optimiser needs to know of a manifold; hashable, so that it can be a static argument."""

    def project_tangent(self, x: jax.Array, g: jax.Array, /) -> jax.Array:
        """Project g onto the tangent space at x."""

    def egrad2rgrad(self, x: jax.Array, g: jax.Array, /) -> jax.Array:
        """Riemannian gradient from the gradient g of the entries of x."""

    def retract(self, x: jax.Array, v: jax.Array, /) -> jax.Array:
        """Point that a tangent step v from x leads to."""

    def transport(self, x: jax.Array, y: jax.Array, v: jax.Array, /) -> jax.Array:
        """Carry the tangent vector v from x to y.

        For methods that carry vectors themselves, such as conjugate gradients. :func:`riemannian` does not call it:
        it projects what its optimiser remembers at every new point.
        """

    def inner(self, x: jax.Array, u: jax.Array, v: jax.Array, /) -> jax.Array:
        """Inner product of tangent vectors at x, without the trailing axes of a point."""


@dataclasses.dataclass(frozen=True)
class Stiefel:
    """Frames ``(..., n, p)``, see :mod:`manifolds.stiefel`.

    Attributes:
        retraction: the method of :func:`manifolds.stiefel.retract`.
    """

    retraction: stiefel.Method = "qr"

    def __post_init__(self) -> None:
        _check_method(self)

    project_tangent = staticmethod(stiefel.project_tangent)
    egrad2rgrad = staticmethod(stiefel.egrad2rgrad)
    transport = staticmethod(stiefel.transport)
    inner = staticmethod(stiefel.inner)

    def retract(self, x: jax.Array, v: jax.Array, /) -> jax.Array:
        """Retract by the chosen method."""
        return stiefel.retract(x, v, method=self.retraction)


@dataclasses.dataclass(frozen=True)
class Grassmann:
    """Subspaces, held as frames ``(..., n, p)``, see :mod:`manifolds.grassmann`.

    Attributes:
        retraction: the method of :func:`manifolds.stiefel.retract`.
    """

    retraction: stiefel.Method = "qr"

    def __post_init__(self) -> None:
        _check_method(self)

    project_tangent = staticmethod(grassmann.project_horizontal)
    egrad2rgrad = staticmethod(grassmann.project_horizontal)
    inner = staticmethod(stiefel.inner)

    def retract(self, x: jax.Array, v: jax.Array, /) -> jax.Array:
        """Retract by the chosen method."""
        return stiefel.retract(x, v, method=self.retraction)

    def transport(self, x: jax.Array, y: jax.Array, v: jax.Array, /) -> jax.Array:
        """Project v onto the horizontal space at y."""
        return grassmann.project_horizontal(y, v)


def _check_method(manifold: Stiefel | Grassmann) -> None:
    if manifold.retraction not in get_args(stiefel.Method):
        wanted = ", ".join(get_args(stiefel.Method))
        kind = type(manifold).__name__
        raise ValueError(f"{kind}: retraction must be one of {wanted}, got {manifold.retraction!r}")


@dataclasses.dataclass(frozen=True)
class Sphere:
    """Unit vectors ``(..., d)``, see :mod:`manifolds.sphere`."""

    project_tangent = staticmethod(sphere.project_tangent)
    egrad2rgrad = staticmethod(sphere.egrad2rgrad)
    retract = staticmethod(sphere.retract)
    transport = staticmethod(sphere.transport)
    inner = staticmethod(sphere.inner)


@dataclasses.dataclass(frozen=True)
class Euclidean:
    """Arrays of any shape, all axes of which make one point."""

    def project_tangent(self, x: jax.Array, g: jax.Array, /) -> jax.Array:
        """Return g: every vector is tangent."""
        return g

    def egrad2rgrad(self, x: jax.Array, g: jax.Array, /) -> jax.Array:
        """Return g: the gradient itself."""
        return g

    def retract(self, x: jax.Array, v: jax.Array, /) -> jax.Array:
        """Return ``x + v``."""
        return x + v

    def transport(self, x: jax.Array, y: jax.Array, v: jax.Array, /) -> jax.Array:
        """Return v: all tangent spaces are the same."""
        return v

    def inner(self, x: jax.Array, u: jax.Array, v: jax.Array, /) -> jax.Array:
        """Sum of ``u * v`` over all axes."""
        return jnp.sum(u * v)


def riemannian(inner: optax.GradientTransformation, manifold: Manifold) -> optax.GradientTransformation:
    """Run an optax optimiser on a manifold.

    A step is ``egrad2rgrad -> inner -> project_tangent -> retract``. Momentum held by ``inner`` meets the
    projection at each new point, which serves as its transport; ``transport`` and ``inner`` of the manifold are not
    called. Scaling by coordinates, as Adam does, depends
    on the basis of the ambient space; the projection makes its result a valid tangent step all the same.
    Weight decay has no meaning here: it moves along the normal, which the projection removes.

    Args:
        inner: any optimiser or chain: schedules, clipping, momentum, Adam.
        manifold: of every leaf of the parameters.

    Returns:
        A transformation whose ``update`` needs ``params``. ``optax.apply_updates`` adds the difference of two
        points, which costs one rounding a step and does not accumulate.
    """
    links = riemannian_gradient(manifold), retract_updates(manifold)
    if not (callable(getattr(inner, "init", None)) and callable(getattr(inner, "update", None))):
        raise TypeError(f"riemannian: inner must be an optax optimiser such as optax.sgd(0.1), got {inner!r}")
    return optax.chain(links[0], inner, links[1])


def riemannian_gradient(manifold: Manifold) -> optax.GradientTransformation:
    """First link of a hand-made chain: turns gradients of entries into Riemannian gradients."""
    _check_manifold(manifold, "egrad2rgrad")

    def update(updates: optax.Updates, params: optax.Params) -> optax.Updates:
        return jax.tree.map(lambda g, x: manifold.egrad2rgrad(x, g), updates, _required(params))

    return optax.stateless(update)


def retract_updates(manifold: Manifold) -> optax.GradientTransformation:
    """Last link of a hand-made chain: turns a step u into ``retract(x, project_tangent(x, u)) - x``."""
    _check_manifold(manifold, "project_tangent", "retract")

    def step(u: jax.Array, x: jax.Array) -> jax.Array:
        return manifold.retract(x, manifold.project_tangent(x, u)) - x

    def update(updates: optax.Updates, params: optax.Params) -> optax.Updates:
        return jax.tree.map(step, updates, _required(params))

    return optax.stateless(update)


def _check_manifold(manifold: Any, *methods: str) -> None:
    if isinstance(manifold, type):
        name = manifold.__name__
        raise TypeError(f"manifold must be an object, got the class {name}; make one by {name}()")
    missing = [method for method in methods if not callable(getattr(manifold, method, None))]
    if missing:
        raise TypeError(
            f"manifold must have the methods of optim.Manifold, got {type(manifold).__name__} without "
            f"{' and '.join(missing)}; the order is riemannian(inner, manifold)"
        )


def _required(params: optax.Params | None) -> optax.Params:
    if params is None:
        raise ValueError("a step on a manifold starts at a point: call update(gradients, state, params)")
    return params
