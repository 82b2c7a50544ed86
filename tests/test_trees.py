import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from fedgeo import trees


def tree(k=4):
    return {"a": jnp.arange(3.0 * k).reshape(k, 3), "b": (jnp.arange(k),)}


def test_put_undoes_take():
    index = jnp.asarray([3, 1])
    taken = trees.take(tree(), index)
    np.testing.assert_array_equal(taken["a"], np.arange(12.0).reshape(4, 3)[[3, 1]])
    chex.assert_trees_all_equal(trees.put(tree(), index, taken), tree())
    changed = trees.put(tree(), index, jax.tree.map(lambda leaf: leaf + 1, taken))
    np.testing.assert_array_equal(changed["b"][0], [0, 2, 2, 4])


def test_where_lets_no_nan_through():
    bad = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), {"a": jnp.ones((2, 3))})
    got = trees.where(jnp.asarray([True, False]), {"a": jnp.ones((2, 3))}, {"a": jnp.zeros((2, 3))})
    np.testing.assert_array_equal(got["a"], [[1, 1, 1], [0, 0, 0]])
    np.testing.assert_array_equal(trees.where(jnp.asarray([True, True]), got, bad)["a"], got["a"])


def test_mean_is_weighted_and_zero_without_weight():
    values = {"a": jnp.asarray([[1.0, 2.0], [3.0, 6.0]])}
    np.testing.assert_allclose(trees.mean(values, jnp.asarray([3.0, 1.0]))["a"], [1.5, 3.0])
    np.testing.assert_array_equal(trees.mean(values, jnp.zeros(2))["a"], [0, 0])
    assert trees.mean((), jnp.ones(2)) == ()
    assert trees.mean(jnp.asarray([2, 4]), jnp.ones(2)) == 3
    assert trees.mean(jnp.asarray([True, False]), jnp.ones(2)) == 0.5


def test_all_finite_by_client():
    values = {
        "a": jnp.asarray([[1.0, jnp.inf], [1.0, 2.0], [0.0, 0.0]]),
        "b": jnp.asarray([1.0, jnp.nan, 0.0]),
    }
    assert trees.all_finite(values, batch_axes=1).tolist() == [False, False, True]
    assert not trees.all_finite(values)
    assert trees.all_finite(())
    assert trees.all_finite(jnp.arange(3))


def test_nbytes_of_arrays_and_of_shapes():
    values = {"a": jnp.zeros((3, 5)), "b": jnp.zeros(2, jnp.int8)}
    assert trees.nbytes(values) == 62
    assert trees.nbytes(jax.eval_shape(lambda: values)) == 62


def test_median_and_trimmed_mean_leave_out_whoever_has_no_weight():
    rng = np.random.default_rng(0)
    for size in (1, 2, 5, 8):
        x, weights = rng.normal(size=(size, 3)).astype(np.float32), rng.random(size).astype(np.float32)
        weights[: size // 3] = 0
        counted = x[weights > 0]
        tree, w = {"a": jnp.asarray(x), "b": jnp.arange(size)}, jnp.asarray(weights)
        got = trees.median(tree, w)
        np.testing.assert_allclose(got["a"], np.median(counted, axis=0), rtol=1e-6)
        np.testing.assert_allclose(got["b"], np.median(np.arange(size)[weights > 0]), rtol=1e-6)
        for share in (0.0, 0.2, 0.49):
            want = scipy.stats.trim_mean(counted, share, axis=0)
            np.testing.assert_allclose(trees.trimmed_mean(share)(tree, w)["a"], want, rtol=2e-5, atol=1e-6)
    nobody = jnp.zeros(4)
    assert trees.median(jnp.ones((4, 2)), nobody).tolist() == [0, 0]
    assert trees.trimmed_mean(0.1)(jnp.ones((4, 2)), nobody).tolist() == [0, 0]
    with pytest.raises(ValueError, match=r"got 0\.5"):
        trees.trimmed_mean(0.5)
