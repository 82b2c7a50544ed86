"""Whether one method is better than another: over the same seeds, or many methods over many data sets.

:func:`paired` and :func:`verdict` are what FedKAD's Table III asks for, :func:`ranks` and :func:`practical` what
section IV-C of the Geodesic-SVDD paper asks for. Shapes: S seeds, B data sets or other scenarios, J methods.

References:
    FedKAD (arXiv 2607.08978), section VI-B1. Cohen (1988), Statistical Power Analysis for the Behavioral Sciences,
    for d_z. Student (1908), The Probable Error of a Mean. Demsar (2006), Statistical Comparisons of Classifiers over
    Multiple Data Sets. Benavoli, Corani, Demsar and Zaffalon (2017), Time for a Change.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import friedmanchisquare, rankdata, studentized_range, ttest_rel

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


class Ranks(NamedTuple):
    """Friedman's test and Nemenyi's post-hoc test.

    Attributes:
        mean: average rank of each method, 1 for the best; ties share their mean.
        statistic: Friedman's chi-squared, corrected for ties.
        p: its probability if all methods were alike.
        critical_difference: of average ranks, above which two methods differ.
        nemenyi: ``(J, J)`` probability of each pair's difference if all were alike.
    """

    mean: pd.Series
    statistic: float
    p: float
    critical_difference: float
    nemenyi: pd.DataFrame


class Practical(NamedTuple):
    """Posterior probabilities of what a further scenario would show.

    Attributes:
        worse: ours is lower by more than the region of practical equivalence.
        equal: within that region.
        better: ours is higher by more.
    """

    worse: float
    equal: float
    better: float


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


def critical_difference(methods: int, scenarios: int, *, alpha: float = 0.05) -> float:
    """Nemenyi's critical difference of the average ranks of J methods over B scenarios (Demsar 2006, section 3.2.2)."""
    if methods < 2 or scenarios < 1 or not 0 < alpha < 1:
        raise ValueError(
            f"got {methods} methods, {scenarios} scenarios and alpha={alpha}; want at least 2, at least 1 and a "
            "probability in (0, 1), such as 0.05"
        )
    quantile = float(studentized_range.ppf(1 - alpha, methods, np.inf)) / np.sqrt(2)
    return quantile * float(np.sqrt(methods * (methods + 1) / (6 * scenarios)))


def ranks(values: pd.DataFrame, *, alpha: float = 0.05) -> Ranks:
    """Rank methods in every scenario and ask whether the average ranks differ.

    Args:
        values: ``(B, J)``, a row a scenario and a column a method; higher is better. At least three methods.
        alpha: level of the critical difference.

    Raises:
        ImportError: without scikit-posthocs, from the extra ``fedgeo[stats]``.
        ValueError: fewer than three methods or two scenarios, or an undefined value.
    """
    _check_scenarios(values.to_numpy(np.float64), least_methods=3)
    try:
        from scikit_posthocs import posthoc_nemenyi_friedman
    except ImportError as error:
        raise ImportError("ranks needs scikit-posthocs: pip install 'fedgeo[stats]'") from error
    x = values.to_numpy(np.float64)
    mean = pd.Series(rankdata(-x, axis=1).mean(axis=0), index=values.columns, name="rank")
    test = friedmanchisquare(*x.T)
    nemenyi = pd.DataFrame(
        posthoc_nemenyi_friedman(x).to_numpy(), index=values.columns, columns=values.columns
    )
    return Ranks(
        mean,
        float(test.statistic),
        float(test.pvalue),
        critical_difference(x.shape[1], len(x), alpha=alpha),
        nemenyi,
    )


def practical(
    ours: Values, theirs: Values, *, rope: float, seed: int = 0, samples: int = 50_000
) -> Practical:
    """Bayesian signed-rank test with a region of practical equivalence.

    Args:
        ours: ``(B,)`` one value a scenario, higher is better.
        theirs: ``(B,)`` values of the same scenarios in the same order.
        rope: differences up to this size count as none, in the unit of the values.
        seed: of the posterior's samples.
        samples: of the posterior.

    Raises:
        ImportError: without baycomp, from the extra ``fedgeo[stats]``.
        ValueError: a rope that is not positive, fewer than two scenarios, or an undefined value.
    """
    if not rope > 0:
        raise ValueError(f"rope={rope}; want a positive difference, such as 1 for one point")
    a, b = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    if a.ndim != 1 or a.shape != b.shape:
        raise ValueError(f"got values {a.shape} and {b.shape}; want one a scenario of each method")
    _check_scenarios(np.stack([a, b], axis=1), least_methods=2)
    try:
        from baycomp import SignedRankTest
    except ImportError as error:
        raise ImportError("practical needs baycomp: pip install 'fedgeo[stats]'") from error
    # In baycomp "left" is that the first of its arguments is higher.
    better, equal, worse = SignedRankTest.probs(a, b, rope=rope, nsamples=samples, random_state=seed)
    return Practical(float(worse), float(equal), float(better))


def _check_scenarios(values: np.ndarray, *, least_methods: int) -> None:
    if values.shape[0] < 2 or values.shape[1] < least_methods or not np.isfinite(values).all():
        raise ValueError(
            f"got {values.shape[0]} scenarios of {values.shape[1]} methods, {int((~np.isfinite(values)).sum())} values "
            f"undefined; want at least 2 of at least {least_methods}, all defined: leave out what is not"
        )
