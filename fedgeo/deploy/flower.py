"""Any :class:`FedAlgorithm` as client and server of Flower: the simulator's functions, over a network.

A round is one exchange, or two where clients have something to do with the new server state (``sync``): train sends the
server's state and brings uploads, and sync sends what became of them. Messages hold plain arrays; both sides know the
trees that they are leaves of from the algorithm itself. What a client keeps stays on its node, between messages too.

Every message names its round. A client applies the second exchange only to the round that it is of, so that a message
that was lost or comes late cannot pair a client's state with another round's server: it has then missed ``sync``, as a
client ``with_dropout(..., after=...)`` does in the simulator. A round that the server set aside as void is undone.

Before the first round every client sends the server's state as ``init`` makes it from that client's data alone, and the
server starts from the mean over those with a weight. That is the simulator's start for every algorithm whose server
starts from the key, or from a mean over clients: FedKAD from "shared" or "independent" frames, FedAvg, one-shot; not
for FedKAD's ``start="warm"``, whose power iterations are exchanges of their own.

Needs the extra ``fedgeo[flower]``.
"""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedgeo import federation, trees
from fedgeo.federation.participation import without_strays
from fedgeo.protocol import Cohort, FedAlgorithm, Key, PyTree

Load = Callable[[Context], tuple[int, PyTree]]
"""``(context) -> (client id below K, data_k)``: this node's own data, prepared as for the simulator."""

_NOBODY = -1


class Outcome(NamedTuple):
    """What a served run found.

    Attributes:
        server: the last state.
        incidents: sentences that name clients and rounds: who failed, who sent what was not finite, void rounds.
        metrics: a dict a round: its number, who reported, who counted, and the algorithm's metrics, means over those.
        upload_bytes: of arrays, all rounds and clients, measured on the messages.
        download_bytes: likewise, to the clients.
    """

    server: PyTree
    incidents: list[str]
    metrics: list[dict[str, Any]]
    upload_bytes: int
    download_bytes: int


