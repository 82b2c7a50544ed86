import dataclasses

import numpy as np
import pytest

from fedgeo import data, runs
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
    ],
)
def test_bad_geodesic_settings_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        runs.run_geodesic(data.iris(), dataclasses.replace(TINY, **change), seeds=(0,))


def test_nothing_of_the_test_rows_reaches_training():
    table = data.iris()
    task = table_runs._one_class(table, TINY, 1, seed=3)
    test = data.stratified_split(table.y, seed=3).test
    x = table.x.copy()
    x[test] = 1e3
    other = table_runs._one_class(dataclasses.replace(table, x=x), TINY, 1, seed=3)
    for got, want in zip([*other.clients, other.validation], [*task.clients, task.validation], strict=True):
        np.testing.assert_array_equal(got, want)
    assert all(len(rows) for rows in task.clients)
    assert sum(map(len, task.clients)) == 30  # 60 % of the 50 rows of the class


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


def test_empty_clients_are_named_and_left_out(geodesic_result):
    skewed = geodesic_result.settings["alpha"] is not None
    notes = [note for note in geodesic_result.notes if "without a row of this class" in note]
    local = geodesic_result.units.query("method == 'local-only'")
    assert bool(notes) == skewed
    missing = sum(note.split("client ")[1].count(",") + 1 for note in notes)
    assert len(local) == 2 * 3 * 3 - missing


@pytest.mark.slow
def test_the_papers_baselines_stand_in_the_same_table():
    pytest.importorskip("xgboost", reason="needs the extra fedgeo[xgboost]")
    x = data.iris().x.copy()
    x[::7, 1] = np.nan  # missing values
    x[:, 3] = np.nan  # a column that nobody knows
    table = dataclasses.replace(data.iris(), x=x, skewed=True)
    result = runs.run_geodesic(table, dataclasses.replace(TINY, baselines=True, alpha=0.5), seeds=(0,))
    added = {"FedAvg (FE)", "FedAvg (MLP)", "FedAvg (MLP, SM)", "centralised k-NN", "Fed-Forest", "Fed-XGB"}
    assert set(result.table().index) == GEODESIC_ROWS | added
    assert result.units["auroc"].notna().all()
    assert result.table().loc["centralised k-NN", "auroc"] > 80


@pytest.mark.slow
@pytest.mark.parametrize(("table", "floor"), [(data.breast_cancer, 97), (data.iris, 90)])
@pytest.mark.parametrize("alpha", [None, 0.5])
def test_geodesic_svdd_reaches_what_it_should(table, floor, alpha):
    result = runs.run_geodesic(table(), runs.GeodesicSettings(alpha=alpha), seeds=(0, 1, 2))
    for method in ("Geodesic (OS)", "Geodesic (Iter)"):
        assert result.table().loc[method, "auroc"] >= floor
    assert not any("collapsed" in note for note in result.notes)
