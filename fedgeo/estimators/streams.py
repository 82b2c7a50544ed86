"""FedKAD as an estimator."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from fedgeo import data, evaluation, federation, trees
from fedgeo.algorithms import koopman, moments
from fedgeo.algorithms.fedkad import Start, fedkad
from fedgeo.data import policy, scaling
from fedgeo.data.streams import listed, named
from fedgeo.estimators.base import CHUNK, LARGEST, Estimator, check_seed, clients_of, like, padded, warn_user
from fedgeo.evaluation.calibration import Kind
from fedgeo.protocol import FedAlgorithm, Series

PAPER: Mapping[str, Any] = MappingProxyType(
    {"start": "shared", "residual": "full", "score_scale": "none", "smoothing": 5}
)
"""The first paper's settings: ``FedKAD(**PAPER)``. The defaults of :class:`FedKAD` are :data:`fedgeo.RECOMMENDED`."""

TOLERANCE = 1e-3
"""In scaled units (a channel's training deviation, or its own unit where it was constant): a lasting change below it is
never an alarm, however well the channel was predicted in training."""

CALM = 1e-2
"""Mean variance of calibration rows, over that of training rows, below which they stand still."""

_BY_CLIENT = ("center", "scale", "operator", "readout", "variance", "threshold")

_NOT_FINITE = "its detector is not finite: the scaled training values are too large; set a clip, such as 10"


class _Stream(NamedTuple):
    """A stream before scaling.

    Attributes:
        values: ``(T, C)``, NaN where one is missing.
        starts: rows that begin a run, see :func:`policy.run_starts`.
    """

    values: np.ndarray
    starts: np.ndarray

    def cut(self, validation: float) -> tuple["_Stream", "_Stream"]:
        """The rows to train on, and the last share, kept for calibration."""
        head, tail = data.temporal_split(self.values, validation)
        row = len(head)
        later = self.starts[self.starts > row] - row
        return (
            _Stream(head, self.starts[self.starts < row]),
            _Stream(tail, np.concatenate([np.zeros(min(len(tail), 1), np.int64), later])),
        )


