"""Federated rounds as one compiled program; works with any :class:`FedAlgorithm` and knows none.

A run is a scan over rounds. Each round draws a fixed-size cohort, gathers its S clients, maps ``update`` over them,
sets aside what is not finite, aggregates, maps ``sync`` and scatters the clients back. Keys follow the identity of
round and client, so results depend neither on the order of the cohort nor on the block size.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from fedgeo import trees
from fedgeo.arguments import whole
from fedgeo.federation import checks, sharding
from fedgeo.federation.checkpoints import Checkpoints, Store, deferred_sigterm
from fedgeo.federation.history import Records, RoundInfo
from fedgeo.federation.participation import Sampler, everyone, without_strays
from fedgeo.protocol import Cohort, FedAlgorithm, FedState, Key, PyTree, Rows, Series


def _over_clients(work: Callable[..., Any], arguments: PyTree, block_size: int | None) -> Any:
    """Map ``work(*arguments_k)`` over the leading axis, all at once, or ``block_size`` clients at a time."""
    if block_size is None:
        return jax.vmap(lambda a: work(*a))(arguments)
    return jax.lax.map(lambda a: work(*a), arguments, batch_size=None if block_size == 1 else block_size)


def _merge_blocks(
    merge: Callable[[PyTree, jax.Array], PyTree],
    work: Callable[..., Any],
    arguments: PyTree,
    active: jax.Array,
    block_size: int,
) -> tuple[Any, PyTree, jax.Array]:
    """Map ``work`` over blocks of clients and add up their uploads, of which only one block's are held.

    Returns:
        What work returns but for the uploads; the merged upload, leaves ``(1, ...)``; and its weight ``(1,)``.
    """

    def block(carry: tuple[PyTree, jax.Array], some: tuple[PyTree, jax.Array]) -> Any:
        clients, uploads, *rest = _over_clients(work, some[0], None if size > 1 else 1)
        weights, sound = rest[-2:]
        counted = some[1] & sound
        own = jnp.where(counted, weights, 0)
        uploads = trees.where(counted, uploads, jax.tree.map(jnp.zeros_like, uploads))
        new = (merge(uploads, own), jnp.sum(own))
        both = jax.tree.map(lambda a, b: jnp.stack([a, b.astype(a.dtype)]), carry, new)
        return (merge(*both), jnp.sum(both[1])), (clients, *rest)

    count = active.shape[0]
    size = min(block_size, count)
    everything = (arguments, active)
    if filling := -count % size:  # the last block is filled up with clients that do not count
        place = jnp.arange(count + filling)
        everything = (trees.take(arguments, place % count), active[place % count] & (place < count))
    of_one = jax.eval_shape(lambda: work(*jax.tree.map(lambda leaf: leaf[0], arguments))[1])
    pair = jax.tree.map(lambda leaf: jnp.zeros((2, *leaf.shape), leaf.dtype), of_one)
    carry = (jax.tree.map(jnp.zeros_like, merge(pair, jnp.zeros(2))), jnp.zeros((), jnp.float32))
    blocks = jax.tree.map(lambda leaf: leaf.reshape(-1, size, *leaf.shape[1:]), everything)
    carry, done = jax.lax.scan(block, carry, blocks)
    done = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:count], done)
    return done, *jax.tree.map(lambda leaf: leaf[None], carry)


def _on_devices(function: Callable[..., Any], mesh: Mesh | None, shared: PyTree, arguments: PyTree) -> Any:
    """``function(shared, arguments)``; over the devices of a mesh each works on its share of the arguments."""
    if mesh is None:
        return function(shared, arguments)
    axis = P(*mesh.axis_names)
    spread = jax.shard_map(function, mesh=mesh, in_specs=(P(), axis), out_specs=axis, check_vma=False)
    return spread(shared, arguments)


def fed_round(
    alg: FedAlgorithm,
    key: Key,
    state: FedState,
    data: PyTree,
    cohort: Cohort,
    *,
    block_size: int | None = None,
    quorum: int = 1,
    mesh: Mesh | None = None,
) -> tuple[FedState, RoundInfo]:
    """One round; pure, to be called under jit, vmap or scan.

    If fewer clients than the quorum have a positive weight, or the aggregate is not finite, the round is void: nobody's
    state changes. The state of a client that is inactive, quarantined or not in the cohort is bit-identical afterwards.

    Args:
        alg: the algorithm.
        key: the round's key; client k works with ``fold_in(key, k)``.
        state: leaves of ``state.clients`` are ``(K, ...)``.
        data: leaves ``(K, ...)``.
        cohort: who takes part; an id that is not below K, or stands there twice, counts for nobody.
        block_size: clients updated at a time; None for the whole cohort.
        quorum: fewest clients that must count.
        mesh: one axis of devices over which the cohort is spread; S must be a multiple of their number.
    """
    num_clients = _num_clients(data)
    cohort = without_strays(cohort, num_clients)
    index = cohort.index
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, index)
    before = trees.take(state.clients, index)

    def work(server: PyTree, k: Key, client: PyTree, data_k: PyTree) -> Any:
        client, upload, metrics = alg.update(k, server, client, data_k)
        weight = checks.as_weight(alg.weight(data_k))
        sound = trees.all_finite((upload, client, weight)) & (weight >= 0)
        return client, upload, metrics, weight, sound

    def fetch_and_work(server: PyTree, k: Key, client: PyTree, i: jax.Array) -> Any:
        return work(server, k, client, trees.take(data, i))  # a block of clients holds a block's data

    one = fetch_and_work if mesh is None else work
    arguments = (keys, before, index if mesh is None else trees.take(data, index))
    if alg.merge is None or block_size is None:

        def stacked(server: PyTree, arguments: PyTree) -> Any:
            return _over_clients(partial(one, server), arguments, block_size)

        clients, uploads, metrics, weights, sound = _on_devices(stacked, mesh, state.server, arguments)
        reported = Cohort(index, cohort.active & sound)
        server, weights, enough, updated = combine(
            alg, state.server, uploads, weights, reported, quorum=quorum
        )
    else:
        merge, size = alg.merge, block_size

        def merged(server: PyTree, arguments: PyTree) -> Any:
            theirs, active = arguments
            return _merge_blocks(merge, partial(one, server), theirs, active, size)

        done, uploads, totals = _on_devices(merged, mesh, state.server, (arguments, cohort.active))
        clients, metrics, weights, sound = done
        weights = jnp.where(cohort.active & sound, weights, 0)
        parts = Cohort(jnp.arange(totals.shape[0]), totals > 0)
        aggregated = alg.aggregate(state.server, uploads, totals, parts)
        server, enough, updated = _commit(state.server, aggregated, weights, quorum)

    synced = jax.vmap(alg.sync, in_axes=(None, 0), axis_size=index.shape[0])(server, clients)
    checks.same_form("sync", synced, before)
    if cohort.reached is not None:
        synced = trees.where(cohort.reached, synced, clients)
    sound = sound & trees.all_finite(synced, batch_axes=1)
    after = trees.put(state.clients, index, trees.where(updated & cohort.active & sound, synced, before))
    metrics = {name: jnp.where(weights > 0, value, jnp.nan) for name, value in metrics.items()}
    named = jnp.where(index < num_clients, index, -1)
    info = RoundInfo(named, weights, cohort.active, cohort.active & ~sound, enough, updated, metrics)
    return FedState(server, after), info


def combine(
    alg: FedAlgorithm,
    server: PyTree,
    uploads: PyTree,
    weights: jax.Array,
    reported: Cohort,
    *,
    quorum: int = 1,
) -> tuple[PyTree, jax.Array, jax.Array, jax.Array]:
    """What the server does with a round's uploads.

    Args:
        alg: the algorithm.
        server: its state.
        uploads: leaves ``(S, ...)``; those of clients that did not report may hold anything.
        weights: ``(S,)``, likewise; whoever has one that is negative or not finite is left out.
        reported: the cohort, ``active`` where the upload is there and finite.
        quorum: fewest clients that must count.

    Returns:
        The new state, the weights that counted ``(S,)``, whether they are as many as the quorum asks for, and whether
        the state is new; if not it is the old one, and the round is void.
    """
    sound = reported.active & (weights >= 0) & (weights < jnp.inf)
    reported = reported._replace(active=sound)
    weights = jnp.where(reported.active, weights, 0)
    uploads = trees.where(reported.active, uploads, jax.tree.map(jnp.zeros_like, uploads))
    aggregated = alg.aggregate(server, uploads, weights, reported)
    server, enough, updated = _commit(server, aggregated, weights, quorum)
    return server, weights, enough, updated


def _commit(
    server: PyTree, aggregated: PyTree, weights: jax.Array, quorum: int
) -> tuple[PyTree, jax.Array, jax.Array]:
    """The new state, or the old one of a void round; whether enough clients counted; whether it is the new one."""
    checks.same_form("aggregate", aggregated, server)
    enough = jnp.sum(weights > 0) >= quorum
    updated = enough & trees.all_finite(aggregated)
    return trees.where(updated, aggregated, server), enough, updated


def round_keys(key: Key, number: jax.Array | int) -> tuple[Key, Key]:
    """The keys of a round: of its sampler, and of its clients, of which client k works with ``fold_in(second, k)``."""
    draw_key, work_key = jax.random.split(jax.random.fold_in(key, number))
    return draw_key, work_key


@partial(jax.jit, static_argnames=("alg", "sampler", "rounds", "block_size", "quorum", "mesh", "num_clients"))
def run(
    alg: FedAlgorithm,
    key: Key,
    state: FedState,
    data: PyTree,
    first_round: jax.Array,
    *,
    sampler: Sampler,
    rounds: int,
    block_size: int | None = None,
    quorum: int = 1,
    mesh: Mesh | None = None,
    num_clients: int | None = None,
) -> tuple[FedState, RoundInfo]:
    """The compiled program behind :func:`fit`: a scan over ``rounds`` rounds.

    Composes with ``vmap`` (over seeds, classes or penalties) and lowers ahead of time. Nothing is checked here.

    Args:
        alg: the algorithm.
        key: the run's key.
        state: from ``alg.init`` or an earlier run.
        data: leaves ``(K, ...)``.
        first_round: number of the first round, so that two runs in a row equal one.
        sampler: draws each round's cohort.
        rounds: R.
        block_size: clients updated at a time.
        quorum: fewest clients that must count in a round.
        mesh: devices to spread the cohort over.
        num_clients: K where the leaves hold more: the rest fills up the cohort for the mesh, see :mod:`sharding`.

    Returns:
        The state after the last round and the history, its leaves ``(R, S, ...)``.
    """
    num_clients = num_clients or _num_clients(data)

    def body(carry: FedState, number: jax.Array) -> tuple[FedState, RoundInfo]:
        draw_key, work_key = round_keys(key, number)
        cohort = sampler(draw_key, num_clients, number)
        options: dict[str, Any] = dict(block_size=block_size, quorum=quorum, mesh=mesh)
        if mesh is None:
            return fed_round(alg, work_key, carry, data, cohort, **options)
        cohort = without_strays(
            cohort, num_clients
        )  # before ids beyond K come to mean the clients that fill up
        filled = sharding.fill_cohort(cohort, num_clients, mesh.size)
        carry, info = fed_round(alg, work_key, carry, data, filled, **options)
        return carry, sharding.drop_filling(info, cohort.index.shape[0], mesh)

    return jax.lax.scan(body, state, first_round + jnp.arange(rounds))


def init(alg: FedAlgorithm, key: Key, data: PyTree) -> FedState:
    """The state before the first round, for the key that :func:`fit` was or will be given."""
    return alg.init(jax.random.fold_in(key, np.uint32(0xFFFFFFFF)), data)  # no round has this number


def fit(
    alg: FedAlgorithm,
    key: Key,
    data: PyTree,
    *,
    rounds: int,
    sampler: Sampler = everyone,
    state: FedState | None = None,
    first_round: int = 0,
    block_size: int | None = None,
    quorum: int = 1,
    mesh: Mesh | None = None,
    checkpoints: Checkpoints | None = None,
    records: Records | None = None,
    on_progress: Callable[[int], None] | None = None,
    stop: Callable[[RoundInfo], Any] | None = None,
) -> tuple[FedState, RoundInfo]:
    """Run a federation.

    It runs on the host: under ``jit`` or ``vmap`` use :func:`init` and :func:`run`. The arguments, and what the
    functions of the algorithm return, are checked before the first round.

    Whoever wants to hear of a run while it goes on (``checkpoints``, ``records``, ``on_progress``, ``stop``) cuts it
    into blocks of rounds, which run one program again and again and change no result: ``checkpoints.every`` rounds
    each, or about ten equal blocks.

    Args:
        alg: a value made by a factory such as ``fedgeo.algorithms.fedkad``.
        key: a typed key; the same key gives the same bits again.
        data: all clients, every leaf ``(K, ...)``.
        rounds: R, at least 0.
        sampler: who takes part in each round; everyone by default.
        state: where to go on from; None starts from :func:`init`. With checkpoints it is part of what makes a run: a
            folder of a run that began elsewhere is refused.
        first_round: number of the first round; pass the rounds already done to continue a run exactly.
        block_size: clients updated at a time, on each device, to cap memory; None for a whole cohort.
        quorum: fewest clients that must count, at most S; a round with fewer is void.
        mesh: devices to spread clients and cohorts over, such as :func:`client_mesh`, of one process or several that
            all call this with the same arguments. Results agree with those of one device to rounding.
        checkpoints: where to save, and to go on from if something is there.
        records: files to write the history to.
        on_progress: called with the number of rounds done.
        stop: called with the history of each block; if it returns True the run ends there, such as
            ``lambda h: stationary(h.metrics, h.weight, consensus=0.01, gradient=0.05)[-1]`` for FedKAD.

    Returns:
        The final state and the history, a :class:`RoundInfo` with leaves ``(R, S, ...)``, or fewer rounds than R if the
        run was stopped.

    Raises:
        ValueError: an argument, or what a function of the algorithm or the sampler returns, that is not what it must
            be; what was got, what is wanted and what to do.
        TypeError: a function of the algorithm that does not keep structure, shapes and dtypes of a state.
        CheckpointError: a checkpoint that is damaged or of another run.
    """
    checks.algorithm(alg)
    rounds, first_round = whole("rounds", rounds, 0), whole("first_round", first_round, 0)
    block_size = None if block_size is None else whole("block_size", block_size, 1)
    quorum = whole("quorum", quorum, 1)
    checks.single_key(key)
    if mesh is not None:
        sharding.check_mesh(mesh)
    checks.instances(
        checkpoints=(checkpoints, Checkpoints, "pass fedgeo.federation.Checkpoints(folder)"),
        records=(records, Records, "pass fedgeo.federation.Records(folder, names of the clients)"),
    )
    num_clients = checks.leading_axis("data", data)
    size = checks.cohort_size(sampler, key, num_clients, first_round)
    if quorum > size:
        raise ValueError(
            f"a quorum of {quorum} is more than the cohort of {size} clients, so that every round would be void; "
            "ask for fewer, or draw more"
        )
    begins_at_init = state is None
    if state is None:
        state = checks.start(alg, init, key, data)
    else:
        checks.given_state(state, alg, init, key, data)
    if records and len(records.names) != num_clients:
        raise ValueError(f"records name {len(records.names)} clients, but the federation has {num_clients}")
    upload = trees.nbytes(checks.messages(alg, key, state, data, size))
    done, store = 0, None
    history: list[RoundInfo] = []
    if checkpoints:
        facts = {"cohort_size": size, "quorum": quorum}
        begins = None if begins_at_init else state
        draw = sampler(jax.random.key(0), num_clients, jnp.asarray(first_round))
        one_round = run.lower(alg, key, state, data, jnp.asarray(0), sampler=sampler, rounds=1)
        store = Store(
            checkpoints, key, data, first_round, facts=facts, program=one_round.as_text(), draw=draw, begins=begins
        )  # fmt: skip
        _, like = one_round.out_info
        if found := store.restore((state, like)):
            done, (state, before) = found
            history.append(before)
    if done > rounds:
        raise ValueError(f"the checkpoints hold {done} rounds, but {rounds} were asked for")
    if records:
        records.start(first_round + done)
    if mesh is not None:
        length = sharding.filled_length(num_clients, size, mesh.size)
        data = sharding.spread(data, mesh, length)
        state = FedState(
            sharding.copy_everywhere(state.server, mesh), sharding.spread(state.clients, mesh, length)
        )
    step = partial(
        run, alg, sampler=sampler, block_size=block_size, quorum=quorum, mesh=mesh,
        num_clients=None if mesh is None else num_clients,
    )  # fmt: skip
    hears = records or on_progress or stop
    block = checkpoints.every if checkpoints else _equal_blocks(rounds) if hears else rounds
    listening: AbstractContextManager[list[int]] = deferred_sigterm() if store else nullcontext([])
    with listening as terminated:
        while done < rounds or not history:
            now = min(block, rounds - done)
            state, info = step(key, state, data, jnp.asarray(first_round + done), rounds=now)
            history.append(info)
            done += now
            if records:
                records.write(first_round + done - now, info, upload)
            if store and now:
                store.save(done, (_whole(state, mesh, num_clients), _join(history)))
            if terminated and store:
                raise SystemExit(128 + terminated[0])
            if on_progress and now:
                jax.block_until_ready(state)
                on_progress(done)
            if stop and now and stop(info):
                break
    return _whole(state, mesh, num_clients), _join(history)


def _whole(state: FedState, mesh: Mesh | None, num_clients: int) -> FedState:
    if mesh is None:
        return state
    return FedState(state.server, sharding.gather(state.clients, mesh, num_clients))


def _join(history: list[RoundInfo]) -> RoundInfo:
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), *history)


def deploy(alg: FedAlgorithm, state: FedState, data: PyTree, *, block_size: int | None = None) -> PyTree:
    """Every client's detector, leaves ``(K, ...)``.

    Raises:
        ValueError: a state and data of different numbers of clients; a block size below 1.
    """
    checks.same_clients(**{"state.clients": state.clients, "data": data})
    block_size = None if block_size is None else whole("block_size", block_size, 1)
    return _over_clients(partial(alg.deploy, state.server), (state.clients, data), block_size)


def score(alg: FedAlgorithm, detectors: PyTree, x: PyTree, *, block_size: int | None = 1) -> jax.Array:
    """Every client's scores of its own data.

    Args:
        alg: the algorithm.
        detectors: from :func:`deploy`, leaves ``(K, ...)``.
        x: padded data, such as streams ``(K, T, C)`` or rows ``(K, N, F)``.
        block_size: clients scored at a time; None for all.

    Returns:
        ``(K, T)`` or ``(K, N)``; what stands at padded rows means nothing.

    Raises:
        ValueError: detectors and data of different numbers of clients; a block size below 1.
    """
    if isinstance(x, Rows | Series):
        raise ValueError(f"score takes the rows alone, got {type(x).__name__}; pass its x")
    checks.same_clients(detectors=detectors, x=x)
    block_size = None if block_size is None else whole("block_size", block_size, 1)
    return _over_clients(alg.score, (detectors, x), block_size)


def upload_bytes(alg: FedAlgorithm, state: FedState, data: PyTree) -> int:
    """Bytes that one client sends up in one round, read off the message itself."""
    client, data_k = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), (state.clients, data)
    )
    _, upload, _ = jax.eval_shape(alg.update, jax.random.key(0), state.server, client, data_k)
    return trees.nbytes(upload)


def _num_clients(data: PyTree) -> int:
    return jax.tree.leaves(data)[0].shape[0]


def _equal_blocks(rounds: int) -> int:
    """Rounds of a block, so that about ten equal ones make a run: the largest divisor up to a tenth."""
    return max((d for d in range(1, max(rounds // 10, 1) + 1) if rounds % d == 0), default=1)
