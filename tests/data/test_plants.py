import sys
from itertools import pairwise

import numpy as np
import pytest

from fedgeo.baselines import controls
from fedgeo.data import Streams, split, standardise
from fedgeo.data.plants import CHANNELS, FAULTS, fault_schedule, plants
from fedgeo.evaluation import macro, per_client

module = sys.modules["fedgeo.data.plants"]  # the package exports the function by the same name


@pytest.fixture(scope="module")
def made() -> Streams:
    return plants()


def _channel(streams: Streams, part: str, client: str, channel: str) -> np.ndarray:
    return getattr(streams, part)[client][:, CHANNELS.index(channel)]


def test_shapes_and_names(made: Streams) -> None:
    assert made.names == tuple(f"plant-{k}" for k in range(8))
    assert made.channels == CHANNELS
    assert all(x.shape == (3000, 10) for part in (made.train, made.test) for x in part.values())
    assert "generated" in made.name


def test_a_plant_depends_on_seed_and_number_only(made: Streams) -> None:
    few = plants(clients=2)
    for part in ("train", "test", "labels"):
        for name in few.names:
            np.testing.assert_array_equal(getattr(few, part)[name], getattr(made, part)[name])
    assert not np.array_equal(plants(clients=1, seed=1).train["plant-0"], made.train["plant-0"])


def test_labels_are_the_schedule_and_every_fault_acts_once(made: Streams) -> None:
    schedule = fault_schedule()
    for name, faults in schedule.groupby("client"):
        assert sorted(faults["fault"]) == sorted(FAULTS)
        spans = sorted(zip(faults["start"], faults["stop"], strict=True))
        assert all(stop + 50 < start for (_, stop), (start, _) in pairwise(spans))
        expected = np.zeros(3000, dtype=int)
        for start, stop in spans:
            expected[start:stop] = 1
        np.testing.assert_array_equal(made.labels[str(name)], expected)
    assert 0.08 < made.summary()["anomaly_ratio"].mean() < 0.2


def test_faults_act_from_the_first_labelled_row_and_not_before(
    made: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(rng, schedule, total, plant, rows):
        zero, one = np.zeros(total), np.ones(total)
        return module._Faults(zero, zero.astype(bool), zero, one, one)

    monkeypatch.setattr(module, "_draw_faults", none)
    healthy = plants()
    for name in made.names:
        np.testing.assert_array_equal(healthy.train[name], made.train[name])
        changed = np.flatnonzero((healthy.test[name] != made.test[name]).any(axis=1))
        schedule = fault_schedule()
        first = schedule[schedule["client"] == name].sort_values("start").iloc[0]
        delay = 0 if "sensor" in first["fault"] else 1  # what changes the dynamics shows one row later
        assert changed[0] == first["start"] + delay


def test_each_fault_shows_where_it_acts(made: Streams) -> None:
    for _, (client, fault, start, stop) in fault_schedule().iterrows():
        outflow = _channel(made, "test", client, "outflow_l_s")
        still = np.diff(outflow) == 0
        if fault == "stuck sensor":
            assert still[start - 1 : stop - 1].all()
            assert not still[: start - 1].any()
            assert not still[stop - 1 :].any()
        if fault == "leak":
            surplus = _channel(made, "test", client, "inflow_l_s") - outflow
            assert surplus[start:stop].mean() > surplus[:start].mean() + 0.2


def test_readings_obey_the_stated_physics(made: Streams) -> None:
    for name in made.names:
        level_1, level_2, _, _, inflow, outflow, pump, power, opening, _ = made.train[name].T
        assert np.mean(inflow) == pytest.approx(np.mean(outflow), rel=0.02)  # water is kept
        torricelli = opening * level_2 / np.sqrt(level_2 + 0.01)
        assert np.corrcoef(torricelli, outflow)[0, 1] > 0.97
        assert (level_1 > level_2).mean() > 0.99  # water runs downhill from tank 1
        assert pump.min() >= 0
        assert pump.max() <= 1
        assert power.min() > 0


def test_controllers_hold_their_set_points(made: Streams) -> None:
    for k, name in enumerate(made.names):
        target = module._draw_plant(np.random.default_rng([0, k])).target_temperature
        temperature = _channel(made, "train", name, "temperature_2_c")
        assert temperature.mean() == pytest.approx(target, abs=0.2)
        assert temperature.std() < 1.5


def test_smaller_integration_steps_change_readings_by_less_than_the_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    coarse = plants(clients=3, rows=1000)
    monkeypatch.setattr(module, "_STEP", 2.5)
    fine = plants(clients=3, rows=1000)
    for name in coarse.names:
        gap = np.abs(coarse.train[name] - fine.train[name]).max(axis=0)
        assert (gap < 0.25 * coarse.train[name].std(axis=0)).all()
        assert (gap > 0).any()


def test_faults_are_neither_trivial_nor_hopeless(made: Streams) -> None:
    scaled, scalers = standardise(made)
    assert all(s.constant == () for s in scalers.values())
    train, _ = split(scaled.train)
    results = controls.score_streams(train, scaled.test)
    mean = {
        name: macro(per_client(on_test, scaled.labels))["mean"]["auroc"]
        for name, (on_test,) in results.items()
    }
    assert abs(mean["random"] - 0.5) < 0.03
    assert mean["random"] < mean["row norm"] < mean["PCA"] < mean["window PCA"]
    assert 0.75 < mean["window PCA"] < 0.9


def test_arguments_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="clients=0; want at least one"):
        plants(clients=0)
    with pytest.raises(ValueError, match="rows=999; want at least 1000"):
        plants(rows=999)
