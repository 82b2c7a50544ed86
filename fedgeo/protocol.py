"""The contract between algorithms and engines: the page to read first.

Shapes use one alphabet in the whole package: K clients, S sampled cohort, R rounds, N rows, T time steps,
C channels, W window, F features, D lifted dimension, r rank, d latent.

An algorithm is a value: a :class:`FedAlgorithm` of pure functions about *one* client, made by a factory whose
keyword arguments are the hyperparameters. An engine (``fedgeo.federation`` in simulation, a message-passing
framework on real devices) calls these functions and knows nothing else about the algorithm. A round is

    upload_k  = update(key_k, server, client_k, data_k)      for every client k of the cohort
    server    = aggregate(server, uploads, weights, cohort)
    client_k  = sync(server, client_k)                       for every client that reported

and after the last round every client builds its detector with ``deploy`` and applies ``score``.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

Key = jax.Array
"""A typed key made by ``jax.random.key``."""

PyTree = Any
"""Any nesting of tuples, lists and dicts with arrays as leaves."""


class FedState(NamedTuple):
    """All that a federation carries from one round to the next.

    Attributes:
        server: what the server holds.
        clients: what the clients hold, every leaf ``(K, ...)``; ``()`` where clients hold nothing.
    """

    server: PyTree
    clients: PyTree


class Cohort(NamedTuple):
    """The clients of one round.

    Attributes:
        index: ``(S,)`` distinct client ids; S is static.
        active: ``(S,)`` False for a client that was drawn but did not report.
        reached: ``(S,)`` False for a client that reported and was then lost, so that its upload counts but it misses
            ``sync``; None where all are reached.
    """

    index: jax.Array  # type: ignore[assignment]  # the design's word, though tuples have a method of that name
    active: jax.Array
    reached: jax.Array | None = None


class FedAlgorithm(NamedTuple):
    """A federated algorithm as pure functions.

    Attributes:
        init: ``(key, data) -> FedState``; ``data`` holds all clients, every leaf ``(K, ...)``.
        update: ``(key, server, client, data_k) -> (client, upload, metrics)``; one client's local work.
            ``metrics`` is a flat dict of scalars.
        weight: ``(data_k) -> scalar``; the client's weight in ``aggregate``, 0 for a client without rows.
        aggregate: ``(server, uploads, weights, cohort) -> server``; uploads have leaves ``(S, ...)`` and are
            finite, weights ``(S,)`` are 0 for whoever did not report.
        sync: ``(server, client) -> client``; runs after the second broadcast: ADMM's dual step, else identity.
        deploy: ``(server, client, data_k) -> detector``; the client's detector.
        score: ``(detector, x) -> (T,)`` or ``(N,)``; higher is more anomalous, NaN while a window fills.
        merge: ``(uploads, weights) -> upload``, one upload that stands for several, with the sum of their weights; then
            an engine may add up a cohort block by block instead of holding all its uploads, and ``aggregate`` sees
            fewer uploads than the cohort has clients. None where ``aggregate`` must see every upload.
    """

    init: Callable[[Key, PyTree], FedState]
    update: Callable[[Key, PyTree, PyTree, PyTree], tuple[PyTree, PyTree, dict[str, jax.Array]]]
    weight: Callable[[PyTree], jax.Array]
    aggregate: Callable[[PyTree, PyTree, jax.Array, Cohort], PyTree]
    sync: Callable[[PyTree, PyTree], PyTree]
    deploy: Callable[[PyTree, PyTree, PyTree], PyTree]
    score: Callable[[PyTree, jax.Array], jax.Array]
    merge: Callable[[PyTree, jax.Array], PyTree] | None = None


Loss = Callable[[Key, PyTree, PyTree, jax.Array, jax.Array], jax.Array]
"""``(key, params, anchor, x, mask) -> scalar``, the mean over the examples with ``mask``."""


def _unchanged(anchor: PyTree) -> PyTree:
    return anchor


class Model(NamedTuple):
    """What gradient-based algorithms train: a network without its training loop.

    Examples are rows ``(N, F)`` of a table, or windows ``(N, W, C)`` of a stream.

    Attributes:
        init: ``(key, x) -> params`` from examples; only their shape matters.
        anchor: ``(params, x, mask) -> anchor`` of one client: what the loss needs to know beside the parameters and
            does not train, such as the mean embedding of its rows; a mean over the examples, so that it can be gathered
            in blocks. A federation's anchor is the mean over the clients that have examples; any nonlinear step
            (normalising it) belongs in ``loss`` and ``score``. ``()`` where there is nothing to know.
        loss: ``(key, params, anchor, x, mask) -> scalar`` mean over the examples with ``mask``; the key drives dropout
            and mixup.
        score: ``(params, anchor, x) -> (N,)``; deterministic, higher is more anomalous.
        others: further losses, which take their turn after ``loss`` on every batch, each with an optimiser state of its
            own; for adversarial training. A loss leaves alone, by ``stop_gradient``, what it does not train.
        advance: ``(anchor) -> anchor`` after every round of a federation; for a loss that changes with the rounds.
    """

    init: Callable[[Key, jax.Array], PyTree]
    anchor: Callable[[PyTree, jax.Array, jax.Array], PyTree]
    loss: Loss
    score: Callable[[PyTree, PyTree, jax.Array], jax.Array]
    others: tuple[Loss, ...] = ()
    advance: Callable[[PyTree], PyTree] = _unchanged


class Examples(NamedTuple):
    """How to read training examples out of one client's data by number, so that they need never be stored.

    Attributes:
        mask: ``(data_k) -> (N,)`` which numbers are examples; N depends on shapes alone.
        take: ``(data_k, index) -> (B, ...)`` the examples of these numbers; any finite values for a number that is not
            below N.
        score: ``(function, x) -> (T,)`` or ``(N,)``: one score a row of ``x`` by a function of examples ``(B, ...)``
            to scores ``(B,)``.
    """

    mask: Callable[[PyTree], jax.Array]
    take: Callable[[PyTree, jax.Array], jax.Array]
    score: Callable[[Callable[[jax.Array], jax.Array], jax.Array], jax.Array]


class Rows(NamedTuple):
    """Ragged tables of several clients in one array.

    Attributes:
        x: ``(K, N, F)``, or ``(N, F)`` for one client; masked rows hold zeros.
        mask: ``(K, N)`` or ``(N,)``; False for padding.
    """

    x: jax.Array
    mask: jax.Array


class Series(NamedTuple):
    """Ragged streams of several clients in one array.

    Attributes:
        x: ``(K, T, C)``, or ``(T, C)`` for one client, rows in time order; masked rows hold zeros.
        mask: ``(K, T)`` or ``(T,)``; False for padding and for gaps, over which no window reaches.
    """

    x: jax.Array
    mask: jax.Array
