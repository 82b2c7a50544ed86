"""Federations of multivariate streams: named clients with a training stream, a test stream and labels.

Shapes: K clients, T time steps, C channels. Everything here is float64 numpy on the host; labels are 0 for
normal rows and 1 for anomalous ones, and no function of this module lets them touch a training stream.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedgeo.data.files import data_folder, existing

Clients = Mapping[str, Any] | Sequence[Any] | np.ndarray
"""One array ``(T, C)`` or data frame a client, by name or in order."""


@dataclass(frozen=True, eq=False)
class Streams:
    """A federation of streams; every mapping is keyed by client name, in the same order.

    Attributes:
        train: training streams ``(T, C)``, assumed normal.
        test: test streams ``(T, C)``; empty where there are none.
        labels: test labels ``(T,)`` of 0 and 1; empty where there are none.
        channels: the C channel names, the same for all clients.
        name: what to call the federation in tables.
    """

    train: dict[str, np.ndarray]
    test: dict[str, np.ndarray] = field(default_factory=dict)
    labels: dict[str, np.ndarray] = field(default_factory=dict)
    channels: tuple[str, ...] = ()
    name: str = "streams"

    @property
    def names(self) -> tuple[str, ...]:
        """The K client names."""
        return tuple(self.train)

    def __len__(self) -> int:
        return len(self.train)

    def select(self, names: Sequence[str]) -> "Streams":
        """The same federation with only the named clients, in the order given."""
        unknown = [name for name in names if name not in self.train]
        if unknown:
            raise ValueError(f"no client {listed(unknown)} in {self.name}; it has {listed(self.names)}")
        keep = [{n: part[n] for n in names if n in part} for part in (self.train, self.test, self.labels)]
        return replace(self, train=keep[0], test=keep[1], labels=keep[2])

    def summary(self) -> pd.DataFrame:
        """One row a client: training rows, test rows, anomalous rows and their share, anomalous segments."""
        records = {}
        for name in self.names:
            y = self.labels.get(name, np.zeros(0, dtype=np.int64))
            records[name] = {
                "train_rows": len(self.train[name]),
                "test_rows": len(self.test[name]) if name in self.test else 0,
                "anomalies": int(y.sum()),
                "anomaly_ratio": float(y.mean()) if len(y) else np.nan,
                "segments": int(np.sum(np.diff(y, prepend=0) == 1)),
            }
        return pd.DataFrame.from_dict(records, orient="index").rename_axis("client")


def from_arrays(
    train: Clients,
    test: Clients | None = None,
    labels: Clients | None = None,
    *,
    channels: Sequence[str] | None = None,
    name: str = "streams",
) -> Streams:
    """Check users' own clients and make a federation of them.

    Args:
        train: one ``(T, C)`` array or data frame a client, as a dict by client name or as a list (the clients
            are then called ``client-0``, ``client-1``, ...). Data frames must agree in their columns.
        test: the same clients' test streams, in the same form.
        labels: the same clients' test labels ``(T,)``, 0 for normal and 1 for anomalous.
        channels: channel names; by default the columns of the data frames, else ``0``, ``1``, ...
        name: what to call the federation.

    Raises:
        ValueError: names client, part, row and channel of what is wrong, and the remedy.
    """
    named_train = named(train, "train")
    if not named_train:
        raise ValueError("train holds no clients; pass one (T, C) array a client, as a dict or a list")
    first = next(iter(named_train))
    if channels is None:
        channels = _columns(named_train[first], _shape(named_train[first], first, "train"))
    channels = tuple(str(c) for c in channels)
    if doubled := [name for name, times in Counter(channels).items() if times > 1]:
        raise ValueError(f"several channels are called {listed(doubled)}; want one name a channel")

    def matrices(clients: dict[str, Any], part: str) -> dict[str, np.ndarray]:
        return {n: _matrix(value, channels, n, part) for n, value in clients.items()}

    checked_test: dict[str, np.ndarray] = {}
    checked_labels: dict[str, np.ndarray] = {}
    if test is not None:
        checked_test = matrices(_same_clients(named(test, "test"), named_train, "test"), "test")
    if labels is not None:
        if test is None:
            raise ValueError("labels without test streams; labels belong to test rows, so pass test too")
        given = _same_clients(named(labels, "labels"), named_train, "labels")
        checked_labels = {n: _label_vector(value, len(checked_test[n]), n) for n, value in given.items()}
    return Streams(matrices(named_train, "train"), checked_test, checked_labels, channels, name)


def smap(root: str | os.PathLike[str] | None = None) -> Streams:
    """Soil Moisture Active Passive: 54 clients of 25 channels, in the layout published with telemanom.

    Args:
        root: the folder that contains ``SMAP_MSL``, or that folder itself; by default ``$FEDGEO_DATA``.

    References:
        Hundman et al. (2018), Detecting Spacecraft Anomalies Using LSTMs and Nonparametric Dynamic
        Thresholding.
    """
    return _telemanom(root, "SMAP")


def msl(root: str | os.PathLike[str] | None = None) -> Streams:
    """Mars Science Laboratory: 27 clients of 55 channels; layout and ``root`` as for :func:`smap`."""
    return _telemanom(root, "MSL")


def smd(root: str | os.PathLike[str] | None = None) -> Streams:
    """Server Machine Dataset: one client a machine found, 38 channels, in the layout published with OmniAnomaly.

    The published set holds 28 machines; all that the folder holds are read, in the order of their numbers.

    Args:
        root: the folder that contains ``SMD``, or that folder itself; by default ``$FEDGEO_DATA``.

    References:
        Su et al. (2019), Robust Anomaly Detection for Multivariate Time Series through Stochastic Recurrent Neural
        Network.
    """
    folder = data_folder(root, "SMD", _OMNI)
    machines = {path.stem for part in _SMD_PARTS for path in (folder / part).glob("machine-*.txt")}
    if not machines:
        raise FileNotFoundError(f"no machine-*.txt in {folder}. {_SMD_LAYOUT}.")
    train: dict[str, np.ndarray] = {}
    test: dict[str, np.ndarray] = {}
    labels: dict[str, np.ndarray] = {}
    for name in sorted(machines, key=lambda machine: [int(n) for n in re.findall(r"\d+", machine)]):
        for part, into in zip(_SMD_PARTS, (train, test, labels), strict=True):
            into[name] = _text_file(folder / part / f"{name}.txt")
        if labels[name].shape[1] != 1:
            raise ValueError(
                f"client {name}, labels: got {labels[name].shape[1]} columns, want one label a row"
            )
        labels[name] = labels[name][:, 0]
    return from_arrays(train, test, labels, name="SMD")


def temporal_split(x: np.ndarray, validation: float = 0.15) -> tuple[np.ndarray, np.ndarray]:
    """Cut one stream ``(T, C)`` in time: the first rows to train on, the last share to validate on."""
    if not 0.0 <= validation < 1.0:
        raise ValueError(f"validation={validation}; want a share in [0, 1), such as 0.15")
    cut = round((1.0 - validation) * len(x))
    return x[:cut], x[cut:]


def split(
    clients: Mapping[str, np.ndarray], validation: float = 0.15
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """:func:`temporal_split` of every client, such as ``split(streams.train)``."""
    cut = {name: temporal_split(x, validation) for name, x in clients.items()}
    return {n: head for n, (head, _) in cut.items()}, {n: tail for n, (_, tail) in cut.items()}


_TELEMANOM = "khundman/telemanom on GitHub"
_TELEMANOM_LAYOUT = (
    "Want SMAP_MSL/labeled_anomalies.csv, SMAP_MSL/train/*.npy and SMAP_MSL/test/*.npy, "
    f"as published by {_TELEMANOM}"
)
_TELEMANOM_COLUMNS = ("chan_id", "spacecraft", "anomaly_sequences", "num_values")


_OMNI = "NetManAIOps/OmniAnomaly on GitHub"
_SMD_PARTS = ("train", "test", "test_label")
_SMD_LAYOUT = (
    "Want SMD/train/machine-*.txt, SMD/test/machine-*.txt and SMD/test_label/machine-*.txt, "
    f"as published by {_OMNI}"
)


def _telemanom(root: str | os.PathLike[str] | None, spacecraft: str) -> Streams:
    folder = data_folder(root, "SMAP_MSL", _TELEMANOM)
    table_path = existing(folder / "labeled_anomalies.csv", _TELEMANOM_LAYOUT)
    table = pd.read_csv(table_path)
    absent = [c for c in _TELEMANOM_COLUMNS if c not in table.columns]
    if absent:
        raise ValueError(f"{table_path} lacks the column {listed(absent)}; it has {listed(table.columns)}")
    table = table[table["spacecraft"] == spacecraft].sort_values("chan_id", kind="stable")
    if table.empty:
        raise ValueError(f"{table_path} names no client of spacecraft {spacecraft}; fetch it again")

    train, test, labels = {}, {}, {}
    for client, rows in table.groupby("chan_id", sort=False):
        name = str(client)
        train[name] = _array_file(folder / "train" / f"{name}.npy")
        test[name] = _array_file(folder / "test" / f"{name}.npy")
        labels[name] = _span_labels(rows, test[name], name)  # a client may stand twice: union of its spans
    width = next(iter(train.values())).shape[-1]
    channels = ("telemetry", *(f"command-{c}" for c in range(1, width)))
    return from_arrays(train, test, labels, channels=channels, name=spacecraft)


def _span_labels(rows: pd.DataFrame, x: np.ndarray, client: str) -> np.ndarray:
    y = np.zeros(len(x), dtype=np.int64)
    for spans, stated in zip(rows["anomaly_sequences"], rows["num_values"], strict=True):
        if stated != len(x):
            raise ValueError(
                f"client {client}: the test file has {len(x)} rows, labeled_anomalies.csv states {stated}; "
                "take both from the same release"
            )
        for start, stop in json.loads(spans):  # inclusive ends
            if not 0 <= start <= stop < len(x):
                raise ValueError(f"client {client}: span [{start}, {stop}] is outside its {len(x)} test rows")
            y[start : stop + 1] = 1
    return y


def _array_file(path: Path) -> np.ndarray:
    try:
        return np.load(existing(path, _TELEMANOM_LAYOUT), allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} is not a readable .npy file ({error}); fetch it again") from error


def _text_file(path: Path) -> np.ndarray:
    existing(path, _SMD_LAYOUT)
    try:
        return pd.read_csv(path, header=None, dtype=np.float64).to_numpy()
    except ValueError as error:  # pandas' parser errors are of this type
        raise ValueError(
            f"{path} is not a table of comma-separated numbers ({error}); fetch it again"
        ) from error


def named(clients: Clients, part: str) -> dict[str, Any]:
    """Clients by name; those of a list are called ``client-0``, ``client-1``, ...

    Raises:
        ValueError: doubled names, or the data of one client alone.
    """
    if isinstance(clients, Mapping):
        if doubled := [name for name, times in Counter(map(str, clients)).items() if times > 1]:
            raise ValueError(f"{part} has several clients called {listed(doubled)}; want one name a client")
        return {str(name): value for name, value in clients.items()}
    one_array = isinstance(clients, np.ndarray) and clients.ndim < (2 if part == "labels" else 3)
    if one_array or isinstance(clients, pd.DataFrame):
        raise ValueError(
            f"{part} is a single {type(clients).__name__}; want one a client, as a dict by name or a list"
        )
    return {f"client-{k}": value for k, value in enumerate(clients)}


def _same_clients(given: dict[str, Any], wanted: Mapping[str, Any], part: str) -> dict[str, Any]:
    missing = [n for n in wanted if n not in given]
    extra = [n for n in given if n not in wanted]
    if missing or extra:
        raise ValueError(
            f"{part} does not hold the clients of train: missing {listed(missing) or 'none'}, "
            f"unknown {listed(extra) or 'none'}"
        )
    return {n: given[n] for n in wanted}


def _columns(value: Any, shape: tuple[int, ...]) -> tuple[str, ...]:
    if isinstance(value, pd.DataFrame):
        return tuple(str(c) for c in value.columns)
    return tuple(str(c) for c in range(shape[1]))


def _shape(value: Any, client: str, part: str) -> tuple[int, ...]:
    shape = np.shape(value)
    if len(shape) != 2 or shape[1] == 0:
        hint = "; a single channel is x[:, None]" if len(shape) == 1 else ""
        raise ValueError(f"client {client}, {part}: got shape {shape}, want (T, C) with C >= 1{hint}")
    return shape


def _matrix(value: Any, channels: tuple[str, ...], client: str, part: str) -> np.ndarray:
    where = f"client {client}, {part}"
    shape = _shape(value, client, part)
    if shape[1] != len(channels):
        raise ValueError(
            f"{where}: got {shape[1]} channels, want {len(channels)} ({listed(channels)}); "
            "all clients must measure the same channels"
        )
    x = _frame_values(value, channels, where) if isinstance(value, pd.DataFrame) else np.asarray(value)
    if x.dtype.kind not in "biuf":
        raise ValueError(
            f"{where}: got values of type {x.dtype}, want numbers; convert them with astype(float)"
        )
    x = x.astype(np.float64)
    finite = np.isfinite(x)
    if not finite.all():
        row, column = np.argwhere(~finite)[0]
        raise ValueError(
            f"{where}: row {row}, channel {channels[column]} is {x[row, column]} ({np.sum(~finite)} such "
            "values in this stream); fill or drop them first, for example with DataFrame.ffill"
        )
    return x


def _frame_values(frame: pd.DataFrame, channels: tuple[str, ...], where: str) -> np.ndarray:
    columns = tuple(str(c) for c in frame.columns)
    if columns != channels:
        raise ValueError(
            f"{where}: columns are {listed(columns)}, want {listed(channels)} in this order; "
            "select them with frame[columns]"
        )
    numeric = [pd.api.types.is_numeric_dtype(kind) for kind in frame.dtypes]
    bad = [c for c, is_numeric in zip(columns, numeric, strict=True) if not is_numeric]
    if bad:
        raise ValueError(f"{where}: column {listed(bad)} is not numeric; drop it, or make it the index")
    return frame.to_numpy(dtype=np.float64, na_value=np.nan)


def _label_vector(value: Any, length: int, client: str) -> np.ndarray:
    y = np.asarray(value)
    where = f"client {client}, labels"
    if y.ndim != 1:
        raise ValueError(f"{where}: got shape {y.shape}, want (T,): one label a test row")
    if len(y) != length:
        raise ValueError(f"{where}: got {len(y)} labels for {length} test rows; want one a row")
    if y.dtype.kind not in "biuf" or not np.isin(y, (0, 1)).all():
        raise ValueError(f"{where}: got values {listed(np.unique(y))}, want 0 (normal) and 1 (anomalous)")
    return y.astype(np.int64)


def listed(items: Sequence[Any] | np.ndarray | pd.Index, limit: int = 6) -> str:
    """The first items separated by commas, and how many there are."""
    shown = ", ".join(str(item) for item in items[:limit])
    return shown + (f", ... ({len(items)} in all)" if len(items) > limit else "")
