import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedgeo.shuffling import shuffled


@pytest.mark.parametrize("size", [1, 2, 255, 256, 257, 5000, 70_000])  # one sort up to 256, then two
@pytest.mark.parametrize("share", [0.0, 0.7, 1.0])
def test_is_the_stable_order_of_random_numbers(size, share):
    valid = np.random.default_rng(size).random(size) < share
    for seed in range(3):
        key = jax.random.key(seed)
        numbers = np.asarray(jax.random.uniform(key, (size,), jnp.float32))
        want = np.argsort(np.where(valid, numbers, 2.0), kind="stable")
        np.testing.assert_array_equal(jax.jit(shuffled)(key, jnp.asarray(valid)), want)


@hypothesis.settings(max_examples=30)
@hypothesis.given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(0, 2**31 - 1))
def test_padding_is_invisible(valid, seed):
    key, padded = jax.random.key(seed), [*valid, *([False] * (300 - len(valid)))]
    order = np.asarray(shuffled(key, jnp.asarray(valid)))
    assert sorted(order) == list(range(len(valid)))
    assert sorted(order[: sum(valid)]) == list(np.flatnonzero(valid))
    np.testing.assert_array_equal(shuffled(key, jnp.asarray(padded))[: len(valid)], order)


def test_every_order_is_as_likely_as_any_other():
    orders = jax.vmap(shuffled, (0, None))(jax.random.split(jax.random.key(0), 12_000), jnp.ones(4, bool))
    counts = np.unique(np.asarray(orders) @ [64, 16, 4, 1], return_counts=True)[1]
    assert len(counts) == 24
    assert np.sum((counts - 500.0) ** 2 / 500) < 50  # chi-squared, 23 degrees of freedom: p = 0.001
