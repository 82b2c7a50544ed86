import json

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from fedgeo import federation
from tests.federation.test_engine import averaging

NAMES = ["a", 'b, "the second"', "c"]
DATA = jnp.asarray([1.0, 5.0, 9.0])


def fit(folder, rounds, first_round=0, state=None):
    return federation.fit(
        averaging(fail=(5.0,)), jax.random.key(0), DATA, rounds=rounds, first_round=first_round, state=state,
        sampler=federation.uniform(2), records=federation.Records(folder, NAMES),
    )  # fmt: skip


def read(folder):
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return lines, pd.read_csv(folder / "clients.csv")


def test_files_say_what_the_history_says(tmp_path):
    _, history = fit(tmp_path, 10)
    lines, table = read(tmp_path)
    assert [line["round"] for line in lines] == list(range(10))
    assert len(table) == 20
    np.testing.assert_array_equal(table["round"], np.repeat(np.arange(10), 2))
    np.testing.assert_array_equal(table["client"], [NAMES[k] for k in history.client.ravel()])
    np.testing.assert_array_equal(table["weight"], history.weight.ravel())
    np.testing.assert_array_equal(table["quarantined"], history.quarantined.ravel())
    np.testing.assert_allclose(table["draw"], history.metrics["draw"].ravel(), rtol=1e-8)
    for r, line in enumerate(lines):
        counts = history.weight[r] > 0
        assert line["counted"] == counts.sum()
        assert line["quarantined"] == [NAMES[k] for k in history.client[r][history.quarantined[r]]]
        assert line["upload_bytes"] == 4 * 2  # a number from each
        assert line["mean_draw"] == (
            float(history.metrics["draw"][r][counts].mean()) if counts.any() else None
        )
        assert line["updated"] == bool(history.updated[r])
        assert line["seconds"] > 0


def test_a_run_that_goes_on_writes_every_round_once(tmp_path):
    fit(tmp_path / "whole", 6)
    state, _ = fit(tmp_path / "part", 4)
    fit(tmp_path / "part", 4)  # the same rounds again
    with (tmp_path / "part" / "rounds.jsonl").open("a") as file:
        file.write('{"round": 4, "upd')  # cut off
    with (tmp_path / "part" / "clients.csv").open("a") as file:
        file.write("4,a,1")
    fit(tmp_path / "part", 2, first_round=4, state=state)
    (lines, table), (want_lines, want_table) = read(tmp_path / "part"), read(tmp_path / "whole")
    pd.testing.assert_frame_equal(table, want_table)
    for line, want in zip(lines, want_lines, strict=True):
        assert line | {"seconds": 0} == want | {"seconds": 0}


def test_every_client_has_a_name(tmp_path):
    records = federation.Records(tmp_path, NAMES[:2])
    with pytest.raises(ValueError, match="records name 2 clients, but the federation has 3"):
        federation.fit(averaging(), jax.random.key(0), DATA, rounds=1, records=records)


def test_an_entry_that_is_no_client_has_no_name(tmp_path):
    def sampler(key, num_clients, number):
        cohort = federation.everyone(key, num_clients, number)
        return cohort._replace(index=jnp.where(number == 1, jnp.asarray([0, 9, 2]), cohort.index))

    records = federation.Records(tmp_path, NAMES)
    federation.fit(averaging(), jax.random.key(0), DATA, rounds=2, sampler=sampler, records=records)
    lines, table = read(tmp_path)
    assert [line["drawn"] for line in lines] == [3, 2]
    assert [line["counted"] for line in lines] == [3, 2]
    assert table["client"].fillna("").tolist() == [*NAMES, "a", "", "c"]
    assert np.isnan(table["draw"]).tolist() == [False] * 4 + [True, False]
