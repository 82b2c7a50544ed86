import dataclasses

import numpy as np
import pytest

from fedgeo import data, runs

SMALL = runs.KoopmanSettings(window=5, lift_size=8, rank=4, rounds=4, inner_steps=2, smoothing=3)
TINY = runs.GeodesicSettings(latent=4, width=16, blocks=1, rounds=3, one_shot_epochs=3)
FEDKAD_ROWS = {
    "FedKAD", "FedKAD, warm", "untrained subspace", "local-only", "local-only, warm",
    "random", "row norm", "persistence", "PCA", "window PCA",
}  # fmt: skip
GEODESIC_ROWS = {
    "Geodesic (OS)", "Geodesic (Iter)", "untrained encoder", "local-only", "centralised",
    "random", "row norm", "PCA", "Mahalanobis",
}  # fmt: skip


@pytest.fixture(scope="module")
def awkward():
    """Plants, of which one has a constant channel, one is too short to train on, and one has no anomaly."""
    streams = data.plants(clients=5, rows=1000)
    train, labels = dict(streams.train), dict(streams.labels)
    flat, short, healthy = streams.names[:3]
    train[flat] = train[flat].copy()
    train[flat][:, 2] = 7.0
    train[short] = train[short][:5]
    labels[healthy] = np.zeros_like(labels[healthy])
    return dataclasses.replace(streams, train=train, labels=labels)


@pytest.fixture(scope="module")
def fedkad_result(awkward):
    steps = []
    result = runs.run_fedkad(awkward, SMALL, seeds=(0, 1), on_step=lambda step, of: steps.append((step, of)))
    assert len(steps) == steps[0][1]
    return result


def test_every_control_row_stands_beside_fedkad(fedkad_result):
    table = fedkad_result.table()
    assert set(table.index) == FEDKAD_ROWS
    assert set(fedkad_result.units["method"]) == FEDKAD_ROWS
    means = table[[*runs.METRICS["client"]]].to_numpy(float)
    assert ((means >= 0) & (means <= 100)).all()
    assert 35 < table.loc["random", "auroc"] < 65
    # Only what depends on a seed has a spread.
    assert table["seeds"].to_dict() == {
        name: 2 if "PCA" not in name and name not in ("row norm", "persistence") else 1
        for name in table.index
    }


def test_awkward_clients_are_reported_and_counted(awkward, fedkad_result):
    flat, short, healthy = awkward.names[:3]
    notes = "\n".join(fedkad_result.notes)
    assert f"client {short} left out: 4 training rows" in notes
    assert "1 of 4 clients have channels that are constant in training, up to 1 of 10" in notes
    assert fedkad_result.details["constant_channels"] == {flat: (awkward.channels[2],)}
    assert fedkad_result.table().loc["FedKAD", "covers"] == "3/4"
    rows = fedkad_result.units[fedkad_result.units["unit"] == healthy]
    assert rows["auroc"].isna().all()
    assert rows["f1"].isna().all()
    assert rows["false_alarms_per_1000"].notna().all()
    assert short not in set(fedkad_result.units["unit"])


def test_the_example_is_a_score_for_every_row(awkward, fedkad_result):
    warm_up = SMALL.window - 1 + SMALL.horizon
    assert (
        set(fedkad_result.example) == set(fedkad_result.thresholds) == set(awkward.names) - {awkward.names[1]}
    )
    for name, scores in fedkad_result.example.items():
        assert len(scores) == len(awkward.test[name])
        assert np.isnan(scores[:warm_up]).all()
        assert np.isfinite(scores[warm_up:]).all()
        assert np.isfinite(fedkad_result.thresholds[name])


def test_compiling_and_running_are_timed_apart(fedkad_result):
    seconds = fedkad_result.seconds
    assert (seconds.loc[["FedKAD", "second moments"], "compile"] > 0).all()
    assert (seconds["run_per_seed"] > 0).all()
    assert seconds.loc["controls", "compile"] == 0


def test_upload_is_one_frame(fedkad_result):
    assert fedkad_result.settings["upload_bytes_per_client_and_round"] == 4 * (5 * 10 + 8) * 4


def test_the_papers_sizes_give_the_papers_upload():
    """59 KB at PSM's and SMAP's 25 channels, section VI."""
    size = 25 * runs.KoopmanSettings().window + runs.KoopmanSettings().lift_size
    assert 4 * size * runs.KoopmanSettings().rank / 1024 == pytest.approx(58.9, abs=0.05)


def test_streams_without_labels_or_length_are_refused(awkward):
    with pytest.raises(ValueError, match="no labelled test stream"):
        runs.run_fedkad(dataclasses.replace(awkward, labels={}), SMALL)
    with pytest.raises(ValueError, match=r"no client of .* is long enough"):
        runs.run_fedkad(awkward, dataclasses.replace(SMALL, window=5000))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"participation": 0.0}, "participation is a share"),
        ({"validation": 1.0}, "validation is a share"),
        ({"quantile": 99.0}, "quantile is a probability"),
        ({"rounds": -1}, "rounds cannot be negative"),
        ({"rank": 10**6}, "rank must lie between"),
    ],
)
def test_bad_fedkad_settings_are_named(awkward, change, message):
    with pytest.raises(ValueError, match=message):
        runs.run_fedkad(awkward, dataclasses.replace(SMALL, **change), seeds=(0,))


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


@pytest.mark.slow
def test_fedkad_on_real_streams(data_root):
    """Two short clients of MSL end to end, and what a learning-free row must score whatever we do."""
    streams = data.msl(data_root)
    result = runs.run_fedkad(streams.select(["C-1", "M-6"]), runs.KoopmanSettings(rounds=5), seeds=(0,))
    assert set(result.table().index) == FEDKAD_ROWS
    assert result.table().loc["FedKAD", "covers"] == "2/2"
    assert np.isfinite(result.table()[["auroc", "ap"]].to_numpy(float)).all()