def client_app(alg: FedAlgorithm, load: Load, *, clients: int, seed: int = 0) -> ClientApp:
    """The app of a node.

    Args:
        alg: the algorithm that :func:`serve` is given too.
        load: reads this node's data.
        clients: K.
        seed: the same as the server's.
    """
    app, key = ClientApp(), jax.random.key(seed)

    @app.query("start")
    def start(message: Message, context: Context) -> Message:
        client_id, data_k = load(context)
        if not 0 <= client_id < clients:
            raise ValueError(f"a node's client id must lie in 0..{clients - 1}, got {client_id}")
        server, client = _own_start(alg, key, data_k, client_id, clients)
        _keep(context, client, client, _NOBODY)
        facts = MetricRecord({"client": client_id, "weight": float(alg.weight(data_k))})
        return Message(RecordDict({"server": _pack(server), "facts": facts}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        client_id, data_k = load(context)
        forms = _forms(alg, key, data_k, clients)
        asked = message.content.config_records["round"]
        number = int(_scalar(asked, "number"))
        client = _committed(context, forms.client, _void_rounds(asked))
        server = _unpack(message.content.array_records["server"], forms.server)
        _, work_key = federation.round_keys(key, number)
        after, upload, metrics = jax.jit(alg.update)(
            jax.random.fold_in(work_key, client_id), server, client, data_k
        )
        weight = float(alg.weight(data_k))
        sound = bool(trees.all_finite((after, upload))) and 0 <= weight < float("inf")
        _keep(context, client, after if sound else client, number if sound else _NOBODY)
        facts = MetricRecord({name: float(value) for name, value in metrics.items()})
        facts["client"], facts["weight"] = client_id, weight
        return Message(RecordDict({"upload": _pack(upload), "facts": facts}), reply_to=message)

    @app.query("sync")
    def sync(message: Message, context: Context) -> Message:
        _, data_k = load(context)
        forms = _forms(alg, key, data_k, clients)
        asked = message.content.config_records["round"]
        before, after, pending = _kept(context, forms.client)
        applied = pending == _scalar(asked, "number")
        if applied:
            server = _unpack(message.content.array_records["server"], forms.server)
            synced = jax.jit(alg.sync)(server, after)
            client = synced if bool(trees.all_finite(synced)) else before
            _keep(context, client, client, _NOBODY)
        return Message(RecordDict({"facts": MetricRecord({"applied": int(applied)})}), reply_to=message)

    return app


def serve(
    alg: FedAlgorithm,
    grid: Grid,
    example: PyTree,
    *,
    clients: int,
    rounds: int,
    seed: int = 0,
    sampler: federation.Sampler = federation.everyone,
    quorum: int = 1,
    timeout: float = 600.0,
    folder: str | Path | None = None,
    on_round: Callable[[dict[str, Any]], None] | None = None,
) -> Outcome:
    """Run a federation over the nodes of a grid: what the main function of a ``ServerApp`` calls.

    Args:
        alg: the same as the clients'.
        grid: from Flower.
        example: data of one client of which only structure, shapes and dtypes count, such as ``prepare`` gives.
        clients: K; the run starts when as many nodes have come.
        rounds: R.
        seed: the same as the clients'.
        sampler: who is asked in each round.
        quorum: fewest clients that must count.
        timeout: seconds to wait for answers, and for nodes to come.
        folder: where the server's state is saved after every round, and gone on from if there is one. Clients keep
            what they have only as long as their nodes live.
        on_round: called with what the outcome says of each round when it is done.

    Raises:
        TimeoutError: too few nodes came.
        ValueError: nodes that are not clients 0 to K - 1, arrays of another algorithm, or a folder of another run.
    """
    key = jax.random.key(seed)
    run = _Run(grid, timeout)
    forms = _forms(alg, key, example, clients)
    nodes, starts = run.gather(clients)
    server = _mean_start([(_unpack(s, forms.server), w) for s, w in starts])
    store = Path(folder) / "server.npz" if folder else None
    first, voids = 0, list[int]()
    metrics: list[dict[str, Any]] = []
    if store and store.exists():
        first, voids, server = _load(store, server, seed)
    combine = jax.jit(federation.combine, static_argnames=("alg", "quorum"))
    for number in range(first, rounds):
        draw_key, _ = federation.round_keys(key, number)
        cohort = without_strays(sampler(draw_key, clients, jnp.asarray(number)), clients)
        index, active = np.asarray(cohort.index), np.asarray(cohort.active)
        asked = [int(k) for k in index[active]]
        if (index >= clients).any():
            run.incidents.append(
                f"round {number}: the sampler drew an id that is no client's, or one twice; such entries took no part"
            )
        round_ = ConfigRecord({"number": number, "void": voids})
        replies = run.ask(
            "train", {nodes[k]: {"server": _pack(server), "round": round_} for k in asked}, number
        )
        server, updated, facts = _one_round(
            alg, combine, server, forms.upload, index, replies, quorum, number, run
        )
        metrics.append({"round": number, "updated": updated, **facts})
        if not updated:
            voids = [*voids, number]
        elif jax.tree.leaves(forms.client):
            lost = set() if cohort.reached is None else set(index[~np.asarray(cohort.reached)].tolist())
            told = [nodes[k] for k in facts["reported"] if k not in lost]
            run.ask("query.sync", {node: {"server": _pack(server), "round": round_} for node in told}, number)
        if store:
            _save(store, number + 1, voids, server, seed)
        if on_round:
            on_round(metrics[-1])
    return Outcome(server, run.incidents, metrics, run.up, run.down)


def _one_round(
    alg: FedAlgorithm,
    combine: Callable[..., Any],
    server: PyTree,
    form: PyTree,
    index: np.ndarray,
    replies: dict[int, RecordDict],
    quorum: int,
    number: int,
    run: "_Run",
) -> tuple[PyTree, bool, dict[str, Any]]:
    """Aggregate the replies that came, by client id, in the cohort's order."""
    uploads, weights, active = [], [], []
    for k in index.tolist():
        content = replies.get(k)
        upload = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), form)
        weight = 0.0
        if content is not None:
            upload = _unpack(content.array_records["upload"], form)
            weight = _scalar(content.metric_records["facts"], "weight")
        sound = content is not None and bool(trees.all_finite((upload, np.asarray(weight))))
        if content is not None and not sound:
            run.incidents.append(f"round {number}: what client {k} sent was not finite and was set aside")
        elif weight < 0:
            sound = False
            run.incidents.append(f"round {number}: the weight of client {k} is negative; it was set aside")
        uploads.append(upload)
        weights.append(weight)
        active.append(sound)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *uploads)
    cohort = Cohort(jnp.asarray(index), jnp.asarray(active))
    server, counted, enough, updated = combine(
        alg, server, stacked, jnp.asarray(weights, jnp.float32), cohort, quorum=quorum
    )
    who = [int(k) for k, w in zip(index, np.asarray(counted), strict=True) if w > 0]
    if not bool(updated):
        why = (
            "the aggregate was not finite"
            if bool(enough)
            else f"{len(who)} clients counted, fewer than the quorum"
        )
        run.incidents.append(f"round {number}: {why}; the server kept its state")
    facts = [replies[k].metric_records["facts"] for k in who]
    names = [name for name in facts[0] if name not in ("client", "weight")] if facts else []
    means = {name: float(np.mean([_scalar(record, name) for record in facts])) for name in names}
    reported = index[np.asarray(active)].tolist()
    return server, bool(updated), {"reported": reported, "counted": who, **means}


