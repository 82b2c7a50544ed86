"""Detectors as their owners use them, on small generated federations."""

import inspect
import json
import re
import warnings
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import fedgeo as fg
from fedgeo.algorithms import koopman
from fedgeo.deploy import runtime
from fedgeo.estimators import base, streams

CHANNELS = ["flow", "heat", "load", "level", "noise"]
SMALL = dict(rank=4, window=8, lift_size=12, rounds=3, participation=1.0, smoothing=4)
WARM_UP = 8  # W - 1 + H


def stream(seed, rows=700, channels=5):
    """A driven oscillation with noise, so that there is something to predict."""
    rng = np.random.default_rng(seed)
    t = np.arange(rows)[:, None]
    waves = np.sin(2 * np.pi * t / rng.uniform(15, 40, channels) + rng.uniform(0, 6, channels))
    return waves + 0.1 * rng.standard_normal((rows, channels))


def frame(seed, rows=700, start="2024-01-01"):
    return pd.DataFrame(stream(seed, rows), pd.date_range(start, periods=rows, freq="min"), columns=CHANNELS)


def fit(settings=None, **clients):
    """Three clients, some of them replaced: equal shapes share their compiled programs."""
    fleet = {"a": frame(0), "b": frame(1), "c": frame(2)}
    return fg.FedKAD(**(SMALL | dict(settings or {}))).fit(fleet | clients)


@pytest.fixture(scope="module")
def model():
    return fit()


@pytest.fixture(scope="module")
def masking():
    return fit({"missing": "mask"})


@pytest.fixture(scope="module")
def filling():
    return fit({"missing": "ffill"})


@pytest.fixture(scope="module")
def tables():
    rng = np.random.default_rng(0)
    rows = {"x": 120, "y": 90, "z": 40}
    return {name: rng.standard_normal((n, 4)) * [1, 2, 3, 4] + 5 for name, n in rows.items()}


ENCODER = dict(latent=4, width=16, blocks=1, epochs=3)


@pytest.fixture(scope="module")
def svdd(tables):
    return fg.GeodesicSVDD(**ENCODER).fit(
        {n: pd.DataFrame(x, columns=list("pqrs")) for n, x in tables.items()}
    )


# ------------------------------------------------------------------------------------------------ scores


def test_scores_are_those_of_the_pure_functions(model):
    x = frame(5, 300)
    k = model.clients_.index("b")
    z = (x.to_numpy() - model._arrays["center"][k]) / model._arrays["scale"][k]
    errors = koopman.residuals(
        model._detector(k), jnp.asarray(np.clip(z, -10, 10), jnp.float32), residual="newest", scale="variance"
    )
    want = np.asarray(koopman.smooth(errors, SMALL["smoothing"]))
    got = model.score_samples(x, "b")
    assert isinstance(got, pd.Series)
    assert got.index.equals(x.index)
    assert np.isfinite(want[WARM_UP:]).all()
    np.testing.assert_allclose(got.to_numpy(), want, rtol=2e-5)


def test_training_is_that_of_the_pure_functions(model):
    """The whole of ``fit`` written out for client a: split, scaler, moments, rounds, deployment, threshold."""
    clients = {name: frame(k).to_numpy() for k, name in enumerate("abc")}
    train, validation = fg.data.split(clients)
    scalers = {name: fg.data.fit_scaler(x, clip=10.0) for name, x in train.items()}
    scaled = {name: scalers[name].transform(x) for name, x in train.items()}
    key = jax.random.key(0)
    lift = fg.random_lift(jax.random.fold_in(key, 1), 5, window=8, size=12)
    sums = fg.prepare(lift, fg.data.stack_series(scaled))
    alg = fg.fedkad(lift, **(fg.RECOMMENDED | {"smoothing": 4}), rank=4)
    state, _ = fg.fit(alg, key, sums, rounds=3, sampler=fg.uniform(3))
    detectors = fg.federation.deploy(alg, state, sums)
    held = scalers["a"].transform(validation["a"])
    scores = alg.score(jax.tree.map(lambda leaf: leaf[0], detectors), jnp.asarray(held, jnp.float32))
    np.testing.assert_allclose(model._arrays["basis"], detectors.basis[0], atol=2e-4)
    np.testing.assert_allclose(model.threshold_["a"], fg.evaluation.quantile(np.asarray(scores)), rtol=2e-3)


def test_defaults_are_recommended_and_the_papers_are_one_argument_away():
    defaults = fg.FedKAD().get_params()
    recommended = {"score_scale" if k == "scale" else k: v for k, v in fg.RECOMMENDED.items()}
    assert {name: defaults[name] for name in recommended} == recommended
    paper = fg.FedKAD(**fg.PAPER)
    lift = fg.random_lift(jax.random.key(0), 2)
    factory = {n: p.default for n, p in inspect.signature(fg.fedkad).parameters.items()}
    factory["score_scale"] = factory.pop("scale")
    assert all(getattr(paper, name) == factory[name] for name in ("rank", "rho", *fg.PAPER))
    assert fg.fedkad(lift)


def test_a_score_a_row_that_starts_after_the_warm_up_and_moves_with_the_stream(model):
    x = stream(7, 500)
    scores = model.score_samples(x, "a")
    assert scores.shape == (500,)
    assert np.isnan(scores[:WARM_UP]).all()
    assert np.isfinite(scores[WARM_UP:]).all()
    later = model.score_samples(x[100:], "a")
    settled = WARM_UP + SMALL["smoothing"] - 1  # behind it the mean reaches over the same rows
    np.testing.assert_array_equal(later[settled:], scores[100 + settled :])


