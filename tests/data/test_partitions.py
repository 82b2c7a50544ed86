import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgeo.data import partitions

LABELS = np.repeat([0, 1, 2], [200, 100, 50])


@given(
    counts=st.lists(st.integers(0, 30), min_size=1, max_size=5),
    alpha=st.sampled_from([5e-324, 1e-300, 1e-3, 0.1, 1.0, 1e3, 1e308]),
    clients=st.integers(1, 12),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_row_has_exactly_one_owner(counts: list[int], alpha: float, clients: int, seed: int) -> None:
    y = np.repeat(np.arange(len(counts)), counts)
    for partition in (partitions.dirichlet(y, alpha, clients, seed), partitions.iid(y, clients, seed)):
        assert len(partition) == clients
        assert sorted(np.concatenate(partition).tolist()) == list(range(len(y)))
        assert all((np.diff(rows) > 0).all() for rows in partition)


def test_partitions_follow_the_seed() -> None:
    one, two, other = (partitions.dirichlet(LABELS, 0.5, 4, seed) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    assert [len(rows) for rows in one] != [len(rows) for rows in other]


@pytest.mark.parametrize("alpha", [0.05, 0.5, 5.0])
def test_proportions_have_the_moments_of_the_dirichlet_law(alpha: float) -> None:
    clients = 4
    rng = np.random.default_rng(0)
    draws = np.array([partitions._proportions(alpha, clients, rng) for _ in range(20_000)])
    mean = 1 / clients
    variance = mean * (1 - mean) / (clients * alpha + 1)
    np.testing.assert_allclose(draws.sum(axis=1), 1.0)
    np.testing.assert_allclose(draws.mean(axis=0), mean, atol=0.02)
    np.testing.assert_allclose(draws.var(axis=0), variance, rtol=0.1)


def test_alpha_decides_the_skew() -> None:
    def largest_share(alpha: float) -> float:
        tables = [
            partitions.partition_table(partitions.dirichlet(LABELS, alpha, 5, s), LABELS) for s in range(20)
        ]
        return float(np.mean([(t[["0", "1", "2"]].max() / t[["0", "1", "2"]].sum()).mean() for t in tables]))

    assert largest_share(1e-300) == 1.0
    assert largest_share(0.01) > 0.95 > 0.8 > largest_share(0.5) > largest_share(10.0) > 0.2
    assert largest_share(1e9) == pytest.approx(0.2, abs=0.01)


def test_rounding_favours_no_client() -> None:
    y = np.arange(3000)  # every row is a class of its own
    sizes = [len(rows) for rows in partitions.dirichlet(y, 1e6, 3)]
    assert min(sizes) > 900


def test_min_rows_is_met_or_refused_in_bounded_time() -> None:
    partition = partitions.dirichlet(LABELS, 0.3, 5, seed=0, min_rows=10)
    assert min(len(rows) for rows in partition) >= 10
    with pytest.raises(ValueError, match=r"in 50 draws at alpha=0.01 with 10 clients; lower min_rows, raise"):
        partitions.dirichlet(LABELS, 0.01, 10, min_rows=30, max_draws=50)
    with pytest.raises(ValueError, match="min_rows=100 for 4 clients needs 400 rows, got 350"):
        partitions.dirichlet(LABELS, 1.0, 4, min_rows=100)


@pytest.mark.parametrize("alpha", [0.0, -1.0, np.nan, np.inf])
def test_alpha_out_of_range_is_refused(alpha: float) -> None:
    with pytest.raises(ValueError, match="want a positive finite concentration"):
        partitions.dirichlet(LABELS, alpha, 3)


def test_clients_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="clients=0; want at least one"):
        partitions.iid(LABELS, 0)


def test_iid_is_even() -> None:
    assert sorted(len(rows) for rows in partitions.iid(np.zeros(11), 3)) == [3, 4, 4]


def test_natural_partition_groups_by_owner() -> None:
    parts = partitions.natural(["b", "a", "b", "c"])
    assert {owner: rows.tolist() for owner, rows in parts.items()} == {"a": [1], "b": [0, 2], "c": [3]}
    assert list(partitions.natural(np.array([3, 1, 3]))) == [1, 3]


def test_partition_table_counts_rows_and_classes() -> None:
    partition = (np.array([0, 1, 4]), np.array([], dtype=int), np.array([2, 3]))
    table = partitions.partition_table(partition, np.array([0, 0, 1, 0, 1]), ("normal", "odd", "absent"))
    assert table.columns.tolist() == ["rows", "normal", "odd", "absent"]
    assert table.to_numpy().tolist() == [[3, 2, 1, 0], [0, 0, 0, 0], [2, 1, 1, 0]]
