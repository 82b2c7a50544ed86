"""Who takes part in a round, and who is lost on the way.

A sampler is a pure function that runs inside the compiled program. Those that take a sampler wrap it, so that models
combine: ``with_deadline(with_dropout(uniform(20), before=0.1), seconds=..., deadline=60)``. Whether a client fails
follows from its identity and the round, not from its place in the cohort.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedgeo.protocol import Cohort, Key


class Sampler(Protocol):
    """Who takes part in a round: any function ``(key, K, round number) -> Cohort``.

    It is traced into the compiled program, so it must be pure and written in JAX, and hashable, as functions are.

    - S, the length of the cohort, is the same in every round: it may depend on K, never on the key or the round. Where
      the number of clients varies, return room for the most and mark the rest ``active=False``.
    - ``index`` holds integers in 0 to K - 1, each at most once; ``active`` booleans; ``reached`` booleans or None.
    - The key is the round's own. What befalls a client should follow from ``fold_in(key, client id)``.

    ``fit`` looks at one draw before it starts. In any later round an id that is out of range, or named before in the
    same cohort, counts for nobody; :func:`incidents` names the round.
    """

    def __call__(self, key: Key, num_clients: int, number: jax.Array, /) -> Cohort:
        """The cohort of the round of this number, drawn from K clients."""


def without_strays(cohort: Cohort, num_clients: int) -> Cohort:
    """The cohort, in which ids that are out of range or named before are inactive and beyond any client.

    Ids stay distinct, as a scatter wants them, and what is scattered to those is dropped.
    """
    index = jnp.asarray(cohort.index)
    order = jnp.argsort(index)
    ordered = index[order]
    again = jnp.concatenate([jnp.zeros(min(1, len(index)), bool), ordered[1:] == ordered[:-1]])
    stray = (index < 0) | (index >= num_clients) | jnp.zeros_like(again).at[order].set(again)
    nowhere = jnp.iinfo(jnp.int32).max - jnp.arange(len(index), dtype=jnp.int32)
    return cohort._replace(
        index=jnp.where(stray, nowhere, index.astype(jnp.int32)), active=cohort.active & ~stray
    )


def everyone(key: Key, num_clients: int, number: jax.Array) -> Cohort:
    """Sampler: every client, every round."""
    del key, number
    return Cohort(jnp.arange(num_clients), jnp.ones(num_clients, bool))


def uniform(size: int) -> Sampler:
    """Sampler: ``size`` distinct clients, all equally likely.

    Args:
        size: S, at least 1 and at most K.

    Raises:
        ValueError: at once for a value out of range, and when a run starts for S > K.
    """
    _check_size(size)

    def sample(key: Key, num_clients: int, number: jax.Array) -> Cohort:
        del number
        _check_room(size, num_clients)
        index = jnp.sort(jax.random.permutation(key, num_clients)[:size])
        return Cohort(index, jnp.ones(size, bool))

    return sample


def bernoulli(probability: float, *, size: int | None = None) -> Sampler:
    """Sampler: each client takes part with a probability of its own accord, so that the number of them varies.

    Args:
        probability: in [0, 1].
        size: S, the room for a cohort, which costs as much as that many clients; None for K. Where more clients are
            drawn, as many of them as there is room for take part, chosen at random.

    Raises:
        ValueError: at once for a value out of range, and when a run starts for S > K.
    """
    _check_probability("probability", probability)
    if size is not None:
        _check_size(size)

    def sample(key: Key, num_clients: int, number: jax.Array) -> Cohort:
        del number
        room = num_clients if size is None else size
        _check_room(room, num_clients)
        draw_key, order_key = jax.random.split(key)
        drawn = _by_client(
            draw_key, jnp.arange(num_clients), partial(jax.random.bernoulli, p=float(probability))
        )
        order = jax.random.uniform(order_key, (num_clients,))
        index = jnp.sort(jnp.argsort(jnp.where(drawn, order, 1 + order))[:room])
        return Cohort(index, drawn[index])

    return sample


def recorded(index: np.ndarray, active: np.ndarray | None = None) -> Sampler:
    """Sampler: a recorded trace of who took part; round r replays its line r, and starts over after the last one.

    Args:
        index: ``(R, S)`` client ids, distinct within a round.
        active: ``(R, S)`` False where a client did not report; everyone did if absent.

    Raises:
        ValueError: shapes that disagree, or a round that names a client twice.
    """
    ids = np.asarray(index)
    reports = np.ones(ids.shape, bool) if active is None else np.asarray(active)
    if ids.ndim != 2 or not ids.size or ids.dtype.kind not in "iu" or reports.shape != ids.shape:
        raise ValueError(
            f"a trace is integers (R, S) and booleans (R, S), got {ids.dtype} {ids.shape} and {reports.shape}"
        )
    if twice := [r for r, line in enumerate(ids) if len(set(line.tolist())) < len(line)]:
        raise ValueError(
            f"a round must name a client once; look at round {twice[0]}: {ids[twice[0]].tolist()}"
        )

    def sample(key: Key, num_clients: int, number: jax.Array) -> Cohort:
        del key
        if ids.min() < 0 or ids.max() >= num_clients:
            raise ValueError(
                f"a trace's ids must lie below K = {num_clients}, got {ids.min()} to {ids.max()}"
            )
        line = number % len(ids)
        return Cohort(jnp.asarray(ids)[line], jnp.asarray(reports, bool)[line])

    return sample


def with_dropout(sampler: Sampler, *, before: float = 0.0, after: float = 0.0) -> Sampler:
    """Sampler: the same, but clients fail.

    Args:
        sampler: draws the cohort.
        before: probability that a client fails before its upload arrives: it has no part in the round.
        after: probability that one whose upload counts is then lost, so that it misses ``sync``.

    Raises:
        ValueError: a value out of [0, 1].
    """
    _check_probability("before", before)
    _check_probability("after", after)

    def sample(key: Key, num_clients: int, number: jax.Array) -> Cohort:
        draw_key, before_key, after_key = jax.random.split(key, 3)
        cohort = sampler(draw_key, num_clients, number)
        failed = _by_client(before_key, cohort.index, partial(jax.random.bernoulli, p=float(before)))
        lost = _by_client(after_key, cohort.index, partial(jax.random.bernoulli, p=float(after)))
        reached = ~lost if cohort.reached is None else cohort.reached & ~lost
        return Cohort(cohort.index, cohort.active & ~failed, reached)

    return sample


def with_deadline(sampler: Sampler, *, seconds: np.ndarray, deadline: float, spread: float = 0.5) -> Sampler:
    """Sampler: the same, but clients whose work takes longer than the deadline are left behind.

    The time of a client in a round is log-normal: ``seconds[k] * exp(spread * N(0, 1))``.

    Args:
        sampler: draws the cohort.
        seconds: ``(K,)`` each client's median time, positive.
        deadline: seconds until the server goes on.
        spread: sd of the log of the time; 0 for the same time in every round.

    Raises:
        ValueError: at once for a value out of range, and when a run starts for another number of clients.
    """
    medians = np.asarray(seconds, float)
    if medians.ndim != 1 or not (medians > 0).all() or not np.isfinite(medians).all():
        raise ValueError(
            f"seconds are positive and finite, one for each client (K,), got shape {medians.shape}"
        )
    if not deadline > 0 or not 0 <= spread < math.inf:
        raise ValueError(f"want a positive deadline and a spread of at least 0, got {deadline} and {spread}")

    def sample(key: Key, num_clients: int, number: jax.Array) -> Cohort:
        if len(medians) != num_clients:
            raise ValueError(f"got times of {len(medians)} clients, but the federation has {num_clients}")
        draw_key, time_key = jax.random.split(key)
        cohort = sampler(draw_key, num_clients, number)
        log_time = spread * _by_client(time_key, cohort.index, jax.random.normal)
        in_time = log_time <= jnp.asarray(np.log(deadline / medians), log_time.dtype)[cohort.index]
        return cohort._replace(active=cohort.active & in_time)

    return sample


def _by_client(key: Key, index: jax.Array, draw: Callable[[Key], jax.Array]) -> jax.Array:
    """One draw for each client, from a key of its own."""
    return jax.vmap(lambda k: draw(jax.random.fold_in(key, k)))(index)


def _check_size(size: int) -> None:
    if not isinstance(size, int | np.integer) or isinstance(size, bool):
        raise ValueError(f"the size of a cohort is a whole number, got size={size!r}")
    if size < 1:
        raise ValueError(f"a cohort needs at least one client, got size={size}")


def _check_room(size: int, num_clients: int) -> None:
    if size > num_clients:
        raise ValueError(
            f"a cohort of {size} clients was asked for, but the federation has {num_clients}; "
            "choose a smaller size, or the sampler `everyone`"
        )


def _check_probability(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} is a probability in [0, 1], got {value}")