class FedKAD(Estimator):
    """Federated low-rank Koopman anomaly detection for multivariate streams. arXiv 2607.08978.

    All clients share one subspace, learned by federated rounds; each keeps a scaler, an operator, variances and a
    threshold of its own. The defaults are :data:`fedgeo.RECOMMENDED`; ``FedKAD(**fedgeo.PAPER)`` has the paper's.
    Shapes: T time steps, C channels, W window, D = W C + d_lift, r rank.

    Args:
        rank: r, columns of the shared subspace.
        window: W, rows a window.
        lift_size: d_lift, random tanh features.
        rounds: R, federated rounds; 0 for the start alone.
        participation: share of the clients drawn each round.
        start: "warm" from the leading subspace of the clients' mean moments, "shared" from one random frame for all,
            "independent" from a random frame each.
        rho: ADMM penalty.
        step_size: of a local step.
        inner_steps: local steps a round.
        ridge: of the operators, relative to their mean eigenvalue.
        projection: "horizontal" or "tangent".
        spectral_cap: bound on the spectral radius of an operator.
        residual: the score counts the "newest" row, or the "full" lifted window.
        score_scale: each squared error as it is ("none"), by its training "variance", or the "log" of that.
        smoothing: rows of the causal moving mean over scores.
        horizon: H, steps predicted.
        clip: bound on scaled values, infinity for none.
        missing: "error" names a missing value; "ffill" takes the last value of that channel in the stream, before
            there is one its training mean; "mask" does too and leaves what is missing out of the score.
        validation: share at the end of each training stream kept for calibration; neither scaler nor moments see it.
        threshold: "quantile", "pot" or "rate", see :class:`fedgeo.evaluation.Rule`.
        quantile: for "quantile".
        level: for "pot".
        q: for "pot".
        rate: for "rate".
        seed: of lift, start and cohorts.
        progress: called with the number of rounds done.

    Attributes:
        clients_: names of the clients that have a detector.
        columns_: names of the C channels.
        left_out_: why a client has no detector, by name.
        notes_: sentences on what a user should know of the fit.
        calibration_: a frame by client with ``threshold``, ``rule``, ``rows`` and ``alarm_rate`` on them.
        threshold_: by client.
        history_: what the rounds report, see :class:`fedgeo.federation.RoundInfo`; not saved.
        settings_: the parameters that this detector was fitted with, and ``interval``, seconds between rows.
    """

    method = "fedkad"

    def __init__(
        self,
        *,
        rank: int = 24,
        window: int = 20,
        lift_size: int = 128,
        rounds: int = 30,
        participation: float = 0.25,
        start: Start = "warm",
        rho: float = 1.0,
        step_size: float = 0.05,
        inner_steps: int = 5,
        ridge: float = 1e-2,
        projection: Literal["horizontal", "tangent"] = "horizontal",
        spectral_cap: float = 0.995,
        residual: koopman.Residual = "newest",
        score_scale: koopman.Scale = "variance",
        smoothing: int = 20,
        horizon: int = 1,
        clip: float = 10.0,
        missing: policy.Missing = "error",
        validation: float = 0.15,
        threshold: Kind = "quantile",
        quantile: float = 0.99,
        level: float = 0.98,
        q: float = 1e-3,
        rate: float = 0.01,
        seed: int = 0,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.rank = rank
        self.window = window
        self.lift_size = lift_size
        self.rounds = rounds
        self.participation = participation
        self.start = start
        self.rho = rho
        self.step_size = step_size
        self.inner_steps = inner_steps
        self.ridge = ridge
        self.projection = projection
        self.spectral_cap = spectral_cap
        self.residual = residual
        self.score_scale = score_scale
        self.smoothing = smoothing
        self.horizon = horizon
        self.clip = clip
        self.missing = missing
        self.validation = validation
        self.threshold = threshold
        self.quantile = quantile
        self.level = level
        self.q = q
        self.rate = rate
        self.seed = seed
        self.progress = progress

    def fit(self, streams: data.streams.Clients, y: None = None) -> Self:
        """Train on normal streams and set every client's threshold.

        Args:
            streams: ``(T, C)`` array or data frame a client, by name or in order.
            y: not used; scikit-learn's signature.

        Raises:
            ValueError: a parameter out of its range, data that :mod:`fedgeo.data.policy` refuses, or no client that is
                long enough.
        """
        del y
        rule = self._check()
        columns = policy.columns_of(clients := clients_of(streams))
        readings = {
            name: policy.read(x, columns, f"client {name}", missing=self.missing)
            for name, x in clients.items()
        }
        self._reset(columns, readings)
        parts = {name: self._stream(reading).cut(self.validation) for name, reading in readings.items()}
        train, validation = ({name: part[k] for name, part in parts.items()} for k in (0, 1))
        self._leave_out_short(train)
        scalers = {name: self._scaler(name, train[name], readings[name].index) for name in self.clients_}

        key = jax.random.key(self.seed)
        lift = koopman.random_lift(
            jax.random.fold_in(key, 1), channels=len(columns), window=self.window, size=self.lift_size
        )
        alg = self._algorithm()
        series = [_training_series(train[name], scalers[name], self.missing) for name in self.clients_]
        sums = moments.prepare(lift, _stack(series))
        cohort = max(round(self.participation * len(series)), 1)
        state, self.history_ = federation.fit(
            alg, key, sums, rounds=self.rounds, sampler=_uniform(cohort), state=_begin(alg, key, sums),
            on_progress=self.progress,
        )  # fmt: skip
        self._report_rounds()
        deployed = _deploy(alg, state.server, sums)
        self._arrays = {
            "center": np.stack([scalers[name].center for name in self.clients_]),
            "scale": np.stack([scalers[name].scale for name in self.clients_]),
            "lift_weight": np.asarray(lift.weight),
            "lift_bias": np.asarray(lift.bias),
            "basis": np.asarray(deployed.basis[0]),
            **self._own_arrays(deployed),
            "threshold": np.full(len(series), np.nan),
        }
        self._leave_out_broken(np.asarray(trees.all_finite(deployed, batch_axes=1)))
        for name in self.clients_:
            self._look_at_calibration(name, validation[name], scalers[name])
        self._recalibrate({name: self._score(name, validation[name]) for name in self.clients_}, rule)
        return self

    def join(self, name: str, stream: Any) -> Self:
        """Add a client: the shared subspace, with a scaler, operator, variances and threshold of its own.

        No round is run, and nothing of the other clients changes.

        Args:
            name: of the new client.
            stream: its normal rows, ``(T, C)``.

        Raises:
            ValueError: a name that is taken, or a stream that is refused or too short.
        """
        self._must_be_fitted()
        rule, name = self._rule(), str(name)
        if name in self.clients_:
            raise ValueError(f"there is a client {name} already; join under another name, or fit anew")
        missing = self.settings_["missing"]
        reading = policy.read(stream, self.columns_, f"client {name}", missing=missing)
        train, validation = self._stream(reading).cut(self.validation)
        if reason := self._too_short(train):
            raise ValueError(f"client {name} cannot join: {reason}")
        before, self.notes_ = self.notes_, []
        scaler = self._scaler(name, train, reading.index)
        lift = koopman.Lift(jnp.asarray(self._arrays["lift_weight"]), jnp.asarray(self._arrays["lift_bias"]))
        alg = self._algorithm()
        sums = moments.prepare(lift, _stack([_training_series(train, scaler, missing)]))
        deployed = _deploy(alg, jnp.asarray(self._arrays["basis"]), sums)
        if not bool(trees.all_finite(deployed, batch_axes=1)[0]):
            self.notes_ = before
            raise ValueError(f"client {name} cannot join: {_NOT_FINITE}")
        new = {"center": scaler.center[None], "scale": scaler.scale[None], "threshold": np.full(1, np.nan)}
        for part, value in (new | self._own_arrays(deployed)).items():
            self._arrays[part] = np.concatenate([self._arrays[part], value])
        self.clients_.append(name)
        self.left_out_.pop(name, None)
        self._look_at_calibration(name, validation, scaler)
        self._recalibrate({name: self._score(name, validation)}, rule)
        self.notes_ = before + self.notes_
        return self

    def score_samples(self, x: Any, client: str | None = None) -> Any:
        """One score a row; NaN for the first W - 1 + H rows of a stream and after a gap in time.

        The score of a row depends on rows before it only, and on no other stream.

        Args:
            x: one stream ``(T, C)``, an array or data frame; or a dict of them by client, or a list of them in the
                order of ``clients_`` (of a fit on a list).
            client: whose stream it is; not needed for a dict or list, nor where there is only one client.

        Returns:
            In the form of what was given: for a data frame a Series on its index, for an array an array ``(T,)``. A
            client that ``fit`` left out has NaN throughout, and a warning names it.
        """
        return self._each(x, client, self._score_like)

    def predict(self, x: Any, client: str | None = None) -> Any:
        """1 for every row whose score is above its client's threshold, 0 for all others, those without score included.

        Args:
            x: as for :meth:`score_samples`.
            client: likewise.
        """
        return self._each(x, client, self._alarms_like)

    def contributions(self, x: Any, client: str | None = None) -> Any:
        """Which channels a score comes from: parts that add up to the score.

        Args:
            x: as for :meth:`score_samples`.
            client: likewise.

        Returns:
            ``(T, C)``, or ``(T, C + 1)`` for ``residual="full"``, whose last column ``lift`` belongs to no single
            channel; for a data frame a data frame, for an array an array.
        """
        return self._each(x, client, self._contributions_like)

    # What follows is for this module.

    _MASKING = 'missing="mask" (fedgeo fit --missing mask)'

    def _check(self) -> evaluation.Rule:
        rule = self._rule()
        if self.missing not in ("error", "ffill", "mask"):
            raise ValueError(f'missing={self.missing!r}; want "error", "ffill" or "mask"')
        if not 0 < self.participation <= 1:
            raise ValueError(f"participation={self.participation}; want a share of the clients in (0, 1]")
        if not 0 <= self.validation < 1:
            raise ValueError(f"validation={self.validation}; want a share of each stream in [0, 1)")
        if not self.clip > 0:
            raise ValueError(f"clip={self.clip}; want a positive bound, or infinity for none")
        check_seed(self.seed)
        return rule

    def _algorithm(self) -> FedAlgorithm:
        names = (
            "window", "lift_size", "rank", "rho", "step_size", "inner_steps", "ridge", "projection", "start",
            "spectral_cap", "horizon", "smoothing", "residual", "score_scale",
        )  # fmt: skip
        return _algorithm(len(self.columns_), **{name: self.settings_[name] for name in names})

    def _reset(self, columns: Sequence[str], readings: Mapping[str, policy.Reading]) -> None:
        self._begin_anew(columns, readings)
        usual = {name: policy.usual_interval(reading.index) for name, reading in readings.items()}
        known = {name: seconds for name, seconds in usual.items() if seconds is not None}
        self.settings_["interval"] = max(known.values(), default=None)
        if known and max(known.values()) > policy.GAP * min(known.values()):
            slow, fast = max(known, key=known.__getitem__), min(known, key=known.__getitem__)
            self._tell(
                f"clients differ in their interval between rows, from {known[fast]:g} s ({fast}) to {known[slow]:g} s "
                f"({slow}); the longest decides what is a gap",
                warn=True,
            )
        for name, reading in readings.items():
            starts = self._stream(reading).starts
            if len(starts) > 1:
                assert reading.index is not None
                self._tell(
                    f"client {name}: {len(starts) - 1} gaps in time, the first before {reading.index[starts[1]]}; no "
                    "window reaches over a gap"
                )
            if gone := int(np.isnan(reading.values).sum()):
                self._tell(
                    f"client {name}: {gone} missing values in training, filled with the last one before them"
                )

    def _stream(self, reading: policy.Reading) -> _Stream:
        starts = policy.run_starts(reading.index, len(reading.values), self.settings_["interval"])
        return _Stream(reading.values, starts)

    def _too_short(self, train: _Stream) -> str:
        """Why a client cannot be trained on; empty if it can."""
        window = self.settings_["window"]
        known = _known_rows(train, self.settings_["missing"])
        longest = max(map(_longest, _runs_of(known, train.starts)), default=0)
        if longest > window:
            return ""
        return (
            f"its longest run of training rows without a gap has {longest}, a window of {window} and the row after it "
            f"need {window + 1}"
        )

    def _leave_out_short(self, train: Mapping[str, _Stream]) -> None:
        for name, part in train.items():
            if reason := self._too_short(part):
                self._leave_out(name, reason)
        if not self.clients_:
            raise ValueError(
                "no client is long enough: "
                + "; ".join(f"client {n}: {why}" for n, why in self.left_out_.items())
            )

    def _leave_out(self, name: str, reason: str) -> None:
        self.clients_.remove(name)
        self.left_out_[name] = reason
        self._tell(f"client {name} is left out: {reason}", warn=True)

    def _leave_out_broken(self, sound: np.ndarray) -> None:
        for name in [name for name, good in zip(list(self.clients_), sound, strict=True) if not good]:
            self._leave_out(name, _NOT_FINITE)
        if not self.clients_:
            del self._arrays
            raise ValueError(f"no client has a detector: {_NOT_FINITE}")
        for part in _BY_CLIENT:
            if part in self._arrays:
                self._arrays[part] = self._arrays[part][sound]

    def _scaler(self, name: str, train: _Stream, index: pd.Index | None) -> data.Scaler:
        scaler = data.fit_scaler(train.values, clip=self.settings_["clip"])
        unseen = np.isnan(train.values).all(axis=0)
        still = [self.columns_[c] for c in scaler.constant]
        if gone := [self.columns_[c] for c in np.flatnonzero(unseen)]:
            self._tell(f"client {name}: no value in training of {listed(gone)}")
        if len(still) + len(gone) == len(self.columns_):
            self._tell(
                f"client {name}: all {len(self.columns_)} channels are constant in training, so that any change is new",
                warn=True,
            )
        elif still:
            self._tell(
                f"client {name}: constant in training: {listed(still)}; a change there is measured in the channel's "
                f"own unit, and below {TOLERANCE:g} never is an alarm"
            )
        self._tell_outliers(name, train.values, scaling.outliers(train.values), index)
        return scaler

    def _look_at_calibration(self, name: str, validation: _Stream, scaler: data.Scaler) -> None:
        """Warn of calibration rows that stand still although training rows moved: a threshold of theirs is too low."""
        live = np.setdiff1d(np.arange(len(self.columns_)), scaler.constant)
        z = policy.fill_forward(scaler.transform(validation.values))[:, live]
        if z.size and z.var(axis=0).mean() < CALM:
            self._tell(
                f"client {name}: its calibration rows, the last {self.validation:.0%}, hardly move while those before "
                "do; expect alarms on normal rows, and recalibrate with rows that are like what is to come",
                warn=True,
            )

    def _report_rounds(self) -> None:
        for line in federation.incidents(self.history_, self.clients_):
            self._tell(line, warn=True)
        counted = np.asarray(self.history_.client)[np.asarray(self.history_.weight) > 0]
        never = [name for k, name in enumerate(self.clients_) if k not in set(counted.ravel().tolist())]
        if never and self.rounds:
            self._tell(
                f"{len(never)} of {len(self.clients_)} clients had no part in any round and use the subspace of the "
                f"others with an operator of their own: {listed(never)}"
            )

    def _own_arrays(self, deployed: koopman.Detector) -> dict[str, np.ndarray]:
        """What each client has of its own, cut to the entries that the score counts."""
        residual = self.settings_["residual"]
        wide = deployed.lift.weight.shape[-1] * deployed.lift.weight.shape[-2]
        entries = slice(wide - len(self.columns_), wide) if residual == "newest" else slice(None)
        arrays = {"operator": np.asarray(deployed.operator)}
        if deployed.readout is not None:
            arrays["readout"] = np.asarray(deployed.readout[:, entries])
        if deployed.variance is not None:
            arrays["variance"] = np.asarray(deployed.variance[:, entries])
        return arrays

    def _detector(self, client: int) -> koopman.Detector:
        arrays = self._arrays
        lift = koopman.Lift(jnp.asarray(arrays["lift_weight"]), jnp.asarray(arrays["lift_bias"]))
        readout, variance = (
            jnp.asarray(_widened(arrays[part][client], lift.wide, lift.dimension, fill))
            if part in arrays
            else None
            for part, fill in (("readout", 0), ("variance", 1))
        )
        operator = jnp.asarray(arrays["operator"][client])
        return koopman.Detector(lift, jnp.asarray(arrays["basis"]), operator, readout, variance)

    def _least(self, client: int) -> float:
        """The score of a change of one channel by :data:`TOLERANCE`, in every row."""
        settings = self.settings_
        times = settings["window"] if settings["residual"] == "full" else 1
        square = TOLERANCE**2
        if settings["score_scale"] == "none":
            return times * square
        square = square / float(self._arrays["variance"][client].min())
        return times * (math.log1p(square) if settings["score_scale"] == "log" else square)

    def _parts(self, name: str, stream: _Stream) -> np.ndarray:
        """``(T, C + 1)`` parts of every row's unsmoothed score; NaN for a row without one."""
        client, settings = self.clients_.index(name), self.settings_
        rows, channels = stream.values.shape
        with np.errstate(over="ignore"):  # what overflows is clipped below
            z = (stream.values - self._arrays["center"][client]) / self._arrays["scale"][client]
        bound = min(settings["clip"], LARGEST)
        warm_up = settings["window"] - 1 + settings["horizon"]
        x = np.zeros((warm_up + padded(rows - warm_up), channels), np.float32)
        x[:rows] = np.clip(policy.fill_forward(z), -bound, bound)
        found = _contributions(
            self._detector(client), x, horizon=settings["horizon"], residual=settings["residual"],
            scale=settings["score_scale"],
        )  # fmt: skip
        parts = np.asarray(found)[:rows].astype(np.float64)
        if settings["missing"] == "mask":
            seen = ~np.isnan(z)
            observed = seen.sum(axis=1, keepdims=True)
            parts[:, :channels] = np.where(seen, parts[:, :channels] * channels / np.maximum(observed, 1), 0)
            parts[observed[:, 0] == 0] = np.nan
        for start in stream.starts:
            parts[start : start + warm_up] = np.nan
        return parts

    def _smooth(self, values: np.ndarray, stream: _Stream) -> np.ndarray:
        runs = _runs_of(values, stream.starts)
        return np.concatenate(
            [evaluation.moving_mean(run, self.settings_["smoothing"]) for run in runs] or [values]
        )

    def _score(self, name: str, stream: _Stream) -> np.ndarray:
        return self._smooth(self._parts(name, stream).sum(axis=1), stream)

    def _read(self, name: str, x: Any) -> tuple[_Stream, pd.Index | None]:
        reading = policy.read(x, self.columns_, f"client {name}", missing=self.settings_["missing"])
        stream = self._stream(reading)
        if len(stream.starts) > 1:
            assert reading.index is not None
            usual, trained = policy.usual_interval(reading.index), self.settings_["interval"]
            warn_user(
                f"client {name}: {len(stream.starts) - 1} gaps in time, the first before "
                f"{reading.index[stream.starts[1]]}; scores begin anew behind a gap (rows are usually {usual:g} s "
                f"apart here, {trained:g} s in training)"
            )
        return stream, reading.index

    def _known_score(self, name: str, x: Any) -> np.ndarray:
        self._number(name)
        return self._score(name, self._read(name, x)[0])

    def _score_like(self, name: str, x: Any) -> Any:
        stream, index = self._read(name, x)
        if name in self.left_out_:
            warn_user(f"client {name} was left out of the fit, so its scores are NaN: {self.left_out_[name]}")
            return like(np.full(len(stream.values), np.nan), index, "score")
        return like(self._score(name, stream), index, "score")

    def _alarms_like(self, name: str, x: Any) -> Any:
        score = self._score_like(name, x)
        threshold = self.threshold_.get(name, math.nan)
        if np.isnan(threshold):
            warn_user(f"client {name} has no threshold and so no alarm; recalibrate it with its normal rows")
        alarms = evaluation.alarms(np.asarray(score), threshold).astype(np.int64)
        return like(alarms, score.index if isinstance(score, pd.Series) else None, "alarm")

    def _contributions_like(self, name: str, x: Any) -> Any:
        self._number(name)
        stream, index = self._read(name, x)
        parts = self._smooth(self._parts(name, stream), stream)
        columns = [*self.columns_, "lift"]
        if self.settings_["residual"] == "newest":
            parts, columns = parts[:, :-1], columns[:-1]
        return parts if index is None else pd.DataFrame(parts, index=index, columns=columns)

    def _each(self, x: Any, client: str | None, function: Callable[[str, Any], Any]) -> Any:
        """Apply a function of a client's name and stream to one stream, a dict or a list."""
        self._must_be_fitted()
        if isinstance(x, data.Streams):
            raise ValueError("pass the streams themselves, such as streams.test")
        many = isinstance(x, Mapping) or _is_list(x)
        if many and client is not None:
            raise ValueError(f"client={client!r} goes with one stream, but several were given")
        if isinstance(x, Mapping):
            for name in x:
                self._known(str(name))
            return {name: function(str(name), value) for name, value in x.items()}
        if _is_list(x):
            names = list(named(x, "the data"))
            for name in names:
                self._known(name)
            return [function(name, value) for name, value in zip(names, x, strict=True)]
        if client is None:
            if len(self.clients_) > 1:
                raise ValueError(f"whose stream is it? Pass client=, one of {listed(self.clients_)}")
            client = self.clients_[0]
        self._known(str(client))
        return function(str(client), x)

    def _known(self, name: str) -> None:
        if name not in self.left_out_:
            self._number(name)

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        s, clients, channels = self.settings_, len(self.clients_), len(self.columns_)
        size = s["window"] * channels + s["lift_size"]
        counted = channels if s["residual"] == "newest" else size
        return {
            "center": (clients, channels),
            "scale": (clients, channels),
            "lift_weight": (s["lift_size"], s["window"], channels),
            "lift_bias": (s["lift_size"],),
            "basis": (size, s["rank"]),
            "operator": (clients, s["rank"], s["rank"]),
            "threshold": (clients,),
            **({"readout": (clients, counted, s["rank"])} if s["residual"] == "newest" else {}),
            **({"variance": (clients, counted)} if s["score_scale"] != "none" else {}),
        }


def _is_list(x: Any) -> bool:
    if isinstance(x, np.ndarray):
        return x.ndim == 3
    return isinstance(x, list | tuple) and len(x) > 0 and np.ndim(x[0]) == 2


def _runs_of(values: np.ndarray, starts: np.ndarray) -> list[np.ndarray]:
    return np.split(values, starts[1:]) if len(values) else []


def _known_rows(stream: _Stream, missing: str) -> np.ndarray:
    """``(T,)`` which rows count in training; a row of which nothing was observed does not under "mask"."""
    if missing == "mask":
        return ~np.isnan(stream.values).all(axis=1)
    return np.ones(len(stream.values), bool)


def _longest(known: np.ndarray) -> int:
    """Length of the longest run of True."""
    edges = np.flatnonzero(np.diff(known.astype(np.int8), prepend=0, append=0))
    return int(np.max(edges[1::2] - edges[::2], initial=0))


def _training_series(stream: _Stream, scaler: data.Scaler, missing: str) -> tuple[np.ndarray, np.ndarray]:
    """Scaled rows ``(T, C)`` and which are known ``(T,)``; a gap becomes one row that is not."""
    z = policy.fill_forward(scaler.transform(stream.values))
    known = _known_rows(stream, missing)
    behind = stream.starts[1:]
    return np.insert(z, behind, 0.0, axis=0), np.insert(known, behind, False)


def _stack(series: Sequence[tuple[np.ndarray, np.ndarray]]) -> Series:
    longest = max(len(known) for _, known in series)
    stacked = data.stack_series([z for z, _ in series], length=padded(longest))
    for k, (_, known) in enumerate(series):
        stacked.mask[k, : len(known)] = known
    return Series(jnp.asarray(stacked.x), jnp.asarray(stacked.mask))


@functools.lru_cache(maxsize=16)
def _algorithm(
    channels: int, window: int, lift_size: int, score_scale: koopman.Scale, **settings: Any
) -> FedAlgorithm:
    """One value for equal settings, so that their programs are compiled once.

    Its lift is not the detector's: training looks at moments alone, and needs the lift for its size only.
    """
    lift = koopman.random_lift(jax.random.key(0), channels, window=window, size=lift_size)
    return fedkad(lift, scale=score_scale, **settings)


_uniform = functools.lru_cache(maxsize=16)(federation.uniform)
_begin = jax.jit(federation.init, static_argnames="alg")


@functools.partial(jax.jit, static_argnames="alg")
def _deploy(alg: FedAlgorithm, server: jax.Array, sums: moments.Moments) -> koopman.Detector:
    """Detectors of all clients, leaves ``(K, ...)``, one client at a time; no client's state is needed."""
    return jax.lax.map(lambda one: alg.deploy(server, None, one), sums)


@functools.partial(jax.jit, static_argnames=("horizon", "residual", "scale"))
def _contributions(
    detector: koopman.Detector,
    x: jax.Array,
    *,
    horizon: int,
    residual: koopman.Residual,
    scale: koopman.Scale,
) -> jax.Array:
    return koopman.contributions(detector, x, horizon=horizon, residual=residual, scale=scale, chunk=CHUNK)


def _widened(part: np.ndarray, wide: int, size: int, fill: float) -> np.ndarray:
    """``(D, ...)`` from the entries that the score counts, ``(D, ...)`` or those of the newest row ``(C, ...)``."""
    if len(part) == size:
        return part
    whole = np.full((size, *part.shape[1:]), fill, part.dtype)
    whole[wide - len(part) : wide] = part
    return whole
