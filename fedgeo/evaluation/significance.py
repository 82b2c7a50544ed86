"""Whether one method is better than another over the same seeds, as FedKAD's Table III asks.

References:
    FedKAD (arXiv 2607.08978), section VI-B1. Cohen (1988), Statistical Power Analysis for the Behavioral Sciences,
    for d_z. Student (1908), The Probable Error of a Mean.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from scipy.stats import ttest_rel

Values = Sequence[float] | np.ndarray
"""One value a seed, or one a client."""


class Paired(NamedTuple):
    """A paired comparison.

    Attributes:
        pairs: of defined values.
        margin: mean of ours minus theirs.
        t: Student's statistic of the differences.
        p: two-sided probability of such a t without any difference.
        d_z: Cohen's effect size, the margin in standard deviations of the differences; t is d_z * sqrt(pairs).
    """

    pairs: int
    margin: float
    t: float
    p: float
    d_z: float


class Verdict(NamedTuple):
    """Ours against the strongest of several rivals.

    Attributes:
        rival: the one with the highest mean.
        margin: mean of ours minus theirs.
        p: of the paired t-test, two-sided.
        d_z: Cohen's effect size of the differences.
        pairs: that the test rests on.
        outcome: "win" if the margin exceeds the gate, "loss" if it is below minus the gate, else "tie". It does not
            look at p.
    """

    rival: str
    margin: float
    p: float
    d_z: float
    pairs: int
    outcome: Literal["win", "tie", "loss"]


def paired(ours: Values, theirs: Values) -> Paired:
    """Paired t-test and effect size.

    Args:
        ours: ``(S,)`` one value a seed (or a client), NaN where undefined.
        theirs: ``(S,)`` values of the same seeds in the same order.

    Returns:
        The comparison over the pairs in which both values are defined. With one pair t, p and d_z are NaN; with
        differences that are all equal, they are infinite, 0 and infinite, or NaN if that difference is 0.
    """
    a, b = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    if a.ndim != 1 or a.shape != b.shape:
        raise ValueError(
            f"got values {a.shape} and {b.shape}; want one a seed of each method, in the same order"
        )
    both = ~(np.isnan(a) | np.isnan(b))
    difference = (a - b)[both]
    pairs, nan = len(difference), float("nan")
    margin = float(difference.mean()) if pairs else nan
    if pairs < 2:
        return Paired(pairs, margin, nan, nan, nan)
    if np.ptp(difference) == 0:
        infinite = float(np.copysign(np.inf, margin)) if margin else nan
        return Paired(pairs, margin, infinite, 0.0 if margin else nan, infinite)
    test = ttest_rel(a[both], b[both])
    return Paired(
        pairs, margin, float(test.statistic), float(test.pvalue), margin / float(difference.std(ddof=1))
    )


def verdict(ours: Values, rivals: Mapping[str, Values], *, gate: float = 0.5) -> Verdict:
    """Ours against the strongest rival, by a margin that was fixed beforehand (Table III: 0.5 points of F1).

    Args:
        ours: ``(S,)`` one value a seed, in the unit of ``gate``: percentage points for 0.5.
        rivals: ``(S,)`` values of the same seeds by name.
        gate: margin that counts as a win.
    """
    means = {name: float(np.nanmean(v)) for name, v in rivals.items() if not np.isnan(v).all()}
    if not means:
        raise ValueError(f"got {len(rivals)} rivals without a defined value; want at least one with values")
    rival = max(means, key=means.__getitem__)
    result = paired(ours, rivals[rival])
    if np.isnan(result.margin):
        raise ValueError(f"no seed has a value of ours and of {rival}; want values of the same seeds")
    outcome: Literal["win", "tie", "loss"] = "tie"
    if abs(result.margin) > gate:
        outcome = "win" if result.margin > 0 else "loss"
    return Verdict(rival, result.margin, result.p, result.d_z, result.pairs, outcome)
