import numpy as np
import pytest

from fedgeo.data import stacking
from fedgeo.protocol import Rows, Series


def _ragged() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"a": rng.normal(size=(3, 2)), "empty": np.zeros((0, 2)), "b": rng.normal(size=(5, 2))}


def test_stacking_pads_with_zeros_under_a_false_mask() -> None:
    clients = _ragged()
    rows = stacking.stack_rows(clients)
    assert isinstance(rows, Rows)
    assert rows.x.shape == (3, 5, 2)
    assert rows.x.dtype == np.float32
    assert rows.mask.sum(axis=1).tolist() == [3, 0, 5]
    assert (rows.x[~rows.mask] == 0).all()
    for k, x in enumerate(clients.values()):
        np.testing.assert_array_equal(rows.x[k][rows.mask[k]], x.astype(np.float32))


def test_fixed_length_pads_further_and_refuses_to_cut() -> None:
    series = stacking.stack_series(list(_ragged().values()), length=8)
    assert isinstance(series, Series)
    assert series.x.shape == (3, 8, 2)
    assert not series.mask[:, 5:].any()
    with pytest.raises(ValueError, match=r"length=4 is shorter than the longest client \(5 rows\)"):
        stacking.stack_series(_ragged(), length=4)


def test_clients_without_any_rows_still_stack() -> None:
    rows = stacking.stack_rows([np.zeros((0, 4))])
    assert rows.x.shape == (1, 1, 4)
    assert not rows.mask.any()


def test_unstack_undoes_the_padding() -> None:
    clients = _ragged()
    back = stacking.unstack(stacking.stack_series(clients, length=9).x, clients)
    assert list(back) == list(clients)
    for name, x in clients.items():
        np.testing.assert_array_equal(back[name], x.astype(np.float32))
    with pytest.raises(ValueError, match="got values of 2 clients for 3 clients"):
        stacking.unstack(np.zeros((2, 9)), clients)
    with pytest.raises(ValueError, match="got 4 values a client, but the longest client has 5 rows"):
        stacking.unstack(np.zeros((3, 4)), clients)


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([], "no clients to stack"),
        ({"a": np.zeros((2, 3)), "b": np.zeros((2, 4))}, r"a \(2, 3\), b \(2, 4\)"),
        ({"a": np.zeros(3)}, r"clients must be 2-D.*a \(3,\)"),
        ({"a": np.array([[0.0, np.nan]])}, "client a: row 0, column 1 is nan"),
        ({"a": np.array([[0.0], [1e39]])}, r"client a: row 1, column 0 is 1e\+39"),
    ],
)
def test_what_does_not_stack_is_named(clients, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stacking.stack_rows(clients)
