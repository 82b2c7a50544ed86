"""Geometry of points on trailing axes: pure functions that compose with jit, vmap, grad and optax."""

from manifolds import grassmann, linalg, optim, sphere, stiefel, testing

__all__ = ["grassmann", "linalg", "optim", "sphere", "stiefel", "testing"]
