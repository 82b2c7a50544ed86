"""Random order of what a mask holds, quick on a CPU and blind to padding."""

import jax
import jax.numpy as jnp

from fedgeo.protocol import Key


def shuffled(key: Key, valid: jax.Array) -> jax.Array:
    """The places of what is valid ``(N,)``, in random order, then those of the rest.

    What stable sorting by 23 random bits gives, whatever is padded. XLA sorts single integers some six times as fast on
    a CPU as pairs of a key and a place, so places ride in the low bits, and as many bits of the key as fit above them.
    """
    size = valid.shape[0]
    low = max(size - 1, 1).bit_length()
    random_bits = jax.random.bits(key, (size,), jnp.uint32) >> 9
    keys = jnp.where(valid, random_bits, jnp.uint32(1 << 23))
    order = jnp.arange(size, dtype=jnp.uint32)
    for shift in range(0, 24, 32 - low):  # from the lowest digit: each sort keeps the order of those before
        digits = (keys[order] >> shift) << low
        order = order[jnp.sort(digits | jnp.arange(size, dtype=jnp.uint32)) & jnp.uint32((1 << low) - 1)]
    return order.astype(jnp.int32)
