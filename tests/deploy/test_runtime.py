"""The NumPy runtime against JAX, on files, on streams with holes, and as a program of its own."""

import io
import itertools
import json
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from fedgeo import data
from fedgeo.algorithms import koopman
from fedgeo.deploy import runtime
from tests.deploy.detectors import Fitted, Made, close, generated

SCALES = ("none", "variance", "log")
SHAPES = ((1, 20), (3, 1))  # horizon and smoothing


def streamed(detector, client, x, times=None):
    stream = detector.stream(client)
    times = itertools.repeat(None) if times is None else times
    return np.array([stream.update(row, time) for row, time in zip(x, times, strict=False)]).T


def agree(made, client, x):
    """JAX whole and row by row, NumPy whole and row by row."""
    k, detector = made.clients.index(client), made.loaded
    want, threshold = made.score(x, k), made.thresholds[k]
    assert np.isnan(want).sum() == detector.warm_up == made.fitted.window - 1 + made.horizon
    close(made.row_by_row(x, k), want, threshold)
    whole = detector.score(x, client)
    close(whole, want, threshold)
    scores, alarms = streamed(detector, client, x)
    close(scores, want, threshold)
    close(scores, whole, threshold)
    np.testing.assert_array_equal(alarms, detector.alarms(scores, client))
    assert 0 < alarms.sum() < len(x) / 2


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("residual", ["newest", "full"])
def test_scores_are_those_of_jax(residual, scale, newest, full, x, tmp_path):
    fitted = {"newest": newest, "full": full}[residual]
    for horizon, smoothing in SHAPES:
        made = Made(tmp_path / f"{horizon}", fitted, scale=scale, horizon=horizon, smoothing=smoothing)
        agree(made, "machine 1", x)


@pytest.mark.parametrize(
    ("name", "residual", "scale", "horizon", "smoothing"),
    [("smap", "newest", "variance", 1, 20), ("smd", "full", "log", 3, 1)],
)
def test_scores_of_a_real_client_are_those_of_jax(
    name, residual, scale, horizon, smoothing, data_root, tmp_path
):
    streams = {"smap": data.smap, "smd": data.smd}[name](data_root)
    client = streams.names[0]
    fitted = Fitted(streams.train[client][None, :2000], residual, window=20, size=128, rank=24)
    made = Made(tmp_path / "real", fitted, scale=scale, horizon=horizon, smoothing=smoothing)
    agree(made, "machine 0", streams.test[client][-2000:])


def test_an_operator_stands_in_for_the_readout_of_the_whole_vector(full, x, tmp_path):
    made = Made(tmp_path / "a", full, scale="none")
    assert "readout" not in made.arrays
    readout = np.einsum("dr,krs->kds", made.arrays["basis"], made.arrays["operator"])
    other = runtime.write(tmp_path / "b", made.about, {**made.arrays, "readout": readout})
    close(runtime.load(other).score(x, "machine 0"), made.loaded.score(x, "machine 0"))


@pytest.mark.parametrize("residual", ["newest", "full"])
def test_contributions_add_up_and_name_the_channel_that_broke(residual, newest, full, x, tmp_path):
    made = Made(tmp_path / "d", {"newest": newest, "full": full}[residual], horizon=2)
    detector, client = made.loaded, "machine 1"
    broken = x.copy()
    broken[400:, 3] += 100 * made.fitted.scale[1, 3]
    parts = detector.contributions(broken, client)
    assert parts.shape == (len(x), 6)
    close(parts.sum(axis=1), detector.score(broken, client))
    want = np.stack([made.smooth(part) for part in made.parts(broken, 1).T], axis=1)
    top = want.max(axis=1, keepdims=True)
    np.testing.assert_allclose(parts / top, want / top, atol=1e-5, equal_nan=True)
    assert np.argmax(parts[403, :-1]) == 3
    assert (np.nanmax(parts[:, -1]) == 0) == (residual == "newest")
    stream = detector.stream(client)
    for t in range(410):
        score, _ = stream.update(broken[t])
    close(stream.contributions(), parts[409], made.thresholds[1])
    assert stream.contributions().sum() == pytest.approx(score, rel=1e-12)


