"""Small operations over pytrees whose leaves share a leading axis."""

import jax
import jax.numpy as jnp
import numpy as np

from fedgeo.protocol import PyTree


def take(tree: PyTree, index: jax.Array) -> PyTree:
    """Gather ``leaf[index]`` from every leaf ``(K, ...)``."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[index], tree)


def put(tree: PyTree, index: jax.Array, values: PyTree) -> PyTree:
    """Copy of ``tree`` with ``leaf[index] = value``; ``index`` must hold distinct positions."""
    return jax.tree.map(lambda leaf, value: leaf.at[index].set(value, unique_indices=True), tree, values)


def _trailing(mask: jax.Array, leaf: jax.Array) -> jax.Array:
    return mask.reshape(mask.shape + (1,) * (leaf.ndim - mask.ndim))


def where(mask: jax.Array, yes: PyTree, no: PyTree) -> PyTree:
    """Select leafwise; ``mask`` covers the leading axes of every leaf.

    Unlike a product with the mask, this lets no NaN of the unselected side through.
    """
    return jax.tree.map(lambda a, b: jnp.where(_trailing(mask, a), a, b), yes, no)


def mean(tree: PyTree, weights: jax.Array) -> PyTree:
    """Weighted mean over the leading axis; zero where the weights sum to zero. The mean of integers is a float.

    Args:
        tree: leaves ``(S, ...)``, finite.
        weights: ``(S,)``, not negative.
    """
    total = jnp.sum(weights)
    share = weights / jnp.where(total > 0, total, 1)

    def weighted(leaf: jax.Array) -> jax.Array:
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            leaf = leaf.astype(share.dtype)
        return jnp.einsum("s,s...->...", share.astype(leaf.dtype), leaf, precision="highest")

    return jax.tree.map(weighted, tree)


def all_finite(tree: PyTree, batch_axes: int = 0) -> jax.Array:
    """Whether every entry is finite, kept apart over the first ``batch_axes`` axes; an empty tree is finite."""
    flags = [
        jnp.all(jnp.isfinite(leaf), axis=tuple(range(batch_axes, leaf.ndim)))
        for leaf in jax.tree.leaves(tree)
    ]
    result = jnp.asarray(True)
    for flag in flags:
        result = result & flag
    return result


def nbytes(tree: PyTree) -> int:
    """Bytes of all leaves, arrays or ``jax.ShapeDtypeStruct``."""
    return sum(int(np.prod(leaf.shape)) * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(tree))
