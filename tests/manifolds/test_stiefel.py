"""Frames: orthonormality, projections, retractions of the right order, derivatives, edges."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from manifolds import stiefel
from tests.manifolds.common import (
    METHODS,
    check_derivatives,
    double,
    eps,
    frames_and_steps,
    gap,
    orthonormality,
    rotation,
)

pytestmark = pytest.mark.usefixtures("strict")

KEY = jax.random.key(0)
SIZES = (0.0, 1e-8, 0.05, 1.0, 10.0, 1e3)


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


SHAPES = [
    ((2, 3), 3, 1),
    slow((), 3, 1),
    slow((28,), 3, 1),
    ((28,), 5, 5),
    slow((), 5, 5),
    slow((2, 3), 5, 5),
    ((2, 3), 20, 4),
    slow((), 20, 4),
    slow((28,), 20, 4),
    ((), 888, 24),
    slow((28,), 888, 24),
    slow((2, 3), 888, 24),
    slow((), 4096, 64),
]


@pytest.mark.parametrize(("batch", "n", "p"), SHAPES)
def test_results_are_orthonormal_to_rounding(batch, n, p, dtype):
    X, V = frames_and_steps(0, (*batch, n, p), dtype)
    assert orthonormality(X) <= 10 * eps(dtype)
    for size in SIZES:
        step = jnp.asarray(size, dtype) * V
        for method in METHODS:
            if method == "polar" and size > 100 and dtype == jnp.float32:
                continue  # the documented range
            Q = stiefel.retract(X, step, method=method)
            assert Q.dtype == dtype
            assert orthonormality(Q) <= 10 * eps(dtype), (method, size)
        assert orthonormality(stiefel.project(X + step)) <= 10 * eps(dtype), size
        assert orthonormality(stiefel.exp(X, step)) <= 16 * eps(dtype), size


@pytest.mark.slow
@pytest.mark.parametrize("method", ["qr", "polar", "cayley"])
def test_results_are_orthonormal_in_the_largest_batch(method):
    X, V = frames_and_steps(0, (28, 4096, 64), jnp.float32, 0.5)
    assert orthonormality(stiefel.retract(X, V, method=method)) <= 10 * eps(jnp.float32)


@pytest.mark.parametrize("method", ["qr", "polar", "cayley"])
@pytest.mark.parametrize(("n", "p"), [(20, 4), slow(888, 24)])
def test_nothing_drifts_in_ten_thousand_float32_steps(method, n, p):
    X, _ = frames_and_steps(0, (n, p), jnp.float32)

    @jax.jit
    def walk(X):
        def step(X, key):
            return stiefel.retract(X, 0.3 * stiefel.random_tangent(key, X), method=method), None

        return jax.lax.scan(step, X, jax.random.split(KEY, 10_000))[0]

    assert orthonormality(walk(X)) <= 10 * eps(jnp.float32)


def test_projection_is_the_orthogonal_one_onto_the_tangent_space(dtype):
    X, _ = frames_and_steps(0, (2, 3, 20, 4), dtype)
    G, H = jax.random.normal(KEY, (2, *X.shape), dtype)
    PG, PH = stiefel.project_tangent(X, G), stiefel.project_tangent(X, H)
    normal_part = jnp.einsum("...np,...nq->...pq", X, PG, precision="highest")
    assert gap(normal_part, -normal_part.mT) <= 50 * eps(dtype)
    assert gap(stiefel.project_tangent(X, PG), PG) <= 50 * eps(dtype)
    assert gap(stiefel.inner(X, PG, H), stiefel.inner(X, G, PH)) <= 200 * eps(dtype)
    assert gap(stiefel.project_tangent(X, G - 2 * H), PG - 2 * PH) <= 50 * eps(dtype)
    assert gap(stiefel.egrad2rgrad(X, G), PG) == 0
    assert gap(stiefel.transport(H, X, G), PG) == 0


@pytest.mark.parametrize("method", METHODS)
def test_projection_is_the_gradient_through_the_retraction(method, x64):
    X, _ = frames_and_steps(0, (6, 3), jnp.float64)
    C = jax.random.normal(KEY, (6, 3))

    def objective(X):
        return jnp.sum(C * X**3)

    def through(V):
        return objective(stiefel.retract(X, stiefel.project_tangent(X, V), method=method))

    assert gap(jax.grad(through)(0 * X), stiefel.egrad2rgrad(X, jax.grad(objective)(X))) <= 1e-13


def test_hessian_is_the_second_derivative_along_geodesics(x64):
    X, V = frames_and_steps(0, (6, 3), jnp.float64)
    C = jax.random.normal(KEY, (6, 3))

    def objective(X):
        return jnp.sum(C * X**3)

    G, HG = jax.jvp(jax.grad(objective), (X,), (V,))
    along = jax.grad(jax.grad(lambda t: objective(stiefel.exp(X, t * V))))(0.0)
    assert gap(along, stiefel.inner(X, V, stiefel.ehess2rhess(X, G, HG, V))) <= 1e-11


def euclidean_exp(X, V):
    p = X.shape[1]
    A = X.T @ V
    block = np.block([[A, -V.T @ V], [np.eye(p), A]])
    return np.hstack([X, V]) @ scipy.linalg.expm(block)[:, :p] @ scipy.linalg.expm(-A)


def canonical_exp(X, V):
    A = X.T @ V
    K = V - X @ A
    return scipy.linalg.expm(K @ X.T - X @ K.T + X @ A @ X.T) @ X


@pytest.mark.parametrize(
    ("method", "reference", "order"),
    [
        ("qr", euclidean_exp, 2),
        ("polar", euclidean_exp, 3),
        ("polar", canonical_exp, 2),
        ("cayley", canonical_exp, 3),
        ("cayley", euclidean_exp, 2),
    ],
)
def test_order_of_the_retraction_pins_the_metric(method, reference, order, x64):
    X, V = frames_and_steps(0, (20, 4), jnp.float64)
    t = np.geomspace(1e-2, 1e-1, 5)
    errors = [
        np.linalg.norm(double(stiefel.retract(X, s * V, method=method)) - reference(double(X), s * double(V)))
        for s in t
    ]
    assert np.polyfit(np.log(t), np.log(errors), 1)[0] == pytest.approx(order, abs=0.1)


@pytest.mark.parametrize("size", [0.0, 1e-8, 0.3, 3.0, 20.0])
@pytest.mark.parametrize(("n", "p"), [(20, 4), (5, 5), (3, 1)])
def test_exp_is_the_euclidean_geodesic(size, n, p, x64):
    X, V = frames_and_steps(0, (n, p), jnp.float64, size)
    assert gap(stiefel.exp(X, V), euclidean_exp(double(X), double(V))) <= 1e-13 * max(1, size)


def test_exp_is_a_one_parameter_curve_of_constant_speed(dtype):
    X, V = frames_and_steps(0, (28, 20, 4), dtype)
    half = jax.jvp(lambda t: stiefel.exp(X, t * V), (jnp.asarray(0.5, dtype),), (jnp.asarray(1, dtype),))
    assert gap(stiefel.norm(X, half[1]), stiefel.norm(X, V)) <= 50 * eps(dtype)
    assert gap(stiefel.exp(half[0], half[1] / 2), stiefel.exp(X, V)) <= 50 * eps(dtype)


def test_qf_is_invariant_to_triangular_factors_and_equivariant_to_rotations(dtype):
    Y = jax.random.normal(KEY, (20, 4), dtype)
    Q = stiefel.qf(Y)
    R = jnp.triu(jax.random.uniform(KEY, (4, 4), dtype, 0.5, 1.5))
    O = rotation(3, 20, dtype)  # noqa: E741
    highest = jax.default_matmul_precision("highest")
    with highest:
        assert gap(stiefel.qf(Y @ R), Q) <= 100 * eps(dtype)
        assert gap(stiefel.qf(O @ Y), O @ Q) <= 20 * eps(dtype)
        R = double(Q.T @ Y)
    assert np.diag(R).min() > 0
    assert np.abs(np.tril(R, -1)).max() <= 50 * eps(dtype)
    assert gap(Q, stiefel.qf(Y, passes=3)) <= 20 * eps(dtype)
    assert gap(Q, stiefel.retract(Y, 0 * Y, method="householder")) <= 20 * eps(dtype)


def test_project_is_the_polar_factor(dtype):
    Y = jax.random.normal(KEY, (28, 20, 4), dtype)
    Q = stiefel.project(Y)
    U, _, Vt = np.linalg.svd(double(Y), full_matrices=False)
    assert gap(Q, U @ Vt) <= 20 * eps(dtype)
    O1, O2 = rotation(3, 20, dtype), rotation(3, 4, dtype)
    with jax.default_matmul_precision("highest"):
        turned = stiefel.project(O1[None] @ Y @ O2[None])
        assert gap(turned, O1[None] @ Q @ O2[None]) <= 30 * eps(dtype)


@pytest.mark.parametrize("method", METHODS)
def test_retraction_is_equivariant_and_tangent_to_its_step(method, dtype):
    X, V = frames_and_steps(0, (20, 4), dtype)
    O = rotation(3, 20, dtype)  # noqa: E741
    with jax.default_matmul_precision("highest"):
        turned = stiefel.retract(O @ X, O @ V, method=method)
        assert gap(turned, O @ stiefel.retract(X, V, method=method)) <= 20 * eps(dtype)
    assert gap(stiefel.retract(X, 0 * V, method=method), X) <= 4 * eps(dtype)
    one, zero = jnp.ones((), dtype), jnp.zeros((), dtype)
    velocity = jax.jvp(lambda t: stiefel.retract(X, t * V, method=method), (zero,), (one,))[1]
    assert gap(velocity, V) <= 30 * eps(dtype)


@pytest.mark.parametrize("method", METHODS)
def test_no_column_flips_whatever_made_the_frame(method):
    Y = double(jax.random.normal(KEY, (40, 6), jnp.float32))
    frames = {
        "raw QR": np.linalg.qr(Y)[0],
        "SVD": np.linalg.svd(Y, full_matrices=False)[0],
        "Cholesky QR": double(stiefel.qf(jnp.asarray(Y, jnp.float32))),
    }
    for source, frame in frames.items():
        X = jnp.asarray(frame, jnp.float32)
        for key in jax.random.split(KEY, 30):
            V = stiefel.random_tangent(key, X)
            V = V * jnp.float32(0.5 / np.linalg.norm(double(V), 2))
            Y = stiefel.retract(X, V, method=method)
            assert (double(jnp.sum(X * Y, 0)) > 0).all(), source
            X = Y


def test_derivatives_match_finite_differences(x64):
    Y, Z = jax.random.normal(KEY, (2, 20, 4))
    h = 1e-5
    for f in (stiefel.qf, stiefel.project):
        difference = (double(f(Y + h * Z)) - double(f(Y - h * Z))) / (2 * h)
        assert gap(jax.jvp(f, (Y,), (Z,))[1], difference) <= 1e-8
    check_derivatives(stiefel.qf, (Y,), order=2)
    check_derivatives(stiefel.project, (Y,), order=1)


@pytest.mark.parametrize(
    ("method", "order"),
    [("qr", 2), ("polar", 2), ("cayley", 1), ("exp", 1), slow("cayley", 2), slow("exp", 2)],
)
def test_retractions_differentiate_also_at_zero(method, order, x64):
    X, V = frames_and_steps(0, (2, 6, 3), jnp.float64)
    move = stiefel.exp if method == "exp" else functools.partial(stiefel.retract, method=method)
    check_derivatives(lambda V: move(X, V), (V.at[0].set(0),), order)


def test_align_differentiates(x64):
    X, Y = stiefel.random(KEY, (2, 8, 3), jnp.float64)
    check_derivatives(lambda X, Y: stiefel.align(stiefel.qf(X), Y), (X, Y), order=1)


@pytest.mark.parametrize("method", [*METHODS, "project", "exp"])
def test_gradients_are_finite_at_zero_and_at_equal_singular_values(method, dtype):
    X, _ = frames_and_steps(0, (20, 4), dtype)
    W = jax.random.normal(KEY, X.shape, dtype)

    def objective(V):
        if method == "project":
            return jnp.sum(W * stiefel.project(X + V))
        if method == "exp":
            return jnp.sum(W * stiefel.exp(X, V))
        return jnp.sum(W * stiefel.retract(X, V, method=method))

    value, gradient = jax.value_and_grad(objective)(0 * X)
    double(value), double(gradient)


def geometric_tangent(X, largest):
    """Tangent vector in the horizontal space whose singular values fall geometrically to 1e-3."""
    Y = jax.random.normal(jax.random.key(7), X.shape)
    H = np.linalg.qr(double(Y) - double(X) @ (double(X).T @ double(Y)))[0]
    p = X.shape[-1]
    right = np.linalg.qr(np.random.default_rng(0).normal(size=(p, p)))[0]
    return H * np.geomspace(largest, 1e-3, p) @ right


@pytest.mark.parametrize("size", [3.0, 100.0, 3e3, 1e4])
def test_qr_is_robust_to_the_size_of_the_step(size):
    X = stiefel.random(KEY, (888, 24))
    V = jnp.asarray(geometric_tangent(X, size), jnp.float32)
    exact = np.linalg.qr(double(X) + double(V))
    exact = exact[0] * np.where(np.diag(exact[1]) < 0, -1, 1)
    Q, householder = stiefel.retract(X, V), stiefel.retract(X, V, method="householder")
    assert orthonormality(Q) <= (10 if size <= 3e3 else 50) * eps(jnp.float32)
    assert gap(Q, exact) <= gap(householder, exact)


@pytest.mark.parametrize("method", ["qr", "polar", "cayley", "householder", "exp"])
def test_components_of_the_orthogonal_group_are_kept(method, dtype):
    X, V = frames_and_steps(0, (28, 5, 5), dtype, 5.0)
    move = stiefel.exp if method == "exp" else lambda X, V: stiefel.retract(X, V, method=method)
    assert (np.sign(np.linalg.det(double(move(X, V)))) == np.sign(np.linalg.det(double(X)))).all()


def test_dependent_columns_give_nan_and_no_arbitrary_frame(dtype):
    Y = jax.random.normal(KEY, (5, 20, 4), dtype)
    Y = Y.at[0, :, 2].set(Y[0, :, 1])
    Y = Y.at[1, :, 3].set(0)
    Y = Y.at[2].set(Y[2, :, :1] * jnp.arange(1, 5, dtype=dtype)[None])
    Y = Y.at[3].set(0)
    for f in (stiefel.qf, stiefel.project):
        finite = np.isfinite(np.asarray(f(Y))).all((-2, -1))
        np.testing.assert_array_equal(finite, [False, False, False, False, True])


def test_align_is_the_best_rotation_of_the_frame(dtype):
    X, Y = stiefel.random(KEY, (2, 20, 4), dtype)
    aligned = stiefel.align(X, Y)
    R, _ = scipy.linalg.orthogonal_procrustes(double(X), double(Y))
    assert gap(aligned, double(X) @ R) <= 50 * eps(dtype)
    assert orthonormality(aligned) <= 10 * eps(dtype)
    with jax.default_matmul_precision("highest"):
        assert gap(stiefel.align(X @ rotation(3, 4, dtype), X), X) <= 20 * eps(dtype)


def test_norm_has_zero_gradient_at_zero_and_no_overflow(dtype):
    X, V = frames_and_steps(0, (20, 4), dtype)
    assert gap(jax.grad(lambda V: stiefel.norm(X, V))(0 * V), 0 * V) == 0
    assert gap(jax.grad(lambda V: stiefel.inner(X, V, V))(V), 2 * V) == 0
    huge = float(jnp.finfo(dtype).max) ** 0.75
    assert gap(stiefel.norm(X, huge * V) / huge, stiefel.norm(X, V)) <= 10 * eps(dtype)


def test_random_frames_are_uniform():
    X = double(stiefel.random(KEY, (4000, 5, 2)))
    second_moment = np.einsum("bip,bjp->ij", X, X) / (4000 * 2)
    assert np.abs(X.mean(0)).max() < 0.03
    assert np.abs(second_moment - np.eye(5) / 5).max() < 0.02


def test_random_tangents_have_unit_norm_and_are_tangent(dtype):
    X, _ = frames_and_steps(0, (2, 3, 20, 4), dtype)
    V = stiefel.random_tangent(KEY, X)
    assert gap(stiefel.norm(X, V), jnp.ones((2, 3), dtype)) <= 4 * eps(dtype)
    assert gap(stiefel.project_tangent(X, V), V) <= 4 * eps(dtype)
    assert gap(stiefel.random_tangent(KEY, jnp.ones((1, 1), dtype)), jnp.zeros((1, 1), dtype)) == 0


def test_unknown_method_and_passes_are_refused():
    X = stiefel.random(KEY, (5, 2))
    with pytest.raises(ValueError, match="qr, polar, cayley or householder"):
        stiefel.retract(X, X, method="svd")
    with pytest.raises(ValueError, match="at least 1"):
        stiefel.qf(X, passes=0)
    with pytest.raises(TypeError, match=r"passes must be an integer of at least 1, got 1\.5"):
        stiefel.qf(X, passes=1.5)
    with pytest.raises(TypeError, match="dtype must be real floating, got int"):
        stiefel.random(KEY, (5, 2), int)


def test_new_values_do_not_retrace():
    @jax.jit
    @chex.assert_max_traces(1)
    def step(X, V):
        return stiefel.retract(X, V)

    for seed in range(3):
        X, V = frames_and_steps(seed, (20, 4), jnp.float32)
        double(step(X, V))


@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e20, 1e30])
def test_size_does_not_matter(size, dtype):
    """The Gram matrix of these would leave the range of float32."""
    Y, Z = jax.random.normal(KEY, (2, 5, 20, 4), dtype)
    sizes = jnp.asarray([size, 1, size, 2**100, 2**-60], dtype)[
        :, None, None
    ]  # per matrix, and the last two exact
    for f in (stiefel.qf, stiefel.project):
        assert gap(f(sizes * Y), f(Y)) <= 20 * eps(dtype)
        assert gap(f(sizes * Y)[3:], f(Y)[3:]) == 0
        slope, exact = jax.jvp(f, (sizes * Y,), (sizes * Z,))[1], jax.jvp(f, (Y,), (Z,))[1]
        assert gap(slope, exact) <= 50 * eps(dtype)
    with pytest.raises(AssertionError):
        double(stiefel.qf(0 * Y))


@pytest.mark.parametrize("method", ["qr", "polar", "householder"])
@pytest.mark.parametrize("size", [1e6, 1e15])
def test_huge_steps_are_retracted(method, size, dtype):
    X, V = frames_and_steps(0, (20, 4), dtype)
    step = jnp.asarray(size, dtype) * V
    Q = stiefel.retract(X, step, method=method)
    exact = double(X) + double(step)
    if method == "polar":
        U, _, Vt = np.linalg.svd(exact, full_matrices=False)
        exact = U @ Vt
    else:
        exact, R = np.linalg.qr(exact)
        exact = exact * np.where(np.diag(R) < 0, -1, 1)[None]
    assert orthonormality(Q) <= 10 * eps(dtype)
    assert gap(Q, exact) <= 20 * eps(dtype)


def test_square_of_the_norm_is_the_inner_product():
    X, V = frames_and_steps(0, (4, 2), jnp.float32)
    hessian = jax.hessian(lambda V: stiefel.inner(X, V, V))(0 * V).reshape(8, 8)
    assert gap(hessian, 2 * np.eye(8)) == 0
