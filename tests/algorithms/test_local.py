"""How many steps a client takes, on which rows: counted by a model whose parameters count them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedgeo.algorithms import local
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
    return jax.tree.map(np.asarray, train(jax.random.key(0), START, (), data)[0])


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


def test_a_bound_below_one_is_refused():
    with pytest.raises(ValueError, match="max_steps must be at least 1"):
        local.trainer(COUNTER, optax.sgd(1.0), epochs=1, batch_size=1, max_steps=0)
