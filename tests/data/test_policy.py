"""The input policy: what is refused, what is put in order, where runs of rows begin."""

import re

import numpy as np
import pandas as pd
import pytest

import fedgeo as fg
from fedgeo.data import policy

COLUMNS = ("flow", "heat", "load")


def frame(rows=6, start="2024-03-01"):
    values = np.arange(3.0 * rows).reshape(rows, 3)
    return pd.DataFrame(values, pd.date_range(start, periods=rows, freq="s"), columns=list(COLUMNS))


def read(value, **options):
    return policy.read(value, COLUMNS, "client a", **options)


def test_frames_and_arrays_give_the_same_numbers():
    x = frame()
    found = read(x)
    np.testing.assert_array_equal(found.values, x.to_numpy())
    assert found.index.equals(x.index)
    assert read(x.to_numpy()).index is None
    np.testing.assert_array_equal(read(x.to_numpy(np.int8)).values, x.to_numpy())
    assert found.values.dtype == np.float64


def test_columns_are_put_in_order_by_name():
    x = frame()
    np.testing.assert_array_equal(read(x[["load", "flow", "heat"]]).values, x.to_numpy())


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (frame().rename(columns={"heat": "temperature"}), "missing: heat; unexpected: temperature"),
        (frame().drop(columns="load"), "missing: load; unexpected: none"),
        (frame().assign(extra=1.0), "missing: none; unexpected: extra"),
        (frame().set_axis(["flow", "flow", "load"], axis=1), "several columns are called flow"),
        (frame().assign(heat="warm"), "column heat is not numeric"),
        (
            frame().assign(heat=pd.Timestamp("2024-01-01")),
            "column heat is not numeric.*index if it holds time",
        ),
        (np.zeros((5, 2)), r"got 2 columns, want 3 \(flow, heat, load\)"),
        (np.zeros(5), r"one dimension, shape \(5,\), want \(T, 3\).*x\[None\]"),
        (pd.Series([1.0, 2.0]), r"one dimension"),
        (np.zeros((2, 3, 3)), r"got shape \(2, 3, 3\)"),
        (None, "got a NoneType"),
        ([[1.0, 2.0, 3.0], [1.0]], "rows differ in length"),
        (np.array([["a", "b", "c"]]), "values of type <U1, want numbers"),
    ],
)
def test_what_has_the_wrong_form_is_named(value, message):
    with pytest.raises(ValueError, match="client a.*" + message):
        read(value)


def test_missing_and_infinite_values_are_named_by_place():
    x = frame()
    x.iloc[4, 1] = np.nan
    with pytest.raises(
        ValueError, match=r"row 4 \(2024-03-01 00:00:04\), column heat is missing \(1 missing"
    ):
        read(x)
    with pytest.raises(ValueError, match="row 4, column heat is missing"):
        read(x.to_numpy())
    assert np.isnan(read(x, missing="mask").values[4, 1])
    nullable = x.astype("Float64")
    assert np.isnan(read(nullable, missing="ffill").values[4, 1])
    x.iloc[2, 2] = -np.inf
    for missing in ("error", "ffill", "mask"):
        with pytest.raises(ValueError, match=re.escape("column load is -inf (1 infinite")):
            read(x, missing=missing)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([0, 1, 3, 2, 4], r"row 3 \(2024-03-01 00:00:02\) is earlier than row 2 .*sort_index"),
        ([0, 1, 2, 2, 3], r"rows 2 and 3 have the same time stamp 2024-03-01 00:00:02"),
    ],
)
@pytest.mark.parametrize("kind", ["naive", "zoned", "elapsed", "period", "coarse"])
def test_time_stamps_that_cannot_be_are_named(order, message, kind):
    x = frame().iloc[order]
    if kind == "zoned":
        x, message = x.tz_localize("Europe/Rome"), message.replace(r"02\)", r"02\+01:00\)")
    elif kind == "elapsed":
        x, message = x.set_axis(x.index - x.index[0], axis=0), message.replace("2024-03-01", "0 days")
    elif kind == "period":
        x = x.set_axis(pd.PeriodIndex(x.index, freq="s"), axis=0)
    elif kind == "coarse":
        x = x.set_axis(x.index.as_unit("s"), axis=0)
    with pytest.raises(ValueError, match=message):
        read(x)
    assert read(x, ordered=False).index.equals(x.index)


def test_a_row_without_a_time_stamp_is_named():
    x = frame()
    x.index = x.index.where(np.arange(6) != 3)
    with pytest.raises(ValueError, match="row 3 has no time stamp"):
        read(x)


def test_other_indexes_are_left_alone():
    x = frame().set_axis([3, 1, 2, 2, 0, 9], axis=0)
    assert list(read(x).index) == [3, 1, 2, 2, 0, 9]
    assert policy.usual_interval(x.index) is None
    np.testing.assert_array_equal(policy.run_starts(x.index, 6, 1.0), [0])


