"""Clients spread over the devices of a mesh.

K and S need not be multiples of the number of devices: the client axis is filled up with clients without data, and each
cohort with some of these, who do not report. Nothing of them is seen outside.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedgeo.protocol import Cohort, PyTree


def client_mesh(devices: int | None = None) -> Mesh:
    """A mesh of one axis, ``"clients"``, over all devices of all processes, or the first few.

    Args:
        devices: how many; all if absent.

    Raises:
        ValueError: more devices than there are.
    """
    there = jax.devices()
    wanted = len(there) if devices is None else devices
    if not 1 <= wanted <= len(there):
        raise ValueError(f"asked for {wanted} devices, but JAX sees {len(there)}")
    return Mesh(np.asarray(there[:wanted]), ("clients",))


def check_mesh(mesh: Mesh) -> None:
    """Raise ValueError unless this is a mesh of one axis."""
    if not isinstance(mesh, Mesh):
        raise ValueError(
            f"mesh must be a jax.sharding.Mesh, got {mesh!r}; pass client_mesh(number of devices)"
        )
    if len(mesh.axis_names) != 1:
        raise ValueError(f"clients are spread over a mesh of one axis, got the axes {mesh.axis_names}")


def spread(tree: PyTree, mesh: Mesh, length: int) -> PyTree:
    """Leaves ``(K, ...)`` filled up with zeros to ``length`` and laid out over the devices of all processes.

    Every process passes the same values, and keeps in device memory only the clients of its own devices.
    """
    layout = NamedSharding(mesh, PartitionSpec(*mesh.axis_names))

    def one(leaf: Any) -> jax.Array:
        whole = np.asarray(leaf)
        fill = np.zeros((length - len(whole), *whole.shape[1:]), whole.dtype)
        whole = np.concatenate([whole, fill])
        return jax.make_array_from_callback(whole.shape, layout, lambda part: whole[part])

    return jax.tree.map(one, tree)


def copy_everywhere(tree: PyTree, mesh: Mesh) -> PyTree:
    """The same leaves on every device of the mesh."""
    layout = NamedSharding(mesh, PartitionSpec())

    def one(leaf: Any) -> jax.Array:
        whole = np.asarray(leaf)
        return jax.make_array_from_callback(whole.shape, layout, lambda part: whole[part])

    return jax.tree.map(one, tree)


def gather(tree: PyTree, mesh: Mesh, length: int) -> PyTree:
    """The first ``length`` clients of leaves ``(K, ...)``, whole on every device, so that any process can read them."""
    layout = NamedSharding(mesh, PartitionSpec())
    return jax.jit(lambda t: jax.tree.map(lambda leaf: leaf[:length], t), out_shardings=layout)(tree)


def filled_length(num_clients: int, size: int, devices: int) -> int:
    """Clients needed so that both K and a cohort of ``size`` can be filled up to a multiple of the devices."""
    return _up(num_clients + _up(size, devices) - size, devices)


def fill_cohort(cohort: Cohort, num_clients: int, devices: int) -> Cohort:
    """The cohort followed by clients from ``num_clients`` on who do not report."""
    size = cohort.index.shape[0]
    extra = _up(size, devices) - size
    silent = jnp.zeros(extra, bool)
    return Cohort(
        jnp.concatenate([cohort.index, num_clients + jnp.arange(extra, dtype=cohort.index.dtype)]),
        jnp.concatenate([cohort.active, silent]),
        None if cohort.reached is None else jnp.concatenate([cohort.reached, silent]),
    )


def drop_filling(info: PyTree, size: int, mesh: Mesh) -> PyTree:
    """A round's report without what :func:`fill_cohort` added, on every device; scalars stay."""
    everywhere = jax.lax.with_sharding_constraint(info, NamedSharding(mesh, PartitionSpec()))
    return jax.tree.map(lambda leaf: leaf[:size] if leaf.ndim else leaf, everywhere)


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
