"""The checkers accept what is right and expose what is wrong; the doctests of the package run."""

import doctest
import types

import jax
import jax.numpy as jnp
import pytest

from manifolds import optim, sphere, stiefel, testing

KEY = jax.random.key(8)
OTHER = jax.random.key(90)  # for directions: those of the key of a point would be parallel to it


def worst(errors):
    return max(errors.values())


MANIFOLDS = [
    (optim.Stiefel("qr"), 1, (2, 6, 3)),
    (optim.Stiefel("polar"), 2, (2, 6, 3)),
    (optim.Stiefel("cayley"), 1, (2, 6, 3)),
    (optim.Grassmann("polar"), 2, (2, 6, 3)),
    (optim.Sphere(), 2, (2, 5)),
    (optim.Euclidean(), 2, (2, 5)),
]


@pytest.mark.parametrize(("manifold", "order", "shape"), MANIFOLDS, ids=[repr(m[0]) for m in MANIFOLDS])
def test_manifolds_prove_themselves(manifold, order, shape, x64):
    module = stiefel if len(shape) == 3 else sphere
    x = module.random(KEY, shape, jnp.float64)
    u, w = jax.random.normal(OTHER, (2, *shape))
    assert worst(testing.check_projection(manifold, x, u, w)) < 1e-12
    v, w_tangent = manifold.project_tangent(x, u), manifold.project_tangent(x, w)
    assert worst(testing.check_retraction(manifold, x, v, order)) < 1e-12
    for y in (manifold.retract(x, v), module.random(jax.random.key(9), shape, jnp.float64)):
        assert worst(testing.check_transport(manifold, x, y, v, w_tangent)) < 1e-12
    assert worst(testing.check_inner(manifold, x, v, w_tangent)) < 1e-12
    if isinstance(manifold, optim.Grassmann):
        f = lambda x: jnp.sum(w[0] * (x @ (x.mT @ w[0])))  # noqa: E731
    else:
        f = lambda x: jnp.sum(w[0] * x**3)  # noqa: E731
    assert worst(testing.check_gradient(f, manifold, x[0], manifold.project_tangent(x[0], u[0]))) < 1e-12


def test_checkers_expose_a_wrong_manifold():
    x = sphere.random(KEY, (5,))
    v = sphere.random_tangent(OTHER, x)
    wrong = types.SimpleNamespace(
        retract=lambda x, v: sphere.project(x + v + v),
        project_tangent=lambda x, g: g - x,
        egrad2rgrad=lambda x, g: g,
        inner=sphere.inner,
    )
    assert testing.check_retraction(wrong, x, v)["velocity"] > 0.1
    assert testing.check_projection(wrong, x, v, x)["idempotent"] > 0.1
    assert testing.check_gradient(lambda x: jnp.sum(x**3), wrong, x, v)["tangent"] > 0.1
    assert testing.check_retraction(optim.Sphere(), 1.1 * x, v)["identity"] > 0.01


class Positive:
    """The manifold of the README: an open set with a metric of its own."""

    def project_tangent(self, x, g):
        return g

    def egrad2rgrad(self, x, g):
        return x**2 * g

    def retract(self, x, v):
        return x * jnp.exp(v / x)

    def transport(self, x, y, v):
        return y / x * v

    def inner(self, x, u, v):
        return jnp.sum(u * v / x**2, axis=-1)


def test_an_open_set_with_a_metric_of_its_own_proves_itself(x64):
    x, y = jnp.exp(jax.random.normal(KEY, (2, 4, 3)))
    u, v = jax.random.normal(jax.random.key(1), (2, 4, 3))
    assert worst(testing.check_retraction(Positive(), x, v)) < 1e-12
    assert worst(testing.check_transport(Positive(), x, y, u, v)) < 1e-12
    assert worst(testing.check_inner(Positive(), x, u, v)) < 1e-12
    assert worst(testing.check_gradient(lambda x: jnp.sum(x**3), Positive(), x[0], v[0])) < 1e-10


@pytest.mark.parametrize("base", [optim.Sphere, optim.Stiefel, optim.Grassmann])
def test_a_retraction_that_leaves_the_manifold_is_exposed(base):
    class Wrong(base):
        def retract(self, x, v):
            return x + v

    module, shape = (sphere, (2, 5)) if base is optim.Sphere else (stiefel, (2, 6, 3))
    x = module.random(KEY, shape)
    v = base().project_tangent(x, jax.random.normal(jax.random.key(1), shape))
    errors = testing.check_retraction(Wrong(), x, v)
    assert errors["landing"] > 0.1
    assert max(errors["identity"], errors["velocity"]) < 1e-5
    assert testing.check_retraction(base(), x, v)["landing"] < 1e-5


