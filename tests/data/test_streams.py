from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedgeo.data import streams


def _clients(lengths: dict[str, int], channels: int = 3) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=(n, channels)) for name, n in lengths.items()}


def _write_telemanom(root: Path, records: list[str], lengths: dict[str, int]) -> Path:
    folder = root / "SMAP_MSL"
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True)
        for name, x in _clients(lengths).items():
            np.save(folder / part / f"{name}.npy", x)
    header = "chan_id,spacecraft,anomaly_sequences,class,num_values"
    (folder / "labeled_anomalies.csv").write_text("\n".join([header, *records]))
    return folder


@pytest.fixture
def published(tmp_path: Path) -> Path:
    records = [
        'P-2,SMAP,"[[10, 12]]",[point],40',
        'A-1,SMAP,"[[0, 0], [18, 19]]","[point, point]",20',
        'P-2,SMAP,"[[12, 15]]",[point],40',
        'M-6,MSL,"[[5, 9]]",[point],30',
    ]
    _write_telemanom(tmp_path, records, {"A-1": 20, "P-2": 40, "M-6": 30})
    return tmp_path


def test_telemanom_layout_is_read_with_inclusive_spans_and_union_of_repeated_clients(published: Path) -> None:
    smap = streams.smap(published)
    assert smap.names == ("A-1", "P-2")
    assert np.flatnonzero(smap.labels["A-1"]).tolist() == [0, 18, 19]
    assert np.flatnonzero(smap.labels["P-2"]).tolist() == list(range(10, 16))
    assert smap.train["P-2"].shape == smap.test["P-2"].shape == (40, 3)
    assert smap.channels == ("telemetry", "command-1", "command-2")
    assert streams.msl(published).names == ("M-6",)


def test_root_may_be_the_folder_itself_or_come_from_the_environment(
    published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert streams.smap(published / "SMAP_MSL").names == ("A-1", "P-2")
    monkeypatch.setenv("FEDGEO_DATA", str(published))
    assert streams.smap().names == ("A-1", "P-2")


def test_missing_data_say_what_was_looked_for_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDGEO_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match=r"FEDGEO_DATA is not set.*telemanom"):
        streams.smap()
    with pytest.raises(FileNotFoundError, match=r"nowhere/SMAP_MSL.*telemanom.*FEDGEO_DATA"):
        streams.smap(tmp_path / "nowhere")
    folder = _write_telemanom(tmp_path, ['A-1,SMAP,"[[0, 1]]",[point],20'], {"A-1": 20})
    (folder / "test" / "A-1.npy").unlink()
    with pytest.raises(FileNotFoundError, match=r"no file .*test/A-1\.npy.*Want SMAP_MSL/labeled_anomalies"):
        streams.smap(tmp_path)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ('A-1,SMAP,"[[0, 1]]",[point],21', "A-1: the test file has 20 rows, labeled_anomalies.csv states 21"),
        ('A-1,SMAP,"[[15, 20]]",[point],20', r"A-1: span \[15, 20\] is outside its 20 test rows"),
        ('A-1,MSL,"[[0, 1]]",[point],20', "names no client of spacecraft SMAP"),
    ],
)
def test_label_table_that_does_not_fit_is_refused(tmp_path: Path, record: str, message: str) -> None:
    _write_telemanom(tmp_path, [record], {"A-1": 20})
    with pytest.raises(ValueError, match=message):
        streams.smap(tmp_path)


def test_broken_files_are_named(published: Path) -> None:
    folder = published / "SMAP_MSL"
    x = np.load(folder / "train" / "P-2.npy")
    x[7, 2] = np.nan
    np.save(folder / "train" / "P-2.npy", x)
    with pytest.raises(ValueError, match=r"client P-2, train: row 7, channel command-2 is nan"):
        streams.smap(published)
    whole = (folder / "test" / "A-1.npy").read_bytes()
    (folder / "test" / "A-1.npy").write_bytes(whole[:-40])
    with pytest.raises(ValueError, match=r"A-1\.npy is not a readable \.npy file"):
        streams.smap(published)
    (folder / "labeled_anomalies.csv").write_text("chan_id,num_values\nA-1,20\n")
    with pytest.raises(ValueError, match="lacks the column spacecraft, anomaly_sequences"):
        streams.smap(published)


