"""Subspaces: horizontal projection against the tangent one, angles, distance."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from manifolds import grassmann, stiefel
from tests.manifolds.common import check_derivatives, double, eps, gap, rotation

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


ANGLES = [
    (0, 0, 0),
    (1e-6, 1e-6, 1e-6),
    (1e-3, 1e-2, 0.1),
    (0.7, 0.7, 0.7),
    (0.1, 0.1001, 0.5),
    (0, 0, 1),
    (0.3, 1, 1.5),
]


@pytest.mark.parametrize("angles", ANGLES, ids=str)
def test_squared_distance_has_the_derivatives_of_the_textbook(angles, dtype):
    """Half of it: ``-log`` as gradient; second derivative 1 along the geodesics, ``angle / tan(angle)`` beside them.

    "Beside" is a direction orthogonal to both subspaces: there each angle is that of two points of a sphere.
    """
    basis, angle = stiefel.random(KEY, (20, 9), dtype), jnp.asarray(angles, dtype)
    X, H, K = basis[:, :3], basis[:, 3:6], basis[:, 6:]
    turn = rotation(3, 3, dtype)

    def times(A, B):
        return jnp.matmul(A, B, precision="highest")

    Y = times(X * jnp.cos(angle)[None] + H * jnp.sin(angle)[None], turn)
    forward = H * jnp.cos(angle)[None] - X * jnp.sin(angle)[None]
    D = jax.random.normal(KEY, (3, 3), dtype)
    zero = jnp.zeros((), dtype)

    def half(X, Y):
        return grassmann.squared_dist(X, Y) / 2

    gradient_x, gradient_y = jax.grad(half, (0, 1))(X, Y)
    assert gap(gradient_x, -H * angle[None]) <= 40 * eps(dtype)
    assert gap(gradient_y, times(forward * angle[None], turn)) <= 40 * eps(dtype)
    speeds = jnp.asarray([1, 2, 3], dtype)
    factors = np.array([a / np.tan(a) if a else 1.0 for a in angles])
    for V, exact in (
        (forward * speeds[None], 14.0),
        (times(K, D), np.sum(double(D) ** 2 * factors[None])),
    ):
        V = times(V, turn)
        for f in (half, lambda X, Y: half(Y, X)):
            along = jax.grad(jax.grad(lambda t, f=f, V=V: f(X, stiefel.retract(Y, t * V, method="polar"))))
            assert gap(along(zero), exact) <= (100 * eps(dtype) ** 0.9) * 14


def test_derivatives_of_distances_match_finite_differences(x64):
    X, Y = jax.random.normal(KEY, (2, 8, 3))
    for f, order in ((grassmann.squared_dist, 2), (grassmann.dist, 2), (grassmann.principal_angles, 1)):
        check_derivatives(lambda X, Y, f=f: f(stiefel.qf(X), stiefel.qf(Y)), (X, Y), order)


def test_distance_has_zero_gradient_at_equal_frames_and_a_finite_one_at_equal_angles(dtype):
    X = stiefel.random(KEY, (4, 20, 3), dtype)
    for f in (grassmann.dist, grassmann.squared_dist):
        assert gap(f(X, X), 0) == 0
        for gradient in jax.grad(lambda X, Y, f=f: jnp.sum(f(X, Y)), (0, 1))(X, X):
            assert gap(gradient, 0) == 0
    E, angle = jnp.eye(6, dtype=dtype), jnp.asarray(0.4, dtype)
    Y = E[:, :3] * jnp.cos(angle) + E[:, 3:] * jnp.sin(angle)
    gradient = jax.grad(grassmann.dist)(E[:, :3], Y)
    assert gap(gradient, -double(E[:, 3:]) / np.sqrt(3)) <= 20 * eps(dtype)
