import numpy as np
import pytest
from scipy.stats import ttest_rel

from fedgeo.evaluation import significance


def _with_effect(margin: float, d_z: float) -> np.ndarray:
    """Differences of three seeds with this mean and effect size."""
    return margin + margin / d_z * np.array([-1.0, 0.0, 1.0])


@pytest.mark.parametrize(
    ("margin", "d_z", "p"),
    [(7.69, 2.86, 0.038), (1.29, 5.97, 0.0092)],  # FedKAD, section VI-B1: SMD and PSM
)
def test_relations_of_the_papers_table_iii(margin: float, d_z: float, p: float) -> None:
    theirs = np.array([60.0, 61.0, 65.0])
    found = significance.paired(theirs + _with_effect(margin, d_z), theirs)
    assert (found.pairs, found.margin, found.d_z) == pytest.approx((3, margin, d_z))
    assert found.t == pytest.approx(d_z * np.sqrt(3))
    assert found.p == pytest.approx(p, rel=0.02)


def test_a_test_agrees_with_scipy_and_changes_sign_with_its_sides() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 12))
    found, swapped = significance.paired(a, b), significance.paired(b, a)
    assert (found.t, found.p) == pytest.approx(tuple(ttest_rel(a, b)))
    assert (swapped.margin, swapped.t, swapped.p, swapped.d_z) == pytest.approx(
        (-found.margin, -found.t, found.p, -found.d_z)
    )


def test_undefined_pairs_are_left_out_and_counted() -> None:
    found = significance.paired([1.0, np.nan, 3.0, 5.0], [0.0, 1.0, np.nan, 2.0])
    assert found == significance.paired([1.0, 5.0], [0.0, 2.0])
    assert found.pairs == 2
    single = significance.paired([1.0, np.nan], [0.5, 1.0])
    assert single[:2] == (1, 0.5)
    assert np.isnan(single[2:]).all()
    assert np.isnan(significance.paired([np.nan], [1.0]).margin)


def test_equal_differences_leave_no_doubt() -> None:
    assert significance.paired([1.0, 2.0], [0.0, 1.0]) == (2, 1.0, np.inf, 0.0, np.inf)
    assert significance.paired([0.0, 1.0], [1.0, 2.0]) == (2, -1.0, -np.inf, 0.0, -np.inf)
    assert np.isnan(significance.paired([1.0, 2.0], [1.0, 2.0])[2:]).all()


@pytest.mark.parametrize(
    ("margin", "outcome"), [(7.69, "win"), (0.51, "win"), (0.5, "tie"), (-0.5, "tie"), (-0.95, "loss")]
)
def test_verdict_is_against_the_strongest_rival_by_the_gate(margin: float, outcome: str) -> None:
    rivals = {"USAD": [30.0, 31.0, 32.0], "LSTM-AE": [40.0, 41.0, 42.0], "TranAD": [np.nan] * 3}
    found = significance.verdict(np.array(rivals["LSTM-AE"]) + margin, rivals)
    assert (found.rival, found.outcome, found.pairs) == ("LSTM-AE", outcome, 3)
    assert found.margin == pytest.approx(margin)


def test_a_win_need_not_be_significant() -> None:
    found = significance.verdict([53.0, 58.0, 49.0], {"LSTM-AE": [51.0, 50.0, 53.0]})
    assert found.outcome == "win"
    assert found.p > 0.1


def test_what_cannot_be_compared_is_named() -> None:
    with pytest.raises(ValueError, match=r"got values \(2,\) and \(3,\)"):
        significance.paired([1.0, 2.0], [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="got 1 rivals without a defined value"):
        significance.verdict([1.0], {"a": [np.nan]})
    with pytest.raises(ValueError, match="no seed has a value of ours and of a"):
        significance.verdict([1.0, np.nan], {"a": [np.nan, 1.0]})