@pytest.fixture
def machines(tmp_path: Path) -> Path:
    for part, columns in (("train", 2), ("test", 2), ("test_label", 1)):
        (tmp_path / "SMD" / part).mkdir(parents=True)
        for name, rows in (("machine-1-10", 6), ("machine-1-2", 4)):
            values = np.arange(rows * columns).reshape(rows, columns) % 2
            np.savetxt(tmp_path / "SMD" / part / f"{name}.txt", values, fmt="%.6f", delimiter=",")
    return tmp_path


def test_smd_layout_is_read_in_the_order_of_the_machines(machines: Path) -> None:
    smd = streams.smd(machines)
    assert smd.names == ("machine-1-2", "machine-1-10")
    assert smd.train["machine-1-10"].shape == (6, 2)
    assert smd.labels["machine-1-2"].tolist() == [0, 1, 0, 1]
    assert len(smd.channels) == 2


def test_smd_files_that_are_absent_or_broken_are_named(machines: Path) -> None:
    label = machines / "SMD" / "test_label" / "machine-1-2.txt"
    label.write_text("0,1\n" * 4)
    with pytest.raises(ValueError, match="client machine-1-2, labels: got 2 columns"):
        streams.smd(machines)
    label.write_text("zero\n" * 4)
    with pytest.raises(ValueError, match=r"machine-1-2\.txt is not a table of comma-separated numbers"):
        streams.smd(machines)
    label.unlink()
    with pytest.raises(FileNotFoundError, match=r"no file .*test_label/machine-1-2\.txt.*OmniAnomaly"):
        streams.smd(machines)
    (machines / "nothing" / "SMD").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=r"no machine-\*\.txt in .*Want SMD/train"):
        streams.smd(machines / "nothing")


def test_from_arrays_keeps_values_names_and_order() -> None:
    train, test = _clients({"b": 8, "a": 5}), _clients({"a": 4, "b": 6})
    labels = {"a": [0, 1, 1, 0], "b": np.zeros(6, dtype=bool)}
    made = streams.from_arrays(train, test, labels, name="mine")
    assert made.names == tuple(made.test) == tuple(made.labels) == ("b", "a")
    np.testing.assert_array_equal(made.train["b"], train["b"])
    assert made.labels["a"].tolist() == [0, 1, 1, 0]
    assert made.channels == ("0", "1", "2")
    summary = made.summary()
    assert summary.loc["a", ["train_rows", "test_rows", "anomalies", "segments"]].tolist() == [5, 4, 2, 1]
    assert summary.loc["b", "anomaly_ratio"] == 0.0
    assert made.select(["a"]).names == ("a",)
    with pytest.raises(ValueError, match="no client c in mine; it has b, a"):
        made.select(["c"])


def test_from_arrays_takes_frames_and_lists() -> None:
    frame = pd.DataFrame({"pressure": [1, 2, 3], "flow": [0.5, 0.6, 0.7]})
    made = streams.from_arrays([frame, frame.iloc[:2]])
    assert made.names == ("client-0", "client-1")
    assert made.channels == ("pressure", "flow")
    np.testing.assert_array_equal(made.train["client-1"], [[1.0, 0.5], [2.0, 0.6]])
    assert made.test == {}
    assert np.isnan(made.summary().loc["client-0", "anomaly_ratio"])


