"""Collapsed scores are named, sound ones are not."""

import numpy as np
import pytest

from fedgeo import evaluation
from fedgeo.evaluation.collapse import distinct_examples

X = np.random.default_rng(0).standard_normal((200, 3))
SOUND = np.random.default_rng(1).random(200)


@pytest.mark.parametrize(
    ("score", "said"),
    [
        (np.ones(200), "1 distinct for 200"),
        (np.round(SOUND, 1), "11 distinct for 200"),
        (1 + 1e-5 * SOUND, "standard deviation"),
    ],
)
def test_collapse_is_named(score, said):
    (line,) = evaluation.collapse_warnings({"a": score, "b": SOUND}, {"a": X, "b": X})
    assert line.startswith("a: scores have collapsed")
    assert said in line


def test_what_cannot_differ_is_no_collapse():
    x = {"still": np.zeros((200, 3)), "short": X[:4], "repeats": np.tile(X[:20], (10, 1))}
    scores = {"still": np.ones(200), "short": np.full(4, np.nan), "repeats": np.tile(SOUND[:20], 10)}
    assert evaluation.collapse_warnings(scores, x) == []
    assert evaluation.collapse_warnings({"a": np.append(np.full(9, np.nan), SOUND[9:])}, {"a": X}, 10) == []


@pytest.mark.parametrize("window", [1, 4, 30])
def test_distinct_examples_are_counted(window):
    x = np.concatenate([np.tile(X[:5], (6, 1)), np.zeros((10, 3))])
    want = {x[t : t + window].tobytes() for t in range(len(x) - window + 1)}
    assert distinct_examples(x, window) == len(want)
    assert distinct_examples(x[:3], 4) == 0


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
