"""Whether a one-class network maps everything to one point, so that its scores say nothing. Shapes: N rows, d latent.

References:
    Ruff et al. (2018), Deep One-Class Classification, section 3.3, on how the loss invites it.
"""

from collections.abc import Mapping

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

LEAST_DISTINCT = 0.9
"""Share of the distinct examples that must have a score of their own."""

LEAST_SPREAD = 1e-3
"""Standard deviation of the scores over their mean."""


def collapse_warnings(
    scores: Mapping[str, np.ndarray], x: Mapping[str, np.ndarray], window: int = 1
) -> list[str]:
    """One line for every client whose scores are all but equal though its examples are not.

    Args:
        scores: ``(T,)`` by client, none negative; NaN where there is none.
        x: ``(T, C)`` by client, what was scored.
        window: W, the rows that make one example; 1 for the rows of a table.

    Returns:
        Lines that name the client and what was found; none for a client with fewer than two distinct examples.
    """
    lines = []
    for name, score in scores.items():
        known = np.asarray(score, np.float64)
        known = known[~np.isnan(known)]
        distinct = distinct_examples(x[name], window)
        if distinct < 2 or len(known) < 2:
            continue
        values, spread = len(np.unique(known)), float(np.std(known))
        if values < LEAST_DISTINCT * min(distinct, len(known)):
            lines.append(f"{name}: scores have collapsed, {values} distinct for {distinct} distinct examples")
        elif spread < LEAST_SPREAD * float(np.mean(known)):
            lines.append(
                f"{name}: scores have collapsed, their standard deviation is {spread:.2g} at a mean of "
                f"{np.mean(known):.2g}"
            )
    return lines


def distinct(rows: np.ndarray) -> int:
    """How many different scores ``(N,)``, or rows ``(N, F)``, there are."""
    return len(np.unique(rows, axis=0))


def distinct_examples(x: np.ndarray, window: int = 1) -> int:
    """How many windows of ``x (T, C)`` differ, told apart by one random projection in float64."""
    if window == 1:
        return distinct(x)
    if len(x) < window:
        return 0
    rng = np.random.default_rng(0)
    projected = np.asarray(x, np.float64) @ rng.standard_normal(x.shape[1])
    return distinct(sliding_window_view(projected, window) @ rng.standard_normal(window))


def effective_rank(covariance: np.ndarray) -> float:
    """How many directions embeddings spread over: ``exp`` of the entropy of their singular values' shares.

    1 if they lie on a line, d if they spread alike in all directions, 0 if they do not spread at all.

    Args:
        covariance: ``(d, d)`` of the embeddings; its eigenvalues are the squares of their singular values.

    References:
        Roy and Vetterli (2007), The effective rank: A measure of effective dimensionality.
    """
    values = np.linalg.eigvalsh(np.asarray(covariance, dtype=np.float64))
    floor = len(values) * np.finfo(np.float32).eps * max(values.max(initial=0.0), 0.0)
    singular = np.sqrt(values[values > floor])
    if not len(singular):
        return 0.0
    shares = singular / singular.sum()
    return float(np.exp(-np.sum(shares * np.log(shares))))
