"""Evaluation protocols: how thresholds are set and alarms adjusted, as named values.

A protocol judges every client on its own, from validation scores (normal rows, for the threshold), test scores and
labels, and the clients' results are averaged with equal weights. :data:`PROTOCOLS` holds the four of FedKAD's section
VI-A3, one of them also in the letter of its text, and an oracle counterpart of each adjustment, which sets thresholds
with the very labels it is judged by: an upper bound, never a result.

Point adjustment rewards chance: judge a random score by the same protocol and print it beside every result.
Shapes: N validation rows, T test rows.

References:
    FedKAD (arXiv 2607.08978), section VI-A3; Kim et al. (2022), Towards a Rigorous Evaluation of Time-Series
    Anomaly Detection.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from fedgeo.evaluation import metrics
from fedgeo.evaluation.adjust import Rule, point_adjust
from fedgeo.evaluation.ranking import auroc, checked
from fedgeo.evaluation.summary import macro, same_names
from fedgeo.evaluation.tails import Pot, pot
from fedgeo.evaluation.thresholds import alarms, oracle_best_f1, quantile

ThresholdRule = Callable[[np.ndarray], float | Pot]
"""A threshold from one client's validation scores ``(N,)``, such as ``quantile`` or ``pot``."""

validation_quantile: ThresholdRule = partial(quantile, q=0.98)
"""The 98th percentile of the validation scores."""

validation_pot: ThresholdRule = partial(pot, q=1e-3, level=0.98, on_degenerate="quantile")
"""Peaks over threshold with q = 1e-3 and level 0.98; where no tail can be fitted, the 99.9th percentile."""


class Protocol(NamedTuple):
    """How one evaluation goes. Use ``_replace`` for a variant.

    Attributes:
        name: what tables call it; that of an oracle begins with "oracle" by itself, see :attr:`title`.
        threshold: from validation scores; None takes the best F1 on the test labels, an oracle.
        k_percent: K of PA%K in percent; 0 is plain point adjustment, None none at all.
        boundary: what exactly K percent means.
        recall_cap: a threshold whose test recall exceeds it is rejected. It looks at test labels.
        cap_on: the recall that the cap looks at, before or after point adjustment. FedKAD does not say; after
            adjustment one hit is full recall for a stream with one segment, so every useful threshold is rejected.
        when_capped: what a client with a rejected threshold gets: no alarms and F1 0, NaN, or its recall cut to the
            cap. An oracle takes the next best threshold instead.
    """

    name: str
    threshold: ThresholdRule | None
    k_percent: float | None = None
    boundary: Rule = ">="
    recall_cap: float | None = None
    cap_on: Literal["raw", "adjusted"] = "raw"
    when_capped: Literal["zero", "nan", "clip"] = "zero"

    @property
    def oracle(self) -> bool:
        """Whether thresholds are set with the test labels."""
        return self.threshold is None

    @property
    def title(self) -> str:
        """The name in tables, in which an oracle is plainly marked."""
        return f"oracle {self.name}" if self.oracle and not self.name.startswith("oracle") else self.name


_CAPPED = Protocol("pot_pak10", validation_pot, k_percent=10, recall_cap=0.995)

PROTOCOLS: dict[str, Protocol] = {
    protocol.title: protocol
    for protocol in (
        Protocol("primary", validation_quantile, k_percent=1),
        Protocol("pot_pa", validation_pot, k_percent=0),
        _CAPPED,
        _CAPPED._replace(name="pot_pak10_paper_literal", cap_on="adjusted"),
        Protocol("pot_pointwise", validation_pot),
        Protocol("primary", None, k_percent=1),
        Protocol("pa", None, k_percent=0),
        Protocol("pak10", None, k_percent=10, recall_cap=0.995),
        Protocol("pak10_paper_literal", None, k_percent=10, recall_cap=0.995, cap_on="adjusted"),
        Protocol("pointwise", None),
    )
}
"""The protocols of FedKAD's section VI-A3 and their oracles, by title.

``primary``: PA%K with K = 1 % (k = 0.01) at a threshold tuned on validation scores, of which the paper says no more;
here their 98th percentile. ``pot_pa``: POT and plain point adjustment. ``pot_pak10``: POT, PA%K with K = 10 % and a
recall cap of 0.995 on the raw recall; ``pot_pak10_paper_literal`` applies it to the adjusted recall.
``pot_pointwise``: POT, no adjustment.
"""


