import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedgeo import federation, trees
from fedgeo.protocol import Cohort, FedAlgorithm, FedState


def averaging(fail=()):
    """Clients count their rounds and send their number; the server keeps the last mean."""

    def update(key, server, client, data_k):
        upload = jnp.where(jnp.isin(data_k, jnp.asarray(fail)) if fail else False, jnp.nan, data_k)
        return client + 1, upload, {"draw": jax.random.uniform(key)}

    return FedAlgorithm(
        init=lambda key, data: FedState(jnp.zeros(()), jnp.zeros(len(data))),
        update=update,
        weight=lambda data_k: jnp.ones(()),
        aggregate=lambda server, uploads, weights, cohort: trees.mean(uploads, weights),
        sync=lambda server, client: client,
        deploy=lambda server, client, data_k: server,
        score=lambda detector, x: x,
    )


def test_mean_over_those_who_reported():
    alg, data = averaging(), jnp.asarray([1.0, 5.0, 9.0, 100.0])
    state = alg.init(jax.random.key(0), data)
    cohort = Cohort(jnp.asarray([0, 1, 3]), jnp.asarray([True, True, False]))
    after, info = federation.fed_round(alg, jax.random.key(0), state, data, cohort)
    assert after.server == 3
    assert after.clients.tolist() == [1, 1, 0, 0]
    assert info.weight.tolist() == [1, 1, 0]


def test_incidents_name_client_and_round():
    alg, data = averaging(fail=(5.0,)), jnp.asarray([1.0, 5.0, 9.0])
    state, history = federation.fit(alg, jax.random.key(0), data, rounds=2)
    assert state.server == 5
    assert federation.incidents(history, ["a", "b", "c"]) == [
        "rounds 0-1: what client b sent or kept was not finite, or its weight negative, and was set aside"
    ]
    _, silent = federation.fit(
        averaging(),
        jax.random.key(0),
        data,
        rounds=1,
        sampler=federation.with_dropout(federation.uniform(2), before=1),
    )
    assert federation.incidents(silent, ["a", "b", "c"]) == [
        "round 0: nobody reported; the server kept its state"
    ]


def test_a_server_that_would_not_be_finite_keeps_its_state():
    alg = averaging()._replace(
        aggregate=lambda server, uploads, weights, cohort: jnp.where(server > 2, jnp.inf, 3.0)
    )
    state, history = federation.fit(alg, jax.random.key(0), jnp.asarray([1.0, 5.0]), rounds=2)
    assert state.server == 3
    assert history.updated.tolist() == [True, False]
    assert federation.incidents(history, ["a", "b"]) == [
        "round 1: the aggregate was not finite; the server kept its state"
    ]


def test_a_round_below_the_quorum_is_void():
    alg, data = averaging(fail=(5.0,)), jnp.asarray([1.0, 5.0, 9.0])
    trace = federation.recorded(np.asarray([[0, 1], [0, 2]]))
    state, history = federation.fit(alg, jax.random.key(0), data, rounds=2, sampler=trace, quorum=2)
    assert history.enough.tolist() == history.updated.tolist() == [False, True]
    assert state.server == 5
    assert state.clients.tolist() == [1, 0, 1]  # nothing of the first round
    assert federation.incidents(history, ["a", "b", "c"]) == [
        "round 0: what client b sent or kept was not finite, or its weight negative, and was set aside",
        "round 0: 1 clients counted, fewer than the quorum; the server kept its state",
    ]


def test_a_client_lost_after_its_upload_counts_but_is_not_synced():
    alg = averaging()._replace(sync=lambda server, client: client + 10)
    cohort = Cohort(jnp.asarray([0, 2]), jnp.asarray([True, True]), jnp.asarray([True, False]))
    data = jnp.asarray([1.0, 5.0, 9.0])
    after, info = federation.fed_round(
        alg, jax.random.key(0), alg.init(jax.random.key(0), data), data, cohort
    )
    assert after.server == 5
    assert after.clients.tolist() == [11, 0, 1]
    assert info.weight.tolist() == [1, 1]


def test_a_client_that_would_not_be_finite_keeps_its_state():
    alg = averaging()._replace(sync=lambda server, client: jnp.where(client > 1, jnp.nan, client))
    state, history = federation.fit(alg, jax.random.key(0), jnp.asarray([1.0, 5.0]), rounds=2)
    assert state.clients.tolist() == [1, 1]
    assert history.quarantined.tolist() == [[False, False], [True, True]]


def test_numpy_data_under_jit():
    alg, data = averaging(), np.asarray([1.0, 5.0], np.float32)
    cohort = Cohort(jnp.arange(2), jnp.ones(2, bool))
    state = alg.init(jax.random.key(0), jnp.asarray(data))
    after, _ = jax.jit(lambda c: federation.fed_round(alg, jax.random.key(0), state, data, c))(cohort)
    assert after.server == 3


def sampler(index, active=(True, True)):
    return lambda key, num_clients, number: Cohort(jnp.asarray(index), jnp.asarray(active))


def test_keys_follow_the_client_not_its_place():
    alg, data = averaging(), jnp.arange(5.0)
    state, key = alg.init(jax.random.key(0), data), jax.random.key(4)
    draws = []
    for order in ([0, 2, 4], [4, 0, 2]):
        cohort = Cohort(jnp.asarray(order), jnp.ones(3, bool))
        _, info = federation.fed_round(alg, key, state, data, cohort)
        draws.append(dict(zip(order, np.asarray(info.metrics["draw"]).tolist(), strict=True)))
    assert draws[0] == draws[1]
    assert len(set(draws[0].values())) == 3


