"""Geodesic-SVDD on a labelled table, each class in turn held normal."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
from jax.sharding import Mesh

from fedgeo import data, evaluation, federation, trees
from fedgeo.algorithms.fedavg import FedAvgServer, fedavg
from fedgeo.algorithms.local import local_only
from fedgeo.algorithms.one_shot import OneShotServer, one_shot
from fedgeo.baselines import controls
from fedgeo.baselines.forests import federated_isolation_forest, federated_xgboost
from fedgeo.baselines.neighbours import knn
from fedgeo.evaluation import metrics
from fedgeo.models.encoder import Mixup, MLPEncoder, SphericalEncoder, geodesic_svdd, mlp_svdd
from fedgeo.protocol import FedAlgorithm, Key, Model, PyTree, Rows
from fedgeo.runs.result import (
    Clock,
    Curves,
    OnStep,
    Program,
    Result,
    check_rounds_and_quantile,
    check_seeds,
    judge,
    rounds_of,
    silent,
    tidy,
    tidy_history,
    train,
)

TRAINED = (
    "Geodesic (OS)", "Geodesic (Iter)", "untrained encoder", "local-only", "centralised",
    "Geodesic (OS, lerp)", "Geodesic (OS, no mixup)", "Geodesic (Iter, lerp)", "FedAvg (FE)",
    "FedAvg (MLP)", "FedAvg (MLP, SM)", "centralised Deep SVDD",
)  # fmt: skip
"""Methods that are JAX programs. FedAvg (FE) is also Geodesic (Iter) without mixup."""

OTHERS = ("centralised k-NN", "Fed-Forest", "Fed-XGB", "random", "row norm", "PCA", "Mahalanobis")
"""Methods that are not."""

BY_DEFAULT = (*TRAINED[:5], *OTHERS[3:])
"""Geodesic-SVDD and its controls, without the paper's other methods."""

LEAST_RANK, LEAST_SD = 1.5, 1e-4
"""An encoder has collapsed if its embeddings' effective rank or its squared distances' sd is below these."""


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
        mixup: "slerp", "lerp" or "none"; methods that name another in brackets keep that.
        kappa: of the Beta(kappa, kappa) that mixes.
        learning_rate: of each client's Adam.
        batch_size: rows a local step.
        rounds: of the iterative protocol.
        local_epochs: a round of the iterative protocol.
        max_steps: local steps an epoch, at most, of a client; K times as many where one trainer has all rows. A larger
            client takes other rows in every epoch.
        stateful: whether clients of the iterative protocol keep Adam's state from round to round. The paper does not
            say; with it, and not without, the iterative protocol reaches the paper's values on Titanic.
        one_shot_epochs: of the one-shot protocol.
        quantile: of the normal validation scores, above which a row is an alarm.
        baselines: add the paper's other methods: both protocols with linear mixup and without any (the iterative one
            without is FedAvg with the same encoder, FE), FedAvg with an MLP, and with an MLP onto the sphere;
            centralised Deep SVDD and nearest neighbours; federated isolation forest and XGBoost.
        methods: just these, by the names of the table, instead.
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
    max_steps: int = 5
    stateful: bool = True
    one_shot_epochs: int = 50
    quantile: float = 0.95
    baselines: bool = False
    methods: tuple[str, ...] = ()

    def chosen(self) -> tuple[str, ...]:
        """The methods to run."""
        return self.methods or ((*TRAINED, *OTHERS) if self.baselines else BY_DEFAULT)

    def check(self) -> None:
        """Raise ValueError for a value that only a run can judge."""
        check_rounds_and_quantile(self.rounds, self.quantile)
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be positive and finite, got {self.learning_rate}")
        if unknown := [name for name in self.methods if name not in (*TRAINED, *OTHERS)]:
            raise ValueError(
                f"no methods called {', '.join(unknown)}; want any of {', '.join((*TRAINED, *OTHERS))}"
            )


class _Method(NamedTuple):
    """A method that is trained.

    Attributes:
        alg: the algorithm.
        model: what it trains.
        network: the model's encoder.
        rounds: of training.
        pooled: whether one trainer holds all rows.
        alone: whether every client has a detector of its own.
    """

    alg: FedAlgorithm
    model: Model
    network: Any
    rounds: int
    pooled: bool = False
    alone: bool = False


class Part(NamedTuple):
    """Rows ``x (N, F)`` with labels ``anomalous (N,)``, 1 for those not of the class held normal."""

    x: np.ndarray
    anomalous: np.ndarray


