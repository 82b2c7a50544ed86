import dataclasses
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from fedgeo import data, evaluation, report, runs
from fedgeo.runs import tables as table_runs

TINY = runs.GeodesicSettings(latent=4, width=16, blocks=1, rounds=3, one_shot_epochs=3)
GEODESIC_ROWS = {
    "Geodesic (OS)", "Geodesic (Iter)", "untrained encoder", "local-only", "centralised",
    "random", "row norm", "PCA", "Mahalanobis",
}  # fmt: skip


@pytest.mark.parametrize("seeds", [(), (0, 0), (-1,)])
def test_seeds_are_checked_before_any_work(seeds):
    with pytest.raises(ValueError, match="seeds must be distinct, not negative, and at least one"):
        runs.run_geodesic(data.iris(), TINY, seeds=seeds)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quantile": 1.5}, "quantile is a probability"),
        ({"rounds": -1}, "rounds cannot be negative"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
        ({"methods": ("PCA", "Geodesic")}, "no methods called Geodesic; want any of Geodesic \\(OS\\)"),
    ],
)
def test_bad_geodesic_settings_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        runs.run_geodesic(data.iris(), dataclasses.replace(TINY, **change), seeds=(0,))


ON_TWO_DEVICES = """
import dataclasses, jax, pandas as pd
from fedgeo import data, runs
from tests.runs.test_tables import TINY

settings = dataclasses.replace(TINY, alpha=0.5, methods=("Geodesic (OS)", "Geodesic (Iter)", "local-only"))
assert jax.device_count() == 2
two = runs.run_geodesic(data.iris(), settings, seeds=(0, 1, 2))
with jax.default_device(jax.devices()[1]):
    one = runs.run_geodesic(data.iris(), settings, seeds=(0, 1, 2))
pd.testing.assert_frame_equal(two.units, one.units)
pd.testing.assert_frame_equal(two.history, one.history)
assert two.units.auroc.between(0.5, 1).any() and two.units.auroc.nunique() > 9
"""