def test_a_spike_raises_its_own_row_and_none_before(model):
    x = stream(7, 300)
    spiked = x.copy()
    spiked[200, 2] += 5
    before, after = model.score_samples(x, "a"), model.score_samples(spiked, "a")
    np.testing.assert_array_equal(after[:200], before[:200])
    assert after[200] > before[200] + model.threshold_["a"]


@pytest.mark.parametrize("rows", [800, 1031, 1032, 1600, 3500])
def test_scores_do_not_depend_on_how_much_is_scored_at_once(model, rows):
    x = stream(8, 4500)
    whole = model.score_samples({"a": x, "b": x[:900]})["a"]
    part = model.score_samples(x[:rows], "a")
    np.testing.assert_allclose(part, whole[:rows], rtol=1e-6)


def test_two_streams_never_mix(model):
    one, two = stream(8, 300), stream(9, 300)
    apart = model.score_samples({"a": one, "b": two})
    np.testing.assert_array_equal(apart["b"], model.score_samples(two, "b"))
    joined = model.score_samples(np.concatenate([one, two]), "b")
    assert np.isnan(apart["b"][:WARM_UP]).all()
    assert np.isfinite(joined[300 : 300 + WARM_UP]).all()  # what would happen to a stream glued together


@pytest.mark.parametrize(
    ("rows", "finite"), [(0, 0), (1, 0), (WARM_UP - 1, 0), (WARM_UP, 0), (WARM_UP + 1, 1)]
)
def test_short_streams_are_scored_as_far_as_they_go(model, rows, finite):
    scores = model.score_samples(stream(1, 700)[:rows], "a")
    assert len(scores) == rows
    assert np.isfinite(scores).sum() == finite


def test_what_goes_in_comes_out_in_the_same_form(model):
    x = stream(3, 60)
    as_list = fg.FedKAD(**SMALL).fit([stream(0), stream(1), stream(2)])
    assert as_list.clients_ == ["client-0", "client-1", "client-2"]
    scores = as_list.score_samples([x, x])
    assert [s.shape for s in scores] == [(60,), (60,)]
    stacked = as_list.score_samples(np.stack([x, x]))
    np.testing.assert_array_equal(stacked[1], scores[1])
    assert list(model.score_samples({"b": x, "a": x})) == ["b", "a"]
    np.testing.assert_array_equal(model.decision_function(x, "a"), model.score_samples(x, "a"))
    labels = model.predict(frame(3, 60), "a")
    assert labels.dtype == np.int64
    assert set(labels.unique()) <= {0, 1}


def test_one_client_needs_no_name():
    alone = fg.FedKAD(**SMALL).fit({"only": stream(0, 300)})
    assert np.isfinite(alone.score_samples(stream(1, 60))[WARM_UP:]).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.score_samples(stream(0, 50)), "whose stream is it.*a, b, c"),
        (lambda m: m.score_samples(stream(0, 50), "d"), "no client d.*a, b, c.*join"),
        (lambda m: m.score_samples({"a": stream(0, 50), "e": stream(0, 50)}), "no client e"),
        (lambda m: m.score_samples({"a": stream(0, 50)}, "a"), "several were given"),
        (lambda m: m.score_samples(stream(0, 50, 4), "a"), r"got 4 columns, want 5 \(flow, heat"),
        (lambda m: m.score_samples(stream(0, 50)[:, 0], "a"), r"one dimension.*want \(T, 5\)"),
        (lambda m: m.score_samples(fg.data.plants(clients=2), "a"), "streams.test"),
    ],
)
def test_what_cannot_be_scored_is_named(model, call, message):
    with pytest.raises(ValueError, match=message):
        call(model)


def test_nothing_is_scored_before_a_fit():
    for name in ("score_samples", "predict", "decision_function", "contributions"):
        with pytest.raises(NotFittedError, match="not fitted yet"):
            getattr(fg.FedKAD(), name)(stream(0, 50))
    with pytest.raises(NotFittedError):
        fg.GeodesicSVDD().save("nowhere")


def test_huge_values_are_alarms_and_not_gaps():
    wild = fit({"clip": np.inf})
    x = stream(4, 100)
    x[50, 1] = 1.7e308
    scores = wild.score_samples(x, "a")
    assert np.isfinite(scores[WARM_UP:]).all()
    assert wild.predict(x, "a")[50] == 1


# ------------------------------------------------------------------------------------------------ policies


@pytest.fixture
def holed():
    x = stream(6, 1000)
    x[500, 3] = np.nan
    return x


def test_a_missing_value_is_an_error_that_names_it(model, holed):
    with pytest.raises(ValueError, match="client a: row 500, column level is missing"):
        model.score_samples(holed, "a")


def test_a_missing_value_is_filled_with_the_last_one(filling, holed):
    filled = holed.copy()
    filled[500, 3] = filled[499, 3]
    np.testing.assert_array_equal(filling.score_samples(holed, "a"), filling.score_samples(filled, "a"))


def test_before_the_first_value_the_training_mean_stands_in(filling):
    x = stream(6, 100)
    x[:3, 1] = np.nan
    filled = x.copy()
    filled[:3, 1] = filling._arrays["center"][0, 1]
    np.testing.assert_array_equal(filling.score_samples(x, "a"), filling.score_samples(filled, "a"))


def test_a_missing_value_is_left_out_of_the_score(masking, holed):
    scores = masking.score_samples(holed, "a")
    assert np.isfinite(scores[WARM_UP:]).all()
    assert (scores[WARM_UP:] > 0).all()
    # Written out: the row's raw score is that of its four observed channels, a fifth more of each.
    filled = holed.copy()
    filled[500, 3] = filled[499, 3]
    parts = masking.set_params(smoothing=4)._parts("a", masking._stream(fg.data.policy.Reading(filled, None)))
    raw = parts.sum(axis=1)
    raw[500] = parts[500, [0, 1, 2, 4]].sum() * 5 / 4
    np.testing.assert_allclose(scores[500], raw[497:501].mean(), rtol=1e-6)
    shares = masking.contributions(holed, "a")
    np.testing.assert_allclose(shares.sum(axis=1)[WARM_UP:], scores[WARM_UP:], rtol=1e-6)