class Task(NamedTuple):
    """One class held normal under one seed, scaled.

    Attributes:
        label: of the class.
        seed: of split and partition.
        clients: K tables ``(N_k, F)`` of normal training rows.
        validation: rows ``(N, F)`` of all classes.
        test: likewise.
        distinct: different rows among those of validation and test.
        notes: clients without rows, constant features.
    """

    label: str
    seed: int
    clients: list[np.ndarray]
    validation: Part
    test: Part
    distinct: int
    notes: list[str]


class _Spread(NamedTuple):
    """What tells whether a detector's E encoders have collapsed.

    Attributes:
        covariance: ``(E, d, d)`` of the embeddings of all queries.
        sd: ``(E,)`` standard deviation of their squared distances to the centre.
        present: ``(E,)`` which of the encoders exist.
    """

    covariance: jax.Array
    sd: jax.Array
    present: jax.Array


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
    class. All classes and seeds train as one program, see :func:`fedgeo.federation.sweep`, over all devices there are;
    another skew of the same table uses it again.

    Two rules set thresholds. The main columns take a quantile of the scores of normal validation rows. Those that begin
    with ``youden`` maximise Youden's J on the validation rows of all classes and their labels, as the paper does; a
    one-class learner in the field has no such rows. Neither sees a test label.

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
    tasks = [task for seed in seeds for task in tasks_of(table, settings, seed)]
    notes = [note for task in tasks for note in task.notes]
    keys = jnp.stack([jax.random.fold_in(jax.random.key(task.seed), k) for k, task in enumerate(tasks)])
    length = max(sum(map(len, task.clients)) for task in tasks)
    rows = {
        False: stack_each([task.clients for task in tasks], length),
        True: stack_each([[np.concatenate(task.clients)] for task in tasks], length),
    }
    queries = Rows(*map(jnp.asarray, data.stack_rows([_queries(task) for task in tasks])))

    clock, curves = Clock(), Curves()
    frames: list[pd.DataFrame] = []
    histories: list[pd.DataFrame] = []
    chosen = settings.chosen()
    trained, others = ([m for m in chosen if m in group] for group in (TRAINED, OTHERS))
    steps = len(trained) + bool(others)
    for method in trained:
        on_step(method, steps)
        clock.method = method
        made = _method(settings, method)
        clients = rows[made.pooled]
        program = _program(_shared(settings), method, _mesh(len(tasks)))
        found = clock.run(program, keys, clients, queries)
        scores, spread, history = jax.tree.map(np.asarray, found)
        for b, task in enumerate(tasks):
            one = jax.tree.map(lambda leaf, b=b: leaf[b], (spread, history))
            present = np.flatnonzero(np.asarray(clients.mask[b]).any(axis=1)) if made.alone else [0]
            names = [f"{task.label} / client {k}" if made.alone else task.label for k in present]
            judged = {name: scores[b, k] for name, k in zip(names, present, strict=True)}
            spreads = {
                name: jax.tree.map(lambda leaf, k=k: leaf[k], one[0])
                for name, k in zip(names, present, strict=True)
            }
            frame = _judge_task(task, judged, settings.quantile).join(_collapse(spreads))
            frames.append(frame.assign(method=method, seed=task.seed))
            curves.add(method, task.seed, *_on_test(task, judged))
            histories.append(rounds_of(one[1]).assign(method=method, seed=task.seed))
            notes += [f"{method}, seed {task.seed}: {line}" for line in _collapsed(frame)]
            if method.startswith("Geodesic"):
                notes += _incidents(
                    one[1], clients.mask.shape[1], f"{method}, seed {task.seed}, {task.label}"
                )
    if others:
        on_step("control rows", steps)
    for task in tasks:
        for method, fit in _fits(task).items():
            if method in ("Fed-Forest", "Fed-XGB") and max(map(len, task.clients)) < 2:
                notes.append(f"{method}, seed {task.seed}, {task.label}: left out, no client has two rows")
            elif method in others:
                clock.method = method
                scores = clock.measure(partial(fit, _queries(task)))
                frame = _judge_task(task, {task.label: scores}, settings.quantile)
                frames.append(frame.assign(method=method, seed=task.seed))
                curves.add(method, task.seed, *_on_test(task, {task.label: scores}))

    facts = {
        "data": table.name, "rows": len(table), "features": len(table.features), "classes": list(table.classes),
        "upload_bytes_per_client_and_round": traffic(settings, len(table.features))["upload"], "seeds": list(seeds),
    }  # fmt: skip
    skew = "IID" if settings.alpha is None else f"Dirichlet {settings.alpha:g}"
    return Result(
        f"Geodesic-SVDD on {table.name}, {skew}", "class", tidy(frames), clock.table(len(seeds)),
        facts | dataclasses.asdict(settings), notes, history=tidy_history(histories), curves=curves.table(),
    )  # fmt: skip


