"""Friedman, Nemenyi and the Bayesian signed-rank test against published tables and hand calculation."""

import numpy as np
import pandas as pd
import pytest

from fedgeo.evaluation import significance

HAND = pd.DataFrame(
    [[0.9, 0.8, 0.7], [0.6, 0.7, 0.5], [0.9, 0.5, 0.5], [0.4, 0.3, 0.2]], columns=["a", "b", "c"]
)  # ranks 1 2 3, 2 1 3, 1 2.5 2.5, 1 2 3


@pytest.mark.parametrize(
    ("methods", "scenarios", "alpha", "want"),
    [
        (
            7,
            20,
            0.05,
            2.949 * np.sqrt(7 * 8 / (6 * 20)),
        ),  # Demsar's Table 5a holds 2.949; the paper prints 2.01
        (4, 14, 0.05, 2.569 * np.sqrt(4 * 5 / (6 * 14))),
        (4, 14, 0.10, 2.291 * np.sqrt(4 * 5 / (6 * 14))),
        (2, 30, 0.05, 1.960 / np.sqrt(30)),
    ],
)
def test_critical_difference_is_that_of_the_published_quantiles(methods, scenarios, alpha, want):
    got = significance.critical_difference(methods, scenarios, alpha=alpha)
    assert got == pytest.approx(want, abs=5e-4)


def test_seven_methods_over_twenty_scenarios_differ_from_two_ranks_on():
    assert round(significance.critical_difference(7, 20), 2) == 2.01


def test_ranks_and_friedmans_statistic_are_those_worked_out_by_hand():
    pytest.importorskip("scikit_posthocs", reason="needs the extra fedgeo[stats]")
    found = significance.ranks(HAND)
    np.testing.assert_array_equal(found.mean[["a", "b", "c"]], [5 / 4, 7.5 / 4, 11.5 / 4])
    uncorrected = 12 / (4 * 3 * 4) * (5**2 + 7.5**2 + 11.5**2) - 3 * 4 * 4
    one_pair_of_equals = (2**3 - 2) / (4 * (3**3 - 3))
    assert found.statistic == pytest.approx(uncorrected / (1 - one_pair_of_equals), rel=1e-12)
    assert found.p == pytest.approx(
        np.exp(-found.statistic / 2), rel=1e-9
    )  # chi-squared with two degrees of freedom


def test_nemenyis_probabilities_and_the_critical_difference_agree():
    pytest.importorskip("scikit_posthocs", reason="needs the extra fedgeo[stats]")
    rng = np.random.default_rng(0)
    x = pd.DataFrame(rng.normal(size=(20, 7)) + np.linspace(0, 2, 7), columns=list("abcdefg"))
    found = significance.ranks(x)
    gaps = np.abs(found.mean.to_numpy()[:, None] - found.mean.to_numpy()[None])
    off = ~np.eye(7, dtype=bool)
    beyond = gaps[off] > found.critical_difference
    assert 0 < beyond.sum() < off.sum()
    np.testing.assert_array_equal(found.nemenyi.to_numpy()[off] < 0.05, beyond)
    assert found.mean["g"] < found.mean["a"]  # higher is better, and rank 1 is the best


def test_practical_equivalence_tells_better_equal_and_worse():
    pytest.importorskip("baycomp", reason="needs the extra fedgeo[stats]")
    base = np.linspace(60, 90, 20)
    few = {"rope": 1.0, "samples": 500}
    assert significance.practical(base + 5, base, **few).better > 0.99
    assert significance.practical(base, base + 5, **few).worse > 0.99
    assert significance.practical(base + 0.3, base, **few).equal > 0.99
    mixed = base + np.tile([4.0, -4.0], 10)
    found = significance.practical(mixed, base, **few)
    assert found.better == pytest.approx(found.worse, abs=0.15)
    assert sum(found) == pytest.approx(1)
    assert significance.practical(mixed, base, **few) == found  # the same seed, the same samples


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: significance.critical_difference(1, 20), "1 methods"),
        (lambda: significance.critical_difference(3, 20, alpha=5), "alpha=5"),
        (lambda: significance.ranks(HAND.iloc[:, :2]), "of 2 methods"),
        (lambda: significance.ranks(HAND.where(HAND > 0.4)), "values undefined"),
        (lambda: significance.practical([1.0, 2.0], [1.0, 2.0], rope=0), "rope=0"),
        (lambda: significance.practical([1.0, 2.0], [1.0], rope=1), "want one a scenario"),
        (lambda: significance.practical([1.0, np.nan], [1.0, 2.0], rope=1), "1 values"),
    ],
)
def test_what_cannot_be_compared_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