def test_a_row_without_any_value_has_no_score_and_no_alarm(masking):
    x = stream(6, 200)
    x[100] = np.nan
    scores = masking.score_samples(x, "a")
    assert np.isnan(scores[100])
    assert np.isfinite(np.delete(scores, 100)[WARM_UP:]).all()
    assert masking.predict(x, "a")[100] == 0


def test_missing_values_in_training(masking):
    x = frame(0)
    x.iloc[50:60, 1] = np.nan
    x.iloc[300] = np.nan
    holes = fit({"missing": "mask"}, a=x)
    assert any("15 missing values in training" in note for note in holes.notes_)
    np.testing.assert_allclose(holes.threshold_["a"], masking.threshold_["a"], rtol=0.3)
    with pytest.raises(ValueError, match=r"client a: row 50 \(2024-01-01 00:50:00\), column heat is missing"):
        fit(a=x)


def test_a_gap_starts_the_window_anew(model):
    x = frame(4, 200)
    gapped = x.drop(x.index[100:110])
    with pytest.warns(
        fg.DetectorWarning, match="client a: 1 gaps in time, the first before 2024-01-01 01:50"
    ):
        scores = model.score_samples(gapped, "a").to_numpy()
    np.testing.assert_array_equal(scores[:100], model.score_samples(x[:100], "a"))
    np.testing.assert_array_equal(scores[100:], model.score_samples(x[110:], "a"))
    assert np.isnan(scores[100 : 100 + WARM_UP]).all()


def test_rows_at_another_pace_are_named(model):
    hourly = frame(4, 60).set_axis(pd.date_range("2024-01-01", periods=60, freq="h"))
    with pytest.warns(fg.DetectorWarning, match=r"59 gaps.*usually 3600 s apart here, 60 s in training"):
        assert model.score_samples(hourly, "a").isna().all()


def test_no_training_window_reaches_over_a_gap():
    """A stream with a gap has the moments of its two parts, which arrays cannot say and masks can."""
    gapped = frame(0).drop(frame(0).index[150:170])
    found = fit(a=gapped)
    assert any("1 gaps in time" in note for note in found.notes_)
    assert found.settings_["interval"] == 60
    glued = fit(a=gapped.to_numpy())
    alone, together = found._arrays["variance"][0], glued._arrays["variance"][0]
    assert np.abs(alone / together - 1).max() > 1e-3


def test_clients_that_sample_at_another_pace_are_named():
    slow = frame(1)
    slow.index = pd.date_range("2024-01-01", periods=700, freq="h")
    with pytest.warns(fg.DetectorWarning, match=r"from 60 s \(a\) to 3600 s \(b\)"):
        fit(b=slow)


@pytest.mark.parametrize("settings", [{}, fg.PAPER, {"residual": "full", "score_scale": "log"}])
def test_constant_channels(settings):
    """A change by a millionth is nothing, one by 1 is an alarm, however still the channel was in training."""
    train = stream(0)
    train[:, 2] = 3.0
    found = fit(settings, a=train)
    assert any(
        "client a: constant in training: load; a change there is measured" in note for note in found.notes_
    )
    x = train[-200:].copy()
    still = found.score_samples(x, "a")
    x[100:, 2] += 1e-6
    barely = found.score_samples(x, "a")
    assert np.isfinite(barely[WARM_UP:]).all()
    np.testing.assert_allclose(barely[WARM_UP:], still[WARM_UP:], rtol=1e-3)
    assert not found.predict(x, "a")[100:104].any()
    if not settings:  # the paper's score has no unit by which a change of 1 would be large
        x[100:, 2] += 1
        assert found.predict(x, "a")[100:].all()


@pytest.mark.parametrize("lift_size", [12, 0])
def test_a_stream_that_never_moves(lift_size):
    still = np.tile([1.0, 2.0, 3.0, 1e6, -0.1], (700, 1))
    with pytest.warns(fg.DetectorWarning, match="client c: all 5 channels are constant"):
        found = fit({"lift_size": lift_size}, c=still)
    scores = found.score_samples(still[:60], "c")
    np.testing.assert_array_equal(scores[WARM_UP:], 0)
    moved = still[:60].copy()
    moved[30:, 1] += 1e-6
    assert not found.predict(moved, "c").any()
    moved[30:, 1] += 1
    assert found.predict(moved, "c")[30:].all()


# ------------------------------------------------------------------------------------------------ clients


def test_a_short_client_is_left_out_and_named():
    with pytest.warns(fg.DetectorWarning, match=r"client short is left out: its longest run.*has 8.*need 9"):
        found = fit(short=stream(1, 9))
    assert found.clients_ == ["a", "b", "c"]
    assert "need 9" in found.left_out_["short"]
    with pytest.warns(fg.DetectorWarning, match="client short was left out"):
        scores = found.score_samples({"a": stream(2, 60), "short": stream(3, 40)})
    assert np.isnan(scores["short"]).all()
    assert scores["short"].shape == (40,)
    with pytest.raises(ValueError, match="client short was left out of the fit: its longest run"):
        found.observed({"short": stream(3, 40)})
    with (
        pytest.warns(fg.DetectorWarning, match="client x is left out"),
        pytest.raises(ValueError, match="no client is long enough: client x"),
    ):
        fg.FedKAD(**SMALL).fit({"x": stream(0, 8)})


