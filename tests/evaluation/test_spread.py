import numpy as np
import pytest

from fedgeo import evaluation


def test_effective_rank_counts_equal_directions():
    for used in range(1, 6):
        assert evaluation.effective_rank(np.diag([3.0] * used + [0.0] * (6 - used))) == pytest.approx(used)
    assert evaluation.effective_rank(np.zeros((4, 4))) == 0


def test_effective_rank_is_that_of_the_singular_values():
    z = np.random.default_rng(0).normal(size=(200, 5)) * [1, 2, 0.1, 0.05, 4]
    z -= z.mean(axis=0)
    s = np.linalg.svd(z, compute_uv=False)
    p = s / s.sum()
    want = np.prod(p**-p)  # exp of the entropy
    assert evaluation.effective_rank(z.T @ z / len(z)) == pytest.approx(want, rel=1e-6)


def test_distinct_counts_scores_and_rows():
    assert evaluation.distinct(np.array([1.0, 2.0, 1.0])) == 2
    assert evaluation.distinct(np.array([[1.0, 2.0], [1.0, 2.0], [2.0, 1.0]])) == 2
