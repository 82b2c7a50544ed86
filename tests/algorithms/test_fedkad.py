import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedgeo import federation
from fedgeo.algorithms import comparators, koopman, moments
from fedgeo.algorithms import fedkad as fedkad_module
from fedgeo.algorithms.fedkad import fedkad
from fedgeo.protocol import Series
from tests.algorithms import fedkad_reference as reference

WINDOW, RANK, CHANNELS = 4, 3, 3


def relative(got, want):
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert np.isfinite(got).all()
    return np.abs(got - want).max() / np.abs(want).max()


@pytest.fixture(scope="module")
def lift():
    return koopman.random_lift(jax.random.key(7), CHANNELS, window=WINDOW, size=6)


@pytest.fixture(scope="module")
def streams():
    """Four noisy oscillators of their own frequencies and lengths, float32 values."""
    rng = np.random.default_rng(0)
    result = []
    for k, steps in enumerate((70, 55, 90, 64)):
        t = np.arange(steps)[:, None]
        x = np.sin(t * (0.1 + 0.05 * k) + np.arange(CHANNELS) * 1.3) + 0.1 * rng.standard_normal(
            (steps, CHANNELS)
        )
        result.append(x.astype(np.float32))
    return result


@pytest.fixture(scope="module")
def series(streams):
    longest = max(map(len, streams))
    x = np.zeros((len(streams), longest, CHANNELS), np.float32)
    mask = np.zeros((len(streams), longest), bool)
    for k, stream in enumerate(streams):
        x[k, : len(stream)], mask[k, : len(stream)] = stream, True
    return Series(jnp.asarray(x), jnp.asarray(mask))


@pytest.mark.parametrize("projection", ["horizontal", "tangent"])
@pytest.mark.parametrize("cohort", [2, 4])
def test_equals_the_numpy_loop(lift, streams, series, projection, cohort):
    settings = dict(rho=0.7, ridge=1e-2)
    alg = fedkad(
        lift,
        rank=RANK,
        step_size=0.2,
        inner_steps=3,
        projection=projection,
        start="independent",
        horizon=2,
        **settings,
    )
    data = moments.prepare(lift, series)
    key = jax.random.key(3)
    start = federation.init(alg, key, data)
    state, history = federation.fit(alg, key, data, rounds=5, sampler=federation.uniform(cohort))

    weight, bias = (np.asarray(p, np.float64) for p in (lift.matrix, lift.bias))
    Z, P, duals, raw = reference.admm(
        [s.astype(np.float64) for s in streams], weight, bias, WINDOW,
        np.asarray(start.server, np.float64), list(np.asarray(start.clients.frame, np.float64)),
        np.asarray(history.client), eta=0.2, inner=3, tangent=projection == "tangent", **settings,
    )  # fmt: skip
    assert relative(state.server, Z) < 1e-4
    assert relative(state.clients.frame, P) < 1e-4
    assert relative(state.clients.dual, duals) < 1e-4
    assert np.asarray(history.metrics["orthonormality_error"]).max() < 1e-5

    detectors = federation.deploy(alg, state, data)
    gram = np.einsum("kdr,kds->krs", detectors.basis, detectors.basis)
    assert np.abs(gram - np.eye(RANK)).max() < 1e-5
    for k, (X, Y) in enumerate(raw):
        got = alg.score(jax.tree.map(lambda leaf, k=k: leaf[k], detectors), jnp.asarray(streams[k]))
        want = reference.scores(
            streams[k].astype(np.float64),
            Z,
            X,
            Y,
            weight,
            bias,
            WINDOW,
            ridge=1e-2,
            cap=0.995,
            horizon=2,
            smoothing=5,
        )
        warm = WINDOW - 1 + 2
        assert np.isnan(got[:warm]).all()
        assert np.isnan(want[:warm]).all()
        assert relative(got[warm:], want[warm:]) < 1e-4


