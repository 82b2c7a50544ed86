import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedgeo import data, evaluation, federation, runs
from fedgeo.algorithms import koopman, moments
from fedgeo.baselines import controls
from fedgeo.runs import streams as stream_runs

SMALL = runs.KoopmanSettings(window=5, lift_size=8, rank=4, rounds=4, inner_steps=2, smoothing=3)
FEDKAD_ROWS = {
    "FedKAD", "FedKAD, warm", "FedKAD, recommended", "untrained subspace", "local-only", "local-only, warm",
    "random", "row norm", "persistence", "PCA", "window PCA",
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
    assert f"client {short} left out: 4 training, 1 validation and 1000 test rows" in notes
    assert "1 of 4 clients have channels that are constant in training, up to 1 of 10" in notes
    assert fedkad_result.details["constant_channels"] == {flat: (awkward.channels[2],)}
    assert set(fedkad_result.table()["covers"]) <= {"3/4", "3-4/4"}  # the alarm rate is defined for all
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


def test_the_kept_stream_is_a_client_in_the_middle_and_its_parts_add_up(awkward, fedkad_result):
    stream = fedkad_result.stream
    first = fedkad_result.units[
        (fedkad_result.units["method"] == stream.method) & (fedkad_result.units["seed"] == 0)
    ].set_index("unit")["ap"]
    assert (first > first[stream.client]).sum() == (first.count() - 1) - (first.count() - 1) // 2
    np.testing.assert_array_equal(stream.scores, fedkad_result.example[stream.client])
    columns = [awkward.channels.index(name) for name in stream.channels]
    np.testing.assert_array_equal(stream.x, awkward.test[stream.client][:, columns])
    assert len(columns) == stream_runs.SHOWN_CHANNELS < len(awkward.channels)
    known = ~np.isnan(stream.scores)
    assert (np.isnan(stream.parts).any(axis=1) == ~known).all()
    # Six of ten channels hold less than the score, and the most of any six where there is an alarm.
    assert (stream.parts[known].sum(axis=1) <= stream.scores[known] * (1 + 1e-5)).all()


def test_all_parts_add_up_to_the_score(awkward):
    settings = dataclasses.replace(SMALL, residual="newest", scale="variance", smoothing=4)
    scaled, _ = data.standardise(awkward)
    lift = koopman.random_lift(jax.random.key(0), 10, window=SMALL.window, size=SMALL.lift_size)
    alg = settings.algorithm(lift)
    name = awkward.names[3]
    series = data.stack_series({name: scaled.train[name]})
    sums = moments.prepare(lift, jax.tree.map(jnp.asarray, series))
    detectors = federation.deploy(alg, federation.init(alg, jax.random.key(1), sums), sums)
    x = jnp.asarray(data.stack_series({name: scaled.test[name]}).x)
    parts = stream_runs._parts(settings, detectors, x, 0)
    want = np.asarray(federation.score(alg, detectors, x)[0])
    assert np.isfinite(want[SMALL.window :]).all()
    np.testing.assert_allclose(parts.sum(axis=1), want, rtol=2e-5)


def test_alarms_name_the_channels_that_caused_them():
    scores = np.array([np.nan, 1, 3, 4, 1, 5.0])
    parts = np.zeros((6, 4))
    parts[2:4, :3] = [[2, 1, 0], [1, 3, 0]]
    parts[5] = [0, 0, 4, 1]
    table = stream_runs.alarm_table(scores, 2.0, np.array([0, 0, 0, 1, 1, 1]), parts, ("a", "b", "c"))
    assert table["first"].tolist() == [2, 5]
    assert table["last"].tolist() == [3, 5]
    assert table["peak"].tolist() == [2, 2.5]
    assert table["true"].tolist() == [0.5, 1]
    assert table["channel_1"].tolist() == ["b", "c"]
    np.testing.assert_allclose(table["share_1"], [4 / 7, 4 / 5])
    assert len(stream_runs.alarm_table(scores, 9.0, np.zeros(6, int), parts, ("a", "b", "c"))) == 0


def test_rounds_are_kept_for_what_was_trained(fedkad_result):
    history = fedkad_result.history
    counts = history.groupby(["method", "seed"])["round"].count()
    trained = FEDKAD_ROWS - {"untrained subspace", "random", "row norm", "persistence", "PCA", "window PCA"}
    assert counts.to_dict() == {(name, seed): SMALL.rounds for name in trained for seed in (0, 1)}
    assert np.isfinite(history[["local_loss", "consensus_residual"]].to_numpy()).all()
    assert (history["counted"] >= 1).all()


def test_the_area_under_the_mean_curve_is_the_mean_average_precision(fedkad_result):
    areas = 100 * fedkad_result.curves.groupby("method")["precision"].mean()
    table = fedkad_result.table()["ap"].astype(float)
    assert set(areas.index) == FEDKAD_ROWS
    # A step of the curve falls between two of the 100 levels: at most half a level each, in practice far less.
    np.testing.assert_allclose(areas[table.index], table, atol=0.5)


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


def test_thresholds_see_validation_scores_and_nothing_else(awkward, fedkad_result):
    """Other labels and other test rows change no threshold, and only a client's own validation rows do."""
    moved = awkward.names[3]
    train = {name: x.copy() for name, x in awkward.train.items()}
    train[moved][-40:] *= 1.5
    test = {name: x[::-1].copy() for name, x in awkward.test.items()}
    labels = {name: 1 - y for name, y in awkward.labels.items()}
    other = runs.run_fedkad(
        dataclasses.replace(awkward, train=train, test=test, labels=labels), SMALL, seeds=(0, 1)
    )
    columns = ["method", "seed", "unit"]
    both = fedkad_result.units.merge(other.units, on=columns, suffixes=("", "_other"), validate="one_to_one")
    assert len(both) == len(fedkad_result.units)
    elsewhere = both["unit"] != moved
    assert both["threshold"].notna().all()
    assert (both["threshold"] == both["threshold_other"])[elsewhere].all()
    learned = ~elsewhere & ~both["method"].isin(["random"])
    assert (both["threshold"] != both["threshold_other"])[learned].all()


def test_the_table_is_what_the_units_say(fedkad_result):
    table = fedkad_result.table()
    for metric in runs.METRICS["client"]:
        by_seed = fedkad_result.units.groupby(["method", "seed"], sort=False)[metric].mean()
        mean, sd = (getattr(by_seed.groupby("method"), how)() for how in ("mean", "std"))
        np.testing.assert_allclose(table[metric], 100 * mean[table.index], rtol=1e-12)
        np.testing.assert_allclose(table[f"{metric}_sd"], 100 * sd[table.index], rtol=1e-12)


def test_untrained_and_control_rows_are_what_they_say(awkward, fedkad_result):
    streams = awkward.select([n for n in awkward.names if n != awkward.names[1]])
    scaled, _ = data.standardise(streams)
    train, validation = data.split(scaled.train)
    units = fedkad_result.units.set_index(["method", "seed", "unit"])["auroc"]
    for seed in (0, 1):
        key = jax.random.key(seed)
        lift = koopman.random_lift(jax.random.fold_in(key, 1), 10, window=5, size=8)
        alg = SMALL.algorithm(lift)
        clients = moments.prepare(lift, data.stack_series(train))
        detectors = federation.deploy(alg, federation.init(alg, key, clients), clients)
        scores = data.unstack(federation.score(alg, detectors, data.stack_series(scaled.test).x), scaled.test)
        controls_of = controls.score_streams(train, validation, scaled.test, seed=seed)
        for name in streams.names[1:]:
            want = {"untrained subspace": scores[name]}
            smoothed = koopman.smooth(jnp.asarray(controls_of["random"][1][name]), SMALL.smoothing)
            want["random"] = np.asarray(smoothed)
            for method, values in want.items():
                if streams.labels[name].any():
                    auroc = evaluation.auroc(values, streams.labels[name])
                    assert units[method, seed, name] == pytest.approx(auroc, abs=1e-4)
    per_seed = units["untrained subspace"].dropna().groupby("seed").mean()
    assert per_seed[0] != per_seed[1]


@pytest.mark.slow
def test_comparators_stand_in_the_same_table(awkward):
    settings = dataclasses.replace(SMALL, baselines=True, residual="newest")
    result = runs.run_fedkad(awkward, settings, seeds=(0,))
    added = {"pooled one-shot", "centralised OMD", "ridge VAR"}
    assert set(result.table().index) == FEDKAD_ROWS | added
    table = result.table()
    assert (table.loc[sorted(added), "covers"] == "3-4/4").all()
    assert table.loc["ridge VAR", "auroc"] > table.loc["random", "auroc"] + 5
    # The warm start's subspace is the pooled one, and thirty small steps hardly leave it.
    warm = result.units.query("method == 'FedKAD, warm'").set_index("unit")["auroc"]
    pooled = result.units.query("method == 'pooled one-shot'").set_index("unit")["auroc"]
    np.testing.assert_allclose(warm, pooled, atol=0.05)


def test_controls_are_smoothed_like_the_method():
    values = np.asarray([np.nan, 1.0, 3.0, np.inf, 2.0, 2.0, np.nan, 2.0])
    got = stream_runs._smooth({"a": values}, 3)["a"]
    np.testing.assert_array_equal(got, koopman.smooth(jnp.asarray(values), 3))
    np.testing.assert_array_equal(got[1:6], [1, 2, np.inf, np.inf, np.inf])


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
        ({"rho": math.inf}, "rho must be positive and finite"),
    ],
)
def test_bad_fedkad_settings_are_named(awkward, change, message):
    with pytest.raises(ValueError, match=message):
        runs.run_fedkad(awkward, dataclasses.replace(SMALL, **change), seeds=(0,))


@pytest.mark.parametrize("seeds", [(), (0, 0), (-1,)])
def test_seeds_are_checked_before_any_work(awkward, seeds):
    with pytest.raises(ValueError, match="seeds must be distinct, not negative, and at least one"):
        runs.run_fedkad(awkward, SMALL, seeds=seeds)


@pytest.mark.slow
def test_fedkad_on_real_streams(data_root):
    """Two short clients of MSL end to end, and what a learning-free row must score whatever we do."""
    streams = data.msl(data_root)
    result = runs.run_fedkad(streams.select(["C-1", "M-6"]), runs.KoopmanSettings(rounds=5), seeds=(0,))
    assert set(result.table().index) == FEDKAD_ROWS
    assert result.table().loc["FedKAD", "covers"] == "2/2"
    assert np.isfinite(result.table()[["auroc", "ap"]].to_numpy(float)).all()
