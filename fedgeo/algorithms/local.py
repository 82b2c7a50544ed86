"""What a client does alone: minibatch training of a model, and any algorithm without its federation."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedgeo import trees
from fedgeo.algorithms.examples import ROWS
from fedgeo.arguments import whole
from fedgeo.protocol import Cohort, Examples, FedAlgorithm, FedState, Key, Model, PyTree
from fedgeo.shuffling import shuffled

_ANCHOR_BLOCK = 4096  # examples whose anchor is taken at a time


class Trainer(NamedTuple):
    """Local training.

    Attributes:
        start: ``(params) -> states``, one optimiser state a loss.
        run: ``(key, params, states, anchor, data_k) -> (params, states, metrics)``.
    """

    start: Callable[[PyTree], PyTree]
    run: Callable[[Key, PyTree, PyTree, PyTree, PyTree], tuple[PyTree, PyTree, dict[str, jax.Array]]]


def trainer(
    model: Model,
    optimizer: optax.GradientTransformation,
    *,
    epochs: int,
    batch_size: int,
    examples: Examples = ROWS,
    max_steps: int | None = None,
    short_batches: Sequence[int] = (),
) -> Trainer:
    """Local training as in Algorithm 1 of Geodesic-SVDD: E epochs of shuffled minibatches.

    Padding is invisible and costs no step: a client with N examples takes ceil(N / batch_size) steps an epoch on
    batches of its own examples, and what lies beyond changes neither parameters nor optimiser state.

    Args:
        model: what to train. With several losses each takes a step on every batch, in turn.
        optimizer: an optax transformation; every loss has a state of its own.
        epochs: E, at least 1.
        batch_size: examples a local step; the last batch of an epoch may hold fewer.
        examples: how to read them out of a client's data; the rows of :class:`Rows` by default.
        max_steps: local steps an epoch at most, so that a large client costs no more than ``max_steps * batch_size``
            examples; it takes others in every epoch. None for every example in every epoch.
        short_batches: sizes below batch_size that a step is compiled for too; others are ignored. A batch with fewer
            examples, as small clients and the ends of epochs have, is then worked on in the least size that holds it.
            The result is the same if what the loss draws for an example does not hang on how many follow it, as with
            JAX's own dropout. It saves time only where clients come in turn (``block_size=1`` on one task or on a CPU's
            sweep, or a loop); clients that are mapped at once all take whole batches. Each size takes time to compile.

    Raises:
        ValueError: epochs, batch_size, max_steps or one of short_batches that is no whole number of at least 1, no
            sequence of them, or no model or optimiser.
    """
    epochs, batch_size = whole("epochs", epochs, 1), whole("batch_size", batch_size, 1)
    max_steps = None if max_steps is None else whole("max_steps", max_steps, 1)
    if isinstance(short_batches, str) or not isinstance(short_batches, Sequence):
        raise ValueError(f"short_batches takes sizes, such as (16, 32), got {short_batches!r}")
    short_batches = [whole("short_batches", size, 1) for size in short_batches]
    if not isinstance(model, Model):
        remedy = "call the factory: a Model is what it returns" if callable(model) else "see fedgeo.protocol"
        raise ValueError(f"model must be a Model, got {model!r}; {remedy}")
    if not isinstance(optimizer, optax.GradientTransformation):
        raise ValueError(f"optimizer must be one of optax, such as optax.adam(1e-3), got {optimizer!r}")
    losses = (model.loss, *model.others)
    gradients = [_in_sizes(_gradient(loss, examples), short_batches) for loss in losses]

    def start(params: PyTree) -> PyTree:
        return tuple(optimizer.init(params) for _ in losses)

    def run(
        key: Key, params: PyTree, states: PyTree, anchor: PyTree, data: PyTree
    ) -> tuple[PyTree, PyTree, dict[str, jax.Array]]:
        valid = examples.mask(data)
        size = valid.shape[0]
        batch = min(batch_size, size)
        padding = -size % batch
        steps = -(-jnp.sum(valid) // batch)
        if max_steps is not None:
            steps = jnp.minimum(steps, max_steps)

        def descend(
            step_key: Key, params: PyTree, states: tuple[PyTree, ...], index: jax.Array, count: jax.Array
        ) -> tuple[PyTree, tuple[PyTree, ...], jax.Array]:
            values, new_states = [], []
            for turn, (gradient_of, state) in enumerate(zip(gradients, states, strict=True)):
                own_key = jax.random.fold_in(step_key, turn) if turn else step_key
                value, gradient = gradient_of(count, index, own_key, params, anchor, data)
                updates, state = optimizer.update(gradient, state, params)
                params = optax.apply_updates(params, updates)
                values.append(value)
                new_states.append(state)
            return params, tuple(new_states), values[0]

        def epoch(carry: tuple[PyTree, PyTree], epoch_key: Key) -> tuple[tuple[PyTree, PyTree], jax.Array]:
            shuffle_key, step_key = jax.random.split(epoch_key)
            order = shuffled(shuffle_key, valid)
            order = jnp.pad(order, (0, padding), constant_values=size)  # what is no example comes last

            def step(
                place: jax.Array, carry: tuple[PyTree, PyTree, jax.Array]
            ) -> tuple[PyTree, PyTree, jax.Array]:
                params, states, total = carry
                index = jax.lax.dynamic_slice_in_dim(order, place * batch, batch)
                own_key = jax.random.fold_in(step_key, place)
                count = jnp.sum(valid) - place * batch
                params, states, value = descend(own_key, params, states, index, count)
                return params, states, total + value

            params, states, total = jax.lax.fori_loop(0, steps, step, (*carry, jnp.zeros(())))
            return (params, states), total / jnp.maximum(steps, 1)

        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(epochs))
        (params, states), history = jax.lax.scan(epoch, (params, states), keys)
        return params, states, {"first_loss": history[0], "last_loss": history[-1]}

    return Trainer(start, run)


def _gradient(loss: Callable[..., jax.Array], examples: Examples) -> Callable[..., tuple[jax.Array, PyTree]]:
    """``(index, key, params, anchor, data_k)`` to the loss of these examples and its gradient by the parameters."""

    def gradient(
        index: jax.Array, key: Key, params: PyTree, anchor: PyTree, data: PyTree
    ) -> tuple[jax.Array, PyTree]:
        mask = jnp.take(examples.mask(data), index, mode="fill", fill_value=False)
        return jax.value_and_grad(loss, argnums=1)(key, params, anchor, examples.take(data, index), mask)

    return gradient


def _in_sizes(work: Callable[..., Any], short: Sequence[int]) -> Callable[..., Any]:
    """``(count, index, *rest)`` to ``work`` on the least size that holds the first ``count`` of the index."""

    def least(count: jax.Array, index: jax.Array, *rest: Any) -> Any:
        sizes = [*sorted({size for size in short if size < len(index)}), len(index)]
        branches = [lambda index, *rest, size=size: work(index[:size], *rest) for size in sizes]
        return jax.lax.switch(_place(count, sizes), branches, index, *rest)

    return least


def _place(count: jax.Array, sizes: Sequence[int]) -> jax.Array:
    """Where the least of the ascending sizes that holds ``count`` stands; under vmap the last, the same for all.

    A branch that differs from client to client would be worked on as all branches.
    """

    @jax.custom_batching.custom_vmap
    def place(count: jax.Array) -> jax.Array:
        return jnp.searchsorted(jnp.asarray(sizes), count)

    @place.def_vmap
    def _(axis_size: int, batched: Sequence[bool], count: jax.Array) -> tuple[jax.Array, bool]:
        del axis_size, batched, count
        return jnp.asarray(len(sizes) - 1), False

    return place(count)


def example_count(examples: Examples) -> Callable[[PyTree], jax.Array]:
    """FedAvg's weight: ``data_k`` to n_k as a float32; half precision would overflow or round it."""
    return lambda data_k: jnp.sum(examples.mask(data_k), dtype=jnp.float32)


