"""Machines' CSV files as people have them: with and without names, times, missing values and mistakes."""

import numpy as np
import pandas as pd
import pytest

from fedgeo import data


def written(tmp_path, text, name="pump.csv"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_numbers_without_names_are_called_by_their_place(tmp_path):
    frame = data.read_csv(written(tmp_path, "1,2.5\n3,4e2\n"))
    assert list(frame.columns) == ["0", "1"]
    np.testing.assert_array_equal(frame, [[1, 2.5], [3, 400]])
    assert list(frame.index) == [0, 1]


@pytest.mark.parametrize(
    ("stamps", "name"),
    [
        (("2024-01-01T00:00:00", "2024-01-01T00:01:00"), "time"),
        (("2024-01-01 01:00:00+01:00", "2024-01-01 01:01:00+01:00"), "Timestamp"),
        (("1704067200", "1704067260"), "ts"),
    ],
)
def test_a_column_of_times_becomes_the_index(tmp_path, stamps, name):
    frame = data.read_csv(written(tmp_path, f"a,{name},b\n1,{stamps[0]},2\n3,{stamps[1]},4\n"))
    assert list(frame.columns) == ["a", "b"]
    want = pd.DatetimeIndex(["2024-01-01 00:00", "2024-01-01 00:01"], tz="UTC")
    assert (frame.index == want).all()


def test_a_column_of_times_can_be_named(tmp_path):
    path = written(tmp_path, "measured,a\n2024-01-01,2\n")
    assert data.read_csv(path, time="measured").index[0] == pd.Timestamp("2024-01-01", tz="UTC")
    with pytest.raises(ValueError, match="no column 'when' for the times; it has measured, a"):
        data.read_csv(path, time="when")


def test_missing_values_are_nan_and_empty_lines_are_passed_over(tmp_path):
    frame = data.read_csv(written(tmp_path, "\ufeffa, b\n1,\n\nNaN,2\nnull,none\n"))
    assert list(frame.columns) == ["a", "b"]
    np.testing.assert_array_equal(frame, [[1, np.nan], [np.nan, 2], [np.nan, np.nan]])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("a,b\n1,2\n\n3,on\n", r"line 4: 'on' in column b is not a number \(1 such fields\)"),
        ("1,2\n3,x\n", "line 2: 'x' in column 1"),
        ("a,a\n1,2\n", "several columns are called a"),
        ("a,b\n1,2\n1,2,3\n", "line 3: 3 fields, want 2 as in the first line"),
        ("a,b\n1,2,3\n1,2,3\n", "line 2: 3 fields, want 2"),
        ("a,b\n1,2\n1\n", "line 3: 1 fields, want 2"),
        ("a;b\n1,5;2,5\n", "is separated by ';'; want commas"),
        ("1,5;2,5\n", "is separated by ';'; want commas"),
        ("a\tb\n1\t2\n", r"is separated by '\\t'"),
        ("time,a\nmonday,2\n", "line 2: 'monday' in column time is no time"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line(tmp_path, text, words):
    with pytest.raises(ValueError, match=words):
        data.read_csv(written(tmp_path, text))


def test_text_in_another_encoding_is_named(tmp_path):
    path = tmp_path / "pump.csv"
    path.write_bytes("pressão,b\n1,2\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"no UTF-8 text.*save it as UTF-8"):
        data.read_csv(path)


def test_columns_that_a_detector_does_not_know_are_left_alone(tmp_path):
    path = written(tmp_path, "when,a,b,site\n2024-01-01,1,2,north\n")
    assert list(data.read_csv(path, columns=["b", "a"]).columns) == ["b", "a"]
    frame = data.read_csv(path, columns=["b", "a"], time="when")
    assert frame.attrs["stamps"] == ["2024-01-01"]


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no file .*nothing\.csv"):
        data.read_csv(tmp_path / "nothing.csv")


def test_a_real_machine(data_root):
    path = data_root / "SMD" / "train" / "machine-1-2.txt"
    frame = data.read_csv(path)
    np.testing.assert_array_equal(frame, np.loadtxt(path, delimiter=","))