def test_local_loss_and_gradient_agree_with_finite_differences(lift, series):
    data = jax.tree.map(lambda leaf: leaf[0], moments.prepare(lift, series))
    frame = np.linalg.qr(np.random.default_rng(1).standard_normal((data.xx.shape[0], RANK)))[0]
    q = fedkad_module.fit_frame(data, jnp.asarray(frame, jnp.float32), 1e-2)
    full = {name: np.asarray(value, np.float64) for name, value in data._asdict().items()}

    def loss(P):
        a, b = P.T @ full["xx"] @ P, P.T @ full["yx"] @ P
        Q = np.asarray(q, np.float64)
        return (full["yy"].sum() - 2 * np.sum(b * Q) + np.trace(Q @ a @ Q.T)) / (
            full["pairs"] * len(full["xx"])
        )

    assert fedkad_module.local_loss(data, jnp.asarray(frame, jnp.float32), q) == pytest.approx(
        loss(frame), rel=1e-4
    )
    # Along a horizontal direction the loss of the moments (P'P = I to first order) changes as the gradient says.
    rng = np.random.default_rng(2)
    v = rng.standard_normal(frame.shape)
    v -= frame @ (frame.T @ v)
    step = 1e-5
    slope = (loss(frame + step * v) - loss(frame - step * v)) / (2 * step)
    got = fedkad_module.local_gradient(data, jnp.asarray(frame, jnp.float32), q)
    assert np.sum(np.asarray(got, np.float64) * v) == pytest.approx(slope, rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(rank=0), "rank must be a whole number of at least 1, got 0"),
        (dict(rank=2.5), "rank must be a whole number of at least 1, got 2.5"),
        (dict(inner_steps=1.5), "inner_steps must be a whole number"),
        (dict(rank=19), "lifted dimension D = 18, got 19"),
        (dict(rho=0.0), "rho must be positive"),
        (dict(step_size=float("nan")), "step_size must be positive"),
        (dict(inner_steps=0), "inner_steps must be a whole number of at least 1"),
        (dict(projection="orthogonal"), "projection must be"),
        (dict(start="same"), "start must be"),
    ],
)
def test_bad_arguments_are_named(lift, arguments, message):
    with pytest.raises(ValueError, match=message):
        fedkad(lift, **{"rank": RANK} | arguments)
    with pytest.raises(ValueError, match=r"lift must be a Lift, such as fedgeo.random_lift makes, got None"):
        fedkad(None)


def test_data_of_another_kind_are_named(lift, series):
    alg, key = fedkad(lift, rank=RANK), jax.random.key(0)
    with pytest.raises(ValueError, match=r"got Series; pass fedgeo.prepare\(lift, series\)"):
        federation.fit(alg, key, series, rounds=1)
    other = koopman.random_lift(key, series.x.shape[-1], window=2, size=3)
    with pytest.raises(
        ValueError, match=f"made with one of D = {lift.dimension}; prepare them with the same lift"
    ):
        federation.fit(alg, key, moments.prepare(other, series), rounds=1)
    for wrong in (series.x, {"a": series.x[0]}):
        with pytest.raises(ValueError, match=r"moments are taken of a Series\(x, mask\), got "):
            moments.prepare(lift, wrong)


def test_streams_of_whole_numbers_are_those_of_floats(lift, series):
    alg, key = fedkad(lift, rank=RANK, smoothing=3), jax.random.key(0)
    whole = series._replace(x=jnp.round(10 * series.x).astype(jnp.int32))
    found = []
    for data in (whole, whole._replace(x=whole.x.astype(jnp.float32))):
        sums = moments.prepare(lift, data)
        state, _ = federation.fit(alg, key, sums, rounds=2)
        found.append((sums, federation.score(alg, federation.deploy(alg, state, sums), data.x)))
    chex.assert_trees_all_equal_dtypes(*found)
    jax.tree.map(np.testing.assert_array_equal, *found)
    assert np.isfinite(np.asarray(found[0][1])[:, -1]).all()
    assert np.isnan(np.asarray(found[0][1])[:, 0]).all()


