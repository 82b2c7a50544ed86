"""What both kinds of runs share: the result, the clock, training as one program, and judging under one rule."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
    alg: FedAlgorithm, key: Key, clients: PyTree, sampler: federation.Sampler, rounds: int
) -> tuple[PyTree, federation.RoundInfo]:
    """A whole training without a stop: all clients' detectors and the history. For use inside ``jit``."""
    state = federation.init(alg, key, clients)
    first = jnp.asarray(0)
    state, history = federation.run(alg, key, state, clients, first, sampler=sampler, rounds=rounds)
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
