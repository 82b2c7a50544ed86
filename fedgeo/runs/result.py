"""What both kinds of runs share: the result, the clock, training as one program, and judging under one rule."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from fedgeo import evaluation, federation
from fedgeo.protocol import FedAlgorithm, Key, PyTree

OnStep = Callable[[str, int], None]
"""Called with what is about to be done, and of how many steps it is one."""


def silent(step: str, steps: int) -> None:
    """No progress."""
    del step, steps


METRICS = {
    "client": ("auroc", "ap", "f1", "f1_pa1", "f1_pa10", "alarm_rate"),
    "class": (
        "auroc", "ap", "f1", "precision", "recall", "alarm_rate",
        "youden_accuracy", "youden_precision", "youden_recall", "youden_f1",
    ),
}  # fmt: skip
"""What the main table shows for each kind of unit, by the names of ``evaluation.per_client``."""


CURVE_POINTS = 100
"""Levels of recall at which a run keeps the precision: the middles of as many equal steps from 0 to 1."""


class StreamExample(NamedTuple):
    """One client's test stream as one method saw it, for a picture.

    Attributes:
        client: whose.
        method: whose score.
        channels: the n channels that added most to the score where it raised an alarm.
        x: ``(T, n)`` of those channels, in their own units.
        parts: ``(T, n)`` what each of them added to the score.
        scores: ``(T,)``, NaN during the warm-up.
        labels: ``(T,)`` of 0 and 1.
        threshold: an alarm is a score above it.
        alarms: one row a detected span, as :func:`fedgeo.runs.streams.alarm_table` makes it.
    """

    client: str
    method: str
    channels: tuple[str, ...]
    x: np.ndarray
    parts: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    threshold: float
    alarms: pd.DataFrame


@dataclass(frozen=True)
class Result:
    """What a run found.

    Attributes:
        name: method and data set.
        unit: what a row of ``units`` stands for, ``"client"`` or ``"class"``.
        units: one row a method, seed and unit, with the columns of ``evaluation.per_client``.
        seconds: one row a method, with ``compile`` in all and ``run_per_seed``.
        settings: everything that was chosen.
        notes: what a reader must know: skipped clients, constant channels, incidents.
        details: lists too long for a note, such as the constant channels by client.
        example: scores of one method and seed by client, for a picture.
        thresholds: those of ``example``.
        history: one row a method, seed and round: means over the clients that counted (and over classes) of what the
            algorithm reports, and how many counted.
        curves: one row a method and level of recall: the precision there, mean over units and seeds.
        stream: one client's stream with the parts of its score; None for tables.
    """

    name: str
    unit: str
    units: pd.DataFrame
    seconds: pd.DataFrame
    settings: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    example: dict[str, np.ndarray] = field(default_factory=dict)
    thresholds: dict[str, float] = field(default_factory=dict)
    history: pd.DataFrame = field(default_factory=pd.DataFrame)
    curves: pd.DataFrame = field(default_factory=pd.DataFrame)
    stream: StreamExample | None = None

    def table(self) -> pd.DataFrame:
        """One row a method, in percent: mean over units and seeds, its spreads, units covered, seeds.

        ``_sd`` is the standard deviation over seeds of the mean over units; ``_sd_units`` that over units of the mean
        over seeds.
        """
        records = {}
        for method, rows in self.units.groupby("method", sort=False):
            macros = [
                evaluation.macro(one.drop(columns=["method", "seed", "unit"]))
                for _, one in rows.groupby("seed")
            ]
            summary = evaluation.over_seeds(macros)
            by_unit = rows.groupby("unit")[list(METRICS[self.unit])].mean().std(ddof=1)
            record: dict[str, Any] = {}
            for metric in METRICS[self.unit]:
                record[metric] = 100 * summary["mean"][metric]
                record[f"{metric}_sd"] = 100 * summary["sd"][metric]
                record[f"{metric}_sd_units"] = 100 * by_unit[metric]
            covered = summary["n_defined"][list(METRICS[self.unit])]
            record["covers"] = f"{_range(covered.min(), covered.max())}/{summary['clients']['auroc']}"
            record["seeds"] = summary["seeds"]["auroc"]
            records[method] = record
        return pd.DataFrame.from_dict(records, orient="index").rename_axis("method")


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def check_rounds_and_quantile(rounds: int, quantile: float) -> None:
    """Raise ValueError for a value out of its range."""
    if rounds < 0:
        raise ValueError(f"rounds cannot be negative, got {rounds}")
    if not 0 < quantile <= 1:
        raise ValueError(f"quantile is a probability in (0, 1], got {quantile}")


def check_seeds(seeds: Sequence[int]) -> None:
    """Raise ValueError unless there are seeds, distinct and not negative."""
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must be distinct, not negative, and at least one, got {list(seeds)}")


def train(
    alg: FedAlgorithm,
    key: Key,
    clients: PyTree,
    sampler: federation.Sampler,
    rounds: int,
    block_size: int | None = None,
) -> tuple[PyTree, federation.RoundInfo]:
    """A whole training without a stop: all clients' detectors and the history. For use inside ``jit``."""
    state = federation.init(alg, key, clients)
    first = jnp.asarray(0)
    state, history = federation.run(
        alg, key, state, clients, first, sampler=sampler, rounds=rounds, block_size=block_size
    )
    return federation.deploy(alg, state, clients), history