def test_the_warm_start_spans_the_leading_subspace(lift, series):
    data = moments.prepare(lift, series)
    # A client without rows and one with damaged moments have no part in it.
    nobody = jax.tree.map(lambda leaf: jnp.zeros_like(leaf[:1]), data)
    damaged = jax.tree.map(lambda leaf: jnp.full_like(leaf[:1], jnp.nan), data)
    more = jax.tree.map(lambda *parts: jnp.concatenate(parts), data, nobody, damaged)
    mean = np.mean(
        [np.asarray(xx, np.float64) / m for xx, m in zip(data.xx, data.pairs, strict=True)], axis=0
    )
    values, vectors = np.linalg.eigh(mean)
    state = fedkad(lift, rank=RANK, start="warm").init(jax.random.key(0), more)
    frame = np.asarray(state.server, np.float64)
    assert np.abs(frame.T @ frame - np.eye(RANK)).max() < 1e-5
    assert np.trace(frame.T @ mean @ frame) > 0.999 * values[-RANK:].sum()
    assert np.linalg.norm(vectors[:, -1] @ frame) > 0.9999


def test_the_warm_start_of_constant_streams_is_orthonormal(lift):
    flat = Series(jnp.zeros((2, 30, CHANNELS)), jnp.ones((2, 30), bool))
    data = moments.prepare(lift, flat)
    frame = np.asarray(fedkad(lift, rank=RANK, start="warm").init(jax.random.key(0), data).server)
    assert np.abs(frame.T @ frame - np.eye(RANK)).max() < 1e-5


def test_a_sweep_over_penalties_is_one_more_vmap(lift, series):
    data, key = moments.prepare(lift, series), jax.random.key(0)

    def server(rho):
        alg = fedkad(lift, rank=RANK, rho=rho)
        return federation.run(
            alg,
            key,
            federation.init(alg, key, data),
            data,
            jnp.asarray(0),
            sampler=federation.everyone,
            rounds=2,
        )[0].server

    penalties = jnp.asarray([0.1, 1.0])
    swept = jax.jit(jax.vmap(server))(penalties)
    for rho, got in zip(penalties, swept, strict=True):
        assert relative(got, server(float(rho))) < 1e-5
    assert relative(swept[0], swept[1]) > 1e-3


def test_moments_count_only_pairs_within_runs_of_known_rows(lift, streams):
    """A gap ends a run: the moments are the sum of those of the parts, and padding adds nothing."""
    x = streams[2]
    gap = np.ones(len(x), bool)
    gap[40:43] = False
    got = moments.second_moments(lift, Series(jnp.asarray(x * gap[:, None]), jnp.asarray(gap)), chunk=16)
    parts = [np.asarray(part, np.float64) for part in (x[:40], x[43:])]
    weight, bias = (np.asarray(p, np.float64) for p in (lift.matrix, lift.bias))
    phis = [reference.snapshots(part, weight, bias, WINDOW) for part in parts]
    X = np.concatenate([phi[:, :-1] for phi in phis], axis=1)
    Y = np.concatenate([phi[:, 1:] for phi in phis], axis=1)
    assert got.pairs == X.shape[1] == len(x) - 3 - 2 * WINDOW
    assert relative(got.xx, X @ X.T) < 1e-5
    assert relative(got.yx, Y @ X.T) < 1e-5
    assert relative(got.yy, np.sum(Y * Y, axis=1)) < 1e-5


@pytest.mark.parametrize("steps", [0, 1, WINDOW, WINDOW + 1])
def test_streams_around_the_window_length(lift, steps):
    x = jnp.ones((steps, CHANNELS))
    got = moments.second_moments(lift, Series(x, jnp.ones(steps, bool)))
    assert got.pairs == max(steps - WINDOW, 0)
    chex.assert_tree_all_finite(got)
    detector = koopman.Detector(lift, jnp.eye(18, RANK), jnp.eye(RANK))
    scores = koopman.residuals(detector, x)
    assert scores.shape == (steps,)
    assert np.isfinite(scores).sum() == max(steps - WINDOW, 0)


def test_residuals_do_not_depend_on_the_chunk(lift, streams):
    detector = koopman.Detector(lift, jnp.eye(18, RANK), 0.9 * jnp.eye(RANK))
    x = jnp.asarray(streams[0])
    whole = koopman.residuals(detector, x, horizon=3)
    for chunk in (1, 7, 64):
        np.testing.assert_allclose(koopman.residuals(detector, x, horizon=3, chunk=chunk), whole, rtol=2e-6)


