"""Pooled Server Metrics: one shared stream of 25 channels, cut into a federation.

The publisher has one training and one test stream, so who holds what is a choice. FedKAD (section VI-A1) cuts the
training stream "into 24 contiguous chunks ... which are then assigned to clients via Dirichlet(0.5) over the 25 feature
dimensions, so each client predominantly observes a different subset of channels", and tests all clients on the single
test stream. It does not say what a client sees of its other channels. The reading here: client k holds chunk k, draws
weights over the channels from a symmetric Dirichlet, and observes the fewest channels that carry 90 % of the weight;
the others stand still at their training mean, in training and in test. :func:`observed_channels` is the one place of
it, and ``partition="chunks"`` does without. Chunks are equally long, so the paper's spread of lengths does not occur.

Shapes: K clients, T time steps, C channels.

References:
    Abdulaal et al. (2021), Practical Approach to Asynchronous Multivariate Time Series Anomaly Detection and
    Localization.
"""

import os
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from fedgeo.data.streams import Streams, data_folder, from_arrays

Missing = Literal["ffill", "zero", "error"]
"""A missing value becomes the channel's last one before it (at the start: its first one after), 0, or an error."""

_PUBLISHER = "eBay/RANSynCoders on GitHub"
_LAYOUT = "Want PSM/train.csv, PSM/test.csv and PSM/test_label.csv"


class Pool(NamedTuple):
    """The published streams before anyone holds a part of them.

    Attributes:
        train: ``(T, C)`` training stream.
        test: ``(T, C)`` test stream.
        labels: ``(T,)`` test labels.
        filled: missing values that were filled, one row a channel, with the columns ``train`` and ``test``.
    """

    train: pd.DataFrame
    test: pd.DataFrame
    labels: np.ndarray
    filled: pd.DataFrame


def psm(
    root: str | os.PathLike[str] | None = None,
    *,
    clients: int = 24,
    partition: Literal["dirichlet", "chunks"] = "dirichlet",
    alpha: float = 0.5,
    coverage: float = 0.9,
    seed: int = 0,
    test: Literal["shared", "chunks"] = "shared",
    missing: Missing = "ffill",
) -> Streams:
    """Pooled Server Metrics as a federation of contiguous chunks.

    Args:
        root: the folder that contains ``PSM``, or that folder itself; by default ``$FEDGEO_DATA``.
        clients: K; the training stream is cut into as many chunks of equal length.
        partition: "dirichlet" lets every client observe its own subset of channels, "chunks" all of them.
        alpha: concentration of the Dirichlet over channels; the smaller, the fewer channels a client observes.
        coverage: share of its weight that a client's channels carry.
        seed: of the Dirichlet draw.
        test: every client is tested on the whole test stream, or on its own contiguous chunk of it.
        missing: what becomes of missing values, of which the training stream has some; :func:`psm_pool` counts them.
    """
    if partition not in ("dirichlet", "chunks") or test not in ("shared", "chunks"):
        raise ValueError(
            f'partition={partition!r}, test={test!r}; want "dirichlet" or "chunks", and "shared" or "chunks"'
        )
    pool = psm_pool(root, missing=missing)
    channels = list(pool.train.columns)
    trains = _chunks(pool.train.to_numpy(), clients)
    seen = np.ones((clients, len(channels)), dtype=bool)
    if partition == "dirichlet":
        seen = observed_channels(len(channels), clients, alpha, coverage=coverage, seed=seed)
    still = pool.train.mean().to_numpy()
    tests, labels = [pool.test.to_numpy()] * clients, [pool.labels] * clients
    if test == "chunks":
        tests, labels = _chunks(pool.test.to_numpy(), clients), _chunks(pool.labels, clients)
    names = [f"psm-{k:02d}" for k in range(clients)]
    return from_arrays(
        {n: np.where(seen[k], trains[k], still) for k, n in enumerate(names)},
        {n: np.where(seen[k], tests[k], still) for k, n in enumerate(names)},
        dict(zip(names, labels, strict=True)),
        channels=channels,
        name="PSM",
    )


