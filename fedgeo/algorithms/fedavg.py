"""Federated averaging of any :class:`Model`; with the spherical encoder, Geodesic-SVDD's iterative protocol."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedgeo import trees
from fedgeo.algorithms import local
from fedgeo.algorithms.examples import ROWS
from fedgeo.protocol import Cohort, Examples, FedAlgorithm, FedState, Key, Model, PyTree


class FedAvgServer(NamedTuple):
    """The global model, also a client's detector.

    Attributes:
        params: the model's parameters.
        anchor: what the loss needs beside the parameters, see :class:`Model`.
    """

    params: PyTree
    anchor: PyTree


def fedavg(
    model: Model,
    *,
    optimizer: optax.GradientTransformation | None = None,
    epochs: int = 5,
    batch_size: int = 128,
    examples: Examples = ROWS,
    max_steps: int | None = None,
    short_batches: Sequence[int] = (),
    stateful: bool = False,
    mean: Callable[[PyTree, jax.Array], PyTree] = trees.mean,
) -> FedAlgorithm:
    """FedAvg (McMahan et al. 2017), weighted by n_k; Protocol B and Algorithm 1 of Geodesic-SVDD, arXiv 2610.33619.

    ``data`` are the clients' :class:`Rows`, or what else ``examples`` reads, such as streams with
    :func:`fedgeo.algorithms.examples.windows`. With K = 1 this is centralised training.

    Args:
        model: what to train.
        optimizer: each client's; ``optax.adam(1e-3)`` by default.
        epochs: local epochs a round.
        batch_size: examples a local step.
        examples: how to read them out of a client's data.
        max_steps: local steps an epoch at most; None for every example in every epoch.
        short_batches: smaller sizes to compile a step for, see :func:`fedgeo.algorithms.local.trainer`.
        stateful: a client keeps its optimiser's state for the next round it takes part in; otherwise it starts it anew
            in every round, and a few steps of Adam are then little more than the signs of the gradient.
        mean: ``(uploads, weights) -> params``; or a robust one, :func:`fedgeo.trees.median` or
            ``fedgeo.trees.trimmed_mean(0.1)``, to which all clients with examples count alike.
    """
    train = local.trainer(
        model, optimizer or optax.adam(1e-3), epochs=epochs, batch_size=batch_size, examples=examples,
        max_steps=max_steps, short_batches=short_batches,
    )  # fmt: skip

    def init(key: Key, data: PyTree) -> FedState:
        server = FedAvgServer(*local.shared_start(model, key, data, examples))
        if not stateful:
            return FedState(server, ())
        num_clients = len(jax.tree.leaves(data)[0])
        states = train.start(server.params)
        return FedState(
            server, jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num_clients, *jnp.shape(leaf))), states)
        )

    def update(
        key: Key, server: FedAvgServer, client: PyTree, data_k: PyTree
    ) -> tuple[PyTree, PyTree, dict[str, jax.Array]]:
        before = client if stateful else train.start(server.params)
        params, after, metrics = train.run(key, server.params, before, server.anchor, data_k)
        return after if stateful else client, params, metrics

    def aggregate(server: FedAvgServer, uploads: PyTree, weights: jax.Array, cohort: Cohort) -> FedAvgServer:
        del cohort
        return FedAvgServer(mean(uploads, weights), model.advance(server.anchor))

    def sync(server: FedAvgServer, client: PyTree) -> PyTree:
        del server
        return client

    def deploy(server: FedAvgServer, client: PyTree, data_k: PyTree) -> FedAvgServer:
        del client, data_k
        return server

    def score(detector: FedAvgServer, x: jax.Array) -> jax.Array:
        return examples.score(partial(model.score, detector.params, detector.anchor), x)

    merge = trees.mean if mean is trees.mean else None
    return FedAlgorithm(init, update, local.example_count(examples), aggregate, sync, deploy, score, merge)