def test_a_client_without_calibration_rows_raises_no_alarm_and_says_so():
    with pytest.warns(fg.DetectorWarning, match="client b has no threshold"):
        found = fit(b=stream(1, 40))
    assert np.isnan(found.threshold_["b"])
    assert np.isfinite(found.score_samples(stream(1, 40), "b")[WARM_UP:]).all()
    with pytest.warns(fg.DetectorWarning, match="client b has no threshold and so no alarm"):
        assert not found.predict(stream(1, 40) * 100, "b").any()
    assert np.isfinite(found.recalibrate({"b": stream(1, 200)}).threshold_["b"])


def test_some_are_never_drawn_and_one_sends_nan(monkeypatch):
    """Quarter participation: who was never drawn scores all the same, who sends NaN is set aside and named."""
    clients = {f"c{k}": stream(k, 300) for k in range(8)}
    settings = SMALL | {"participation": 0.25, "rounds": 6, "start": "independent"}
    make = streams._algorithm

    def poisoned(*args, **options):
        alg = make(*args, **options)

        def update(key, server, client, data_k):
            client, upload, metrics = alg.update(key, server, client, data_k)
            bad = data_k.pairs == bad_pairs
            return client, jnp.where(bad, jnp.nan, upload), metrics

        return alg._replace(update=update)

    healthy = fg.FedKAD(**settings).fit(clients)
    drawn = np.unique(np.asarray(healthy.history_.client))
    never = [k for k in range(8) if k not in drawn]  # six rounds of two of eight
    assert never
    assert any(f"{len(never)} of 8 clients had no part" in note for note in healthy.notes_)
    scores = healthy.score_samples(stream(20, 100), f"c{never[0]}")
    assert np.isfinite(scores[WARM_UP:]).all()
    own = healthy._arrays["operator"]
    assert np.abs(own[never[0]] - own[drawn[0]]).max() > 1e-3

    victim = f"c{drawn[0]}"
    clients[victim] = clients[victim][:280]
    bad_pairs = round(0.85 * 280) - 8
    monkeypatch.setattr(streams, "_algorithm", poisoned)
    with pytest.warns(fg.DetectorWarning, match=f"client {victim} sent or kept was not finite"):
        found = fg.FedKAD(**settings).fit(clients)
    assert np.isfinite(found._arrays["basis"]).all()
    assert np.isfinite(found.score_samples(stream(20, 100), victim)[WARM_UP:]).all()
    for history in (healthy.history_, found.history_):
        residual = np.where(np.asarray(history.weight) > 0, history.metrics["consensus_residual"], np.nan)
        own = [residual[history.client == k] for k in range(8)]
        own = [values[~np.isnan(values)] for values in own]
        change = [values[-1] - values[0] for values in own if len(values) > 1]
        assert change
        assert np.mean(change) < 0


def test_a_client_joins_later_with_the_shared_subspace():
    late = fit()
    basis, first = late._arrays["basis"].copy(), late.threshold_["a"]
    late.join("d", frame(3))
    np.testing.assert_array_equal(late._arrays["basis"], basis)
    assert late.threshold_["a"] == first
    assert late.clients_ == ["a", "b", "c", "d"]
    x = frame(3)[-100:]
    assert np.isfinite(late.score_samples(x, "d")[WARM_UP:]).all()
    assert late.calibration_.loc["d", "rows"] == late.calibration_.loc["a", "rows"]
    with pytest.raises(ValueError, match="there is a client d already"):
        late.join("d", frame(2))
    with pytest.raises(ValueError, match="client e cannot join: its longest run"):
        late.join("e", frame(3, 9))
    assert late.clients_ == ["a", "b", "c", "d"]


def test_joining_gives_what_being_there_from_the_start_gives():
    """Without rounds the subspace is the start's, so that a client who joins equals one who was there."""
    settings = SMALL | {"rounds": 0, "start": "shared"}
    clients = {name: stream(k) for k, name in enumerate("abc")}
    whole = fg.FedKAD(**settings).fit(clients)
    late = fg.FedKAD(**settings).fit({k: clients[k] for k in "ac"}).join("b", clients["b"])
    x = stream(9, 100)
    np.testing.assert_allclose(
        late.score_samples(x, "b")[WARM_UP:], whole.score_samples(x, "b")[WARM_UP:], rtol=1e-3
    )
    np.testing.assert_allclose(late.threshold_["b"], whole.threshold_["b"], rtol=1e-3)


# ------------------------------------------------------------------------------------------------ calibration


def test_calibration_sees_rows_that_training_did_not(model):
    table = model.calibration_
    assert list(table.columns) == ["threshold", "rule", "rows", "alarm_rate"]
    assert (table["rows"] == 105 - WARM_UP).all()
    assert (table["rule"] == "quantile 0.99").all()
    assert (table["alarm_rate"] <= 0.011).all()
    changed = frame(0)
    changed.iloc[595:] *= 3.0  # the last 15 %
    again = fit(a=changed)
    for part in ("center", "scale", "basis", "operator", "variance"):
        np.testing.assert_array_equal(again._arrays[part], model._arrays[part])
    assert again.threshold_["a"] > model.threshold_["a"]


def test_calibration_rows_that_stand_still_are_named():
    """As in SMAP's A-8: all channels move in training and none in its last part, so that anything is an alarm."""
    x = frame(0)
    x.iloc[590:] = x.iloc[590].to_numpy()
    with pytest.warns(fg.DetectorWarning, match="client a: its calibration rows, the last 15%, hardly move"):
        found = fit(a=x)
    assert found.threshold_["a"] < 0.5 * fit().threshold_["a"]
    assert np.isfinite(found.recalibrate(frame(0, 900)[700:], "a").threshold_["a"])


