"""Small operations over pytrees whose leaves share a leading axis."""

from collections.abc import Callable

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


def median(tree: PyTree, weights: jax.Array) -> PyTree:
    """Median, entry by entry, over those with a positive weight, all alike; zero where there are none.

    With less than half of them wrong in any way, it stays within the range of the others (Yin et al., 2018).

    Args:
        tree: leaves ``(S, ...)``, finite.
        weights: ``(S,)``; only their sign matters.
    """
    number = jnp.sum(weights > 0)
    last = weights.shape[0] - 1

    def middle(leaf: jax.Array) -> jax.Array:
        ordered = _ordered(leaf, weights)
        low, high = (ordered[jnp.clip(k // 2, 0, last)] for k in (number - 1, number))
        return jnp.where(number > 0, low / 2 + high / 2, 0)

    return jax.tree.map(middle, tree)


def trimmed_mean(share: float) -> Callable[[PyTree, jax.Array], PyTree]:
    """Mean over those with a positive weight, all alike, without the lowest and the highest, entry by entry.

    Args:
        share: in [0, 0.5), of those left out at either end; of n clients, ``floor(share n)``.

    Returns:
        ``(tree, weights) -> tree``, to be used like :func:`mean`; zero where there are none. Source: Yin et al. (2018),
        Byzantine-robust distributed learning: towards optimal statistical rates.

    Raises:
        ValueError: a share out of its range.
    """
    if not 0 <= share < 0.5:
        raise ValueError(f"share is trimmed at either end and lies in [0, 0.5), got {share}")

    def trimmed(tree: PyTree, weights: jax.Array) -> PyTree:
        number = jnp.sum(weights > 0)
        cut = jnp.floor(share * number + 1e-6).astype(number.dtype)
        place = jnp.arange(weights.shape[0])
        kept = (place >= cut) & (place < number - cut)

        def average(leaf: jax.Array) -> jax.Array:
            ordered = _ordered(leaf, weights)
            return jnp.sum(jnp.where(_trailing(kept, ordered), ordered, 0), 0) / jnp.maximum(jnp.sum(kept), 1)

        return jax.tree.map(average, tree)

    return trimmed


def _ordered(leaf: jax.Array, weights: jax.Array) -> jax.Array:
    """Entries in ascending order along the first axis, those without weight at the end."""
    if not jnp.issubdtype(leaf.dtype, jnp.inexact):
        leaf = leaf.astype(weights.dtype)
    return jnp.sort(jnp.where(_trailing(weights > 0, leaf), leaf, jnp.inf), axis=0)


def all_finite(tree: PyTree, batch_axes: int = 0) -> jax.Array:
    """Whether every entry is finite, kept apart over the first ``batch_axes`` axes; an empty tree is finite."""
    flags = [
        jnp.all(jnp.isfinite(leaf), axis=tuple(range(batch_axes, jnp.ndim(leaf))))
        for leaf in jax.tree.leaves(tree)
    ]
    result = jnp.asarray(True)
    for flag in flags:
        result = result & flag
    return result


def nbytes(tree: PyTree) -> int:
    """Bytes of all leaves, arrays or ``jax.ShapeDtypeStruct``."""
    return sum(int(np.prod(leaf.shape)) * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(tree))
