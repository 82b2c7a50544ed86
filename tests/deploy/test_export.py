"""Exported detectors score as the file that they were made of; JAX's own scores are the measure."""

import itertools
import json
import re
import shlex
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from fedgeo import data
from fedgeo.deploy import export, runtime
from tests.deploy.detectors import Fitted, Made, MadeRows, close

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

SETTINGS = [
    (residual, scale, *shape)
    for (residual, scale), shape in zip(
        itertools.product(("newest", "full"), ("none", "variance", "log")),
        itertools.cycle([(1, 20), (3, 1), (3, 20)]),
        strict=False,
    )
]


def session(file):
    return onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])


def agree(made, client, x, folder):
    """JAX, ONNX and the program."""
    k = made.clients.index(client)
    want, threshold = made.score(x, k), made.thresholds[k]
    scores, alarms = session(export.to_onnx(made.path, folder / "a.onnx", client)).run(None, {"rows": x})
    close(scores, want, threshold)
    np.testing.assert_array_equal(alarms, scores > threshold)
    program = export.load_stablehlo(export.to_stablehlo(made.path, folder / "a.program", client))
    scores = program.score(x)
    close(scores, want, threshold)
    np.testing.assert_array_equal(program.alarms(scores), scores > threshold)
    assert 0 < alarms.sum() < len(x) / 2
    # Constraints on T are checked by the one custom call that JAX keeps stable.
    assert set(re.findall(r"custom_call @(\w+)", program.exported.mlir_module())) <= {"shape_assertion"}
    assert program.exported.platforms == ("cpu",)


@pytest.mark.parametrize(("residual", "scale", "horizon", "smoothing"), SETTINGS)
def test_streams_score_as_in_jax(residual, scale, horizon, smoothing, newest, full, x, tmp_path):
    fitted = {"newest": newest, "full": full}[residual]
    made = Made(tmp_path / "d", fitted, scale=scale, horizon=horizon, smoothing=smoothing)
    agree(made, "machine 1", x, tmp_path)


@pytest.mark.parametrize(("name", "residual", "scale"), [("smap", "full", "none"), ("smd", "newest", "log")])
def test_a_real_client_scores_as_in_jax(name, residual, scale, data_root, tmp_path):
    streams = {"smap": data.smap, "smd": data.smd}[name](data_root)
    client = streams.names[0]
    fitted = Fitted(streams.train[client][None, :2000], residual, window=20, size=128, rank=24)
    agree(Made(tmp_path / "d", fitted, scale=scale), "machine 0", streams.test[client][-2000:], tmp_path)


@pytest.fixture
def exported(newest, tmp_path):
    made = Made(tmp_path / "d", newest, horizon=2)
    return (
        made,
        session(export.to_onnx(made.path, tmp_path / "a.onnx", "machine 1")),
        export.load_stablehlo(export.to_stablehlo(made.path, tmp_path / "a.program", "machine 1")),
    )


def test_any_number_of_rows(exported, x):
    made, graph, program = exported
    whole = made.score(x, 1)
    for steps in (1, 3, 5, 6, 50):
        for scores in (graph.run(None, {"rows": x[:steps]})[0], program.score(x[:steps])):
            assert scores.shape == (steps,)
            np.testing.assert_allclose(scores, whole[:steps], rtol=1e-5)


def test_a_missing_value_blinds_its_windows_and_gives_no_alarm(exported, x):
    made, graph, program = exported
    x = x.copy()
    x[100, 2] = np.nan
    scores, alarms = graph.run(None, {"rows": x})
    for got in (scores, program.score(x)):
        assert np.isnan(got[100 : 100 + made.fitted.window + made.horizon]).all()
        close(got[120:], made.score(x, 1)[120:])
    assert not alarms[100:106].any()


def test_an_infinite_value_is_an_alarm(exported, x):
    made, graph, program = exported
    x = x.copy()
    x[100, 2] = -np.inf
    scores, alarms = graph.run(None, {"rows": x})
    assert alarms[100]
    close(scores, made.score(x, 1), made.thresholds[1])
    close(program.score(x), made.score(x, 1), made.thresholds[1])


def test_a_client_without_threshold_never_alarms(newest, x, tmp_path):
    made = Made(tmp_path / "d", newest)
    arrays = {**made.arrays, "threshold": np.array([1.0, np.nan])}
    runtime.write(made.path, made.about, arrays)
    scores, alarms = session(export.to_onnx(made.path, tmp_path / "a.onnx", "machine 1")).run(
        None, {"rows": x}
    )
    assert np.isfinite(scores[10:]).all()
    assert not alarms.any()


