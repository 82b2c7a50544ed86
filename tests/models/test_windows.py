"""Detectors of windows: sizes, losses, and that each of them learns."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from sklearn.metrics import roc_auc_score

from fedgeo import evaluation, federation, trees
from fedgeo.algorithms.examples import windows
from fedgeo.algorithms.fedavg import fedavg
from fedgeo.data import stack_series
from fedgeo.models import tranad as tranad_module
from fedgeo.models.autoencoders import bounded, lstm_autoencoder, usad
from fedgeo.models.tranad import tranad
from fedgeo.models.window_svdd import window_svdd

WINDOW, CHANNELS = 8, 2
TINY = {
    "svdd": window_svdd(sizes=(16, 8, 4)),
    "lstm": lstm_autoencoder(latent=8),
    "usad": usad(window=WINDOW, channels=CHANNELS, latent=8),
    "tranad": tranad(hidden=4, bound=3.0),
}
HEAVY = {"lstm", "tranad"}
tiny = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in HEAVY)) for n in TINY]
)


def parameters(model, channels, window=20):
    shape = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, window, channels)))
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(shape))


def dense(*sizes, bias=True):
    return sum(a * b + bias * b for a, b in itertools.pairwise(sizes))


@pytest.mark.parametrize("n", [25, 38, 55])
def test_sizes_follow_their_formulas(n):
    """Of detection.md, section 6, by hand from each architecture; an LSTM cell here has one bias of 4 h."""
    lstm = 4 * 64 * (n + 64 + 1) + 4 * 64 * (64 + 64 + 1) + dense(64, n)
    wide = 20 * n
    sizes = (wide, wide // 2, wide // 4, 40)
    of_usad = dense(*sizes) + 2 * dense(*sizes[::-1])
    d = 2 * n
    attention, forward = 4 * (d * d + d), dense(d, 16, d)
    of_tranad = (attention + forward) + 2 * (2 * attention + forward) + dense(d, n)
    assert parameters(lstm_autoencoder(), n) == lstm
    assert parameters(usad(channels=n), n) == of_usad
    assert parameters(tranad(), n) == of_tranad
    assert parameters(window_svdd(), n) == dense(wide, 128, 64, 32, bias=False)


def test_sizes_are_those_of_the_papers_communication():
    """LSTM-AE 227 KiB and USAD 1.9 MB at 25 channels; USAD 129 MB, TranAD 2.7 MB a round at 27 and 24 clients."""
    assert 4 * parameters(lstm_autoencoder(), 25) / 1024 == pytest.approx(227, rel=0.02)
    assert round(4 * parameters(usad(channels=25), 25) / 1e6, 1) == 1.9
    round_of = {27: 2 * round(0.25 * 27) * 4, 24: 2 * round(0.25 * 24) * 4}
    assert round_of[27] * parameters(usad(channels=55), 55) / 1e6 == pytest.approx(129, rel=0.02)
    assert round_of[24] * parameters(tranad(), 25) / 1e6 == pytest.approx(2.7, rel=0.02)


def waves(client, rows, *, broken=()):
    """Two noisy channels in quadrature; from each row of ``broken`` on, one stands still for 12 rows."""
    rng = np.random.default_rng(client)
    phase = 0.5 * np.arange(rows) + client
    x = np.stack([np.sin(phase), np.cos(phase)], axis=1) + 0.05 * rng.standard_normal((rows, 2))
    y = np.zeros(rows, int)
    for start in broken:
        x[start : start + 12, 0] = -x[start : start + 12, 0]
        y[start : start + 12] = 1
    return x.astype(np.float32), y


@pytest.fixture(scope="module")
def series():
    """Four clients, one too short for any window."""
    streams = [waves(k, rows)[0] for k, rows in enumerate((260, 200, WINDOW - 1, 240))]
    return jax.tree.map(jnp.asarray, stack_series(streams))


@tiny
def test_each_learns_and_beats_its_own_untrained_copy(name, series):
    examples = windows(WINDOW, stride=2)
    alg = fedavg(TINY[name], examples=examples, optimizer=optax.adam(1e-2), epochs=3, batch_size=32)
    key = jax.random.key(0)
    start = federation.init(alg, key, series)
    state, history = federation.fit(alg, key, series, rounds=8, sampler=federation.uniform(3), state=start)
    assert not np.asarray(history.quarantined).any()
    validation = jnp.asarray(waves(9, 150)[0])
    test, y = waves(10, 400, broken=(60, 150, 260, 340))
    score = jax.jit(alg.score)
    before, after = (np.asarray(score(one.server, validation)) for one in (start, state))
    assert np.isnan(after[: WINDOW - 1]).all()
    assert np.nanmean(after) < 0.8 * np.nanmean(before)
    got, untrained = (np.asarray(score(one.server, jnp.asarray(test))) for one in (state, start))
    known = ~np.isnan(got)
    assert len(np.unique(got[known])) > 0.9 * known.sum()
    auc, untrained_auc = (roc_auc_score(y[known], s[known]) for s in (got, untrained))
    # TranAD's decoder is given the row that it rebuilds, and learns to copy it, broken or not.
    if name != "tranad":
        assert auc > 0.8
        assert auc > untrained_auc + 0.03
    lone = federation.incidents(history, list("abcd"))
    assert not any("aggregate" in line for line in lone)
    if np.any(np.asarray(history.client) == 2):
        assert any("client c has no usable rows" in line for line in lone)


def test_usads_losses_are_those_of_the_paper_and_train_their_own_parts():
    model = TINY["usad"]
    x = jax.random.normal(jax.random.key(1), (6, WINDOW, CHANNELS))
    mask = jnp.arange(6) < 5
    params = model.init(jax.random.key(0), x)
    both = jax.jit(lambda p, n: [loss(None, p, n, x, mask) for loss in (model.loss, *model.others)])

    def perceptron(tree, v, last):
        layers = [tree["params"][f"Dense_{i}"] for i in range(3)]
        for i, layer in enumerate(layers):
            v = v @ np.asarray(layer["kernel"], np.float64) + np.asarray(layer["bias"], np.float64)
            v = np.maximum(v, 0) if i < 2 or last else v
        return v

    def encode(v):
        return perceptron(params["encoder"], v, last=True)

    def decode(which, code):
        return 10 * np.tanh(perceptron(params[which], code, last=False) / 10)

    w = np.asarray(x, np.float64).reshape(6, -1)[:5]
    w1, w2 = decode("first", encode(w)), decode("second", encode(w))
    w3 = decode("second", encode(w1))
    e1, e2, e3 = (np.mean((w - v) ** 2, axis=1) for v in (w1, w2, w3))
    for n in (1.0, 4.0):
        first, second = both(params, jnp.asarray(n))
        assert first == pytest.approx(np.mean(e1 / n + (1 - 1 / n) * e3), rel=1e-5)
        gain = np.minimum(e3, np.mean(w**2, axis=1))
        assert second == pytest.approx(np.mean(e2 / n - (1 - 1 / n) * gain), rel=1e-5, abs=1e-6)
    np.testing.assert_allclose(model.score(params, jnp.asarray(1.0), x)[:5], (e1 + e3) / 2, rtol=1e-5)
    for loss, left_alone in ((model.loss, "second"), (model.others[0], "first")):
        gradient = jax.grad(loss, argnums=1)(None, params, jnp.asarray(4.0), x, mask)
        moved = {part: any(np.any(leaf) for leaf in jax.tree.leaves(tree)) for part, tree in gradient.items()}
        assert moved == {part: part != left_alone for part in ("encoder", "first", "second")}


def test_the_number_of_the_round_reaches_the_loss(series):
    alg = fedavg(TINY["usad"], examples=windows(WINDOW, stride=8), epochs=1)
    key = jax.random.key(0)
    state, _ = federation.fit(alg, key, series, rounds=3)
    assert float(state.server.anchor) == pytest.approx(4)  # 1 before the first


def test_attention_by_sums_is_scaled_dot_product_attention():
    query, key, value = jax.random.normal(jax.random.key(0), (3, 2, 5, 4, 2))
    want = nn.dot_product_attention(query[:, :3], key, value)
    np.testing.assert_allclose(tranad_module.attend(query[:, :3], key, value), want, rtol=1e-5, atol=1e-6)


def test_tranad_weighs_its_reconstructions_by_the_round():
    model = tranad(hidden=4, dropout=0.0, bound=3.0)
    x = jax.random.normal(jax.random.key(1), (6, WINDOW, CHANNELS))
    mask = jnp.arange(6) < 5
    params = model.init(jax.random.key(0), x)
    first, second = tranad_module.TranADNetwork(4, 0.0).apply(params, x / 3.0)
    e1, e2 = (np.mean((np.asarray(x[:, -1]) / 3.0 - np.asarray(r)) ** 2, axis=1) for r in (first, second))
    loss = jax.jit(model.loss)
    for n in (1.0, 5.0):
        want = np.mean((e1 / n + (1 - 1 / n) * e2)[:5])
        assert loss(jax.random.key(2), params, jnp.asarray(n), x, mask) == pytest.approx(want, rel=1e-5)
    np.testing.assert_allclose(model.score(params, jnp.asarray(1.0), x), (e1 + e2) / 2, rtol=1e-5)


def test_svdds_centre_is_the_mean_of_the_clients_means_and_keeps_away_from_zero(series):
    model, examples = TINY["svdd"], windows(WINDOW)
    alg = fedavg(model, examples=examples)
    server = federation.init(alg, jax.random.key(0), series).server
    means = []
    for k in (0, 1, 3):
        x = np.asarray(series.x[k])[np.asarray(series.mask[k])]
        v = np.stack([x[t : t + WINDOW].ravel() for t in range(len(x) - WINDOW + 1)]).astype(np.float64)
        for i in range(3):
            v = v @ np.asarray(server.params["params"][f"Dense_{i}"]["kernel"], np.float64)
            v = np.where(v > 0, v, 0.01 * v) if i < 2 else v
        means.append(v.mean(axis=0))
    np.testing.assert_allclose(server.anchor, np.mean(means, axis=0), rtol=1e-4, atol=1e-5)

    x = jnp.zeros((1, WINDOW, CHANNELS))  # embedded at 0, so the score is the centre's squared length
    centre = jnp.asarray([0.05, -0.02, 0.3, 0.0])
    assert model.score(server.params, centre, x)[0] == pytest.approx(0.1**2 + 0.1**2 + 0.3**2)


def test_collapse_is_told_when_weights_are_forced_constant_and_only_then(series):
    alg = fedavg(TINY["svdd"], examples=windows(WINDOW))
    server = federation.init(alg, jax.random.key(0), series).server
    streams = {"a": waves(9, 150)[0], "still": np.zeros((50, CHANNELS), np.float32)}

    def warnings(params):
        detector = server._replace(params=params)
        scores = {n: np.asarray(alg.score(detector, jnp.asarray(x))) for n, x in streams.items()}
        return evaluation.collapse_warnings(scores, streams, WINDOW)

    assert warnings(server.params) == []
    (zero,) = warnings(jax.tree.map(jnp.zeros_like, server.params))
    assert zero.startswith("a: scores have collapsed, 1 distinct for 143 distinct examples")
    (small,) = warnings(jax.tree.map(lambda leaf: 0.02 * leaf, server.params))
    assert "a: scores have collapsed" in small


def test_messages_are_the_models(series):
    """What a client uploads is the parameters, and what the server sends is these and the anchor."""
    for name in ("svdd", "usad"):
        alg = fedavg(TINY[name], examples=windows(WINDOW))
        state = federation.init(alg, jax.random.key(0), series)
        count = parameters(TINY[name], CHANNELS, WINDOW)
        assert federation.upload_bytes(alg, state, series) == 4 * count
        assert trees.nbytes(state.server) == 4 * count + 4 * {"svdd": 4, "usad": 1}[name]


def test_bounded_is_the_sigmoid_of_scaled_data():
    x = jnp.linspace(-30, 30, 7)
    np.testing.assert_allclose(
        (bounded(x, 10.0) + 10) / 20, 1 / (1 + np.exp(-2 * np.asarray(x) / 10)), rtol=1e-5
    )


@pytest.mark.parametrize(
    "call",
    [
        lambda: usad(channels=0),
        lambda: usad(window=1, channels=2),
        lambda: usad(channels=2, bound=0.0),
        lambda: usad(channels=2, cap=0.0),
        lambda: lstm_autoencoder(latent=0),
        lambda: tranad(dropout=1.0),
        lambda: window_svdd(sizes=()),
        lambda: windows(0),
        lambda: windows(5, stride=0),
        lambda: TINY["usad"].init(jax.random.key(0), jnp.zeros((1, WINDOW, 3))),
    ],
)
def test_bad_arguments_are_named(call):
    with pytest.raises(ValueError, match=r"want|must be|reads windows"):
        call()
