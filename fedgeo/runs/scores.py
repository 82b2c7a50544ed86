"""A user's own scores beside control rows: what a number is worth is seen next to what noise gets.

Shapes: T rows of a client's test stream.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from fedgeo import data, evaluation
from fedgeo.baselines import controls

METRICS = ("auroc", "ap", "vus_pr", "f1", "precision", "recall", "f1_pa1", "alarm_rate")

DRAWS = 19
"""Random scores that the scores must all outdo to be told apart from one: a chance of 5 % for noise."""


@dataclass(frozen=True)
class Evaluation:
    """What scores are worth.

    Attributes:
        headline: in a sentence, by average precision.
        table: a row for the scores and one a control, shares between 0 and 1, means over the clients for which a
            metric is defined; ``clients`` says how many these are, the fewest and the most where metrics differ.
        clients: the scores' own metrics, one row a client.
        notes: how to read the table.
    """

    headline: str
    table: pd.DataFrame
    clients: pd.DataFrame
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        rounded = self.table.to_string(float_format="{:.3f}".format, na_rep="undefined")
        return "\n".join([self.headline, "", rounded, "", *self.notes])

    __repr__ = __str__


def evaluate(
    scores: Any,
    labels: Any,
    *,
    thresholds: Mapping[str, float] | float | None = None,
    streams: data.Streams | None = None,
    rate: float = 0.02,
    smoothing: int = 1,
    vus_buffer: int | Mapping[str, int] | None = None,
    seed: int = 0,
) -> Evaluation:
    """Hold scores against labels, client by client, beside a random score and other controls.

    Every control raises as many alarms on a client's stream as the scores do there, so that no threshold rule favours
    one; for that its own scores are ranked, no label is looked at.

    Args:
        scores: ``(T,)`` by client, higher is more anomalous, NaN for a row without one; or one client's alone.
        labels: ``(T,)`` of 0 and 1, in the same form.
        thresholds: of the scores, such as ``model.threshold_``; an alarm is a score strictly above. Without them, and
            for a client whose threshold is NaN, the highest scores are alarms, a share ``rate`` of them.
        streams: the federation that was scored; adds the controls that read its rows: row norm, persistence and PCA.
        rate: see ``thresholds``.
        smoothing: rows of the causal moving mean over the controls' scores, such as ``model.smoothing``.
        vus_buffer: L of VUS-PR in rows, see :func:`fedgeo.evaluation.per_client`; None leaves the column out, it takes
            a while.
        seed: of the random scores.

    Raises:
        ValueError: scores and labels of other clients or lengths, or an argument out of its range.
    """
    if not 0 < rate < 1:
        raise ValueError(f"rate={rate}; want a share of rows in (0, 1), such as 0.02")
    if smoothing < 1:
        raise ValueError(f"smoothing={smoothing}; want at least 1 row")
    own, truth = _by_client(scores), _by_client(labels)
    evaluation.summary.same_names(own, truth, "labels")
    limits = _thresholds(own, thresholds, rate)
    shares = {name: _share(own[name], limits[name]) for name in own}
    options: dict[str, Any] = {"extra": ("vus",), "vus_buffer": vus_buffer} if vus_buffer is not None else {}

    def judged(candidate: Mapping[str, np.ndarray], by: Mapping[str, float]) -> pd.DataFrame:
        return evaluation.per_client(candidate, truth, by, k_percents=(1,), **options)

    tables = {"scores": judged(own, limits)}
    for name, candidate in _controls(own, streams, smoothing, seed).items():
        tables[name] = judged(candidate, {k: _threshold_for(candidate[k], shares[k]) for k in own})
    table = pd.DataFrame.from_dict({name: _row(one) for name, one in tables.items()}, orient="index")
    return Evaluation(
        _headline(table, tables["scores"], own, truth, smoothing, seed),
        table.rename_axis("method"),
        tables["scores"],
        _notes(table, thresholds is not None, rate, smoothing, vus_buffer),
    )


def _by_client(given: Any) -> dict[str, np.ndarray]:
    if isinstance(given, Mapping):
        return {str(name): np.asarray(values) for name, values in given.items()}
    if isinstance(given, list | tuple) and len(given) and np.ndim(given[0]) == 1:
        return {f"client-{k}": np.asarray(values) for k, values in enumerate(given)}
    return {"client-0": np.asarray(given)}


def _thresholds(
    scores: Mapping[str, np.ndarray], given: Mapping[str, float] | float | None, rate: float
) -> dict[str, float]:
    if given is None:
        limits = dict.fromkeys(scores, float("nan"))
    elif isinstance(given, Mapping | pd.Series):
        limits = {str(name): float(value) for name, value in given.items()}
        if lacking := [name for name in scores if name not in limits]:
            raise ValueError(
                f"thresholds lack {', '.join(lacking[:6])}; want one a client, NaN where there is none"
            )
    else:
        limits = dict.fromkeys(scores, float(given))
    return {n: _threshold_for(s, rate) if np.isnan(limits[n]) else limits[n] for n, s in scores.items()}


def _share(score: np.ndarray, threshold: float) -> float:
    known = score[~np.isnan(score)]
    return float(evaluation.alarms(known, threshold).mean()) if len(known) else 0.0


def _threshold_for(score: np.ndarray, share: float) -> float:
    """The threshold above which that share of a stream's scores lies, at most."""
    if np.isnan(score).all():
        return float("nan")
    return evaluation.target_rate(score, share) if share < 1 else -np.inf