def test_rules_for_thresholds():
    found = fit({"threshold": "rate", "rate": 0.1})
    rates = found.calibration_["alarm_rate"]
    assert ((rates > 0.08) & (rates <= 0.1)).all()
    assert set(found.calibration_["rule"]) == {"rate 0.1"}
    more = {"a": stream(0, 3000)[700:]}
    before = found.threshold_
    found.set_params(threshold="pot", q=1e-3, level=0.95).recalibrate(more)
    assert found.calibration_.loc["a", "rule"] == "pot q=0.001 level=0.95"
    scores = found.score_samples(more["a"], "a")
    want = fg.evaluation.pot(scores, 1e-3, 0.95).threshold
    np.testing.assert_allclose(found.threshold_["a"], want, rtol=1e-12)
    assert found.threshold_["b"] == before["b"]
    assert found.settings_["threshold"] == "pot"
    found.set_params(threshold="quantile", quantile=0.5).recalibrate(more["a"], "a")
    np.testing.assert_allclose(found.calibration_.loc["a", "alarm_rate"], 0.5, atol=0.01)


def test_pot_says_when_there_is_no_tail_to_fit():
    found = fit({"threshold": "pot"})
    assert any("client a: the threshold is a plain quantile" in note for note in found.notes_)
    assert np.isfinite(found.threshold_["a"])


def test_alarms_observed_on_new_data(model):
    x = {"a": frame(0, 900)[700:].copy(), "b": frame(1, 900)[700:].copy()}
    x["a"].iloc[100:150] += 4
    labels = {"a": np.zeros(200, int), "b": np.zeros(200, int)}
    labels["a"][100:150] = 1
    rates = model.observed(x)
    alarms = model.predict(x)
    assert rates.loc["a", "rows"] == 200 - WARM_UP
    np.testing.assert_allclose(rates.loc["a", "alarm_rate"], alarms["a"].sum() / (200 - WARM_UP))
    table = model.observed(x, labels)
    assert table.loc["a", "rows"] == 200 - WARM_UP
    hits = alarms["a"].to_numpy()[100:150].mean()
    np.testing.assert_allclose(table.loc["a", "recall"], hits)
    assert hits > 0.9
    assert np.isnan(table.loc["b", "recall"])


@pytest.mark.parametrize("settings", [{}, {"residual": "full", "score_scale": "log"}, {"horizon": 2}])
def test_contributions_add_up_and_point_at_the_guilty(settings):
    found = fit(settings)
    x = frame(0, 900)[700:].copy()
    before = found.contributions(x, "a")
    x.iloc[100, 3] += 5
    parts = found.contributions(x, "a")
    assert parts.index.equals(x.index)
    lift = ["lift"] if settings.get("residual") == "full" else []
    assert list(parts.columns) == CHANNELS + lift
    np.testing.assert_allclose(parts.sum(axis=1, skipna=False), found.score_samples(x, "a"), rtol=1e-6)
    assert (parts - before).iloc[100][CHANNELS].idxmax() == "level"


# ------------------------------------------------------------------------------------------------ files


@pytest.mark.parametrize("settings", [{}, fg.PAPER, {"clip": np.inf, "missing": "mask"}])
def test_a_saved_detector_scores_the_same(tmp_path, settings):
    found = fit(settings)
    found.progress = print  # which is no setting of the detector
    path = found.save(tmp_path / "detector")
    loaded = fg.load(path)
    assert isinstance(loaded, fg.FedKAD)
    x = frame(5, 300)
    np.testing.assert_array_equal(loaded.score_samples(x, "b"), found.score_samples(x, "b"))
    np.testing.assert_array_equal(loaded.predict(x, "b"), found.predict(x, "b"))
    assert loaded.threshold_ == found.threshold_
    pd.testing.assert_frame_equal(loaded.calibration_, found.calibration_)
    assert loaded.get_params() == found.get_params() | {"progress": None}
    assert (loaded.columns_, loaded.clients_, loaded.notes_) == (
        found.columns_,
        found.clients_,
        found.notes_,
    )
    loaded.recalibrate({"a": frame(0, 1000)[700:]})
    loaded.join("d", frame(3))
    for name in ("a", "d"):
        np.testing.assert_array_equal(
            fg.load(loaded.save(path)).score_samples(x, name), loaded.score_samples(x, name)
        )


def test_the_file_holds_the_arrays_that_a_device_reads(model, tmp_path):
    about, arrays = runtime.read(model.save(tmp_path / "detector"))
    shapes = {name: array.shape for name, array in arrays.items()}
    size = 8 * 5 + 12
    assert shapes == {
        "center": (3, 5), "scale": (3, 5), "lift_weight": (12, 8, 5), "lift_bias": (12,), "basis": (size, 4),
        "operator": (3, 4, 4), "readout": (3, 5, 4), "variance": (3, 5), "threshold": (3,),
    }  # fmt: skip
    assert about["method"] == "fedkad"
    assert about["columns"] == CHANNELS
    assert about["settings"]["interval"] == 60
    assert "progress" not in about["settings"]
    assert about["calibration"][0]["client"] == "a"
    with zipfile.ZipFile(tmp_path / "detector") as archive:
        assert all(name.endswith((".npy", ".json")) for name in archive.namelist())


