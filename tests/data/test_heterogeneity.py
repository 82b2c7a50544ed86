"""The three skews of a federation."""

import numpy as np
import pytest

from fedgeo import data


def test_skews_of_a_small_federation_by_hand():
    rng = np.random.default_rng(0)
    train = {"a": rng.standard_normal((100, 3)), "b": 5 + 2 * rng.standard_normal((60, 3))}
    test = {"a": rng.standard_normal((50, 3)) + np.array([0.0, 1.0, 3.0]), "b": rng.standard_normal((40, 3))}
    labels = {"a": np.arange(50) < 5, "b": np.zeros(40)}
    got = data.heterogeneity(data.from_arrays(train, test, labels), validation=0.0)
    assert got["train_rows"].tolist() == [100, 60]
    assert got["anomaly_ratio"].tolist() == [0.1, 0.0]
    pooled = np.concatenate(list(train.values()))
    for name in train:
        shared = (train[name] - pooled.mean(axis=0)) / pooled.std(axis=0)
        assert got.loc[name, "feature_skew"] == pytest.approx(shared.mean(axis=0).std())
        own = (test[name] - train[name].mean(axis=0)) / train[name].std(axis=0)
        assert got.loc[name, "drift"] == pytest.approx(np.clip(own, -10, 10).mean(axis=0).std())


def test_a_federation_without_tests_has_its_quantities():
    got = data.heterogeneity(data.from_arrays([np.eye(20, 2), np.ones((30, 2))]))
    assert got["train_rows"].tolist() == [20, 30]
    assert got[["drift", "anomaly_ratio"]].isna().all(axis=None)
    assert np.isfinite(got["feature_skew"]).all()


def test_what_the_paper_calls_feature_skew_is_drift(data_root):
    """Section VI-A1 prints 0.011-1.96 for SMAP and 0.015-1.33 for MSL."""
    for loader, low, high in ((data.smap, 0.011, 1.96), (data.msl, 0.015, 1.33)):
        drift = data.heterogeneity(loader(data_root))["drift"]
        assert round(drift.min(), 3) == pytest.approx(low, abs=0.0011)
        assert round(drift.max(), 2) == pytest.approx(high, abs=0.011)
