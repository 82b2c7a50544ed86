"""Tables of a federation's results: one row a client, then their mean, then the spread over seeds.

An undefined value is NaN in a client's row; means leave it out and say how many clients they cover.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from fedgeo.evaluation import events, metrics
from fedgeo.evaluation.adjust import area_over_k, point_adjust
from fedgeo.evaluation.ranking import auroc, average_precision, checked
from fedgeo.evaluation.thresholds import alarms, oracle_best_f1
from fedgeo.evaluation.volume import vus

NOT_AVERAGED = ("rows", "unscored", "threshold", "vus_buffer", "protocol", "gamma", "fallback")
"""Columns of :func:`per_client` and :func:`judge` that describe a client and have no meaningful mean."""

EXTRA = {
    "vus": ("vus_roc", "vus_pr", "vus_buffer"),
    "area_over_k": ("area_over_k",),
    "affiliation": ("affiliation_precision", "affiliation_recall", "affiliation_f1"),
    "range": ("range_precision", "range_recall", "range_f1"),
    "event": ("event_precision", "event_recall", "event_f1"),
}
"""Columns of :func:`per_client` that are there only when asked for, by group."""


def per_client(
    scores: Mapping[str, np.ndarray],
    labels: Mapping[str, np.ndarray],
    thresholds: Mapping[str, float] | None = None,
    *,
    k_percents: Sequence[int] = (1, 10),
    oracle: bool = False,
    extra: Sequence[str] = (),
    vus_buffer: int | Mapping[str, int] | None = None,
) -> pd.DataFrame:
    """Evaluate every client on its own.

    Args:
        scores: ``(T,)`` by client, higher is more anomalous; rows with NaN are left out and counted.
        labels: ``(T,)`` of 0 and 1 by client.
        thresholds: by client, NaN where there is none; an alarm is a score strictly above. Without them the
            columns that need alarms are NaN.
        k_percents: the K of the ``f1_pa`` columns, in percent, by the rule "at least K".
        oracle: add the best F1 over all thresholds, chosen with the labels, in columns named ``oracle``.
        extra: groups of further columns, any of :data:`EXTRA`.
        vus_buffer: L of VUS in rows, for all clients or by client, such as
            ``buffer_length(streams.test[name][:, 0])``; the group ``vus`` needs it and states it.

    Returns:
        A frame by client with the columns ``rows``, ``unscored``, ``anomaly_ratio`` (of scored rows),
        ``auroc``, ``ap``, ``threshold``, ``f1``, ``precision``, ``recall``, ``f1_pa1``, ``f1_pa10``,
        ``alarm_rate`` and ``false_alarms_per_1000`` (of normal rows), and those of ``extra``.
    """
    same_names(scores, labels, "labels")
    if thresholds is not None:
        same_names(scores, thresholds, "thresholds")
    buffers = _vus_buffers(scores, extra, vus_buffer)
    records = {}
    for name, score in scores.items():
        threshold = float("nan") if thresholds is None else float(thresholds[name])
        try:
            records[name] = _one_client(score, labels[name], threshold, k_percents, oracle)
            records[name] |= _extra_metrics(score, labels[name], threshold, extra, buffers.get(name))
        except ValueError as error:
            raise ValueError(f"client {name}: {error}") from error
    return pd.DataFrame.from_dict(records, orient="index").rename_axis("client")


def macro(table: pd.DataFrame) -> pd.DataFrame:
    """Mean of every metric over the clients for which it is defined.

    Args:
        table: the frame of :func:`per_client`.

    Returns:
        A frame by metric with the columns ``mean``, ``n_defined`` and ``clients``.
    """
    values = table.drop(columns=[c for c in NOT_AVERAGED if c in table.columns])
    return pd.DataFrame(
        {"mean": values.mean(), "n_defined": values.count(), "clients": len(values)}, index=values.columns
    ).rename_axis("metric")


def over_seeds(macros: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Mean and spread over seeds of the frames of :func:`macro`.

    Returns:
        A frame by metric with the columns ``mean``, ``sd`` (of a sample; NaN for one seed), ``seeds`` (those
        with a defined mean), ``n_defined`` (the fewest clients of any seed) and ``clients``.
    """
    if not macros:
        raise ValueError("no seeds to average; want at least one frame from macro")
    means = pd.concat([m["mean"] for m in macros], axis=1)
    covered = pd.concat([m["n_defined"] for m in macros], axis=1)
    return pd.DataFrame(
        {
            "mean": means.mean(axis=1),
            "sd": means.std(axis=1, ddof=1),
            "seeds": means.count(axis=1),
            "n_defined": covered.min(axis=1).astype(int),
            "clients": macros[0]["clients"],
        }
    ).rename_axis("metric")


