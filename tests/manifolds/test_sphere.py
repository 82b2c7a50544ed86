"""Unit vectors: SLERP at every angle, exp and log, distances, transport, means, derivatives at the edges."""

import chex
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from manifolds import sphere
from tests.manifolds.common import check_derivatives, double, eps, gap, rotation

pytestmark = pytest.mark.usefixtures("strict")

KEY = jax.random.key(2)
OTHER = jax.random.key(90)  # for directions: those of the key of a point would be parallel to it
DIMENSIONS = (2, 3, 16, 128)
ANGLES = (0.0, 1e-12, 1e-8, 1e-4, 0.1, 1.0, np.pi / 2, 2.5, np.pi - 1e-4, np.pi - 1e-7, np.pi)
TIMES = (-1.0, -0.3, 0.0, 0.2, 0.5, 0.7, 1.0, 1.6, 2.0)


def pairs(d, dtype, angles=ANGLES):
    """For every angle, two points that far apart, rounded to the dtype: ``(len(angles), d)`` each."""
    rng = np.random.default_rng(d)
    x, u = rng.normal(size=(2, len(angles), d))
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    u -= x * np.sum(x * u, -1, keepdims=True)
    u /= np.linalg.norm(u, axis=-1, keepdims=True)
    theta = np.asarray(angles)[:, None]
    y = np.where(theta == np.pi, -x, np.cos(theta) * x + np.sin(theta) * u)
    return jnp.asarray(x, dtype), jnp.asarray(y, dtype)


def chord(a, b):
    return np.linalg.norm(double(a) - double(b), axis=-1)


@pytest.mark.parametrize("d", DIMENSIONS)
def test_slerp_has_unit_norm_exact_ends_and_constant_speed(d, dtype):
    x, y = pairs(d, dtype)
    times = jnp.asarray(TIMES, dtype)[:, None]
    points = sphere.slerp(x, y, times)
    assert np.abs(np.linalg.norm(double(points), axis=-1) - 1).max() <= 4 * eps(dtype)
    assert gap(sphere.slerp(x, y, 0), x) == 0
    assert gap(sphere.slerp(x, y, 1.0), y) == 0
    grid = sphere.slerp(x, y, jnp.linspace(0, 1, 9, dtype=dtype)[:, None])
    chords = chord(grid[1:], grid[:-1])
    assert np.ptp(chords, axis=0).max() <= 16 * eps(dtype)


@pytest.mark.parametrize("d", DIMENSIONS)
def test_slerp_is_symmetric_and_additive_and_turns_with_its_ends(d, dtype):
    x, y = pairs(d, dtype, ANGLES[:-1])
    rest = jnp.asarray(1, dtype)
    for t in (0.2, 0.5, 0.9):
        t = jnp.asarray(t, dtype)
        point = sphere.slerp(x, y, t)
        # What rounding x + y does to the great circle is inherent, and only felt near pi.
        bound = 16 * eps(dtype) * np.maximum(1, 1 / np.sin(np.maximum(np.asarray(ANGLES[:-1]), np.pi / 2)))
        near = np.asarray(ANGLES[:-1]) < 3
        assert (chord(point, sphere.slerp(y, x, rest - t)) <= 16 * eps(dtype)).all()
        further = sphere.slerp(point, y, jnp.asarray(0.3, dtype))
        expected = sphere.slerp(x, y, t + jnp.asarray(0.3, dtype) * (rest - t))
        assert (chord(further, expected)[near] <= 16 * eps(dtype)).all()
        O = rotation(3, d, dtype)  # noqa: E741
        with jax.default_matmul_precision("highest"):
            turned = sphere.slerp(x @ O.T, y @ O.T, t)
            assert (chord(turned, point @ O.T) <= 4 * bound).all()


@pytest.mark.parametrize("d", [2, 3, 4])
def test_slerp_between_antipodes_is_a_fixed_half_circle(d, dtype):
    x = sphere.random(KEY, (50, d), dtype)
    middle = sphere.slerp(x, -x, 0.5)
    assert gap(sphere.slerp(x, -x, 0), x) == 0
    assert gap(sphere.slerp(x, -x, 1), -x) == 0
    assert gap(sphere.norm(x, middle), jnp.ones(50, dtype)) <= 4 * eps(dtype)
    assert gap(sphere.inner(x, middle, x), jnp.zeros(50, dtype)) <= 4 * eps(dtype)
    looped = jnp.stack([jax.jit(sphere.slerp)(p, -p, 0.5) for p in x])
    assert gap(middle, looped) <= 2 * eps(dtype)
    # Rounding may push the cosine below -1 or leave y not quite opposite.
    y = -x * jnp.asarray(1 + 4 * eps(dtype), dtype)
    double(sphere.slerp(x, y, 0.5)), double(jax.grad(lambda x: jnp.sum(sphere.slerp(x, y, 0.5)))(x))


