import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import genpareto

from fedgeo.evaluation import tails, thresholds

TAILS = {
    "normal": lambda rng: rng.standard_normal(10_000),
    "exponential": lambda rng: rng.exponential(size=10_000),
    "chi2(4)": lambda rng: rng.chisquare(4, 10_000),
    "lognormal": lambda rng: rng.lognormal(size=10_000),
    "pareto(3)": lambda rng: rng.pareto(3.0, 10_000),
    "pareto(1.5)": lambda rng: rng.pareto(1.5, 10_000),
}


def _sample(tail: str, seed: int = 0) -> np.ndarray:
    return TAILS[tail](np.random.default_rng(seed))


# Shape, scale and thresholds by SciPy's maximum likelihood, and the threshold of four copies of the usual spot.py.
@pytest.mark.parametrize(
    ("tail", "level", "gamma", "sigma", "likelihood", "at_1e3", "at_1e4", "legacy"),
    [
        (
            "normal",
            2.048895034141977,
            -0.208526,
            0.402216,
            23.73375740241195,
            2.943905208,
            None,
            2.94390141590395,
        ),
        (
            "exponential",
            3.921737962511089,
            -0.027919,
            1.006278,
            -194.691223096167,
            6.809016953,
            8.873384034686353,
            6.84925194376563,
        ),
        (
            "pareto(3)",
            2.6959809054941837,
            0.318201,
            1.215754,
            -301.1953497932691,
            8.770831800798684,
            19.464554061162858,
            7.917097964958318,
        ),
    ],
)
def test_known_values(tail, level, gamma, sigma, likelihood, at_1e3, at_1e4, legacy) -> None:
    scores = _sample(tail)
    fitted = tails.pot(scores)
    assert (fitted.tail_start, fitted.excesses, fitted.scores, fitted.fallback) == (level, 199, 10_000, "")
    assert (fitted.gamma, fitted.sigma) == pytest.approx((gamma, sigma), abs=5e-5)
    assert fitted.threshold == pytest.approx(at_1e3, rel=5e-5)
    assert fitted.log_likelihood == pytest.approx(likelihood, abs=1e-6)
    assert fitted.log_likelihood >= likelihood - 1e-8
    if at_1e4:
        assert tails.pot(scores, 1e-4).threshold == pytest.approx(at_1e4, rel=5e-5)
    assert tails.pot(scores, fit="legacy_spot").threshold == pytest.approx(legacy, rel=1e-7)


def test_the_usual_fit_depends_on_the_unit_and_ours_does_not() -> None:
    normal = _sample("normal")
    assert tails.pot(1000 * normal, fit="legacy_spot").threshold / 1000 == pytest.approx(3.0446, abs=1e-4)
    assert tails.pot(1000 * normal).threshold / 1000 == pytest.approx(tails.pot(normal).threshold, rel=1e-6)
    exponential = tails.pot(_sample("exponential"), fit="legacy_spot")
    assert exponential.gamma == 0.0
    assert exponential.log_likelihood > 0  # of a likelihood that is negative


@pytest.mark.parametrize("tail", TAILS)
def test_fit_agrees_with_scipy_on_twenty_seeds(tail: str) -> None:
    for seed in range(20):
        scores = _sample(tail, seed)
        fitted = tails.pot(scores)
        excesses = scores[scores > fitted.tail_start] - fitted.tail_start
        gamma, _, sigma = genpareto.fit(excesses, floc=0)
        z = fitted.tail_start + sigma / gamma * ((1e-3 * 10_000 / len(excesses)) ** -gamma - 1)
        assert fitted.threshold == pytest.approx(z, rel=1e-3)
        assert fitted.log_likelihood >= genpareto.logpdf(excesses, gamma, 0, sigma).sum() - 1e-8
        own = genpareto.logpdf(excesses, fitted.gamma, 0, fitted.sigma).sum()
        assert fitted.log_likelihood == pytest.approx(own, rel=1e-9)
        assert fitted.heavy == (fitted.gamma > 0.5)
        assert fitted.heavy or tail != "pareto(1.5)" or fitted.gamma > 0.4


@pytest.mark.parametrize("tail", TAILS)
def test_threshold_follows_the_unit_of_the_score(tail: str) -> None:
    scores = _sample(tail)
    expected = tails.pot(scores)
    for factor in (1e-6, 1e-3, 7.0, 1e3, 1e6):
        scaled = tails.pot(scores * factor)
        assert scaled.threshold / factor == pytest.approx(expected.threshold, rel=1e-6)
        assert scaled.gamma == pytest.approx(expected.gamma, abs=1e-6)


@given(seed=st.integers(0, 1000), tail=st.sampled_from(sorted(TAILS)), shift=st.floats(-5, 5))
def test_threshold_falls_with_q_and_moves_with_the_score(seed: int, tail: str, shift: float) -> None:
    scores = _sample(tail, seed)[:2000]
    fitted = [tails.pot(scores, q).threshold for q in (1e-5, 1e-4, 1e-3, 1e-2)]
    assert (np.diff(fitted) < 0).all()
    assert fitted[-1] > tails.pot(scores).tail_start
    assert tails.pot(scores + shift, 1e-3).threshold - shift == pytest.approx(fitted[2], rel=1e-5, abs=1e-6)


def test_light_tails_end_at_the_uniform_law() -> None:
    scores = np.random.default_rng(0).random(5000)
    fitted = tails.pot(scores)
    assert fitted.gamma == pytest.approx(-1.0)
    assert fitted.sigma == pytest.approx(scores.max() - fitted.tail_start)
    assert fitted.threshold == pytest.approx(0.999, abs=1e-3)
    assert fitted.threshold < scores.max()