def test_a_file_that_is_not_whole_is_refused(model, tmp_path):
    about, arrays = runtime.read(model.save(tmp_path / "whole"))
    about = {k: v for k, v in about.items() if k not in ("format", "version", "arrays")}
    path = tmp_path / "other"
    runtime.write(path, about, arrays | {"operator": arrays["operator"][:2]})
    with pytest.raises(ValueError, match=r"array operator: got \(2, 4, 4\), want shape \(3, 4, 4\)"):
        fg.load(path)
    runtime.write(path, about, {k: v for k, v in arrays.items() if k != "readout"})
    with pytest.raises(ValueError, match="array readout: got nothing"):
        fg.load(path)
    runtime.write(path, {k: v for k, v in about.items() if k != "clients"}, arrays)
    with pytest.raises(ValueError, match=r"no whole FedKAD detector.*clients"):
        fg.load(path)
    runtime.write(path, about | {"method": "other"}, arrays)
    with pytest.raises(ValueError, match="'other'; want one of fedkad, geodesic-svdd"):
        fg.load(path)
    path.write_bytes((tmp_path / "whole").read_bytes()[:500])
    with pytest.raises(ValueError, match="damaged"):
        fg.load(path)


@pytest.mark.parametrize("settings", [{}, fg.PAPER, {"missing": "mask"}, {"horizon": 2}])
def test_a_device_without_jax_scores_the_same(tmp_path, settings):
    """What ``save`` writes is what the NumPy runtime reads: gaps, holes, scaling and smoothing included."""
    found = fit(settings)
    x = frame(7, 400).drop(frame(7, 400).index[200:210])
    if "missing" in settings:
        x = x.mask(np.random.default_rng(0).random(x.shape) < 0.05)
        x.iloc[100] = np.nan
    with pytest.warns(fg.DetectorWarning, match="1 gaps in time"):
        want = found.score_samples(x, "b").to_numpy()
    device = runtime.load(found.save(tmp_path / "detector"))
    got = device.score(x.to_numpy(), "b", times=x.index)
    assert np.isfinite(want).sum() > 300
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert device.threshold("b") == found.threshold_["b"]


# ------------------------------------------------------------------------------------------------ scikit-learn


@pytest.mark.parametrize("kind", [fg.FedKAD, fg.GeodesicSVDD])
def test_estimators_are_scikit_learns(kind):
    made = kind(seed=3, quantile=0.9)
    copy = clone(made)
    assert copy is not made
    assert copy.get_params() == made.get_params()
    assert copy.set_params(seed=4).seed == 4
    assert "seed=3" in repr(made)
    with pytest.raises(ValueError, match="Invalid parameter"):
        made.set_params(depth=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clone(made)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 0}, "rank must"),
        ({"window": 0}, "window"),
        ({"missing": "zero"}, "missing='zero'"),
        ({"participation": 0}, "participation=0"),
        ({"validation": 1.0}, "validation=1.0"),
        ({"quantile": 1.5}, "quantile=1.5"),
        ({"threshold": "best"}, "threshold='best'"),
        ({"threshold": "pot", "q": 0.5}, "q=0.5 must be below"),
        ({"clip": 0.0}, "clip=0.0"),
        ({"seed": -1}, "seed=-1"),
        ({"rounds": -1}, "rounds must be a whole number"),
        ({"score_scale": "sd"}, "scale must be"),
    ],
)
def test_settings_out_of_range_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        fit(settings)


def test_progress_is_told_and_changes_nothing(model):
    done = []
    told = fit({"progress": done.append})
    assert done[-1] == 3
    np.testing.assert_allclose(told._arrays["basis"], model._arrays["basis"], atol=1e-6)


def test_a_warning_stands_at_the_users_line():
    with pytest.warns(fg.DetectorWarning) as caught:
        fit(short=stream(1, 9))
    assert all(w.filename == __file__ for w in caught)


def test_notebooks_can_show_them(model, svdd):
    for shown in (model, svdd, fg.FedKAD()):
        assert type(shown).__name__ in shown._repr_html_()


def test_a_fit_that_fails_leaves_nothing_half_done(tables):
    found = fg.GeodesicSVDD(**ENCODER).fit(tables)
    with pytest.raises(ValueError, match="missing"):
        found.fit({"x": tables["x"], "w": np.full((5, 4), np.nan)})
    with pytest.raises(NotFittedError):
        found.score_samples(tables["x"])


def test_lengths_are_padded_to_few_sizes():
    sizes = {base.padded(rows) for rows in range(0, 100_000, 7)}
    assert all(base.padded(rows) >= rows for rows in range(0, 100_000, 7))
    assert len(sizes) < 16
    assert base.padded(1) == base.CHUNK
    assert base.padded(50_000) <= 1.5 * 50_000


def test_equal_lengths_share_a_compiled_program(model):
    streams._contributions.clear_cache()
    for rows in (50, 300, 900):
        model.score_samples({"a": stream(1, rows), "b": stream(2, rows)})
    assert streams._contributions._cache_size() == 1


# ------------------------------------------------------------------------------------------------ tables


@pytest.mark.parametrize("protocol", ["one-shot", "iterative"])
def test_tables(protocol, tables, tmp_path):
    found = fg.GeodesicSVDD(**ENCODER, protocol=protocol, rounds=3, scaling="robust").fit(tables)
    rng = np.random.default_rng(1)
    near = rng.standard_normal((50, 4)) * [1, 2, 3, 4] + 5
    x = pd.DataFrame(near, columns=list("0123"), index=pd.RangeIndex(10, 60))
    scores = found.score_samples(x)
    assert scores.index.equals(x.index)
    assert np.isfinite(scores).all()
    assert (scores >= 0).all()
    np.testing.assert_allclose(found.score_samples(near[7:9]), scores[7:9], rtol=1e-6)
    loaded = fg.load(found.save(tmp_path / "detector"))
    np.testing.assert_array_equal(loaded.score_samples(x), scores)
    assert loaded.threshold_all_ == found.threshold_all_
    assert loaded.get_params() == found.get_params()
    loaded.recalibrate(tables)
    loaded.join("late", near)
    assert np.isfinite(loaded.threshold_["late"])
    _, arrays = runtime.read(tmp_path / "detector")
    experts = 3 if protocol == "one-shot" else 1
    assert arrays["params.Dense_0.kernel"].shape == (experts, 4, 16)
    assert arrays["threshold_all"].shape == ()
    np.testing.assert_allclose(np.linalg.norm(arrays["anchor"]), 1, rtol=1e-6)