@pytest.mark.parametrize("d", DIMENSIONS)
def test_gradients_are_finite_and_tangent_everywhere(d, dtype):
    x, y = pairs(d, dtype)
    W = jax.random.normal(OTHER, x.shape, dtype)

    def radial(point, g):
        return np.abs(np.sum(double(point) * double(g), -1)) / (1 + np.linalg.norm(double(g), axis=-1))

    slerp_gradient = jax.jit(jax.grad(lambda *args: jnp.sum(W * sphere.slerp(*args)), argnums=(0, 1, 2)))
    # Near pi the gradient holds quotients by the sine of the angle, and its rounding does too.
    amplified = np.maximum(1, 1 / np.maximum(np.sin(np.maximum(ANGLES, np.pi / 2)), 1e-9))
    for t in TIMES:
        gx, gy, gt = slerp_gradient(x, y, jnp.asarray(t, dtype))
        double(gt)
        assert (radial(x, gx) <= 64 * eps(dtype) * amplified).all()
        assert (radial(y, gy) <= 64 * eps(dtype) * amplified).all()
    for f in (sphere.log, lambda x, y: sphere.dist(x, y)[..., None], lambda x, y: sphere.transport(x, y, W)):
        gradient = jax.jit(jax.grad(lambda x, y, f=f: jnp.sum(W * f(x, y)), argnums=(0, 1)))
        gx, gy = gradient(x, y)
        assert (radial(x, gx) <= 64 * eps(dtype) * amplified).all()
        assert (radial(y, gy) <= 64 * eps(dtype) * amplified).all()
    for f in (sphere.exp, sphere.retract):
        double(jax.jit(jax.grad(lambda v, f=f: jnp.sum(W * f(x, v))))(0 * x))


def test_gradient_of_slerp_at_equal_points_is_the_weighted_projection(dtype):
    x = sphere.random(KEY, (5, 16), dtype)
    W = jax.random.normal(OTHER, x.shape, dtype)
    t = jnp.asarray(0.3, dtype)
    gx, gy = jax.grad(lambda x, y: jnp.sum(W * sphere.slerp(x, y, t)), argnums=(0, 1))(x, x)
    P = sphere.project_tangent(x, W)
    assert gap(gx, (1 - t) * P) <= 8 * eps(dtype)
    assert gap(gy, t * P) <= 8 * eps(dtype)


def test_gradient_of_log_at_equal_points_is_the_projection(dtype):
    x = sphere.random(KEY, (5, 16), dtype)
    W = jax.random.normal(OTHER, x.shape, dtype)
    gx, gy = jax.grad(lambda x, y: jnp.sum(W * sphere.log(x, y)), argnums=(0, 1))(x, x)
    P = sphere.project_tangent(x, W)
    assert gap(gx, -P) <= 8 * eps(dtype)
    assert gap(gy, P) <= 8 * eps(dtype)


def test_derivatives_match_finite_differences(x64):
    x, y, v = jax.random.normal(KEY, (3, 4, 5))
    t = jnp.linspace(-0.4, 1.3, 4)
    on = sphere.project
    check_derivatives(lambda x, y, t: sphere.slerp(on(x), on(y), t), (x, y, t), order=2)
    check_derivatives(lambda x, y: sphere.log(on(x), on(y)), (x, y), order=2)
    check_derivatives(lambda x, y: sphere.dist(on(x), on(y)), (x, y), order=2)
    check_derivatives(lambda x, v: sphere.exp(on(x), sphere.project_tangent(on(x), v)), (x, v), order=2)


def test_exp_differentiates_twice_at_zero(x64):
    x = sphere.random(KEY, (4, 5), jnp.float64)
    check_derivatives(lambda v: sphere.exp(x, sphere.project_tangent(x, v)), (0 * x,), order=2)


def test_second_derivatives_of_slerp_are_finite_everywhere(dtype):
    x, y = pairs(3, dtype)

    def objective(x, y):
        return jnp.sum(sphere.slerp(x, y, 0.3) ** 3)

    double(jax.vmap(jax.hessian(objective))(x, y))


