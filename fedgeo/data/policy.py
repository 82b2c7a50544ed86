"""What a user's stream or table must be like, and what is done about what is not: one place for all detectors.

    missing values          "error" names row and column, "ffill" and "mask" let them through as NaN
    infinite values         error that names row and column
    columns of a frame      compared by name and put in order; missing and unexpected ones are named
    columns of an array     taken by position; another number is an error that names those expected
    time stamps             out of order or doubled: error that names the place; a gap begins a new run of rows

Shapes: T time steps, C channels; a table's rows N and features F are treated alike. Everything is float64 on the host.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from fedgeo.data.streams import listed

Missing = Literal["error", "ffill", "mask"]
"""Refuse missing values; take the last value of the column; or that, and leave them out of the score."""

GAP = 1.5
"""Two rows are neighbours if they lie at most this many usual intervals apart."""

_TIMES = (pd.DatetimeIndex, pd.TimedeltaIndex, pd.PeriodIndex)


class Reading(NamedTuple):
    """A stream or table that was checked.

    Attributes:
        values: ``(T, C)`` finite numbers, NaN where one is missing.
        index: the data frame's; None for an array.
    """

    values: np.ndarray
    index: pd.Index | None  # type: ignore[assignment]  # the design's word, though tuples have a method of that name


def columns_of(clients: Mapping[str, Any]) -> tuple[str, ...]:
    """The column names of a federation: those of most of its data frames, else ``0``, ``1``, ... of its first array.

    Raises:
        ValueError: no client, no columns, or two of one name.
    """
    if not clients:
        raise ValueError(
            "there are no clients; pass one (T, C) array or data frame a client, as a dict or a list"
        )
    frames = [value for value in clients.values() if isinstance(value, pd.DataFrame)]
    if frames:
        orders = [tuple(map(str, frame.columns)) for frame in frames]
        common = Counter(map(frozenset, orders)).most_common(1)[0][0]  # of equally many the first
        columns = next(order for order in orders if frozenset(order) == common)
    else:
        name, value = next(iter(clients.items()))
        columns = tuple(map(str, range(_shape(value, f"client {name}", None)[1])))
    if doubled := [name for name, times in Counter(columns).items() if times > 1]:
        raise ValueError(f"several columns are called {listed(doubled)}; want one name a column")
    if not columns:
        raise ValueError("there are no columns; want at least one")
    return columns


def read(
    value: Any, columns: Sequence[str], where: str, *, missing: str = "error", ordered: bool = True
) -> Reading:
    """Check one stream or table.

    Args:
        value: array ``(T, C)`` or data frame.
        columns: the C names expected.
        where: what to call it in messages, such as "client pump-3".
        missing: "error", or anything else to let missing values through as NaN.
        ordered: whether rows stand in time order, so that time stamps are checked.

    Raises:
        ValueError: says what was got, what is wanted and what to do.
    """
    if isinstance(value, pd.DataFrame):
        x, index = _of_frame(value, columns, where), value.index
        if ordered:
            check_time(index, where)
    else:
        shape = _shape(value, where, columns)
        if shape[1] != len(columns):
            raise ValueError(
                f"{where}: got {shape[1]} columns, want {len(columns)} ({listed(columns)}) in this order"
            )
        x, index = _numbers(np.asarray(value), where), None
    if np.isinf(x).any():
        row, column = np.argwhere(np.isinf(x))[0]
        raise ValueError(
            f"{where}: {place(row, index)}, column {columns[column]} is {x[row, column]} ({np.isinf(x).sum()} "
            'infinite values in all); replace them, for example by missing values and missing="ffill" (--missing ffill)'
        )
    if missing == "error" and np.isnan(x).any():
        row, column = np.argwhere(np.isnan(x))[0]
        other = (
            'missing="ffill" or "mask" (fedgeo fit --missing ffill, or mask)'
            if ordered
            else 'missing="center"'
        )
        raise ValueError(
            f"{where}: {place(row, index)}, column {columns[column]} is missing ({np.isnan(x).sum()} missing values "
            f"in all); fill them, or fit again with {other}"
        )
    return Reading(x, index)


def check_time(index: pd.Index, where: str) -> None:
    """Raise ValueError for time stamps that are missing, doubled or out of order; other indexes are left alone."""
    if not isinstance(index, _TIMES):
        return
    if index.hasnans:
        row = int(np.flatnonzero(index.isna())[0])
        raise ValueError(f"{where}: row {row} has no time stamp; drop the row or repair the stamp")
    steps = _seconds(index)
    if (steps < 0).any():
        row = int(np.flatnonzero(steps < 0)[0]) + 1
        raise ValueError(
            f"{where}: time stamps are out of order, row {row} ({index[row]}) is earlier than row {row - 1} "
            f"({index[row - 1]}); sort the rows by time (in Python: frame.sort_index())"
        )
    if (steps == 0).any():
        row = int(np.flatnonzero(steps == 0)[0]) + 1
        raise ValueError(
            f"{where}: rows {row - 1} and {row} have the same time stamp {index[row]}; drop one (in Python: "
            "frame[~frame.index.duplicated()]), and keep the streams of several machines apart"
        )


def usual_interval(index: pd.Index | None) -> float | None:
    """Median number of seconds between rows; None without time stamps."""
    if not isinstance(index, _TIMES) or len(index) < 2:
        return None
    return float(np.median(_seconds(index)))


def run_starts(index: pd.Index | None, rows: int, interval: float | None) -> np.ndarray:
    """Numbers of the rows that begin a run, ``(runs,)``: row 0, and every row behind a gap.

    Args:
        index: of the rows.
        rows: T.
        interval: usual seconds between rows; None where that is not known, and so no gap either.
    """
    first = np.zeros(min(rows, 1), dtype=np.int64)
    if interval is None or not isinstance(index, _TIMES):
        return first
    return np.concatenate([first, np.flatnonzero(_seconds(index) > GAP * interval) + 1])


def fill_forward(x: np.ndarray, before: float = 0.0) -> np.ndarray:
    """``(T, C)`` with every NaN replaced by the column's last value, or by ``before`` where there is none yet."""
    rows = np.arange(len(x))[:, None]
    last = np.maximum.accumulate(np.where(np.isnan(x), -1, rows), axis=0)
    filled = np.take_along_axis(x, np.maximum(last, 0), axis=0) if len(x) else x
    return np.where(last >= 0, filled, before)