def _controls(
    own: Mapping[str, np.ndarray], streams: data.Streams | None, smoothing: int, seed: int
) -> dict[str, dict[str, np.ndarray]]:
    """Scores of every control by client, without a score where the user's have none."""
    found = {"random": _random(own, seed)}
    if streams is not None:
        rows = {name: len(x) for name, x in streams.test.items()}
        if lacking := [name for name, s in own.items() if rows.get(name) != len(s)]:
            raise ValueError(
                f"streams hold other test rows than were scored: {', '.join(lacking[:6])}; pass the federation that "
                "was scored, or streams.select(names)"
            )
        scaled, _ = data.standardise(streams.select(list(own)))
        train, _ = data.split(scaled.train)
        found |= {
            name: parts[0] for name, parts in controls.score_streams(train, scaled.test, seed=seed).items()
        }
        found["random"] = _random(own, seed)
    return {name: _as_scored(candidate, own, smoothing) for name, candidate in found.items()}


def _random(own: Mapping[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    return {name: controls.random(name, seed)(score)(score) for name, score in own.items()}


def _as_scored(
    candidate: Mapping[str, np.ndarray], own: Mapping[str, np.ndarray], smoothing: int
) -> dict[str, np.ndarray]:
    smooth = {name: evaluation.moving_mean(values, smoothing) for name, values in candidate.items()}
    return {name: np.where(np.isnan(own[name]), np.nan, values) for name, values in smooth.items()}


def _row(table: pd.DataFrame) -> dict[str, Any]:
    means = evaluation.macro(table)
    mean, defined = means["mean"].to_dict(), means["n_defined"].to_dict()
    shown = [name for name in METRICS if name in mean]
    covered = [int(defined[name]) for name in shown if name not in ("alarm_rate", "precision")]
    count = str(min(covered)) if min(covered) == max(covered) else f"{min(covered)}-{max(covered)}"
    return {**{name: mean[name] for name in shown}, "clients": f"{count}/{len(table)}"}


def _headline(
    table: pd.DataFrame,
    clients: pd.DataFrame,
    own: Mapping[str, np.ndarray],
    truth: Mapping[str, np.ndarray],
    smoothing: int,
    seed: int,
) -> str:
    precision: dict[Any, float] = table["ap"].to_dict()
    value = precision["scores"]
    if np.isnan(value):
        return "Nothing to judge: no client has scored rows of both classes."
    defined = list(clients["ap"].dropna().index)
    draws: list[float] = []
    for draw in range(DRAWS):
        noise = _as_scored(_random(own, seed + 1 + draw), own, smoothing)
        draws.append(float(np.mean([evaluation.average_precision(noise[n], truth[n]) for n in defined])))
    text = f"Average precision {value:.3f}; random scores get {np.mean(draws):.3f}"
    others = {n: p for n, p in precision.items() if n not in ("scores", "random") and not np.isnan(p)}
    best = max(others, key=others.__getitem__, default="")
    if best:
        text += f", the best other control, {best}, {others[best]:.3f}"
    if value <= max(draws):
        return f"{text}. The scores cannot be told apart from random ones."
    if best and value <= others[best]:
        return f"{text}. The scores are ahead of random ones, and not of every control."
    return f"{text}. The scores are ahead of " + ("all controls." if best else "random ones.")


def _notes(table: pd.DataFrame, given: bool, rate: float, smoothing: int, vus_buffer: Any) -> list[str]:
    alarm = (
        "the thresholds given"
        if given
        else f"the highest {rate:.1%} of each client's scores, since no thresholds were given"
    )
    lines = [
        "Means over clients, each evaluated alone; the column clients says how many have the metrics defined, of how "
        "many.",
        f"Alarms: {alarm}. On every client each control raises as many alarms as the scores, or fewer where its scores "
        "tie; no label is used for that.",
        f"f1_pa1 is PA%K with K = 1 %: one hit in a hundred rows counts a segment as found. The random score has "
        f"{table['f1_pa1'].to_dict()['random']:.3f}: judge by auroc, ap and f1.",
    ]
    if smoothing > 1:
        lines.append(f"Controls are smoothed over {smoothing} rows.")
    if vus_buffer is not None:
        lines.append(
            "vus_pr depends on its buffer length L, see the column vus_buffer of the clients' table."
        )
    return lines
