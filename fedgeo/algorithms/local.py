"""What a client does alone: minibatch training of a model, and any algorithm without its federation."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedgeo import trees
from fedgeo.protocol import Cohort, FedAlgorithm, FedState, Key, Model, PyTree, Rows

Trainer = Callable[[Key, PyTree, PyTree, Rows], tuple[PyTree, dict[str, jax.Array]]]
"""``(key, params, anchor, rows) -> (params, metrics)``."""


def trainer(
    model: Model,
    optimizer: optax.GradientTransformation,
    *,
    epochs: int,
    batch_size: int,
    max_steps: int | None = None,
) -> Trainer:
    """Local training as in Algorithm 1 of Geodesic-SVDD: E epochs of shuffled minibatches, fresh optimiser state.

    Padding is invisible: a client with N rows takes ceil(N / batch_size) steps an epoch on batches of its own rows,
    and what lies beyond changes neither parameters nor optimiser state.

    Args:
        model: what to train.
        optimizer: an optax transformation.
        epochs: E, at least 1.
        batch_size: rows a step; the last batch of an epoch may hold fewer.
        max_steps: local steps an epoch at most, so that a large client costs no more than ``max_steps * batch_size``
            rows; it takes others in every epoch. None for every row in every epoch.

    Raises:
        ValueError: epochs, batch_size or max_steps below 1.
    """
    if epochs < 1 or batch_size < 1 or (max_steps is not None and max_steps < 1):
        raise ValueError(
            "epochs, batch_size and max_steps must be at least 1 (max_steps may be None), "
            f"got {epochs}, {batch_size} and {max_steps}"
        )

    def train(key: Key, params: PyTree, anchor: PyTree, rows: Rows) -> tuple[PyTree, dict[str, jax.Array]]:
        size = rows.x.shape[0]
        batch = min(batch_size, size)
        whole = -(-size // batch)
        steps = whole if max_steps is None else min(whole, max_steps)

        def step(
            carry: tuple[PyTree, PyTree], inputs: tuple[Key, jax.Array]
        ) -> tuple[tuple[PyTree, PyTree], jax.Array]:
            step_key, index = inputs
            x = jnp.take(rows.x, index, axis=0, mode="fill", fill_value=0)
            mask = jnp.take(rows.mask, index, mode="fill", fill_value=False)
            params, state = carry
            loss, gradient = jax.value_and_grad(model.loss, argnums=1)(step_key, params, anchor, x, mask)
            updates, new_state = optimizer.update(gradient, state, params)
            some = jnp.any(mask)
            new = (optax.apply_updates(params, updates), new_state)
            return trees.where(some, new, carry), jnp.where(some, loss, 0)

        def epoch(carry: tuple[PyTree, PyTree], epoch_key: Key) -> tuple[tuple[PyTree, PyTree], jax.Array]:
            shuffle_key, step_key = jax.random.split(epoch_key)
            order = jnp.argsort(jnp.where(rows.mask, jax.random.uniform(shuffle_key, (size,)), 2.0))
            padded = jnp.pad(order, (0, whole * batch - size), constant_values=size)
            index = padded[: steps * batch].reshape(steps, batch)
            keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(step_key, jnp.arange(steps))
            carry, losses = jax.lax.scan(step, carry, (keys, index))
            taken = jnp.sum(jnp.any(jnp.take(rows.mask, index, mode="fill", fill_value=False), axis=1))
            return carry, jnp.sum(losses) / jnp.maximum(taken, 1)

        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(epochs))
        (params, _), losses = jax.lax.scan(epoch, (params, optimizer.init(params)), keys)
        return params, {"first_loss": losses[0], "last_loss": losses[-1]}

    return train


def row_count(rows: Rows) -> jax.Array:
    """n_k as a float32, FedAvg's weight; half precision would overflow or round it."""
    return jnp.sum(rows.mask, dtype=jnp.float32)


def shared_start(model: Model, key: Key, data: Rows) -> tuple[PyTree, PyTree]:
    """Random parameters, and the mean of the clients' anchors (the warm-up exchange).

    Clients without rows, and those whose anchor is not finite, are left out of the mean.

    Args:
        model: gives both.
        key: seeds the parameters.
        data: ``x (K, N, F)``, ``mask (K, N)``.

    Returns:
        params, anchor.
    """
    params = model.init(key, data.x[0])
    anchors = jax.vmap(model.anchor, in_axes=(None, 0, 0), axis_size=data.x.shape[0])(
        params, data.x, data.mask
    )
    counts = jnp.any(data.mask, axis=1) & trees.all_finite(anchors, batch_axes=1)
    anchors = trees.where(counts, anchors, jax.tree.map(jnp.zeros_like, anchors))
    return params, trees.mean(anchors, counts.astype(data.x.dtype))


class LocalClient(NamedTuple):
    """A client that is its own server."""

    server: PyTree
    client: PyTree


def local_only(alg: FedAlgorithm) -> FedAlgorithm:
    """The same algorithm with every client alone: a federation of one, repeated K times, sending nothing.

    The comparator that tells what federating is worth.
    """

    def init(key: Key, data: PyTree) -> FedState:
        def alone(data_k: PyTree) -> LocalClient:
            server, clients = alg.init(key, jax.tree.map(lambda leaf: leaf[None], data_k))
            return LocalClient(server, jax.tree.map(lambda leaf: leaf[0], clients))

        return FedState((), jax.vmap(alone)(data))

    def update(
        key: Key, server: tuple[()], client: LocalClient, data_k: PyTree
    ) -> tuple[LocalClient, tuple[()], dict[str, jax.Array]]:
        del server
        own, upload, metrics = alg.update(key, client.server, client.client, data_k)
        weights = alg.weight(data_k)[None]
        cohort = Cohort(jnp.zeros(1, int), jnp.ones(1, bool))
        merged = alg.aggregate(client.server, jax.tree.map(lambda leaf: leaf[None], upload), weights, cohort)
        merged = trees.where(weights[0] > 0, merged, client.server)
        return LocalClient(merged, alg.sync(merged, own)), (), metrics

    def aggregate(server: tuple[()], uploads: tuple[()], weights: jax.Array, cohort: Cohort) -> tuple[()]:
        del uploads, weights, cohort
        return server

    def sync(server: tuple[()], client: LocalClient) -> LocalClient:
        del server
        return client

    def deploy(server: tuple[()], client: LocalClient, data_k: PyTree) -> PyTree:
        del server
        return alg.deploy(client.server, client.client, data_k)

    return FedAlgorithm(init, update, alg.weight, aggregate, sync, deploy, alg.score)
