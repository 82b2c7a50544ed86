"""Subspaces: horizontal projection against the tangent one, angles, distance."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from manifolds import grassmann, stiefel
from tests.manifolds.common import double, eps, gap, rotation

pytestmark = pytest.mark.usefixtures("strict")

KEY = jax.random.key(4)


def test_both_projections_agree_on_functions_of_the_subspace(dtype):
    X = stiefel.random(KEY, (20, 4), dtype)
    A = jax.random.normal(KEY, (20, 20), dtype)

    def objective(X):
        return jnp.sum(jnp.matmul(A, jnp.matmul(X, X.mT, precision="highest"), precision="highest") ** 2)

    G = jax.grad(objective)(X)
    horizontal = grassmann.project_horizontal(X, G)
    assert gap(
        stiefel.project_tangent(X, G) / jnp.max(jnp.abs(G)), horizontal / jnp.max(jnp.abs(G))
    ) <= 20 * eps(dtype)
    assert gap(jnp.matmul(X.mT, horizontal, precision="highest") / jnp.max(jnp.abs(G)), 0) <= 20 * eps(dtype)


def test_only_the_tangent_projection_can_turn_a_frame():
    """Consensus on a frame: from a rotation of the target, horizontal steps cannot move at all."""
    Z = stiefel.random(KEY, (888, 24))
    start = jnp.matmul(Z, rotation(5, 24, jnp.float32), precision="highest")
    if np.linalg.det(double(Z).T @ double(start)) < 0:  # no path leads from one orientation to the other
        start = start.at[:, 0].multiply(-1)

    def descend(project):
        def step(X, _):
            return stiefel.retract(X, -0.1 * project(X, X - Z)), None

        return jax.jit(lambda X: jax.lax.scan(step, X, length=400)[0])(start)

    assert np.linalg.norm(double(descend(stiefel.project_tangent)) - double(Z)) < 1e-5
    assert np.linalg.norm(double(descend(grassmann.project_horizontal)) - double(Z)) > 1


def test_principal_angles_match_scipy_and_stay_accurate_when_tiny(dtype):
    X, Y = stiefel.random(KEY, (2, 20, 4), dtype)
    exact = np.sort(scipy.linalg.subspace_angles(double(X), double(Y)))
    assert gap(grassmann.principal_angles(X, Y), exact) <= 50 * eps(dtype)
    X, H = jnp.eye(20, 4, dtype=dtype), jnp.eye(20, 4, -4, dtype=dtype)
    tiny = jnp.asarray([1e-9, 1e-7, 1e-3, 0.1], dtype)
    Y = X * jnp.cos(tiny)[None] + H * jnp.sin(tiny)[None]
    np.testing.assert_allclose(double(grassmann.principal_angles(X, Y)), double(tiny), rtol=50 * eps(dtype))


def test_distance_ignores_the_frame(dtype):
    X, Y = stiefel.random(KEY, (2, 20, 4), dtype)
    turned = jnp.matmul(X, rotation(3, 4, dtype), precision="highest")
    assert gap(grassmann.dist(turned, Y), grassmann.dist(X, Y)) <= 20 * eps(dtype)
    assert double(grassmann.dist(turned, X)) <= 20 * eps(dtype)
    assert gap(grassmann.dist(X, Y), np.linalg.norm(double(grassmann.principal_angles(X, Y)))) <= 8 * eps(
        dtype
    )
