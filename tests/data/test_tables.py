import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgeo.data import tables


def test_tables_that_come_with_scikit_learn() -> None:
    iris, cancer = tables.iris(), tables.breast_cancer()
    assert (iris.x.shape, cancer.x.shape) == ((150, 4), (569, 30))
    assert np.bincount(iris.y).tolist() == [50, 50, 50]
    assert dict(zip(cancer.classes, np.bincount(cancer.y).tolist(), strict=True)) == {
        "malignant": 212,
        "benign": 357,
    }
    assert len(cancer.features) == 30
    assert len(iris) == 150


@given(
    counts=st.lists(st.integers(3, 60), min_size=1, max_size=5),
    shares=st.sampled_from([(0.6, 0.2, 0.2), (0.98, 0.01, 0.01), (1 / 3, 1 / 3, 1 / 3), (0.1, 0.2, 0.7)]),
    seed=st.integers(0, 100),
)
def test_split_holds_every_row_once_and_keeps_the_shares(
    counts: list[int], shares: tuple[float, float, float], seed: int
) -> None:
    y = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    parts = tables.stratified_split(y, shares=shares, seed=seed)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(y)))
    for part, share in zip(parts, shares, strict=True):
        held = np.bincount(y[part], minlength=len(counts))
        assert (held >= 1).all()
        ideal = share * np.array(counts)
        assert (np.abs(held - ideal) <= np.where(np.array(counts) * min(shares) < 1, 2, 1)).all()


def test_split_of_round_numbers_is_exact_and_follows_the_seed() -> None:
    y = tables.iris().y
    one, two, other = (tables.stratified_split(y, seed=s) for s in (0, 0, 1))
    assert [np.bincount(y[part]).tolist() for part in one] == [[30] * 3, [10] * 3, [10] * 3]
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    assert not np.array_equal(one.train, other.train)


def test_split_names_the_class_that_is_too_small() -> None:
    with pytest.raises(ValueError, match="class rare has 2 rows"):
        tables.stratified_split(np.array([0, 0, 0, 1, 1]), classes=("common", "rare"))
    with pytest.raises(ValueError, match="class 7 has 1 rows"):
        tables.stratified_split(np.array([7]))
    with pytest.raises(ValueError, match="no rows to split"):
        tables.stratified_split(np.array([], dtype=int))
    with pytest.raises(ValueError, match=r"shares=\(0.5, 0.5, 0.5\); want three positive shares"):
        tables.stratified_split(np.zeros(9), shares=(0.5, 0.5, 0.5))
