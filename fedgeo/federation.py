"""Federated rounds as one compiled program; works with any :class:`FedAlgorithm` and knows none.

A run is a scan over rounds. Each round draws a fixed-size cohort, gathers its S clients, maps ``update`` over them,
sets aside what is not finite, aggregates, maps ``sync`` and scatters the clients back. Keys follow the identity of
round and client, so results depend neither on the order of the cohort nor on the block size.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedgeo import trees
from fedgeo.protocol import Cohort, FedAlgorithm, FedState, Key, PyTree

Sampler = Callable[[Key, int], Cohort]
"""``(key, K) -> Cohort``; S must not depend on the key, and the ids must be distinct."""


def everyone(key: Key, num_clients: int) -> Cohort:
    """Sampler: every client, every round."""
    del key
    return Cohort(jnp.arange(num_clients), jnp.ones(num_clients, bool))


def uniform(size: int, *, dropout: float = 0.0) -> Sampler:
    """Sampler: ``size`` distinct clients, each failing to report with probability ``dropout``.

    Args:
        size: S, at least 1 and at most K.
        dropout: in [0, 1].

    Raises:
        ValueError: at once for a value out of range, and when a run starts for S > K.
    """
    if size < 1:
        raise ValueError(f"a cohort needs at least one client, got size={size}")
    if not 0 <= dropout <= 1:
        raise ValueError(f"dropout is a probability, got {dropout}")

    def sample(key: Key, num_clients: int) -> Cohort:
        if size > num_clients:
            raise ValueError(
                f"a cohort of {size} clients was asked for, but the federation has {num_clients}; "
                "choose a smaller size, or the sampler `everyone`"
            )
        draw_key, drop_key = jax.random.split(key)
        index = jnp.sort(jax.random.permutation(draw_key, num_clients)[:size])
        if not dropout:
            return Cohort(index, jnp.ones(size, bool))
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(drop_key, index)
        return Cohort(index, ~jax.vmap(partial(jax.random.bernoulli, p=float(dropout)))(keys))

    return sample


class RoundInfo(NamedTuple):
    """What one round reports; never fed back. A history has a leading round axis ``(R, S, ...)``.

    Attributes:
        client: ``(S,)`` ids.
        weight: ``(S,)`` weight in the aggregate; 0 for clients without rows, inactive or quarantined ones.
        active: ``(S,)`` False for clients that were drawn but did not report.
        quarantined: ``(S,)`` True for clients whose upload, state or weight was not finite; their weight is 0, their
            state is kept from before the round, and their metrics may be NaN.
        updated: ``()`` False where the server kept its state: nobody reported, or the aggregate was not finite.
        metrics: the algorithm's own, each ``(S,)``.
    """

    client: jax.Array
    weight: jax.Array
    active: jax.Array
    quarantined: jax.Array
    updated: jax.Array
    metrics: dict[str, jax.Array]


def _map_clients(function: Callable[..., Any], arguments: PyTree, block_size: int | None) -> Any:
    """Map over the leading axis: all at once, or ``block_size`` clients at a time to cap memory."""
    if block_size is None:
        return jax.vmap(function)(*arguments)
    return jax.lax.map(lambda a: function(*a), arguments, batch_size=block_size)


def fed_round(
    alg: FedAlgorithm,
    key: Key,
    state: FedState,
    data: PyTree,
    cohort: Cohort,
    *,
    block_size: int | None = None,
) -> tuple[FedState, RoundInfo]:
    """One round; pure, to be called under jit, vmap or scan.

    If nobody's weight is positive, or the aggregate is not finite, the server keeps its state. The state of a client
    that is inactive, quarantined or not in the cohort is bit-identical afterwards.

    Args:
        alg: the algorithm.
        key: the round's key; client k works with ``fold_in(key, k)``.
        state: leaves of ``state.clients`` are ``(K, ...)``.
        data: leaves ``(K, ...)``.
        cohort: who takes part.
        block_size: clients updated at a time; None for the whole cohort.
    """
    index = cohort.index
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, index)
    before, data_s = trees.take(state.clients, index), trees.take(data, index)
    clients, uploads, metrics = _map_clients(
        lambda k, client, data_k: alg.update(k, state.server, client, data_k),
        (keys, before, data_s),
        block_size,
    )
    weights = jax.vmap(alg.weight)(data_s)

    finite = trees.all_finite((uploads, clients, weights), batch_axes=1)
    reported = cohort.active & finite
    weights = jnp.where(reported, weights, 0)
    uploads = trees.where(reported, uploads, jax.tree.map(jnp.zeros_like, uploads))
    aggregated = alg.aggregate(state.server, uploads, weights, Cohort(index, reported))
    _check_same_form("aggregate", aggregated, state.server)
    updated = (jnp.sum(weights) > 0) & trees.all_finite(aggregated)
    server = trees.where(updated, aggregated, state.server)

    synced = jax.vmap(alg.sync, in_axes=(None, 0), axis_size=index.shape[0])(server, clients)
    _check_same_form("sync", synced, before)
    sound = finite & trees.all_finite(synced, batch_axes=1)
    after = trees.put(state.clients, index, trees.where(cohort.active & sound, synced, before))
    info = RoundInfo(index, weights, cohort.active, cohort.active & ~sound, updated, metrics)
    return FedState(server, after), info


@partial(jax.jit, static_argnames=("alg", "sampler", "rounds", "block_size"))
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

    Returns:
        The state after the last round and the history, its leaves ``(R, S, ...)``.
    """
    num_clients = _num_clients(data)

    def body(carry: FedState, number: jax.Array) -> tuple[FedState, RoundInfo]:
        draw_key, work_key = jax.random.split(jax.random.fold_in(key, number))
        return fed_round(alg, work_key, carry, data, sampler(draw_key, num_clients), block_size=block_size)

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
    on_progress: Callable[[int], None] | None = None,
    stop: Callable[[RoundInfo], Any] | None = None,
) -> tuple[FedState, RoundInfo]:
    """Run a federation.

    Args:
        alg: a value made by a factory such as ``fedgeo.algorithms.fedkad``.
        key: a typed key; the same key gives the same bits again.
        data: all clients, every leaf ``(K, ...)``.
        rounds: R, at least 0.
        sampler: who takes part in each round; everyone by default.
        state: where to go on from; None starts from :func:`init`.
        first_round: number of the first round; pass the rounds already done to continue a run exactly.
        block_size: clients updated at a time, to cap memory; None for a whole cohort.
        on_progress: called with the number of rounds done, about ten times.
        stop: called as often with the history of the rounds since its last call; if it returns True the run ends there,
            such as ``lambda h: stationary(h.metrics, h.weight, consensus=0.01, gradient=0.05)[-1]`` for FedKAD. With
            either, one program for a block of rounds is run again and again, which changes no result.

    Returns:
        The final state and the history, a :class:`RoundInfo` with leaves ``(R, S, ...)``, or fewer rounds than R if the
        run was stopped.

    Raises:
        ValueError: leaves of ``data`` that disagree in K, a negative number of rounds, or a cohort larger than K.
    """
    for name, count, least in (
        ("rounds", rounds, 0),
        ("first_round", first_round, 0),
        ("block_size", block_size, 1),
    ):
        if count is not None and (not isinstance(count, int) or not least <= count < 2**31):
            raise ValueError(f"{name} must be a whole number of at least {least}, got {count!r}")
    num_clients = _check_leading_axis("data", data)
    state = init(alg, key, data) if state is None else state
    if jax.tree.leaves(state.clients) and _check_leading_axis("state.clients", state.clients) != num_clients:
        raise ValueError(
            f"the state holds other clients than the data, which have {num_clients}; start from init"
        )
    _check_cohort(sampler(jax.random.fold_in(key, first_round), num_clients), num_clients)
    in_blocks = rounds and (on_progress or stop)
    block = _largest_divisor(rounds, at_most=max(rounds // 10, 1)) if in_blocks else rounds
    history = []
    for done in range(0, max(rounds, 1), max(block, 1)):
        state, info = run(
            alg, key, state, data, jnp.asarray(first_round + done),
            sampler=sampler, rounds=block, block_size=block_size,
        )  # fmt: skip
        history.append(info)
        if on_progress:
            jax.block_until_ready(state)
            on_progress(done + block)
        if stop and block and stop(info):
            break
    return state, jax.tree.map(lambda *parts: jnp.concatenate(parts), *history)


def deploy(alg: FedAlgorithm, state: FedState, data: PyTree, *, block_size: int | None = None) -> PyTree:
    """Every client's detector, leaves ``(K, ...)``."""
    arguments = (state.clients, data)
    return _map_clients(
        lambda client, data_k: alg.deploy(state.server, client, data_k), arguments, block_size
    )


def score(alg: FedAlgorithm, detectors: PyTree, x: PyTree, *, block_size: int | None = 1) -> jax.Array:
    """Every client's scores of its own data.

    Args:
        alg: the algorithm.
        detectors: from :func:`deploy`, leaves ``(K, ...)``.
        x: padded data, such as streams ``(K, T, C)`` or rows ``(K, N, F)``.
        block_size: clients scored at a time; None for all.

    Returns:
        ``(K, T)`` or ``(K, N)``; what stands at padded rows means nothing.
    """
    return _map_clients(alg.score, (detectors, x), block_size)


def upload_bytes(alg: FedAlgorithm, state: FedState, data: PyTree) -> int:
    """Bytes that one client sends up in one round, read off the message itself."""
    client, data_k = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), (state.clients, data)
    )
    _, upload, _ = jax.eval_shape(alg.update, jax.random.key(0), state.server, client, data_k)
    return trees.nbytes(upload)