@pytest.mark.parametrize("d", DIMENSIONS)
def test_exp_inverts_log_and_dist_measures_exp(d, dtype):
    x, y = pairs(d, dtype)
    v = sphere.log(x, y)
    assert gap(sphere.exp(x, v), y) <= 16 * eps(dtype)
    assert np.abs(np.sum(double(x) * double(v), -1)).max() <= 8 * eps(dtype)
    assert gap(sphere.norm(x, v), sphere.dist(x, y)) <= 16 * eps(dtype)
    u = sphere.random_tangent(OTHER, x)
    for size in (0.0, 1e-3, 1.0, 3.0):
        size = jnp.asarray(size, dtype)
        assert gap(sphere.dist(x, sphere.exp(x, size * u)), jnp.broadcast_to(size, x.shape[:1])) <= 16 * eps(
            dtype
        )


def test_tiny_distances_and_logarithms_keep_their_relative_accuracy(dtype):
    for size in (1e-5, 1e-12, 1e-30):
        size = jnp.asarray(size, dtype)
        x = jnp.array([1.0, 0.0, 0.0], dtype)
        y = x.at[1].set(size)
        assert double(sphere.dist(x, y)) == pytest.approx(double(size), rel=4 * eps(dtype))
        assert double(sphere.dist(x, -y)) == pytest.approx(np.pi - double(size), rel=4 * eps(dtype))
        assert double(sphere.log(x, y)[1]) == pytest.approx(double(size), rel=4 * eps(dtype))
    rng = np.random.default_rng(0)
    size = 1e-12 if dtype == jnp.float64 else 1e-5
    x = sphere.random(KEY, (100, 8), dtype)
    y = sphere.project(x + jnp.asarray(size * rng.normal(size=x.shape), dtype))
    exact = double(y) - double(x)
    exact -= double(x) * np.sum(double(x) * exact, -1, keepdims=True)
    tangent = np.linalg.norm(exact, axis=-1)
    if dtype == jnp.float32:  # at 1e-12 the rounding of the points outweighs their distance
        halves = [np.linalg.norm(double(x) + sign * double(y), axis=-1) for sign in (-1, 1)]
        assert np.abs(double(sphere.dist(x, y)) / (2 * np.arctan2(*halves)) - 1).max() <= 8 * eps(dtype)
        assert np.abs(double(sphere.norm(x, sphere.log(x, y))) / tangent - 1).max() <= 8 * eps(dtype)


@hypothesis.given(st.integers(0, 2**31 - 1), st.sampled_from(DIMENSIONS))
@hypothesis.settings(max_examples=20, deadline=None)
def test_distance_satisfies_the_triangle_inequality(seed, d):
    x, y, z = jnp.asarray(np.random.default_rng(seed).normal(size=(3, 30, d)), jnp.float32)
    x, y, z = sphere.project(x), sphere.project(y), sphere.project(z)
    slack = 8 * eps(jnp.float32)
    assert (double(sphere.dist(x, z)) <= double(sphere.dist(x, y)) + double(sphere.dist(y, z)) + slack).all()
    assert gap(sphere.dist(x, y), sphere.dist(y, x)) <= slack


@pytest.mark.parametrize("d", DIMENSIONS)
def test_transport_is_an_isometry_along_the_geodesic(d, dtype):
    x, y = pairs(d, dtype)
    u, v = sphere.random_tangent(OTHER, x), sphere.random_tangent(jax.random.key(9), x)
    Tu, Tv = sphere.transport(x, y, u), sphere.transport(x, y, v)
    assert gap(sphere.inner(y, Tu, Tv), sphere.inner(x, u, v)) <= 16 * eps(dtype)
    assert np.abs(np.sum(double(y) * double(Tu), -1)).max() <= 16 * eps(dtype)
    near = slice(None, -2)  # the great circles of y to x and of x to y differ for antipodes
    arrived = sphere.transport(x[near], y[near], sphere.log(x[near], y[near]))
    assert gap(arrived, -sphere.log(y[near], x[near])) <= 1e3 * eps(dtype)