def traffic(settings: GeodesicSettings, features: int) -> dict[str, int]:
    """Bytes of the messages of both protocols, read off the arrays themselves, without framing.

    Args:
        settings: give the model.
        features: F.

    Returns:
        ``upload``: what a client sends in a round, in either protocol; ``broadcast``: what the server sends to a client
        in a round of the iterative protocol, the centre included; ``warm_up``: what a client sends before, its mean
        embedding; ``ensemble``: all experts, for whoever wants to score with the one-shot protocol.
    """
    one_row = (settings.clients, 1)
    shapes = jax.eval_shape(lambda: Rows(jnp.zeros((*one_row, features)), jnp.ones(one_row, bool)))
    every_round, at_once = (_method(settings, f"Geodesic ({p})").alg for p in ("Iter", "OS"))
    state = jax.eval_shape(lambda rows: federation.init(every_round, jax.random.key(0), rows), shapes)
    experts = jax.eval_shape(lambda rows: federation.init(at_once, jax.random.key(0), rows), shapes)
    return {
        "upload": federation.upload_bytes(every_round, state, shapes),
        "broadcast": trees.nbytes(state.server),
        "warm_up": trees.nbytes(state.server.anchor),
        "ensemble": trees.nbytes(experts.server.experts),
    }


def _shared(settings: GeodesicSettings) -> GeodesicSettings:
    """The settings as far as they change a program."""
    return dataclasses.replace(
        settings, alpha=None, scaling="auto", quantile=0.95, baselines=False, methods=()
    )


def _method(settings: GeodesicSettings, name: str) -> _Method:
    adam = optax.adam(settings.learning_rate)
    sphere = SphericalEncoder(settings.latent, settings.width, settings.blocks, settings.dropout)

    def geodesic(mixup: Mixup) -> Model:
        return geodesic_svdd(
            latent=settings.latent, width=settings.width, blocks=settings.blocks,
            dropout=settings.dropout, kappa=settings.kappa, mixup=mixup,
        )  # fmt: skip

    def averaged(model: Model, network: Any, *, pooled: bool = False) -> _Method:
        alg = fedavg(
            model, optimizer=adam, epochs=settings.local_epochs, batch_size=settings.batch_size,
            max_steps=settings.max_steps * (settings.clients if pooled else 1), stateful=settings.stateful,
        )  # fmt: skip
        return _Method(alg, model, network, settings.rounds, pooled)

    def at_once(mixup: Mixup, *, pooled: bool = False) -> _Method:
        alg = one_shot(
            geodesic(mixup), optimizer=adam, epochs=settings.one_shot_epochs, batch_size=settings.batch_size,
            max_steps=settings.max_steps * (settings.clients if pooled else 1),
        )  # fmt: skip
        return _Method(alg, geodesic(mixup), sphere, 1, pooled)

    def mlp(*, onto_sphere: bool) -> _Method:
        model = mlp_svdd(latent=settings.latent, width=settings.width, sphere=onto_sphere)
        return averaged(model, MLPEncoder(settings.latent, settings.width, onto_sphere))

    def alone(method: _Method) -> _Method:
        return method._replace(alg=local_only(method.alg), alone=True)

    make: dict[str, Callable[[], _Method]] = {
        "Geodesic (OS)": lambda: at_once(settings.mixup),
        "Geodesic (OS, lerp)": lambda: at_once("lerp"),
        "Geodesic (OS, no mixup)": lambda: at_once("none"),
        "Geodesic (Iter)": lambda: averaged(geodesic(settings.mixup), sphere),
        "Geodesic (Iter, lerp)": lambda: averaged(geodesic("lerp"), sphere),
        "FedAvg (FE)": lambda: averaged(geodesic("none"), sphere),
        "FedAvg (MLP)": lambda: mlp(onto_sphere=False),
        "FedAvg (MLP, SM)": lambda: mlp(onto_sphere=True),
        "untrained encoder": lambda: averaged(geodesic(settings.mixup), sphere)._replace(rounds=0),
        "local-only": lambda: alone(averaged(geodesic(settings.mixup), sphere)),
        "centralised": lambda: averaged(geodesic(settings.mixup), sphere, pooled=True),
        # One client's expert alone; "centralised" is FedAvg with K = 1, and with mixup.
        "centralised Deep SVDD": lambda: at_once("none", pooled=True),
    }
    return make[name]()