def test_scores_are_causal_and_shift_with_the_stream(lift, streams):
    detector = koopman.Detector(lift, jnp.eye(18, RANK), 0.9 * jnp.eye(RANK))
    score = lambda x: np.asarray(koopman.smooth(koopman.residuals(detector, jnp.asarray(x)), 5))  # noqa: E731
    x = streams[2]
    base = score(x)
    spike = x.copy()
    spike[50] += 8
    changed = score(spike)
    np.testing.assert_array_equal(changed[:50], base[:50])
    assert changed[50] > base[50] + 1
    later = score(x[30:])
    settled = WINDOW + 4  # window, horizon and smoothing are full
    np.testing.assert_allclose(later[settled:], base[30 + settled :], rtol=2e-6)


@pytest.mark.parametrize(
    "q",
    [
        np.diag([0.5, -0.9, 0.1]),
        1.3 * np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 0.2]]),
        np.array([[0.9, 5.0, 3.0], [0, 0.9, 5.0], [0, 0, 0.9]]),
        np.zeros((3, 3)),
        np.array([[0.0, 1, 0], [0, 0, 1], [0, 0, 0]]),
        np.random.default_rng(4).standard_normal((24, 24)),
        np.random.default_rng(5).standard_normal((24, 24)) * 1e-6,
    ],
)
def test_spectral_radius_and_cap(q):
    want = np.abs(np.linalg.eigvals(q)).max()
    got = koopman.spectral_radius(jnp.asarray(q, jnp.float32))
    assert got == pytest.approx(want, rel=1e-4, abs=1e-12)
    capped = np.asarray(koopman.cap_spectrum(jnp.asarray(q, jnp.float32), 0.5), np.float64)
    assert np.isfinite(capped).all()
    assert np.abs(np.linalg.eigvals(capped)).max() <= min(want, 0.5) * (1 + 1e-2) + 1e-9


def test_the_deployed_operator_is_capped(lift, series):
    data, key = moments.prepare(lift, series), jax.random.key(0)
    free, capped = (
        fedkad(lift, rank=RANK, start="warm", ridge=1e-6, spectral_cap=cap) for cap in (10.0, 0.5)
    )
    state = federation.init(free, key, data)
    radii = [
        np.abs(np.linalg.eigvals(np.asarray(federation.deploy(alg, state, data).operator, np.float64))).max(
            axis=1
        )
        for alg in (free, capped)
    ]
    assert (radii[0] > 0.6).all()
    np.testing.assert_allclose(radii[1], 0.5, rtol=1e-3)


def test_smoothing_keeps_an_infinite_score(lift):
    """A saturated sensor is an alarm, not a gap."""
    got = koopman.smooth(jnp.asarray([jnp.nan, 1.0, 3.0, jnp.inf, 2.0, 2.0, 2.0]), 3)
    np.testing.assert_array_equal(got, [np.nan, 1, 2, np.inf, np.inf, np.inf, 2])


def test_a_lift_reads_only_its_own_channels(lift):
    with pytest.raises(ValueError, match="this lift reads 3 channels, got streams of 6"):
        moments.second_moments(lift, Series(jnp.ones((30, 6)), jnp.ones(30, bool)))


def test_the_pool_is_the_mean_of_the_sound_clients(lift, series):
    data = moments.prepare(lift, series)
    nobody, damaged = (
        jax.tree.map(lambda leaf, fill=fill: jnp.full_like(leaf[:1], fill), data) for fill in (0, jnp.nan)
    )
    more = jax.tree.map(lambda *parts: jnp.concatenate(parts), data, nobody, damaged)
    pooled = comparators.pool(more)
    want = np.mean(
        [np.asarray(xx, np.float64) / m for xx, m in zip(data.xx, data.pairs, strict=True)], axis=0
    )
    assert relative(pooled.xx, want) < 1e-6
    assert pooled.pairs == 1
