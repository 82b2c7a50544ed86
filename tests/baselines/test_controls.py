import numpy as np
import pytest
from sklearn.covariance import LedoitWolf
from sklearn.decomposition import PCA

from fedgeo import data
from fedgeo.baselines import controls
from fedgeo.evaluation import auroc, macro, per_client

WINDOW, RANK = 5, 6


def _stream(steps: int, channels: int = 4, seed: int = 0) -> np.ndarray:
    """A few oscillations seen through a random mixture, plus noise."""
    rng = np.random.default_rng(seed)
    phases = np.arange(steps)[:, None] * np.array([0.1, 0.27, 0.5]) + rng.uniform(0, 6, 3)
    return np.sin(phases) @ np.random.default_rng(9).normal(size=(3, channels)) + 0.1 * rng.normal(
        size=(steps, channels)
    )


def _reconstruction_error(model: PCA, rows: np.ndarray) -> np.ndarray:
    return np.linalg.norm(rows - model.inverse_transform(model.transform(rows)), axis=1)


def test_row_norm_and_persistence_by_hand() -> None:
    x = np.array([[3.0, 4.0], [0.0, 0.0], [0.0, -2.0]])
    np.testing.assert_array_equal(controls.row_norm(x)(x), [5.0, 0.0, 2.0])
    np.testing.assert_array_equal(controls.persistence(x)(x), [np.nan, 5.0, 2.0])


def test_random_scores_follow_name_seed_and_rows() -> None:
    x, other = _stream(50), _stream(50, seed=1)
    first = controls.random("a", 0)(x)(x)
    np.testing.assert_array_equal(first, controls.random("a", 0)(other)(x))
    for changed in (
        controls.random("b", 0)(x)(x),
        controls.random("a", 1)(x)(x),
        controls.random("a", 0)(x)(other),
    ):
        assert (changed != first).all()
    assert abs(controls.random("a")(x)(np.zeros((20_000, 1))).mean() - 0.5) < 0.02


@pytest.mark.parametrize("components", [None, 2])
def test_pca_agrees_with_scikit_learn(components: int | None) -> None:
    train, test = _stream(300) + 7.0, _stream(200, seed=1) + 7.0
    model = PCA(n_components=0.95 if components is None else components, svd_solver="full").fit(train)
    score = controls.pca(components=components)(train)
    np.testing.assert_allclose(score(test), _reconstruction_error(model, test), rtol=1e-7)


def test_window_pca_agrees_with_scikit_learn_on_explicit_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controls, "_CHUNK", 17)
    train, test = _stream(300), _stream(120, seed=1)

    def explicit(x: np.ndarray) -> np.ndarray:
        return np.array([x[t : t + WINDOW].T.ravel() for t in range(len(x) - WINDOW + 1)])

    model = PCA(n_components=RANK, svd_solver="full").fit(explicit(train))
    score = controls.window_pca(window=WINDOW, rank=RANK)(train)(test)
    assert np.isnan(score[: WINDOW - 1]).all()
    np.testing.assert_allclose(score[WINDOW - 1 :], _reconstruction_error(model, explicit(test)), rtol=1e-7)


@pytest.mark.parametrize("control", controls.stream_controls("a"))
def test_stream_scores_are_causal_and_one_a_row(control: str) -> None:
    score = controls.stream_controls("a")[control](_stream(300))
    x = _stream(120, seed=1)
    whole = score(x)
    assert whole.shape == (120,)
    spiked = x.copy()
    spiked[70] += 100.0
    changed = np.flatnonzero(~np.isclose(score(spiked), whole, equal_nan=True))
    if control != "random":
        assert changed.min() == 70
        np.testing.assert_allclose(score(x[:60]), whole[:60], rtol=1e-10)
        np.testing.assert_allclose(score(x[30:])[20:], whole[50:], rtol=1e-10)


def test_mahalanobis_agrees_with_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    mixing = rng.normal(size=(6, 6))
    train, test = rng.normal(size=(80, 6)) @ mixing + 3.0, rng.normal(size=(30, 6)) @ mixing
    reference = np.sqrt(LedoitWolf().fit(train).mahalanobis(test))
    np.testing.assert_allclose(controls.mahalanobis(train)(test), reference, rtol=1e-4)


