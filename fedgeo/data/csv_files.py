"""A machine's rows from a CSV file, by the rules that a saved detector reads lines by."""

import csv
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedgeo.data.streams import listed
from fedgeo.deploy.runtime import MISSING, SEPARATORS, TIME_NAMES

_MISSING = sorted({case(text) for text in MISSING for case in (str, str.upper, str.title)} | {"NaN"})


def read_csv(
    path: str | os.PathLike[str], *, time: str | None = None, columns: Sequence[str] | None = None
) -> pd.DataFrame:
    """Read a stream or table of numbers.

    The first line names the columns if anything in it is no number; else they are called ``0``, ``1``, ... A column
    called "time", "timestamp", "datetime", "date" or "ts" becomes the index: ISO 8601 or seconds; stamps without a zone
    are taken as UTC. An empty field, "nan", "na", "null" or "none" is a missing value.

    Args:
        path: of the file, comma separated.
        time: the name of the column of times, if it is another.
        columns: read these alone of the columns that the file names, if it names them all.

    Returns:
        ``(T, C)`` float64, NaN where a value is missing. ``attrs`` holds the stamps as the file has them
        (``"stamps"``) and the names of columns that were not read (``"ignored"``).

    Raises:
        FileNotFoundError: no such file.
        ValueError: names the line and column of what cannot be read.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is a folder; want one CSV file" if path.is_dir() else f"no file {path}"
        )
    names, lines, headed = _layout(path)
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{path}: several columns are called {listed(doubled, 5)}; want one name a column")
    found = _time_column(path, names, time)
    kept = [name for name in names if name != found]
    if columns is not None and set(columns) <= set(kept):
        kept = list(columns)
    frame = pd.read_csv(
        path, header=None, names=names, skiprows=int(headed), dtype={found: str} if found else None,
        usecols=[*kept, *([found] if found else [])], na_values=_MISSING, keep_default_na=False,
        encoding="utf-8-sig", skipinitialspace=True, low_memory=False,
    )  # fmt: skip
    values = {name: _numbers(path, name, frame[name], lines) for name in kept}
    if found is None:
        table = pd.DataFrame(values)
    else:
        stamps = frame[found].fillna("")
        table = pd.DataFrame(values, index=_times(path, stamps, lines))
        table.attrs["stamps"] = stamps.tolist()
    table.attrs["ignored"] = [name for name in names if name != found and name not in kept]
    return table


def _layout(path: Path) -> tuple[list[str], np.ndarray, bool]:
    """The columns' names, the line number of every row, and whether the file names its columns."""
    names: list[str] = []
    lines: list[int] = []
    headed = False
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, skipinitialspace=True)
            for fields in reader:
                if not fields:
                    continue
                if not names:
                    names = [field.strip() for field in fields]
                    line = ",".join(names)
                    if other := next((mark for mark in SEPARATORS if mark in line), None):
                        raise ValueError(
                            f"{path} is separated by {other!r}; want commas between fields and points in numbers: "
                            "save it so"
                        )
                    headed = not all(map(_is_number, names))
                    if headed:
                        continue
                if len(fields) != len(names):
                    raise ValueError(
                        f"{path}, line {reader.line_num}: {len(fields)} fields, want {len(names)} as in the first line"
                    )
                lines.append(reader.line_num)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no UTF-8 text ({error.reason}); save it as UTF-8") from error
    except csv.Error as error:
        raise ValueError(f"{path} cannot be read as comma separated text: {error}") from error
    if not names:
        raise ValueError(f"{path} is empty; want lines of numbers")
    return names if headed else [str(k) for k in range(len(names))], np.array(lines, dtype=np.int64), headed


def _is_number(text: str) -> bool:
    return text.lower() in MISSING or not np.isnan(pd.to_numeric(text, errors="coerce"))


def _time_column(path: Path, names: list[str], time: str | None) -> str | None:
    if time is not None and time not in names:
        raise ValueError(f"{path} has no column {time!r} for the times; it has {listed(names, 5)}")
    return time or next((name for name in names if name.lower() in TIME_NAMES), None)


def _times(path: Path, text: "pd.Series[str]", lines: np.ndarray) -> pd.DatetimeIndex:
    seconds = pd.to_numeric(text, errors="coerce")
    if seconds.notna().all():
        return pd.DatetimeIndex(pd.to_datetime(seconds, unit="s", utc=True), name=text.name)
    stamps = pd.to_datetime(text, errors="coerce", utc=True, format="ISO8601")
    if stamps.isna().any():
        row = int(np.flatnonzero(stamps.isna())[0])
        raise ValueError(
            f"{path}, line {lines[row]}: {text.iloc[row]!r} in column {text.name} is no time; want seconds or ISO "
            "8601, or leave the column out"
        )
    return pd.DatetimeIndex(stamps, name=text.name)


def _numbers(path: Path, name: str, column: "pd.Series[Any]", lines: np.ndarray) -> np.ndarray:
    values = pd.to_numeric(column, errors="coerce").to_numpy(np.float64)
    bad = np.isnan(values) & column.notna().to_numpy()
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"{path}, line {lines[row]}: {column.iloc[row]!r} in column {name} is not a number ({bad.sum()} such "
            "fields); leave the column out, or empty what is missing"
        )
    return values
