"""Metrics of a score's order alone, free of any threshold.

Shapes: T rows. A row whose score is NaN (a window that has not filled) is left out; an undefined metric is
NaN. Only the order of the scores counts, so infinite scores are legal.
"""

import numpy as np
from scipy.stats import rankdata
from sklearn.metrics import auc, average_precision_score, precision_recall_curve, roc_auc_score


def checked(score: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores ``(T,)`` as floats and labels ``(T,)`` as booleans, or an error that says what does not fit."""
    score = np.asarray(score)
    if score.dtype.kind != "f":
        score = score.astype(np.float64)
    labels = np.asarray(labels)
    if score.ndim != 1 or labels.shape != score.shape:
        raise ValueError(f"got scores {score.shape} and labels {labels.shape}; want one of each a row, (T,)")
    if not np.isin(labels, (0, 1)).all():
        raise ValueError(f"got labels {np.unique(labels)[:6]}, want 0 (normal) and 1 (anomalous)")
    return score, labels.astype(bool)


def scored(score: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores and labels of the rows that have a score."""
    score, y = checked(score, labels)
    has_score = ~np.isnan(score)
    return score[has_score], y[has_score]


def auroc(score: np.ndarray, labels: np.ndarray) -> float:
    """Probability that an anomalous row outscores a normal one, ties half; NaN with one class only."""
    score, y = scored(score, labels)
    if y.all() or not y.any():
        return float("nan")
    return float(roc_auc_score(y, rankdata(score, method="dense")))


def average_precision(score: np.ndarray, labels: np.ndarray) -> float:
    """Precision averaged over the recall steps, not the trapezoid under the curve; NaN with one class only.

    A random score gets about the share of anomalous rows.
    """
    score, y = scored(score, labels)
    if y.all() or not y.any():
        return float("nan")
    return float(average_precision_score(y, rankdata(score, method="dense")))


def precision_at(score: np.ndarray, labels: np.ndarray, recall: np.ndarray) -> np.ndarray:
    """Precision at the highest threshold that reaches each level of recall; NaN with one class only.

    A step function of recall, whose area from 0 to 1 is :func:`average_precision`.

    Args:
        score: ``(T,)``.
        labels: ``(T,)``.
        recall: ``(n,)`` levels in (0, 1].

    Returns:
        ``(n,)``.
    """
    recall = np.asarray(recall, dtype=np.float64)
    if not ((recall > 0) & (recall <= 1)).all():
        raise ValueError(f"levels of recall must lie in (0, 1], got {recall.min():g} to {recall.max():g}")
    score, y = scored(score, labels)
    if y.all() or not y.any():
        return np.full(recall.shape, np.nan)
    precision, reached, _ = precision_recall_curve(y, rankdata(score, method="dense"))
    return precision[::-1][np.searchsorted(reached[::-1], recall)]


def trapezoid_pr(score: np.ndarray, labels: np.ndarray) -> float:
    """Trapezoids under the precision-recall curve; NaN with one class only.

    Some papers report it as PR-AUC. It lies on either side of :func:`average_precision`, so say which you report.
    """
    score, y = scored(score, labels)
    if y.all() or not y.any():
        return float("nan")
    precision, recall, _ = precision_recall_curve(y, rankdata(score, method="dense"))
    return float(auc(recall, precision))