def incidents(history: RoundInfo, names: Sequence[str]) -> list[str]:
    """What a user should know of a run: quarantined clients, clients without weight, rounds without a report.

    Args:
        history: from :func:`fit`.
        names: K names, by client id.
    """
    client, weight = np.asarray(history.client), np.asarray(history.weight)
    active, quarantined = np.asarray(history.active), np.asarray(history.quarantined)
    lines = [
        f"round {r}: what client {names[client[r, s]]} sent or kept was not finite and was set aside"
        for r, s in np.argwhere(quarantined)
    ]
    idle = np.unique(client[active & ~quarantined & (weight == 0)])
    lines += [f"client {names[k]} has no usable rows; its weight is 0" for k in idle]
    for r in np.flatnonzero(~np.asarray(history.updated)):
        why = "nobody reported" if weight[r].sum() == 0 else "the aggregate was not finite"
        lines.append(f"round {r}: {why}; the server kept its state")
    return lines


def _num_clients(data: PyTree) -> int:
    return jax.tree.leaves(data)[0].shape[0]


def _check_leading_axis(name: str, data: PyTree) -> int:
    sizes = {jax.tree_util.keystr(path): np.shape(leaf)[:1] for path, leaf in jax.tree.leaves_with_path(data)}
    if not sizes or len(set(sizes.values())) != 1 or () in sizes.values():
        raise ValueError(f"every leaf of {name} needs the same leading client axis (K, ...), got {sizes}")
    return next(iter(sizes.values()))[0]