def pooled(scores: Mapping[str, np.ndarray], labels: Mapping[str, np.ndarray]) -> dict[str, float]:
    """AUROC and average precision of all clients' rows in one pot, to stand beside the macro mean.

    It also compares rows of different clients, so a difference in the scale of their scores counts.
    """
    same_names(scores, labels, "labels")
    pairs = [checked(score, labels[name]) for name, score in scores.items()]
    score = np.concatenate([s for s, _ in pairs])
    y = np.concatenate([y for _, y in pairs])
    return {"auroc": auroc(score, y), "ap": average_precision(score, y)}


def same_names(scores: Mapping[str, object], others: Mapping[str, object], what: str) -> None:
    """Raise unless both mappings hold the same clients, and say which they do not share."""
    if set(scores) != set(others):
        missing = ", ".join(sorted(set(scores) - set(others))) or "none"
        unknown = ", ".join(sorted(set(others) - set(scores))) or "none"
        raise ValueError(
            f"{what} and scores hold different clients: {what} lack {missing}; unknown {unknown}"
        )


def _one_client(
    score: np.ndarray, labels: np.ndarray, threshold: float, k_percents: Sequence[int], oracle: bool
) -> dict[str, float]:
    score, y = checked(score, labels)
    has_score = ~np.isnan(score)
    record = {
        "rows": len(y),
        "unscored": int((~has_score).sum()),
        "anomaly_ratio": float(y[has_score].mean()) if has_score.any() else float("nan"),
        "auroc": auroc(score, y),
        "ap": average_precision(score, y),
        "threshold": threshold,
    }
    of_alarms = _alarm_metrics(alarms(score, threshold), y, has_score, k_percents)
    record |= dict.fromkeys(of_alarms, float("nan")) if np.isnan(threshold) else of_alarms
    if oracle:
        record["oracle_f1"] = oracle_best_f1(score, y).oracle_f1
        for k in k_percents:
            record[f"oracle_f1_pa{k}"] = oracle_best_f1(score, y, k_percent=k).oracle_f1
    return record


def _alarm_metrics(
    alarm: np.ndarray, y: np.ndarray, has_score: np.ndarray, k_percents: Sequence[int]
) -> dict[str, float]:
    counts = metrics.count(alarm, y, has_score)
    record = {
        "f1": metrics.f1(counts),
        "precision": metrics.precision(counts),
        "recall": metrics.recall(counts),
    }
    for k in k_percents:
        adjusted = point_adjust(alarm, y, k_percent=k, scored=has_score)
        record[f"f1_pa{k}"] = metrics.f1(metrics.count(adjusted, y, has_score))
    record["alarm_rate"] = metrics.alarm_rate(counts)
    record["false_alarms_per_1000"] = metrics.false_alarms_per_1000(counts)
    return record


def _vus_buffers(
    scores: Mapping[str, np.ndarray], extra: Sequence[str], buffer: int | Mapping[str, int] | None
) -> Mapping[str, int]:
    if unknown := [group for group in extra if group not in EXTRA]:
        raise ValueError(f"no extra columns {', '.join(unknown)}; want any of {', '.join(EXTRA)}")
    if "vus" not in extra:
        return {}
    if buffer is None:
        raise ValueError(
            "VUS depends on its buffer length, so it must be stated: pass vus_buffer, such as buffer_length of a "
            "channel, or 125 as without a period"
        )
    if not isinstance(buffer, Mapping):
        return dict.fromkeys(scores, buffer)
    same_names(scores, buffer, "vus_buffer")
    return buffer


def _extra_metrics(
    score: np.ndarray, labels: np.ndarray, threshold: float, extra: Sequence[str], buffer: int | None
) -> dict[str, float]:
    score, y = checked(score, labels)
    alarm, has_score = alarms(score, threshold), ~np.isnan(score)
    of_alarms = {
        "area_over_k": lambda: (area_over_k(alarm, y, scored=has_score),),
        "affiliation": lambda: events.affiliation(alarm, y, scored=has_score),
        "range": lambda: events.range_based(alarm, y, scored=has_score),
        "event": lambda: events.event_wise(alarm, y, scored=has_score),
    }
    record: dict[str, float] = {}
    for group in extra:
        if group == "vus":
            assert buffer is not None
            values: tuple[float, ...] = vus(score, y, buffer)
        else:
            values = (float("nan"),) * len(EXTRA[group]) if np.isnan(threshold) else of_alarms[group]()
        record |= dict(zip(EXTRA[group], values, strict=True))
    return record