def judge(
    protocol: Protocol,
    validation: Mapping[str, np.ndarray],
    test: Mapping[str, np.ndarray],
    labels: Mapping[str, np.ndarray],
) -> pd.DataFrame:
    """Evaluate every client by one protocol.

    Args:
        protocol: such as ``PROTOCOLS["primary"]``.
        validation: ``(N,)`` scores of normal rows by client; an oracle does not look at them.
        test: ``(T,)`` test scores by client; NaN for rows without a score, which are left out.
        labels: ``(T,)`` of 0 and 1 by client.

    Returns:
        A frame by client, for :func:`fedgeo.evaluation.macro`, with the columns ``protocol``, ``precision``,
        ``recall``, ``f1`` (after the adjustment), ``auc`` (AUROC of the scores, free of any threshold),
        ``alarm_rate`` (before the adjustment), ``rejected`` (1 if the recall cap refused the threshold),
        ``threshold``, ``gamma`` (shape of the tail that POT fitted; above 0.5 distrust the threshold) and ``fallback``
        (why POT fitted none). F1 is NaN for clients without anomalies, and all of it for those without a threshold.
    """
    same_names(test, validation, "validation")
    same_names(test, labels, "labels")
    if protocol.when_capped not in ("zero", "nan", "clip"):
        raise ValueError(f'when_capped={protocol.when_capped!r}; want "zero", "nan" or "clip"')
    records = {}
    for name, score in test.items():
        try:
            records[name] = _one_client(protocol, validation[name], *checked(score, labels[name]))
        except ValueError as error:
            raise ValueError(f"client {name}: {error}") from error
    return pd.DataFrame.from_dict(records, orient="index").rename_axis("client")


def protocol_table(
    validation: Mapping[str, np.ndarray],
    test: Mapping[str, np.ndarray],
    labels: Mapping[str, np.ndarray],
    protocols: Iterable[Protocol] = tuple(PROTOCOLS.values()),
) -> pd.DataFrame:
    """Macro means by every protocol.

    Returns:
        A frame by protocol with the means ``f1``, ``precision``, ``recall``, ``auc`` and ``alarm_rate``, and counts of
        clients: ``n_defined`` (of F1), ``clients``, ``rejected`` by the recall cap, ``fallback`` (no tail to fit) and
        ``heavy`` (tails with a shape above 0.5).
    """
    records = {}
    for protocol in protocols:
        table = judge(protocol, validation, test, labels)
        means = macro(table)
        records[protocol.title] = {
            **{m: means.loc[m, "mean"] for m in ("f1", "precision", "recall", "auc", "alarm_rate")},
            "n_defined": int(table["f1"].count()),
            "clients": len(table),
            "rejected": int(table["rejected"].sum()),
            "fallback": int((table["fallback"] != "").sum()),
            "heavy": int((table["gamma"] > 0.5).sum()),
        }
    return pd.DataFrame.from_dict(records, orient="index").rename_axis("protocol")


def _one_client(
    protocol: Protocol, validation: np.ndarray, score: np.ndarray, y: np.ndarray
) -> dict[str, float | str]:
    threshold, gamma, fallback = _threshold(protocol, validation, score, y)
    found, rejected = _detection(protocol, threshold, score, y)
    return {
        "protocol": protocol.title,
        **found,
        "auc": auroc(score, y),
        "rejected": rejected,
        "threshold": threshold,
        "gamma": gamma,
        "fallback": fallback,
    }


def _threshold(
    protocol: Protocol, validation: np.ndarray, score: np.ndarray, y: np.ndarray
) -> tuple[float, float, str]:
    """Threshold, tail shape and reason of a fallback; NaN for a client whose validation rows have no scores."""
    nan = float("nan")
    if protocol.threshold is None:
        best = oracle_best_f1(
            score,
            y,
            k_percent=protocol.k_percent,
            rule=protocol.boundary,
            recall_cap=protocol.recall_cap,
            cap_on=protocol.cap_on,
        )
        return best.oracle_threshold, nan, ""
    if np.isnan(validation).all():
        return nan, nan, ""
    fitted = protocol.threshold(np.asarray(validation))
    return (fitted.threshold, fitted.gamma, fitted.fallback) if isinstance(fitted, Pot) else (fitted, nan, "")


def _detection(
    protocol: Protocol, threshold: float, score: np.ndarray, y: np.ndarray
) -> tuple[dict[str, float], float]:
    """Precision, recall, F1 and alarm rate at one threshold, and whether the recall cap refused it."""
    nan = float("nan")
    if np.isnan(threshold):
        return dict.fromkeys(("precision", "recall", "f1", "alarm_rate"), nan), nan
    has_score = ~np.isnan(score)
    alarm = alarms(score, threshold)
    adjusted = alarm
    if protocol.k_percent is not None:
        adjusted = point_adjust(
            alarm, y, k_percent=protocol.k_percent, rule=protocol.boundary, scored=has_score
        )
    raw, counts = metrics.count(alarm, y, has_score), metrics.count(adjusted, y, has_score)
    recall = metrics.recall(raw if protocol.cap_on == "raw" else counts)
    rejected = protocol.recall_cap is not None and recall > protocol.recall_cap
    if rejected and protocol.when_capped == "zero":
        raw = counts = metrics.count(np.zeros_like(alarm), y, has_score)
    found = {
        "precision": metrics.precision(counts),
        "recall": metrics.recall(counts),
        "f1": metrics.f1(counts),
        "alarm_rate": metrics.alarm_rate(raw),
    }
    if rejected and protocol.when_capped == "nan":
        found |= dict.fromkeys(("precision", "recall", "f1"), nan)
    if rejected and protocol.when_capped == "clip":
        assert protocol.recall_cap is not None
        found["recall"] = min(found["recall"], protocol.recall_cap)
        found["f1"] = 2 * found["precision"] * found["recall"] / (found["precision"] + found["recall"])
    return found, float(rejected)
