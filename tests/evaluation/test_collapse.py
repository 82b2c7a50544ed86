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