@pytest.mark.parametrize("residual", ["newest", "full"])
def test_length_cuts_and_blocks_change_no_score(residual, newest, full, tmp_path, monkeypatch):
    made = Made(tmp_path / "d", {"newest": newest, "full": full}[residual], horizon=2, smoothing=3)
    detector, client = made.loaded, "machine 0"
    long = generated(clients=1, steps=2 * runtime.BLOCK + 100)[0]
    whole = detector.score(long, client)
    close(whole, made.score(long, 0), made.thresholds[0])
    for stop in (runtime.BLOCK - 1, runtime.BLOCK + 1):
        np.testing.assert_allclose(detector.score(long[:stop], client), whole[:stop], rtol=1e-6)
    shifted = detector.score(np.concatenate([long[:1].repeat(100, axis=0), long[:500]]), client)
    np.testing.assert_allclose(shifted[107:], whole[7:500], rtol=1e-6)
    for room in (1, 1000):
        with monkeypatch.context() as patch:
            patch.setattr(runtime, "ROOM", room)
            np.testing.assert_allclose(detector.score(long[:500], client), whole[:500], rtol=1e-6)
    spike = long[:500].copy()
    spike[300, 2] += 50 * made.fitted.scale[0, 2]
    changed = detector.score(spike, client)
    np.testing.assert_array_equal(changed[:300], detector.score(long[:500], client)[:300])
    assert changed[300] > 1.1 * whole[300]


@pytest.mark.parametrize("steps", [0, 1, 3, 5, 6])
def test_short_streams(steps, newest, x, tmp_path):
    detector = Made(tmp_path / "d", newest, horizon=2).loaded
    scores = detector.score(x[:steps], "machine 1")
    assert scores.shape == (steps,)
    assert np.isfinite(scores).sum() == max(steps - detector.warm_up, 0)


def test_wrong_rows_and_clients_are_named(newest, x, tmp_path):
    detector = Made(tmp_path / "d", newest).loaded
    with pytest.raises(ValueError, match=r"no client 'pump'.*'machine 0', 'machine 1'"):
        detector.score(x, "pump")
    with pytest.raises(ValueError, match="name one of this detector"):
        detector.stream()
    with pytest.raises(ValueError, match=r"shape \(700, 4\); want \(rows, 5\)"):
        detector.score(x[:, :4], "machine 1")
    with pytest.raises(ValueError, match="the 5 columns"):
        detector.stream("machine 1").update(x[0, :4])
    frame = pd.DataFrame(x, columns=detector.columns)
    np.testing.assert_array_equal(detector.score(frame, "machine 1"), detector.score(x, "machine 1"))
    with pytest.raises(ValueError, match="in this order"):
        detector.score(frame[list(reversed(detector.columns))], "machine 1")


# Holes


def holes(x):
    x = x.copy()
    x[500, 3] = np.nan
    x[0, 0] = np.nan
    x[100:103] = np.nan
    x[300:320, 1] = np.nan
    return x


def test_a_missing_value_is_an_error_that_names_it(newest, x, tmp_path):
    detector = Made(tmp_path / "d", newest).loaded
    with pytest.raises(ValueError, match=r"row 0, column 'sensor 0'"):
        detector.score(holes(x), "machine 1")
    alone = x.copy()
    alone[500, 3] = np.nan
    with pytest.raises(ValueError, match=r"row 500, column 'sensor 3'"):
        detector.score(alone, "machine 1")
    stream, other = detector.stream("machine 1"), detector.stream("machine 1")
    for t in range(10):
        stream.update(x[t])
        other.update(x[t])
    with pytest.raises(ValueError, match="column 'sensor 3'"):
        stream.update(alone[500])
    assert stream.update(x[10]) == other.update(x[10])