GOOD = {"a": np.zeros((4, 2))}
FRAME = pd.DataFrame({"p": [1.0, 2.0], "q": [1.0, 2.0]})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"train": {}}, "train holds no clients"),
        ({"train": np.zeros((4, 2))}, "train is a single ndarray; want one a client"),
        ({"train": FRAME}, "train is a single DataFrame; want one a client"),
        ({"train": {"a": np.zeros(4)}}, r"client a, train: got shape \(4,\), want \(T, C\).*x\[:, None\]"),
        ({"train": {"a": np.zeros((4, 0))}}, r"got shape \(4, 0\), want \(T, C\)"),
        ({"train": GOOD | {"b": np.zeros((4, 3))}}, "client b, train: got 3 channels, want 2"),
        ({"train": {"a": np.zeros((4, 2), complex)}}, "client a, train: got values of type complex128"),
        ({"train": {"a": [["x", "y"]]}}, "client a, train: got values of type <U1"),
        ({"train": {"a": FRAME, "b": FRAME[["q", "p"]]}}, "client b, train: columns are q, p, want p, q"),
        ({"train": {"a": FRAME.assign(q=["x", "y"])}}, "client a, train: column q is not numeric"),
        ({"train": GOOD, "test": {"b": np.zeros((4, 2))}}, "test does not hold .* missing a, unknown b"),
        ({"train": GOOD, "test": {"a": [[0, 1], [np.inf, 0]]}}, "client a, test: row 1, channel 0 is inf"),
        ({"train": GOOD, "labels": {"a": [0] * 4}}, "labels without test streams"),
        ({"train": GOOD, "test": GOOD, "labels": {"a": [0] * 3}}, "client a, labels: got 3 labels for 4"),
        ({"train": GOOD, "test": GOOD, "labels": {"a": np.zeros((4, 1))}}, r"labels: got shape \(4, 1\)"),
        ({"train": GOOD, "test": GOOD, "labels": {"a": [0, 1, 2, 0]}}, "labels: got values 0, 1, 2, want 0"),
        (
            {"train": GOOD, "test": GOOD, "labels": {"a": [0, np.nan, 1, 0]}},
            "labels: got values 0.0, 1.0, nan",
        ),
    ],
)
def test_from_arrays_refuses_by_name(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        streams.from_arrays(**arguments)


def test_missing_value_in_a_frame_is_named() -> None:
    frame = pd.DataFrame({"p": pd.array([1, None, 3], dtype="Int64"), "q": [1.0, 2.0, 3.0]})
    with pytest.raises(ValueError, match="client a, train: row 1, channel p is nan"):
        streams.from_arrays({"a": frame})


def test_temporal_split_cuts_in_time_order() -> None:
    x = np.arange(200.0).reshape(100, 2)
    train, validation = streams.temporal_split(x)
    assert (len(train), len(validation)) == (85, 15)
    np.testing.assert_array_equal(np.concatenate([train, validation]), x)
    heads, tails = streams.split({"a": x, "b": x[:0]}, 0.5)
    assert (len(heads["a"]), len(tails["a"]), len(heads["b"]), len(tails["b"])) == (50, 50, 0, 0)
    with pytest.raises(ValueError, match=r"validation=1\.5; want a share in \[0, 1\)"):
        streams.temporal_split(x, 1.5)


@pytest.mark.parametrize(
    ("load", "clients", "channels", "rows", "anomalies"),
    [(streams.smap, 54, 25, 435_826, 0.1284), (streams.msl, 27, 55, 73_729, 0.1053)],
)
def test_published_sets_have_their_published_counts(
    data_root: Path, load, clients: int, channels: int, rows: int, anomalies: float
) -> None:
    made = load(data_root)
    summary = made.summary()
    assert (len(made), len(made.channels)) == (clients, channels)
    assert summary["test_rows"].sum() == rows
    assert round(summary["anomalies"].sum() / rows, 4) == anomalies
    assert summary["segments"].min() >= 1


@pytest.mark.slow
def test_published_machines_have_their_published_shape(data_root: Path) -> None:
    """The published set has 28 machines; a copy may hold fewer."""
    if not (data_root / "SMD").is_dir():
        pytest.skip(f"no folder SMD in {data_root}")
    smd = streams.smd(data_root)
    assert len(smd.channels) == 38
    assert 1 <= len(smd) <= 28
    summary = smd.summary()
    assert summary["train_rows"].min() > 20_000
    assert summary["segments"].min() >= 1
    if len(smd) == 28:
        assert summary["train_rows"].sum() == 708_405
        assert summary["test_rows"].sum() == 708_420


def test_names_that_would_be_one_are_refused() -> None:
    x = np.ones((5, 2))
    with pytest.raises(ValueError, match="several clients called 1"):
        streams.from_arrays({1: x, "1": x})
    with pytest.raises(ValueError, match="several channels are called a"):
        streams.from_arrays([pd.DataFrame(x, columns=["a", "a"])])
