import gzip
from collections.abc import Callable
from pathlib import Path

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


def test_titanic_of_the_publisher(data_root: Path) -> None:
    table = tables.titanic(data_root)
    assert table.x.shape == (891, 10)
    assert np.bincount(table.y).tolist() == [549, 342]
    assert table.features[:5] == ("Pclass", "Age", "SibSp", "Parch", "Fare")
    missing = dict(zip(table.features, np.isnan(table.x).sum(axis=0).tolist(), strict=True))
    assert {name: count for name, count in missing.items() if count} == {"Age": 177}
    ports = table.x[:, [table.features.index(f"Embarked={port}") for port in "CQS"]]
    assert ports.sum(axis=0).tolist() == [168, 77, 644]
    assert (ports.sum(axis=1) == 0).sum() == 2  # unknown ports
    assert table.skewed


def test_adult_of_the_publisher(data_root: Path) -> None:
    table = tables.adult(data_root)
    assert len(table) == 32_561 + 16_281
    assert np.bincount(table.y).tolist() == [37_155, 11_687]
    assert not np.isnan(table.x).any()
    occupations = [k for k, name in enumerate(table.features) if name.startswith("occupation=")]
    assert len(occupations) == 14
    assert (table.x[:, occupations].sum(axis=1) == 0).sum() == 1_843 + 966  # question marks
    assert len(tables.adult(data_root / "adult")) == len(table)


def small_root(tmp_path: Path) -> Path:
    """The three sets in their layouts, a few rows each."""
    for name in ("titanic", "adult", "covertype"):
        (tmp_path / name).mkdir()
    (tmp_path / "titanic" / "train.csv").write_text(
        "PassengerId,Survived,Pclass,Name,Sex,Age,SibSp,Parch,Ticket,Fare,Cabin,Embarked\n"
        '1,0,3,"A, B",male,22,1,0,x,7.25,,S\n2,1,1,"C, D",female,,0,0,y,71.5,C85,\n'
    )
    row = "39, State-gov, 77516, Bachelors, 13, Divorced, Sales, Wife, White, Male, 2174, 0, 40, {}, {}\n"
    (tmp_path / "adult" / "adult.data").write_text(
        row.format("Cuba", "<=50K") + row.format("?", ">50K") + "\n"
    )
    (tmp_path / "adult" / "adult.test").write_text("|1x3 Cross validator\n" + row.format("Peru", "<=50K."))
    cover = np.zeros((6, 55), int)
    cover[:, 0], cover[:, -1] = 2000 + np.arange(6), [1, 2, 3, 7, 1, 1]
    with gzip.open(tmp_path / "covertype" / "covtype.data.gz", "wt") as file:
        np.savetxt(file, cover, fmt="%d", delimiter=",")
    return tmp_path


def test_missing_numbers_and_categories_are_told_apart(tmp_path: Path) -> None:
    root = small_root(tmp_path)
    titanic = tables.titanic(root)
    assert titanic.features[5:] == ("Sex=female", "Sex=male", "Embarked=S")
    np.testing.assert_array_equal(titanic.x, [[3, 22, 1, 0, 7.25, 0, 1, 1], [1, np.nan, 0, 0, 71.5, 1, 0, 0]])
    adult = tables.adult(root)
    assert adult.y.tolist() == [0, 1, 0]
    countries = [k for k, name in enumerate(adult.features) if name.startswith("native-country=")]
    np.testing.assert_array_equal(adult.x[:, countries], [[1, 0], [0, 0], [0, 1]])


def test_covertype_is_read_whole_or_as_a_seeded_sample(tmp_path: Path) -> None:
    root = small_root(tmp_path)
    whole = tables.covertype(root)
    assert whole.x.shape == (6, 54)
    assert whole.y.tolist() == [0, 1, 2, 6, 0, 0]
    assert len(whole.classes) == 7
    part = tables.covertype(root, rows=3, seed=1)
    np.testing.assert_array_equal(part.x, tables.covertype(root, rows=3, seed=1).x)
    assert len({tuple(row) for row in part.x}) == 3
    assert part.name == "covertype (3 rows)"
    with pytest.raises(ValueError, match="rows=7; want between 1 and the 6 rows"):
        tables.covertype(root, rows=7)


@pytest.mark.parametrize(
    ("file", "text", "load", "message"),
    [
        ("titanic/train.csv", "Survived,Age\n1,2\n", tables.titanic, "lacks the columns Pclass"),
        ("titanic/train.csv", "", tables.titanic, "no readable CSV"),
        (
            "titanic/train.csv",
            "Survived,Pclass,Sex,Age,SibSp,Parch,Fare,Embarked\n2,1,male,1,1,1,1,S\n",
            tables.titanic,
            "class 2; want one of 0, 1",
        ),
        (
            "titanic/train.csv",
            "Survived,Pclass,Sex,Age,SibSp,Parch,Fare,Embarked\n1,1,male,old,1,1,1,S\n",
            tables.titanic,
            "column Age holds what is no number",
        ),
        ("adult/adult.test", None, tables.adult, "Want adult/adult.data and adult/adult.test"),
        ("covertype/covtype.data.gz", "1,2,3\n", tables.covertype, "no readable CSV|3 columns"),
    ],
)
def test_damaged_files_are_named(
    tmp_path: Path, file: str, text: str | None, load: Callable, message: str
) -> None:
    path = small_root(tmp_path) / file
    path.unlink()
    if text is not None:
        path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    with pytest.raises((ValueError, FileNotFoundError), match=message) as caught:
        load(tmp_path)
    assert path.name in str(caught.value) or path.parent.name in str(caught.value)