@pytest.mark.slow
def test_devices_change_no_number_of_a_run():
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"} | {"JAX_NUM_CPU_DEVICES": "2"}
    done = subprocess.run(
        [sys.executable, "-c", ON_TWO_DEVICES], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr


def test_nothing_of_the_test_rows_reaches_training():
    table = data.iris()
    task = table_runs.tasks_of(table, TINY, seed=3)[1]
    test = data.stratified_split(table.y, seed=3).test
    x = table.x.copy()
    x[test] = 1e3
    other = table_runs.tasks_of(dataclasses.replace(table, x=x), TINY, seed=3)[1]
    for got, want in zip(
        [*other.clients, other.validation.x], [*task.clients, task.validation.x], strict=True
    ):
        np.testing.assert_array_equal(got, want)
    assert all(len(rows) for rows in task.clients)
    assert sum(map(len, task.clients)) == 30  # 60 % of the 50 rows of the class


def test_youdens_threshold_sees_the_labels_of_validation_rows_alone():
    task = table_runs.tasks_of(data.iris(), TINY, seed=0)[0]
    rng = np.random.default_rng(0)
    cut = len(task.validation.x)
    anomalous = np.concatenate([task.validation.anomalous, task.test.anomalous])
    score = rng.random(len(anomalous)) + 0.5 * anomalous
    flipped = task._replace(test=task.test._replace(anomalous=1 - task.test.anomalous))
    got, other = (table_runs._judge_task(t, {"one": score}, 0.9).loc["one"] for t in (task, flipped))
    want = evaluation.youden(score[:cut], task.validation.anomalous).threshold
    assert got["youden_threshold"] == other["youden_threshold"] == want
    assert got["threshold"] == evaluation.quantile(score[:cut][task.validation.anomalous == 0], 0.9)
    alarm = score[cut:] > want
    assert got["youden_accuracy"] == np.mean(alarm == task.test.anomalous)
    assert got["youden_accuracy"] == pytest.approx(1 - other["youden_accuracy"])
    assert got["youden_recall"] == np.mean(alarm[task.test.anomalous == 1])
    assert got["youden_precision"] == np.mean(task.test.anomalous[alarm])


def test_traffic_is_that_of_the_parameters():
    settings = runs.GeodesicSettings(latent=6, width=10, blocks=2, clients=4)
    dense = 3 * 10 + 10 + 2 * (2 * 10 + 2 * (10 * 10 + 10)) + 10 * 6  # input, blocks with layer norm, head
    found = table_runs.traffic(settings, features=3)
    assert found == {
        "upload": 4 * dense, "broadcast": 4 * (dense + 6), "warm_up": 4 * 6, "ensemble": 4 * 4 * dense
    }  # fmt: skip


@pytest.fixture(scope="module", params=[0.01, pytest.param(None, marks=pytest.mark.slow)])
def geodesic_result(request):
    return runs.run_geodesic(data.iris(), dataclasses.replace(TINY, alpha=request.param), seeds=(0, 1))


def test_every_control_row_stands_beside_geodesic_svdd(geodesic_result):
    table = geodesic_result.table()
    assert set(table.index) == GEODESIC_ROWS
    means = table[[*runs.METRICS["class"]]].to_numpy(float)
    assert ((means >= 0) & (means <= 100)).all()
    assert table.loc["Geodesic (Iter)", "covers"] == "3/3"
    assert table.loc["Geodesic (OS)", "auroc"] > 75
    assert (table["seeds"] == 2).all()


def test_both_spreads_stand_beside_the_means(geodesic_result):
    units = geodesic_result.units.query("method == 'Geodesic (Iter)'")
    by = units.pivot_table(index="seed", columns="unit", values="youden_f1").to_numpy()
    row = geodesic_result.table().loc["Geodesic (Iter)"]
    assert row["youden_f1"] == pytest.approx(100 * by.mean())
    assert row["youden_f1_sd"] == pytest.approx(100 * by.mean(axis=1).std(ddof=1))
    assert row["youden_f1_sd_units"] == pytest.approx(100 * by.mean(axis=0).std(ddof=1))
    text = report.shown(geodesic_result).loc["Geodesic (Iter)", "F1 (Youden)"]
    assert text == f"{row['youden_f1']:.1f}±{row['youden_f1_sd']:.1f} ({row['youden_f1_sd_units']:.1f})"


def test_collapse_is_watched_in_every_trained_method(geodesic_result):
    units = geodesic_result.units.set_index("method")
    trained = [name for name in table_runs.TRAINED if name in units.index]
    assert len(trained) == 5
    assert units.loc[trained, "effective_rank"].between(0, TINY.latent + 1e-6).all()
    assert (units.loc[trained, "sd_squared_distance"] > 0).all()
    assert units.loc[["random", "PCA"], "effective_rank"].isna().all()
    assert (units["distinct_scores"] <= units["rows"] + 30).all()  # 30 validation rows


def test_rounds_and_curves_are_kept(geodesic_result):
    history = geodesic_result.history
    counts = history.groupby(["method", "seed"])["round"].count().unstack()
    assert (counts.loc["Geodesic (Iter)"] == TINY.rounds).all()
    assert (counts.loc["Geodesic (OS)"] == 1).all()
    losses = history.loc[
        history["method"].isin(["Geodesic (OS)", "Geodesic (Iter)"]), ["first_loss", "last_loss"]
    ]
    assert np.isfinite(losses.to_numpy()).all()
    areas = 100 * geodesic_result.curves.groupby("method")["precision"].mean()
    table = geodesic_result.table()["ap"].astype(float)
    np.testing.assert_allclose(areas[table.index], table, atol=0.5)
    assert geodesic_result.stream is None


def test_a_collapsed_network_is_named():
    frame = pd.DataFrame(
        {
            "distinct_scores": [100, 40, 100, 100], "distinct_rows": 100,
            "effective_rank": [3.0, 3.0, 1.0, np.nan], "sd_squared_distance": [0.1, 0.1, 0.1, np.nan],
        },
        index=["sound", "few", "flat", "not a network"],
    )  # fmt: skip
    lines = table_runs._collapsed(frame)
    assert len(lines) == 2
    assert lines[0] == "few: scores have collapsed (40 distinct for 100 distinct rows)"
    assert lines[1].startswith("flat: embeddings have collapsed (effective rank 1.00")


def test_another_skew_of_the_table_compiles_nothing(geodesic_result):
    settings = dataclasses.replace(TINY, alpha=5.0, quantile=0.8, methods=("Geodesic (Iter)", "PCA"))
    result = runs.run_geodesic(data.iris(), settings, seeds=(0, 1))
    assert list(result.table().index) == ["Geodesic (Iter)", "PCA"]
    assert result.seconds.loc["Geodesic (Iter)", "compile"] == 0
    assert result.seconds.loc["Geodesic (Iter)", "run_per_seed"] > 0
    assert geodesic_result.seconds.loc["Geodesic (Iter)", "compile"] > 0


def awkward_table(seed):
    """A constant feature, an unknown one, and a category that only a test row has; four classes."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(4), [25, 20, 15, 10])
    x = np.column_stack(
        [rng.normal(y, 0.3), rng.normal(size=70), np.full(70, 7.0), np.full(70, np.nan), np.zeros(70)]
    )
    x[data.stratified_split(y, seed=seed).test[::5], 4] = 1.0
    names = ("signal", "noise", "constant", "unknown", "kind=new")
    return data.Table(x, y, tuple("abcd"), names, "awkward", skewed=True)


@pytest.mark.parametrize("protocol", ["OS", pytest.param("Iter", marks=pytest.mark.slow)])
def test_extreme_skew_of_an_awkward_table_is_defined_and_reported(protocol):
    """Clients with no row and with one, a constant feature, a column without values, a category first seen in test."""

    def sizes(seed):
        tasks = table_runs.tasks_of(awkward_table(seed), dataclasses.replace(TINY, alpha=0.01), seed)
        return [len(rows) for task in tasks for rows in task.clients]

    seed = next(seed for seed in range(200) if {0, 1} <= set(sizes(seed)))
    methods = (f"Geodesic ({protocol})", *table_runs.OTHERS[:2], "PCA", "Mahalanobis")
    settings = dataclasses.replace(TINY, alpha=0.01, methods=methods)
    result = runs.run_geodesic(awkward_table(seed), settings, seeds=(seed,))
    assert len(result.units) == 4 * len(methods)
    needed = [
        "auroc", "ap", "f1", "recall", "alarm_rate", "threshold", "youden_threshold", "youden_accuracy", "youden_f1"
    ]  # fmt: skip
    assert np.isfinite(result.units[needed].to_numpy(float)).all()
    assert (result.units["unscored"] == 0).all()
    assert any(
        "constant training features, left unscaled: constant, kind=new" in note for note in result.notes
    )
    absent = [note for note in result.notes if "without a row of this class, and so without part" in note]
    assert sum(note.split("client ")[1].count(",") + 1 for note in absent) == sizes(seed).count(0)


def test_trees_without_two_rows_are_left_out_and_named():
    y = np.repeat([0, 1], [3, 30])
    x = np.random.default_rng(0).normal(size=(33, 2)) + y[:, None]
    table = data.Table(x, y, ("rare", "common"), ("a", "b"))
    result = runs.run_geodesic(table, dataclasses.replace(TINY, methods=("Fed-Forest", "PCA")), seeds=(0,))
    assert result.units.groupby("method")["unit"].apply(list).to_dict() == {
        "Fed-Forest": ["common"], "PCA": ["rare", "common"]
    }  # fmt: skip
    assert "Fed-Forest, seed 0, rare: left out, no client has two rows" in result.notes


def test_empty_clients_are_named_and_left_out(geodesic_result):
    skewed = geodesic_result.settings["alpha"] is not None
    notes = [note for note in geodesic_result.notes if "without a row of this class" in note]
    local = geodesic_result.units.query("method == 'local-only'")
    assert bool(notes) == skewed
    missing = sum(note.split("client ")[1].count(",") + 1 for note in notes)
    assert len(local) == 2 * 3 * 3 - missing


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_papers_baselines_stand_in_the_same_table():
    pytest.importorskip("xgboost", reason="needs the extra fedgeo[xgboost]")
    x = data.iris().x.copy()
    x[::7, 1] = np.nan  # missing values
    x[:, 3] = np.nan  # a column that nobody knows
    table = dataclasses.replace(data.iris(), x=x, skewed=True)
    result = runs.run_geodesic(table, dataclasses.replace(TINY, baselines=True, alpha=0.5), seeds=(0,))
    assert set(result.table().index) == {*table_runs.TRAINED, *table_runs.OTHERS}
    assert result.units["auroc"].notna().all()
    assert result.table().loc["centralised k-NN", "auroc"] > 80


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("table", "floor"), [(data.breast_cancer, 97), (data.iris, 90)])
@pytest.mark.parametrize("alpha", [None, 0.5])
def test_geodesic_svdd_reaches_what_it_should(table, floor, alpha):
    result = runs.run_geodesic(table(), runs.GeodesicSettings(alpha=alpha), seeds=(0, 1, 2))
    for method in ("Geodesic (OS)", "Geodesic (Iter)"):
        assert result.table().loc[method, "auroc"] >= floor
    assert not any("collapsed" in note for note in result.notes)