def test_filling_forward(newest, x, tmp_path):
    made = Made(tmp_path / "d", newest, missing="ffill")
    filled = pd.DataFrame(holes(x)).ffill().fillna(pd.Series(made.fitted.center[1])).to_numpy()
    got = made.loaded.score(holes(x), "machine 1")
    np.testing.assert_array_equal(got, made.loaded.score(filled, "machine 1"))
    close(got, made.score(filled, 1))
    close(streamed(made.loaded, "machine 1", holes(x))[0], got, made.thresholds[1])


@pytest.mark.parametrize("residual", ["newest", "full"])
def test_masking_scores_what_was_observed(residual, newest, full, x, tmp_path):
    made = Made(tmp_path / "d", {"newest": newest, "full": full}[residual], missing="mask", horizon=2)
    filled = pd.DataFrame(holes(x)).ffill().fillna(pd.Series(made.fitted.center[1])).to_numpy()
    observed = ~np.isnan(holes(x))
    parts = made.parts(filled, 1).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = 5 / observed.sum(axis=1)
        raw = parts[:, -1] + share * np.where(observed, parts[:, :-1], 0).sum(axis=1)
    got = made.loaded.score(holes(x), "machine 1")
    close(got, made.smooth(raw), made.thresholds[1])
    known = np.isfinite(got)
    assert not known[100:103].any()
    assert known[103:].all()
    assert (got[known] > 0).all()
    scores, alarms = streamed(made.loaded, "machine 1", holes(x))
    close(scores, got, made.thresholds[1])
    assert not alarms[100:103].any()
    close(made.loaded.contributions(holes(x), "machine 1").sum(axis=1), got)


def test_gaps_start_the_window_anew(newest, x, tmp_path):
    detector = Made(tmp_path / "d", newest, interval=60.0, horizon=2).loaded
    seconds = 1e9 + 60 * np.arange(len(x)) + np.where(np.arange(len(x)) >= 200, 31, 0)
    got = detector.score(x, "machine 1", seconds)
    apart = [detector.score(part, "machine 1") for part in (x[:200], x[200:])]
    np.testing.assert_allclose(got, np.concatenate(apart), rtol=1e-6)
    assert np.isnan(got[200:205]).all()
    for times in (
        seconds,
        pd.to_datetime(seconds, unit="s"),
        [str(t) for t in pd.to_datetime(seconds, unit="s")],
    ):
        np.testing.assert_array_equal(detector.score(x, "machine 1", times), got)
        close(streamed(detector, "machine 1", x, times)[0], got, 1.0)
    small = np.where(np.arange(len(x)) >= 200, 29, 0)
    late = detector.score(x, "machine 1", 60 * np.arange(len(x)) + small)
    np.testing.assert_array_equal(late, detector.score(x, "machine 1"))


def test_times_must_increase(newest, x, tmp_path):
    detector = Made(tmp_path / "d", newest, interval=60.0).loaded
    with pytest.raises(runtime.LateRowError, match="row 2 is not later"):
        detector.score(x[:3], "machine 1", [0, 60, 60])
    with pytest.raises(ValueError, match="row 1 has no time"):
        detector.score(x[:3], "machine 1", [0, np.nan, 60])
    with pytest.raises(ValueError, match=r"shape \(2,\) for 3 rows"):
        detector.score(x[:3], "machine 1", [0, 60])
    stream = detector.stream("machine 1")
    stream.update(x[0], 60)
    with pytest.raises(runtime.LateRowError, match="not after the last"):
        stream.update(x[1], 60)
    stream.update(x[1], 120)


