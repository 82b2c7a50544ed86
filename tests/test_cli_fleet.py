"""From machines' CSV files to alarms, as their owner does it: fit, score, watch, export."""

import io
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import fedgeo
from fedgeo import cli, data
from fedgeo.deploy import runtime as deploy


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """Three machines' files, with times and names, and a detector of them."""
    folder = tmp_path_factory.mktemp("fleet")
    streams = data.plants(clients=3)
    for part, clients in (("train", streams.train), ("test", streams.test)):
        (folder / part).mkdir()
        for name, x in clients.items():
            times = pd.date_range("2024-01-01", periods=len(x), freq="min", name="time")
            pd.DataFrame(x, times, streams.channels).to_csv(folder / part / f"{name}.csv")
    code, _, err = run("fit", folder / "train", "--out", folder / "detector", "--rounds", "2", "--rank", "6")
    assert code == 0, err
    return folder


def run(*words, rows=""):
    """The command as its user gives it; what it exits with, prints and complains."""
    with pytest.MonkeyPatch.context() as patch:
        out, err = io.StringIO(), io.StringIO()
        patch.setattr(sys, "argv", ["fedgeo", *map(str, words)])
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(rows.encode())))
        patch.setattr(cli.console, "file", out)
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        patch.setattr(cli.console, "file", None)
    return code, out.getvalue(), err.getvalue()


def test_scores_are_those_of_the_estimator(fleet):
    name = "plant-1"
    code, out, err = run("score", fleet / "detector", fleet / "test" / f"{name}.csv")
    assert code == 0, err
    got = pd.read_csv(io.StringIO(out), index_col="row")
    frame = data.read_csv(fleet / "test" / f"{name}.csv")
    model = fedgeo.load(fleet / "detector")
    want = model.score_samples(frame, name)
    assert out.splitlines()[1].startswith("0,2024-01-01 00:00:00,,0")  # stamps as the file has them
    assert np.isfinite(want[20:]).all()
    np.testing.assert_allclose(got["score"], want, rtol=1e-5)
    np.testing.assert_array_equal(got["alarm"], model.predict(frame, name))
    assert got["alarm"].sum() > 0
    assert (
        got.loc[got["alarm"] == 1, "channels"].str.split().map(lambda c: set(c) <= set(frame.columns)).all()
    )
    assert f"{len(frame)} rows" in err


def test_watch_says_the_same_row_by_row(fleet):
    lines = (fleet / "test" / "plant-2.csv").read_text().splitlines()[:300]
    lines[150] = "not,a,row"
    code, out, err = run("watch", fleet / "detector", "--client", "plant-2", rows="\n".join(lines))
    got = pd.read_csv(io.StringIO(out))
    assert (code, len(got)) == (0, len(lines) - 1)
    alarms, scored = got["alarm"].sum(), got["score"].notna().sum()
    assert err == f"{len(got)} rows, {scored} scored, {alarms} alarms, 1 unread\n" + (
        "note: 39 of the scores rest on values that were filled in, for lost rows or missing values\n"
    )
    want = fedgeo.load(fleet / "detector").score_samples(
        data.read_csv(fleet / "test" / "plant-2.csv"), "plant-2"
    )
    np.testing.assert_allclose(got["score"][:149], want[:149], rtol=1e-5)
    assert got["note"][149].startswith("line 151 counts as a lost row: 3 fields, want")
    assert np.isfinite(got["score"][250:]).all()


def test_an_exported_folder_needs_numpy_alone(fleet):
    code, out, err = run("export", fleet / "detector", "--out", fleet / "device")
    assert code == 0, err
    assert "device" in out
    lines = "\n".join((fleet / "test" / "plant-0.csv").read_text().splitlines()[:60])
    command = [sys.executable, "-I", "-c", (
        "import sys; sys.modules.update(jax=None, pandas=None, scipy=None, fedgeo=None); sys.path.insert(0, '.'); "
        "import runtime; sys.exit(runtime.main(['detector', '--client=plant-0']))"
    )]  # fmt: skip
    done = subprocess.run(
        command, cwd=fleet / "device", input=lines, text=True, capture_output=True, timeout=100
    )
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    _, here, _ = run("watch", fleet / "detector", "--client", "plant-0", rows=lines)
    assert done.stdout == here


@pytest.mark.parametrize(
    ("kind", "use"), [("onnx", "rows (T, C) as float64"), ("stablehlo", "load_stablehlo(")]
)
def test_one_client_is_exported_with_how_to_use_it(fleet, kind, use):
    code, out, err = run("export", fleet / "detector", "--to", kind, "--client", "plant-1")
    assert code == 0, err
    assert use in out + err
    assert (fleet / f"detector.{kind}").stat().st_size > 1000


def test_mistakes_are_named(fleet, tmp_path):
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    (tmp_path / "notes").write_text("mine")
    (tmp_path / "empty").mkdir()
    one = fleet / "train" / "plant-0.csv"
    for words, message in (
        (("fit", tmp_path / "nothing.csv"), "no file"),
        (("fit", tmp_path / "empty"), "no .csv or .txt file in"),
        (("fit", one, one), "several files are called plant-0"),
        (
            ("fit", one, "--out", tmp_path / "notes"),
            "is there and is no detector; choose another file with --out",
        ),
        (("fit", one, other), "columns missing"),
        (("score", fleet / "detector", other), "columns missing"),
        (("score", tmp_path / "notes", one), "no detector or is damaged"),
        (
            ("watch", fleet / "detector"),
            "name one of this detector's clients: 'plant-0', 'plant-1', 'plant-2'",
        ),
        (("watch", fleet / "detector", "--client", "x"), "there is no client 'x'"),
        (("score", fleet / "detector", one, "--out", one), "would replace what is read"),
        (("score", fleet / "detector", one, "--out", tmp_path), "is a folder; want the name of a file"),
        (("score", fleet / "detector", tmp_path), "is a folder; want one CSV file"),
        (("score", tmp_path, one), "it is a folder, want the file that fit or save wrote"),
        (("watch", tmp_path), "error: no detector at"),
        (("export", fleet / "detector", "--out", one), "is a file; want a folder"),
        (("export", fleet / "detector", "--to", "onnx", "--out", tmp_path), "is a folder; want the name"),
        (("fit", one, "--out", "/proc/nope/detector"), "cannot write in /proc/nope"),
        (("export", fleet / "detector", "--to", "onnx"), "name one of this detector's clients"),
    ):
        code, _, err = run(*words)
        assert code == 2, words
        assert message in " ".join(err.split()), words
        assert "Traceback" not in err
    assert (tmp_path / "notes").read_text() == "mine"


