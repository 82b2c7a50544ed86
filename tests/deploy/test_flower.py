"""Flower's apps over a grid in this process: every message goes through its real types, none through a network."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

pytest.importorskip("flwr", reason="needs the extra fedgeo[flower]")

from flwr.app import Context, Error, Message, RecordDict

from fedgeo import federation, trees
from fedgeo.algorithms.fedavg import fedavg
from fedgeo.algorithms.fedkad import fedkad
from fedgeo.algorithms.koopman import random_lift
from fedgeo.algorithms.moments import prepare
from fedgeo.algorithms.one_shot import one_shot
from fedgeo.deploy import flower
from fedgeo.models.encoder import geodesic_svdd
from fedgeo.protocol import Rows, Series

K, SEED = 3, 5


@pytest.fixture(autouse=True)
def _identity(monkeypatch):
    """What a message needs to know of the process that makes it."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class Grid:
    """Hands each message to its node's app, unless the node is down for it."""

    def __init__(self, app, nodes, down=lambda node, kind, number: False):
        self.app, self.down = app, down
        self.contexts = {
            node: Context(run_id=1, node_id=node, node_config={"id": k}, state=RecordDict(), run_config={})
            for k, node in enumerate(nodes)
        }

    def get_node_ids(self):
        return list(self.contexts)

    def send_and_receive(self, messages, *, timeout=None):
        for message in messages:
            node, kind = message.metadata.dst_node_id, message.metadata.message_type
            number = int(message.content["round"]["number"]) if "round" in message.content else None
            what = self.down(node, kind, number)
            if what == "error":
                yield Message(Error(code=2, reason="Traceback\nOutOfMemory"), reply_to=message)
            elif not what:
                yield self.app(message, self.contexts[node])


def streams():
    x = np.random.default_rng(0).normal(size=(K, 80, 2)).cumsum(axis=1) / 5
    mask = np.arange(80) < np.asarray([[80], [50], [65]])
    return Series(jnp.asarray(x * mask[..., None], jnp.float32), jnp.asarray(mask))


def koopman():
    lift = random_lift(jax.random.key(0), 2, window=3, size=4)
    return fedkad(lift, rank=2, start="independent", projection="tangent"), prepare(lift, streams())


def geodesic(make):
    x = np.random.default_rng(1).normal(size=(K, 24, 5))
    mask = np.arange(24) < np.asarray([[24], [9], [17]])
    model = geodesic_svdd(latent=3, width=8, blocks=1)
    rows = Rows(jnp.asarray(x * mask[..., None], jnp.float32), jnp.asarray(mask))
    epochs = {"epochs": 2} if make is one_shot else {"epochs": 1}
    return make(model, optimizer=optax.adam(1e-2), batch_size=8, **epochs), rows


def serve(alg, data, *, rounds=4, nodes=(70, 20, 50), down=lambda *_: False, spoil=None, **options):
    def load(context):
        k = context.node_config["id"]
        data_k = jax.tree.map(lambda leaf: leaf[k], data)
        return k, data_k if spoil is None else spoil(k, data_k)

    app = flower.client_app(alg, load, clients=K, seed=SEED)
    example = jax.tree.map(lambda leaf: leaf[0], data)
    grid = Grid(app, nodes, down)
    return flower.serve(alg, grid, example, clients=K, rounds=rounds, seed=SEED, **options), grid


def same(got, want, tolerance=1e-5):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert np.isfinite(b).all()
        np.testing.assert_allclose(a, b, atol=tolerance)


MAKERS = {"fedkad": koopman, "fedavg": lambda: geodesic(fedavg), "one-shot": lambda: geodesic(one_shot)}
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("fedavg", "one-shot")]


@pytest.mark.parametrize("name", ["fedkad", *SLOW])
def test_a_served_run_equals_the_simulator(name):
    alg, data = MAKERS[name]()
    outcome, _ = serve(alg, data)
    want, history = federation.fit(alg, jax.random.key(SEED), data, rounds=4)
    same(outcome.server, want.server)
    assert outcome.incidents == []
    for r, line in enumerate(outcome.metrics):
        assert line["counted"] == [0, 1, 2]
        for name, values in history.metrics.items():
            assert line[name] == pytest.approx(float(values[r].mean()), rel=1e-3, abs=1e-5)
    bare = 4 * K * federation.upload_bytes(alg, want, data) + K * trees.nbytes(want.server)
    arrays = 4 * K * 20 + K * 20  # at most, with a header of 128 bytes each
    assert bare <= outcome.upload_bytes <= bare + 128 * arrays


def test_partial_cohorts_and_lost_clients_equal_the_simulator():
    alg, data = koopman()
    sampler = federation.with_dropout(federation.uniform(2), before=0.3, after=0.3)
    outcome, _ = serve(alg, data, rounds=8, sampler=sampler)
    want, history = federation.fit(alg, jax.random.key(SEED), data, rounds=8, sampler=sampler)
    assert not np.asarray(history.active).all()
    assert not np.asarray(history.updated).all() or np.asarray(history.active).any(axis=1).all()
    same(outcome.server, want.server)


def test_a_message_that_fails_is_a_client_that_does_not_report():
    alg, data = koopman()
    outcome, _ = serve(alg, data, down=lambda *what: "error" if what == (20, "train", 1) else "")
    active = np.ones((4, K), bool)
    active[1, 1] = False
    trace = federation.recorded(np.tile(np.arange(K), (4, 1)), active)
    want, _ = federation.fit(alg, jax.random.key(SEED), data, rounds=4, sampler=trace)
    same(outcome.server, want.server)
    assert outcome.incidents == ["round 1: client 1 failed: OutOfMemory (train)"]