def shared_start(model: Model, key: Key, data: PyTree, examples: Examples = ROWS) -> tuple[PyTree, PyTree]:
    """Random parameters, and the mean of the clients' anchors (the warm-up exchange).

    Clients without examples, and those whose anchor is not finite, are left out of the mean.

    Args:
        model: gives both.
        key: seeds the parameters.
        data: of all clients, leaves ``(K, ...)``.
        examples: how to read a client's data.

    Returns:
        params, anchor.
    """
    first = jax.tree.map(lambda leaf: leaf[0], data)
    params = model.init(key, examples.take(first, jnp.arange(1)))

    def one(data_k: PyTree) -> tuple[PyTree, jax.Array]:
        return _anchor(model, params, data_k, examples), jnp.any(examples.mask(data_k))

    anchors, counts = jax.lax.map(one, data)
    counts = counts & trees.all_finite(anchors, batch_axes=1)
    anchors = trees.where(counts, anchors, jax.tree.map(jnp.zeros_like, anchors))
    return params, trees.mean(anchors, counts.astype(jnp.float32))


def _anchor(model: Model, params: PyTree, data_k: PyTree, examples: Examples) -> PyTree:
    """One client's anchor, from blocks of its examples."""
    valid = examples.mask(data_k)
    block = min(_ANCHOR_BLOCK, valid.shape[0])
    index = jnp.arange(valid.shape[0] + -valid.shape[0] % block).reshape(-1, block)

    def part(numbers: jax.Array) -> tuple[PyTree, jax.Array]:
        mask = jnp.take(valid, numbers, mode="fill", fill_value=False)
        return model.anchor(params, examples.take(data_k, numbers), mask), jnp.sum(mask, dtype=jnp.float32)

    return trees.mean(*jax.lax.map(part, index))


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
