"""Tables of labelled rows, for one-class learning one class at a time. Shapes: N rows, F features."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from sklearn import datasets


@dataclass(frozen=True, eq=False)
class Table:
    """A labelled table.

    Attributes:
        x: ``(N, F)`` float64.
        y: ``(N,)`` positions in ``classes``.
        classes: class names.
        features: the F feature names.
        name: what to call the data set in tables.
    """

    x: np.ndarray
    y: np.ndarray
    classes: tuple[str, ...]
    features: tuple[str, ...]
    name: str = "table"

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
