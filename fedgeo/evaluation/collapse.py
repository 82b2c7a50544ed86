"""Whether a one-class network maps everything to one point, so that its scores say nothing.

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


def distinct_examples(x: np.ndarray, window: int = 1) -> int:
    """How many windows of ``x (T, C)`` differ, told apart by one random projection in float64."""
    rng = np.random.default_rng(0)
    projected = np.asarray(x, np.float64) @ rng.standard_normal(x.shape[1])
    if len(x) < window:
        return 0
    return len(np.unique(sliding_window_view(projected, window) @ rng.standard_normal(window)))