def test_a_lost_second_exchange_leaves_the_dual_as_it_was():
    """The client's upload counted; it goes on with its frame of that round and its dual from before."""
    alg, data = koopman()
    outcome, _ = serve(alg, data, down=lambda *what: what == (50, "query.sync", 1))

    def lossy(key, num_clients, number):
        cohort = federation.everyone(key, num_clients, number)
        return cohort._replace(reached=~((jnp.arange(K) == 2) & (number == 1)))

    want, _ = federation.fit(alg, jax.random.key(SEED), data, rounds=4, sampler=lossy)
    same(outcome.server, want.server)
    assert outcome.incidents == ["round 1: client 2 did not answer (query.sync)"]


def test_a_message_of_another_round_changes_nothing():
    alg, data = koopman()
    _, grid = serve(alg, data, rounds=2)
    context = grid.contexts[20]
    before = {name: context.state[name] for name in ("before", "after")}
    from flwr.app import ConfigRecord

    late = RecordDict({"server": context.state["after"], "round": ConfigRecord({"number": 0, "void": []})})
    reply = grid.app(Message(late, dst_node_id=20, message_type="query.sync"), context)
    assert reply.content["facts"]["applied"] == 0
    assert {name: context.state[name] for name in before} == before


def test_what_is_not_finite_is_set_aside_and_named():
    alg, data = koopman()

    def spoil(k, data_k):
        return data_k._replace(xx=data_k.xx * (jnp.nan if k == 2 else 1))

    outcome, _ = serve(alg, data, spoil=spoil)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(outcome.server))
    assert outcome.incidents == [
        f"round {r}: what client 2 sent was not finite and was set aside" for r in range(4)
    ]


def test_a_negative_weight_is_set_aside_and_named():
    alg, data = koopman()
    own = alg.weight
    alg = alg._replace(weight=lambda data_k: jnp.where(data_k.pairs == data.pairs[1], -30.0, own(data_k)))
    outcome, _ = serve(alg, data)
    want, history = federation.fit(alg, jax.random.key(SEED), data, rounds=4)
    assert np.asarray(history.quarantined).tolist() == [[False, True, False]] * 4
    same(outcome.server, want.server)
    assert outcome.incidents == [
        f"round {r}: the weight of client 1 is negative; it was set aside" for r in range(4)
    ]


def test_an_id_that_is_no_clients_takes_no_part():
    alg, data = koopman()

    def strays(key, num_clients, number):
        cohort = federation.everyone(key, num_clients, number)
        return cohort._replace(index=jnp.where(number == 1, jnp.asarray([0, 77, 0]), cohort.index))

    outcome, _ = serve(alg, data, sampler=strays)
    want, _ = federation.fit(alg, jax.random.key(SEED), data, rounds=4, sampler=strays)
    same(outcome.server, want.server)
    assert outcome.metrics[1]["counted"] == [0]
    assert len(outcome.incidents) == 1
    assert outcome.incidents[0].startswith("round 1: the sampler drew an id that is no client's")


def test_a_round_below_the_quorum_is_undone_everywhere():
    alg, data = koopman()
    outcome, _ = serve(alg, data, down=lambda *what: what[1:] == ("train", 1) and what[0] != 70, quorum=2)
    active = np.ones((4, K), bool)
    active[1, 1:] = False
    trace = federation.recorded(np.tile(np.arange(K), (4, 1)), active)
    want, _ = federation.fit(alg, jax.random.key(SEED), data, rounds=4, sampler=trace, quorum=2)
    same(outcome.server, want.server)
    assert "round 1: 1 clients counted, fewer than the quorum; the server kept its state" in outcome.incidents


def test_a_server_that_was_restarted_goes_on(tmp_path):
    alg, data = koopman()
    want, _ = serve(alg, data, rounds=5)
    _, grid = serve(alg, data, rounds=3, folder=tmp_path)
    example = jax.tree.map(lambda leaf: leaf[0], data)
    kept = {node: dict(context.state.items()) for node, context in grid.contexts.items()}

    class Resumed(Grid):
        def send_and_receive(self, messages, *, timeout=None):
            yield from super().send_and_receive(messages, timeout=timeout)
            if messages and messages[0].metadata.message_type == "query.start":
                for node, state in kept.items():  # nodes that lived on keep what they had
                    for name, record in state.items():
                        self.contexts[node].state[name] = record

    grid = Resumed(grid.app, (70, 20, 50))
    outcome = flower.serve(alg, grid, example, clients=K, rounds=5, seed=SEED, folder=tmp_path)
    same(outcome.server, want.server)
    with pytest.raises(ValueError, match="is of another run"):
        flower.serve(alg, grid, example, clients=K, rounds=5, seed=SEED + 1, folder=tmp_path)


def test_wrong_nodes_are_named():
    alg, data = koopman()
    example = jax.tree.map(lambda leaf: leaf[0], data)
    app = flower.client_app(alg, lambda context: (0, example), clients=K, seed=SEED)
    with pytest.raises(ValueError, match="two nodes say that they are client 0"):
        flower.serve(alg, Grid(app, (1, 2, 3)), example, clients=K, rounds=1, seed=SEED)
    with pytest.raises(TimeoutError, match="3 nodes are wanted, 2 came"):
        flower.serve(alg, Grid(app, (1, 2)), example, clients=K, rounds=1, seed=SEED, timeout=0.1)