def test_table_scores_are_the_product_of_the_experts(svdd, tables):
    """Written out from the arrays: ``sum over experts of log(1 + |phi(x) - c|^2)``."""
    from fedgeo.estimators.tables import _nested
    from fedgeo.models.encoder import SphericalEncoder

    z = (tables["x"] - svdd._arrays["center"]) / svdd._arrays["scale"]
    params = _nested({k: v for k, v in svdd._arrays.items() if k.startswith("params")})
    network = SphericalEncoder(4, 16, 1, 0.1)
    want = 0
    for expert in range(3):
        phi = network.apply(
            jax.tree.map(lambda leaf, e=expert: jnp.asarray(leaf[e]), params), jnp.asarray(z, jnp.float32)
        )
        want = want + np.log1p(np.sum((np.asarray(phi) - svdd._arrays["anchor"]) ** 2, axis=1))
    got = svdd.score_samples(tables["x"])
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_table_thresholds(svdd, tables):
    x = pd.DataFrame(tables["x"], columns=list("pqrs"))
    scores = svdd.score_samples(x)
    for client, limit in ((None, svdd.threshold_all_), ("y", svdd.threshold_["y"])):
        np.testing.assert_array_equal(svdd.predict(x, client), (scores > limit).astype(int))
    assert list(svdd.calibration_["rows"]) == [24, 18, 8]
    by_client = svdd.predict({"x": x, "y": x})
    np.testing.assert_array_equal(by_client["y"], svdd.predict(x, "y"))
    table = svdd.observed({"x": x}, {"x": np.zeros(len(x), int)})
    np.testing.assert_allclose(table.loc["x", "alarm_rate"], by_client["x"].mean())
    with pytest.raises(ValueError, match="no client w"):
        svdd.predict(x, "w")


def test_clients_without_rows_are_named(tables):
    empty = {"x": tables["x"], "y": tables["y"], "none": np.zeros((0, 4))}
    with pytest.warns(fg.DetectorWarning, match="client none has no rows"):
        found = fg.GeodesicSVDD(**ENCODER).fit(empty)
    assert np.isnan(found.threshold_["none"])
    with pytest.warns(fg.DetectorWarning, match="that of all clients together is used"):
        labels = found.predict(tables["x"], "none")
    np.testing.assert_array_equal(labels, found.predict(tables["x"]))
    with (
        pytest.warns(fg.DetectorWarning, match="client none has no rows"),
        pytest.raises(ValueError, match="no client has a row"),
    ):
        fg.GeodesicSVDD(**ENCODER).fit({"none": np.zeros((0, 4))})


def test_missing_values_of_a_table(svdd, tables, tmp_path):
    x = tables["x"].copy()
    x[3, 2] = np.nan
    with pytest.raises(ValueError, match="row 3, column r is missing"):
        svdd.score_samples(x)
    centred = clone(svdd).set_params(missing="center").fit(tables)
    filled = x.copy()
    filled[3, 2] = centred._arrays["center"][2]
    np.testing.assert_allclose(centred.score_samples(x), centred.score_samples(filled), rtol=1e-6)
    on_device = runtime.load(centred.save(tmp_path / "detector"))
    np.testing.assert_allclose(on_device.score(x), centred.score_samples(x), rtol=1e-5)


def test_collapse_is_noticed(svdd, tables):
    named = {name: pd.DataFrame(x, columns=list("pqrs")) for name, x in tables.items()}
    broken = clone(svdd).fit(named)
    scores = np.concatenate([broken.score_samples(x) for x in named.values()])
    assert fg.evaluation.distinct(scores) > 0.9 * len(scores)
    for name in [n for n in broken._arrays if n.endswith("kernel") and "Dense_0" in n]:
        broken._arrays[name] = np.zeros_like(broken._arrays[name])  # the input is not looked at any more
    with pytest.warns(fg.DetectorWarning, match="scores have collapsed") as caught:
        broken.recalibrate(named)
    assert "client x: scores have collapsed, 1 distinct for 120" in str(caught[0].message)


def test_a_centre_of_zero_is_refused(svdd, tables, monkeypatch):
    from fedgeo.estimators import tables as module

    begin = module._begin

    def without_centre(*args):
        state = begin(*args)
        return state._replace(server=state.server._replace(anchor=jnp.zeros_like(state.server.anchor)))

    monkeypatch.setattr(module, "_begin", without_centre)
    with pytest.raises(ValueError, match="mean embedding of the clients' rows is zero"):
        clone(svdd).fit(tables)


# ------------------------------------------------------------------------------------------------ evaluate


def labelled(rows=2000, clients=4):
    rng = np.random.default_rng(0)
    labels = {f"c{k}": (np.arange(rows) % 500 > 450).astype(int) for k in range(clients)}
    return labels, {name: rng.random(rows) for name in labels}


def test_a_random_score_is_not_called_good():
    labels, noise = labelled()
    found = fg.evaluate(noise, labels)
    assert "cannot be told apart from random" in found.headline
    assert "random" in found.table.index
    assert abs(found.table.loc["scores", "auroc"] - 0.5) < 0.05
    assert found.table.loc["scores", "f1_pa1"] > 0.4  # which is why the headline does not speak of it
    assert found.table.loc["scores", "alarm_rate"] == pytest.approx(0.02)
    assert "random" in str(found)