def test_smoothing_leaves_out_nan_and_counts_what_is_infinite():
    raw = np.array([np.nan, np.nan, 1, 2, np.nan, 4, np.inf, 5, 6, 7, 8, 9, np.nan])
    for width in (1, 3, 20):
        want = np.asarray(koopman.smooth(jnp.asarray(raw, jnp.float32), width))
        np.testing.assert_allclose(runtime._smooth(raw[:, None], width)[:, 0], want, rtol=1e-6)


def test_an_infinite_value_is_an_alarm_and_no_gap(newest, x, tmp_path):
    made = Made(tmp_path / "d", newest, smoothing=1)
    broken = x.copy()
    broken[100, 0] = np.inf
    for clip in (10.0, None):
        about = {**made.about, "settings": {**made.about["settings"], "clip": clip}}
        detector = runtime.load(runtime.write(tmp_path / f"{clip}", about, made.arrays))
        scores = detector.score(broken, "machine 1")
        assert not np.isnan(scores[10:]).any()
        assert detector.alarms(scores, "machine 1")[100]
        assert streamed(detector, "machine 1", broken[:101])[1, 100]


def test_a_hundred_thousand_rows_keep_a_state_of_one_size(newest, tmp_path):
    made = Made(tmp_path / "d", newest)
    long = generated(clients=1, steps=100_000)[0]
    stream = made.loaded.stream("machine 0")

    def size():
        own = {name: value for name, value in vars(stream).items() if name not in ("_detector", "_own")}
        return len(pickle.dumps(own))

    scores = np.empty(len(long))
    for t, row in enumerate(long):
        scores[t] = stream.update(row)[0]
        if t == 1000:
            early = size()
    assert size() == early
    close(scores, made.loaded.score(long, "machine 0"), made.thresholds[0])


# Geodesic-SVDD


def test_experts_score_as_in_jax(rows, tmp_path):
    detector = runtime.load(rows.path)
    x = rows.train.reshape(-1, 6)[:100].copy()
    scores = detector.score(x)
    close(scores, rows.score(x))
    np.testing.assert_array_equal(detector.score(pd.DataFrame(x, columns=rows.columns), "bank 1"), scores)
    np.testing.assert_array_equal(detector.alarms(scores), scores > rows.arrays["threshold_all"])
    np.testing.assert_array_equal(detector.alarms(scores, "bank 2"), scores > rows.arrays["threshold"][2])
    stream = detector.stream("bank 2")
    got = np.array([stream.update(row) for row in x])
    np.testing.assert_allclose(got[:, 0], scores, rtol=1e-6)
    assert 0 < got[:, 1].sum() < 100
    x[7, 2] = np.nan
    with pytest.raises(ValueError, match=r"row 7, column 'feature 2'"):
        detector.score(x)
    about = {**rows.about, "settings": {**rows.about["settings"], "missing": "mask"}}
    masked = runtime.load(runtime.write(tmp_path / "masked", about, rows.arrays)).score(x)
    assert np.flatnonzero(np.isnan(masked)).tolist() == [7]


def test_an_encoder_at_zero_scores_what_jax_says(rows, tmp_path):
    zero = {n: np.zeros_like(a) if n.startswith("params.") else a for n, a in rows.arrays.items()}
    scores = runtime.load(runtime.write(tmp_path / "zero", rows.about, zero)).score(rows.train[0])
    pole = np.eye(1, 8)[0]
    np.testing.assert_allclose(scores, 3 * np.log1p(np.sum((pole - rows.arrays["anchor"]) ** 2)), rtol=1e-6)


# Files


@pytest.fixture
def made(newest, tmp_path):
    return Made(tmp_path / "pump.fedgeo", newest)