@lru_cache(maxsize=len(TRAINED))
def _program(settings: GeodesicSettings, name: str, mesh: Mesh | None) -> Program:
    """Training and scoring of B tasks on the devices of a mesh, compiled once for the skews of a table.

    ``(keys (B,), clients (B, K, N, F), queries (B, Q, F))`` to scores ``(B, J, Q)`` of J detectors (one for all, or one
    a client), their :class:`_Spread` and histories.
    """
    method = _method(settings, name)

    def program(key: Key, clients: Rows, queries: Rows) -> tuple[jax.Array, _Spread, federation.RoundInfo]:
        # Clients of a CPU in turn too: each takes the steps of its own rows, not those of the largest. There are few:
        # their uploads need not be added up one by one to save memory.
        block_size = 1 if federation.in_turn(mesh) else None
        alg = method.alg._replace(merge=None)
        detectors, history = train(alg, key, clients, federation.everyone, method.rounds, block_size)
        if not method.alone:
            detectors = jax.tree.map(lambda leaf: leaf[:1], detectors)
        scores = jax.vmap(method.alg.score, in_axes=(0, None))(detectors, queries.x)
        spread = jax.vmap(lambda one: _spread(method, one, queries))(detectors)
        return scores, spread, history

    def all_tasks(keys: Key, clients: Rows, queries: Rows) -> PyTree:
        num_rows = jnp.sum(clients.mask, axis=(1, 2))
        return federation.sweep(program, keys, clients, queries, mesh=mesh, cost=num_rows)

    return Program(all_tasks)


def _mesh(tasks: int) -> Mesh | None:
    """This process's devices, at most one a task; None if somebody chose the device."""
    if jax.config.jax_default_device is not None:  # type: ignore[attr-defined]
        return None
    return Mesh(np.asarray(jax.local_devices()[:tasks]), ("tasks",))


def _spread(method: _Method, detector: FedAvgServer | OneShotServer, queries: Rows) -> _Spread:
    if isinstance(detector, OneShotServer):
        experts, present = detector.experts, detector.present
    else:
        experts, present = jax.tree.map(lambda leaf: leaf[None], detector.params), jnp.ones(1, bool)
    share = queries.mask / jnp.sum(queries.mask)

    def one(params: PyTree) -> tuple[jax.Array, jax.Array]:
        z = method.network.apply(params, queries.x)
        z = z - (share @ z)[None]
        d2 = jnp.expm1(method.model.score(params, detector.anchor, queries.x))
        covariance = jnp.einsum("q,qi,qj->ij", share, z, z, precision="highest")
        return covariance, jnp.sqrt(share @ (d2 - share @ d2) ** 2)

    return _Spread(*jax.vmap(one)(experts), present)


def tasks_of(table: data.Table, settings: GeodesicSettings, seed: int) -> list[Task]:
    """A task for every class of a table: one split, one partition and one scaler for all of them.

    Args:
        table: the data set.
        settings: K, the skew and the scaling.
        seed: of split and partition.

    Raises:
        ValueError: a class with too few rows to split.
    """
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
    # What is missing becomes the centre.
    x = scaler.transform(np.where(np.isnan(table.x), scaler.center, table.x))
    constant = ", ".join(table.features[c] for c in scaler.constant)
    distinct = evaluation.distinct(np.concatenate([x[parts.validation], x[parts.test]]))
    tasks = []
    for label, name in enumerate(table.classes):
        clients = [x[rows[table.y[rows] == label]] for rows in held]
        empty = ", ".join(str(k) for k, rows in enumerate(clients) if not len(rows))
        notes = []
        if empty:
            notes.append(
                f"seed {seed}, {name}: without a row of this class, and so without part: client {empty}"
            )
        if constant and label == 0:
            notes.append(f"seed {seed}: constant training features, left unscaled: {constant}")
        validation, test = (
            Part(x[rows], (table.y[rows] != label).astype(np.int64))
            for rows in (parts.validation, parts.test)
        )
        tasks.append(Task(name, seed, clients, validation, test, distinct, notes))
    return tasks


def _queries(task: Task) -> np.ndarray:
    """Validation rows, then test rows."""
    return np.concatenate([task.validation.x, task.test.x])