def test_the_metadata_say_what_the_graph_is(exported):
    made, graph, program = exported
    facts = graph.get_modelmeta().custom_metadata_map
    assert json.loads(facts["columns"]) == made.columns
    assert float(facts["threshold"]) == made.thresholds[1]
    assert (facts["method"], facts["client"], facts["warm_up"]) == ("fedkad", "machine 1", "5")
    assert program.about["columns"] == made.columns
    assert program.about["client"] == "machine 1"
    assert program.threshold == made.thresholds[1]


def test_experts_score_as_in_jax(rows, tmp_path):
    x = rows.train.reshape(-1, 6)[:100].copy()
    want = rows.score(x)
    graph = session(export.to_onnx(rows.path, tmp_path / "a.onnx"))
    scores, alarms = graph.run(None, {"rows": x})
    close(scores, want)
    np.testing.assert_array_equal(alarms, scores > rows.arrays["threshold_all"])
    program = export.load_stablehlo(export.to_stablehlo(rows.path, tmp_path / "a.program", "bank 2"))
    close(program.score(x), want)
    assert program.threshold == rows.arrays["threshold"][2]
    assert 0 < program.alarms(want).sum() < 100


def test_missing_features_are_the_training_centre_where_the_detector_says_so(tmp_path):
    made = MadeRows(tmp_path / "d", missing="center")
    x = made.train[0].copy()
    x[3, 2] = x[5, 0] = np.nan
    filled = np.where(np.isnan(x), made.center, x)
    want = runtime.load(made.path).score(filled)
    assert np.isfinite(want).all()
    scores, _ = session(export.to_onnx(made.path, tmp_path / "a.onnx")).run(None, {"rows": x})
    close(scores, want)
    close(export.load_stablehlo(export.to_stablehlo(made.path, tmp_path / "a.program")).score(x), want)
    close(runtime.load(made.path).score(x), want)


def test_experts_at_zero_score_as_in_the_runtime(rows, tmp_path):
    zero = {n: np.zeros_like(a) if n.startswith("params.") else a for n, a in rows.arrays.items()}
    path = runtime.write(tmp_path / "zero", rows.about, zero)
    scores, _ = session(export.to_onnx(path, tmp_path / "a.onnx")).run(None, {"rows": rows.train[0]})
    close(scores, runtime.load(path).score(rows.train[0]))


def test_a_folder_for_a_device(newest, x, tmp_path):
    made = Made(tmp_path / "the pumps.fedgeo", newest)
    for _ in range(2):  # a second time over the first
        folder = export.to_runtime(made.path, tmp_path / "device")
    assert {file.name for file in folder.iterdir()} == {"runtime.py", "the pumps.fedgeo", "README.txt"}
    text = (folder / "README.txt").read_text()
    assert text.count("\n") == 3
    command = re.search(r"python (runtime\.py .*) < rows\.csv", text)[1]
    assert shlex.split(command) == ["runtime.py", "the pumps.fedgeo", "--client", "machine 0"]
    done = subprocess.run(
        [sys.executable, *shlex.split(command)],
        cwd=folder,
        input="".join(",".join(map(repr, row)) + "\n" for row in x[:30].tolist()),
        capture_output=True,
        text=True,
        check=True,
    )
    table = pd.DataFrame([line.split(",") for line in done.stdout.splitlines()[1:]])
    got = pd.to_numeric(table[2]).to_numpy()
    np.testing.assert_allclose(got, made.loaded.score(x[:30], "machine 0"), rtol=1e-6)


def test_errors_come_before_files(newest, tmp_path):
    made = Made(tmp_path / "d", newest)
    for write in (export.to_onnx, export.to_stablehlo):
        with pytest.raises(ValueError, match="no client 'pump'"):
            write(made.path, tmp_path / "a", "pump")
        with pytest.raises(ValueError, match="the detector itself"):
            write(made.path, made.path, "machine 1")
        with pytest.raises(FileNotFoundError, match="no detector"):
            write(tmp_path / "nothing", tmp_path / "a", "machine 1")
        assert not (tmp_path / "a").exists()
    with pytest.raises(FileNotFoundError, match="no detector"):
        export.to_runtime(tmp_path / "nothing", tmp_path / "device")
    program = export.to_stablehlo(made.path, tmp_path / "a.program", "machine 1")
    with pytest.raises(ValueError, match=r"no fedgeo detector: its detector\.json says 'fedgeo program'"):
        runtime.load(program)
    with pytest.raises(ValueError, match="no fedgeo program"):
        export.load_stablehlo(made.path)


def test_without_onnx_the_extra_is_named(newest, tmp_path, monkeypatch):
    made = Made(tmp_path / "d", newest)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match=r'pip install "fedgeo\[onnx\]"'):
        export.to_onnx(made.path, tmp_path / "a.onnx", "machine 1")
