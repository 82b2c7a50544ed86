"""Whole runs: data to scores to tables, each method beside its control rows under one rule.

A run trains a method for every seed, scores the test data, sets thresholds without a test label, evaluates every unit
(a client's stream, or a class held normal) on its own, and keeps the time of compiling apart from the time of running.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
from numpy.lib.stride_tricks import sliding_window_view

from fedgeo import data, evaluation, federation, trees
from fedgeo.algorithms import koopman, moments
from fedgeo.algorithms.fedavg import fedavg
from fedgeo.algorithms.fedkad import RECOMMENDED, Start, fedkad
from fedgeo.algorithms.local import local_only
from fedgeo.algorithms.one_shot import one_shot
from fedgeo.baselines import controls
from fedgeo.baselines.forests import federated_isolation_forest, federated_xgboost
from fedgeo.baselines.neighbours import knn
from fedgeo.models.encoder import geodesic_svdd, mlp_svdd
from fedgeo.protocol import FedAlgorithm, Key, Model, PyTree, Rows

OnStep = Callable[[str, int], None]
"""Called with what is about to be done, and of how many steps it is one."""


def _silent(step: str, steps: int) -> None:
    del step, steps


METRICS = {
    "client": ("auroc", "ap", "f1", "f1_pa1", "f1_pa10", "alarm_rate"),
    "class": ("auroc", "ap", "f1", "precision", "recall", "alarm_rate"),
}
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
        """One row a method: mean over units and seeds in percent, sd over seeds, units covered, seeds."""
        records = {}
        for method, rows in self.units.groupby("method", sort=False):
            macros = [
                evaluation.macro(one.drop(columns=["method", "seed", "unit"]))
                for _, one in rows.groupby("seed")
            ]
            summary = evaluation.over_seeds(macros)
            record: dict[str, Any] = {}
            for metric in METRICS[self.unit]:
                record[metric] = 100 * summary["mean"][metric]
                record[f"{metric}_sd"] = 100 * summary["sd"][metric]
            covered = summary["n_defined"][list(METRICS[self.unit])]
            record["covers"] = f"{_range(covered.min(), covered.max())}/{summary['clients']['auroc']}"
            record["seeds"] = summary["seeds"]["auroc"]
            records[method] = record
        return pd.DataFrame.from_dict(records, orient="index").rename_axis("method")


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


@dataclass(frozen=True)
class KoopmanSettings:
    """FedKAD's settings; defaults are the paper's (section VI-A1), but for the quantile, which it does not state.

    Attributes:
        window: W, rows a window.
        lift_size: d_lift, random tanh features.
        rank: r, columns of the shared subspace.
        rho: ADMM penalty.
        step_size: eta, local step on the Stiefel manifold.
        inner_steps: C, local steps a round.
        ridge: of the reduced operator, relative to its mean eigenvalue.
        projection: "horizontal" is eq. 19 of the paper, "tangent" the full Stiefel gradient.
        start: all clients from one random frame ("shared"), each from its own ("independent"), or all from the leading
            subspace of their mean moments ("warm", not the paper's; the table has a row for it in any case).
        spectral_cap: bound on the spectral radius of deployed operators.
        residual: the score counts every entry of the lifted window ("full", the paper's) or its newest row ("newest").
        scale: each entry as it is ("none", the paper's), by its training variance, or the log of that.
        horizon: H, steps predicted by the score.
        smoothing: rows of the causal moving mean over scores, for every row of the table.
        rounds: R.
        participation: share of clients drawn each round.
        validation: share at the end of each training stream kept for the threshold.
        quantile: of validation scores, above which a row is an alarm.
    """

    window: int = 20
    lift_size: int = 128
    rank: int = 24
    rho: float = 1.0
    step_size: float = 0.05
    inner_steps: int = 5
    ridge: float = 1e-2
    projection: Literal["horizontal", "tangent"] = "horizontal"
    start: Start = "shared"
    spectral_cap: float = 0.995
    residual: koopman.Residual = "full"
    scale: koopman.Scale = "none"
    horizon: int = 1
    smoothing: int = 5
    rounds: int = 30
    participation: float = 0.25
    validation: float = 0.15
    quantile: float = 0.99

    def algorithm(self, lift: koopman.Lift) -> FedAlgorithm:
        """FedKAD with these settings."""
        own = ("window", "lift_size", "rounds", "participation", "validation", "quantile")
        return fedkad(lift, **{n: v for n, v in dataclasses.asdict(self).items() if n not in own})

    def scoring(self) -> "KoopmanSettings":
        """The same for all settings that score alike."""
        return dataclasses.replace(self, start="shared")

    def check(self) -> None:
        """Raise ValueError for a value that only a run can judge."""
        if not 0 < self.participation <= 1:
            raise ValueError(f"participation is a share of the clients in (0, 1], got {self.participation}")
        if not 0 < self.validation < 1:
            raise ValueError(
                f"validation is a share of each training stream in (0, 1), got {self.validation}"
            )
        _check_rounds_and_quantile(self.rounds, self.quantile)


def run_fedkad(
    streams: data.Streams,
    settings: KoopmanSettings | None = None,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    on_step: OnStep = _silent,
) -> Result:
    """FedKAD on a federation of streams, with control rows.

    Args:
        streams: clients with train, test and labels. One whose training, validation or test part is too short for a
            single prediction is left out of all rows, and named.
        settings: the paper's by default.
        seeds: each draws the lift, the start and the cohorts anew.
        on_step: for progress.

    Raises:
        ValueError: no client is left, or a setting is out of its range.
    """
    settings = settings or KoopmanSettings()
    settings.check()
    _check_seeds(seeds)
    streams, notes = _usable_streams(streams, settings)
    scaled, scalers = data.standardise(streams, validation=settings.validation)
    constant = data.constant_channels(scalers, streams.channels)
    if constant:
        notes.append(
            f"{len(constant)} of {len(streams)} clients have channels that are constant in training, up to "
            f"{max(map(len, constant.values()))} of {len(streams.channels)}; they are left unscaled (named in run.json)"
        )
    train, validation = data.split(scaled.train, settings.validation)
    stacked = jax.tree.map(jnp.asarray, data.stack_series(train))
    parts = [jnp.asarray(data.stack_series(part).x) for part in (validation, scaled.test)]
    channels = stacked.x.shape[-1]
    cohort = max(round(settings.participation * len(streams)), 1)

    uniform, replace = federation.uniform(cohort), dataclasses.replace
    variants = {
        "FedKAD": _Variant(settings, uniform, settings.rounds),
        "FedKAD, warm": _Variant(replace(settings, start="warm"), uniform, settings.rounds),
        "FedKAD, recommended": _Variant(replace(settings, **RECOMMENDED), uniform, settings.rounds),
        "untrained subspace": _Variant(replace(settings, start="shared"), uniform, 0),
        "local-only": _Variant(settings, federation.everyone, settings.rounds, alone=True),
        "local-only, warm": _Variant(
            replace(settings, start="warm"), federation.everyone, settings.rounds, alone=True
        ),
    }
    clock = _Clock()
    prepare = clock.timed(moments.prepare)
    draw_lift = partial(
        koopman.random_lift, channels=channels, window=settings.window, size=settings.lift_size
    )
    any_lift = draw_lift(jax.random.key(0))  # a detector brings its own
    trainers = {name: clock.timed(variant.train) for name, variant in variants.items()}
    scorers = {
        how: clock.timed(partial(federation.score, how.algorithm(any_lift)))
        for how in {variant.settings.scoring() for variant in variants.values()}
    }
    frames: list[pd.DataFrame] = []
    example: dict[str, np.ndarray] = {}
    thresholds: dict[str, float] = {}
    steps = len(seeds) * (len(trainers) + 2)
    for seed in seeds:
        key = jax.random.key(seed)
        lift = draw_lift(jax.random.fold_in(key, 1))
        on_step(f"seed {seed}: second moments", steps)
        clock.method = "second moments"
        sums = prepare(lift, stacked)
        for method, train_method in trainers.items():
            on_step(f"seed {seed}: {method}", steps)
            clock.method = method
            detectors, history = train_method(key, lift, sums)
            clock.method = "scoring"
            score = scorers[variants[method].settings.scoring()]
            if method.startswith("FedKAD"):
                notes += [
                    f"{method}, seed {seed}: {line}" for line in federation.incidents(history, streams.names)
                ]
            on_validation, on_test = (
                data.unstack(score(detectors, x), part)
                for x, part in zip(parts, (validation, scaled.test), strict=True)
            )
            frame, limits = _judge(on_validation, on_test, streams.labels, settings.quantile)
            frames.append(frame.assign(method=method, seed=seed))
            if method == "FedKAD, recommended" and not example:
                example, thresholds = on_test, limits
    for seed in seeds:
        on_step(f"seed {seed}: control rows", steps)
        clock.method = "controls"
        scores = clock.measure(partial(controls.score_streams, train, validation, scaled.test, seed=seed))
        for method, (on_validation, on_test) in scores.items():
            if method == "random" or seed == seeds[0]:  # the others depend on no seed
                frame, _ = _judge(
                    _smooth(on_validation, settings.smoothing), _smooth(on_test, settings.smoothing),
                    streams.labels, settings.quantile,
                )  # fmt: skip
                frames.append(frame.assign(method=method, seed=seed))

    size = settings.window * channels + settings.lift_size
    facts = {
        "data": streams.name, "clients": len(streams), "channels": channels, "lifted_dimension": size,
        "cohort": cohort, "upload_bytes_per_client_and_round": 4 * size * settings.rank, "seeds": list(seeds),
    }  # fmt: skip
    return Result(
        f"FedKAD on {streams.name}", "client", _tidy(frames), clock.table(len(seeds)),
        facts | dataclasses.asdict(settings), notes, {"constant_channels": constant}, example, thresholds,
    )  # fmt: skip


def _usable_streams(streams: data.Streams, settings: KoopmanSettings) -> tuple[data.Streams, list[str]]:
    needed = settings.window + settings.horizon
    keep, notes = [], []
    for name in streams.names:
        if name not in streams.test or name not in streams.labels:
            raise ValueError(f"client {name} has no labelled test stream, so there is nothing to evaluate")
        train, validation = (len(x) for x in data.temporal_split(streams.train[name], settings.validation))
        if min(train, validation, len(streams.test[name])) < needed:
            notes.append(
                f"client {name} left out: {train} training, {validation} validation and {len(streams.test[name])} "
                f"test rows; a window of {settings.window} and a horizon of {settings.horizon} need {needed} of each"
            )
        else:
            keep.append(name)
    if not keep:
        raise ValueError(f"no client of {streams.name} is long enough: " + "; ".join(notes[:3]))
    return streams.select(keep), notes


class _Variant(NamedTuple):
    """One trained row of the table."""

    settings: KoopmanSettings
    sampler: federation.Sampler
    rounds: int
    alone: bool = False

    def train(
        self, key: Key, lift: koopman.Lift, sums: moments.Moments
    ) -> tuple[PyTree, federation.RoundInfo]:
        alg = self.settings.algorithm(lift)
        return _train(local_only(alg) if self.alone else alg, key, sums, self.sampler, self.rounds)


def _train(
    alg: FedAlgorithm, key: Key, clients: PyTree, sampler: federation.Sampler, rounds: int
) -> tuple[PyTree, federation.RoundInfo]:
    state = federation.init(alg, key, clients)
    first = jnp.asarray(0)
    state, history = federation.run(alg, key, state, clients, first, sampler=sampler, rounds=rounds)
    return federation.deploy(alg, state, clients), history


def _smooth(scores: Mapping[str, np.ndarray], width: int) -> dict[str, np.ndarray]:
    """What ``koopman.smooth`` does, for the controls."""

    def one(values: np.ndarray) -> np.ndarray:
        with_past = np.concatenate([np.full(width - 1, np.nan), values])
        known = sliding_window_view(~np.isnan(with_past), width)
        total = sliding_window_view(np.where(np.isnan(with_past), 0.0, with_past), width).sum(axis=1)
        return np.where(np.isnan(values), np.nan, total / np.maximum(known.sum(axis=1), 1))

    return {name: one(values) for name, values in scores.items()}


def _judge(
    on_validation: Mapping[str, np.ndarray],
    on_test: dict[str, np.ndarray],
    labels: Mapping[str, np.ndarray],
    quantile: float,
) -> tuple[pd.DataFrame, dict[str, float]]:
    thresholds = evaluation.calibrate(on_validation, lambda s: evaluation.quantile(s, quantile))
    return evaluation.per_client(on_test, labels, thresholds), thresholds


@dataclass(frozen=True)
class GeodesicSettings:
    """Geodesic-SVDD's settings; K, the rounds and one sample of lambda a batch are the paper's, it states no others.

    Attributes:
        clients: K.
        scaling: "standard" by mean and sd, "robust" by median and quartiles, "auto" as the paper did for each data set.
        alpha: of the Dirichlet label skew; None deals rows out evenly at random.
        latent: d.
        width: of the hidden layers.
        blocks: residual blocks.
        dropout: rate on the residual path.
        mixup: "slerp", "lerp" or "none".
        kappa: of the Beta(kappa, kappa) that mixes.
        learning_rate: of each client's Adam.
        batch_size: rows a local step.
        rounds: of the iterative protocol.
        local_epochs: a round of the iterative protocol.
        one_shot_epochs: of the one-shot protocol.
        quantile: of the normal validation scores, above which a row is an alarm.
        baselines: add the paper's other methods: FedAvg with the same encoder but no mixup (FE), with an MLP, and with
            an MLP onto the sphere; centralised nearest neighbours; federated isolation forest and XGBoost.
    """

    clients: int = 3
    scaling: Literal["auto", "standard", "robust"] = "auto"
    alpha: float | None = None
    latent: int = 32
    width: int = 128
    blocks: int = 2
    dropout: float = 0.1
    mixup: Literal["slerp", "lerp", "none"] = "slerp"
    kappa: float = 0.2
    learning_rate: float = 1e-3
    batch_size: int = 128
    rounds: int = 50
    local_epochs: int = 1
    one_shot_epochs: int = 50
    quantile: float = 0.95
    baselines: bool = False

    def check(self) -> None:
        """Raise ValueError for a value that only a run can judge."""
        _check_rounds_and_quantile(self.rounds, self.quantile)
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be positive and finite, got {self.learning_rate}")


def _check_rounds_and_quantile(rounds: int, quantile: float) -> None:
    if rounds < 0:
        raise ValueError(f"rounds cannot be negative, got {rounds}")
    if not 0 < quantile <= 1:
        raise ValueError(f"quantile is a probability in (0, 1], got {quantile}")


def _check_seeds(seeds: Sequence[int]) -> None:
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must be distinct, not negative, and at least one, got {list(seeds)}")


class _Task(NamedTuple):
    """One class held normal under one seed, scaled."""

    label: str
    seed: int
    clients: list[np.ndarray]  # K tables (N_k, F) of normal training rows
    validation: np.ndarray  # (V, F) normal rows
    test: np.ndarray  # (M, F)
    anomalous: np.ndarray  # (M,)
    notes: list[str]


def run_geodesic(
    table: data.Table,
    settings: GeodesicSettings | None = None,
    *,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    on_step: OnStep = _silent,
) -> Result:
    """Geodesic-SVDD on a labelled table, each class in turn held normal, with control rows.

    Rows are split 60/20/20 into train, validation and test, class by class; train rows are dealt out to K clients,
    scaled with the federation's own mean and sd, or median and quartiles, and each client keeps its rows of the normal
    class. All classes and seeds train as one vmapped program.

    Args:
        table: the data set.
        settings: see :class:`GeodesicSettings`.
        seeds: each draws the split, the partition and the start anew.
        on_step: for progress.

    Raises:
        ValueError: a setting out of its range, or a class with too few rows to split.
    """
    settings = settings or GeodesicSettings()
    settings.check()
    _check_seeds(seeds)
    encoder = partial(
        geodesic_svdd, latent=settings.latent, width=settings.width, blocks=settings.blocks,
        dropout=settings.dropout, kappa=settings.kappa,
    )  # fmt: skip
    mlp = partial(mlp_svdd, latent=settings.latent, width=settings.width)
    adam = optax.adam(settings.learning_rate)

    def averaged(model: Model) -> FedAlgorithm:
        return fedavg(model, optimizer=adam, epochs=settings.local_epochs, batch_size=settings.batch_size)

    model = encoder(mixup=settings.mixup)
    every_round = averaged(model)
    at_once = one_shot(model, optimizer=adam, epochs=settings.one_shot_epochs, batch_size=settings.batch_size)

    tasks = [
        _one_class(table, settings, label, seed) for seed in seeds for label in range(len(table.classes))
    ]
    rows = _stack_each([task.clients for task in tasks])
    together = _stack_each([[np.concatenate(task.clients)] for task in tasks])
    queries = jnp.asarray(data.stack_rows([np.concatenate([t.validation, t.test]) for t in tasks]).x)
    keys = jnp.stack([jax.random.fold_in(jax.random.key(task.seed), k) for k, task in enumerate(tasks)])

    methods: dict[str, tuple[FedAlgorithm, Rows, int]] = {
        "Geodesic (OS)": (at_once, rows, 1),
        "Geodesic (Iter)": (every_round, rows, settings.rounds),
        "untrained encoder": (every_round, rows, 0),
        "local-only": (local_only(every_round), rows, settings.rounds),
        "centralised": (every_round, together, settings.rounds),
    }
    if settings.baselines:
        methods |= {
            "FedAvg (FE)": (averaged(encoder(mixup="none")), rows, settings.rounds),
            "FedAvg (MLP)": (averaged(mlp()), rows, settings.rounds),
            "FedAvg (MLP, SM)": (averaged(mlp(sphere=True)), rows, settings.rounds),
        }
    clock, frames = _Clock(), []
    steps = len(methods) + 1
    notes = [note for task in tasks for note in task.notes]
    for method, (alg, clients, rounds) in methods.items():
        on_step(method, steps)
        clock.method = method
        scores, history = clock.timed(_one_class_program(alg, rounds))(keys, clients, queries)
        for b, task in enumerate(tasks):
            present = np.flatnonzero(np.asarray(clients.mask[b]).any(axis=1))
            judged = {
                f"{task.label} / client {k}" if method == "local-only" else task.label: np.asarray(
                    scores[b, k]
                )
                for k in (present if method == "local-only" else [0])
            }
            frames.append(_judge_task(task, judged, settings.quantile).assign(method=method, seed=task.seed))
            one = jax.tree.map(lambda leaf, b=b: leaf[b], history)
            names = [f"client {k}" for k in range(clients.mask.shape[1])]
            incidents = federation.incidents(one, names) if method.startswith("Geodesic") else []
            notes += [
                f"{method}, seed {task.seed}, {task.label}: {line}"
                for line in incidents
                if "usable" not in line
            ]
            notes += [f"{method}, seed {task.seed}: {line}" for line in _collapse(judged, task)]
    on_step("control rows", steps)
    clock.method = "controls"
    for task in tasks:
        frame = clock.measure(partial(_control_rows, task, settings))
        frames.append(frame.assign(seed=task.seed))

    state = jax.eval_shape(
        lambda k, r: federation.init(every_round, k, r), keys[0], jax.tree.map(lambda a: a[0], rows)
    )
    facts = {
        "data": table.name, "rows": len(table), "features": len(table.features), "classes": list(table.classes),
        "upload_bytes_per_client_and_round": trees.nbytes(state.server.params), "seeds": list(seeds),
    }  # fmt: skip
    skew = "IID" if settings.alpha is None else f"Dirichlet {settings.alpha:g}"
    return Result(
        f"Geodesic-SVDD on {table.name}, {skew}", "class", _tidy(frames), clock.table(len(seeds)),
        facts | dataclasses.asdict(settings), notes,
    )  # fmt: skip


def _one_class(table: data.Table, settings: GeodesicSettings, label: int, seed: int) -> _Task:
    parts = data.stratified_split(table.y, seed=seed, classes=table.classes)
    y = table.y[parts.train]
    if settings.alpha is None:
        partition = data.iid(y, settings.clients, seed)
    else:
        partition = data.dirichlet(y, settings.alpha, settings.clients, seed)
    held = [parts.train[rows] for rows in partition]
    robust = settings.scaling == "robust" or (settings.scaling == "auto" and table.skewed)
    fit_scaler = data.federated_robust_scaler if robust else data.federated_scaler
    scaler = fit_scaler([table.x[rows] for rows in held])
    x = scaler.transform(
        np.where(np.isnan(table.x), scaler.center, table.x)
    )  # what is missing becomes the centre
    clients = [x[rows[table.y[rows] == label]] for rows in held]
    normal = parts.validation[table.y[parts.validation] == label]
    name = table.classes[label]
    empty = ", ".join(str(k) for k, rows in enumerate(clients) if not len(rows))
    notes = (
        [f"seed {seed}, {name}: without a row of this class, and so without part: client {empty}"]
        if empty
        else []
    )
    if scaler.constant and label == 0:
        constant = ", ".join(table.features[c] for c in scaler.constant)
        notes.append(f"seed {seed}: constant training features, left unscaled: {constant}")
    return _Task(
        name, seed, clients, x[normal], x[parts.test],
        (table.y[parts.test] != label).astype(np.int64), notes,
    )  # fmt: skip


def _stack_each(groups: Sequence[Sequence[np.ndarray]]) -> Rows:
    """Tables (N, F) of B groups of K clients to ``x (B, K, N, F)``, ``mask (B, K, N)``."""
    length = max(len(x) for group in groups for x in group)
    stacked = [data.stack_rows(group, length=length) for group in groups]
    return Rows(*(jnp.stack(part) for part in zip(*stacked, strict=True)))


def _one_class_program(alg: FedAlgorithm, rounds: int) -> Callable[[Key, Rows, jax.Array], Any]:
    """Training and scoring of all tasks at once: scores ``(B, K, Q)`` of every client's detector, and histories."""

    def program(key: Key, clients: Rows, queries: jax.Array) -> tuple[jax.Array, federation.RoundInfo]:
        detectors, history = _train(alg, key, clients, federation.everyone, rounds)
        return jax.vmap(alg.score, in_axes=(0, None))(detectors, queries), history

    return jax.vmap(program)


def _judge_task(task: _Task, scores: Mapping[str, np.ndarray], quantile: float) -> pd.DataFrame:
    """Evaluate scores of the task's validation rows, followed by its test rows and padding."""
    cut, end = len(task.validation), len(task.validation) + len(task.test)
    on_validation = {unit: s[:cut] for unit, s in scores.items()}
    on_test = {unit: s[cut:end] for unit, s in scores.items()}
    return _judge(on_validation, on_test, dict.fromkeys(scores, task.anomalous), quantile)[0]


def _collapse(scores: Mapping[str, np.ndarray], task: _Task) -> list[str]:
    """A one-class network that maps everything to the centre has almost no distinct scores."""
    rows = np.concatenate([task.validation, task.test])
    distinct = len(np.unique(rows, axis=0))
    return [
        f"{unit}: scores have collapsed ({len(np.unique(s[: len(rows)]))} distinct for {distinct} distinct rows)"
        for unit, s in scores.items()
        if len(np.unique(s[: len(rows)])) < 0.9 * distinct
    ]


def _control_rows(task: _Task, settings: GeodesicSettings) -> pd.DataFrame:
    pooled = np.concatenate(task.clients)
    scores = {name: fit(pooled) for name, fit in controls.table_controls(task.label, task.seed).items()}
    if settings.baselines:
        scores |= {
            "centralised k-NN": knn(pooled),
            "Fed-Forest": federated_isolation_forest(task.clients, seed=task.seed),
            "Fed-XGB": federated_xgboost(task.clients, seed=task.seed),
        }
    queries = np.concatenate([task.validation, task.test])
    return pd.concat(
        [
            _judge_task(task, {task.label: score(queries)}, settings.quantile).assign(method=method)
            for method, score in scores.items()
        ]
    )


def _tidy(frames: Iterable[pd.DataFrame]) -> pd.DataFrame:
    rows = pd.concat(frames).reset_index(names="unit")
    return rows[["method", "seed", *(c for c in rows.columns if c not in ("method", "seed"))]]


class _Clock:
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
        compiled: dict[Any, Any] = {}

        def call(*arguments: Any) -> Any:
            leaves, structure = jax.tree.flatten(arguments)
            shapes = (structure, *((leaf.shape, leaf.dtype) for leaf in leaves))
            if shapes not in compiled:
                began = time.perf_counter()
                compiled[shapes] = jax.jit(function).lower(*arguments).compile()
                self._add(time.perf_counter() - began, 0)
            return self.measure(lambda: jax.block_until_ready(compiled[shapes](*arguments)))

        return call

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
