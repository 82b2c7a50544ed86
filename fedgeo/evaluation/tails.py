"""Peaks over threshold: an alarm level from the tail of normal scores, by extreme value theory.

The excesses of the calibration scores over a high level follow, for most distributions, a generalised Pareto law. Its
fit says how high a threshold must be for a share ``q`` of normal scores to exceed it, even beyond the largest one seen.

The fit here is the exact maximum likelihood, found by a search of the profile likelihood over the whole range of
shapes. It does not depend on the unit of the score. The usual implementation, known as ``spot.py`` and copied into most
benchmarks, has two faults: the likelihood of the exponential limit carries the wrong sign, so that this limit wins
whenever the mean excess is well above 1/e, and the root of a heavy tail is not found. Published numbers partly rest
on it, so ``fit="legacy_spot"`` reproduces it for comparison. Shapes: N calibration scores, T rows of a stream.

References:
    Siffer et al. (2017), Anomaly Detection in Streams with Extreme Value Theory.
    Grimshaw (1993), Computing Maximum Likelihood Estimates for the Generalized Pareto Distribution.
"""

import math
from fractions import Fraction
from typing import Literal, NamedTuple

import numpy as np
from scipy.optimize import brentq, minimize, minimize_scalar

from fedgeo.evaluation.thresholds import calibration_scores, quantile

Fit = Literal["mle", "legacy_spot"]
"""Exact maximum likelihood, or the usual faulty fit, to compare with the literature only."""

HEAVY = 0.5
"""Shape above which the tail has no variance and a threshold may lie far above every score there is."""

_GRID = 96
_LIGHTEST = -1.0  # below this shape the likelihood has no maximum


class Tail(NamedTuple):
    """A generalised Pareto law of excesses.

    Attributes:
        gamma: shape; 0 is the exponential law, above 0 heavier, below 0 with an upper end.
        sigma: scale.
        log_likelihood: of the excesses that it was fitted to.
    """

    gamma: float
    sigma: float
    log_likelihood: float

    @property
    def heavy(self) -> bool:
        """Whether the shape exceeds :data:`HEAVY`."""
        return self.gamma > HEAVY


class Pot(NamedTuple):
    """A threshold from peaks over threshold, and what it rests on.

    Attributes:
        threshold: z_q; alarms are the scores strictly above it.
        gamma: shape of the fitted tail, NaN without a fit.
        sigma: scale of the fitted tail, NaN without a fit.
        tail_start: t, over which the excesses were taken.
        excesses: N_t, how many there were.
        scores: n, calibration scores in all.
        log_likelihood: of the fit.
        fallback: why there is no fit and ``threshold`` is the plain ``1 - q`` quantile; empty with a fit.
    """

    threshold: float
    gamma: float
    sigma: float
    tail_start: float
    excesses: int
    scores: int
    log_likelihood: float
    fallback: str = ""

    @property
    def heavy(self) -> bool:
        """Whether the shape exceeds :data:`HEAVY`: look at the threshold before you trust it.

        It is a property and not a Python warning, because a warning is shown once and not for every client.
        """
        return self.gamma > HEAVY


def pot(
    scores: np.ndarray,
    q: float = 1e-3,
    level: float = 0.98,
    *,
    fit: Fit = "mle",
    min_excesses: int = 10,
    on_degenerate: Literal["error", "quantile"] = "error",
) -> Pot:
    """The threshold that a share ``q`` of scores like these would exceed.

    ``z_q = t + sigma / gamma * ((q n / N_t) ** -gamma - 1)`` (Siffer 2017, eq. 1), where N_t of the n scores exceed
    their ``level`` quantile t.

    Args:
        scores: ``(N,)`` calibration scores of normal rows; NaN is a row without a score.
        q: share of normal rows that may raise an alarm.
        level: share of the scores below t.
        fit: exact maximum likelihood, or the usual fit to compare with the literature.
        min_excesses: fewest excesses that are worth a fit.
        on_degenerate: what to do where no tail can be fitted: raise, or take the ``1 - q`` quantile of the scores and
            say why in ``fallback``.

    Raises:
        ValueError: for infinite scores, too few or equal excesses (constant or 0/1 scores, short streams) or
            ``q >= N_t / n``, unless a fallback is wanted.
    """
    _check(q, level, fit)
    values = calibration_scores(scores)
    t, excesses = _excesses(values, level)
    reason = _degenerate(values, excesses, q, level, min_excesses)
    if not reason:
        return _pot(t, excesses, len(values), q, fit)
    if on_degenerate == "error":
        raise ValueError(f'{reason}; or take a plain quantile with on_degenerate="quantile"')
    if on_degenerate != "quantile":
        raise ValueError(f'on_degenerate={on_degenerate!r}; want "error" or "quantile"')
    nan = float("nan")
    return Pot(quantile(values, 1 - q), nan, nan, t, len(excesses), len(values), nan, reason)