def place(row: int, index: pd.Index | None) -> str:
    """What to call a row: its number, and its time stamp if it has one."""
    return f"row {row}" + (f" ({index[row]})" if isinstance(index, _TIMES) else "")


def _shape(value: Any, where: str, columns: Sequence[str] | None) -> tuple[int, ...]:
    wanted = "(T, C)" if columns is None else f"(T, {len(columns)}), columns {listed(columns)}"
    try:
        shape = np.shape(value)
    except ValueError:
        raise ValueError(
            f"{where}: the rows differ in length; want an array or data frame {wanted}"
        ) from None
    if len(shape) == 1:
        raise ValueError(
            f"{where}: got one dimension, shape {shape}, want {wanted}; a single channel is x[:, None] or "
            "frame[[name]], a single row x[None]"
        )
    if len(shape) != 2:
        raise ValueError(f"{where}: got {_described(value, shape)}, want an array or data frame {wanted}")
    return shape


def _described(value: Any, shape: tuple[int, ...]) -> str:
    return f"shape {shape}" if shape else f"a {type(value).__name__}"


def _of_frame(frame: pd.DataFrame, columns: Sequence[str], where: str) -> np.ndarray:
    names = [str(c) for c in frame.columns]
    if doubled := [name for name, times in Counter(names).items() if times > 1]:
        raise ValueError(f"{where}: several columns are called {listed(doubled)}; want one name a column")
    lacking = [c for c in columns if c not in names]
    unexpected = [c for c in names if c not in columns]
    if lacking or unexpected:
        remedy = _one_is_unnamed(columns, names) or "Rename or drop them, in the file or the frame"
        raise ValueError(
            f"{where}: columns missing: {listed(lacking, 5) or 'none'}; unexpected: {listed(unexpected, 5) or 'none'}; "
            f"want {listed(columns, 5)}. {remedy}"
        )
    place = {name: k for k, name in enumerate(names)}
    frame = frame.iloc[:, [place[c] for c in columns]]
    numeric = [pd.api.types.is_numeric_dtype(kind) for kind in frame.dtypes]
    if bad := [c for c, is_numeric in zip(columns, numeric, strict=True) if not is_numeric]:
        raise ValueError(
            f"{where}: column {listed(bad)} is not numeric; drop it, convert it with astype(float), or make it the "
            "index if it holds time stamps"
        )
    return _numbers(frame.to_numpy(dtype=np.float64, na_value=np.nan), where)


def _one_is_unnamed(columns: Sequence[str], names: Sequence[str]) -> str:
    """What to do where rows with names meet columns without, or the reverse; empty for neither."""
    plain, numbered = ([*map(str, range(len(n)))] for n in (columns, names))
    if list(columns) == plain:
        return (
            "It seems that the columns have names here and had none in the fit: leave the first line of the file out, "
            "or fit again with names; an array goes by position"
        )
    if list(names) == numbered:
        return (
            "It seems that the columns have no names here: give the file a first line of names; an array goes by "
            "position"
        )
    return ""


def _numbers(x: np.ndarray, where: str) -> np.ndarray:
    if x.dtype.kind not in "biuf":
        raise ValueError(
            f"{where}: got values of type {x.dtype}, want numbers; convert them with astype(float)"
        )
    return x.astype(np.float64)


def _seconds(index: pd.Index) -> np.ndarray:
    """``(T - 1,)`` seconds from each row to the next."""
    stamps = index.to_timestamp() if isinstance(index, pd.PeriodIndex) else index
    return np.diff(stamps.to_numpy(dtype=f"{stamps.dtype.kind}8[ns]")).astype(np.int64) / 1e9
