"""The checkers accept what is right and expose what is wrong; the doctests of the package run."""

import doctest
import types

import jax
import jax.numpy as jnp
import pytest

from manifolds import optim, sphere, stiefel, testing

KEY = jax.random.key(8)


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
    u, w = jax.random.normal(KEY, (2, *shape))
    assert worst(testing.check_projection(manifold, x, u, w)) < 1e-12
    assert worst(testing.check_retraction(manifold, x, manifold.project_tangent(x, u), order)) < 1e-12
    if isinstance(manifold, optim.Grassmann):
        f = lambda x: jnp.sum(w[0] * (x @ (x.mT @ w[0])))  # noqa: E731
    else:
        f = lambda x: jnp.sum(w[0] * x**3)  # noqa: E731
    assert worst(testing.check_gradient(f, manifold, x[0], manifold.project_tangent(x[0], u[0]))) < 1e-12


def test_checkers_expose_a_wrong_manifold():
    x = sphere.random(KEY, (5,))
    v = sphere.random_tangent(KEY, x)
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


def test_qr_is_exposed_as_not_of_second_order(x64):
    X = stiefel.random(KEY, (6, 3), jnp.float64)
    V = stiefel.random_tangent(KEY, X)
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