class Spot:
    """Peaks over threshold on a stream: the tail is fitted again with every new excess.

    Alarmed scores are not learned from. Degenerate calibration scores raise as in :func:`pot`. Memory grows with the
    number of excesses.

    Attributes:
        current: the present threshold and fit.
    """

    def __init__(
        self,
        calibration: np.ndarray,
        q: float = 1e-3,
        level: float = 0.98,
        *,
        fit: Fit = "mle",
        min_excesses: int = 10,
    ):
        self.current = pot(calibration, q, level, fit=fit, min_excesses=min_excesses)
        self._q, self._fit = q, fit
        self._excesses = list(_excesses(calibration_scores(calibration), level)[1])
        self._scores = self.current.scores

    def update(self, score: float) -> bool:
        """Whether the score is an alarm; learn from it if not. NaN is neither."""
        if math.isnan(score):
            return False
        if score > self.current.threshold:
            return True
        self._scores += 1
        if score > self.current.tail_start:
            self._excesses.append(score - self.current.tail_start)
            excesses = np.array(self._excesses)
            self.current = _pot(self.current.tail_start, excesses, self._scores, self._q, self._fit)
        return False

    def run(self, stream: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """:meth:`update` with every row of ``(T,)``: alarms, and the thresholds that they were held against."""
        alarm, threshold = np.zeros(len(stream), dtype=bool), np.zeros(len(stream))
        for row, score in enumerate(np.asarray(stream, dtype=np.float64).tolist()):
            threshold[row] = self.current.threshold
            alarm[row] = self.update(score)
        return alarm, threshold


def fit_tail(excesses: np.ndarray, fit: Fit = "mle") -> Tail:
    """Fit a generalised Pareto law to positive excesses ``(N,)`` that are not all equal.

    The maximum is taken over gamma >= -1, since the likelihood is unbounded below. At gamma = -1 the law is uniform.
    """
    y = np.asarray(excesses, dtype=np.float64)
    if y.ndim != 1 or not len(y) or not (np.isfinite(y) & (y > 0)).all() or np.ptp(y) == 0:
        raise ValueError(f"got excesses {y.ravel()[:4]}; want positive finite numbers (N,), not all equal")
    if fit == "legacy_spot":
        return _legacy_tail(y)
    unit = float(y.mean())
    tail = _profile_maximum(y / unit)
    return Tail(tail.gamma, tail.sigma * unit, tail.log_likelihood - len(y) * math.log(unit))


def _check(q: float, level: float, fit: str) -> None:
    if not 0.0 < q < 1.0:
        raise ValueError(f"q={q}; want a share of rows in (0, 1), such as 1e-3")
    if not 0.0 <= level < 1.0:
        raise ValueError(f"level={level}; want a share of the scores in [0, 1), such as 0.98")
    if fit not in ("mle", "legacy_spot"):
        raise ValueError(f'fit={fit!r}; want "mle" or "legacy_spot"')


def _excesses(values: np.ndarray, level: float) -> tuple[float, np.ndarray]:
    """The score at rank ``level * n``, and by how much the scores above it exceed it."""
    rank = min(int(Fraction(level).limit_denominator(10**6) * len(values)), len(values) - 1)
    t = float(np.partition(values, rank)[rank])
    with np.errstate(invalid="ignore"):  # infinite scores are refused by name
        return t, values[values > t] - t


def _degenerate(values: np.ndarray, excesses: np.ndarray, q: float, level: float, min_excesses: int) -> str:
    n, above = len(values), len(excesses)
    if infinite := int(np.isinf(values).sum()):
        return f"{infinite} of {n} calibration scores are infinite, so they have no tail; find out why"
    if np.ptp(values) == 0:
        return f"all {n} calibration scores are equal, so they have no tail; the detector may have collapsed"
    if above < max(min_excesses, 1):
        return (
            f"{above} of {n} calibration scores exceed the level {level}, want at least {max(min_excesses, 1)}; "
            "use more scores or a lower level"
        )
    if np.ptp(excesses) == 0:
        return f"all {above} excesses over the level {level} are equal, so they have no tail; lower the level"
    if q >= above / n:
        return (
            f"q={q} is not below {above / n:.3g}, the share of scores above the level {level}, so the threshold "
            "would lie below the tail; lower q or the level"
        )
    return ""


def _pot(t: float, excesses: np.ndarray, n: int, q: float, fit: Fit) -> Pot:
    tail = fit_tail(excesses, fit)
    ratio = math.log(q * n / len(excesses))
    with np.errstate(over="ignore"):  # a threshold at infinity raises no alarm
        beyond = -ratio if tail.gamma == 0 else float(np.expm1(-tail.gamma * ratio)) / tail.gamma
    return Pot(t + tail.sigma * beyond, tail.gamma, tail.sigma, t, len(excesses), n, tail.log_likelihood)


def _profile_maximum(y: np.ndarray) -> Tail:
    """Maximise the likelihood of excesses of mean 1 over theta = gamma / sigma, for which gamma is known.

    With gamma(theta) = mean log(1 + theta y) the log-likelihood is -N (1 + gamma + log(gamma / theta)). The search runs
    over u = log(1 + theta max y), unbounded below, from gamma = -1 to Grimshaw's upper bound of all stationary points.
    Beside what it finds stand its exponential limit and the best law at the border gamma = -1, which is uniform.
    """
    ratio, n = y / y.max(), len(y)

    def gamma_of(u: float | np.ndarray) -> np.ndarray:
        u = np.asarray(u)[..., None]
        with np.errstate(divide="ignore"):  # of the largest excess, which is u itself
            logs = np.log1p(ratio * np.expm1(u))
        return np.where(ratio == 1.0, u, logs).mean(axis=-1)

    def minus_likelihood(u: float | np.ndarray) -> np.ndarray:
        gamma, theta = gamma_of(u), np.expm1(u) / y.max()
        exponential = np.abs(theta) < 1e-12
        sigma = np.where(exponential, 1.0, gamma / np.where(exponential, 1.0, theta))
        return n * (1 + gamma + np.log(sigma))

    lowest = brentq(lambda u: float(gamma_of(u)) - _LIGHTEST, -n, 0.0, xtol=1e-13)
    smallest = max(float(y.min()), 1e-140)
    highest = math.log1p(2 * (1 - smallest) / smallest**2 * float(y.max()))
    grid = np.sinh(np.linspace(math.asinh(lowest), math.asinh(highest), _GRID))
    best = int(np.argmin(minus_likelihood(grid)))
    around = grid[max(best - 1, 0)], grid[min(best + 1, _GRID - 1)]
    found = minimize_scalar(minus_likelihood, bounds=around, method="bounded", options={"xatol": 1e-10})
    exponential = Tail(0.0, 1.0, -float(n))
    uniform = Tail(_LIGHTEST, float(y.max()), -n * math.log(y.max()))
    theta = math.expm1(found.x) / float(y.max())
    candidates = [exponential, uniform]
    if abs(theta) > 1e-12:
        gamma = float(gamma_of(found.x))
        candidates.append(Tail(gamma, gamma / theta, -float(found.fun)))
    return max(candidates, key=lambda tail: tail.log_likelihood)


def _legacy_tail(y: np.ndarray) -> Tail:
    """The usual fit of SPOT with its faults: the search of the roots and the sign at gamma 0."""
    n, mean, smallest, largest = len(y), y.mean(), y.min(), y.max()
    margin = 1e-8
    pole = -1 / largest
    if abs(pole) < 2 * margin:
        margin = abs(pole) / 10
    right = 2 * (mean - smallest) / (mean * smallest), 2 * (mean - smallest) / smallest**2
    candidates = np.r_[_legacy_roots(y, pole + 2 * margin, -margin), _legacy_roots(y, *right)]
    best = Tail(0.0, float(mean), float(n * (1 + np.log(mean))))  # the sign is wrong
    for theta in candidates[candidates != 0]:
        gamma = float(np.mean(np.log(1 + theta * y)))
        sigma = gamma / theta
        value = float(-n * np.log(sigma) - (1 + 1 / gamma) * np.sum(np.log(1 + theta * y)))
        if value > best.log_likelihood:
            best = Tail(gamma, float(sigma), value)
    return best


def _legacy_roots(y: np.ndarray, low: float, high: float) -> np.ndarray:
    """Where ten starting points between the bounds end that minimise, together, the squares of Grimshaw's equation."""
    step = (high - low) / 11
    start = np.arange(low + step, high, step)

    def squares(theta: np.ndarray) -> tuple[float, np.ndarray]:
        s = 1 + theta[:, None] * y
        u, v = 1 + np.log(s).mean(axis=1), (1 / s).mean(axis=1)
        du, dv = (1 - v) / theta, (-v + (1 / s**2).mean(axis=1)) / theta
        w = u * v - 1
        return float(np.sum(w**2)), 2 * w * (u * dv + v * du)

    found = minimize(squares, start, jac=True, method="L-BFGS-B", bounds=[(low, high)] * len(start))
    return np.unique(found.x)
