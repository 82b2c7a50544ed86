import json
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from fedgeo import cli, evaluation, report, runs
from fedgeo.runs.result import tidy


@pytest.fixture
def call(monkeypatch, tmp_path):
    def invoke(*words):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["fedgeo", *map(str, words)])
        cli.main()

    return invoke


def refused(call, capsys, *words):
    with pytest.raises(SystemExit) as exit_info:
        call(*words)
    assert exit_info.value.code == 2
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err
    return " ".join(captured.err.split())


def test_a_missing_folder_is_a_message(call, capsys):
    message = refused(call, capsys, "run", "fedkad", "--data", "smap", "--root", "/nowhere")
    assert "no folder /nowhere/SMAP_MSL" in message
    assert "FEDGEO_DATA" in message


def test_a_bad_setting_is_a_message(call, capsys):
    message = refused(call, capsys, "run", "fedkad", "--data", "plants", "--rank", 0, "--seeds", 0)
    assert "rank must be a whole number of at least 1, got 0" in message


def test_a_folder_that_cannot_be_is_refused_before_any_work(call, capsys, tmp_path):
    (tmp_path / "file").write_text("")
    message = refused(call, capsys, "run", "geodesic-svdd", "--data", "iris", "--out", tmp_path / "file")
    assert "file" in message


def test_a_nan_in_a_file_is_named(call, capsys, tmp_path, data_root):
    source = data_root / "SMAP_MSL"
    copy = tmp_path / "SMAP_MSL"
    (copy / "train").mkdir(parents=True)
    for part in ("test", "labeled_anomalies.csv"):
        (copy / part).symlink_to(source / part)
    for file in (source / "train").glob("*.npy"):
        (copy / "train" / file.name).symlink_to(file)
    spoiled = np.load(source / "train" / "C-1.npy")
    spoiled[17, 3] = np.nan
    (copy / "train" / "C-1.npy").unlink()
    np.save(copy / "train" / "C-1.npy", spoiled)
    message = refused(call, capsys, "run", "fedkad", "--data", "msl", "--root", tmp_path)
    for part in ("C-1", "train", "17", "nan"):
        assert part in message.lower() or part in message


@pytest.fixture(scope="module")
def result():
    """Scores of two methods and two seeds, evaluated for two classes; nothing is trained."""
    frames = []
    for method, shift in {"untrained encoder": 1.0, "random": 0.0}.items():
        for seed in (0, 1):
            rng = np.random.default_rng([seed, len(method)])
            labels = {name: (rng.random(80) < 0.5).astype(int) for name in ("a", "b")}
            scores = {name: rng.random(80) + shift * y for name, y in labels.items()}
            frame = evaluation.per_client(scores, labels, dict.fromkeys(labels, 0.9))
            youden = {name: rng.random(2) for name in runs.METRICS["class"] if name.startswith("youden_")}
            frames.append(frame.assign(method=method, seed=seed, **youden))
    seconds = pd.DataFrame(
        {"compile": [1.0, 0.0], "run_per_seed": [0.5, 0.25]}, index=["untrained encoder", "random"]
    )
    settings = {"seeds": [0, 1], "quantile": 0.95, "upload_bytes_per_client_and_round": 1234}
    return runs.Result("A method on a set", "class", tidy(frames), seconds, settings, ["a note"])


def test_a_folder_tells_everything(result, tmp_path):
    folder = report.write(result, tmp_path / "deep" / "out")
    assert {p.name for p in folder.iterdir()} == {
        "table.md",
        "table.csv",
        "units.csv",
        "seconds.csv",
        "run.json",
    }
    table = pd.read_csv(folder / "table.csv", index_col="method")
    assert list(table.index) == list(result.table().index)
    np.testing.assert_allclose(table["auroc"], result.table()["auroc"].astype(float), atol=1e-3)
    record = json.loads((folder / "run.json").read_text())
    assert record["made_by"]["versions"].keys() >= {"fedgeo", "jax", "numpy"}
    assert record["settings"]["seeds"] == [0, 1]
    text = (folder / "table.md").read_text()
    for row in result.table().index:
        assert f"| {row}" in text
    for part in (
        "## Wall time",
        "## Settings",
        "## Made by",
        "no test label was used",
        "0.95 quantile",
        "- a note",
        "1,234 bytes",
    ):
        assert part in text


def test_a_table_fits_eighty_columns(result, capsys):
    cli._print_table(report.shown(result), result.name)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)


def test_no_number_is_ever_cut(capsys):
    wide = pd.DataFrame({f"a long heading {k}": ["100.0±10.5"] for k in range(12)}, index=pd.Index(["row"]))
    cli._print_table(wide)
    out = capsys.readouterr().out
    assert out.count("100.0±10.5") == 12
    assert "…" not in out


def test_undefined_is_said():
    assert report._mean_and_spread(float("nan"), float("nan")) == "undefined"
    assert report._mean_and_spread(50.04, float("nan")) == "50.0"
    assert report._mean_and_spread(50.04, 1.26) == "50.0±1.3"


def test_the_picture_is_written(tmp_path):
    rng = np.random.default_rng(0)
    scores = np.concatenate([np.full(4, np.nan), rng.random(96) + 0.1])
    labels = (np.arange(100) // 10 == 5).astype(int)
    path = tmp_path / "stream.png"
    report.plot_stream(
        path, rng.standard_normal((100, 2)), scores, 0.9, labels, channels=("a", "b"), title="A stream"
    )
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_demo_leaves_tables_and_a_picture(tmp_path):
    environment = {
        name: value for name, value in os.environ.items() if name != "XLA_FLAGS"
    }  # as users have it
    command = [sys.executable, "-m", "fedgeo", "demo", "--seeds", "0"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "results" / "demo"
    assert (out / "stream.png").stat().st_size > 10_000
    for method in ("fedkad", "geodesic-svdd"):
        assert (out / method / "table.md").exists()
    assert "random" in done.stdout