def test_transport_agrees_with_the_textbook_formula(dtype):
    x, y, v = sphere.random(KEY, (3, 20, 7), dtype)
    v = sphere.project_tangent(x, v)
    c = np.sum(double(x) * double(y), -1, keepdims=True)
    textbook = double(v) - np.sum(double(y) * double(v), -1, keepdims=True) / (1 + c) * (
        double(x) + double(y)
    )
    assert gap(sphere.transport(x, y, v), textbook) <= 50 * eps(dtype)


def test_projections_and_hessian(dtype):
    x = sphere.random(KEY, (4, 5), dtype)
    g, h = jax.random.normal(OTHER, (2, 4, 5), dtype)
    Pg, Ph = sphere.project_tangent(x, g), sphere.project_tangent(x, h)
    assert gap(sphere.project_tangent(x, Pg), Pg) <= 8 * eps(dtype)
    assert gap(sphere.inner(x, Pg, h), sphere.inner(x, g, Ph)) <= 8 * eps(dtype)
    assert gap(sphere.egrad2rgrad(x, g), Pg) == 0


def test_hessian_is_the_second_derivative_along_geodesics(x64):
    x = sphere.random(KEY, (5,), jnp.float64)
    v = sphere.random_tangent(jax.random.key(5), x)

    def objective(x):
        return jnp.sum(jnp.arange(5.0) * x**3)

    g, hg = jax.jvp(jax.grad(objective), (x,), (v,))
    along = jax.grad(jax.grad(lambda t: objective(sphere.exp(x, t * v))))(0.0)
    assert gap(along, sphere.inner(x, v, sphere.ehess2rhess(x, g, hg, v))) <= 1e-12


def test_project_is_defined_at_zero_and_scale_free(dtype):
    zero = jnp.zeros((2, 3), dtype)
    assert gap(sphere.project(zero), jnp.eye(3, dtype=dtype)[:1]) == 0
    assert gap(jax.jacobian(sphere.project)(zero), 0) == 0
    y = jax.random.normal(KEY, (4, 3), dtype)
    for scale in (1e-30, 1e30):
        assert gap(sphere.project(jnp.asarray(scale, dtype) * y), sphere.project(y)) <= 2 * eps(dtype)


def test_norm_has_zero_gradient_at_zero(dtype):
    x = sphere.random(KEY, (4,), dtype)
    assert gap(jax.grad(lambda v: sphere.norm(x, v))(0 * x), 0 * x) == 0


def test_means(dtype):
    x = sphere.random(KEY, (4,), dtype)
    cloud = sphere.exp(
        x, jnp.asarray(0.4, dtype) * sphere.random_tangent(OTHER, jnp.broadcast_to(x, (50, 4)))
    )
    weights = jnp.arange(50, dtype=dtype)
    total = np.sum(double(weights)[:, None] * double(cloud), 0)
    assert gap(sphere.mean(cloud, weights), total / np.linalg.norm(total)) <= 20 * eps(dtype)
    center = sphere.frechet_mean(cloud, weights)
    pull = np.sum(double(weights)[:, None] * double(sphere.log(center, cloud)), 0) / double(weights).sum()
    assert np.abs(pull).max() <= 20 * eps(dtype)
    batch = jnp.stack([cloud, cloud[::-1]], 1)
    twice = jnp.stack([weights, weights[::-1]], 1)
    for average in (sphere.mean, sphere.frechet_mean):
        once = average(cloud, weights)
        assert gap(average(batch, twice), jnp.stack([once, once])) <= 20 * eps(dtype)
        assert gap(
            average(jnp.swapaxes(batch, 0, 1), jnp.swapaxes(twice, 0, 1), axis=-2)[0], once
        ) <= 20 * eps(dtype)
        for bad in (-1, 1, 7):
            with pytest.raises(ValueError, match="leading axis"):
                average(cloud, axis=bad)
        with pytest.raises(ValueError, match="weights must have shape"):
            average(cloud, weights[:3])


def test_frechet_mean_differentiates(x64):
    cloud = jnp.array([[1.0, 0.0, 0.0]]) + 0.3 * jax.random.normal(KEY, (6, 3))
    check_derivatives(lambda X: sphere.frechet_mean(sphere.project(X), iters=8), (cloud,), order=1)


def test_random_points_are_uniform():
    x = double(sphere.random(KEY, (20_000, 3)))
    assert np.abs(x.mean(0)).max() < 0.02
    assert np.abs(x.T @ x / len(x) - np.eye(3) / 3).max() < 0.01