def rewritten(path, change):
    """The archive again, with its members changed."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def npy(array, **options):
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def test_a_file_keeps_everything(made):
    about, arrays = runtime.read(made.path)
    assert {name: about[name] for name in made.about} == made.about
    assert about["version"] == runtime.VERSION
    for name, array in made.arrays.items():
        assert arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(arrays[name], array)
    assert (
        runtime.read(runtime.write(made.path, made.about, {"scalar": np.asarray(3.0)}))[1]["scalar"].shape
        == ()
    )


def test_another_version_is_refused(made):
    def change(members):
        about = json.loads(members["detector.json"])
        members["detector.json"] = json.dumps({**about, "version": 99})

    with pytest.raises(ValueError, match=r"version 99 of the format.*reads version 1"):
        runtime.load(rewritten(made.path, change))


@pytest.mark.parametrize("part", [0.05, 0.5, 0.99])
def test_a_truncated_file_is_refused(made, part):
    content = made.path.read_bytes()
    made.path.write_bytes(content[: int(len(content) * part)])
    with pytest.raises(ValueError, match="damaged"):
        runtime.load(made.path)


def test_a_flipped_byte_is_refused(made):
    content = made.path.read_bytes()
    with zipfile.ZipFile(made.path) as archive:
        middles = [m.header_offset + 30 + len(m.filename) + m.compress_size // 2 for m in archive.infolist()]
    assert len(middles) == len(made.arrays) + 1
    for place in middles:
        changed = bytearray(content)
        changed[place] ^= 0xFF
        made.path.write_bytes(changed)
        with pytest.raises(ValueError, match="damaged"):
            runtime.load(made.path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("basis.npy", npy(np.ones((3, 3), np.float32))),
        ("threshold.npy", npy(np.zeros(2))),
        ("basis.npy", npy(np.array([{"a": 1}], object), allow_pickle=True)),
        ("basis.npy", b"no array"),
        ("extra.npy", npy(np.ones(3))),
        ("extra.pkl", pickle.dumps(print)),
    ],
    ids=["shape", "values", "pickle", "garbage", "one more", "one more that is a pickle"],
)
def test_changed_arrays_are_refused(made, name, content):
    with pytest.raises(ValueError, match=r"damaged|was changed"):
        runtime.load(rewritten(made.path, lambda members: members.update({name: content})))


def test_an_array_that_is_gone_is_noticed(made):
    with pytest.raises(ValueError, match="not those that"):
        runtime.load(rewritten(made.path, lambda members: members.pop("basis.npy")))


def test_what_is_no_detector_is_refused(made, tmp_path):
    with pytest.raises(FileNotFoundError, match="no detector at"):
        runtime.load(tmp_path / "nothing")
    (tmp_path / "text").write_text("time,score\n")
    with pytest.raises(ValueError, match="no detector or is damaged"):
        runtime.load(tmp_path / "text")
    with zipfile.ZipFile(tmp_path / "zip", "w") as archive:
        archive.writestr("a.txt", "hello")
    with pytest.raises(ValueError, match=r"no readable detector\.json"):
        runtime.load(tmp_path / "zip")
    with pytest.raises(FileExistsError, match="is no detector"):
        runtime.write(tmp_path / "text", made.about, made.arrays)
    assert (tmp_path / "text").read_text() == "time,score\n"


@pytest.mark.parametrize(
    ("settings", "arrays", "message"),
    [
        ({"window": 5}, {}, r"array lift_weight has shape \(6, 4, 5\).*wants \(6, 5, 5\)"),
        ({"residual": "oldest"}, {}, "setting residual is 'oldest'"),
        ({"horizon": 0}, {}, "setting horizon must be a whole number from 1"),
        ({}, {"threshold": np.zeros(3)}, r"array threshold has shape \(3,\)"),
        ({}, {"basis": np.ones((26, 3), int)}, "floating-point"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(made, settings, arrays, message):
    about = {**made.about, "settings": {**made.about["settings"], **settings}}
    with pytest.raises(ValueError, match=message):
        runtime.load(runtime.write(made.path, about, {**made.arrays, **arrays}))


def test_what_lacks_is_named(made):
    arrays = {name: array for name, array in made.arrays.items() if name != "variance"}
    with pytest.raises(ValueError, match=r"lacks what a detector by fedkad needs: 'variance'"):
        runtime.load(runtime.write(made.path, made.about, arrays))
    with pytest.raises(ValueError, match="method 'forest'"):
        runtime.load(runtime.write(made.path, {**made.about, "method": "forest"}, arrays))


def test_a_failing_write_leaves_the_old_file(made, monkeypatch):
    before = made.path.read_bytes()

    def full_disk(*args, **kwargs):
        raise OSError("no space left on device")

    monkeypatch.setattr(runtime.np, "save", full_disk)
    with pytest.raises(OSError, match="no space left"):
        runtime.write(made.path, made.about, made.arrays)
    assert made.path.read_bytes() == before
    assert os.listdir(made.path.parent) == [made.path.name]


# Lines


def lines_of(x, *, header=None, times=None):
    for t, row in enumerate(x):
        if t == 0 and header:
            yield ",".join(header) + "\n"
        fields = [str(times[t])] if times is not None else []
        yield ",".join([*fields, *(repr(float(value)) for value in row)]) + "\n"


def watched(lines, detector, **options):
    return [json.loads(line) for line in runtime.watch(lines, detector, "machine 1", style="json", **options)]


def scores_of(answers):
    return np.array([np.nan if answer["score"] is None else answer["score"] for answer in answers])


def test_lines_are_scored_as_the_stream(made, x):
    want, alarms = streamed(made.loaded, "machine 1", x)
    got = watched(lines_of(x), made.loaded)
    np.testing.assert_array_equal(scores_of(got), want)
    assert [answer["row"] for answer in got] == list(range(len(x)))
    assert [answer["alarm"] for answer in got] == (alarms == 1).tolist()
    assert all(bool(answer["channels"]) == answer["alarm"] for answer in got)
    assert "sensor 1" in got[352]["channels"]
    table = pd.read_csv(io.StringIO("\n".join(runtime.watch(lines_of(x), made.loaded, "machine 1"))))
    assert list(table) == ["row", "time", "score", "alarm", "channels", "note"]
    np.testing.assert_allclose(table["score"], want, rtol=1e-8)


def test_columns_are_found_by_name(made, x):
    order = [3, 0, 4, 1, 2]
    names = ["Timestamp", "unit", *(made.columns[c] for c in order)]
    wide = np.concatenate([np.arange(len(x))[:, None], np.ones((len(x), 1)), x[:, order]], axis=1)
    got = watched(lines_of(wide, header=names), made.loaded)
    np.testing.assert_array_equal(scores_of(got), scores_of(watched(lines_of(x), made.loaded)))
    assert got[5]["time"] == "5.0"
    with pytest.raises(ValueError, match=r"line 1: the columns 'sensor 4' are missing"):
        watched(lines_of(x[:, :4], header=made.columns[:4]), made.loaded)
    with pytest.raises(ValueError, match="no column 'when' for the times"):
        watched(lines_of(x, header=made.columns), made.loaded, time="when")
    with pytest.raises(ValueError, match="more than once"):
        watched(lines_of(x[:, [0, 1, 2, 3, 4, 4]], header=[*made.columns, "sensor 4"]), made.loaded)


def test_names_that_are_numbers(made, x, tmp_path):
    about = {**made.about, "columns": list("01234")}
    detector = runtime.load(runtime.write(tmp_path / "numbers", about, made.arrays))
    want = scores_of(watched(lines_of(x), made.loaded))
    np.testing.assert_array_equal(scores_of(watched(lines_of(x, header=list("01234")), detector)), want)
    zeros = x.copy()
    zeros[0, :2] = 0, 1
    first = [line.replace("0.0,1.0", "0,1") for line in lines_of(zeros)]
    assert len(watched(first, detector)) == len(x)


def test_bad_lines_are_reported_survived_and_keep_the_places_of_others(made, x):
    lines = list(lines_of(x))
    bad = {50: "1,2,3\n", 51: "a,b,c,d,e\n", 120: '"1,2,3,4,5\n', 200: "\x00\n", 201: "1,2,nan,4,5\n"}
    for t, line in bad.items():
        lines[t] = line
    lines[300] = "\n" + lines[300]
    got = watched(lines, made.loaded)
    assert len(got) == len(x)
    for t in bad:
        assert got[t]["score"] is None
        assert not got[t]["alarm"]
        assert f"line {t + 1} counts as a lost row" in got[t]["note"]
    assert "3 fields, want 5" in got[50]["note"]
    assert "'a' is not a number" in got[51]["note"]
    assert "column 'sensor 2': a value is missing" in got[201]["note"]

    # What a stream says that masks: the rows were there, and nothing of them was observed.
    about = {**made.about, "settings": {**made.about["settings"], "missing": "mask"}}
    masking = runtime.load(runtime.write(made.path, about, made.arrays))
    lost = x.copy()
    lost[list(bad)] = np.nan
    np.testing.assert_array_equal(scores_of(got), streamed(masking, "machine 1", lost)[0])


def test_garbage_before_the_first_row_and_names_that_come_again(made, x):
    header = ",".join(made.columns) + "\n"
    lines = ["\ufeff" + header, *lines_of(x[:50]), header, *lines_of(x[50:])]
    want = scores_of(watched(lines_of(x), made.loaded))
    np.testing.assert_array_equal(scores_of(watched(lines, made.loaded)), want)
    got = watched(["cut off,1\n", header, *lines_of(x)], made.loaded)
    np.testing.assert_array_equal(scores_of(got)[1:], want)
    assert "2 fields" in got[0]["note"]


def test_a_windows_length_of_lost_rows_starts_it_anew(made, x):
    lines = list(lines_of(x))
    lines[100:104] = ["lost\n"] * 4
    got = scores_of(watched(lines, made.loaded))
    assert np.isnan(got[100 : 104 + made.loaded.warm_up]).all()
    np.testing.assert_array_equal(got[104:], scores_of(watched(lines_of(x[104:]), made.loaded)))


def test_lines_with_times(made, x, tmp_path):
    about = {**made.about, "settings": {**made.about["settings"], "interval": 60.0}}
    detector = runtime.load(runtime.write(tmp_path / "timed", about, made.arrays))
    stamps = pd.date_range("2024-03-01", periods=len(x), freq="min").astype(str)
    lines = list(lines_of(x, times=stamps))
    lines.insert(200, lines[199])  # sent twice
    lines[300] = "garbage\n"  # one lost row is no gap
    del lines[400:450]
    got = watched(lines, detector)
    assert "line 201 left out" in got[200]["note"]
    assert "lost row" in got[300]["note"]
    assert "gap" in got[400]["note"]
    scores = scores_of(got)
    assert np.isnan(scores[400 : 400 + detector.warm_up]).all()
    assert np.isfinite(scores[301:400]).all()
    want = scores_of(watched(lines_of(x), made.loaded))
    np.testing.assert_array_equal(scores[:200], want[:200])
    np.testing.assert_array_equal(scores[201:300], want[200:299])
    assert [answer["time"] for answer in got[:3]] == list(stamps[:3])
    assert "is no time" in watched(["x" + lines[0], *lines[1:3]], detector)[0]["note"]


def test_rows_of_a_table_are_watched_too(rows):
    lines = runtime.watch(lines_of(rows.train[0]), runtime.load(rows.path), "bank 2")
    table = pd.read_csv(io.StringIO("\n".join(lines)))
    np.testing.assert_allclose(table["score"], rows.score(rows.train[0]), rtol=1e-5)
    assert 0 < table["alarm"].sum() < len(table)


def test_scores_that_rest_on_filled_rows_are_counted(made, x):
    lines, tally = list(lines_of(x)), {}
    clean = scores_of(watched(lines, made.loaded))
    lines[100] = "lost\n"
    got = watched(lines, made.loaded, tally=tally)
    assert got[100]["note"].endswith("; the last values stand in for it")
    other = np.flatnonzero(~np.isclose(scores_of(got), clean, rtol=0, atol=0, equal_nan=True))
    last = 100 + made.loaded.warm_up + made.loaded._width - 1
    assert (other.min(), other.max()) == (100, last)
    assert tally["filled"] == last - 100
    stream = made.loaded.stream("machine 1")
    for _ in range(made.loaded.window):
        stream.skip()
    assert not stream.filled


def test_ignored_columns_are_noted_once(made, x):
    wide = np.concatenate([x, np.zeros((len(x), 1))], axis=1)
    lines, notes = list(lines_of(wide, header=[*made.columns, "label"])), []
    watched([*lines, lines[0]], made.loaded, on_note=notes.append)
    assert notes == ["ignored columns: 'label'"]


def test_names_for_a_detector_without_are_seen(made, x, tmp_path):
    detector = runtime.load(
        runtime.write(tmp_path / "n", {**made.about, "columns": list("01234")}, made.arrays)
    )
    with pytest.raises(ValueError, match="fitted on files without names: leave this line out"):
        watched(lines_of(x, header=made.columns), detector)


def test_a_doubt_of_many_alarms(made):
    about = {**made.about, "calibration": [{"client": "machine 1", "alarm_rate": 0.01}]}
    detector = runtime.StreamDetector(about, made.arrays)
    assert not runtime.doubt(detector, "machine 1", 100, 9)
    assert "1.00% were alarms, of these 20.00%" in runtime.doubt(detector, "machine 1", 100, 20)
    assert not runtime.doubt(detector, "machine 1", 0, 0)
    assert not runtime.doubt(detector, "machine 0", 100, 20)


# Alone

ALONE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("jax", "jaxlib", "pandas", "scipy", "sklearn", "flax", "fedgeo", "manifolds"):
            raise ImportError(f"{name} is not to be had here")

sys.meta_path.insert(0, Refuse())
import numpy as np
import runtime

x = np.load("x.npy")
detector = runtime.load("pump.fedgeo")
stream = detector.stream("machine 1")
np.savez("scores.npz", whole=detector.score(x, "machine 1"), rows=[stream.update(row)[0] for row in x])
"""