def stack_each(groups: Sequence[Sequence[np.ndarray]], length: int) -> Rows:
    """Tables (N, F) of B groups of K clients to ``x (B, K, length, F)``, ``mask (B, K, length)``."""
    stacked = [data.stack_rows(group, length=length) for group in groups]
    return Rows(*(jnp.asarray(np.stack(part)) for part in zip(*stacked, strict=True)))


def _judge_task(task: Task, scores: Mapping[str, np.ndarray], quantile: float) -> pd.DataFrame:
    """Evaluate scores of the task's queries and padding, one row a detector, under both threshold rules."""
    cut, end = len(task.validation.x), len(task.validation.x) + len(task.test.x)
    on_validation = {unit: s[:cut] for unit, s in scores.items()}
    on_test, labels = _on_test(task, scores)
    normal = {unit: s[task.validation.anomalous == 0] for unit, s in on_validation.items()}
    frame = judge(normal, on_test, labels, quantile)[0]
    records = {}
    for unit, score in on_test.items():
        threshold = evaluation.youden(on_validation[unit], task.validation.anomalous).threshold
        counts = evaluation.count(evaluation.alarms(score, threshold), task.test.anomalous)
        records[unit] = {
            "youden_threshold": threshold,
            "youden_accuracy": metrics.accuracy(counts),
            "youden_precision": metrics.precision(counts),
            "youden_recall": metrics.recall(counts),
            "youden_f1": metrics.f1(counts),
            "distinct_scores": evaluation.distinct(scores[unit][:end]),
            "distinct_rows": task.distinct,
        }
    return frame.join(pd.DataFrame.from_dict(records, orient="index"))


def _on_test(
    task: Task, scores: Mapping[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Scores of the test rows among those of the task's queries and padding, and their labels, by unit."""
    cut, end = len(task.validation.x), len(task.validation.x) + len(task.test.x)
    return {unit: s[cut:end] for unit, s in scores.items()}, dict.fromkeys(scores, task.test.anomalous)


def _collapse(spreads: Mapping[str, _Spread]) -> pd.DataFrame:
    """Means over a detector's encoders of what :class:`_Spread` holds, by unit."""
    records = {}
    for unit, spread in spreads.items():
        there = np.asarray(spread.present)
        ranks = [evaluation.effective_rank(c) for c in np.asarray(spread.covariance)[there]]
        records[unit] = {
            "effective_rank": np.mean(ranks) if ranks else float("nan"),
            "sd_squared_distance": np.asarray(spread.sd)[there].mean() if ranks else float("nan"),
        }
    return pd.DataFrame.from_dict(records, orient="index")


def _collapsed(frame: pd.DataFrame) -> list[str]:
    """A one-class network that maps everything to the centre has almost no distinct scores, or no spread of them."""
    lines = []
    for unit, row in frame.iterrows():
        if row["distinct_scores"] < evaluation.LEAST_DISTINCT * row["distinct_rows"]:
            lines.append(
                f"{unit}: scores have collapsed ({row['distinct_scores']:.0f} distinct for "
                f"{row['distinct_rows']:.0f} distinct rows)"
            )
        if row["effective_rank"] < LEAST_RANK or row["sd_squared_distance"] < LEAST_SD:
            lines.append(
                f"{unit}: embeddings have collapsed (effective rank {row['effective_rank']:.2f}, standard deviation of "
                f"the squared distances {row['sd_squared_distance']:.1e})"
            )
    return lines


def _incidents(history: federation.RoundInfo, clients: int, where: str) -> list[str]:
    """What went wrong in training; clients without rows are named elsewhere."""
    lines = federation.incidents(history, [f"client {k}" for k in range(clients)])
    return [f"{where}: {line}" for line in lines if "usable" not in line]


def _fits(task: Task) -> dict[str, Callable[[np.ndarray], np.ndarray]]:
    """By name, what fits a method that is no JAX program to the task and scores rows ``(Q, F)``."""
    pooled = np.concatenate(task.clients)
    simple = controls.table_controls(task.label, task.seed)
    return {
        **{name: partial(_fit_and_score, fit, pooled) for name, fit in simple.items()},
        "centralised k-NN": lambda x: knn(pooled)(x),
        "Fed-Forest": lambda x: federated_isolation_forest(task.clients, seed=task.seed)(x),
        "Fed-XGB": lambda x: federated_xgboost(task.clients, seed=task.seed)(x),
    }


def _fit_and_score(fit: controls.Fit, train_rows: np.ndarray, x: np.ndarray) -> np.ndarray:
    return fit(train_rows)(x)
