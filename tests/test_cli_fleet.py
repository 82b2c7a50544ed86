"""From machines' CSV files to alarms, as their owner does it: fit, score, watch, export."""

import io
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import fedgeo
from fedgeo import cli, data


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
    got = pd.read_csv(io.StringIO(out), index_col="time", parse_dates=True)
    frame = data.read_csv(fleet / "test" / f"{name}.csv")
    model = fedgeo.load(fleet / "detector")
    want = model.score_samples(frame, name)
    assert (got.index == frame.index).all()
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
    assert (code, err) == (0, "")
    got = pd.read_csv(io.StringIO(out))
    assert len(got) == len(lines) - 1
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
    assert (done.returncode, done.stderr) == (0, "")
    _, here, _ = run("watch", fleet / "detector", "--client", "plant-0", rows=lines)
    assert done.stdout == here


@pytest.mark.parametrize("kind", ["onnx", "stablehlo"])
def test_one_client_is_exported(fleet, kind):
    code, _, err = run("export", fleet / "detector", "--to", kind, "--client", "plant-1")
    assert code == 0, err
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
        (("export", fleet / "detector", "--to", "onnx"), "name one of this detector's clients"),
    ):
        code, _, err = run(*words)
        assert code == 2, words
        assert message in " ".join(err.split()), words
        assert "Traceback" not in err
    assert (tmp_path / "notes").read_text() == "mine"