@pytest.mark.parametrize("rows", [0, 1, 2, 30])
@pytest.mark.parametrize("control", [*controls.stream_controls("a"), "Mahalanobis"])
def test_few_rows_and_constant_channels_give_finite_scores(control: str, rows: int) -> None:
    fits = controls.stream_controls("a") | controls.table_controls("a")
    train = _stream(rows)
    train[:, 1] = 2.0
    x = _stream(60, seed=1)
    score = fits[control](train)(x)
    assert np.isnan(score).sum() == {"persistence": 1, "window PCA": 19}.get(control, 0)
    assert (score[~np.isnan(score)] >= 0).all()
    assert fits[control](train)(x[:0]).shape == (0,)


@pytest.mark.parametrize("control", ["PCA", "Mahalanobis", "window PCA"])
def test_movement_of_a_channel_that_was_constant_in_training_is_seen(control: str) -> None:
    fits = controls.stream_controls("a") | controls.table_controls("a")
    train = _stream(200)
    train[:, 1] = 0.0
    calm = _stream(60, seed=1)
    calm[:, 1] = 0.0
    moved = calm.copy()
    moved[:, 1] = 1.0
    tiny = calm.copy()
    tiny[:, 1] = 1e-6
    score = fits[control](train)
    assert np.nanmin(score(moved)) > np.nanmax(score(calm))
    np.testing.assert_allclose(score(tiny), score(calm), rtol=1e-2)


@pytest.mark.parametrize("control", ["row norm", "PCA", "Mahalanobis", "window PCA"])
def test_all_constant_stream_scores_zero(control: str) -> None:
    fits = controls.stream_controls("a") | controls.table_controls("a")
    score = fits[control](np.zeros((50, 3)))(np.zeros((40, 3)))
    assert (score[~np.isnan(score)] == 0).all()


def test_window_pca_sees_a_broken_pattern_that_no_single_row_shows() -> None:
    train, test = _stream(2000), _stream(1000, seed=1)
    rng = np.random.default_rng(2)
    test[500:600] = test[500 + rng.permutation(100)]  # the same rows in another order
    labels = np.zeros(1000)
    labels[500:600] = 1
    assert auroc(controls.window_pca()(train)(test), labels) > 0.95
    assert abs(auroc(controls.pca()(train)(test), labels) - 0.5) < 0.1


def test_score_streams_fits_each_client_alone() -> None:
    train = {"a": _stream(100), "b": _stream(100, seed=1)}
    test = {"a": _stream(40, seed=2), "b": _stream(30, seed=3)}
    results = controls.score_streams(train, train, test)
    assert list(results) == list(controls.stream_controls("a"))
    for control, (on_train, on_test) in results.items():
        assert [len(on_train[c]) for c in "ab"] == [100, 100]
        assert [len(on_test[c]) for c in "ab"] == [40, 30]
        alone = controls.stream_controls("b")[control](train["b"])(test["b"])
        np.testing.assert_array_equal(on_test["b"], alone)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: controls.pca(energy=1.0), "energy=1.0; want a share"),
        (lambda: controls.pca(components=0), "components=0; want at least 1"),
        (lambda: controls.window_pca(window=0), "window=0, rank=24; want both at least 1"),
    ],
)
def test_settings_out_of_range_are_refused(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("load", "row_norm", "persistence"),
    [
        (data.smap, (0.642, 0.245, 0.343), (0.484, 0.137, 0.225)),
        (data.msl, (0.603, 0.211, 0.318), (0.512, 0.139, 0.226)),
    ],
)
def test_learning_free_controls_have_their_known_values_on_real_streams(
    data_root, load, row_norm: tuple[float, ...], persistence: tuple[float, ...]
) -> None:
    """Values of an independent computation: z-scores of the whole training stream, clipped at 10."""
    scaled, _ = data.standardise(load(data_root), validation=0.0)
    for control, expected in ((controls.row_norm, row_norm), (controls.persistence, persistence)):
        scores = {name: control(scaled.train[name])(x) for name, x in scaled.test.items()}
        mean = macro(per_client(scores, scaled.labels, oracle=True, k_percents=()))["mean"]
        np.testing.assert_allclose(mean[["auroc", "ap", "oracle_f1"]], expected, atol=0.003)
