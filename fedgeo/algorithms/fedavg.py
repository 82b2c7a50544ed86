"""Federated averaging of any :class:`Model`; with the spherical encoder, Geodesic-SVDD's iterative protocol."""

from typing import NamedTuple

import jax
import optax

from fedgeo import trees
from fedgeo.algorithms import local
from fedgeo.protocol import Cohort, FedAlgorithm, FedState, Key, Model, PyTree, Rows


class FedAvgServer(NamedTuple):
    """The global model, also a client's detector.

    Attributes:
        params: the model's parameters.
        anchor: the loss's fixed target, see :class:`Model`.
    """

    params: PyTree
    anchor: PyTree


def fedavg(
    model: Model,
    *,
    optimizer: optax.GradientTransformation | None = None,
    epochs: int = 5,
    batch_size: int = 128,
    max_steps: int | None = None,
) -> FedAlgorithm:
    """FedAvg (McMahan et al. 2017), weighted by n_k; Protocol B and Algorithm 1 of Geodesic-SVDD, arXiv 2610.33619.

    ``data`` are the clients' :class:`Rows`. With K = 1 this is centralised training.

    Args:
        model: what to train.
        optimizer: each client's, started anew every round; ``optax.adam(1e-3)`` by default.
        epochs: local epochs a round.
        batch_size: rows a local step.
        max_steps: local steps an epoch at most; None for every row in every epoch.
    """
    train = local.trainer(
        model, optimizer or optax.adam(1e-3), epochs=epochs, batch_size=batch_size, max_steps=max_steps
    )

    def init(key: Key, data: Rows) -> FedState:
        return FedState(FedAvgServer(*local.shared_start(model, key, data)), ())

    def update(
        key: Key, server: FedAvgServer, client: tuple[()], data_k: Rows
    ) -> tuple[tuple[()], PyTree, dict[str, jax.Array]]:
        params, metrics = train(key, server.params, server.anchor, data_k)
        return client, params, metrics

    def aggregate(server: FedAvgServer, uploads: PyTree, weights: jax.Array, cohort: Cohort) -> FedAvgServer:
        del cohort
        return FedAvgServer(trees.mean(uploads, weights), server.anchor)

    def sync(server: FedAvgServer, client: tuple[()]) -> tuple[()]:
        del server
        return client

    def deploy(server: FedAvgServer, client: tuple[()], data_k: Rows) -> FedAvgServer:
        del client, data_k
        return server

    def score(detector: FedAvgServer, x: jax.Array) -> jax.Array:
        return model.score(detector.params, detector.anchor, x)

    return FedAlgorithm(init, update, local.row_count, aggregate, sync, deploy, score)
