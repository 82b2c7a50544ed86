"""Failures that users of other libraries reported, each as a test; the reports are named by project and number."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from manifolds import optim, sphere, stiefel
from tests.manifolds.common import double, eps, frames, gap, unit_vectors

KEY = jax.random.key(10)


def test_mixup_with_fixed_points_of_the_permutation():
    """jax 15798 and 23649: the usual formula has NaN gradients for two permutations in three."""
    z = unit_vectors(0, (128, 16), jnp.float32)

    def loss(z, key):
        return jnp.mean(sphere.slerp(z, jax.random.permutation(key, z), 0.3) ** 3)

    def scan(_, key):
        return None, jax.value_and_grad(loss)(z, key)

    values, gradients = jax.jit(lambda keys: jax.lax.scan(scan, None, keys)[1])(jax.random.split(KEY, 200))
    double(values), double(gradients)


def test_parallel_vectors():
    """gl-matrix 500, pytransform3d 45, playcanvas 39."""
    x = jnp.array([0.0, 0.0, 1.0])
    assert gap(sphere.slerp(x, x, 0.5), x) == 0
    assert gap(jax.jacobian(sphere.slerp)(x, x, 0.25), 0.75 * jnp.diag(jnp.array([1.0, 1.0, 0.0]))) <= 1e-7


def test_exp_stays_on_the_sphere():
    """geomstats 2050 and 1640."""
    point = sphere.exp(jnp.array([0.0, 0.0, 1.0]), jnp.array([0.01, 0.0, 0.0]))
    assert gap(point, np.array([np.sin(0.01), 0, np.cos(0.01)])) <= 2 * eps(jnp.float32)


@pytest.mark.parametrize("method", ["polar", "project"])
def test_equal_singular_values(method, x64):
    """jax 2311, 8732 and 4646: the derivative of the SVD is infinite exactly where steps are small."""
    X = frames(0, (20, 4), jnp.float64)
    W, E = jnp.asarray(np.random.default_rng(1).normal(size=(2, 20, 4)))

    def objective(V):
        moved = stiefel.project(X + V) if method == "project" else stiefel.retract(X, V, method="polar")
        return jnp.sum(W * moved)

    step = 1e-5
    difference = (objective(step * E) - objective(-step * E)) / (2 * step)
    assert gap(jnp.sum(jax.grad(objective)(0 * X) * E), difference) <= 1e-7
    narrow = jax.grad(lambda V: jnp.sum(W.astype(jnp.float32) * stiefel.project(X.astype(jnp.float32) + V)))
    assert (
        gap(
            narrow(jnp.zeros((20, 4), jnp.float32)),
            jax.grad(lambda V: jnp.sum(W * stiefel.project(X + V)))(0 * X),
        )
        <= 1e-5
    )


def test_sphere_points_do_not_drift():
    """Manifolds.jl 616: gradient descent for the mean of ten points leaves the sphere bit by bit."""
    cloud = unit_vectors(3, (10, 3), jnp.float32)
    start = unit_vectors(4, (3,), jnp.float32)

    def descend(move):
        def step(x, _):
            pull = jnp.mean(sphere.log(jnp.broadcast_to(x, cloud.shape), cloud), 0)
            return move(x, 0.01 * pull), None

        return jax.jit(lambda x: jax.lax.scan(step, x, length=10_000)[0])(start)

    for move in (sphere.exp, sphere.retract):
        assert abs(np.linalg.norm(double(descend(move))) - 1) <= 10 * eps(jnp.float32)


def test_orthogonal_group_has_two_components():
    """pymanopt 301: descent reaches a rotation from rotations only, and a reflection from reflections only."""
    A = frames(0, (4, 4), jnp.float32)
    optimizer = optim.riemannian(optax.sgd(0.1), optim.Stiefel())

    @jax.jit
    def descend(Q):
        def step(carry, _):
            Q, state = carry
            updates, state = optimizer.update(2 * (Q - A), state, Q)
            return (optax.apply_updates(Q, updates), state), None

        return jax.lax.scan(step, (Q, optimizer.init(Q)), length=500)[0][0]

    same = jnp.asarray(frames(1, (4, 4), jnp.float32))
    if np.linalg.det(double(same)) * np.linalg.det(double(A)) < 0:
        same = same.at[:, 0].multiply(-1)
    other = same.at[:, 0].multiply(-1)
    assert np.linalg.norm(double(descend(same)) - double(A)) < 1e-5
    assert np.linalg.norm(double(descend(other)) - double(A)) > 1


HANG = """
import jax, jax.numpy as jnp, numpy as np
from manifolds import stiefel
X = stiefel.random(jax.random.key(0), (28, 48, 24))
V = stiefel.random_tangent(jax.random.key(1), X)
pairs = [
    jax.jit(lambda X, V: (stiefel.retract(X, V), stiefel.retract(X, -V))),
    jax.jit(lambda X, V: (stiefel.retract(X, V, method="cayley"), stiefel.retract(X, -V, method="polar"))),
    jax.jit(lambda X, V: (stiefel.exp(X, V), stiefel.exp(X, -V))),
    jax.jit(lambda X, V: (stiefel.project(X + V), stiefel.project(X - V))),
]
for pair, calls in zip(pairs, (14_000, 2_000, 2_000, 2_000)):
    for _ in range(calls):
        jax.block_until_ready(pair(X, V))
"""

RACE = """
import jax, numpy as np
from manifolds import stiefel
X = stiefel.random(jax.random.key(0), (28, 888, 24))
V = stiefel.random_tangent(jax.random.key(1), X)
A = np.random.default_rng(0).normal(size=(300, 300))
jax.block_until_ready(stiefel.retract(X, V))
expected = A @ A
for _ in range(1000):
    pending = stiefel.retract(X, V)
    assert np.array_equal(A @ A, expected)
    pending.block_until_ready()
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("program", [HANG, RACE], ids=["hang", "race"])
def test_two_batched_programs_share_the_thread_pool(program):
    """PyAutoFit 1530, jax 39292 and 38056: batched LAPACK deadlocks, or corrupts what NumPy computes beside it."""
    default_threads = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=590, env=default_threads)