def test_machines_join_and_are_calibrated_anew(fleet, tmp_path):
    detector = tmp_path / "detector"
    detector.write_bytes((fleet / "detector").read_bytes())
    new = tmp_path / "new" / "plant-9.csv"
    new.parent.mkdir()
    new.write_bytes((fleet / "train" / "plant-1.csv").read_bytes())
    code, out, err = run("join", detector, new.parent)
    assert code == 0, err
    assert "Thresholds, from the rows given for plant-9" in out
    before = fedgeo.load(detector).threshold_
    assert set(before) == {"plant-0", "plant-1", "plant-2", "plant-9"}
    code, out, err = run("recalibrate", detector, fleet / "test" / "plant-2.csv")
    assert code == 0, err
    assert "Thresholds, from the rows given for plant-2" in out
    after = fedgeo.load(detector).threshold_
    assert [name for name in after if after[name] != before[name]] == ["plant-2"]


def test_what_a_reader_of_scores_should_doubt_is_said(fleet, tmp_path):
    other = tmp_path / "other.csv"
    frame = pd.read_csv(fleet / "test" / "plant-0.csv", index_col="time")
    (5 * frame).to_csv(other)
    code, _, err = run("score", fleet / "detector", other, "--client", "plant-0")
    assert code == 0
    assert "taken for rows of plant-0" in err
    assert "recalibrate the detector" in err
    frame.head(10).to_csv(other)
    assert (
        "the first score comes with row 21"
        in run("score", fleet / "detector", other, "--client", "plant-0")[2]
    )


def test_score_and_watch_write_the_same(fleet, tmp_path):
    frame = pd.read_csv(fleet / "test" / "plant-0.csv", index_col="time")
    frame.drop(frame.index[200:230]).assign(label=0).to_csv(tmp_path / "plant-0.csv")
    rows = (tmp_path / "plant-0.csv").read_text()
    code, whole, err = run("score", fleet / "detector", tmp_path / "plant-0.csv")
    assert code == 0
    assert err.count("note: ignored columns: label") == 1
    _, by_row, notes = run("watch", fleet / "detector", "--client", "plant-0", rows=rows)
    assert "note: ignored columns: 'label'" in notes
    whole, by_row = (pd.read_csv(io.StringIO(text)) for text in (whole, by_row))
    assert whole["note"].notna().sum() == 1
    pd.testing.assert_frame_equal(whole, by_row, rtol=1e-4)


def test_watch_doubts_many_alarms_too(fleet):
    frame = 5 * pd.read_csv(fleet / "test" / "plant-0.csv", index_col="time")
    _, _, err = run("watch", fleet / "detector", "--client", "plant-0", rows=frame.to_csv())
    assert "the machine has changed: recalibrate the detector" in err


def test_errors_of_the_system_are_explained(fleet, monkeypatch, capsys):
    class Broken(io.RawIOBase):
        def readable(self):
            return True

        def readinto(self, buffer):
            raise OSError(21, "Is a directory")

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(Broken())))
    assert deploy.main([str(fleet / "detector"), "--client", "plant-0"]) == 2
    assert capsys.readouterr().err == (
        "error: Is a directory at reading rows or writing scores; want lines of CSV on standard input\n"
    )
    error = PermissionError(13, "Permission denied", "a.csv")
    assert deploy.explained(error).startswith("a.csv: Permission denied; check the path")


def test_a_missing_value_and_an_outlier_say_what_to_do(fleet, tmp_path):
    frame = pd.read_csv(fleet / "train" / "plant-0.csv", index_col="time")
    place = frame.columns[1]
    frame.loc[frame.index[50], place] = np.nan
    frame.to_csv(tmp_path / "plant-0.csv")
    code, _, err = run("score", fleet / "detector", tmp_path / "plant-0.csv")
    assert code == 2
    assert "fit again with" in err
    assert "fedgeo fit --missing ffill, or mask" in err
    frame.loc[frame.index[50], place] = -9999
    frame.to_csv(tmp_path / "plant-7.csv")
    (tmp_path / "detector").write_bytes((fleet / "detector").read_bytes())
    code, out, err = run("join", tmp_path / "detector", tmp_path / "plant-7.csv")
    assert code == 0, err
    assert f"the scale of {place} (-9999 in row 50 (2024-01-01 00:50:00" in out


def test_a_stream_that_cannot_be_read_at_all_is_an_error(fleet):
    lines = (fleet / "test" / "plant-0.csv").read_text().replace(",", ";")
    code, _, err = run("watch", fleet / "detector", "--client", "plant-0", rows=lines)
    assert (code, err) == (2, "error: line 1: fields are separated by ';', want commas\n")
    code, _, err = run("watch", fleet / "detector", "--client", "plant-0", rows="a b c\nd e f\n")
    assert code == 1
    assert "no line could be read; want 10 numbers, separated by commas" in err