def test_an_exponential_tail_is_the_limit_of_small_shapes() -> None:
    grid = -np.log1p(-(np.arange(20_000) + 0.5) / 20_000)  # its shape is a little below 0
    tail = tails.fit_tail(grid)
    assert tail.gamma == pytest.approx(0.0, abs=2e-3)
    assert tail.sigma == pytest.approx(1.0, abs=2e-3)
    assert not tail.heavy


@pytest.mark.parametrize(
    "excesses",
    [[1e-200, 1.0, 2.0], [1.0, 1.0, 1.0, 1.0 + 1e-15], [*[1e-12] * 20, 1e6], [1e300, 1.0], [1.0, 2.0]],
)
def test_awkward_excesses_are_fitted_without_a_warning(excesses: list[float]) -> None:
    tail = tails.fit_tail(np.array(excesses))
    assert np.isfinite(tail).all()
    assert tail.gamma >= -1.0 - 1e-9
    assert tail.sigma > 0


RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("scores", "settings", "message"),
    [
        (np.full(100, 3.0), {}, "all 100 calibration scores are equal"),
        ((RNG.random(1000) < 0.3).astype(float), {}, r"0 of 1000 calibration scores exceed the level 0\.98"),
        ((RNG.random(9999) < 0.01).astype(float), {}, "excesses over the level 0.98 are equal"),
        (RNG.random(30), {}, r"0 of 30 calibration scores exceed the level 0\.98, want at least 10"),
        (np.r_[RNG.random(1000), np.inf], {}, "1 of 1001 calibration scores are infinite"),
        (np.r_[RNG.random(1000), -np.inf, np.inf], {}, "2 of 1002 calibration scores are infinite"),
        (RNG.random(1000), {"q": 0.02}, r"q=0\.02 is not below 0\.019, the share of scores above the level"),
    ],
)
def test_scores_without_a_tail_are_named_or_get_a_plain_quantile(scores, settings, message: str) -> None:
    for fit in ("mle", "legacy_spot"):
        with pytest.raises(ValueError, match=message):
            tails.pot(scores, fit=fit, **settings)
    fitted = tails.pot(scores, on_degenerate="quantile", **settings)
    assert fitted.threshold == thresholds.quantile(scores, 1 - settings.get("q", 1e-3))
    assert np.isnan([fitted.gamma, fitted.sigma, fitted.log_likelihood]).all()
    assert not fitted.heavy
    with pytest.raises(ValueError, match=message):
        raise ValueError(fitted.fallback)


def test_rows_without_score_are_left_out_and_a_short_stream_can_be_insisted_on() -> None:
    scores = _sample("normal")
    assert tails.pot(np.r_[np.nan, scores, np.nan]) == tails.pot(scores)
    short = tails.pot(scores[:30], level=0.8, min_excesses=3)
    assert short.excesses == 5
    assert short.threshold > short.tail_start
    with pytest.raises(ValueError, match="none of 3 calibration scores is a number"):
        tails.pot(np.full(3, np.nan), on_degenerate="quantile")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"q": 0.0}, r"q=0.0; want a share of rows in \(0, 1\)"),
        ({"level": 98}, r"level=98; want a share of the scores in \[0, 1\)"),
        ({"fit": "spot"}, 'fit=\'spot\'; want "mle" or "legacy_spot"'),
        ({"level": 0.9999, "on_degenerate": "nan"}, 'on_degenerate=\'nan\'; want "error" or "quantile"'),
    ],
)
def test_arguments_out_of_range_are_named(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tails.pot(_sample("normal"), **settings)


@pytest.mark.parametrize("excesses", [[], [1.0, 1.0], [0.0, 1.0], [1.0, np.inf], [1.0, np.nan]])
def test_excesses_that_no_tail_fits_are_named(excesses: list[float]) -> None:
    with pytest.raises(ValueError, match="want positive finite numbers"):
        tails.fit_tail(np.array(excesses))


def test_spot_learns_from_excesses_but_not_from_alarms() -> None:
    calibration, stream = _sample("normal")[:3000], _sample("normal", 1)[:1500]
    stream[[100, 700]] = 50.0, np.nan
    start = tails.pot(calibration)
    alarm, threshold = tails.Spot(calibration).run(stream)

    z, n, excesses = (
        start.threshold,
        3000,
        list(calibration[calibration > start.tail_start] - start.tail_start),
    )
    for row, score in enumerate(stream):
        assert threshold[row] == pytest.approx(z, rel=1e-9)
        assert alarm[row] == (score > z)
        if not score <= z:  # an alarm, or no score
            continue
        n += 1
        if score > start.tail_start:
            excesses.append(score - start.tail_start)
            tail = tails.fit_tail(np.array(excesses))
            z = start.tail_start + tail.sigma / tail.gamma * ((1e-3 * n / len(excesses)) ** -tail.gamma - 1)
    assert alarm[100]
    assert not alarm[700]
    assert len(excesses) > start.excesses + 10


def test_spot_can_go_on_and_refuses_what_pot_refuses() -> None:
    calibration, stream = _sample("pareto(3)")[:2000], _sample("pareto(3)", 1)[:600]
    whole, _ = tails.Spot(calibration, 1e-2, 0.95).run(stream)
    spot = tails.Spot(calibration, 1e-2, 0.95)
    parts = [*spot.run(stream[:250])[0], *(spot.update(score) for score in stream[250:])]
    np.testing.assert_array_equal(parts, whole)
    assert spot.current.scores > 2000
    with pytest.raises(ValueError, match="all 5 calibration scores are equal"):
        tails.Spot(np.ones(5))
