"""What every operation shares: checks at trace time, working precision and broadcasting of leading axes."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

Function = TypeVar("Function", bound=Callable[..., Any])


def operation(*points: str, core: int, static: tuple[str, ...] = ()) -> Callable[[Function], Function]:
    """Make a public operation of a function of points and vectors on trailing axes.

    The operation checks its arguments while tracing, gives all of them the same number of leading axes so
    that these broadcast, computes in float32 where the arguments are narrower and casts back, and is jitted:
    an eager call is one dispatch, and a call inside ``jit``, ``vmap`` or ``grad`` is inlined.

    Args:
        points: names of the parameters that are points or vectors; they share the trailing shape.
        core: trailing axes of a point, 2 for frames ``(n, p)`` and 1 for unit vectors ``(d,)``.
        static: names of the parameters that are not arrays.
    """

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        compiled = jax.jit(function, static_argnames=static)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            arguments = signature.bind(*args, **kwargs).arguments
            arrays = {name: arguments[name] for name in points}
            check(function.__name__, arrays, core)
            dtype = jnp.result_type(*arrays.values())
            work = working_dtype(dtype)
            rank = max(array.ndim for array in arrays.values())
            for name, array in arrays.items():
                arguments[name] = leading_axes(jnp.asarray(array, work), rank)
            out = compiled(**arguments)
            return out if dtype == work else jax.tree.map(lambda leaf: leaf.astype(dtype), out)

        return cast(Function, wrapper)

    return decorate


def check(name: str, arrays: Mapping[str, Any], core: int) -> None:
    """Raise a TypeError or ValueError that names the shapes unless the arrays can meet in one operation."""
    for label, array in arrays.items():
        if not isinstance(array, jax.Array | np.ndarray):
            kind = type(array).__name__
            raise TypeError(f"{name}: {label} must be an array, got {kind}; wrap it in jnp.asarray")
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise TypeError(
                f"{name}: {label} must have a real floating dtype, got {array.dtype} of shape {array.shape}; "
                f"cast it, for example {label}.astype(jnp.float32)"
            )
    shapes = ", ".join(f"{label} {array.shape}" for label, array in arrays.items())
    trailing = {array.shape[-core:] for array in arrays.values()}
    if not all(_is_frame(shape) if core == 2 else _is_vector(shape) for shape in trailing):
        wanted = "(..., n, p) with n >= p >= 1" if core == 2 else "(..., d) with d >= 2"
        raise ValueError(f"{name}: expected shape {wanted}, got {shapes}")
    if len(trailing) > 1:
        raise ValueError(f"{name}: trailing shapes must be equal, got {shapes}")
    try:
        np.broadcast_shapes(*(array.shape[:-core] for array in arrays.values()))
    except ValueError:
        raise ValueError(f"{name}: leading axes do not broadcast, got {shapes}") from None


def _is_frame(shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 and shape[0] >= shape[1] >= 1


def _is_vector(shape: tuple[int, ...]) -> bool:
    return len(shape) == 1 and shape[0] >= 2


def leading_axes(array: jax.Array, rank: int) -> jax.Array:
    """The array with axes of length 1 put in front until it has ``rank`` axes."""
    return jnp.expand_dims(array, tuple(range(rank - array.ndim)))


def working_dtype(dtype: Any) -> Any:
    """Float32 for narrower floats, else the dtype itself."""
    return jnp.dtype(jnp.float32) if jnp.finfo(dtype).bits < 32 else jax.dtypes.canonicalize_dtype(dtype)


def check_count(name: str, label: str, value: Any, least: int) -> None:
    """Raise a TypeError or ValueError unless the value is an integer of at least ``least``."""
    if not isinstance(value, int | np.integer):
        raise TypeError(f"{name}: {label} must be an integer of at least {least}, got {value!r}")
    if value < least:
        raise ValueError(f"{name}: {label} must be at least {least}, got {value}")


def normal(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Standard normal draws in the working precision of ``dtype``."""
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(
            f"random: dtype must be real floating, got {jnp.dtype(dtype)}; use jnp.float32, for example"
        )
    return jax.random.normal(key, shape, working_dtype(jnp.dtype(dtype)))


def safe_norm(v: jax.Array, axis: int | tuple[int, ...]) -> jax.Array:
    """Euclidean norm with kept axes, free of overflow and underflow, with gradient 0 at 0."""
    scale = jax.lax.stop_gradient(jnp.max(jnp.abs(v), axis, keepdims=True))
    zero = scale == 0
    unit = v / jnp.where(zero, 1, scale)
    square = jnp.sum(unit * unit, axis, keepdims=True)
    return jnp.where(zero, 0, scale * jnp.sqrt(jnp.where(zero, 1, square)))