@pytest.mark.slow
def test_a_random_score_on_real_labels(data_root):
    labels = fg.data.smd(data_root).labels
    rng = np.random.default_rng(3)
    found = fg.evaluate({name: rng.random(len(y)) for name, y in labels.items()}, labels)
    scores = found.table.loc["scores"]
    assert 0.58 < scores["f1_pa1"] < 0.72
    assert abs(scores["auroc"] - 0.5) < 0.02
    assert "cannot be told apart from random" in found.headline


def test_good_scores_are_called_ahead():
    labels, noise = labelled()
    good = {name: noise[name] + labels[name] for name in labels}
    found = fg.evaluate(good, labels, thresholds=1.0)
    assert "ahead of random ones" in found.headline
    assert found.table.loc["scores", "ap"] == 1
    assert found.table.loc["scores", "f1"] == 1
    assert found.table.loc["random", "f1"] < 0.3
    assert found.table.loc["random", "alarm_rate"] == pytest.approx(found.table.loc["scores", "alarm_rate"])
    one = fg.evaluate(pd.Series(good["c0"]), pd.Series(labels["c0"]), thresholds=1.0)
    assert one.table.loc["scores", "clients"] == "1/1"


def test_clients_of_one_class_are_left_out_of_means_and_counted():
    labels, noise = labelled()
    labels["c0"], labels["c1"] = np.zeros(2000, int), np.ones(2000, int)
    found = fg.evaluate(noise, labels, vus_buffer=5)
    assert np.isnan(found.clients.loc["c0", "auroc"])
    assert np.isnan(found.clients.loc["c1", "auroc"])
    assert found.table.loc["scores", "clients"] == "2-3/4"
    assert np.isfinite(found.table.loc["scores", ["auroc", "ap", "vus_pr", "f1"]].astype(float)).all()
    nobody = fg.evaluate({"c0": noise["c0"]}, {"c0": labels["c0"]})
    assert "Nothing to judge" in nobody.headline


def test_controls_of_the_streams(model):
    test = {name: frame(k, 1100).iloc[700:].copy() for k, name in enumerate("abc")}
    labels = {name: np.zeros(400, int) for name in test}
    for name in test:
        test[name].iloc[200:230, 1] += 3
        labels[name][200:230] = 1
    federation = fg.data.from_arrays({n: frame(k) for k, n in enumerate("abc")}, test, labels)
    scores = model.score_samples(test)
    found = fg.evaluate(
        scores, labels, thresholds=model.threshold_, streams=federation, smoothing=model.smoothing
    )
    table = found.table
    assert list(table.index) == ["scores", "random", "row norm", "persistence", "PCA", "window PCA"]
    assert table.loc["scores", "ap"] > 2 * table.loc["random", "ap"]
    np.testing.assert_allclose(table["alarm_rate"], table.loc["scores", "alarm_rate"], atol=0.01)
    with pytest.raises(ValueError, match="streams hold other test rows than were scored: a"):
        fg.evaluate({"a": scores["a"][:-1]}, {"a": labels["a"][:-1]}, streams=federation)


def test_what_cannot_be_evaluated_is_named():
    labels, noise = labelled(100, 2)
    with pytest.raises(ValueError, match="labels lack c1"):
        fg.evaluate(noise, {"c0": labels["c0"]})
    with pytest.raises(ValueError, match="thresholds lack c1"):
        fg.evaluate(noise, labels, thresholds={"c0": 1.0})
    with pytest.raises(ValueError, match="rate=2"):
        fg.evaluate(noise, labels, rate=2)


def test_notes_are_json(model):
    assert json.loads(json.dumps(model.notes_)) == model.notes_
    assert all(re.match(r"[a-z0-9]", note) for note in model.notes_)


@pytest.mark.parametrize("value", [-9999.0, 1e30])
def test_a_row_that_blinds_a_channel_is_named(value):
    x = frame(0)
    x.iloc[100, 1] = value
    says = rf"client a: .*scale of heat \({value:.6g} in row 100 \(2024-01-01 01:40:00\)\).*missing=\"mask\""
    with pytest.warns(fg.DetectorWarning, match=says.replace("+", r"\+")):
        found = fit(a=x)
    shifted = frame(0, 200)
    shifted.iloc[50:, 1] += 3
    assert found.predict(shifted, "a").to_numpy()[50:].mean() < 0.2  # what the warning is for
    with pytest.warns(fg.DetectorWarning, match="client new: a few rows alone"):
        found.join("new", x)
    x.iloc[100, 1] = np.nan
    mended = fit({"missing": "mask"}, a=x)
    assert not any("a few rows" in note for note in mended.notes_)
    assert mended.predict(shifted, "a").to_numpy()[50:].mean() > 0.4


def test_a_row_that_blinds_a_feature_is_named(tables):
    given = {n: pd.DataFrame(x, columns=list("pqrs")) for n, x in tables.items()}
    given["y"].iloc[30, 2] = -9999
    with pytest.warns(fg.DetectorWarning, match=r"client y: .*scale of r \(-9999 in row 30\).*\"center\""):
        fg.GeodesicSVDD(**ENCODER).fit(given)
    robust = fg.GeodesicSVDD(**ENCODER, scaling="robust").fit(given)
    assert not any("a few rows" in note for note in robust.notes_)
    given["y"].iloc[30, 2] = 40.0  # among those of other clients
    given["x"]["r"] *= 100
    found = fg.GeodesicSVDD(**ENCODER).fit(given)
    assert not any("a few rows" in note for note in found.notes_)
