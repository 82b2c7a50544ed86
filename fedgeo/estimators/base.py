"""What both detectors share: calibration, alarms, files.

Everything that is learned is kept as plain arrays, by the names that they have in a saved detector.
"""

import inspect
import math
import os
import platform
import warnings
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError

from fedgeo import data, evaluation
from fedgeo.data import policy
from fedgeo.data.streams import listed, named
from fedgeo.deploy import runtime
from fedgeo.evaluation.calibration import Kind

CHUNK = 1024
"""Rows scored at a time. Lengths are padded to few multiples of it, so that few programs are compiled."""

LARGEST = 1e15
"""Bound on scaled values without a ``clip``, so that no square overflows float32 and turns a score into NaN."""

_HERE = os.path.dirname(__file__) + os.sep

FAR = 50
"""A threshold of more than this many times the median calibration score is worth a note."""

_CALIBRATION = ["threshold", "rule", "rows", "alarm_rate"]


class DetectorWarning(UserWarning):
    """What the owner of a detector must know: clients left out, without a threshold, constant, or set aside."""


class Estimator(BaseEstimator):
    """What both detectors share: calibration, alarms, files."""

    method: str
    left_out_: dict[str, str]
    clients_: list[str]
    columns_: list[str]
    notes_: list[str]
    settings_: dict[str, Any]
    calibration_: pd.DataFrame
    threshold: Kind
    quantile: float
    level: float
    q: float
    rate: float

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_arrays")

    def _must_be_fitted(self) -> None:
        if not self.__sklearn_is_fitted__():
            raise NotFittedError(
                f"this {type(self).__name__} is not fitted yet; call fit, or fedgeo.load a saved one"
            )

    @property
    def threshold_(self) -> dict[str, float]:
        """Thresholds by client, NaN for a client that has none."""
        self._must_be_fitted()
        return dict(zip(self.clients_, self._arrays["threshold"].tolist(), strict=True))

    def decision_function(self, x: Any, client: str | None = None) -> Any:
        """The same as ``score_samples``, by PyOD's name for it."""
        return self.score_samples(x, client)

    def score_samples(self, x: Any, client: str | None = None) -> Any:
        """Scores, higher is more anomalous."""
        raise NotImplementedError

    def recalibrate(self, clients: Any, client: str | None = None) -> Self:
        """Set thresholds anew from other normal data, by the present parameters ``threshold``, ``quantile``, ...

        Args:
            clients: normal data of some or all clients, by name; or of the one named.
            client: whose data it is, if it is one stream or table alone.
        """
        self._must_be_fitted()
        rule = self._rule()
        given = {client: clients} if client is not None else named(clients, "recalibrate")
        scores = {name: self._known_score(name, x) for name, x in given.items()}
        self._recalibrate(scores, rule)
        self.settings_ |= self._calibration_settings()
        return self

    def observed(self, clients: Mapping[str, Any], labels: Mapping[str, Any] | None = None) -> pd.DataFrame:
        """What the thresholds do on new data.

        Args:
            clients: data by client.
            labels: ``(T,)`` of 0 and 1 by client, if they are known.

        Returns:
            A frame by client: ``rows`` with a score, ``threshold``, ``alarm_rate`` (their share above it, NaN without
            a threshold) and, with labels, ``precision``, ``recall`` and ``f1``.
        """
        scores = {
            name: np.asarray(self._known_score(name, x)) for name, x in named(clients, "observed").items()
        }
        thresholds = {name: self.threshold_[name] for name in scores}
        if labels is not None:
            truth = {name: np.asarray(y) for name, y in named(labels, "labels").items()}
            table = evaluation.per_client(scores, truth, thresholds)
            table["rows"] -= table["unscored"]
            return table[["rows", "threshold", "alarm_rate", "precision", "recall", "f1"]]
        records = {}
        for name, score in scores.items():
            known, limit = score[~np.isnan(score)], thresholds[name]
            rate = evaluation.alarms(known, limit).mean() if len(known) and not np.isnan(limit) else np.nan
            records[name] = {"rows": len(known), "threshold": limit, "alarm_rate": float(rate)}
        return pd.DataFrame.from_dict(records, orient="index").rename_axis("client")

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Save as one file without pickles, for :func:`load` and for ``fedgeo.deploy.runtime``; atomic.

        Raises:
            FileExistsError: there is something at the path that is no detector.
        """
        self._must_be_fitted()
        calibration = self.calibration_.reset_index().replace({np.nan: None}).to_dict("records")
        about = {
            "method": self.method,
            "columns": self.columns_,
            "clients": self.clients_,
            "settings": {name: _to_json(value) for name, value in self.settings_.items()},
            "calibration": [{k: _to_json(v) for k, v in record.items()} for record in calibration],
            "left_out": self.left_out_,
            "notes": self.notes_,
            "made_by": {
                **{name: metadata.version(name) for name in ("fedgeo", "jax", "numpy")},
                "python": platform.python_version(),
                "time": datetime.now(UTC).isoformat(timespec="seconds"),
            },
        }
        return runtime.write(path, about, self._arrays)

    @classmethod
    def _load(cls, path: Any, about: Mapping[str, Any], arrays: dict[str, np.ndarray]) -> Self:
        try:
            settings = dict(about["settings"])
            settings["clip"] = math.inf if settings["clip"] is None else settings["clip"]
            own = cls()
            own.set_params(**{k: v for k, v in settings.items() if k in own.get_params()})
            own.settings_ = settings
            own.clients_, own.columns_ = list(about["clients"]), list(about["columns"])
            own.left_out_, own.notes_ = dict(about.get("left_out", {})), list(about.get("notes", []))
            own._arrays = arrays
            records = pd.DataFrame(about["calibration"], columns=["client", *_CALIBRATION]).set_index(
                "client"
            )
            own.calibration_ = records.astype({"threshold": float, "rows": int, "alarm_rate": float})
            shapes = own._shapes()
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path} is no whole {cls.__name__} detector ({type(error).__name__}: {error}); save it again"
            ) from error
        for name, shape in shapes.items():
            if name not in arrays or arrays[name].shape != shape:
                got = arrays[name].shape if name in arrays else "nothing"
                raise ValueError(f"{path}, array {name}: got {got}, want shape {shape}; save it again")
        return own

    # What follows is for this package.

    _arrays: dict[str, np.ndarray]
    _MASKING: str

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """What the arrays of a saved detector must be like."""
        raise NotImplementedError

    def _known_score(self, name: str, x: Any) -> np.ndarray:
        """Scores of one client that must be there, as an array."""
        raise NotImplementedError

    def _rule(self) -> evaluation.Rule:
        rule = evaluation.Rule(self.threshold, self.quantile, self.level, self.q, self.rate)
        rule.check()
        return rule

    def _calibration_settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("threshold", "quantile", "level", "q", "rate")}

    def _least(self, client: int) -> float:
        """The smallest threshold that makes sense for a client."""
        del client
        return -math.inf

    def _recalibrate(self, scores: Mapping[str, np.ndarray], rule: evaluation.Rule) -> None:
        """Set the thresholds of these clients from scores of their normal rows."""
        rows = {name: dict(row) for name, row in self.calibration_.iterrows()}
        for name, score in scores.items():
            client = self.clients_.index(name)
            found = evaluation.calibrated(score, rule, least=self._least(client))
            self._arrays["threshold"][client] = found.threshold
            rows[name] = {field: getattr(found, field) for field in _CALIBRATION}
            if found.fallback:
                self._tell(
                    f"client {name}: the threshold is a plain quantile of its calibration scores: {found.fallback}"
                )
            known = score[np.isfinite(score)]
            if found.rows and found.threshold > FAR * (usual := np.median(known)) > 0:
                self._tell(
                    f"client {name}: the threshold is {found.threshold / usual:.0f} times the median of its "
                    f"{found.rows} calibration scores, so that little will alarm; the largest stands at row "
                    f"{np.nanargmax(score)} of the rows kept for calibration: see whether they are normal, or "
                    "recalibrate on others"
                )
            if not found.rows:
                self._tell(
                    f"client {name} has no threshold, for want of calibration rows with a score, and raises no alarm; "
                    "recalibrate it with more of its normal rows",
                    warn=True,
                )
        ordered = {name: rows[name] for name in self.clients_ if name in rows}
        self.calibration_ = pd.DataFrame.from_dict(ordered, orient="index", columns=_CALIBRATION).rename_axis(
            "client"
        )

    def _tell(self, text: str, *, warn: bool = False) -> None:
        """Keep a note, and warn of it."""
        self.notes_.append(text)
        if warn:
            warn_user(text)

    def _tell_outliers(
        self, name: str, rows: np.ndarray, found: Mapping[int, np.ndarray], index: pd.Index | None
    ) -> None:
        """Warn of rows ``(N, C)`` that alone set the scale of columns, see :func:`fedgeo.data.scaling.outliers`."""
        if not found:
            return
        places = []
        for column, at in found.items():
            first = at[np.argmax(np.abs(rows[at, column]))]
            more = f" and {len(at) - 1} more rows" if len(at) > 1 else ""
            places.append(
                f"{self.columns_[column]} ({rows[first, column]:.6g} in {policy.place(int(first), index)}{more})"
            )
        self._tell(
            f"client {name}: a few rows alone set the scale of {listed(places, 5)}, so that changes which are small "
            "beside them raise no alarm; if they are no measurements, remove them or mark them as missing (an empty "
            f"field, NaN) and fit again with {self._MASKING}",
            warn=True,
        )

    def _begin_anew(self, columns: Sequence[str], clients: Iterable[str]) -> None:
        """Forget an earlier fit, so that one that fails leaves no mixture of two behind."""
        self.__dict__.pop("_arrays", None)
        self.columns_, self.clients_ = list(columns), list(clients)
        self.left_out_, self.notes_, self.calibration_ = {}, [], pd.DataFrame()
        self.settings_ = {k: v for k, v in self.get_params().items() if k != "progress"}

    def _number(self, client: str) -> int:
        if client in self.left_out_ and client not in self.clients_:
            raise ValueError(
                f"client {client} was left out of the fit: {self.left_out_[client]}; it may still join"
            )
        if client not in self.clients_:
            raise ValueError(
                f"no client {client} in this detector; it has {listed(self.clients_, 5)}. A new one joins with "
                "its normal rows, by fedgeo join or model.join"
            )
        return self.clients_.index(client)


def clients_of(given: Any) -> dict[str, Any]:
    """Training data by client name."""
    if isinstance(given, data.Streams):
        raise ValueError("pass the streams themselves, such as streams.train")
    return named(given, "the training data")


def like(values: np.ndarray, index: pd.Index | None, name: str) -> Any:
    """Values a row ``(T,)`` as a Series if the rows had an index."""
    return values if index is None else pd.Series(values, index=index, name=name)


def padded(rows: int) -> int:
    """The least of ``CHUNK`` times 1, 2, 3, 4, 6, 8, 12, 16, ... that holds so many rows."""
    blocks = max(-(-rows // CHUNK), 1)
    power = 1 << (blocks - 1).bit_length()
    return CHUNK * (power * 3 // 4 if power >= 4 and blocks <= power * 3 // 4 else power)


def check_seed(seed: Any) -> None:
    """Raise ValueError for what cannot seed a key."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise ValueError(f"seed={seed!r}; want a whole number of at least 0 and below 2**32")


def _to_json(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def warn_user(text: str) -> None:
    """Warn at the line that called into this package, which is the user's."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_HERE):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, DetectorWarning, stacklevel=level)
