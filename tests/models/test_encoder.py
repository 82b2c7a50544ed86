import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedgeo.models import encoder


@pytest.fixture(scope="module")
def rows():
    x = jax.random.normal(jax.random.key(0), (12, 5))
    mask = jnp.arange(12) < 8
    return jnp.where(mask[:, None], x, 0), mask


MODELS = {
    "slerp": encoder.geodesic_svdd(latent=6, width=16),
    "lerp": encoder.geodesic_svdd(latent=6, width=16, mixup="lerp"),
    "none": encoder.geodesic_svdd(latent=6, width=16, mixup="none"),
    "mlp": encoder.mlp_svdd(latent=6, width=16),
    "mlp_sphere": encoder.mlp_svdd(latent=6, width=16, sphere=True),
}


@pytest.fixture(params=MODELS)
def model(request):
    return MODELS[request.param]


def test_embeddings_are_unit_vectors_even_of_zero_rows():
    network = encoder.SphericalEncoder(latent=6, width=16, blocks=2, dropout=0.1)
    x = jnp.concatenate([jax.random.normal(jax.random.key(1), (50, 5)) * 100, jnp.zeros((1, 5))])
    z = network.apply(network.init(jax.random.key(0), x), x)
    np.testing.assert_allclose(jnp.linalg.norm(z, axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize("lam", [0.0, 1.0, 0.3])
def test_mixup_follows_each_equation(lam):
    """Eq. 5 puts lambda on the second point, the linear path on the first."""
    a, b = jnp.asarray([[1.0, 0, 0]]), jnp.asarray([[0, 1.0, 0]])
    angle = np.pi / 2
    along = (np.sin((1 - lam) * angle) * a + np.sin(lam * angle) * b) / np.sin(angle)
    np.testing.assert_allclose(encoder.mix(a, b, jnp.asarray(lam), "slerp"), along, atol=1e-6)
    np.testing.assert_allclose(
        encoder.mix(a, b, jnp.asarray(lam), "lerp"), lam * a + (1 - lam) * b, atol=1e-6
    )


def test_shuffle_permutes_the_rows_that_count():
    mask = jnp.asarray([True, False, True, True, False, True])
    seen = set()
    for seed in range(40):
        order = np.asarray(encoder.shuffle(jax.random.key(seed), mask))
        assert sorted(order.tolist()) == list(range(6))
        assert sorted(order[mask].tolist()) == [0, 2, 3, 5]
        seen.add(tuple(order[mask].tolist()))
    assert len(seen) > 15  # of 24


def test_loss_is_finite_with_a_gradient_and_blind_to_padding(model, rows):
    x, mask = rows
    params = model.init(jax.random.key(1), x)
    anchor = model.anchor(params, x, mask)
    loss_and_gradient, loss = jax.jit(jax.value_and_grad(model.loss, argnums=1)), jax.jit(model.loss)
    for key in jax.random.split(jax.random.key(2), 8):  # mixup pairs of a row with itself are among these
        value, gradient = loss_and_gradient(key, params, anchor, x, mask)
        chex.assert_tree_all_finite((value, gradient))
        spoiled = jnp.where(mask[:, None], x, 100.0)
        other = loss(key, params, anchor, spoiled, mask)
        assert other == pytest.approx(float(value), rel=1e-5)


def test_anchor_is_the_mean_embedding_of_the_rows_that_count(model, rows):
    x, mask = rows
    params = model.init(jax.random.key(1), x)
    want = model.anchor(params, x[:8], jnp.ones(8, bool))
    assert np.isfinite(want).all()
    np.testing.assert_allclose(model.anchor(params, x, mask), want, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(model.anchor(params, x, jnp.zeros(12, bool)), jnp.zeros(6))


def test_score_is_the_students_negative_log_likelihood(rows):
    x, mask = rows
    model, network = MODELS["slerp"], encoder.SphericalEncoder(6, 16, 2, 0.1)
    params = model.init(jax.random.key(1), x)
    anchor = model.anchor(params, x, mask)
    center = np.asarray(anchor, np.float64) / np.linalg.norm(np.asarray(anchor, np.float64))
    d2 = np.sum((np.asarray(network.apply(params, x), np.float64) - center) ** 2, axis=1)
    np.testing.assert_allclose(model.score(params, anchor, x), np.log(1 + d2), rtol=1e-4)


def test_the_planes_centre_keeps_away_from_zero():
    got = encoder._away_from_zero(jnp.asarray([0.05, -0.02, 0.3, -0.4, 0.0]))
    np.testing.assert_allclose(got, [0.1, -0.1, 0.3, -0.4, 0.0])


@pytest.mark.parametrize(
    "call",
    [
        lambda: encoder.geodesic_svdd(mixup="spherical"),
        lambda: encoder.geodesic_svdd(latent=1),
        lambda: encoder.geodesic_svdd(dropout=1.0),
        lambda: encoder.geodesic_svdd(kappa=0.0),
        lambda: encoder.mlp_svdd(latent=1),
        lambda: encoder.mlp_svdd(width=0),
    ],
)
def test_bad_arguments_are_named(call):
    with pytest.raises(ValueError, match=r"want|must be"):
        call()


def test_training_is_mixed_and_dropped_out(rows):
    x, mask = rows
    made = {
        (mixup, rate): encoder.geodesic_svdd(latent=6, width=16, mixup=mixup, dropout=rate)
        for mixup in ("slerp", "lerp", "none")
        for rate in (0.0, 0.5)
    }
    params = made["none", 0.0].init(jax.random.key(1), x)
    anchor = made["none", 0.0].anchor(params, x, mask)
    loss = {
        how: [float(model.loss(jax.random.key(k), params, anchor, x, mask)) for k in (0, 1)]
        for how, model in made.items()
    }
    assert loss["none", 0.0][0] == loss["none", 0.0][1]  # nothing random is left
    assert loss["none", 0.5][0] != loss["none", 0.5][1]
    assert len({loss[mixup, 0.0][0] for mixup in ("slerp", "lerp", "none")}) == 3


@pytest.mark.parametrize("kappa", [0.2, 1.0, 5.0])
def test_mixup_draws_as_beta_does(kappa):
    keys = jax.random.split(jax.random.key(0), 500)
    got = jax.vmap(lambda key: encoder._beta(key, kappa))(keys)
    assert ((got >= 0) & (got <= 1)).all()
    want = jax.vmap(lambda key: jax.random.beta(key, kappa, kappa))(keys)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)
