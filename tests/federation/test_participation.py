import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedgeo import federation

KEYS = jax.random.split(jax.random.key(0), 2000)


def draw(sampler, num_clients):
    """Two thousand cohorts."""
    return jax.jit(jax.vmap(lambda key: sampler(key, num_clients, jnp.asarray(0))))(KEYS)


def test_uniform_cohorts_are_distinct_and_fair():
    drawn = np.asarray(draw(federation.uniform(3), 7).index)
    assert all(len(set(ids)) == 3 for ids in drawn.tolist())
    # Each client is drawn 3/7 of the time; 4 standard errors of a Bernoulli mean over 2000 draws are 0.044.
    np.testing.assert_allclose(np.bincount(drawn.ravel(), minlength=7) / 2000, 3 / 7, atol=0.044)


@pytest.mark.parametrize("size", [None, 3])
def test_bernoulli_clients_come_of_their_own_accord(size):
    cohorts = draw(federation.bernoulli(0.3, size=size), 7)
    index, active = np.asarray(cohorts.index), np.asarray(cohorts.active)
    assert index.shape == (2000, size or 7)
    assert all(len(set(ids)) == len(ids) for ids in index.tolist())
    came = np.zeros((2000, 7))
    np.put_along_axis(came, index, active, axis=1)
    binomial = np.random.default_rng(0).binomial(7, 0.3, 200_000)
    want = np.minimum(binomial, size or 7).mean()
    assert came.sum(axis=1).mean() == pytest.approx(want, abs=0.11)  # 4 standard errors
    np.testing.assert_allclose(came.mean(axis=0), want / 7, atol=0.042)


def test_dropout_before_and_after_the_upload():
    cohorts = draw(federation.with_dropout(federation.uniform(4), before=0.25, after=0.5), 8)
    active, reached = np.asarray(cohorts.active), np.asarray(cohorts.reached)
    assert active.mean() == pytest.approx(0.75, abs=0.02)  # 4 standard errors
    assert reached.mean() == pytest.approx(0.5, abs=0.023)
    assert (active & reached).mean() == pytest.approx(0.375, abs=0.022)
    never = federation.with_dropout(federation.everyone, before=1.0)(KEYS[0], 8, 0)
    assert not never.active.any()


def test_failures_follow_the_client_not_its_place():
    def reports(order):
        trace = federation.recorded(np.asarray([order]))
        cohort = federation.with_dropout(trace, before=0.5)(KEYS[1], 9, jnp.asarray(0))
        return dict(zip(order, cohort.active.tolist(), strict=True))

    assert reports([0, 3, 5, 8, 2]) == reports([8, 2, 0, 5, 3])


def test_slow_clients_miss_the_deadline():
    seconds = np.asarray([1.0, 10.0, 100.0])
    cohorts = draw(federation.with_deadline(federation.everyone, seconds=seconds, deadline=10, spread=1.0), 3)
    # P(N(0, 1) <= log(deadline / median)) for log 10, 0 and -log 10.
    np.testing.assert_allclose(cohorts.active.mean(axis=0), [0.98935, 0.5, 0.01065], atol=0.045)
    steady = federation.with_deadline(federation.everyone, seconds=seconds, deadline=50, spread=0.0)
    assert steady(KEYS[0], 3, 0).active.tolist() == [True, True, False]


def test_a_trace_is_replayed_round_by_round():
    index, active = np.asarray([[0, 1], [2, 0], [1, 2]]), np.asarray([[1, 1], [0, 1], [1, 0]], bool)
    sampler = federation.recorded(index, active)
    for number in range(5):
        cohort = jax.jit(sampler, static_argnums=1)(KEYS[0], 3, jnp.asarray(number))
        assert cohort.index.tolist() == index[number % 3].tolist()
        assert cohort.active.tolist() == active[number % 3].tolist()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: federation.bernoulli(1.5), "probability is a probability in .*got 1.5"),
        (lambda: federation.bernoulli(0.5, size=0), "at least one client, got size=0"),
        (lambda: federation.bernoulli(0.5, size=4)(KEYS[0], 3, 0), "a cohort of 4 clients .* has 3"),
        (lambda: federation.with_dropout(federation.everyone, after=-1), "after is a probability .*got -1"),
        (lambda: federation.recorded(np.zeros((2, 2))), r"a trace is integers \(R, S\)"),
        (lambda: federation.recorded(np.asarray([[0, 1], [1, 1]])), r"look at round 1: \[1, 1\]"),
        (lambda: federation.recorded(np.asarray([[0, 5]]))(KEYS[0], 3, 0), "below K = 3, got 0 to 5"),
        (
            lambda: federation.with_deadline(federation.everyone, seconds=[1, 0], deadline=1),
            "seconds are positive and finite",
        ),
        (
            lambda: federation.with_deadline(federation.everyone, seconds=[1, 2], deadline=0),
            "want a positive deadline",
        ),
        (
            lambda: federation.with_deadline(federation.everyone, seconds=[1, 2], deadline=1)(KEYS[0], 3, 0),
            "times of 2 clients, but the federation has 3",
        ),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
