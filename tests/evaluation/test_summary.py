import time

import numpy as np
import pandas as pd
import pytest

from fedgeo import evaluation
from fedgeo.evaluation.summary import EXTRA

LABELS = {"a": np.array([0, 0, 1, 1]), "normal": np.zeros(4), "c": np.array([1, 1, 1, 0])}
SCORES = {
    "a": np.array([0.1, 0.2, 0.8, 0.9]),
    "normal": np.array([0.5, 0.1, 0.2, 0.3]),
    "c": np.array([0.2, 0.9, 0.8, 0.4]),
}


def test_macro_leaves_undefined_clients_out_and_counts_them() -> None:
    table = evaluation.per_client(SCORES, LABELS)
    np.testing.assert_allclose(table["auroc"], [1.0, np.nan, 2 / 3])
    mean = evaluation.macro(table)
    assert mean.loc["auroc", "mean"] == pytest.approx(0.8333333333333333)
    assert mean.loc["auroc", ["n_defined", "clients"]].tolist() == [2, 3]
    assert evaluation.pooled(SCORES, LABELS)["auroc"] == pytest.approx(0.8857142857142858)


def test_alarm_columns_by_hand() -> None:
    thresholds = {"a": 0.15, "normal": 0.25, "c": 0.85}
    table = evaluation.per_client(SCORES, LABELS, thresholds)
    # a: three alarms, one false. c: one alarm of a segment of three.
    np.testing.assert_allclose(table.loc["a", ["f1", "precision", "recall"]].astype(float), [0.8, 2 / 3, 1.0])
    np.testing.assert_allclose(table.loc["c", ["f1", "f1_pa1", "f1_pa10"]].astype(float), [0.5, 1.0, 1.0])
    np.testing.assert_allclose(table["alarm_rate"], [0.75, 0.5, 0.25])
    np.testing.assert_allclose(table["false_alarms_per_1000"], [500.0, 500.0, 0.0])
    np.testing.assert_allclose(table["anomaly_ratio"], [0.5, 0.0, 0.75])
    assert np.isnan(table.loc["normal", ["f1", "recall", "f1_pa1", "ap"]].astype(float)).all()
    assert not any("oracle" in column for column in table)


def test_all_normal_and_all_anomalous_clients_raise_nothing() -> None:
    labels = {"normal": np.zeros(5), "broken": np.ones(5), "unscored": np.array([0, 1, 0, 1, 0])}
    scores = {name: np.arange(5.0) for name in labels} | {"unscored": np.full(5, np.nan)}
    table = evaluation.per_client(scores, labels, dict.fromkeys(labels, 2.0), oracle=True)
    assert table["auroc"].isna().all()
    assert table["unscored"].tolist() == [0, 0, 5]
    assert table.loc["broken", "recall"] == pytest.approx(0.4)
    assert np.isnan(table.loc["broken", "false_alarms_per_1000"])
    assert table.loc["unscored"].drop(["rows", "unscored", "threshold"]).isna().all()
    mean = evaluation.macro(table)
    assert np.isnan(mean.loc["auroc", "mean"])
    assert mean.loc["auroc", "n_defined"] == 0
    assert mean.loc["alarm_rate", "n_defined"] == 2


def test_client_without_threshold_has_rank_metrics_only() -> None:
    table = evaluation.per_client(SCORES, LABELS, {"a": np.nan, "normal": 0.2, "c": 0.2})
    assert table.loc["a", "auroc"] == 1.0
    assert table.loc["a", ["f1", "f1_pa1", "alarm_rate", "false_alarms_per_1000"]].isna().all()
    assert table.loc["c", "f1"] == pytest.approx(2 / 3)