def test_no_rounds_return_the_start():
    alg, data = averaging(), jnp.arange(5.0)
    state, history = federation.fit(alg, jax.random.key(0), data, rounds=0)
    assert state.server == 0
    assert history.client.shape == (0, 5)


@pytest.mark.parametrize("rounds", [1, 7, 30])
def test_progress_reaches_the_end(rounds):
    done = []
    federation.fit(averaging(), jax.random.key(0), jnp.arange(3.0), rounds=rounds, on_progress=done.append)
    assert done[-1] == rounds
    assert done == sorted(set(done))


def test_a_vmap_over_seeds_is_one_program():
    alg, data = averaging(), jnp.arange(6.0)

    def server(seed):
        key = jax.random.key(seed)
        start = federation.init(alg, key, data)
        return federation.run(alg, key, start, data, jnp.asarray(0), sampler=federation.uniform(2), rounds=3)[
            0
        ].server

    together = jax.vmap(server)(jnp.arange(4))
    assert np.isfinite(together).all()
    np.testing.assert_array_equal(together, [server(seed) for seed in range(4)])


def fit(**options):
    options = {"rounds": 1, "sampler": federation.everyone} | options
    return federation.fit(averaging(), jax.random.key(0), jnp.ones(3), **options)


def test_an_algorithm_that_changes_the_form_of_its_state_is_told_so():
    grows = averaging()._replace(aggregate=lambda server, uploads, weights, cohort: uploads)
    with pytest.raises(TypeError, match=r"aggregate must keep structure, shapes and dtypes .* float32\[3\]"):
        federation.fit(grows, jax.random.key(0), jnp.ones(3), rounds=1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: federation.uniform(0), "at least one client, got size=0"),
        (
            lambda: federation.with_dropout(federation.everyone, before=1.5),
            "before is a probability in .*got 1.5",
        ),
        (
            lambda: federation.fit(averaging(), jax.random.key(0), jnp.ones(3), rounds=-1),
            "whole number of at least 0, got -1",
        ),
        (
            lambda: federation.fit(
                averaging(), jax.random.key(0), jnp.ones(3), rounds=1, sampler=federation.uniform(4)
            ),
            "cohort of 4 clients was asked for, but the federation has 3",
        ),
        (
            lambda: federation.fit(averaging(), jax.random.key(0), (jnp.ones(3), jnp.ones(2)), rounds=1),
            "same leading client axis",
        ),
        (lambda: federation.fit(averaging(), jax.random.key(0), (), rounds=1), "same leading client axis"),
        (lambda: fit(block_size=-1), "block_size must be a whole number of at least 1, got -1"),
        (lambda: fit(rounds=3.0), "rounds must be a whole number of at least 0, got 3.0"),
        (lambda: fit(first_round=2**31), "first_round must be a whole number"),
        (
            lambda: fit(state=FedState(jnp.zeros(()), jnp.zeros(2))),
            "the state holds other clients than the data",
        ),
        (lambda: fit(quorum=0), "quorum must be a whole number of at least 1, got 0"),
        (
            lambda: fit(sampler=lambda key, num_clients: None),
            r"called with \(key, K, round number\): too many positional arguments",
        ),
        (lambda: fit(sampler=sampler([0, 7])), r"distinct and below K = 3, got \[0, 7\]"),
        (lambda: fit(sampler=sampler([1, 1])), r"distinct and below K = 3, got \[1, 1\]"),
        (lambda: fit(sampler=sampler([0.0, 1.0])), "integers .* and booleans .*; got float32"),
        (lambda: fit(sampler=sampler([0, 1, 2])), "integers .* and booleans"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def merging(fail=()):
    return averaging(fail)._replace(merge=trees.mean)


@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 9])
def test_a_cohort_added_up_in_blocks_counts_whom_it_should(block_size):
    """Seven clients, of whom one fails and one does not report, in blocks that divide seven or do not."""
    data = jnp.asarray([1.0, 5.0, 9.0, 100.0, 11.0, 20.0, 3.0])
    alg = merging(fail=(100.0,))
    cohort = Cohort(jnp.arange(7), jnp.asarray([True] * 5 + [False, True]))
    state = alg.init(jax.random.key(0), data)
    after, info = federation.fed_round(alg, jax.random.key(0), state, data, cohort, block_size=block_size)
    assert after.server == pytest.approx(29 / 5, rel=1e-6)
    assert after.clients.tolist() == [1, 1, 1, 0, 1, 0, 1]
    assert info.weight.tolist() == [1, 1, 1, 0, 1, 0, 1]
    assert info.quarantined.tolist() == [False] * 3 + [True] + [False] * 3
    void, info = federation.fed_round(
        alg, jax.random.key(0), state, data, cohort, block_size=block_size, quorum=6
    )
    assert not info.updated
    assert void.server == 0


def test_memory_stays_flat_in_the_number_of_clients_with_a_cap_on_the_block():
    size = 20_000

    def update(key, server, client, data_k):
        return client, jnp.sort(server * data_k), {"norm": jnp.sum(server)}

    alg = averaging()._replace(
        init=lambda key, data: FedState(jnp.zeros(size), ()), update=update, merge=trees.mean
    )

    def held(clients, block_size):
        data = jnp.arange(clients, dtype=jnp.float32)
        state = alg.init(jax.random.key(0), data)
        program = federation.run.lower(
            alg, jax.random.key(0), state, data, jnp.asarray(0), sampler=federation.everyone, rounds=2,
            block_size=block_size,
        )  # fmt: skip
        return program.compile().memory_analysis().temp_size_in_bytes

    assert held(1000, 10) < held(50, 10) + 100_000  # a few numbers a client
    assert held(1000, 10) < 40 * size * 4
    assert held(1000, None) > 1000 * size * 4
