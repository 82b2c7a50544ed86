"""Tables of labelled rows, for one-class learning one class at a time. Shapes: N rows, F features."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn import datasets

from fedgeo.data.files import data_folder, existing


@dataclass(frozen=True, eq=False)
class Table:
    """A labelled table.

    Attributes:
        x: ``(N, F)`` float64, NaN where a number is missing. A category is one column of 0 and 1 a value; a row
            whose category is missing has 0 in all of them.
        y: ``(N,)`` positions in ``classes``.
        classes: class names.
        features: the F feature names.
        name: what to call the data set in tables.
        skewed: whether numbers are so skewed that its users scale by median and quartiles.
    """

    x: np.ndarray
    y: np.ndarray
    classes: tuple[str, ...]
    features: tuple[str, ...]
    name: str = "table"
    skewed: bool = False

    def __len__(self) -> int:
        return len(self.x)


class Split(NamedTuple):
    """Row positions of three disjoint parts, each ascending."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray


def iris() -> Table:
    """Iris: 150 rows, 4 features, 3 classes; comes with scikit-learn."""
    return _from_sklearn(datasets.load_iris, "iris")


def breast_cancer() -> Table:
    """Breast Cancer Wisconsin (Diagnostic): 569 rows, 30 features, 2 classes; comes with scikit-learn."""
    return _from_sklearn(datasets.load_breast_cancer, "breast-cancer")


def titanic(root: str | os.PathLike[str] | None = None) -> Table:
    """Titanic: the 891 labelled passengers of the Kaggle competition, as ``titanic/train.csv``.

    Features are class, age (partly missing), siblings, parents and fare as numbers, sex and port as
    categories. Name, ticket and cabin, which are nearly one a passenger, are left out.

    Args:
        root: the folder that contains ``titanic``, or that folder itself; by default ``$FEDGEO_DATA``.
    """
    path = existing(
        data_folder(root, "titanic", _KAGGLE) / "train.csv",
        f"Want titanic/train.csv, as published by {_KAGGLE}",
    )
    frame = _read_csv(path)
    numbers, categories = ("Pclass", "Age", "SibSp", "Parch", "Fare"), ("Sex", "Embarked")
    _check_columns(frame, (*numbers, *categories, "Survived"), path)
    x, features = _encode(frame, numbers, categories, path)
    return Table(
        x, _positions(frame["Survived"], ("0", "1"), path), ("died", "survived"), features, "titanic", True
    )


def adult(root: str | os.PathLike[str] | None = None) -> Table:
    """Adult: 48,842 rows of the 1994 census, ``adult/adult.data`` followed by ``adult/adult.test``.

    Left out are ``fnlwgt``, a weight of the sample, and ``education``, which ``education-num`` repeats. A
    question mark is a missing category.

    Args:
        root: as for :func:`titanic`.
    """
    folder = data_folder(root, "adult", _UCI)
    parts = []
    for name in ("adult.data", "adult.test"):
        path = existing(folder / name, f"Want adult/adult.data and adult/adult.test, as published by {_UCI}")
        part = _read_csv(path, header=None, names=_ADULT, skipinitialspace=True, na_values="?", comment="|")
        parts.append(part.dropna(how="all"))
    frame = pd.concat(parts, ignore_index=True)
    frame["income"] = frame["income"].astype(str).str.rstrip(".")
    numbers = ("age", "education-num", "capital-gain", "capital-loss", "hours-per-week")
    categories = (
        "workclass",
        "marital-status",
        "occupation",
        "relationship",
        "race",
        "sex",
        "native-country",
    )
    x, features = _encode(frame, numbers, categories, folder)
    classes = ("<=50K", ">50K")
    return Table(x, _positions(frame["income"], classes, folder), classes, features, "adult", True)


def covertype(root: str | os.PathLike[str] | None = None, *, rows: int | None = None, seed: int = 0) -> Table:
    """Covertype: forest cover of 30 m squares, 54 features, 7 classes, ``covertype/covtype.data.gz``.

    Args:
        root: as for :func:`titanic`.
        rows: size of a random sample of the file's rows; None for all of them.
        seed: of the sample.
    """
    folder = data_folder(root, "covertype", _UCI)
    path = existing(folder / "covtype.data.gz", f"Want covertype/covtype.data.gz, as published by {_UCI}")
    values = _read_csv(path, header=None).to_numpy(np.float64)
    if values.shape[1] != 55:
        raise ValueError(f"{path} has {values.shape[1]} columns; want 54 features and the class")
    if rows is not None:
        if not 1 <= rows <= len(values):
            raise ValueError(f"rows={rows}; want between 1 and the {len(values)} rows of {path}")
        values = values[np.sort(np.random.default_rng(seed).choice(len(values), rows, replace=False))]
    name = "covertype" if rows is None else f"covertype ({rows} rows)"
    y = _positions(pd.Series(values[:, -1].astype(int)), [str(k) for k in range(1, 8)], path)
    return Table(values[:, :-1], y, _COVER_TYPES, _COVER_FEATURES, name)


