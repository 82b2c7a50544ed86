import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import RobustScaler, StandardScaler

import fedgeo.data
from fedgeo.data import scaling
from fedgeo.data.streams import from_arrays


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(lambda sizes: sum(sizes) > 1),
    offset=st.sampled_from([0.0, 1.0, -1e6, 1e8]),
    seed=st.integers(0, 2**32 - 1),
)
def test_federated_scaler_equals_pooled_scaler(sizes: list[int], offset: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    clients = [offset + rng.normal(rng.normal(), rng.uniform(0.5, 3.0), size=(n, 3)) for n in sizes]
    fitted = scaling.federated_scaler(clients)
    pooled = StandardScaler().fit(np.concatenate(clients))
    np.testing.assert_allclose(fitted.center, pooled.mean_, rtol=1e-10, atol=1e-10)
    # the data themselves carry a rounding of one unit in the last place of the offset
    np.testing.assert_allclose(fitted.scale, pooled.scale_, rtol=1e-10 + 1e-15 * abs(offset))


def test_long_streams_with_a_large_offset_keep_ten_digits() -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(60_000, 2))
    noise = (noise - noise.mean(0)) / noise.std(0)
    clients = np.array_split(1e6 + noise, 7)
    fitted = scaling.federated_scaler(clients)
    pooled = StandardScaler().fit(np.concatenate(clients))
    np.testing.assert_allclose(fitted.center, pooled.mean_, rtol=1e-10)
    np.testing.assert_allclose(fitted.scale, pooled.scale_, rtol=1e-10)
    np.testing.assert_allclose(fitted.scale, 1.0, rtol=1e-10)


def test_merging_is_independent_of_the_order_and_skips_empty_clients() -> None:
    rng = np.random.default_rng(1)
    parts = [scaling.moments(rng.normal(k, 1 + k, size=(5 * k, 2))) for k in range(4)]
    assert parts[0].rows.tolist() == [0, 0]
    forward, backward = scaling.merge(parts), scaling.merge(parts[::-1])
    assert forward.rows.tolist() == backward.rows.tolist() == [30, 30]
    np.testing.assert_allclose(forward.mean, backward.mean, rtol=1e-12)
    np.testing.assert_allclose(forward.m2, backward.m2, rtol=1e-12)
    with pytest.raises(ValueError, match="no moments to merge"):
        scaling.merge([])
    with pytest.raises(ValueError, match="of 2 and of 3 columns"):
        scaling.merge([parts[1], scaling.moments(np.ones((2, 3)))])


@pytest.mark.parametrize("value", [0.0, 0.1, -1e9 / 3, 1e-300])
def test_constant_channel_keeps_scale_one_and_becomes_zero(value: float) -> None:
    x = np.column_stack([np.full(1000, value), np.arange(1000.0)])
    for fitted in (scaling.fit_scaler(x), scaling.federated_scaler(np.array_split(x, 3))):
        assert fitted.constant == (0,)
        assert fitted.scale[0] == 1.0
        assert (fitted.transform(x)[:, 0] == 0.0).all()


def test_channel_constant_within_but_not_across_clients_is_scaled_by_the_federation() -> None:
    clients = [np.full((10, 1), 1.0), np.full((10, 1), 3.0)]
    assert all(scaling.fit_scaler(x).constant == (0,) for x in clients)
    shared = scaling.federated_scaler(clients)
    assert shared.constant == ()
    assert (shared.center[0], shared.scale[0]) == (2.0, 1.0)


def test_no_rows_give_the_identity_and_one_row_is_constant() -> None:
    empty = scaling.fit_scaler(np.zeros((0, 2)))
    np.testing.assert_array_equal(empty.transform(np.array([[3.0, -4.0]])), [[3.0, -4.0]])
    assert empty.constant == ()
    single = scaling.fit_scaler(np.array([[5.0, 7.0]]))
    assert single.constant == (0, 1)
    np.testing.assert_array_equal(single.transform(np.array([[6.0, 7.0]])), [[1.0, 0.0]])


