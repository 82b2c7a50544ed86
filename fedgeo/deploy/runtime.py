"""Saved detectors, read and run with NumPy alone: this file is all that a device needs beside a detector's own.

    python runtime.py DETECTOR --client NAME < rows.csv

Higher scores are more anomalous, an alarm is a score strictly above the threshold. K clients, T time steps, C channels,
W window, D lifted dimension, r rank, H horizon, N rows, F features, M experts, d latent.
"""

import argparse
import csv
import hashlib
import io
import itertools
import json
import math
import os
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

FORMAT, VERSION = "fedgeo detector", 1
ABOUT = "detector.json"


def write(
    path: str | os.PathLike[str],
    about: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    *,
    form: str = FORMAT,
) -> Path:
    """Save a detector as one file, a zip archive of ``detector.json`` and one ``.npy`` an array; atomic.

    Args:
        path: of the file; one that is there is replaced if it is a detector's.
        about: what JSON can hold.
        arrays: of numbers or booleans, by name.
        form: what the file says that it is.

    Returns:
        The path.

    Raises:
        FileExistsError: there is something else.
    """
    path = Path(path)
    if path.exists() and not is_detector(path):
        raise FileExistsError(f"{path} is there and is no detector; choose another name")
    kept = {name: np.asarray(value, order="C") for name, value in arrays.items()}  # keeps 0-d arrays
    facts = {name: {"shape": a.shape, "dtype": a.dtype.str, "sha256": _sha256(a)} for name, a in kept.items()}
    text = json.dumps(
        {"format": form, "version": VERSION, **about, "arrays": facts}, indent=2, allow_nan=False
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(ABOUT, text + "\n")
            for name, array in kept.items():
                buffer = io.BytesIO()
                np.save(buffer, array, allow_pickle=False)
                archive.writestr(f"{name}.npy", buffer.getvalue())
        os.chmod(partial, 0o644)
        os.replace(partial, path)
    finally:
        Path(partial).unlink(missing_ok=True)
    return path


def read(path: str | os.PathLike[str], *, form: str = FORMAT) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What :func:`write` saved: the facts, and the arrays by name.

    Args:
        path: of the file.
        form: what it must be.

    Raises:
        FileNotFoundError: no file there.
        ValueError: no detector, another version, or a file that is damaged or was changed.
    """
    path = Path(path)
    if not path.is_file():
        folder = ": it is a folder, want the file that fit or save wrote" if path.is_dir() else ""
        raise FileNotFoundError(f"no detector at {path}{folder}")
    try:
        with zipfile.ZipFile(path) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
    except Exception as error:  # a damaged archive fails in as many ways as zipfile and zlib have
        raise ValueError(f"{path} is no detector or is damaged ({error}); copy it again") from error
    try:
        about = json.loads(members.pop(ABOUT))
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path} is no detector: it has no readable {ABOUT}") from error
    if not isinstance(about, dict) or about.get("format") != form:
        said = about.get("format") if isinstance(about, dict) else None
        raise ValueError(f"{path} is no {form}: its {ABOUT} says {said!r}")
    if about.get("version") != VERSION:
        raise ValueError(
            f"{path} has version {about.get('version')!r} of the format, this fedgeo reads version {VERSION}; "
            "save it again with this one, or install the one that wrote it"
        )
    facts = about.get("arrays")
    if not isinstance(facts, dict) or {f"{name}.npy" for name in facts} != set(members):
        raise ValueError(f"{path} is damaged: its arrays are not those that {ABOUT} lists; copy it again")
    arrays = {}
    for name, want in facts.items():
        try:
            array = np.load(io.BytesIO(members[f"{name}.npy"]), allow_pickle=False)
        except Exception as error:  # likewise
            raise ValueError(f"{path}, array {name}, is damaged ({error}); copy it again") from error
        got = {"shape": list(array.shape), "dtype": array.dtype.str, "sha256": _sha256(array)}
        if got != want:
            raise ValueError(
                f"{path}, array {name}: it has {got}, {ABOUT} says {want}; one was changed, so copy the detector again"
            )
        arrays[name] = array
    return about, arrays


def is_detector(path: str | os.PathLike[str]) -> bool:
    """Whether there is a detector's file, of any version."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return ABOUT in archive.namelist()


def _sha256(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def load(path: str | os.PathLike[str]) -> "StreamDetector | RowDetector":
    """The detector of a file: a :class:`StreamDetector` of FedKAD, or a :class:`RowDetector` of Geodesic-SVDD.

    Raises:
        FileNotFoundError: no file there.
        ValueError: no detector, another version, a file that is damaged or was changed, or arrays that do not fit.
    """
    about, arrays = read(path)
    kinds: dict[Any, type[StreamDetector] | type[RowDetector]] = {
        "fedkad": StreamDetector,
        "geodesic-svdd": RowDetector,
    }
    kind = kinds.get(about.get("method"))
    if kind is None:
        raise ValueError(
            f"{path} is by method {about.get('method')!r}; this runtime knows {', '.join(kinds)}"
        )
    try:
        return kind(about, arrays)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} lacks what a detector by {about['method']} needs: {error}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


HUGE = 1e18
"""Bound on scaled values where there is no other: beyond it float32 squares overflow, and an alarm would be NaN."""

GAP = 1.5
"""A step in time of more than this many intervals is a gap."""

BLOCK = 4096
"""Rows scaled, or scored by an encoder, at a time; this bounds memory and changes no result."""

ROOM = 2**22
"""Float32 numbers that a stream's scores may take beside its scaled rows: as many rows are scored at a time as fit."""


class LateRowError(ValueError):
    """A row whose time is not after the last one's."""


class _Client(NamedTuple):
    """What scoring takes of one client, laid out for the arithmetic.

    Attributes:
        center: ``(C,)``.
        scale: ``(C,)``.
        readout: ``(r, n)``, what ``basis' Phi(t)`` says of the n entries of Phi(t+1) that count.
        operator: ``(r, r)``, transposed.
        precision: ``(n,)`` one over the variance of each entry; None where no score divides by it.
        threshold: NaN for none.
    """

    center: np.ndarray
    scale: np.ndarray
    readout: np.ndarray
    operator: np.ndarray
    precision: np.ndarray | None
    threshold: float


class StreamDetector:
    """FedKAD's detectors of K clients: scores of streams, whole or row by row.

    Attributes:
        about: the facts of the file.
        settings: the estimator's.
        columns: the C channels' names.
        clients: the K clients' names.
        window: W.
        horizon: H.
        warm_up: rows at the start of a stream, and after a gap, whose score is NaN: W - 1 + H.
    """

    def __init__(self, about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]):
        self.about, self.settings = dict(about), dict(about["settings"])
        self.columns, self.clients = tuple(about["columns"]), tuple(about["clients"])
        settings, channels, count = self.settings, len(self.columns), len(self.clients)
        self.window, self.horizon = _positive(settings, "window"), _positive(settings, "horizon")
        self.warm_up = self.window - 1 + self.horizon
        self._width = _positive(settings, "smoothing")
        self._full = _choice(settings, "residual", "newest", "full") == "full"
        self._log = (scaled := _choice(settings, "score_scale", "none", "variance", "log")) == "log"
        self._missing = _choice(settings, "missing", "error", "ffill", "mask")
        self._clip, self._interval = bound(settings), settings.get("interval")

        wide = self.window * channels
        size, rank = arrays["lift_weight"].shape[0], arrays["basis"].shape[-1]
        entries = wide + size if self._full else channels
        wanted = {
            "center": (count, channels),
            "scale": (count, channels),
            "lift_weight": (size, self.window, channels),
            "lift_bias": (size,),
            "basis": (wide + size, rank),
            "operator": (count, rank, rank),
            "threshold": (count,),
        }
        if "readout" in arrays or not self._full:
            wanted["readout"] = (count, entries, rank)
        if scaled != "none":
            wanted["variance"] = (count, entries)
        _check_shapes(arrays, wanted)
        basis = arrays["basis"].astype(np.float32)
        weight = arrays["lift_weight"].reshape(size, wide)
        # One product reads the window for both: the window's part of basis' Phi, and the lift before tanh.
        self._project = np.ascontiguousarray(np.concatenate([basis[:wide], weight.T], axis=1), np.float32)
        self._bias = arrays["lift_bias"].astype(np.float32)
        self._fold = np.ascontiguousarray(basis[wide:])
        self._basis, self._arrays, self._scaled = basis, dict(arrays), scaled != "none"

    def threshold(self, client: str | None = None) -> float:
        """Above which a client's score is an alarm; NaN if it has none."""
        return float(self._arrays["threshold"][self._index(client)])

    def alarms(self, scores: np.ndarray, client: str | None = None) -> np.ndarray:
        """Which of a client's scores are alarms, boolean; never one that is NaN."""
        return np.asarray(scores) > self.threshold(client)

    def score(self, rows: Any, client: str | None = None, times: Any = None) -> np.ndarray:
        """Scores of a client's stream.

        Args:
            rows: ``(T, C)`` in the units of the training data and in time order; a data frame's columns must be
                :attr:`columns`.
            client: whose; may be left out where there is only one.
            times: ``(T,)`` numbers (seconds), datetimes or ISO 8601 texts; a step of more than 1.5 times the training's
                interval starts the window anew.

        Returns:
            ``(T,)`` float64, smoothed; NaN for the first :attr:`warm_up` rows and, where missing values are masked, for
            rows of which nothing was observed.

        Raises:
            LateRowError: times that are not increasing.
            ValueError: an unknown client, wrong columns, or missing values where they are an error.
        """
        return self._scores(rows, client, times, parts=False)

    def contributions(self, rows: Any, client: str | None = None, times: Any = None) -> np.ndarray:
        """The parts of :meth:`score` by channel, to tell which sensors caused an alarm.

        Args:
            rows: as for the score.
            client: likewise.
            times: likewise.

        Returns:
            ``(T, C + 1)``, rows that add up to the score; the last column is the lift's part, which belongs to no
            single channel and is 0 for ``residual="newest"``.
        """
        return self._scores(rows, client, times, parts=True)

    def stream(self, client: str | None = None) -> "Stream":
        """Scores row by row, equal to those of the whole stream."""
        return Stream(self, self._client(client))

    def _scores(self, rows: Any, client: str | None, times: Any, parts: bool) -> np.ndarray:
        values, own = matrix(rows, self.columns), self._client(client)
        x, observed = self._complete(values, own)
        steps, channels = values.shape
        # Masked values are left out of the score channel by channel.
        apart = parts or (observed is not None and self._missing == "mask")
        raw = np.full((steps, channels + 1) if apart else (steps, 1), np.nan)
        bounds = self._runs(times, steps)
        with np.errstate(over="ignore"):
            for start, stop in itertools.pairwise(bounds):
                self._fold_errors(x[start:], stop - start, own, raw[start:stop])
        if apart and observed is not None and self._missing == "mask":
            raw = self._only_observed(raw, observed)
        if apart and not parts:
            raw = raw.sum(axis=1, keepdims=True)
        for start, stop in itertools.pairwise(bounds):
            raw[start:stop] = _smooth(raw[start:stop], self._width)
        return raw if parts else raw[:, 0]

    def _fold_errors(self, x: np.ndarray, steps: int, own: _Client, out: np.ndarray) -> None:
        """Mean over the horizon of the errors that one run's rows count, ``out (T, 1)``, or by channel ``(T, C + 1)``.

        Args:
            x: the run's scaled rows, followed by at least W more of any value.
            steps: T of the run.
            own: the client.
            out: what to fill; warm-up is left as it is.
        """
        window, horizon, wide = self.window, self.horizon, len(self._project)
        channels, rank = x.shape[1], len(own.operator)
        count = steps - self.warm_up
        if count <= 0:
            return
        more = (
            horizon if self._full else 0
        )  # lifted rows beyond the last prediction that are compared with it
        columns = self._project.shape[1]
        block = min(max(ROOM // (columns + own.readout.shape[1]), 1), count)
        groups = -(-(block + more) // window)
        product = np.empty((groups, window, columns), np.float32)
        errors = np.empty((block, own.readout.shape[1]), np.float32)
        row, item = x.strides
        for first in range(0, count, block):
            n = min(block, count - first)
            groups = -(-(n + more) // window)
            # Windows that start W rows apart do not overlap: each of these W matrices is a view of the stream itself.
            apart = as_strided(x[first:], (window, groups, wide), (row, window * row, item), writeable=False)
            np.matmul(apart, self._project, out=product[:groups].transpose(1, 0, 2))
            hidden = product.reshape(-1, columns)[: n + more]
            lifted = hidden[:, rank:]
            lifted += self._bias
            np.tanh(lifted, out=lifted)
            state = hidden[:n, :rank] + lifted[:n] @ self._fold
            total: np.ndarray | float = 0.0
            for h in range(1, horizon + 1):
                error = np.matmul(state, own.readout, out=errors[:n])
                if self._full:
                    past = as_strided(x[first + h :], (n, wide), (row, item), writeable=False)
                    np.subtract(past, error[:, :wide], out=error[:, :wide])
                    np.subtract(lifted[h : h + n], error[:, wide:], out=error[:, wide:])
                else:
                    newest = first + window - 1 + h
                    np.subtract(x[newest : newest + n], error, out=error)
                total = total + self._reduce(self._rescale(error, own), channels, out.shape[1] > 1)
                if h < horizon:
                    state = state @ own.operator
            at = first + self.warm_up
            out[at : at + n] = total / horizon

    def _rescale(self, errors: np.ndarray, own: _Client) -> np.ndarray:
        """What each entry adds to the score, in place of its error."""
        np.multiply(errors, errors, out=errors)
        if own.precision is not None:
            np.multiply(errors, own.precision, out=errors)
        return np.log1p(errors, out=errors) if self._log else errors

    def _reduce(self, parts: np.ndarray, channels: int, by_channel: bool) -> np.ndarray:
        """Sums ``(n, 1)`` of the entries ``(n, ...)``, or by channel, ``(n, C + 1)``."""
        if not by_channel:
            return parts.sum(axis=1, keepdims=True)
        wide = len(self._project) if self._full else channels
        known = parts[:, :wide].reshape(len(parts), -1, channels).sum(axis=1)
        return np.concatenate([known, parts[:, wide:].sum(axis=1, keepdims=True)], axis=1)

    def _only_observed(self, parts: np.ndarray, observed: np.ndarray) -> np.ndarray:
        """Parts ``(..., C + 1)`` of the observed channels, in place of all; NaN where there are none."""
        seen = observed.sum(axis=-1, keepdims=True)
        share = np.where(seen > 0, observed.shape[-1] / np.maximum(seen, 1), np.nan)
        lift = np.where(seen > 0, parts[..., -1:], np.nan)
        gone = np.where(np.isnan(parts[..., :-1]), np.nan, 0.0)  # the warm-up's
        return np.concatenate([np.where(observed, parts[..., :-1] * share, gone * share), lift], axis=-1)

    def _complete(self, rows: np.ndarray, own: _Client) -> tuple[np.ndarray, np.ndarray | None]:
        """Scaled float32 rows with missing ones filled and zeros behind, and what was observed (None: everything)."""
        steps, channels = rows.shape
        x = np.zeros((steps + self.window, channels), np.float32)
        observed, last = None, np.zeros(channels, np.float32)
        for first in range(0, steps, BLOCK):
            block = rows[first : first + BLOCK]
            part = x[first : first + len(block)]
            part[:] = standardise(block, own.center, own.scale, self._clip)
            if (missing := np.isnan(part)).any():
                self._refuse_missing(missing, first)
                if observed is None:
                    observed = np.ones(rows.shape, bool)
                observed[first : first + len(block)] = ~missing
                part[0] = np.where(missing[0], last, part[0])
                since = np.where(missing, 0, np.arange(len(block))[:, None])
                part[:] = np.take_along_axis(part, np.maximum.accumulate(since, axis=0), axis=0)
            last = part[-1]
        return x, observed

    def _refuse_missing(self, missing: np.ndarray, first: int | None) -> None:
        """Raise if missing values are an error; ``missing (n, C)``, its first row the stream's ``first``."""
        if self._missing != "error":
            return
        row, column = np.argwhere(missing)[0]
        where = "" if first is None else f"row {first + row}, "
        raise ValueError(
            f"{where}column {self.columns[column]!r}: a value is missing (NaN); fill it, or fit again with "
            'missing="ffill" or "mask" (fedgeo fit --missing ffill, or mask)'
        )

    def _runs(self, times: Any, steps: int) -> list[int]:
        """Where the runs between gaps begin, and the end."""
        if times is None:
            return [0, steps]
        seconds = _seconds(times)
        if seconds.shape != (steps,):
            raise ValueError(f"got times of shape {seconds.shape} for {steps} rows; want one a row")
        if not np.isfinite(seconds).all():
            raise ValueError(f"row {int(np.argmin(np.isfinite(seconds)))} has no time")
        gaps = np.diff(seconds)
        if (gaps <= 0).any():
            row = int(np.argmax(gaps <= 0)) + 1
            raise LateRowError(
                f"row {row} is not later than the row before it; sort by time and drop duplicates"
            )
        if self._interval is None:
            return [0, steps]
        return [0, *(np.flatnonzero(gaps > GAP * self._interval) + 1).tolist(), steps]

    def _index(self, client: str | None) -> int:
        if client is None and len(self.clients) == 1:
            return 0
        if client not in self.clients:
            what = (
                "name one of this detector's clients" if client is None else f"there is no client {client!r}"
            )
            raise ValueError(f"{what}: {_listed(self.clients)}")
        return self.clients.index(client)

    def _client(self, client: str | None) -> _Client:
        k, arrays = self._index(client), self._arrays
        operator = arrays["operator"][k].astype(np.float32)
        readout = arrays["readout"][k].astype(np.float32) if "readout" in arrays else self._basis @ operator
        variance = arrays["variance"][k].astype(np.float64) if self._scaled else None
        return _Client(
            arrays["center"][k],
            arrays["scale"][k],
            np.ascontiguousarray(readout.T),
            np.ascontiguousarray(operator.T),
            None if variance is None else (1 / variance).astype(np.float32),
            float(arrays["threshold"][k]),
        )


class Stream:
    """A client's stream, row by row: O(d_lift W C + H D r) arithmetic a row, and memory that does not grow.

    Attributes:
        restarted: whether the last row came after a gap, and began a window anew.
    """

    def __init__(self, detector: StreamDetector, own: _Client):
        self._detector, self._own = detector, own
        channels, horizon, rank = len(detector.columns), detector.horizon, len(own.operator)
        # Every row is written twice, W rows apart, so that the last W always stand together.
        self._ring = np.zeros((2 * detector.window, channels), np.float32)
        self._flat = self._ring.reshape(-1)
        self._states = np.zeros((horizon, rank), np.float32)  # newest first, carried on to the next row
        self._open = np.zeros((horizon, channels + 1))  # errors so far of the predictions from these states
        self._recent = np.full((detector._width, channels + 1), np.nan)
        self._last = np.zeros(channels, np.float32)
        self._time, self._lost, self.restarted = math.nan, 0, False
        self._begin()

    def _begin(self) -> None:
        self._seen = self._at = self._slot = 0
        self._whole = math.inf  # rows since the last one that was filled in
        self._states[:], self._open[:], self._recent[:] = 0, 0, np.nan

    @property
    def filled(self) -> bool:
        """Whether the last row's score rests on a value that was filled in, for one missing or a row lost."""
        return self._whole < self._detector.warm_up + self._detector._width

    def update(self, row: Any, time: Any = None) -> tuple[float, bool]:
        """Take in one row.

        Args:
            row: ``(C,)`` in the units of the training data; NaN is a missing value.
            time: a number (seconds), a datetime or an ISO 8601 text; needed to see gaps.

        Returns:
            The smoothed score, NaN while the window fills, and whether it is an alarm.

        Raises:
            LateRowError: a time that is not after the last row's; the stream is as it was before the call.
            ValueError: a row of another length, or a missing value where it is an error; likewise.
        """
        own, detector = self._own, self._detector
        values = np.asarray(row, np.float64)
        if values.shape != own.center.shape:
            raise ValueError(f"a row has shape {values.shape}, want the {len(own.center)} columns' values")
        scaled = standardise(values, own.center, own.scale, detector._clip)
        missing = np.isnan(scaled)
        some = bool(missing.any())
        if some:
            detector._refuse_missing(missing[None], None)
        self._advance(time)
        self._whole = 0 if some else self._whole + 1
        if some:
            np.copyto(scaled, self._last, where=missing)
        return self._push(scaled, ~missing if some and detector._missing == "mask" else None)

    def skip(self) -> tuple[float, bool]:
        """Count a row that was lost: the window goes on from the last values, and the row's score is NaN.

        A window's length of lost rows in a row starts the window anew: there is nothing left to predict from.
        """
        self.restarted = False
        self._lost += 1
        if self._seen and self._lost >= self._detector.window:
            self._begin()
        if self._seen:
            self._whole = 0
            self._push(self._last, np.zeros(len(self._last), bool))
        return math.nan, False

    def contributions(self) -> np.ndarray:
        """The parts of the last score by channel, ``(C + 1,)``; see :meth:`StreamDetector.contributions`."""
        known = self._recent[~np.isnan(self._recent[:, -1])]
        if np.isnan(self._recent[self._slot - 1, -1]):
            return np.full(self._recent.shape[1], np.nan)
        return known.mean(axis=0)

    def _advance(self, time: Any) -> None:
        self.restarted = False
        if time is not None:
            now, interval = _second(time), self._detector._interval
            if now <= self._time:
                raise LateRowError(
                    f"time {time} is not after the last row's; rows must come in the order of time"
                )
            if interval is not None and now - self._time > (GAP + self._lost) * interval:
                self._begin()
                self.restarted = True
            self._time = now
        self._lost = 0

    def _push(self, row: np.ndarray, observed: np.ndarray | None) -> tuple[float, bool]:
        """Take in a complete scaled row, of which only what was observed counts (None: everything)."""
        own, detector, ring = self._own, self._detector, self._ring
        window, channels = detector.window, len(row)
        rank = self._states.shape[1]
        self._last = row
        ring[self._at] = ring[self._at + window] = row
        self._at += 1
        z = self._flat[self._at * channels : (self._at + window) * channels]
        if self._at == window:
            self._at = 0
        hidden = z @ detector._project
        lifted = np.tanh(hidden[rank:] + detector._bias)

        errors = self._states @ own.readout
        if detector._full:
            np.subtract(z, errors[:, : len(z)], out=errors[:, : len(z)])
            np.subtract(lifted, errors[:, len(z) :], out=errors[:, len(z) :])
        else:
            np.subtract(row, errors, out=errors)
        self._open += detector._reduce(detector._rescale(errors, own), channels, True)
        self._seen += self._seen < detector.warm_up + 1
        parts = self._open[-1] / (detector.horizon if self._seen > detector.warm_up else math.nan)
        if observed is not None:
            parts = detector._only_observed(parts, observed)
        self._states[1:] = self._states[:-1] @ own.operator
        self._states[0] = hidden[:rank] + lifted @ detector._fold
        self._open[1:] = self._open[:-1]
        self._open[0] = 0

        self._recent[self._slot] = parts
        self._slot = (self._slot + 1) % len(self._recent)
        if math.isnan(parts[-1]):
            return math.nan, False
        sums = self._recent.sum(axis=1)
        known = sums[~np.isnan(sums)]
        score = float(known.sum()) / len(known)
        return score, score > own.threshold


class RowDetector:
    """Geodesic-SVDD's product of M experts: scores of rows, each by itself.

    Attributes:
        about: the facts of the file.
        settings: the estimator's.
        columns: the F features' names.
        clients: the K clients' names.
    """

    def __init__(self, about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]):
        self.about, self.settings = dict(about), dict(about["settings"])
        self.columns, self.clients = tuple(about["columns"]), tuple(about["clients"])
        _choice(self.settings, "encoder", "spherical")
        self._missing = str(self.settings.get("missing", "error"))
        self._clip, self._blocks = bound(self.settings), _positive(self.settings, "blocks", least=0)
        features, latent = len(self.columns), arrays["anchor"].shape[-1]
        experts, _, width = arrays["params.Dense_0.kernel"].shape
        wanted: dict[str, tuple[int, ...]] = {
            "center": (features,),
            "scale": (features,),
            "anchor": (latent,),
            "threshold": (len(self.clients),),
            "threshold_all": (),
            "params.Dense_0.kernel": (experts, features, width),
            "params.Dense_0.bias": (experts, width),
            "params.Dense_1.kernel": (experts, width, latent),
        }
        for block in range(self._blocks):
            name = f"params.ResidualBlock_{block}"
            for part in ("LayerNorm_0.scale", "LayerNorm_0.bias", "Dense_0.bias", "Dense_1.bias"):
                wanted[f"{name}.{part}"] = (experts, width)
            wanted[f"{name}.Dense_0.kernel"] = wanted[f"{name}.Dense_1.kernel"] = (experts, width, width)
        _check_shapes(arrays, wanted)
        self._arrays = dict(arrays)
        self._experts = [
            {n: a[m].astype(np.float64) for n, a in arrays.items() if n.startswith("params.")}
            for m in range(experts)
        ]
        self._anchor = arrays["anchor"].astype(np.float64)

    def threshold(self, client: str | None = None) -> float:
        """Above which a score is an alarm: of a client, or of nobody; NaN if there is none."""
        if client is None:
            return float(self._arrays["threshold_all"])
        if client not in self.clients:
            raise ValueError(
                f"no client {client!r} in this detector; its clients are {_listed(self.clients)}"
            )
        return float(self._arrays["threshold"][self.clients.index(client)])

    def alarms(self, scores: np.ndarray, client: str | None = None) -> np.ndarray:
        """Which scores are alarms, boolean; never one that is NaN."""
        return np.asarray(scores) > self.threshold(client)

    def score(self, rows: Any, client: str | None = None, times: Any = None) -> np.ndarray:
        """Scores of rows: the sum over experts of ``log(1 + |phi(x) - c|^2)``, the same for all clients.

        Args:
            rows: ``(N, F)`` in the units of the training data; a data frame's columns must be :attr:`columns`.
            client: checked, and otherwise of no matter: clients differ in their thresholds.
            times: of no matter either.

        Returns:
            ``(N,)`` float64; NaN for rows with a missing value, where that is neither an error nor filled ("center").

        Raises:
            ValueError: an unknown client, wrong columns, or missing values where they are an error.
        """
        del times
        self.threshold(client)
        values = matrix(rows, self.columns)
        missing = np.isnan(values)
        if self._missing == "error" and missing.any():
            row, column = np.argwhere(missing)[0]
            raise ValueError(
                f"row {row}, column {self.columns[column]!r}: a value is missing (NaN); "
                'fill it, or fit again with missing="center"'
            )
        scores = np.zeros(len(values))
        for first in range(0, len(values), BLOCK):
            block = values[first : first + BLOCK]
            x = standardise(block, self._arrays["center"], self._arrays["scale"], self._clip).astype(
                np.float64
            )
            if self._missing == "center":
                x = np.where(np.isnan(x), 0.0, x)
            for expert in self._experts:
                gap = self._embed(expert, x) - self._anchor
                scores[first : first + BLOCK] += np.log1p(np.sum(gap * gap, axis=1))
        return scores

    def stream(self, client: str | None = None) -> "RowStream":
        """Scores row by row, for whoever reads a stream of them."""
        return RowStream(self, client)

    def _embed(self, expert: Mapping[str, np.ndarray], x: np.ndarray) -> np.ndarray:
        """Rows ``(N, F)`` to the unit sphere, ``(N, d)``; what ``fedgeo.models.encoder`` does without dropout.

        In float64: a trained encoder maps normal rows so near the centre that float32 leaves five digits of the score.
        """

        def dense(name: str, x: np.ndarray) -> np.ndarray:
            return x @ expert[f"params.{name}.kernel"] + expert[f"params.{name}.bias"]

        h = dense("Dense_0", x)
        for i in range(self._blocks):
            block = f"ResidualBlock_{i}"
            norm = {part: expert[f"params.{block}.LayerNorm_0.{part}"] for part in ("scale", "bias")}
            path = dense(f"{block}.Dense_0", _layer_norm(h) * norm["scale"] + norm["bias"])
            h = h + dense(f"{block}.Dense_1", _gelu(path))
        z = h @ expert["params.Dense_1.kernel"]
        size = np.max(np.abs(z), axis=1, keepdims=True)
        pole = np.eye(1, z.shape[1])  # for a row at 0, to which all points are equally near
        z = np.where(size == 0, pole, z / np.where(size == 0, 1, size))
        return z / np.sqrt(np.sum(z * z, axis=1, keepdims=True))


class RowStream:
    """Rows of a table as they come, in the form of :class:`Stream`; rows depend on nothing before them."""

    restarted = filled = False

    def __init__(self, detector: RowDetector, client: str | None):
        self._detector, self._threshold = detector, detector.threshold(client)

    def update(self, row: Any, time: Any = None) -> tuple[float, bool]:
        """The score of a row ``(F,)``, and whether it is an alarm."""
        del time
        score = float(self._detector.score(np.asarray(row, np.float64)[None])[0])
        return score, score > self._threshold

    def skip(self) -> tuple[float, bool]:
        """A row that was lost: nothing."""
        return math.nan, False

    def contributions(self) -> np.ndarray:
        """Of no channel: an encoder's score does not split."""
        return np.zeros(len(self._detector.columns) + 1)


def watch(
    lines: Iterable[str],
    detector: StreamDetector | RowDetector,
    client: str | None = None,
    *,
    time: str | None = None,
    style: str = "csv",
    tally: dict[str, int] | None = None,
    on_note: Callable[[str], object] | None = None,
) -> Iterator[str]:
    """Scores of rows as they come, as lines of text: one out for every line in, and none lost.

    The first line may name the columns: they are then found by name, in any order, and others are left alone. Without
    names the order is the detector's. A column of times is found by the name "time", "timestamp", "datetime", "date" or
    "ts", or is the first one where there is one more than the detector's. An empty field, "nan", "na", "null" or "none"
    is a missing value. Empty lines and names that come again are passed over.

    A row that is not sent is a gap, which times tell: the window starts anew, without a score until it is full. A line
    that cannot be read, or with a missing value where that is an error, is reported in the column ``note`` and counts
    as a lost row: the last values stand in for it, so that later rows keep their place and one bad line does not blind
    the detector for a window's length; its own score is empty and it never is an alarm, the next line has a score. As
    many in a row as the window is long start the window anew. A line whose time is not after the last one's is reported
    and stands for nothing: it is one too many.

    Args:
        lines: CSV; an open file, or anything else that gives lines.
        detector: from :func:`load`.
        client: whose rows they are.
        time: the name of the column of times, if it is another.
        style: of what comes out, ``"csv"`` or ``"json"`` (one object a line, null for no score).
        tally: counts ``rows``, those ``scored``, ``alarms``, lines ``unread`` and scores that rest on
            values ``filled`` in.
        on_note: called with what concerns all lines, such as columns that are ignored.

    Yields:
        Lines without their end: the header of the CSV, then ``row`` (from 0), ``time`` as it was given, ``score``,
        ``alarm`` (0 or 1), ``channels`` that an alarm is due to, the largest part first, and ``note``.

    Raises:
        ValueError: an unknown client or style, or names among which one of the detector's is missing.
    """
    if style not in ("csv", "json"):
        raise ValueError(f'style must be "csv" or "json", got {style!r}')
    stream = detector.stream(client)
    if style == "csv":
        yield ",".join(_Line._fields)
    layout: _Layout | None = None
    row = 0
    counts = tally if tally is not None else {}
    counts.update(dict.fromkeys(("rows", "scored", "alarms", "unread", "filled"), 0))
    for number, text in enumerate(lines, 1):
        if not (text := text.strip("\ufeff\r\n \t")):
            continue
        out = _Line(row)
        try:
            fields = [field.strip() for field in next(csv.reader([text], strict=True))]
            if layout is None or fields == layout.names:
                first = layout is None
                layout = _find_layout(fields, detector.columns, time)
                if layout.names:
                    if first and on_note and (ignored := layout.ignored()):
                        on_note(f"ignored columns: {_listed(ignored)}")
                    continue
            values, when = layout.read(fields)
            out = out._replace(time=when)
            score, alarm = stream.update(values, when or None)
            note = RESTARTED if stream.restarted else ""
            channels = causes(stream.contributions(), detector.columns) if alarm else ()
            out = out._replace(score=score, alarm=int(alarm), channels=channels, note=note)
        except _HeaderError as error:
            raise ValueError(f"line {number}: {error}") from error
        except LateRowError as error:
            counts["unread"] += 1
            out = out._replace(note=f"line {number} left out: {error}")
        except (ValueError, csv.Error) as error:
            counts["unread"] += 1
            stream.skip()
            instead = "; the last values stand in for it" if stream.filled else ""
            out = out._replace(note=f"line {number} counts as a lost row: {error}{instead}")
        row += 1
        counts["rows"] = row
        counts["scored"] += (scored := not math.isnan(out.score))
        counts["filled"] += scored and stream.filled
        counts["alarms"] += out.alarm
        yield out.json() if style == "json" else out.csv()


RESTARTED = "a gap in time: the window starts anew"

MANY_ALARMS, TIMES_AIMED = 0.05, 10
"""A share of alarms is worth a note above MANY_ALARMS, if it is TIMES_AIMED what calibration gave."""


def doubt(detector: StreamDetector | RowDetector, client: str | None, scored: int, alarms: int) -> str:
    """What the reader of so many alarms should doubt; empty for a usual number."""
    name = client or (detector.clients[0] if len(detector.clients) == 1 else None)
    aimed = {c["client"]: c["alarm_rate"] for c in detector.about.get("calibration", ())}.get(name)
    if aimed is None or alarms <= max(MANY_ALARMS, TIMES_AIMED * aimed) * scored:
        return ""
    return (
        f"on its calibration rows {aimed:.2%} were alarms, of these {alarms / scored:.2%}; if these rows are normal, "
        "the machine has changed: recalibrate the detector on some of them"
    )


CAUSES = 5
"""Channels named for an alarm at most."""


def causes(parts: np.ndarray, columns: Sequence[str]) -> tuple[str, ...]:
    """Names of the channels that a row's score is due to, from its parts ``(C + 1,)``, the largest first.

    As many as make up half of what belongs to channels, at most :data:`CAUSES`.
    """
    own = parts[:-1]
    if not own.sum() > 0:
        return ()
    order = np.argsort(-own, kind="stable")
    enough = int(np.argmax(np.cumsum(own[order]) >= own.sum() / 2)) + 1
    return tuple(columns[c] for c in order[: min(enough, CAUSES)])


class _Line(NamedTuple):
    """What is said of a row."""

    row: int
    time: str = ""
    score: float = math.nan
    alarm: int = 0
    channels: tuple[str, ...] = ()
    note: str = ""

    def csv(self) -> str:
        score = "" if math.isnan(self.score) else f"{self.score:.9g}"
        buffer = io.StringIO()
        fields = self._replace(channels=" ".join(self.channels))._replace(score=score)  # type: ignore[arg-type]
        csv.writer(buffer, lineterminator="").writerow(fields)
        return buffer.getvalue()

    def json(self) -> str:
        score = self.score if math.isfinite(self.score) else None
        return json.dumps({**self._asdict(), "score": score, "alarm": bool(self.alarm)})


class _HeaderError(ValueError):
    """A header of other columns than the detector's."""


class _Layout(NamedTuple):
    """Where a line's fields are.

    Attributes:
        names: of all, empty where the lines give none.
        places: of the detector's columns.
        time: of the time, None for none.
        width: fields in a line.
    """

    names: list[str]
    places: list[int]
    time: int | None
    width: int

    def ignored(self) -> list[str]:
        """Names of columns that are neither the detector's nor the time."""
        return [name for k, name in enumerate(self.names) if k not in self.places and k != self.time]

    def read(self, fields: Sequence[str]) -> tuple[list[float], str]:
        """Values and time; ValueError for what is neither."""
        if len(fields) != self.width:
            raise ValueError(f"{len(fields)} fields, want {self.width}")
        when = "" if self.time is None else fields[self.time]
        if self.time is not None:
            _second(when)
        return [_number(fields[place]) for place in self.places], when


SEPARATORS = (";", "\t", "|")
"""What else than a comma people separate fields by; named in messages."""
TIME_NAMES = ("time", "timestamp", "datetime", "date", "ts")
MISSING = ("", "nan", "na", "n/a", "null", "none")


def _find_layout(fields: Sequence[str], columns: Sequence[str], time: str | None) -> _Layout:
    """From the first line that can be read, names or values."""
    if len(fields) == 1 != len(columns) and (other := [mark for mark in SEPARATORS if mark in fields[0]]):
        raise _HeaderError(f"fields are separated by {other[0]!r}, want commas")
    absent = [name for name in columns if name not in fields]
    words = [field for field in fields if not _is_number(field)]
    width = len(columns)
    known = any(word in columns for word in words)
    if absent and not known and (len(words) < len(fields) or len(fields) not in (width, width + 1)):
        if len(fields) not in (width, width + 1):
            raise ValueError(f"{len(fields)} fields, want the detector's {width} columns")
        offset = len(fields) - width
        return _Layout([], list(range(offset, offset + width)), 0 if offset else None, len(fields))
    if absent:
        plain = list(columns) == [str(k) for k in range(width)]
        hint = (
            "; it was fitted on files without names: leave this line out, or fit again with names"
            if plain
            else ""
        )
        raise _HeaderError(
            f"the columns {_listed(absent)} are missing; the detector wants {_listed(columns)}, "
            f"this line has {_listed(fields)}{hint}"
        )
    double = [name for name in columns if fields.count(name) > 1]
    if double:
        raise _HeaderError(f"the columns {_listed(double)} are there more than once")
    if time is not None and time not in fields:
        raise _HeaderError(f"no column {time!r} for the times; there are {_listed(fields)}")
    found = [time] if time else [f for f in fields if f.lower() in TIME_NAMES and f not in columns]
    places = [fields.index(name) for name in columns]
    return _Layout(list(fields), places, fields.index(found[0]) if found else None, len(fields))


def _number(text: str) -> float:
    if text.lower() in MISSING:
        return math.nan
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None
    if math.isinf(value):
        raise ValueError(f"{text!r} is not finite")
    return value


def _is_number(text: str) -> bool:
    try:
        _number(text)
    except ValueError:
        return False
    return True


def _second(time: Any) -> float:
    """Seconds of a number, a datetime, or a text of either; a datetime without a zone is taken as UTC."""
    if isinstance(time, str):
        try:
            time = float(time)
        except ValueError:
            try:
                time = datetime.fromisoformat(time)
            except ValueError:
                raise ValueError(f"{time!r} is no time; want seconds or ISO 8601") from None
    if isinstance(time, np.datetime64):
        time = math.nan if np.isnat(time) else (time - np.datetime64(0, "s")) / np.timedelta64(1, "s")
    if isinstance(time, datetime):
        time = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    if not isinstance(time, int | float | np.number) or not math.isfinite(time):
        raise ValueError(f"{time!r} is no time; want seconds, a datetime or ISO 8601")
    return float(time)


def _seconds(times: Any) -> np.ndarray:
    """Likewise of many, ``(T,)``."""
    times = np.asarray(times)
    if times.dtype.kind == "M":
        return (times - np.datetime64(0, "s")) / np.timedelta64(1, "s")
    if times.dtype.kind in "iuf":
        return times.astype(np.float64)
    return np.array([_second(time) for time in times.ravel()]).reshape(times.shape)


def matrix(rows: Any, columns: Sequence[str]) -> np.ndarray:
    """Rows ``(T, C)`` as float64, with a data frame's names compared."""
    names = getattr(rows, "columns", None)
    if names is not None and tuple(map(str, names)) != tuple(columns):
        raise ValueError(f"got columns {_listed([*map(str, names)])}; want {_listed(columns)}, in this order")
    values = np.asarray(rows, np.float64)
    if values.ndim != 2 or values.shape[1] != len(columns):
        raise ValueError(
            f"got rows of shape {values.shape}; want (rows, {len(columns)}), one column a channel"
        )
    return values


def standardise(rows: np.ndarray, center: np.ndarray, scale: np.ndarray, most: float) -> np.ndarray:
    """Rows in the units of their deviation, clipped, as float32; NaN stays."""
    return np.clip((rows - center) / scale, -most, most).astype(np.float32)


def _smooth(raw: np.ndarray, width: int) -> np.ndarray:
    """Causal moving mean ``(T, k)`` over the last ``width`` rows that are not NaN; NaN where the row itself is."""
    known = ~np.isnan(raw[:, -1:])
    values = np.concatenate([np.zeros((width - 1, raw.shape[1])), np.where(known, raw, 0)])
    counts = np.concatenate([np.zeros((width - 1, 1)), known])
    total, count = (np.zeros((len(raw), a.shape[1])) for a in (values, counts))
    for lag in range(width):  # summed anew for each row: a running sum would drift
        total += values[lag : lag + len(raw)]
        count += counts[lag : lag + len(raw)]
    return np.where(known, total / np.maximum(count, 1), np.nan)


def _layer_norm(h: np.ndarray) -> np.ndarray:
    centred = h - h.mean(axis=1, keepdims=True)
    return centred / np.sqrt(np.mean(centred * centred, axis=1, keepdims=True) + 1e-6)


def _gelu(h: np.ndarray) -> np.ndarray:
    """By tanh, as flax has it."""
    return h / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))


def _positive(settings: Mapping[str, Any], name: str, least: int = 1) -> int:
    value = settings[name]
    if not isinstance(value, int) or value < least:
        raise ValueError(f"the setting {name} must be a whole number from {least}, got {value!r}")
    return value


def _choice(settings: Mapping[str, Any], name: str, *known: str) -> str:
    value = settings[name]
    if value not in known:
        raise ValueError(f"the setting {name} is {value!r}; this runtime knows {', '.join(known)}")
    return str(value)


def bound(settings: Mapping[str, Any]) -> float:
    """The largest absolute value of a scaled row."""
    clip = settings["clip"]
    return HUGE if clip is None else min(float(clip), HUGE)


def _check_shapes(arrays: Mapping[str, np.ndarray], wanted: Mapping[str, tuple[int, ...]]) -> None:
    for name, shape in wanted.items():
        if arrays[name].shape != shape:
            raise ValueError(f"array {name} has shape {arrays[name].shape}, its detector wants {shape}")
        if arrays[name].dtype.kind != "f":
            raise ValueError(f"array {name} holds {arrays[name].dtype}, want floating-point numbers")


def _listed(names: Sequence[str], limit: int = 5) -> str:
    shown = ", ".join(map(repr, names[:limit]))
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def explained(error: Exception) -> str:
    """An error's message; the system's own with the path first, and without its number."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return (
            f"{error.filename}: {error.strerror}; check the path, and whether it is a file that you may use"
        )
    return str(error)


def main(arguments: Sequence[str] | None = None) -> int:
    """``python runtime.py DETECTOR [--client NAME] < rows.csv``; the exit code, 2 for what cannot be done."""
    parser = argparse.ArgumentParser(
        description="Score rows of CSV from standard input as they come. A row that is not sent is a gap, which "
        "times tell: the window starts anew. A line that cannot be read counts as a lost row: the last values stand in "
        "for it."
    )
    parser.add_argument("detector", help="the detector's file")
    parser.add_argument("--client", help="whose rows they are; may be left out where there is only one")
    parser.add_argument("--time", help="name of the column of times, if it is not a usual one")
    parser.add_argument("--json", action="store_true", help="write one JSON object a line")
    given = parser.parse_args(arguments)
    # A byte that is no UTF-8 spoils its line, not the run.
    lines = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8", errors="replace")
    style, tally = "json" if given.json else "csv", dict[str, int]()

    def say(text: str) -> None:
        sys.stderr.write(text + "\n")

    try:
        detector = load(given.detector)
    except (OSError, ValueError) as error:
        say(f"error: {explained(error)}")
        return 2
    try:
        for line in watch(
            lines, detector, given.client, time=given.time, style=style, tally=tally,
            on_note=lambda text: say(f"note: {text}"),
        ):  # fmt: skip
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
    except ValueError as error:
        say(f"error: {error}")
        return 2
    except BrokenPipeError:  # who read the alarms has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        say(f"error: {error.strerror} at reading rows or writing scores; want lines of CSV on standard input")
        return 2
    except KeyboardInterrupt:
        pass
    filled = tally.pop("filled")
    say(", ".join(f"{count} {name}" for name, count in tally.items()))
    if filled:
        say(
            f"note: {filled} of the scores rest on values that were filled in, for lost rows or missing values"
        )
    if text := doubt(detector, given.client, tally["scored"], tally["alarms"]):
        say(f"note: {text}")
    if tally["unread"] and tally["unread"] == tally["rows"]:
        say(f"error: no line could be read; want {len(detector.columns)} numbers, separated by commas")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
