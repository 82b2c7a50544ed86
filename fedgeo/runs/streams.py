"""FedKAD on a federation of streams."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from fedgeo import data, evaluation, federation
from fedgeo.algorithms import comparators, koopman, moments
from fedgeo.algorithms.fedkad import RECOMMENDED, Start, fedkad
from fedgeo.algorithms.local import local_only
from fedgeo.baselines import controls
from fedgeo.protocol import FedAlgorithm, Key, PyTree
from fedgeo.runs.result import (
    Clock,
    Curves,
    OnStep,
    Result,
    StreamExample,
    check_rounds_and_quantile,
    check_seeds,
    judge,
    rounds_of,
    silent,
    tidy,
    tidy_history,
    train,
)

SHOWN_CHANNELS = 6
"""Channels that the example keeps: a picture of more could not be read."""


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
        baselines: add what FedKAD is to be compared with, from the same moments: the pooled one-shot subspace,
            centralised optimal mode decomposition, and vector autoregression by ridge.
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
    baselines: bool = False

    def algorithm(self, lift: koopman.Lift) -> FedAlgorithm:
        """FedKAD with these settings."""
        own = ("window", "lift_size", "rounds", "participation", "validation", "quantile", "baselines")
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
        check_rounds_and_quantile(self.rounds, self.quantile)


def run_fedkad(
    streams: data.Streams,
    settings: KoopmanSettings | None = None,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    on_step: OnStep = silent,
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
    check_seeds(seeds)
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
    variants: dict[str, _Variant | _Comparator] = {
        "FedKAD": _Variant(settings, uniform, settings.rounds),
        "FedKAD, warm": _Variant(replace(settings, start="warm"), uniform, settings.rounds),
        "FedKAD, recommended": _Variant(replace(settings, **RECOMMENDED), uniform, settings.rounds),
        "untrained subspace": _Variant(replace(settings, start="shared"), uniform, 0),
        "local-only": _Variant(settings, federation.everyone, settings.rounds, alone=True),
        "local-only, warm": _Variant(
            replace(settings, start="warm"), federation.everyone, settings.rounds, alone=True
        ),
    }
    if settings.baselines:
        newest = replace(settings, residual="newest", scale="none", horizon=1)
        variants |= {
            "pooled one-shot": _Comparator(settings, comparators.pooled_subspace),
            "centralised OMD": _Comparator(settings, _optimal_frame),
            "ridge VAR": _Comparator(newest, None),
        }
    clock = Clock()
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
    histories: list[pd.DataFrame] = []
    curves = Curves()
    stream: StreamExample | None = None
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
            frame, limits = judge(on_validation, on_test, streams.labels, settings.quantile)
            frames.append(frame.assign(method=method, seed=seed))
            curves.add(method, seed, on_test, streams.labels)
            if history is not None:
                histories.append(rounds_of(history).assign(method=method, seed=seed))
            if method == "FedKAD, recommended" and not example:
                example, thresholds = on_test, limits
                k = streams.names.index(_middle(frame["ap"]))
                parts_of_score = _parts(variants[method].settings, detectors, parts[1], k)
                stream = _stream_example(method, streams, k, example, limits, parts_of_score)
    for seed in seeds:
        on_step(f"seed {seed}: control rows", steps)
        clock.method = "controls"
        scores = clock.measure(partial(controls.score_streams, train, validation, scaled.test, seed=seed))
        for method, (on_validation, on_test) in scores.items():
            if method == "random" or seed == seeds[0]:  # the others depend on no seed
                smooth_test = _smooth(on_test, settings.smoothing)
                frame, _ = judge(
                    _smooth(on_validation, settings.smoothing), smooth_test, streams.labels, settings.quantile
                )
                frames.append(frame.assign(method=method, seed=seed))
                curves.add(method, seed, smooth_test, streams.labels)

    size = settings.window * channels + settings.lift_size
    facts = {
        "data": streams.name, "clients": len(streams), "channels": channels, "lifted_dimension": size,
        "cohort": cohort, "upload_bytes_per_client_and_round": 4 * size * settings.rank, "seeds": list(seeds),
    }  # fmt: skip
    return Result(
        f"FedKAD on {streams.name}", "client", tidy(frames), clock.table(len(seeds)),
        facts | dataclasses.asdict(settings), notes, {"constant_channels": constant}, example, thresholds,
        tidy_history(histories), curves.table(), stream,
    )  # fmt: skip


def _middle(values: pd.Series) -> str:
    """The client in the middle by a metric: neither the best nor the worst; the first if none has a value."""
    ranked = values.dropna().sort_values(kind="stable")
    return str(ranked.index[(len(ranked) - 1) // 2]) if len(ranked) else str(values.index[0])


def _parts(settings: KoopmanSettings, detectors: PyTree, x: jax.Array, k: int) -> np.ndarray:
    """``(T, C + 1)``: the parts by channel, and the lift's, of client k's smoothed scores of ``x (K, T, C)``."""

    @jax.jit
    def parts(detector: koopman.Detector, rows: jax.Array) -> jax.Array:
        raw = koopman.contributions(
            detector, rows, horizon=settings.horizon, residual=settings.residual, scale=settings.scale
        )
        return jax.vmap(partial(koopman.smooth, width=settings.smoothing), 1, 1)(raw)

    return np.asarray(parts(jax.tree.map(lambda leaf: leaf[k], detectors), x[k]))


def _stream_example(
    method: str,
    streams: data.Streams,
    k: int,
    scores: Mapping[str, np.ndarray],
    thresholds: Mapping[str, float],
    parts: np.ndarray,
) -> StreamExample:
    client = streams.names[k]
    score, labels, threshold = scores[client], streams.labels[client], thresholds[client]
    parts = parts[: len(score)]
    alarms = alarm_table(score, threshold, labels, parts, streams.channels)
    alarmed = evaluation.alarms(score, threshold)
    rows = alarmed if alarmed.any() else ~np.isnan(score)
    guilty = np.argsort(-parts[rows, :-1].sum(axis=0), kind="stable")[:SHOWN_CHANNELS]
    shown = np.sort(guilty)
    return StreamExample(
        client, method, tuple(streams.channels[c] for c in shown), streams.test[client][:, shown],
        parts[:, shown], score, labels, threshold, alarms,
    )  # fmt: skip


def alarm_table(
    scores: np.ndarray, threshold: float, labels: np.ndarray, parts: np.ndarray, channels: Sequence[str]
) -> pd.DataFrame:
    """Detected spans in order, and the channels that caused them.

    Args:
        scores: ``(T,)``.
        threshold: an alarm is a score above it.
        labels: ``(T,)`` of 0 and 1.
        parts: ``(T, C + 1)`` that add up to the scores, the last column belonging to no channel.
        channels: C names.

    Returns:
        ``first``, ``last`` row, ``rows``, ``peak`` score over the threshold, ``true`` share of the rows with label 1,
        and the names and shares of the score of the three channels with the largest parts.
    """
    named = min(3, len(channels))
    records = []
    for first, stop in evaluation.spans(evaluation.alarms(scores, threshold)):
        total = parts[first:stop].sum(axis=0)
        shares = total[:-1] / total.sum() if total.sum() > 0 else np.zeros(len(channels))
        record: dict[str, object] = {
            "first": first, "last": stop - 1, "rows": stop - first,
            "peak": scores[first:stop].max() / threshold if threshold > 0 else np.inf,
            "true": labels[first:stop].mean(),
        }  # fmt: skip
        for place, c in enumerate(np.argsort(-shares, kind="stable")[:named], start=1):
            record |= {f"channel_{place}": channels[c], f"share_{place}": shares[c]}
        records.append(record)
    names = ["first", "last", "rows", "peak", "true"]
    names += [f"{kind}_{place}" for place in range(1, named + 1) for kind in ("channel", "share")]
    return pd.DataFrame(records, columns=names)


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
        return train(local_only(alg) if self.alone else alg, key, sums, self.sampler, self.rounds)


class _Comparator(NamedTuple):
    """A row from the same moments without a federation: another subspace, or autoregression where there is none."""

    settings: KoopmanSettings
    frame: Callable[[moments.Moments, int], jax.Array] | None

    def train(self, key: Key, lift: koopman.Lift, sums: moments.Moments) -> tuple[PyTree, None]:
        del key
        fit: Callable[[moments.Moments], koopman.Detector]
        if self.frame is None:
            fit = partial(comparators.autoregression, lift, ridge=self.settings.ridge)
        else:
            deploy = self.settings.algorithm(lift).deploy
            fit = partial(deploy, self.frame(comparators.pool(sums), self.settings.rank), None)
        return jax.lax.map(fit, sums), None


def _optimal_frame(pooled: moments.Moments, rank: int) -> jax.Array:
    return comparators.optimal_modes(pooled, comparators.pooled_subspace(pooled, rank))


def _smooth(scores: Mapping[str, np.ndarray], width: int) -> dict[str, np.ndarray]:
    """What ``koopman.smooth`` does, for the controls."""
    return {name: evaluation.moving_mean(values, width) for name, values in scores.items()}