_KAGGLE = "Kaggle, competition titanic"
_UCI = "the UCI Machine Learning Repository"
_ADULT = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship",
    "race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", "income",
)  # fmt: skip
_COVER_TYPES = (
    "spruce/fir", "lodgepole pine", "ponderosa pine", "cottonwood/willow", "aspen", "douglas-fir", "krummholz",
)  # fmt: skip
_COVER_FEATURES = (
    "elevation", "aspect", "slope", "horizontal_to_hydrology", "vertical_to_hydrology", "to_roads", "hillshade_9am",
    "hillshade_noon", "hillshade_3pm", "to_fire_points",
    *(f"wilderness_{k}" for k in range(1, 5)), *(f"soil_{k}" for k in range(1, 41)),
)  # fmt: skip


def _read_csv(path: Path, **options: Any) -> pd.DataFrame:
    try:
        return pd.read_csv(path, **options)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError, EOFError) as error:
        raise ValueError(
            f"{path} is no readable CSV file ({error}); get it from its publisher again"
        ) from error


def _check_columns(frame: pd.DataFrame, wanted: Sequence[str], path: Path) -> None:
    if missing := [name for name in wanted if name not in frame.columns]:
        raise ValueError(
            f"{path} lacks the columns {', '.join(missing)}; it has {', '.join(map(str, frame.columns))}"
        )


def _encode(
    frame: pd.DataFrame, numbers: Sequence[str], categories: Sequence[str], path: Path
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Numbers as they are, NaN where missing, then one column of 0 and 1 for every value of every category."""
    columns, names = [], list(numbers)
    for name in numbers:
        try:
            columns.append(pd.to_numeric(frame[name]).to_numpy(np.float64))
        except ValueError as error:
            raise ValueError(f"{path}: column {name} holds what is no number ({error})") from error
    for name in categories:
        values = sorted(frame[name].dropna().unique())
        columns += [(frame[name] == value).fillna(False).to_numpy(np.float64) for value in values]
        names += [f"{name}={value}" for value in values]
    return np.column_stack(columns), tuple(names)


def _positions(labels: pd.Series, classes: Sequence[str], path: Path) -> np.ndarray:
    positions = labels.astype(str).map({name: k for k, name in enumerate(classes)})
    if positions.isna().any():
        unknown = labels[positions.isna()].iloc[0]
        raise ValueError(f"{path}: class {unknown}; want one of {', '.join(classes)}")
    return positions.to_numpy(np.int64)


def stratified_split(
    y: np.ndarray, *, shares: Sequence[float] = (0.6, 0.2, 0.2), seed: int = 0, classes: Sequence[str] = ()
) -> Split:
    """Split rows into train, validation and test, class by class.

    Every part gets its share of every class up to rounding, and at least one row of it.

    Args:
        y: ``(N,)`` class of each row.
        shares: positive shares of the three parts, summing to 1.
        seed: of the shuffle.
        classes: class names for messages.

    Raises:
        ValueError: if a class has fewer than three rows.
    """
    if len(shares) != 3 or min(shares) <= 0 or abs(sum(shares) - 1.0) > 1e-9:
        raise ValueError(
            f"shares={tuple(shares)}; want three positive shares with sum 1, such as (0.6, 0.2, 0.2)"
        )
    if len(y) == 0:
        raise ValueError("no rows to split; want at least three of every class")
    rng = np.random.default_rng(seed)
    parts: tuple[list[np.ndarray], ...] = ([], [], [])
    for label in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == label))
        if len(rows) < 3:
            name = classes[label] if len(classes) else label
            raise ValueError(
                f"class {name} has {len(rows)} rows, but train, validation and test need one each; "
                "merge the class with another or drop it"
            )
        cuts = np.cumsum(_sizes(len(rows), shares))[:-1]
        for part, chunk in zip(parts, np.split(rows, cuts), strict=True):
            part.append(chunk)
    return Split(*(np.sort(np.concatenate(part)) for part in parts))


def _sizes(n: int, shares: Sequence[float]) -> np.ndarray:
    """Whole numbers that sum to n, nearest to the shares, none of them 0."""
    ideal = n * np.asarray(shares)
    sizes = np.floor(ideal + 1e-9).astype(int)
    sizes[np.argsort(sizes - ideal, kind="stable")[: n - sizes.sum()]] += 1
    while sizes.min() == 0:
        sizes[sizes.argmax()] -= 1
        sizes[sizes.argmin()] += 1
    return sizes


def _from_sklearn(load: Callable[[], Any], name: str) -> Table:
    bunch = load()
    return Table(
        x=bunch.data.astype(np.float64),
        y=bunch.target.astype(np.int64),
        classes=tuple(str(c) for c in bunch.target_names),
        features=tuple(str(f) for f in bunch.feature_names),
        name=name,
    )