def test_transform_clips_and_checks_its_width() -> None:
    fitted = scaling.fit_scaler(np.array([[0.0], [2.0]]), clip=10.0)
    np.testing.assert_array_equal(fitted.transform(np.array([[0.0], [100.0], [-100.0]]))[:, 0], [-1, 10, -10])
    with pytest.raises(ValueError, match="got 2 columns, want the 1 of the fitted scaler"):
        fitted.transform(np.zeros((1, 2)))
    with pytest.raises(ValueError, match="clip=0; want a positive bound"):
        scaling.fit_scaler(np.zeros((2, 1)), clip=0)


@pytest.mark.parametrize("one", [1e200, 1e300, np.inf, -np.inf])
@pytest.mark.parametrize("other", [0.0, -1e200, -np.inf])
def test_values_without_finite_moments_are_refused_without_a_warning_of_numpy(
    one: float, other: float
) -> None:
    x = np.array([[0.0, one], [0.0, other]])
    with pytest.raises(ValueError, match="column 1 has no finite moments"):
        scaling.fit_scaler(x)
    with pytest.raises(ValueError, match="column 1 has no finite moments"):
        scaling.standard(scaling.merge([scaling.moments(x[:1]), scaling.moments(x[1:])]))


def test_standardise_sees_only_the_rows_before_the_validation_part() -> None:
    rng = np.random.default_rng(2)
    train = {name: rng.normal(loc, 2.0, size=(100, 2)) for name, loc in (("a", 0.0), ("b", 50.0))}
    test = {name: rng.normal(size=(20, 2)) for name in train}
    made = from_arrays(train, test, {name: np.zeros(20) for name in train}, channels=("p", "q"))
    scaled, scalers = scaling.standardise(made)
    np.testing.assert_allclose(scaled.train["b"][:85].mean(0), 0.0, atol=1e-12)
    np.testing.assert_allclose(scaled.train["b"][:85].std(0), 1.0, rtol=1e-12)
    moved = {name: np.concatenate([x[:85], x[85:] + 1e3]) for name, x in train.items()}
    again, _ = scaling.standardise(from_arrays(moved, test))
    np.testing.assert_array_equal(again.test["a"], scaled.test["a"])
    assert scaling.constant_channels(scalers, made.channels) == {}


def test_standardise_by_federation_shares_one_scaler_and_names_constant_channels() -> None:
    train = {"a": np.array([[0.0, 7.0], [2.0, 7.0]]), "b": np.array([[4.0, 7.0], [6.0, 7.0]])}
    scaled, scalers = scaling.standardise(
        from_arrays(train, channels=("p", "q")), by="federation", validation=0.0
    )
    assert scalers["a"] is scalers["b"]
    np.testing.assert_allclose(scaled.train["a"][:, 0], (np.array([0.0, 2.0]) - 3.0) / np.sqrt(5.0))
    assert scaling.constant_channels(scalers, ("p", "q")) == {"a": ("q",), "b": ("q",)}
    with pytest.raises(ValueError, match='by=\'plant\'; want "client" or "federation"'):
        scaling.standardise(from_arrays(train), by="plant")  # type: ignore[arg-type]