def test_the_file_alone_scores_where_nothing_but_numpy_is(made, x):
    folder = made.path.parent
    (folder / "runtime.py").write_bytes(Path(runtime.__file__).read_bytes())
    np.save(folder / "x.npy", x)
    subprocess.run([sys.executable, "-W", "error", "-c", ALONE], cwd=folder, check=True)
    with np.load(folder / "scores.npz") as scores:
        for name in ("whole", "rows"):
            close(scores[name], made.score(x, 1), made.thresholds[1])


def test_the_file_is_a_program(made, x):
    def run(*arguments, content=b""):
        command = [sys.executable, "-W", "error", runtime.__file__, *arguments]
        return subprocess.run(command, input=content, capture_output=True, check=False)

    content = b"\xff\xfe\n" + "".join(lines_of(x[:100])).encode()
    done = run(str(made.path), "--client", "machine 1", content=content)
    assert (done.returncode, done.stderr) == (
        0,
        b"101 rows, 96 scored, 0 alarms, 1 unread\n",
    )  # lost before the first row: nothing is filled
    table = pd.read_csv(io.BytesIO(done.stdout))
    np.testing.assert_allclose(table["score"][1:], streamed(made.loaded, "machine 1", x[:100])[0], rtol=1e-8)
    done = run(str(made.path), content=content)
    assert done.returncode == 2
    assert b"name one of this detector" in done.stderr
    assert run(str(made.path.parent / "nothing")).returncode == 2
