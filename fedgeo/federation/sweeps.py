"""Many trainings as one program: seeds, classes or penalties, over the devices of a machine."""

import os
from collections.abc import Callable
from contextlib import suppress

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from fedgeo import trees
from fedgeo.federation import sharding
from fedgeo.protocol import PyTree


def one_device_a_core() -> None:
    """Let the CPU pose as one device a core that this process may use, for :func:`sweep` to share out tasks among.

    Changes ``jax_num_cpu_devices`` unless somebody has chosen it, or has forced a number by ``XLA_FLAGS``. It must come
    before anything is computed; later it does nothing.
    """
    chosen = jax.config.jax_num_cpu_devices >= 0  # type: ignore[attr-defined]
    if chosen or "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(RuntimeError):  # JAX has its devices already, and a sweep works with those
        jax.config.update("jax_num_cpu_devices", usable)


def in_turn(mesh: Mesh | None = None) -> bool:
    """Whether work that could be mapped at once is better done in turn: on a CPU, where it then stays in the caches."""
    if mesh is not None:
        return mesh.devices.flat[0].platform == "cpu"
    chosen = jax.config.jax_default_device  # type: ignore[attr-defined]
    return (jax.default_backend() if chosen is None else getattr(chosen, "platform", chosen)) == "cpu"


def sweep(
    program: Callable[..., PyTree],
    *arguments: PyTree,
    mesh: Mesh | None = None,
    cost: jax.Array | None = None,
) -> PyTree:
    """``program`` of every one of B tasks, such as seeds, classes or penalties; pure, to be called under ``jit``.

    Tasks are dealt out to the devices of the mesh. An accelerator works on all of its own at once, as ``vmap`` does; a
    CPU takes its own in turn, and poses as several devices after :func:`one_device_a_core`. Between the two ways
    results agree to rounding; on a CPU they do not depend on the number of devices. Large matrix products, such as
    FedKAD's, fill the cores either way, and ``jax.vmap`` is as fast for them; small networks gain.

    Example:
        Four trainings over a grid of seeds and step sizes::

            def train(seed, step_size):
                alg, key = fedkad(lift, step_size=step_size), jax.random.key(seed)
                state = init(alg, key, clients)
                state, history = run(alg, key, state, clients, jnp.asarray(0), sampler=everyone, rounds=30)
                return state.server, history.metrics

            seeds, step_sizes = jnp.asarray([0, 0, 1, 1]), jnp.asarray([0.05, 0.1, 0.05, 0.1])
            Z, metrics = jax.jit(partial(sweep, train, mesh=client_mesh()))(seeds, step_sizes)

    Args:
        program: pure, of one task, such as :func:`init` followed by :func:`run`; without a mesh of its own.
        arguments: leaves ``(B, ...)``.
        mesh: one axis of devices, such as :func:`client_mesh`; None for one device.
        cost: ``(B,)`` roughly what each task takes, in any unit, such as its number of rows, so that all devices are
            done at about the same time; the same for all by default.

    Returns:
        What ``program`` returns, leaves ``(B, ...)``.

    Raises:
        ValueError: leaves of different numbers of tasks, or of none; a cost for other tasks; no mesh of one axis.
    """
    if mesh is not None:
        sharding.check_mesh(mesh)
    lengths = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(arguments)}
    if len(lengths) != 1 or lengths <= {(), (0,)}:
        raise ValueError(
            "every leaf of a sweep's arguments needs the same leading axis of tasks (B, ...), and B at least 1; got "
            f"axes of {sorted(lengths)}; close over what all tasks share"
        )
    ((tasks,),) = lengths
    if cost is not None and np.shape(cost) != (tasks,):
        raise ValueError(f"cost holds a number a task, ({tasks},), got {np.shape(cost)}")

    def on_one_device(*own: PyTree) -> PyTree:
        if in_turn(mesh):
            return jax.lax.map(lambda task: program(*task), own)
        return jax.vmap(program)(*own)

    if mesh is None:
        return on_one_device(*arguments)
    axis = P(*mesh.axis_names)
    spread = jax.shard_map(on_one_device, mesh=mesh, in_specs=axis, out_specs=axis, check_vma=False)
    order = _deal(jnp.zeros(tasks) if cost is None else jnp.asarray(cost), mesh.size)
    done = spread(*trees.take(arguments, order))
    return trees.take(done, jnp.zeros(tasks, int).at[order].set(jnp.arange(len(order))))


def _deal(cost: jax.Array, devices: int) -> jax.Array:
    """Tasks by device, ``(devices * n,)``: dealt from the dearest on, to and fro; the cheapest fills what is left."""
    ranked = jnp.argsort(cost, descending=True)
    ranked = jnp.pad(ranked, (0, -len(ranked) % devices), mode="edge").reshape(-1, devices)
    return ranked.at[1::2].set(ranked[1::2, ::-1]).T.ravel()
