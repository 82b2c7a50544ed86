"""Geodesic-SVDD's one-shot protocol: a product of experts. arXiv 2610.33619, Protocol A and Algorithm 1."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedgeo import trees
from fedgeo.algorithms import local
from fedgeo.algorithms.examples import ROWS
from fedgeo.protocol import Cohort, FedAlgorithm, FedState, Key, Model, PyTree, Rows


class OneShotServer(NamedTuple):
    """The shared start and the experts received so far, also a client's detector.

    Attributes:
        params: the common random start.
        anchor: the loss's fixed target, see :class:`Model`.
        experts: the clients' parameters, leaves ``(K, ...)``.
        present: ``(K,)`` which experts were received.
    """

    params: PyTree
    anchor: PyTree
    experts: PyTree
    present: jax.Array


def one_shot(
    model: Model,
    *,
    optimizer: optax.GradientTransformation | None = None,
    epochs: int = 50,
    batch_size: int = 128,
    max_steps: int | None = None,
    short_batches: Sequence[int] = (),
) -> FedAlgorithm:
    """One round of local training from one shared start; the score is the sum of the experts' scores (eq. 2).

    A client without rows sends no expert and is left out of the product. ``data`` are the clients' :class:`Rows`.

    Args:
        model: what to train; its score is a negative log-likelihood.
        optimizer: each client's; ``optax.adam(1e-3)`` by default.
        epochs: local epochs.
        batch_size: rows a local step.
        max_steps: local steps an epoch at most; None for every row in every epoch.
        short_batches: smaller sizes to compile a step for, see :func:`fedgeo.algorithms.local.trainer`.
    """
    train = local.trainer(
        model, optimizer or optax.adam(1e-3), epochs=epochs, batch_size=batch_size, max_steps=max_steps,
        short_batches=short_batches,
    )  # fmt: skip

    def init(key: Key, data: Rows) -> FedState:
        num_clients = data.x.shape[0]
        params, anchor = local.shared_start(model, key, data)
        experts = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num_clients, *leaf.shape)), params)
        return FedState(OneShotServer(params, anchor, experts, jnp.zeros(num_clients, bool)), ())

    def update(
        key: Key, server: OneShotServer, client: tuple[()], data_k: Rows
    ) -> tuple[tuple[()], PyTree, dict[str, jax.Array]]:
        states = train.start(server.params)
        params, _, metrics = train.run(key, server.params, states, server.anchor, data_k)
        return client, params, metrics

    def aggregate(
        server: OneShotServer, uploads: PyTree, weights: jax.Array, cohort: Cohort
    ) -> OneShotServer:
        came = weights > 0
        before = (trees.take(server.experts, cohort.index), server.present[cohort.index])
        experts, present = trees.where(came, (uploads, came), before)
        return server._replace(
            experts=trees.put(server.experts, cohort.index, experts),
            present=trees.put(server.present, cohort.index, present),
        )

    def sync(server: OneShotServer, client: tuple[()]) -> tuple[()]:
        del server
        return client

    def deploy(server: OneShotServer, client: tuple[()], data_k: Rows) -> OneShotServer:
        del client, data_k
        return server

    def score(detector: OneShotServer, x: jax.Array) -> jax.Array:
        scores = jax.vmap(model.score, in_axes=(0, None, None))(detector.experts, detector.anchor, x)
        return jnp.sum(jnp.where(detector.present[:, None], scores, 0), axis=0)

    return FedAlgorithm(init, update, local.example_count(ROWS), aggregate, sync, deploy, score)