class _Run:
    """Messages of one run, what failed among them, and their bytes."""

    def __init__(self, grid: Grid, timeout: float) -> None:
        self.grid, self.timeout = grid, timeout
        self.incidents: list[str] = []
        self.client_of: dict[int, int] = {}
        self.up = self.down = 0

    def gather(self, clients: int) -> tuple[dict[int, int], list[tuple[ArrayRecord, float]]]:
        """Wait for the nodes and ask each who it is: node by client id, and each one's start and weight."""
        deadline = time.monotonic() + self.timeout
        while len(ids := sorted(self.grid.get_node_ids())) < clients:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{clients} nodes are wanted, {len(ids)} came within {self.timeout:g} s")
            time.sleep(0.5)
        starts: dict[int, tuple[ArrayRecord, float]] = {}
        nodes: dict[int, int] = {}
        for node, content in self._exchange("query.start", {node: {} for node in ids}, None).items():
            facts = content.metric_records["facts"]
            client = int(_scalar(facts, "client"))
            if client in nodes:
                raise ValueError(f"two nodes say that they are client {client}; give each an id of its own")
            nodes[client], self.client_of[node] = node, client
            starts[client] = content.array_records["server"], _scalar(facts, "weight")
        if missing := sorted(set(range(clients)) - set(nodes)):
            raise ValueError(
                f"no node says that it is client {', '.join(map(str, missing))}: {self.incidents}"
            )
        return nodes, [starts[k] for k in sorted(starts)]

    def ask(self, kind: str, contents: dict[int, dict[str, Any]], number: int) -> dict[int, RecordDict]:
        """Send each node its content; the answers that came, by client id."""
        answers = self._exchange(kind, contents, number)
        return {self.client_of[node]: content for node, content in answers.items()}

    def _exchange(
        self, kind: str, contents: dict[int, dict[str, Any]], number: int | None
    ) -> dict[int, RecordDict]:
        messages = [
            Message(RecordDict(content), dst_node_id=node, message_type=kind)
            for node, content in contents.items()
        ]
        self.down += sum(_nbytes(content.values()) for content in contents.values())
        answers: dict[int, RecordDict] = {}
        silent = dict.fromkeys(contents, "did not answer")
        for reply in self.grid.send_and_receive(messages, timeout=self.timeout):
            node = reply.metadata.src_node_id
            if reply.has_error():
                silent[node] = (
                    f"failed: {(reply.error.reason or str(reply.error.code)).strip().splitlines()[-1]}"
                )
            else:
                del silent[node]
                answers[node] = reply.content
                self.up += _nbytes(reply.content.values())
        when = "start" if number is None else f"round {number}"
        for node, what in silent.items():
            who = f"client {self.client_of[node]}" if node in self.client_of else f"node {node}"
            self.incidents.append(f"{when}: {who} {what} ({kind})")
        return answers


class _Forms(NamedTuple):
    """Trees of shapes and dtypes."""

    server: PyTree
    client: PyTree
    upload: PyTree


def _forms(alg: FedAlgorithm, key: Key, data_k: PyTree, clients: int) -> _Forms:
    """What the messages of an algorithm are leaves of, from data of one client."""
    shape = jax.ShapeDtypeStruct
    everyone = jax.tree.map(lambda leaf: shape((clients, *jnp.shape(leaf)), jnp.result_type(leaf)), data_k)
    state = jax.eval_shape(alg.init, key, everyone)
    client = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), state.clients)
    _, upload, _ = jax.eval_shape(alg.update, key, state.server, client, data_k)
    return _Forms(state.server, client, upload)


