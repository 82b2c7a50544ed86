"""Numbers measured by NumPy in double precision, so that measuring adds nothing to what is measured."""

import jax
import jax.numpy as jnp
import numpy as np

from manifolds import stiefel

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


def frames_and_steps(key, shape, dtype, size=1.0):
    """Random frames, and tangent vectors of the given spectral norm."""
    key_x, key_v = jax.random.split(key)
    X = stiefel.random(key_x, shape, dtype)
    V = stiefel.random_tangent(key_v, X)
    spectral = np.linalg.norm(double(V), 2, axis=(-2, -1))[..., None, None]
    return X, V * jnp.asarray(size / np.maximum(spectral, 1e-300), dtype)


def rotation(key, size, dtype):
    return stiefel.random(key, (size, size), dtype)
