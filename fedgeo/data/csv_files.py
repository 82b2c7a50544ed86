"""A machine's rows from a CSV file, by the rules that a saved detector reads lines by."""

import csv
import os
from pathlib import Path

import numpy as np
import pandas as pd

from fedgeo.deploy.runtime import MISSING, TIME_NAMES


def read_csv(path: str | os.PathLike[str], *, time: str | None = None) -> pd.DataFrame:
    """Read a stream or table of numbers.

    The first line names the columns if anything in it is no number; else they are called ``0``, ``1``, ... A column
    called "time", "timestamp", "datetime", "date" or "ts" becomes the index: ISO 8601 or seconds; stamps without a zone
    are taken as UTC. An empty field, "nan", "na", "null" or "none" is a missing value.

    Args:
        path: of the file, comma separated.
        time: the name of the column of times, if it is another.

    Returns:
        ``(T, C)`` float64, NaN where a value is missing.

    Raises:
        FileNotFoundError: no such file.
        ValueError: names the line and column of what cannot be read.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    names = _first_line(path)
    headed = not all(_is_number(name) for name in names)
    try:
        text = pd.read_csv(
            path, header=0 if headed else None, dtype=str, keep_default_na=False, encoding="utf-8-sig",
            skip_blank_lines=False, skipinitialspace=True,
        )  # fmt: skip
    except (pd.errors.ParserError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as comma separated text: {error}") from error
    text.columns = [str(name).strip() for name in (names if headed else text.columns)]
    if doubled := sorted({name for name in text.columns if list(text.columns).count(name) > 1}):
        raise ValueError(f"{path}: several columns are called {', '.join(doubled)}; want one name a column")
    first = 2 if headed else 1  # the line of the first row
    text = text[(text.fillna("") != "").any(axis=1)]
    lines = text.index.to_numpy() + first
    found = _time_column(path, list(text.columns), time)
    index = None if found is None else _times(path, text.pop(found), lines)
    values = {name: _numbers(path, name, text[name], lines) for name in text.columns}
    frame = pd.DataFrame(values, index=index)
    return frame if index is not None else frame.reset_index(drop=True)


def _first_line(path: Path) -> list[str]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        try:
            fields = next(csv.reader(file))
        except StopIteration:
            raise ValueError(f"{path} is empty; want lines of numbers") from None
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} cannot be read as text: {error}") from error
    return [field.strip() for field in fields]


def _is_number(text: str) -> bool:
    return text.strip().lower() in MISSING or not np.isnan(pd.to_numeric(text, errors="coerce"))


def _time_column(path: Path, names: list[str], time: str | None) -> str | None:
    if time is not None and time not in names:
        raise ValueError(f"{path} has no column {time!r} for the times; it has {', '.join(names)}")
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
            "8601, or name the column of times"
        )
    return pd.DatetimeIndex(stamps, name=text.name)


def _numbers(path: Path, name: str, text: "pd.Series[str]", lines: np.ndarray) -> np.ndarray:
    text = text.fillna("").str.strip()
    missing = text.str.lower().isin(MISSING).to_numpy()
    values = pd.to_numeric(text.mask(missing), errors="coerce").to_numpy(np.float64)
    bad = np.isnan(values) & ~missing
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"{path}, line {lines[row]}: {text.iloc[row]!r} in column {name} is not a number ({bad.sum()} such "
            "fields); leave the column out, or empty what is missing"
        )
    return values