def _check_cohort(cohort: Cohort, num_clients: int) -> None:
    """What a user's own sampler must hold to; checked on one draw, before anything is traced."""
    index, active = (np.asarray(part) for part in cohort)
    if index.ndim != 1 or index.shape != active.shape or index.dtype.kind not in "iu" or active.dtype != bool:
        raise ValueError(
            "a sampler returns Cohort(index, active), integers (S,) and booleans (S,); "
            f"got {index.dtype} {index.shape} and {active.dtype} {active.shape}"
        )
    if len(set(index.tolist())) < len(index) or not ((index >= 0) & (index < num_clients)).all():
        raise ValueError(
            f"a sampler's ids must be distinct and below K = {num_clients}, got {index.tolist()}"
        )


def _check_same_form(name: str, got: PyTree, want: PyTree) -> None:
    """Raise at trace time if a function of the algorithm returns another structure, shape or dtype than it got."""
    forms = [
        jax.tree.map(lambda leaf: f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}", tree)
        for tree in (got, want)
    ]
    if forms[0] != forms[1]:
        raise TypeError(
            f"{name} must keep structure, shapes and dtypes of the state: got {forms[0]}, want {forms[1]}"
        )


def _largest_divisor(number: int, at_most: int) -> int:
    return max(d for d in range(1, at_most + 1) if number % d == 0)
