"""Figures of whole benchmarks: what they are given is what they draw."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from fedgeo import report

COSTS = pd.DataFrame(
    {
        "data": ["A", "A", "B", "B"],
        "method": ["x", "y", "x", "y"],
        "train": [4.0, 9000.0, 5.0, 80.0],
        "round": [1e6, 129e6, 1e6, 2e6],
        "p50_us": [50.0, 400.0, 40.0, 90.0],
        "batched_us": [3.0, 40.0, 2.0, 1.0],
    }
)
SKEW = pd.DataFrame(
    {"feature_skew": [0.1, 0.2], "drift": [0.3, np.nan], "anomaly_ratio": [0.1, 0.5], "train_rows": [10, 900]}
)


@pytest.fixture
def figures(monkeypatch):
    """Every figure that is saved."""
    saved = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: saved.append(self) or save(self, *a, **k))
    return saved


def texts(axis):
    return [text.get_text() for text in axis.texts]


def test_costs_are_drawn_for_every_method_and_data_set(tmp_path, figures):
    report.plot_costs(tmp_path / "costs.png", COSTS)
    assert (tmp_path / "costs.png").read_bytes().startswith(b"\x89PNG")
    axes = figures[0].axes
    assert [t.get_text() for t in axes[0].get_yticklabels()] == ["x", "y"]
    assert texts(axes[0]) == ["4", "9k", "5", "80"]
    assert texts(axes[1]) == ["1M", "129M", "1M", "2M"]
    assert [bar.get_width() for bar in axes[2].patches] == [50, 400, 40, 90]
    assert axes[0].get_xlim()[1] > 9000


def test_heterogeneity_is_one_dot_a_client(tmp_path, figures):
    report.plot_heterogeneity(tmp_path / "skew.png", {"one": SKEW, "two": SKEW})
    assert (tmp_path / "skew.png").read_bytes().startswith(b"\x89PNG")
    dots = [[len(part.get_offsets()) for part in axis.collections[::2]] for axis in figures[0].axes]
    assert dots == [[2, 2], [1, 1], [2, 2], [2, 2]]


def test_methods_stand_beside_the_published_value(tmp_path, figures):
    values = pd.DataFrame({"A": [40.0, np.nan], "B": [10.0, 20.0]}, index=["ours", "random"])
    report.plot_methods(tmp_path / "f1.png", values, {"A": 72.2}, title="F1")
    assert (tmp_path / "f1.png").read_bytes().startswith(b"\x89PNG")
    first, second = figures[0].axes
    assert texts(first) == ["40.0", "not run", "published 72.20"]
    assert texts(second) == ["10.0", "20.0"]
    assert first.get_xlim()[1] > 72.2
