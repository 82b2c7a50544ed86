"""How many steps a client takes, on which rows: counted by a model whose parameters count them."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedgeo import federation
from fedgeo.algorithms import local
from fedgeo.algorithms.fedavg import fedavg
from fedgeo.models.encoder import geodesic_svdd
from fedgeo.protocol import Model, Rows

ROWS = 50


def count(key, params, anchor, x, mask):
    """Falls by one a step for ``steps``, and by one a visit for the row whose number is its only feature."""
    del key, anchor
    visits = jnp.zeros(ROWS).at[x[:, 0].astype(int)].add(mask)
    return -params["steps"] - jnp.sum(params["visits"] * visits)


COUNTER = Model(lambda key, x: (), lambda params, x, mask: (), count, lambda params, anchor, x: x[:, 0])
START = {"steps": jnp.zeros(()), "visits": jnp.zeros(ROWS)}


def trained(rows, **options):
    train = local.trainer(COUNTER, optax.sgd(1.0), batch_size=10, **options)
    data = Rows(jnp.arange(ROWS, dtype=jnp.float32)[:, None], jnp.arange(ROWS) < rows)
    return jax.tree.map(np.asarray, train.run(jax.random.key(0), START, train.start(START), (), data)[0])


@pytest.mark.parametrize(
    ("rows", "max_steps", "steps"),
    [(50, None, 5), (50, 2, 2), (50, 9, 5), (13, None, 2), (13, 1, 1), (0, 2, 0)],
)
def test_an_epoch_takes_as_many_steps_as_rows_need_up_to_the_bound(rows, max_steps, steps):
    counted = trained(rows, epochs=3, max_steps=max_steps)
    assert counted["steps"] == 3 * steps
    assert counted["visits"].sum() == 3 * min(rows, 10 * steps)
    assert (counted["visits"][rows:] == 0).all()
    assert counted["visits"].max(initial=0) <= 3  # no row twice in an epoch


def test_a_bounded_client_takes_other_rows_in_every_epoch():
    visits = trained(ROWS, epochs=20, max_steps=1)["visits"]
    assert visits.sum() == 200
    assert (visits > 0).sum() > 45  # the same ten rows every time would be 10


SIZES = Model(
    lambda key, x: jnp.zeros(()),
    lambda params, x, mask: (),
    lambda key, params, anchor, x, mask: -params * x.shape[0],
    lambda params, anchor, x: x[:, 0],
)
"""Its parameter grows by the size of every batch that a step worked on, examples and padding."""


@pytest.mark.parametrize(
    ("rows", "size"), [(0, 0), (1, 2), (2, 2), (3, 5), (6, 10), (13, 10 + 5), (42, 40 + 2)]
)
@pytest.mark.parametrize("block_size", [None, 1])
def test_a_short_batch_is_worked_on_in_the_least_size_unless_clients_are_mapped(rows, size, block_size):
    data = Rows(jnp.zeros((2, ROWS, 1)), jnp.asarray(np.arange(ROWS) < [[rows], [ROWS]]))
    alg = fedavg(SIZES, optimizer=optax.sgd(1.0), epochs=1, batch_size=10, short_batches=(5, 2, 99))
    state, _ = federation.fit(alg, jax.random.key(0), data, rounds=1, block_size=block_size)
    steps = -(-rows // 10)
    worked = size if block_size == 1 else 10 * steps
    np.testing.assert_allclose(state.server.params, (rows * worked + ROWS * ROWS) / (rows + ROWS), rtol=1e-6)


@pytest.mark.parametrize("rows", [0, 1, 8, 37])
def test_short_batches_change_no_result(rows):
    x = jax.random.normal(jax.random.key(1), (40, 3)).at[rows:].set(7.0)  # padding
    data = Rows(x, jnp.arange(40) < rows)
    model = geodesic_svdd(latent=4, width=8, blocks=1)
    params, anchor = model.init(jax.random.key(0), jnp.ones((1, 3))), jnp.ones(4)

    def run(short):
        train = local.trainer(model, optax.adam(1e-2), epochs=3, batch_size=16, short_batches=short)
        return jax.jit(lambda key: train.run(key, params, train.start(params), anchor, data))(
            jax.random.key(2)
        )

    want, got = run(()), run((2, 8))
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(got))
    chex.assert_trees_all_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("short", "message"),
    [
        ((2, 0), "short_batches must be a whole number of at least 1, got 0"),
        (16, r"short_batches takes sizes, such as \(16, 32\), got 16"),
        ("12", "short_batches takes sizes, .* got '12'"),
    ],
)
def test_short_batches_that_are_no_sizes_are_refused(short, message):
    with pytest.raises(ValueError, match=message):
        local.trainer(COUNTER, optax.sgd(1.0), epochs=1, batch_size=4, short_batches=short)


def test_a_bound_below_one_is_refused():
    with pytest.raises(ValueError, match="max_steps must be a whole number of at least 1, got 0"):
        local.trainer(COUNTER, optax.sgd(1.0), epochs=1, batch_size=1, max_steps=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": fedavg}, "model must be a Model, got <function fedavg.*; call the factory"),
        ({"model": None}, "model must be a Model, got None"),
        ({"optimizer": "adam"}, "optimizer must be one of optax, such as optax.adam\\(1e-3\\), got 'adam'"),
        ({"epochs": 1.5}, "epochs must be a whole number of at least 1, got 1.5"),
    ],
)
def test_what_cannot_be_trained_is_refused_by_the_factory(change, message):
    with pytest.raises(ValueError, match=message):
        fedavg(**{"model": COUNTER} | change)


@pytest.mark.parametrize("wrong", [jnp.ones((3, 4, 1)), {"x": jnp.ones((3, 4, 1))}])
def test_data_that_are_no_rows_are_refused(wrong):
    with pytest.raises(
        ValueError, match=r"this algorithm trains on Rows, got .*; make them with .*stack_rows"
    ):
        federation.fit(fedavg(COUNTER), jax.random.key(0), wrong, rounds=1)


@pytest.mark.parametrize("stateful", [True, False])
def test_a_stateful_client_goes_on_with_its_optimiser(stateful):
    """One client with one batch of all its rows: FedAvg is Adam, started once or in every round."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((8, 3)), rng.standard_normal(8)

    def loss(key, params, anchor, x, mask):
        del key, anchor
        return jnp.mean((x[:, :3] @ params - x[:, 3]) ** 2) + 0 * jnp.sum(mask)

    model = Model(
        lambda key, x: jnp.zeros(3), lambda params, x, mask: jnp.zeros(()), loss, lambda p, a, x: x @ p
    )
    alg = fedavg(model, optimizer=optax.adam(0.1), epochs=2, batch_size=8, stateful=stateful)
    rows = Rows(jnp.asarray(np.c_[x, y], jnp.float32)[None], jnp.ones((1, 8), bool))
    state, _ = federation.fit(alg, jax.random.key(0), rows, rounds=4)

    params, m, v, t = np.zeros(3), np.zeros(3), np.zeros(3), 0
    for step in range(8):
        if step % 2 == 0 and not stateful:
            m, v, t = np.zeros(3), np.zeros(3), 0
        gradient = 2 * x.T @ (x @ params - y) / 8
        m, v, t = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2, t + 1
        params = params - 0.1 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    np.testing.assert_allclose(state.server.params, params, rtol=1e-4)
    assert bool(jax.tree.leaves(state.clients)) == stateful


def test_a_stateful_client_that_is_not_drawn_keeps_what_it_had():
    rows = Rows(
        jnp.tile(jnp.arange(ROWS, dtype=jnp.float32)[None, :, None], (3, 1, 1)), jnp.ones((3, ROWS), bool)
    )
    model = COUNTER._replace(init=lambda key, x: START)
    alg = fedavg(model, optimizer=optax.adam(1.0), epochs=1, batch_size=10, stateful=True)
    sampler = federation.recorded([[0, 2], [0, 1]], [[True, True], [True, False]])
    state, _ = federation.fit(alg, jax.random.key(0), rows, rounds=2, sampler=sampler)
    steps = np.asarray(state.clients[0][0].count)
    np.testing.assert_array_equal(steps, [10, 0, 5])