def judge(
    on_validation: Mapping[str, np.ndarray],
    on_test: dict[str, np.ndarray],
    labels: Mapping[str, np.ndarray],
    quantile: float,
) -> tuple[pd.DataFrame, dict[str, float]]:
    """Every unit evaluated under its own quantile of its validation scores, and those thresholds."""
    thresholds = evaluation.calibrate(on_validation, lambda s: evaluation.quantile(s, quantile))
    return evaluation.per_client(on_test, labels, thresholds), thresholds


def tidy(frames: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Frames with units as index, joined, with the unit as a column."""
    rows = pd.concat(frames).reset_index(names="unit")
    return rows[["method", "seed", *(c for c in rows.columns if c not in ("method", "seed"))]]


def rounds_of(history: federation.RoundInfo) -> pd.DataFrame:
    """One row a round: ``round``, ``counted`` clients, and the mean over those of every metric, NaN for none.

    Args:
        history: leaves ``(R, S, ...)``.
    """
    weight = np.asarray(history.weight)
    counts = weight > 0
    number = counts.sum(axis=1)
    columns: dict[str, np.ndarray] = {"round": np.arange(len(weight)), "counted": number}
    for name, values in history.metrics.items():
        total = np.where(counts, np.asarray(values, np.float64), 0).sum(axis=1)
        columns[name] = np.where(number > 0, total / np.maximum(number, 1), np.nan)
    return pd.DataFrame(columns)


def tidy_history(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Frames of :func:`rounds_of` with method and seed, joined; rounds of several classes become their mean."""
    rows = [frame for frame in frames if len(frame)]
    if not rows:
        return pd.DataFrame()
    return pd.concat(rows).groupby(["method", "seed", "round"], sort=False).mean().reset_index()


class Curves:
    """Collects precision at :data:`CURVE_POINTS` levels of recall, and averages it as the table does its metrics."""

    def __init__(self) -> None:
        self._levels = (np.arange(CURVE_POINTS) + 0.5) / CURVE_POINTS
        self._found: dict[str, dict[int, list[np.ndarray]]] = {}

    def add(
        self, method: str, seed: int, scores: Mapping[str, np.ndarray], labels: Mapping[str, np.ndarray]
    ) -> None:
        """Scores and labels ``(T,)`` by unit; units with one class only have no curve."""
        curves = [evaluation.precision_at(s, labels[unit], self._levels) for unit, s in scores.items()]
        defined = [curve for curve in curves if not np.isnan(curve).any()]
        self._found.setdefault(method, {}).setdefault(seed, []).extend(defined)

    def table(self) -> pd.DataFrame:
        """Columns ``method``, ``recall`` and ``precision``; methods without any curve are left out."""
        frames = []
        for method, seeds in self._found.items():
            means = [np.mean(curves, axis=0) for curves in seeds.values() if curves]
            if means:
                precision = np.mean(means, axis=0)
                frames.append(
                    pd.DataFrame({"method": method, "recall": self._levels, "precision": precision})
                )
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


class Program:
    """A function compiled once for every set of shapes, which knows how long that took."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._compiled: dict[Any, Any] = {}

    def compiled(self, *arguments: Any) -> tuple[Callable[..., Any], float]:
        """The executable for arguments of these shapes, and the seconds that compiling took now."""
        leaves, structure = jax.tree.flatten(arguments)
        shapes = (structure, *((leaf.shape, leaf.dtype) for leaf in leaves))
        if shapes in self._compiled:
            return self._compiled[shapes], 0.0
        began = time.perf_counter()
        self._compiled[shapes] = jax.jit(self._function).lower(*arguments).compile()
        return self._compiled[shapes], time.perf_counter() - began


class Clock:
    """Times work under the name of the current method, compilation apart from the rest."""

    def __init__(self) -> None:
        self.method = ""
        self._seconds: dict[str, list[float]] = {}

    def _add(self, compiling: float, running: float) -> None:
        total = self._seconds.setdefault(self.method, [0.0, 0.0])
        total[0] += compiling
        total[1] += running

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``jit(function)``, compiled once for every set of shapes."""
        program = Program(function)
        return lambda *arguments: self.run(program, *arguments)

    def run(self, program: Program, *arguments: Any) -> Any:
        """The result of a program."""
        executable, seconds = program.compiled(*arguments)
        self._add(seconds, 0)
        return self.measure(lambda: jax.block_until_ready(executable(*arguments)))

    def measure(self, work: Callable[[], Any]) -> Any:
        """The result of ``work()``."""
        began = time.perf_counter()
        result = work()
        self._add(0, time.perf_counter() - began)
        return result

    def table(self, seeds: int) -> pd.DataFrame:
        """Seconds by method: compiling in all, running a seed."""
        records = {name: {"compile": c, "run_per_seed": r / seeds} for name, (c, r) in self._seconds.items()}
        return pd.DataFrame.from_dict(records, orient="index").rename_axis("method")
