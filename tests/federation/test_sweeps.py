import os
import subprocess
import sys

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedgeo import federation, trees
from fedgeo.algorithms.fedavg import fedavg
from fedgeo.federation import sweeps
from fedgeo.protocol import Model, Rows

LINEAR = Model(
    init=lambda key, x: jax.random.normal(key, x.shape[1:]),
    anchor=lambda params, x, mask: (),
    loss=lambda key, params, anchor, x, mask: (
        jnp.sum(mask * (x @ params - x[:, 0]) ** 2) / jnp.maximum(mask.sum(), 1)
    ),
    score=lambda params, anchor, x: x @ params,
)
ALG = fedavg(LINEAR, epochs=2, batch_size=4)


def tasks(count):
    """``keys (B,)``, ``rows (B, 3, 10, 2)``: every task with clients of its own numbers of rows, some empty."""
    rng = np.random.default_rng(0)
    mask = np.arange(10) < rng.integers(0, 11, size=(count, 3, 1))
    x = rng.normal(size=(count, 3, 10, 2)) * mask[..., None]
    return jax.random.split(jax.random.key(0), count), Rows(jnp.asarray(x, jnp.float32), jnp.asarray(mask))


def train(key, rows):
    state = federation.init(ALG, key, rows)
    state, history = federation.run(
        ALG, key, state, rows, jnp.asarray(0), sampler=federation.everyone, rounds=3
    )
    return state.server.params, history.weight


def test_a_sweep_is_a_loop_over_tasks():
    keys, rows = tasks(5)
    swept = jax.jit(lambda *a: federation.sweep(train, *a))(keys, rows)
    one = jax.jit(train)
    looped = [one(keys[b], trees.take(rows, jnp.asarray(b))) for b in range(5)]
    at_once = jax.vmap(train)(keys, rows)
    for got, want, other in zip(swept, zip(*looped, strict=True), at_once, strict=True):
        assert np.isfinite(got).all()
        np.testing.assert_array_equal(got, np.stack(want))
        np.testing.assert_allclose(got, other, rtol=1e-5, atol=1e-6)


CHILD = """
import sys
import numpy as np
import jax
from fedgeo import federation
from tests.federation.test_sweeps import tasks, train

count = 7
def swept(mesh, cost):
    program = jax.jit(lambda *a: federation.sweep(train, *a, mesh=mesh, cost=cost))
    return [np.asarray(leaf) for leaf in jax.tree.leaves(program(*tasks(count)))]

want = swept(None, None)
assert all(np.isfinite(leaf).all() for leaf in want)
rows = tasks(count)[1].mask.sum(axis=(1, 2))
for devices in (2, 3, 4):
    for cost in (None, rows):
        for got, one in zip(swept(federation.client_mesh(devices), cost), want, strict=True):
            np.testing.assert_array_equal(got, one)
"""


def python(code, **variables):
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment | variables, capture_output=True, text=True, timeout=300
    )


def test_devices_change_no_bit_and_no_order():
    """Seven tasks: no multiple of the devices."""
    done = python(CHILD, JAX_NUM_CPU_DEVICES="4")
    assert done.returncode == 0, done.stderr


CORES = (
    "import os; print(len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count())"
)
ASK = "from fedgeo import federation; federation.one_device_a_core(); import jax; print(jax.device_count())"


@pytest.mark.parametrize(
    ("code", "variables", "want"),
    [
        (ASK, {}, None),
        (ASK, {"JAX_NUM_CPU_DEVICES": "3"}, "3"),
        (ASK, {"XLA_FLAGS": "--xla_force_host_platform_device_count=3"}, "3"),
        (f"import jax; jax.devices(); {ASK}", {}, "1"),
    ],
    ids=["one a core", "chosen by the variable", "forced by the flag", "too late"],
)
def test_a_cpu_poses_as_a_device_a_core_unless_somebody_chose(code, variables, want):
    done = python(code, **variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (python(CORES).stdout if want is None else f"{want}\n")


@pytest.mark.parametrize(
    "arguments",
    [(jnp.zeros(3), jnp.zeros(4)), (jnp.zeros(3), 1.0), (jnp.zeros((0, 2)),), ()],
    ids=["different", "scalar", "none", "nothing"],
)
def test_arguments_that_are_no_tasks_are_refused(arguments):
    with pytest.raises(ValueError, match=r"same leading axis of tasks \(B, ...\), and B at least 1; got"):
        federation.sweep(lambda *a: a, *arguments)


def test_a_cost_for_other_tasks_is_refused():
    mesh = federation.client_mesh(1)
    with pytest.raises(ValueError, match=r"cost holds a number a task, \(3,\), got \(2,\)"):
        federation.sweep(lambda a: a, jnp.zeros(3), mesh=mesh, cost=jnp.zeros(2))


@hypothesis.given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=20), st.sampled_from([1, 2, 3, 4]), st.booleans()
)
@hypothesis.settings(max_examples=50)
def test_shares_hold_every_task_and_are_alike(cost, devices, whole):
    if whole:
        cost = cost * devices
    shares = np.asarray(sweeps._deal(jnp.asarray(cost), devices)).reshape(devices, -1)
    assert set(shares.ravel().tolist()) == set(range(len(cost)))
    if len(cost) % devices == 0:
        assert len(set(shares.ravel().tolist())) == shares.size
        load = np.asarray(cost)[shares].sum(axis=1)
        assert load.max() - load.min() <= max(cost) - min(cost)
