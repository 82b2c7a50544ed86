"""Numbers measured by NumPy in double precision, so that measuring adds nothing to what is measured."""

import jax
import jax.numpy as jnp
import numpy as np

METHODS = ("qr", "polar", "cayley", "householder")


def double(x):
    """As float64 in NumPy; fails if anything is not finite, since NaN slips through comparisons."""
    array = np.asarray(jax.block_until_ready(x), np.float64)
    assert np.isfinite(array).all()
    return array


def eps(dtype):
    return float(jnp.finfo(dtype).eps)


def gap(a, b):
    return float(np.max(np.abs(double(a) - double(b)), initial=0.0))


def orthonormality(Q):
    """Largest spectral norm of ``Q^T Q - I`` over the batch."""
    Q = double(Q)
    defect = np.swapaxes(Q, -1, -2) @ Q - np.eye(Q.shape[-1])
    return float(np.linalg.norm(defect, 2, axis=(-2, -1)).max())


def frames(seed, shape, dtype):
    """Random frames by NumPy: a test of one operation should not compile another."""
    Q, R = np.linalg.qr(np.random.default_rng(seed).normal(size=shape))
    return jnp.asarray(Q * np.where(np.diagonal(R, axis1=-2, axis2=-1) < 0, -1, 1)[..., None, :], dtype)


def frames_and_steps(seed, shape, dtype, size=1.0):
    """Random frames, and tangent vectors of the given spectral norm."""
    X = frames(seed, shape, dtype)
    G, Xd = np.random.default_rng(seed + 1).normal(size=shape), double(X)
    A = np.swapaxes(Xd, -1, -2) @ G
    V = G - Xd @ (A + np.swapaxes(A, -1, -2)) / 2
    spectral = np.linalg.norm(V, 2, axis=(-2, -1))[..., None, None]
    return X, jnp.asarray(V * size / np.maximum(spectral, 1e-300), dtype)


def unit_vectors(seed, shape, dtype):
    x = np.random.default_rng(seed).normal(size=shape)
    return jnp.asarray(x / np.linalg.norm(x, axis=-1, keepdims=True), dtype)


def rotation(seed, size, dtype):
    return frames(seed, (size, size), dtype)


def check_derivatives(f, args, order, tolerance=1e-6):
    """Directional derivatives of f up to an order, forward and reverse, against central differences.

    What ``jax.test_util.check_grads`` checks, along one direction for each order and in one program each.
    """
    step = 1e-5
    for k in range(order):
        direction = [
            jax.random.normal(jax.random.key(100 * k + i), a.shape, a.dtype) for i, a in enumerate(args)
        ]

        @jax.jit
        def numbers(args, f=f, direction=direction):
            direction = tuple(direction)
            _, pushed = jax.jvp(f, args, direction)
            cotangent = jnp.cos(jnp.arange(pushed.size, dtype=pushed.dtype)).reshape(pushed.shape)
            pulled = jax.vjp(f, *args)[1](cotangent)
            ahead = f(*[a + step * v for a, v in zip(args, direction, strict=True)])
            behind = f(*[a - step * v for a, v in zip(args, direction, strict=True)])
            dual = sum(jnp.sum(g * v) for g, v in zip(pulled, direction, strict=True))
            return pushed, (ahead - behind) / (2 * step), jnp.sum(cotangent * pushed), dual

        pushed, difference, along, dual = numbers(tuple(args))
        scale = max(1.0, np.abs(double(pushed)).max())
        assert gap(pushed, difference) <= tolerance * scale, k
        assert gap(along, dual) <= tolerance * scale, k

        def f(*args, f=f, direction=direction):
            return jax.jvp(f, args, tuple(direction))[1]
