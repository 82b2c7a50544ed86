"""Geodesic-SVDD on a labelled table, each class in turn held normal."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd

from fedgeo import data, federation, trees
from fedgeo.algorithms.fedavg import fedavg
from fedgeo.algorithms.local import local_only
from fedgeo.algorithms.one_shot import one_shot
from fedgeo.baselines import controls
from fedgeo.baselines.forests import federated_isolation_forest, federated_xgboost
from fedgeo.baselines.neighbours import knn
from fedgeo.models.encoder import geodesic_svdd, mlp_svdd
from fedgeo.protocol import FedAlgorithm, Key, Model, Rows
from fedgeo.runs.result import (
    Clock,
    OnStep,
    Result,
    check_rounds_and_quantile,
    check_seeds,
    judge,
    silent,
    tidy,
    train,
)


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
        check_rounds_and_quantile(self.rounds, self.quantile)
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be positive and finite, got {self.learning_rate}")


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
    on_step: OnStep = silent,
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
    check_seeds(seeds)
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
    clock, frames = Clock(), []
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
        f"Geodesic-SVDD on {table.name}, {skew}", "class", tidy(frames), clock.table(len(seeds)),
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
        detectors, history = train(alg, key, clients, federation.everyone, rounds)
        return jax.vmap(alg.score, in_axes=(0, None))(detectors, queries), history

    return jax.vmap(program)


def _judge_task(task: _Task, scores: Mapping[str, np.ndarray], quantile: float) -> pd.DataFrame:
    """Evaluate scores of the task's validation rows, followed by its test rows and padding."""
    cut, end = len(task.validation), len(task.validation) + len(task.test)
    on_validation = {unit: s[:cut] for unit, s in scores.items()}
    on_test = {unit: s[cut:end] for unit, s in scores.items()}
    return judge(on_validation, on_test, dict.fromkeys(scores, task.anomalous), quantile)[0]


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
