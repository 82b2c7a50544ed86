"""What every public operation promises: batching, compilation, dtypes, finite results, errors."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from manifolds import grassmann, sphere, stiefel, testing
from tests.manifolds.common import double, eps, frames, frames_and_steps, gap, unit_vectors

pytestmark = pytest.mark.usefixtures("strict")

KEY = jax.random.key(3)


class Operation(NamedTuple):
    """A function of two arguments: a point and a vector, or two points."""

    function: object
    trailing: tuple[int, ...]
    points: int

    def arguments(self, batch, dtype):
        shape = (*batch, *self.trailing)
        if len(shape) - len(batch) == 2:
            return (
                frames_and_steps(0, shape, dtype)
                if self.points == 1
                else tuple(frames(0, (2, *shape), dtype))
            )
        x, y = unit_vectors(0, (2, *shape), dtype)
        return (x, y - jnp.sum(x * y, -1, keepdims=True) * x) if self.points == 1 else (x, y)


def _operations():
    frame, vector = (7, 3), (5,)
    for method in ("qr", "polar", "cayley", "householder"):
        yield (
            f"stiefel.retract[{method}]",
            Operation(lambda X, V, method=method: stiefel.retract(X, V, method=method), frame, 1),
        )
    for name in ("project_tangent", "egrad2rgrad", "norm", "exp"):
        yield f"stiefel.{name}", Operation(getattr(stiefel, name), frame, 1)
    yield "stiefel.qf", Operation(lambda X, V: stiefel.qf(X + V), frame, 1)
    yield "stiefel.project", Operation(lambda X, V: stiefel.project(X + V), frame, 1)
    yield "stiefel.align", Operation(stiefel.align, frame, 2)
    yield "stiefel.inner", Operation(lambda X, V: stiefel.inner(X, V, V), frame, 1)
    yield "stiefel.transport", Operation(lambda X, Y: stiefel.transport(X, Y, X), frame, 2)
    yield "stiefel.ehess2rhess", Operation(lambda X, V: stiefel.ehess2rhess(X, X * X, V * X, V), frame, 1)
    for name in ("project_horizontal", "principal_angles", "dist", "squared_dist"):
        yield f"grassmann.{name}", Operation(getattr(grassmann, name), frame, 2)
    for name in ("project_tangent", "egrad2rgrad", "norm", "retract", "exp"):
        yield f"sphere.{name}", Operation(getattr(sphere, name), vector, 1)
    yield "sphere.project", Operation(lambda x, v: sphere.project(x + v), vector, 1)
    yield "sphere.inner", Operation(lambda x, v: sphere.inner(x, v, v), vector, 1)
    yield "sphere.ehess2rhess", Operation(lambda x, v: sphere.ehess2rhess(x, x * x, v * x, v), vector, 1)
    for name in ("log", "dist", "squared_dist"):
        yield f"sphere.{name}", Operation(getattr(sphere, name), vector, 2)
    yield "sphere.slerp", Operation(lambda x, y: sphere.slerp(x, y, 0.3), vector, 2)
    yield "sphere.transport", Operation(lambda x, y: sphere.transport(x, y, x), vector, 2)


OPERATIONS = dict(_operations())
EXPENSIVE = ("stiefel.exp", "stiefel.retract[cayley]")  # their derivatives have tests of their own
every_operation = pytest.mark.parametrize("name", OPERATIONS)


@every_operation
@pytest.mark.parametrize("wide", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_batch_equals_vmap_equals_loop(name, wide):
    with jax.enable_x64(wide):
        dtype = jnp.dtype("float64" if wide else "float32")
        operation = OPERATIONS[name]
        assert testing.check_vmap(operation.function, operation.arguments((3,), dtype)) <= 2 * eps(dtype)


@every_operation
def test_leading_axes_broadcast(name):
    if name in ("stiefel.qf", "stiefel.project", "sphere.project") or name.endswith("ehess2rhess"):
        pytest.skip("one argument, or made of the other")
    function = OPERATIONS[name].function
    x, y = OPERATIONS[name].arguments((2, 3), jnp.float32)
    assert gap(function(x, y[0, :1]), function(x, jnp.broadcast_to(y[0, :1], x.shape))) <= 4 * eps(
        jnp.float32
    )
    assert gap(function(x[0, 0], y), function(jnp.broadcast_to(x[0, 0], y.shape), y)) <= 4 * eps(jnp.float32)


@every_operation
def test_jit_equals_eager(name):
    operation = OPERATIONS[name]
    arguments = operation.arguments((2,), jnp.float32)
    assert testing.check_jit(operation.function, arguments) <= 2 * eps(jnp.float32)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in EXPENSIVE else n for n in OPERATIONS]
)
def test_forward_and_reverse_mode_agree_and_batch(name, x64):
    function = OPERATIONS[name].function
    x, y = OPERATIONS[name].arguments((3,), jnp.float64)

    def objective(x, y):
        return jnp.sum(jnp.sin(function(x, y)))

    @jax.jit
    def derivatives(x, y):
        forward = jax.jacfwd(objective, argnums=(0, 1))(x, y)
        inside = jax.vmap(jax.grad(objective, argnums=(0, 1)))(x, y)
        outside = jax.grad(objective, argnums=(0, 1))(x, y)
        return forward, inside, outside

    for forward, inside, outside in zip(*derivatives(x, y), strict=True):
        assert gap(inside, outside) <= 1e-12
        assert gap(forward, outside) <= 1e-12


@every_operation
@pytest.mark.parametrize("dtype_name", ["bfloat16", "float16", "float32", "float64"])
def test_dtype_is_kept(name, dtype_name):
    for wide in (True,) if dtype_name == "float64" else (False, True):
        with jax.enable_x64(wide):
            dtype = jnp.dtype(dtype_name)
            arguments = [
                jax.ShapeDtypeStruct(a.shape, dtype) for a in OPERATIONS[name].arguments((), jnp.float32)
            ]
            assert jax.eval_shape(OPERATIONS[name].function, *arguments).dtype == dtype


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_narrow_floats_are_computed_in_float32(dtype):
    x, v = OPERATIONS["stiefel.qf"].arguments((4,), dtype)
    wide = stiefel.retract(x.astype(jnp.float32), v.astype(jnp.float32)).astype(dtype)
    assert gap(stiefel.retract(x, v), wide) == 0


@every_operation
def test_works_inside_map(name):
    function = OPERATIONS[name].function
    x, y = OPERATIONS[name].arguments((3,), jnp.float32)
    assert gap(jax.lax.map(lambda args: function(*args), (x, y)), function(x, y)) <= 4 * eps(jnp.float32)


@every_operation
def test_no_operation_makes_a_nan_on_the_way(name):
    with jax.debug_nans(True):
        double(OPERATIONS[name].function(*OPERATIONS[name].arguments((2,), jnp.float32)))


def test_no_nan_on_the_way_at_singular_points():
    x = sphere.random(KEY, (4, 3))
    X = stiefel.random(KEY, (6, 2))
    with jax.debug_nans(True):
        for y in (x, -x):
            double(jax.grad(lambda x, y=y: jnp.sum(sphere.slerp(x, y, 0.3) ** 3))(x))
            double(jax.grad(lambda x, y=y: jnp.sum(sphere.log(x, y) ** 3))(x))
            double(jax.grad(lambda x, y=y: jnp.sum(sphere.dist(x, y)))(x))
            double(jax.grad(lambda x, y=y: jnp.sum(sphere.squared_dist(x, y)))(x))
        double(jax.grad(lambda V: jnp.sum(stiefel.retract(X, V, method="polar") ** 3))(0 * X))
        double(jax.grad(lambda Y: jnp.sum(stiefel.project(Y) ** 3))(X))
        for f in (grassmann.dist, grassmann.squared_dist):
            double(jax.grad(lambda Y, f=f: f(X, Y))(X))


FRAMES = [
    stiefel.project_tangent,
    stiefel.egrad2rgrad,
    stiefel.retract,
    stiefel.exp,
    stiefel.align,
    stiefel.norm,
    grassmann.project_horizontal,
    grassmann.principal_angles,
    grassmann.dist,
    grassmann.squared_dist,
]
VECTORS = [
    sphere.project_tangent,
    sphere.retract,
    sphere.exp,
    sphere.log,
    sphere.dist,
    sphere.squared_dist,
    sphere.norm,
]


@pytest.mark.parametrize("function", FRAMES)
def test_bad_frames_are_refused_with_their_shapes(function):
    with pytest.raises(ValueError, match=r"n >= p.*\(3, 5\)"):
        function(jnp.ones((3, 5)), jnp.ones((3, 5)))
    with pytest.raises(ValueError, match=r"trailing shapes must be equal.*\(5, 3\).*\(5, 2\)"):
        jax.jit(function)(jnp.ones((5, 3)), jnp.ones((5, 2)))
    with pytest.raises(ValueError, match=r"do not broadcast.*\(2, 5, 3\).*\(4, 5, 3\)"):
        function(jnp.ones((2, 5, 3)), jnp.ones((4, 5, 3)))
    with pytest.raises(ValueError, match=r"got.*\(5,\)"):
        function(jnp.ones(5), jnp.ones(5))
    with pytest.raises(TypeError, match=r"int32 of shape \(5, 3\)"):
        function(jnp.ones((5, 3), jnp.int32), jnp.ones((5, 3)))
    with pytest.raises(TypeError, match="list"):
        function([[1.0], [0.0]], jnp.ones((2, 1)))


@pytest.mark.parametrize("function", VECTORS)
def test_bad_vectors_are_refused_with_their_shapes(function):
    with pytest.raises(ValueError, match=r"d >= 2.*\(1,\)"):
        function(jnp.ones(1), jnp.ones(1))
    with pytest.raises(ValueError, match=r"trailing shapes must be equal.*\(5,\).*\(4,\)"):
        jax.jit(function)(jnp.ones(5), jnp.ones(4))
    with pytest.raises(TypeError, match=r"int32 of shape \(5,\)"):
        function(jnp.ones(5), jnp.ones(5, jnp.int32))
    with pytest.raises(TypeError, match="float"):
        function(1.0, jnp.ones(5))


def test_numpy_arrays_are_points_too():
    x = np.eye(3, dtype=np.float32)
    assert gap(sphere.slerp(x[0], x[1], 0.5), np.array([1, 1, 0]) / np.sqrt(2)) <= 2 * eps(jnp.float32)
