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


def test_incidents_are_one_line_a_client_and_reason():
    flags = np.zeros((30, 3), bool)
    flags[:, 1] = flags[[0, 1, 7, 9, 10], 2] = True
    client = np.tile(np.arange(3), (30, 1))
    client[4, 2] = -1
    history = federation.RoundInfo(
        client=client, weight=np.where(flags | (client < 0), 0, 1), active=client >= 0, quarantined=flags,
        enough=np.ones(30, bool), updated=np.arange(30) != 7, metrics={},
    )  # fmt: skip
    what = "sent or kept was not finite, or its weight negative, and was set aside"
    assert federation.incidents(history, ["a", "b", "c"]) == [
        f"rounds 0-29: what client b {what}",
        f"rounds 0-1, 7, 9-10: what client c {what}",
        "round 4: the sampler drew an id that is no client's, or one twice; such entries took no part",
        "round 7: the aggregate was not finite; the server kept its state",
    ]
    every_other = history._replace(quarantined=flags & (np.arange(30) % 2 == 0)[:, None])
    assert federation.incidents(every_other, ["a", "b", "c"])[0] == (
        f"rounds 0, 2, 4, 6, 8, 10, 12, 14 and 7 more: what client b {what}"
    )
    with pytest.raises(
        ValueError, match=r"names are those of all K clients, .* got 1, but client 2 took part"
    ):
        federation.incidents(history, ["a"])


def negative(weight=-30.0):
    """Client 1 has that weight, the others 1."""
    return averaging()._replace(weight=lambda data_k: jnp.where(data_k == 5, weight, 1.0))


@pytest.mark.parametrize("weight", [-30.0, -np.inf, np.inf, np.nan])
@pytest.mark.parametrize("block_size", [None, 2])
def test_a_weight_that_cannot_be_is_set_aside(weight, block_size):
    alg, data = negative(weight)._replace(merge=trees.mean), jnp.asarray([1.0, 5.0, 9.0])
    state, history = federation.fit(alg, jax.random.key(0), data, rounds=2, block_size=block_size)
    assert state.server == 5
    assert state.clients.tolist() == [2, 0, 2]
    assert history.weight.tolist() == [[1, 0, 1]] * 2
    assert history.quarantined.tolist() == [[False, True, False]] * 2
    assert len(federation.incidents(history, ["a", "b", "c"])) == 1


@pytest.mark.parametrize("weight", [-30.0, np.inf, np.nan])
def test_what_is_combined_has_weights_that_can_be(weight):
    cohort = Cohort(jnp.arange(3), jnp.ones(3, bool))
    server, counted, enough, updated = federation.combine(
        averaging(), jnp.zeros(()), jnp.asarray([1.0, 5.0, 9.0]), jnp.asarray([1.0, weight, 3.0]), cohort
    )
    assert server == 7
    assert counted.tolist() == [1, 0, 3]
    assert enough
    assert updated


def test_metrics_of_clients_that_do_not_count_are_nan():
    alg, data = averaging(fail=(5.0,)), jnp.asarray([1.0, 5.0, 9.0, 7.0])
    alg = alg._replace(weight=lambda data_k: jnp.where(data_k == 9, 0.0, 1.0))
    trace = federation.recorded(np.tile(np.arange(4), (2, 1)), np.asarray([[1, 1, 1, 0], [1, 1, 1, 1]], bool))
    _, history = federation.fit(alg, jax.random.key(0), data, rounds=2, sampler=trace)
    counts = [[True, False, False, False], [True, False, False, True]]
    assert np.isfinite(history.metrics["draw"]).tolist() == counts
    assert (history.weight > 0).tolist() == counts


def straying(rounds, index, active=(True, True, True)):
    """Clients 0, 1 and 2, but those of the index in the rounds of that number."""

    def sample(key, num_clients, number):
        bad = jnp.isin(number, jnp.asarray(rounds))
        return Cohort(jnp.where(bad, jnp.asarray(index), jnp.arange(3)), jnp.asarray(active))

    return sample


@pytest.mark.parametrize("block_size", [None, 2])
@pytest.mark.parametrize(
    ("index", "counted"), [([0, 77, 1], [0, 1]), ([2, -1, 2], [2]), ([1, 1, 1], [1]), ([8, 7, 6], [7, 6])]
)
def test_an_id_that_is_no_clients_or_twice_there_counts_for_nobody(index, counted, block_size):
    alg, data = averaging()._replace(merge=trees.mean), jnp.asarray([1.0, 5.0, 9.0, 0, 0, 0, 30.0, 50.0])
    options = dict(sampler=straying([2], index), rounds=3, block_size=block_size)
    state, history = federation.fit(alg, jax.random.key(0), data, **options)
    assert state.server == pytest.approx(np.mean(data[jnp.asarray(counted)]))
    assert state.clients.tolist() == [2 * (k < 3) + (k in counted) for k in range(8)]
    kept = np.asarray(history.client[2]) >= 0
    assert history.client[2][kept].tolist() == counted
    assert history.weight[2].tolist() == history.active[2].tolist() == kept.tolist()
    assert not history.quarantined.any()
    assert federation.incidents(history, list("abcdefgh")) == [
        "round 2: the sampler drew an id that is no client's, or one twice; such entries took no part"
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
        (lambda: fit(quorum=4), "a quorum of 4 is more than the cohort of 3 clients"),
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