def _own_start(
    alg: FedAlgorithm, key: Key, data_k: PyTree, client_id: int, clients: int
) -> tuple[PyTree, PyTree]:
    """The server's state and this client's, as if nobody else had data."""

    @jax.jit
    def start(data_k: PyTree) -> tuple[PyTree, PyTree]:
        alone = jax.tree.map(
            lambda leaf: jnp.zeros((clients, *leaf.shape), leaf.dtype).at[client_id].set(leaf), data_k
        )
        state = federation.init(alg, key, alone)
        return state.server, jax.tree.map(lambda leaf: leaf[client_id], state.clients)

    return start(jax.tree.map(jnp.asarray, data_k))


def _mean_start(starts: Sequence[tuple[PyTree, float]]) -> PyTree:
    """The mean of the starts of clients that have a weight; what all agree on stays as it is."""
    servers, weights = zip(*starts, strict=True)
    counts = np.asarray(weights) > 0
    share = counts / max(counts.sum(), 1)

    def mean(*leaves: np.ndarray) -> np.ndarray:
        first = leaves[0]
        if all(np.array_equal(leaf, first, equal_nan=True) for leaf in leaves[1:]):
            return first
        return np.einsum("k,k...->...", share, np.stack(leaves).astype(np.float64)).astype(first.dtype)

    return jax.tree.map(mean, *servers)


def _pack(tree: PyTree) -> ArrayRecord:
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return ArrayRecord({str(i): Array(leaf) for i, leaf in enumerate(leaves)})


def _unpack(record: ArrayRecord, form: PyTree) -> PyTree:
    """The tree of these arrays; raises ValueError for others than the algorithm's."""
    leaves, structure = jax.tree.flatten(form)
    arrays = [record[str(i)].numpy() for i in range(len(record))]
    got = [(a.shape, a.dtype) for a in arrays]
    want = [(leaf.shape, np.dtype(leaf.dtype)) for leaf in leaves]
    if got != want:
        raise ValueError(
            f"the message holds arrays {got}, this algorithm wants {want}; do both sides run the same?"
        )
    return jax.tree.unflatten(structure, arrays)


def _scalar(record: MetricRecord | ConfigRecord, name: str) -> float:
    value = record[name]
    if not isinstance(value, int | float):
        raise ValueError(f"{name!r} of a message must be a number, got {value!r}")
    return value


def _void_rounds(asked: ConfigRecord) -> list[int]:
    rounds = asked["void"]
    if not isinstance(rounds, list):
        raise ValueError(f"'void' of a message must be a list of rounds, got {rounds!r}")
    return [int(number) for number in rounds]


def _nbytes(records: Iterable[Any]) -> int:
    return sum(record.count_bytes() for record in records if isinstance(record, ArrayRecord))


def _keep(context: Context, before: PyTree, after: PyTree, number: int) -> None:
    """Keep on the node the state to fall back to, the state to go on from, and the round that the latter waits for."""
    context.state["before"], context.state["after"] = _pack(before), _pack(after)
    context.state["pending"] = ConfigRecord({"number": number})


def _kept(context: Context, form: PyTree) -> tuple[PyTree, PyTree, int]:
    if "pending" not in context.state:
        raise RuntimeError(
            "this node has no state of this run; it was restarted, and takes part again in the next run"
        )
    before, after = (_unpack(context.state.array_records[name], form) for name in ("before", "after"))
    return before, after, int(_scalar(context.state.config_records["pending"], "number"))


def _committed(context: Context, form: PyTree, voids: Sequence[int]) -> PyTree:
    """The state to go on from: what a round left whose second exchange never came; what a void one found."""
    before, after, pending = _kept(context, form)
    return before if pending in voids else after


def _save(path: Path, done: int, voids: list[int], server: PyTree, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name("server.partial.npz")
    leaves: dict[str, Any] = {str(i): np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(server))}
    np.savez(partial, about=json.dumps({"done": done, "void": voids, "seed": seed}), **leaves)
    partial.replace(path)


def _load(path: Path, like: PyTree, seed: int) -> tuple[int, list[int], PyTree]:
    with np.load(path) as arrays:
        about = json.loads(str(arrays["about"]))
        leaves = [arrays[str(i)] for i in range(len(arrays.files) - 1)]
    want, structure = jax.tree.flatten(like)
    if about["seed"] != seed or [a.shape for a in leaves] != [w.shape for w in want]:
        raise ValueError(
            f"{path} is of another run; give the run a folder of its own, or remove this one to start over"
        )
    return about["done"], about["void"], jax.tree.unflatten(structure, leaves)
