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
ALG = fedavg(LINEAR, epochs=2, batch_size=4, short_batches=(1, 2))


def tasks(count):
    """``keys (B,)``, ``rows (B, 3, 10, 2)``: every task with clients of its own numbers of rows, some empty."""
    rng = np.random.default_rng(0)
    mask = np.arange(10) < rng.integers(0, 11, size=(count, 3, 1))
    x = rng.normal(size=(count, 3, 10, 2)) * mask[..., None]
    return jax.random.split(jax.random.key(0), count), Rows(jnp.asarray(x, jnp.float32), jnp.asarray(mask))


def train(key, rows):
    state = federation.init(ALG, key, rows)
    first = jnp.asarray(0)
    state, history = federation.run(
        ALG, key, state, rows, first, sampler=federation.everyone, rounds=3, block_size=1
    )
    return state.server.params, history.weight


@pytest.mark.parametrize("in_turn", [True, False])
def test_a_sweep_is_a_loop_over_tasks(monkeypatch, in_turn):
    assert sweeps.in_turn()  # on a CPU; elsewhere:
    monkeypatch.setattr(sweeps, "in_turn", lambda mesh: in_turn)
    keys, rows = tasks(5)
    swept = jax.jit(lambda *a: federation.sweep(train, *a))(keys, rows)
    one = jax.jit(train)
    looped = [one(keys[b], trees.take(rows, jnp.asarray(b))) for b in range(5)]
    for got, want in zip(swept, zip(*looped, strict=True), strict=True):
        assert np.isfinite(got).all()
        np.testing.assert_allclose(got, np.stack(want), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("in_turn", [True, False])
@pytest.mark.parametrize("block_size", [None, 1, 2])
def test_a_loss_may_hold_what_is_swept_over(monkeypatch, in_turn, block_size):
    """A penalty closed over by the model, traced: short batches must not stand in its way."""
    monkeypatch.setattr(sweeps, "in_turn", lambda mesh: in_turn)
    key, rows = jax.random.key(1), trees.take(tasks(1)[1], jnp.asarray(0))

    def penalised(penalty):
        def loss(k, params, anchor, x, mask):
            return LINEAR.loss(k, params, anchor, x, mask) + penalty * jnp.sum(params**2)

        alg = fedavg(LINEAR._replace(loss=loss), epochs=2, batch_size=4, short_batches=(1, 2))
        state = federation.init(alg, key, rows)
        options = dict(sampler=federation.everyone, rounds=2, block_size=block_size)
        return federation.run(alg, key, state, rows, jnp.asarray(0), **options)[0].server.params

    penalties = jnp.asarray([0.0, 0.5, 3.0])
    swept = jax.jit(lambda p: federation.sweep(penalised, p))(penalties)
    want = np.stack([jax.jit(penalised)(p) for p in penalties])
    assert np.isfinite(swept).all()
    assert np.abs(np.diff(want, axis=0)).max() > 1e-3
    np.testing.assert_allclose(swept, want, rtol=1e-4, atol=1e-5)


CHILD = """
import numpy as np
import jax
from fedgeo import federation
from tests.federation.test_sweeps import tasks, train

def swept(count, mesh, cost):
    program = jax.jit(lambda *a: federation.sweep(train, *a, mesh=mesh, cost=cost))
    return [np.asarray(leaf) for leaf in jax.tree.leaves(program(*tasks(count)))]

for count, devices in ((7, 2), (7, 3), (4, 4), (2, 4)):
    want = swept(count, None, None)
    assert all(np.isfinite(leaf).all() for leaf in want)
    rows = tasks(count)[1].mask.sum(axis=(1, 2))
    for cost in (None, rows):
        for got, one in zip(swept(count, federation.client_mesh(devices), cost), want, strict=True):
            np.testing.assert_array_equal(got, one)

last = jax.sharding.Mesh(np.asarray(jax.devices()[-1:]), ("tasks",))
assert jax.jit(lambda x: federation.sweep(lambda a: a + 1, x, mesh=last))(np.zeros(3)).devices() == {jax.devices()[-1]}
"""


def python(code, **variables):
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment | variables, capture_output=True, text=True, timeout=300
    )


def test_devices_change_no_bit_and_no_order():
    """As many tasks as devices, more, fewer, and no multiple of them."""
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


def test_a_mesh_that_is_none_is_refused():
    with pytest.raises(ValueError, match=r"mesh must be a jax\.sharding\.Mesh, got 3"):
        federation.sweep(lambda a: a, jnp.zeros(3), mesh=3)


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
    shares = np.asarray(sweeps._deal(jnp.asarray(cost, jnp.uint32), devices)).reshape(devices, -1)
    assert set(shares.ravel().tolist()) == set(range(len(cost)))
    if len(cost) % devices == 0:
        assert len(set(shares.ravel().tolist())) == shares.size
        load = np.asarray(cost)[shares].sum(axis=1)
        assert load.max() - load.min() <= max(cost) - min(cost)