def test_oracle_columns_are_marked_and_bound_the_others() -> None:
    rng = np.random.default_rng(0)
    labels = {"a": (rng.random(400) < 0.1).astype(int)}
    scores = {"a": rng.random(400) + labels["a"]}
    table = evaluation.per_client(scores, labels, {"a": 0.9}, k_percents=(0, 50), oracle=True)
    assert [c for c in table if "oracle" in c] == ["oracle_f1", "oracle_f1_pa0", "oracle_f1_pa50"]
    for column in ("f1", "f1_pa0", "f1_pa50"):
        assert table[f"oracle_{column}"].item() >= table[column].item()


def test_warm_up_rows_change_nothing_but_their_count() -> None:
    late = {name: np.r_[np.nan, np.nan, s] for name, s in SCORES.items()}
    labels = {name: np.r_[0, 1, y] for name, y in LABELS.items()}
    thresholds = dict.fromkeys(SCORES, 0.5)
    table = evaluation.per_client(late, labels, thresholds)
    assert (table["unscored"] == 2).all()
    plain = evaluation.per_client(SCORES, LABELS, thresholds)
    pd.testing.assert_frame_equal(
        table.drop(columns=["rows", "unscored"]), plain.drop(columns=["rows", "unscored"])
    )


def test_segment_length_counts_scored_rows_only() -> None:
    score, labels = np.zeros(120), np.r_[np.ones(100), np.zeros(20)]
    score[:91], score[99] = np.nan, 1.0  # one alarm of nine scored rows, of a hundred in all
    table = evaluation.per_client({"a": score}, {"a": labels}, {"a": 0.5}, k_percents=(11, 12))
    assert table.loc["a", ["f1_pa11", "f1"]].tolist() == [1.0, pytest.approx(0.2)]
    assert table.loc["a", "f1_pa12"] == table.loc["a", "f1"]


def test_over_seeds_gives_mean_and_sample_spread() -> None:
    macros = []
    for shift in (0.0, 1.0, 2.0):
        table = pd.DataFrame(
            {"auroc": [shift, shift + 2.0], "f1": [np.nan, shift] if shift else [np.nan, np.nan]}
        )
        macros.append(evaluation.macro(table))
    spread = evaluation.over_seeds(macros)
    assert spread.loc["auroc", ["mean", "sd", "seeds", "n_defined", "clients"]].tolist() == [
        2.0,
        1.0,
        3,
        2,
        2,
    ]
    assert spread.loc["f1", "mean"] == 1.5
    assert spread.loc["f1", ["seeds", "n_defined"]].tolist() == [2, 0]
    assert np.isnan(evaluation.over_seeds(macros[:1]).loc["auroc", "sd"])
    with pytest.raises(ValueError, match="no seeds to average"):
        evaluation.over_seeds([])


def test_errors_name_the_client() -> None:
    with pytest.raises(ValueError, match=r"client a: got scores \(3,\) and labels \(4,\)"):
        evaluation.per_client(SCORES | {"a": np.zeros(3)}, LABELS)
    with pytest.raises(ValueError, match="labels lack a, normal; unknown d"):
        evaluation.per_client(SCORES, {"c": LABELS["c"], "d": LABELS["c"]})
    with pytest.raises(ValueError, match="thresholds lack c; unknown none"):
        evaluation.per_client(SCORES, LABELS, {"a": 0.0, "normal": 0.0})


def test_random_scores_look_good_only_under_point_adjustment() -> None:
    rng = np.random.default_rng(0)
    labels, scores, calibration = {}, {}, {}
    for k in range(10):
        y = np.zeros(8000, dtype=int)
        y[3000 : 3000 + 120 * (k + 1)] = 1
        labels[str(k)], scores[str(k)], calibration[str(k)] = y, rng.random(8000), rng.random(1000)
    fitted = evaluation.calibrate(calibration, lambda s: evaluation.quantile(s, 0.98))
    mean = evaluation.macro(evaluation.per_client(scores, labels, fitted))["mean"]
    assert abs(mean["auroc"] - 0.5) < 0.02
    assert mean["f1"] < 0.05
    assert mean["f1_pa1"] > 0.7