@pytest.mark.parametrize(
    ("transport", "exposed"),
    [
        (lambda x, y, v: v, {"tangent"}),
        (lambda x, y, v: 2 * sphere.project_tangent(y, v), {"identity"}),
        (lambda x, y, v: sphere.project_tangent(y, v * jnp.abs(v) / jnp.abs(v)), set()),
        (lambda x, y, v: sphere.project_tangent(y, jnp.sin(v)), {"linear", "identity"}),
    ],
    ids=["not tangent", "twice", "right", "not linear"],
)
def test_a_wrong_transport_is_exposed(transport, exposed):
    x, y = sphere.random(KEY, (2, 4, 5))
    u, v = (sphere.random_tangent(jax.random.key(k), x) for k in (1, 2))
    wrong = types.SimpleNamespace(project_tangent=sphere.project_tangent, transport=transport)
    errors = testing.check_transport(wrong, x, y, u, v)
    assert {name for name, error in errors.items() if error > 1e-2} == exposed
    assert all(error < 1e-5 for name, error in errors.items() if name not in exposed)


@pytest.mark.parametrize(
    ("inner", "exposed"),
    [
        (lambda x, u, v: jnp.sum(u * v * jnp.asarray([1.0, 2, 3]), -1), set()),
        (lambda x, u, v: jnp.sum(u * v * jnp.asarray([1.0, 1, -9]), -1), {"positive"}),
        (lambda x, u, v: 0 * jnp.sum(u * v, -1), {"positive"}),
        (lambda x, u, v: jnp.sum(u, -1) * jnp.sum(v, -1), {"positive"}),
        (lambda x, u, v: jnp.sum(u * (2 * v + jnp.roll(v, 1, -1)), -1), {"symmetric"}),
        (lambda x, u, v: jnp.sum(u**2 * v**2, -1), {"linear"}),
    ],
    ids=["right", "indefinite", "zero", "degenerate", "not symmetric", "not linear"],
)
def test_a_wrong_inner_product_is_exposed(inner, exposed):
    x, u, v = jnp.ones(3), jnp.asarray([1.0, 0, 2]), jnp.asarray([0.5, 1, -1])
    errors = testing.check_inner(types.SimpleNamespace(inner=inner), x, u, v)
    assert {name for name, error in errors.items() if error > 1e-2} == exposed


def test_qr_is_exposed_as_not_of_second_order(x64):
    X = stiefel.random(KEY, (6, 3), jnp.float64)
    V = stiefel.random_tangent(OTHER, X)
    assert testing.check_retraction(optim.Stiefel("qr"), X, V, order=2)["acceleration"] > 1e-2
    with pytest.raises(ValueError, match="order must be 1 or 2"):
        testing.check_retraction(optim.Stiefel(), X, V, order=3)


def test_transforms_are_told_apart():
    def depends_on_the_batch(x):
        return x - x.mean()

    assert testing.check_vmap(jnp.sin, (jnp.arange(3.0),)) < 1e-6
    assert testing.check_vmap(depends_on_the_batch, (jnp.arange(6.0).reshape(3, 2),)) > 0.1
    assert testing.check_jit(jnp.sin, (jnp.arange(3.0),)) < 1e-6


@pytest.mark.parametrize("module", [optim, testing], ids=["optim", "testing"])
def test_doctests(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


def test_nothing_to_check_and_integers_are_refused():
    manifold, f = optim.Sphere(), jnp.sum
    checks = {
        "check_retraction": lambda x: testing.check_retraction(manifold, x, x),
        "check_projection": lambda x: testing.check_projection(manifold, x, x, x),
        "check_transport": lambda x: testing.check_transport(manifold, x, x, x, x),
        "check_inner": lambda x: testing.check_inner(manifold, x, x, x),
        "check_gradient": lambda x: testing.check_gradient(f, manifold, x, x),
    }
    for name, check in checks.items():
        with pytest.raises(ValueError, match=rf"{name}: x has shape \(0, 5\) and no entries"):
            check(jnp.ones((0, 5)))
        with pytest.raises(TypeError, match=rf"{name}: x must have a real floating dtype, got int32"):
            check(jnp.ones(5, jnp.int32))
