import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from fedgeo.evaluation import ranking

LABELS = np.array([0, 0, 0, 0, 1, 1, 0, 1, 0, 0])
SCORE = np.array([0.1, 0.4, 0.35, 0.8, 0.9, 0.4, 0.2, 0.7, 0.3, 0.15])


def test_hand_counted_values() -> None:
    # of 21 pairs the anomalies win 7, 5 and 6, and tie once
    assert ranking.auroc(SCORE, LABELS) == pytest.approx((7 + 5 + 6 + 0.5) / 21)
    # recall rises by a third at ranks 1, 3 and (tied) 5
    assert ranking.average_precision(SCORE, LABELS) == pytest.approx((1 / 1 + 2 / 3 + 3 / 5) / 3)
    # precision at recalls 0, 1/3, 1/3, 2/3 and 1 is 1, 1, 1/2, 2/3 and 3/5
    assert ranking.trapezoid_pr(SCORE, LABELS) == pytest.approx(
        (1 + (1 / 2 + 2 / 3) / 2 + (2 / 3 + 3 / 5) / 2) / 3
    )


def test_precision_at_a_recall() -> None:
    levels = np.array([0.01, 1 / 3, 0.34, 2 / 3, 0.67, 1])
    np.testing.assert_allclose(
        ranking.precision_at(SCORE, LABELS, levels), [1, 1, 2 / 3, 2 / 3, 3 / 5, 3 / 5]
    )
    assert np.isnan(ranking.precision_at(SCORE, np.zeros(10, int), levels)).all()
    with pytest.raises(ValueError, match=r"in \(0, 1\], got 0 to 1"):
        ranking.precision_at(SCORE, LABELS, np.array([0, 1]))


labelled = st.lists(st.tuples(st.integers(-20, 20), st.booleans()), min_size=2, max_size=60).filter(
    lambda rows: len({y for _, y in rows}) == 2
)


@given(rows=labelled)
def test_values_agree_with_scikit_learn_and_survive_monotone_maps(rows: list[tuple[int, bool]]) -> None:
    score, y = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    assert ranking.auroc(score, y) == pytest.approx(roc_auc_score(y, score))
    assert ranking.average_precision(score, y) == pytest.approx(average_precision_score(y, score))
    for mapped in (
        np.exp(score),
        1e-9 * score - 4.0,
        np.where(score > 5, np.inf, score) if (score > 5).sum() < 2 else score**3,
    ):
        assert ranking.auroc(mapped, y) == pytest.approx(ranking.auroc(score, y))
        assert ranking.average_precision(mapped, y) == pytest.approx(ranking.average_precision(score, y))


@pytest.mark.parametrize("metric", [ranking.auroc, ranking.average_precision, ranking.trapezoid_pr])
def test_rows_without_a_score_are_left_out(metric) -> None:
    score = np.concatenate([[np.nan, np.nan], SCORE])
    assert metric(score, np.concatenate([[1, 0], LABELS])) == metric(SCORE, LABELS)


@pytest.mark.parametrize("metric", [ranking.auroc, ranking.average_precision, ranking.trapezoid_pr])
@pytest.mark.parametrize(
    ("score", "labels"),
    [
        ([0.1, 0.2], [0, 0]),
        ([0.1, 0.2], [1, 1]),
        ([np.nan, np.nan], [0, 1]),
        ([np.nan, 0.2], [0, 1]),
        ([], []),
    ],
)
def test_undefined_is_nan(metric, score: list[float], labels: list[int]) -> None:
    assert np.isnan(metric(np.array(score), np.array(labels)))


def test_constant_score_is_chance() -> None:
    assert ranking.auroc(np.ones(4), np.array([0, 1, 0, 0])) == 0.5
    assert ranking.average_precision(np.ones(4), np.array([0, 1, 0, 0])) == 0.25


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(ValueError, match=r"got scores \(3,\) and labels \(2,\)"):
        ranking.auroc(np.zeros(3), np.zeros(2))
    with pytest.raises(ValueError, match=r"got labels \[-1  1\], want 0 \(normal\) and 1"):
        ranking.auroc(np.zeros(2), np.array([-1, 1]))