def psm_pool(root: str | os.PathLike[str] | None = None, *, missing: Missing = "ffill") -> Pool:
    """The published training stream, test stream and labels, with missing values filled and counted."""
    if missing not in ("ffill", "zero", "error"):
        raise ValueError(f'missing={missing!r}; want "ffill", "zero" or "error"')
    folder = data_folder(root, "PSM", _PUBLISHER)
    train, test = (_measurements(folder / f"{part}.csv") for part in ("train", "test"))
    if list(train.columns) != list(test.columns):
        raise ValueError(
            f"train.csv has the channels {list(train.columns)[:3]}..., test.csv {list(test.columns)[:3]}...; "
            "take both from the same release"
        )
    label_table = _table(folder / "test_label.csv")
    if "label" not in label_table.columns:
        raise ValueError(
            f"test_label.csv has the columns {list(label_table.columns)}, want timestamp_(min),label"
        )
    if len(label_table) != len(test):
        raise ValueError(
            f"got {len(label_table)} labels for {len(test)} test rows; take both from the same release"
        )
    counts = {"train": train.isna().sum(), "test": test.isna().sum()}
    filled = pd.DataFrame(counts).rename_axis("channel")
    return Pool(
        _fill(train, missing, "train.csv"),
        _fill(test, missing, "test.csv"),
        label_table["label"].to_numpy(),
        filled,
    )


def observed_channels(
    channels: int, clients: int, alpha: float = 0.5, *, coverage: float = 0.9, seed: int = 0
) -> np.ndarray:
    """Which channels each client observes, ``(K, C)``: the fewest that carry ``coverage`` of its Dirichlet weights."""
    if not (np.isfinite(alpha) and alpha > 0):
        raise ValueError(f"alpha={alpha}; want a positive finite concentration, such as 0.5")
    if not 0.0 < coverage <= 1.0:
        raise ValueError(f"coverage={coverage}; want a share in (0, 1], such as 0.9")
    weights = np.random.default_rng(seed).dirichlet(np.full(channels, alpha), size=clients)
    falling = np.argsort(-weights, axis=1, kind="stable")
    before = np.cumsum(np.take_along_axis(weights, falling, axis=1), axis=1)
    before -= np.take_along_axis(weights, falling, axis=1)
    seen = np.zeros(weights.shape, dtype=bool)
    np.put_along_axis(seen, falling, before < coverage, axis=1)
    return seen


def _chunks(x: np.ndarray, clients: int) -> list[np.ndarray]:
    if not 1 <= clients <= len(x):
        raise ValueError(f"clients={clients}; want from 1 to {len(x)}, the rows of the stream that is cut")
    return np.array_split(x, clients)


def _measurements(path: Path) -> pd.DataFrame:
    table = _table(path)
    table = table.drop(columns=[c for c in table.columns if c.startswith("timestamp")])
    if table.empty:
        raise ValueError(f"{path} holds no measurements; fetch it again")
    text = [c for c in table.columns if not pd.api.types.is_numeric_dtype(table[c])]
    if text:
        raise ValueError(f"{path}: column {text[0]} holds text, want numbers or nothing; fetch it again")
    return table.astype(np.float64)


def _table(path: Path) -> pd.DataFrame:
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}. {_LAYOUT}, as published by {_PUBLISHER}.")
    try:
        return pd.read_csv(path)
    except ValueError as error:  # pandas' parser errors are of this type
        raise ValueError(f"{path} is not a readable table ({error}); fetch it again") from error


def _fill(table: pd.DataFrame, missing: Missing, name: str) -> pd.DataFrame:
    gaps = table.isna()
    if not gaps.any(axis=None):
        return table
    if missing == "error":
        row, column = np.argwhere(gaps.to_numpy())[0]
        raise ValueError(
            f"{name}: row {row}, channel {table.columns[column]} is missing ({int(gaps.sum().sum())} such values); "
            'fill them with missing="ffill" or "zero"'
        )
    if missing == "zero":
        return table.fillna(0.0)
    if empty := [c for c in table.columns if gaps[c].all()]:
        raise ValueError(
            f'{name}: channel {empty[0]} has no value at all; use missing="zero", or fetch it again'
        )
    return table.ffill().bfill()