def _stream_like_a_machine(rows: int = 28_479) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = np.zeros(rows, dtype=int)
    for start in rng.integers(0, rows - 200, 12):
        y[start : start + rng.integers(2, 150)] = 1
    y[-7:] = 1
    return rng.standard_normal(rows) + 3 * y * rng.random(rows), y


def test_extra_columns_come_only_when_asked_for() -> None:
    score, y = _stream_like_a_machine(2000)
    plain = evaluation.per_client({"a": score}, {"a": y}, {"a": 2.5})
    full = evaluation.per_client({"a": score}, {"a": y}, {"a": 2.5}, extra=tuple(EXTRA), vus_buffer=20)
    added = [column for group in EXTRA.values() for column in group]
    assert full.columns.tolist() == [*plain.columns, *added]
    pd.testing.assert_frame_equal(full[plain.columns], plain)
    alarm = evaluation.alarms(score, 2.5)
    for group, metric in (
        ("affiliation", evaluation.affiliation),
        ("range", evaluation.range_based),
        ("event", evaluation.event_wise),
    ):
        assert tuple(full.loc["a", list(EXTRA[group])]) == pytest.approx(metric(alarm, y))
    assert tuple(full.loc["a", list(EXTRA["vus"])]) == pytest.approx(evaluation.vus(score, y, 20))
    assert full.loc["a", "area_over_k"] == pytest.approx(evaluation.area_over_k(alarm, y))
    mean = evaluation.macro(full)
    assert mean.loc["vus_pr", "mean"] == full.loc["a", "vus_pr"]
    assert "vus_buffer" not in mean.index


def test_extra_columns_of_clients_without_threshold_or_classes_are_undefined() -> None:
    labels = {"normal": np.zeros(50), "broken": np.ones(50), "unscored": np.r_[np.ones(5), np.zeros(45)]}
    scores = {name: np.arange(50.0) for name in labels} | {"unscored": np.full(50, np.nan)}
    how = {"extra": tuple(EXTRA), "vus_buffer": {"normal": 3, "broken": 4, "unscored": 5}}
    table = evaluation.per_client(scores, labels, dict.fromkeys(labels, 20.0), **how)
    assert table["vus_buffer"].tolist() == [3, 4, 5]
    assert table[["vus_roc", "vus_pr"]].isna().all(axis=None)
    for metric in ("affiliation_f1", "range_f1", "event_f1", "area_over_k"):
        assert table[metric].isna().tolist() == [True, False, True]
        assert evaluation.macro(table).loc[metric, ["n_defined", "clients"]].tolist() == [1, 3]
    untold = evaluation.per_client(SCORES, LABELS, extra=("event", "vus"), vus_buffer=0)
    assert untold["event_f1"].isna().all()
    assert untold["vus_pr"].notna().tolist() == [True, False, True]


def test_extra_columns_that_cannot_be_had_are_named() -> None:
    with pytest.raises(ValueError, match="no extra columns pate; want any of vus, area_over_k, affiliation"):
        evaluation.per_client(SCORES, LABELS, extra=("pate",))
    with pytest.raises(ValueError, match="must be stated: pass vus_buffer"):
        evaluation.per_client(SCORES, LABELS, extra=("vus",))
    with pytest.raises(ValueError, match="vus_buffer lack c, normal; unknown none"):
        evaluation.per_client(SCORES, LABELS, extra=("vus",), vus_buffer={"a": 1})


def test_all_metrics_of_a_long_stream_take_less_than_two_seconds() -> None:
    score, y = _stream_like_a_machine()
    start = time.perf_counter()
    threshold = evaluation.pot(np.random.default_rng(1).standard_normal(4000)).threshold
    evaluation.per_client(
        {"a": score}, {"a": y}, {"a": threshold}, oracle=True, extra=tuple(EXTRA), vus_buffer=20
    )
    assert time.perf_counter() - start < 2.0