def test_runs_begin_behind_gaps():
    stamps = pd.DatetimeIndex(pd.date_range("2024-01-01", periods=10, freq="10s").delete([3, 4, 7]))
    assert policy.usual_interval(stamps) == 10
    np.testing.assert_array_equal(policy.run_starts(stamps, 7, 10.0), [0, 3, 5])
    np.testing.assert_array_equal(policy.run_starts(stamps, 7, 100.0), [0])
    np.testing.assert_array_equal(policy.run_starts(stamps, 7, None), [0])
    np.testing.assert_array_equal(policy.run_starts(stamps[:0], 0, 10.0), [])
    jitter = stamps[:3] + pd.to_timedelta([0, 4.9, 0], "s")  # 14.9 s and 5.1 s
    np.testing.assert_array_equal(policy.run_starts(jitter, 3, 10.0), [0])


def test_fill_forward():
    nan = np.nan
    x = np.array([[nan, 1.0], [2.0, nan], [nan, nan], [3.0, 4.0]])
    np.testing.assert_array_equal(policy.fill_forward(x), [[0, 1], [2, 1], [2, 1], [3, 4]])
    np.testing.assert_array_equal(policy.fill_forward(x, before=7)[0], [7, 1])
    assert policy.fill_forward(x[:0]).shape == (0, 2)
    rng = np.random.default_rng(0)
    holes = np.where(rng.random((50, 4)) < 0.4, nan, rng.random((50, 4)))
    np.testing.assert_array_equal(
        policy.fill_forward(holes), pd.DataFrame(holes).ffill().fillna(0.0).to_numpy()
    )


def test_columns_of_a_federation():
    arrays = {"a": np.zeros((4, 3)), "b": np.zeros((4, 3))}
    assert policy.columns_of(arrays) == ("0", "1", "2")
    assert policy.columns_of(arrays | {"b": frame()}) == COLUMNS
    with pytest.raises(ValueError, match="there are no clients"):
        policy.columns_of({})
    with pytest.raises(ValueError, match="client a: got one dimension"):
        policy.columns_of({"a": np.zeros(4)})
    with pytest.raises(ValueError, match="there are no columns"):
        policy.columns_of({"a": np.zeros((4, 0))})


def test_policies_on_a_real_client(data_root):
    """SMAP's P-1 as a data frame with stamps, columns shuffled, and values taken out."""
    streams = fg.data.smap(data_root)
    name = "P-1"
    settings = dict(rank=8, window=8, lift_size=16, rounds=2)
    truth = fg.FedKAD(**settings).fit({name: streams.train[name]})
    rows = streams.test[name][:2000]
    want = truth.score_samples(rows, name)

    def stamped(x):
        index = pd.date_range("2020-01-01", periods=len(x), freq="min")
        return pd.DataFrame(x, index, columns=list(streams.channels))

    shuffled = stamped(streams.train[name]).sample(frac=1, axis=1, random_state=0)
    assert list(shuffled.columns) != list(streams.channels)
    ordered = shuffled[list(streams.channels)]
    masking = fg.FedKAD(**settings, missing="mask").fit({name: ordered})
    np.testing.assert_array_equal(masking.score_samples(stamped(rows)), want)
    np.testing.assert_array_equal(masking.score_samples(stamped(rows)[list(shuffled.columns)]), want)

    holed = stamped(rows)
    holed.iloc[700, 0] = np.nan
    scores = masking.score_samples(holed)
    assert np.isfinite(scores[8:]).all()
    np.testing.assert_array_equal(scores[:700], want[:700])
    strict = fg.FedKAD(**settings).fit({name: stamped(streams.train[name])})
    with pytest.raises(ValueError, match=r"client P-1: row 700 \(2020-01-01 11:40:00\), column telemetry"):
        strict.score_samples(holed)
    with pytest.warns(fg.DetectorWarning, match="1 gaps in time"):
        gapped = strict.score_samples(stamped(rows).drop(holed.index[300:320]))
    assert np.isnan(gapped[300:308]).all()
    np.testing.assert_array_equal(gapped[300:], strict.score_samples(rows[320:]))


@pytest.mark.parametrize(
    ("ordered", "remedy"), [(True, r"fedgeo fit --missing ffill, or mask\)$"), (False, 'missing="center"$')]
)
def test_the_remedy_for_missing_values_is_one_that_the_detector_has(ordered, remedy):
    x = pd.DataFrame({"a": [1.0], "b": [np.nan]})
    with pytest.raises(ValueError, match="column b is missing.*fit again with.*" + remedy):
        policy.read(x, ["a", "b"], "client x", missing="error", ordered=ordered)


@pytest.mark.parametrize(
    ("columns", "names", "hint"),
    [
        ("012", "abc", "have names here and had none in the fit"),
        ("abc", "012", "give the file a first line of names"),
        ("abc", "abd", "Rename or drop them, in the file or the frame$"),
    ],
)
def test_a_file_with_names_for_a_fit_without_them_is_seen_and_the_reverse(columns, names, hint):
    with pytest.raises(ValueError, match="columns missing.*" + hint):
        policy.read(pd.DataFrame(np.zeros((4, 3)), columns=list(names)), list(columns), "client x")


def test_many_names_are_cut_short():
    wide = pd.DataFrame(np.zeros((4, 40)), columns=[f"other {k}" for k in range(40)])
    with pytest.raises(ValueError, match=r"unexpected: other 0, .*other 4, \.\.\. \(40 in all\)") as error:
        policy.read(wide, [f"sensor {k}" for k in range(40)], "client x")
    assert len(str(error.value)) < 400