def test_new_values_do_not_retrace():
    @jax.jit
    @chex.assert_max_traces(1)
    def step(x, y, t):
        return sphere.slerp(x, y, t)

    x, y = sphere.random(KEY, (2, 5, 3))
    for t in (0.1, 0.2, 0.3):
        double(step(x, y, t))


@pytest.mark.parametrize("jit", [False, True])
def test_times_that_do_not_broadcast_are_refused_with_their_shapes(jit):
    x, y = sphere.random(KEY, (2, 4, 3))
    slerp = jax.jit(sphere.slerp) if jit else sphere.slerp
    for f in (slerp, sphere.geodesic):
        with pytest.raises(
            ValueError, match=r"slerp: t must broadcast.*x \(4, 3\) and y \(4, 3\), got t \(5,\)"
        ):
            f(x, y, jnp.ones(5))
        with pytest.raises(ValueError, match=r"got t \(4, 1, 3\)"):
            f(x, y, jnp.ones((4, 1, 3)))
    assert sphere.slerp(x, y, jnp.ones((5, 1))).shape == (5, 4, 3)


HESSIAN_ANGLES = (0.0, 1e-20, 1e-8, 1e-4, 0.05, 0.5, 2.0, 3.0)


def test_squared_distance_has_the_derivatives_of_the_textbook(dtype):
    """The Hessian of half of it is 1 along the geodesic and ``angle / tan(angle)`` across (Pennec, 2018)."""
    x, y = pairs(4, dtype, HESSIAN_ANGLES)
    values, gradients = jax.vmap(jax.value_and_grad(lambda x, y: 0.5 * sphere.squared_dist(x, y), 1))(x, y)
    forward = jax.vmap(jax.hessian(lambda x, y: 0.5 * sphere.squared_dist(x, y), 1))(x, y)
    backward = jax.vmap(jax.hessian(lambda x, y: 0.5 * sphere.squared_dist(y, x), 1))(x, y)
    np.testing.assert_allclose(2 * double(values), double(sphere.dist(x, y)) ** 2, rtol=8 * eps(dtype))
    assert gap(gradients, -sphere.log(y, x)) <= 64 * eps(dtype)
    for k, angle in enumerate(HESSIAN_ANGLES):
        y_k = double(y[k])
        P = np.eye(4) - np.outer(y_k, y_k)
        toward = P @ double(x[k])
        size = np.linalg.norm(toward)
        along = np.outer(toward, toward) / size**2 if angle > 1e-4 else np.zeros((4, 4))
        across = angle / np.tan(angle) if angle else 1.0
        exact = along + across * (P - along)
        for hessian in (forward[k], backward[k]):
            assert gap(P @ double(hessian) @ P, exact) <= (1e-8 + 400 * eps(dtype)) / max(np.sin(angle), 0.1)


def test_squared_distance_of_equal_and_opposite_points():
    x = sphere.random(KEY, (5, 4))
    P = np.eye(4) - double(x)[:, :, None] * double(x)[:, None]
    for f in (lambda x, y: sphere.squared_dist(x, y), lambda x, y: sphere.squared_dist(y, x)):
        assert gap(jax.vmap(jax.grad(f))(x, x), 0) == 0
        assert gap(jax.vmap(jax.hessian(f))(x, x), 2 * P) <= 8 * eps(jnp.float32)
        assert gap(jax.vmap(jax.grad(f))(x, -x), 0) == 0
        assert gap(f(x, -x), np.pi**2) <= 16 * eps(jnp.float32)
        double(jax.vmap(jax.hessian(f))(x, -x))
    v = jnp.zeros(4)
    assert gap(jax.hessian(lambda v: sphere.inner(x[0], v, v))(v), 2 * np.eye(4)) == 0


def test_subnormal_numbers_count_as_zero():
    assert gap(sphere.project(jnp.array([3e-42, 4e-42])), np.array([1, 0])) == 0


def test_counts_and_dtypes_that_make_no_sense_are_refused():
    x = sphere.random(KEY, (4, 3))
    with pytest.raises(ValueError, match="iters must be at least 0, got -1"):
        sphere.frechet_mean(x, iters=-1)
    with pytest.raises(TypeError, match=r"iters must be an integer.*got 1\.5"):
        sphere.frechet_mean(x, iters=1.5)
    assert gap(sphere.frechet_mean(x, iters=0), sphere.mean(x)) <= 4 * eps(jnp.float32)
    with pytest.raises(TypeError, match="dtype must be real floating, got int"):
        sphere.random(KEY, (3,), int)
