from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedgeo.data import server_metrics

ROWS, TEST_ROWS, CHANNELS = 50, 31, 5


def _write(folder: Path) -> Path:
    """A small PSM in the published layout: values missing in train, at its start and in a row, and labels."""
    rng = np.random.default_rng(0)
    (folder / "PSM").mkdir()
    names = [f"feature_{c}" for c in range(CHANNELS)]
    for part, rows in (("train", ROWS), ("test", TEST_ROWS)):
        table = pd.DataFrame(rng.random((rows, CHANNELS)).round(6), columns=names)
        if part == "train":
            table.loc[:1, "feature_1"] = np.nan
            table.loc[20:22, "feature_3"] = np.nan
        table.insert(0, "timestamp_(min)", np.arange(rows, dtype=float))
        table.to_csv(folder / "PSM" / f"{part}.csv", index=False)
    labels = pd.DataFrame(
        {"timestamp_(min)": np.arange(TEST_ROWS), "label": (np.arange(TEST_ROWS) > 26).astype(int)}
    )
    labels.to_csv(folder / "PSM" / "test_label.csv", index=False)
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return _write(tmp_path)


def _raw(root: Path, part: str) -> pd.DataFrame:
    return pd.read_csv(root / "PSM" / f"{part}.csv").drop(columns="timestamp_(min)")


def test_pool_is_the_files_without_their_clock(root: Path) -> None:
    pool = server_metrics.psm_pool(root)
    assert list(pool.train.columns) == [f"feature_{c}" for c in range(CHANNELS)]
    pd.testing.assert_frame_equal(pool.test, _raw(root, "test"))
    assert pool.labels.tolist() == [0] * 27 + [1] * 4
    assert pool.filled["train"].tolist() == [0, 2, 0, 3, 0]
    assert pool.filled["test"].sum() == 0


def test_missing_values_take_their_predecessor_or_what_was_asked_for(root: Path) -> None:
    raw = _raw(root, "train")
    held = server_metrics.psm_pool(root).train
    assert (held["feature_3"][20:23] == raw["feature_3"][19]).all()
    assert (held["feature_1"][:2] == raw["feature_1"][2]).all()
    pd.testing.assert_frame_equal(held[raw.notna()], raw)
    zero = server_metrics.psm_pool(root, missing="zero").train
    assert zero[raw.isna()].sum().sum() == 0
    assert np.isfinite(zero).all(axis=None)
    with pytest.raises(ValueError, match=r"train.csv: row 0, channel feature_1 is missing \(5 such values\)"):
        server_metrics.psm_pool(root, missing="error")


def test_chunks_are_contiguous_and_hold_every_row_once(root: Path) -> None:
    streams = server_metrics.psm(root, clients=4, partition="chunks")
    pool = server_metrics.psm_pool(root)
    assert streams.names == ("psm-00", "psm-01", "psm-02", "psm-03")
    assert [len(x) for x in streams.train.values()] == [13, 13, 12, 12]
    np.testing.assert_array_equal(np.concatenate(list(streams.train.values())), pool.train)
    for name in streams.names:
        np.testing.assert_array_equal(streams.test[name], pool.test)
        np.testing.assert_array_equal(streams.labels[name], pool.labels)
    assert streams.channels == tuple(pool.train.columns)
    assert len(server_metrics.psm(root)) == 24


def test_test_stream_can_be_cut_too(root: Path) -> None:
    streams = server_metrics.psm(root, clients=4, partition="chunks", test="chunks")
    np.testing.assert_array_equal(
        np.concatenate(list(streams.test.values())), server_metrics.psm_pool(root).test
    )
    assert streams.summary()["anomalies"].tolist() == [0, 0, 0, 4]


def test_unobserved_channels_stand_still_at_the_mean(root: Path) -> None:
    streams = server_metrics.psm(root, clients=6, seed=3)
    whole = server_metrics.psm(root, clients=6, partition="chunks")
    seen = server_metrics.observed_channels(CHANNELS, 6, seed=3)
    mean = server_metrics.psm_pool(root).train.mean().to_numpy()
    assert 0 < seen.sum() < seen.size
    for observed, name in zip(seen, streams.names, strict=True):
        for part, complete in ((streams.train, whole.train), (streams.test, whole.test)):
            np.testing.assert_array_equal(part[name][:, observed], complete[name][:, observed])
            assert (part[name][:, ~observed] == mean[~observed]).all()


def test_clients_observe_different_channels_and_fewer_as_alpha_falls() -> None:
    share = {a: server_metrics.observed_channels(25, 200, a).mean() for a in (1e-3, 0.05, 0.5, 5.0, 1e6)}
    assert list(share.values()) == sorted(share.values())
    assert share[1e-3] == pytest.approx(1 / 25, abs=0.01)
    assert share[1e6] > 0.85
    seen = server_metrics.observed_channels(25, 24)
    assert seen.any(axis=1).all()
    assert len({tuple(row) for row in seen}) == 24
    assert server_metrics.observed_channels(25, 24, coverage=1.0).mean() > 0.99
    np.testing.assert_array_equal(seen, server_metrics.observed_channels(25, 24))
    assert (seen != server_metrics.observed_channels(25, 24, seed=1)).any()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"clients": 51}, "clients=51; want from 1 to 50, the rows"),
        ({"clients": 0}, "clients=0; want from 1"),
        ({"clients": -1}, "clients=-1; want from 1"),
        ({"clients": 40, "test": "chunks"}, "clients=40; want from 1 to 31"),
        ({"partition": "iid"}, "partition='iid', test='shared'; want"),
        ({"test": "whole"}, "test='whole'; want"),
        ({"missing": "drop"}, 'missing=\'drop\'; want "ffill", "zero" or "error"'),
        ({"alpha": 0.0}, "alpha=0.0; want a positive finite concentration"),
        ({"coverage": 0.0}, r"coverage=0.0; want a share in \(0, 1\]"),
    ],
)
def test_arguments_out_of_range_are_named(root: Path, how: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        server_metrics.psm(root, **how)


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        (
            "test",
            lambda t: t.drop(columns="feature_0"),
            "train.csv has the channels .*feature_0.* same release",
        ),
        ("test", lambda t: t[:-1], "got 31 labels for 30 test rows"),
        ("test_label", lambda t: t.rename(columns={"label": "y"}), "test_label.csv has the columns .*, want"),
        ("test_label", lambda t: t.assign(label=2), r"labels: got values 2, want 0 \(normal\)"),
        ("train", lambda t: t.assign(feature_2="high"), "column feature_2 holds text"),
        ("train", lambda t: t.assign(feature_2=np.nan), "train.csv: channel feature_2 has no value at all"),
        ("train", lambda t: t[["timestamp_(min)"]], "holds no measurements"),
    ],
)
def test_files_that_do_not_fit_are_named(root: Path, part: str, change, message: str) -> None:
    path = root / "PSM" / f"{part}.csv"
    change(pd.read_csv(path)).to_csv(path, index=False)
    with pytest.raises(ValueError, match=message):
        server_metrics.psm(root, clients=2)


def test_absent_and_broken_files_are_named(root: Path, tmp_path: Path) -> None:
    (root / "PSM" / "test_label.csv").write_text("")
    with pytest.raises(ValueError, match="is not a readable table"):
        server_metrics.psm(root)
    (root / "PSM" / "test_label.csv").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"Want PSM/train\.csv, PSM/test\.csv and PSM/test_label\.csv"
    ):
        server_metrics.psm(root / "PSM")
    with pytest.raises(FileNotFoundError, match=r"no folder .*PSM"):
        server_metrics.psm(tmp_path / "elsewhere")
