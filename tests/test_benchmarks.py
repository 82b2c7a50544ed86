"""What benchmarks print can be read by a program."""

import json

import numpy as np
import pytest

from benchmarks import _timing


@pytest.mark.parametrize(
    ("value", "bounds", "met"),
    [
        (1e-6, {"most": 1e-5}, True),
        (np.float64(1e-6), {"most": 1e-5}, True),
        (np.float32(2.0), {"most": 1.0}, False),
        (np.float64(0.4), {"least": 0.3}, True),
        (np.int64(7), {}, None),
        (None, {"least": 0.3}, None),
    ],
)
def test_a_line_is_json_whatever_kind_of_number_was_measured(value, bounds, met, capsys):
    report = _timing.Report(as_json=True, rows=np.array(3).item())
    report.line("what", value, "s", **bounds)
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["environment"]["rows"] == 3
    assert second["met"] is met
    assert second["value"] == (None if value is None else pytest.approx(float(value), rel=1e-2))
    _timing.Report(as_json=False).line("what", value, "s", **bounds)
    assert ("MISSED" in capsys.readouterr().out) == (met is False)
