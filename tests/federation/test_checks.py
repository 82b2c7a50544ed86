"""Misuse is named before any work, in words that say what was got, what is wanted and what to do."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedgeo import federation, trees
from fedgeo.protocol import Cohort, FedState, Rows, Series
from tests.federation.test_engine import averaging

KEY, DATA = jax.random.key(0), jnp.asarray([1.0, 5.0, 9.0])


def fit(alg=None, key=KEY, data=DATA, **options):
    return federation.fit(averaging() if alg is None else alg, key, data, **{"rounds": 1} | options)


def with_metrics(metrics):
    return averaging()._replace(update=lambda key, server, client, data_k: (client, data_k, metrics(data_k)))


class Unhashable:
    """A sampler, or a function of an algorithm."""

    __hash__ = None

    def __call__(self, *arguments):
        return federation.everyone(*arguments)


ALGORITHMS = {
    "factory": (averaging, "alg must be a FedAlgorithm, got the function averaging; call the factory"),
    "no algorithm": (3, "alg must be a FedAlgorithm, got the int"),
    "unhashable": (averaging()._replace(weight=Unhashable()), "weight of the algorithm must be hashable"),
    "bare state": (
        averaging()._replace(init=lambda key, data: (jnp.zeros(()), jnp.zeros(3))),
        r"init returns FedState\(server, clients\), got the tuple",
    ),
    "other clients": (
        averaging()._replace(init=lambda key, data: FedState(jnp.zeros(()), jnp.zeros(2))),
        r"init returns clients with leaves \(K, ...\), here K = 3, got float32\[2\]",
    ),
    "init of one argument": (
        averaging()._replace(init=lambda key: None),
        r"init of an algorithm is called with \(key, data\): too many positional arguments",
    ),
    "two values": (
        averaging()._replace(update=lambda key, server, client, data_k: (client, data_k)),
        r"update returns \(client, upload, metrics\), got the tuple",
    ),
    "update of three arguments": (
        averaging()._replace(update=lambda server, client, data_k: (client, data_k, {})),
        r"update of an algorithm is called with \(key, server, client, data_k\)",
    ),
    "no scalar": (
        with_metrics(lambda x: {"norms": jnp.zeros(4)}),
        r"metrics are a flat dict of scalars by name, but 'norms' is float32\[4\]",
    ),
    "nested": (with_metrics(lambda x: {"a": {"b": x}}), "flat dict of scalars by name, but 'a' is {'b'"),
    "no dict": (with_metrics(lambda x: x), r"flat dict of scalars by name, got the .*float32\[\]"),
    "words": (with_metrics(lambda x: {"phase": "warm"}), "but 'phase' is 'warm'"),
    "taken": (with_metrics(lambda x: {"weight": x}), "a metric may not be called 'weight'.*rename it"),
    "vector": (
        averaging()._replace(weight=lambda data_k: jnp.ones(5)),
        r"weight returns one real number, the client's weight, got float32\[5\]",
    ),
    "complex": (averaging()._replace(weight=lambda data_k: jnp.ones((), complex)), "one real number"),
    "merge keeps the axis": (
        averaging()._replace(merge=lambda uploads, weights: uploads),
        r"merge returns one upload, .*got float32\[2\] of two float32\[\]",
    ),
}


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("block_size", [None, 2])
def test_an_algorithm_that_is_none_is_told_so(name, block_size):
    alg, message = ALGORITHMS[name]
    with pytest.raises(ValueError, match=message):
        fit(alg, block_size=block_size)


@pytest.mark.parametrize("name", ["update", "sync", "aggregate"])
def test_the_function_that_changes_the_form_of_a_state_is_named(name):
    wide = lambda state: jnp.stack([state, state])  # noqa: E731
    change = {
        "update": lambda key, server, client, data_k: (wide(client), data_k, {}),
        "sync": lambda server, client: wide(client),
        "aggregate": lambda server, uploads, weights, cohort: wide(server),
    }
    want = rf"{name} must keep structure, shapes and dtypes of the state: got float32\[2\], want float32\[\]"
    with pytest.raises(TypeError, match=want):
        fit(averaging()._replace(**{name: change[name]}))


ARGUMENTS = [
    ({"key": 0}, r"key must be one typed key such as jax.random.key\(0\), got the int"),
    ({"key": jax.random.split(KEY)}, "one typed key such as"),
    ({"key": jnp.zeros(2, jnp.uint32)}, r"one typed key such as .*uint32\[2\]"),
    ({"rounds": True}, "rounds must be a whole number of at least 0, got True"),
    ({"rounds": 2.5}, "rounds must be a whole number of at least 0, got 2.5"),
    ({"data": jnp.zeros(0)}, "data has no clients"),
    ({"mesh": 4}, "mesh must be a jax.sharding.Mesh, got 4; pass client_mesh"),
    (
        {"checkpoints": "dir"},
        r"checkpoints must be a Checkpoints, .*dir.* pass fedgeo.*Checkpoints\(folder\)",
    ),
    (
        {"records": "dir"},
        r"records must be a Records, .*dir.*; pass fedgeo.federation.Records\(folder, names",
    ),
    (
        {"sampler": lambda key, k, n: jnp.arange(k)},
        r"returns Cohort\(index, active\), .* got the .*int32\[3\]",
    ),
    ({"sampler": federation.uniform}, r"a sampler is called with \(key, K, round number\)"),
    ({"sampler": Unhashable()}, "sampler must be hashable, .* pass a function, or a frozen dataclass"),
    (
        {"sampler": lambda key, k, n: Cohort(jnp.arange(k), jnp.ones(k, bool), jnp.ones(2, bool))},
        "integers .* and booleans",
    ),
    ({"state": jnp.zeros(3)}, r"state must be a FedState, got .*float32\[3\]; pass what fit returned first"),
    (
        {"state": FedState(jnp.zeros(2), jnp.zeros(3))},
        r"state.server is not of this algorithm on these data: got float32\[2\], want float32\[\]",
    ),
    ({"state": FedState(jnp.zeros(()), jnp.zeros((3, 2)))}, "state.clients is not of this algorithm"),
    ({"data": Rows(jnp.ones((4, 2)), jnp.ones(4, bool))}, r"data is one client, with x \(4, 2\) and mask"),
    ({"data": Series(jnp.ones((4, 2)), jnp.ones(4, bool))}, "stack several with fedgeo.data.stack_rows"),
]


@pytest.mark.parametrize(("options", "message"), ARGUMENTS, ids=[str(i) for i in range(len(ARGUMENTS))])
def test_an_argument_that_is_wrong_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        fit(**options)


@pytest.mark.parametrize("number", [np.int64, np.uint8, jnp.int32, jnp.asarray])
def test_whole_numbers_may_be_numpys_or_jaxs(number):
    options = {"rounds": 2, "first_round": 3, "block_size": 1, "quorum": 2}
    got = fit(**{name: number(value) for name, value in options.items()}, sampler=federation.uniform(2))
    jax.tree.map(np.testing.assert_array_equal, got, fit(**options, sampler=federation.uniform(2)))


def test_a_sampler_may_return_arrays_of_numpy():
    got, history = fit(sampler=lambda key, k, number: Cohort(np.array([2, 0]), np.ones(2, bool)), rounds=2)
    assert got.server == 5
    assert history.client.tolist() == [[2, 0]] * 2


@pytest.mark.parametrize("size", [2.5, True, "2"])
def test_a_cohort_has_a_whole_number_of_clients(size):
    with pytest.raises(ValueError, match="the size of a cohort is a whole number, got size="):
        federation.uniform(size)


@pytest.mark.parametrize("weight", [2, 2.0, True])
@pytest.mark.parametrize("block_size", [None, 2])
def test_a_weight_may_be_a_number_of_python(weight, block_size):
    alg = averaging()._replace(weight=lambda data_k: weight, merge=trees.mean)
    state, history = fit(alg, block_size=block_size)
    assert state.server == 5
    assert history.weight.dtype == jnp.float32
    assert history.weight.tolist() == [[float(weight)] * 3]


def test_an_error_of_a_users_own_keeps_its_kind_and_says_where():
    def update(key, server, client, data_k):
        raise KeyError("no such column")

    with pytest.raises(KeyError, match="no such column") as caught:
        fit(averaging()._replace(update=update))
    assert caught.value.__notes__[0] == (
        "In update of the algorithm, called for one client (is the first axis of data that of the clients?) with "
        "server float32[], client float32[], data_k float32[]"
    )


def test_other_clients_than_those_of_the_detectors_are_named():
    alg = averaging()
    state, _ = fit(alg)
    with pytest.raises(
        ValueError, match=r"the same clients \(K, ...\), got state.clients of 3 and data of 2"
    ):
        federation.deploy(alg, state, DATA[:2])
    detectors = federation.deploy(alg, state, DATA)
    np.testing.assert_array_equal(federation.score(alg, detectors, jnp.ones((3, 4))), np.ones((3, 4)))
    with pytest.raises(ValueError, match="got detectors of 3 and x of 4"):
        federation.score(alg, detectors, jnp.ones((4, 4)))
    with pytest.raises(ValueError, match="score takes the rows alone, got Series; pass its x"):
        federation.score(alg, detectors, Series(jnp.ones((3, 4, 1)), jnp.ones((3, 4), bool)))


def test_fit_runs_on_the_host():
    with pytest.raises(
        ValueError, match=r"fit runs on the host, .* under jit or vmap use fedgeo.federation.init"
    ):
        jax.jit(lambda data: fit(data=data)[0].server)(DATA)
    with pytest.raises(ValueError, match="fit runs on the host"):
        jax.vmap(lambda key: fit(key=key)[0].server)(jax.random.split(KEY))
    together = jax.vmap(lambda data: fit(data=data)[0].server)(jnp.stack([DATA, DATA + 1]))
    assert together.tolist() == [5, 6]


def test_a_second_run_traces_nothing():
    traced = []
    alg = averaging()
    alg = alg._replace(update=lambda *arguments: (traced.append(1), averaging().update(*arguments))[1])
    for _ in range(2):
        fit(alg)
        assert len(traced) == 2  # by the check, and for the program


def test_an_init_that_works_on_the_host_may_be_given_a_state():
    alg = averaging()._replace(
        init=lambda key, data: FedState(jnp.asarray(float(data[0])), jnp.zeros(len(data)))
    )
    state, _ = fit(alg)
    again, history = fit(alg, state=state, first_round=1)
    assert again.clients.tolist() == [2, 2, 2]
    assert history.updated.tolist() == [True]


def test_a_partial_is_an_algorithms_function():
    alg = averaging()._replace(sync=partial(lambda step, server, client: client + step, 10))
    assert fit(alg)[0].clients.tolist() == [11, 11, 11]


@pytest.mark.parametrize("block_size", [0, -3, 1.5])
def test_a_block_of_no_client_is_refused_where_detectors_are_made_and_used(block_size):
    want = f"block_size must be a whole number of at least 1, got {block_size}"
    state, _ = fit()
    with pytest.raises(ValueError, match=want):
        federation.deploy(averaging(), state, DATA, block_size=block_size)
    with pytest.raises(ValueError, match=want):
        federation.score(averaging(), DATA, DATA, block_size=block_size)