@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=5).filter(lambda sizes: sum(sizes) > 0),
    missing=st.sampled_from([0.0, 0.3, 1.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_missing_values_are_left_out(sizes: list[int], missing: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    clients = [rng.normal(5.0, 2.0, size=(n, 3)) for n in sizes]
    for x in clients:
        x[rng.random(x.shape) < missing] = np.nan
        x[:, 2] = np.nan  # a column that nobody knows
    pooled = np.concatenate(clients)
    fitted = scaling.merge(map(scaling.moments, clients))
    assert fitted.rows.tolist() == (~np.isnan(pooled)).sum(axis=0).tolist()
    for c in range(3):
        known = pooled[~np.isnan(pooled[:, c]), c]
        np.testing.assert_allclose(fitted.mean[c], known.mean() if len(known) else 0.0, rtol=1e-12)
        np.testing.assert_allclose(
            fitted.m2[c], known.var() * len(known) if len(known) else 0.0, rtol=1e-9, atol=1e-12
        )
    scaler = scaling.federated_scaler(clients)
    assert np.isfinite(scaler.center).all()
    assert (scaler.scale > 0).all()
    assert scaler.scale[2] == 1.0
    assert 2 not in scaler.constant


@given(
    values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=3),
    share=st.floats(0.01, 1.0),
)
def test_federated_quantiles_are_those_of_the_pooled_rows(
    values: list[float], cuts: list[int], share: float
) -> None:
    x = np.array(values)[:, None]
    clients = np.split(x, np.array(sorted(min(c, len(x)) for c in cuts), dtype=int))
    got = scaling.federated_quantiles(clients, [share])
    want = np.quantile(x, share, axis=0, method="inverted_cdf")
    assert np.isfinite(got).all()
    slack = 2.0**-50 * max(np.ptp(x), 1e-300) + 1e-9 * abs(want.item())
    np.testing.assert_allclose(got[0], want, rtol=0, atol=slack)


def test_federated_robust_scaler_agrees_with_the_pooled_one() -> None:
    rng = np.random.default_rng(3)
    x = np.column_stack(
        [rng.standard_t(2, 4001), rng.exponential(10.0, 4001), rng.random(4001) < 0.1, np.full(4001, 3.0)]
    )
    fitted = scaling.federated_robust_scaler(np.array_split(x, 4))
    pooled = RobustScaler().fit(x)  # interpolates, but 4001 rows have their quartiles on rows
    np.testing.assert_allclose(fitted.center, pooled.center_, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(fitted.scale, pooled.scale_, rtol=1e-12)
    assert fitted.constant == (3,)


def test_quantiles_refuse_what_they_cannot_answer() -> None:
    with pytest.raises(ValueError, match="at least one client with rows"):
        scaling.federated_quantiles([np.zeros((0, 2))], [0.5])
    with pytest.raises(ValueError, match=r"want values in \(0, 1\]"):
        scaling.federated_quantiles([np.ones((3, 2))], [0.0])


@pytest.mark.parametrize("value", [-9999.0, 1e30])
@pytest.mark.parametrize("rows", [[70], [70, 200], range(300, 320)])
def test_a_sentinel_and_a_glitch_are_found(value, rows):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((600, 4))
    x[:, 1] = np.arange(600)  # a drift
    x[:, 2] = 3.0
    x[:, 3] = np.where(rng.random(600) < 0.05, rng.exponential(30, 600), 0)  # mostly idle
    assert scaling.outliers(x) == {}
    for column in range(4):
        spoiled = x.copy()
        spoiled[list(rows), column] = value
        spoiled[5] = np.nan
        found = scaling.outliers(spoiled)
        if column in (1, 3) and value == -9999 and len(rows) < 20:
            continue  # a wide column is hardly blinded by one
        assert list(found) == [column]
        np.testing.assert_array_equal(found[column], list(rows))
    spoiled = x.copy()
    spoiled[[7, 9], 0] = -9999, 8888
    np.testing.assert_array_equal(scaling.outliers(spoiled)[0], [7, 9])


def test_what_happens_seldom_is_no_outlier():
    rng = np.random.default_rng(0)
    x = np.zeros((5000, 5))
    x[[100, 4000], 0] = 1  # a switch
    x[rng.choice(5000, 20), 1] = rng.exponential(100, 20)  # bursts
    x[:, 2] = rng.standard_t(3, 5000)
    x[2500:2502, 3] = 1
    x[:, 4] = np.nan
    assert scaling.outliers(x) == {}
    assert scaling.outliers(x[:10]) == {}
    assert scaling.outliers(x[:0]) == {}


def test_real_servers_have_few(data_root):
    """Channels of SMD that are mostly idle and sometimes burst are not mistaken for outliers."""
    streams = fedgeo.data.smd(data_root)
    found = [scaling.outliers(x) for x in streams.train.values()]
    assert sum(map(bool, found)) <= 5
    assert sum(map(len, found)) <= 6
