"""Who holds which rows: partitions of a table over K clients.

A partition is a tuple of K arrays of row positions, ascending and disjoint, that together hold every row
once. Labels decide only which client holds a row (the usual way to simulate label skew); they go no further.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

Partition = tuple[np.ndarray, ...]


def natural(owners: np.ndarray | Sequence[object]) -> dict[object, np.ndarray]:
    """The rows of each distinct owner, by owner in sorted order, from the ``(N,)`` owner of each row."""
    values, inverse = np.unique(np.asarray(owners), return_inverse=True)
    return {value: np.flatnonzero(inverse == k) for k, value in enumerate(values.tolist())}


def iid(y: np.ndarray, clients: int, seed: int = 0) -> Partition:
    """Rows dealt out at random, as evenly as their number allows; of ``y`` only the length is used."""
    _check_clients(clients)
    order = np.random.default_rng(seed).permutation(len(y))
    return tuple(np.sort(part) for part in np.array_split(order, clients))


def dirichlet(
    y: np.ndarray, alpha: float, clients: int, seed: int = 0, *, min_rows: int = 0, max_draws: int = 1000
) -> Partition:
    """Label skew: each class is dealt out in proportions drawn from a symmetric Dirichlet(alpha).

    Small ``alpha`` gives a class to few clients, so that a client may hold no rows at all, which is legal;
    large ``alpha`` approaches equal shares.

    Args:
        y: ``(N,)`` class of each row.
        alpha: concentration, positive.
        clients: K.
        seed: of the draw.
        min_rows: draw again until every client holds that many rows.
        max_draws: when to give up drawing again.

    Raises:
        ValueError: for arguments out of range, or if ``min_rows`` was not met in ``max_draws`` draws.
    """
    _check_clients(clients)
    if not (np.isfinite(alpha) and alpha > 0):
        raise ValueError(f"alpha={alpha}; want a positive finite concentration, such as 0.5")
    if min_rows * clients > len(y):
        raise ValueError(
            f"min_rows={min_rows} for {clients} clients needs {min_rows * clients} rows, got {len(y)}; "
            "lower min_rows or the number of clients"
        )
    y = np.asarray(y)
    rng = np.random.default_rng(seed)
    for _ in range(max_draws if min_rows else 1):
        partition = _draw(y, alpha, clients, rng)
        if min(len(rows) for rows in partition) >= min_rows:
            return partition
    raise ValueError(
        f"no client split with at least {min_rows} rows each in {max_draws} draws at alpha={alpha} with "
        f"{clients} clients; lower min_rows, raise alpha, or use fewer clients"
    )


def partition_table(
    partition: Sequence[np.ndarray], y: np.ndarray, classes: Sequence[str] = ()
) -> pd.DataFrame:
    """Rows of every class at every client, and in all: one row a client."""
    labels = np.arange(len(classes)) if len(classes) else np.unique(y)
    names = [str(c) for c in (classes if len(classes) else labels)]
    counts = [[int(np.sum(y[rows] == label)) for label in labels] for rows in partition]
    table = pd.DataFrame(counts, columns=names, index=pd.RangeIndex(len(partition), name="client"))
    table.insert(0, "rows", [len(rows) for rows in partition])
    return table


def _draw(y: np.ndarray, alpha: float, clients: int, rng: np.random.Generator) -> Partition:
    owner = np.empty(len(y), dtype=np.int64)
    for label in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == label))
        ends = np.cumsum(_proportions(alpha, clients, rng)) * len(rows)
        ends = np.floor(ends + rng.random()).astype(int)  # random rounding favours no client
        ends[-1] = len(rows)
        owner[rows] = np.searchsorted(ends, np.arange(len(rows)), side="right")
    return tuple(np.flatnonzero(owner == k) for k in range(clients))


def _proportions(alpha: float, clients: int, rng: np.random.Generator) -> np.ndarray:
    """A Dirichlet draw ``(K,)`` that stays a distribution where gamma variates underflow to zero.

    Gamma(a) has the law of Gamma(a + 1) * U^(1/a). Its logarithm times a stays finite for every a > 0, and
    only differences to the largest of them are divided by a again.
    """
    alpha = min(alpha, 1e12)  # equal shares far below one row
    scaled = alpha * np.log(rng.standard_gamma(alpha + 1.0, clients)) + np.log1p(-rng.random(clients))
    with np.errstate(over="ignore"):  # -inf is a share of zero
        weights = np.exp((scaled - scaled.max()) / alpha)
    return weights / weights.sum()


def _check_clients(clients: int) -> None:
    if clients < 1:
        raise ValueError(f"clients={clients}; want at least one")
