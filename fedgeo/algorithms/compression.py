"""Smaller uploads: any algorithm with its messages encoded before they are sent and decoded before they are averaged.

What is sent is the encoded tree, so the engine's byte counts are those of the message. A codec works on one leaf; the
number of its bytes is set by shapes alone.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedgeo.protocol import Cohort, FedAlgorithm, Key, PyTree


class Codec(NamedTuple):
    """A lossy code for arrays.

    Attributes:
        encode: ``(key, array) -> message``; the key drives random rounding.
        decode: ``(message) -> array``.
    """

    encode: Callable[[Key, jax.Array], Any]
    decode: Callable[[Any], jax.Array]


@partial(jax.tree_util.register_dataclass, data_fields=["values", "extra"], meta_fields=["shape", "dtype"])
@dataclass(frozen=True)
class _Message:
    """An encoded array: what is sent, and what the receiver knows anyway."""

    values: jax.Array
    extra: jax.Array | None
    shape: tuple[int, ...]
    dtype: Any


def float16() -> Codec:
    """Half precision: 2 bytes an entry, 11 significant bits; an upload with an entry beyond 65,504 is set aside."""

    def encode(key: Key, x: jax.Array) -> _Message:
        del key
        return _Message(x.astype(jnp.float16), None, x.shape, x.dtype)

    return Codec(encode, lambda message: message.values.astype(message.dtype))


def int8() -> Codec:
    """Whole numbers from -127 to 127 times a scale of the array's own: 1 byte an entry and 4 more.

    Entries are rounded up or down at random, so that the mean of what is decoded is what was sent (QSGD, Alistarh et
    al., 2017).
    """

    def encode(key: Key, x: jax.Array) -> _Message:
        scale = jnp.max(jnp.abs(x), initial=0) / 127
        steps = x / jnp.where(scale > 0, scale, 1)
        rounded = jnp.floor(steps + jax.random.uniform(key, x.shape, x.dtype))
        values = jnp.clip(rounded, -127, 127).astype(jnp.int8)
        return _Message(values, scale.astype(jnp.float32), x.shape, x.dtype)

    def decode(message: _Message) -> jax.Array:
        assert message.extra is not None
        return message.values.astype(message.dtype) * message.extra.astype(message.dtype)

    return Codec(encode, decode)


def top_k(share: float) -> Codec:
    """The entries of largest size, and where they stand: 8 bytes for each of ``ceil(share n)``; the others become 0.

    Meant for differences; see ``reference`` of :func:`compressed`.

    Args:
        share: of the entries, in (0, 1].

    Raises:
        ValueError: a share out of its range.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share is a share of the entries in (0, 1], got {share}")

    def encode(key: Key, x: jax.Array) -> _Message:
        del key
        flat = x.reshape(-1)
        _, place = jax.lax.top_k(jnp.abs(flat), math.ceil(share * flat.size))
        return _Message(flat[place], place, x.shape, x.dtype)

    def decode(message: _Message) -> jax.Array:
        flat = jnp.zeros(math.prod(message.shape), message.dtype)
        return flat.at[message.extra].set(message.values).reshape(message.shape)

    return Codec(encode, decode)


def compressed(
    alg: FedAlgorithm, codec: Codec, *, reference: Callable[[PyTree], PyTree] | None = None
) -> FedAlgorithm:
    """The same algorithm with encoded uploads; its metrics also have ``upload_error``.

    ``upload_error`` is the size of what the code loses relative to the size of the upload.

    Args:
        alg: any algorithm.
        codec: such as ``int8()``.
        reference: ``(server) -> tree`` of the upload's structure, which both sides hold; then only the difference from
            it is encoded. For FedKAD it is the server's state itself, for FedAvg ``lambda server: server.params``.
    """

    def update(
        key: Key, server: PyTree, client: PyTree, data_k: PyTree
    ) -> tuple[PyTree, PyTree, dict[str, Any]]:
        client, upload, metrics = alg.update(key, server, client, data_k)
        sent = upload if reference is None else jax.tree.map(jnp.subtract, upload, reference(server))
        leaves, structure = jax.tree.flatten(sent)
        code_key = jax.random.fold_in(key, 0xC0DEC)
        messages = [codec.encode(jax.random.fold_in(code_key, i), leaf) for i, leaf in enumerate(leaves)]
        lost = [leaf - codec.decode(message) for leaf, message in zip(leaves, messages, strict=True)]
        error = _norm(lost) / jnp.maximum(_norm(jax.tree.leaves(upload)), jnp.finfo(jnp.float32).tiny)
        return client, jax.tree.unflatten(structure, messages), metrics | {"upload_error": error}

    def aggregate(server: PyTree, uploads: PyTree, weights: jax.Array, cohort: Cohort) -> PyTree:
        decode = jax.vmap(codec.decode)
        decoded = jax.tree.map(decode, uploads, is_leaf=lambda node: isinstance(node, _Message))
        if reference is not None:
            decoded = jax.tree.map(lambda leaf, around: leaf + around[None], decoded, reference(server))
        return alg.aggregate(server, decoded, weights, cohort)

    return alg._replace(update=update, aggregate=aggregate, merge=None)


def _norm(leaves: list[jax.Array]) -> jax.Array:
    return jnp.sqrt(sum((jnp.sum(leaf.astype(jnp.float32) ** 2) for leaf in leaves), jnp.zeros(())))
