"""Optax on manifolds: against hand-written descent, in mixed trees, and in the examples a user would write."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from manifolds import optim, sphere, stiefel
from tests.manifolds.common import double, eps, gap, orthonormality

KEY = jax.random.key(6)


def test_example_gradient_descent_on_stiefel():
    A = jnp.diag(jnp.arange(8.0))
    X = stiefel.random(jax.random.key(0), (8, 2))
    for _ in range(200):
        gradient = jax.grad(lambda X: -jnp.trace(X.T @ A @ X))(X)
        X = stiefel.retract(X, -0.1 * stiefel.project_tangent(X, gradient))
    assert jnp.trace(X.T @ A @ X) > 13 - 1e-3  # the two largest eigenvalues are 6 and 7


def test_example_pca_by_riemannian_adam_in_one_scan():
    data = jax.random.normal(jax.random.key(0), (500, 6)) * jnp.arange(1.0, 7.0)[None]
    optimizer = optim.riemannian(optax.adam(0.05), optim.Stiefel())

    def step(carry, _):
        X, state = carry
        gradient = jax.grad(lambda X: -jnp.mean(jnp.sum((data @ X) ** 2, 1)))(X)
        updates, state = optimizer.update(gradient, state, X)
        return (optax.apply_updates(X, updates), state), None

    X = stiefel.random(jax.random.key(1), (6, 2))
    X = jax.jit(lambda X: jax.lax.scan(step, (X, optimizer.init(X)), length=1000)[0][0])(X)
    captured = np.linalg.norm(double(data) @ double(X)) ** 2
    best = (np.linalg.svd(double(data), compute_uv=False)[:2] ** 2).sum()
    assert captured > 0.999 * best
    assert orthonormality(X) <= 10 * eps(jnp.float32)


def test_example_mixed_parameters():
    p = {"X": stiefel.random(KEY, (3, 6, 2)), "x": sphere.random(KEY, (5,)), "b": jnp.ones(4)}
    goal = {"X": p["X"][..., ::-1], "x": p["x"][::-1], "b": -p["b"]}
    adam = optax.adam(0.01)
    rules = {
        "X": optim.riemannian(adam, optim.Stiefel()),
        "x": optim.riemannian(adam, optim.Sphere()),
        "b": adam,
    }
    tx = optax.multi_transform(rules, {name: name for name in p})
    loss = lambda p: sum(jnp.sum((p[name] - goal[name]) ** 2) for name in p)  # noqa: E731

    def step(carry, _):  # fmt: skip
        updates, state = tx.update(jax.grad(loss)(carry[0]), carry[1], carry[0])
        return (optax.apply_updates(carry[0], updates), state), None

    (p, _), _ = jax.jit(lambda p: jax.lax.scan(step, (p, tx.init(p)), length=1500))(p)  # fmt: skip
    assert loss(p) < 1e-4
    assert orthonormality(p["X"]) <= 10 * eps(jnp.float32)
    assert abs(jnp.linalg.norm(p["x"]) - 1) <= 4 * eps(jnp.float32)


def test_mixed_parameters_with_chains_reach_their_targets():
    parameters = {
        "frames": stiefel.random(jax.random.key(0), (3, 6, 2)),
        "center": sphere.random(jax.random.key(1), (5,)),
        "bias": jnp.ones(4),
    }
    sgd = optax.sgd(0.1, momentum=0.9)
    rules = {
        "frames": optim.riemannian(optax.chain(optax.clip(1.0), optax.adam(0.01)), optim.Stiefel()),
        "center": optim.riemannian(sgd, optim.Sphere()),
        "bias": optax.adam(0.1),
    }
    optimizer = optax.multi_transform(rules, {name: name for name in parameters})
    targets = jax.tree.map(lambda p: p[..., ::-1], parameters)

    def loss(p):
        return sum(jnp.sum((a - b) ** 2) for a, b in zip(p.values(), targets.values(), strict=True))

    @jax.jit
    def run(p):
        def step(carry, _):
            p, state = carry
            updates, state = optimizer.update(jax.grad(loss)(p), state, p)
            return (optax.apply_updates(p, updates), state), None

        return jax.lax.scan(step, (p, optimizer.init(p)), length=2000)[0][0]

    targets["bias"] = jnp.zeros(4)
    found = run(parameters)
    assert orthonormality(found["frames"]) <= 10 * eps(jnp.float32)
    assert abs(np.linalg.norm(double(found["center"])) - 1) <= 4 * eps(jnp.float32)
    assert gap(found["center"], targets["center"]) <= 1e-4
    assert gap(found["bias"], 0) <= 1e-4
    # A reversal of two columns is a reflection inside the span, which St(6, 2) connects to the identity.
    assert gap(found["frames"], targets["frames"]) <= 1e-2


def test_example_spherical_mixup_of_a_batch():
    def mixup_loss(embed, key, x, center):
        z = sphere.project(embed(x))
        partner, share = jax.random.permutation(key, z), jax.random.uniform(key, z.shape[:1])
        return jnp.mean(sphere.dist(sphere.slerp(z, partner, share), center) ** 2)

    x, weights = jax.random.normal(KEY, (128, 4)), jax.random.normal(KEY, (4, 16))
    center = sphere.mean(sphere.project(x @ weights))
    value, gradient = jax.value_and_grad(lambda w: mixup_loss(lambda x: x @ w, KEY, x, center[None]))(weights)
    double(value), double(gradient)


def test_riemannian_sgd_is_hand_written_descent():
    A = jax.random.normal(KEY, (3, 8, 2))

    def loss(X):
        return jnp.sum(A * X**3)

    optimizer = optim.riemannian(optax.sgd(0.1), optim.Stiefel())
    X = by_hand = stiefel.random(KEY, A.shape)
    state = optimizer.init(X)
    for _ in range(20):
        updates, state = optimizer.update(jax.grad(loss)(X), state, X)
        X = optax.apply_updates(X, updates)
        by_hand = stiefel.retract(by_hand, -0.1 * stiefel.egrad2rgrad(by_hand, jax.grad(loss)(by_hand)))
    assert gap(X, by_hand) <= 20 * eps(jnp.float32)


def test_hand_made_chain_is_riemannian():
    X = stiefel.random(KEY, (8, 2))
    G = jax.random.normal(jax.random.key(90), X.shape)
    manifold = optim.Stiefel("cayley")
    whole = optim.riemannian(optax.sgd(0.1), manifold)
    parts = optax.chain(
        optim.riemannian_gradient(manifold), optax.scale(-0.1), optim.retract_updates(manifold)
    )
    assert gap(whole.update(G, whole.init(X), X)[0], parts.update(G, parts.init(X), X)[0]) == 0


def test_masked_leaves_are_left_alone():
    params = {"frame": stiefel.random(KEY, (6, 2)), "weight": jnp.ones(3)}
    mask = {"frame": True, "weight": False}
    optimizer = optax.masked(optim.riemannian(optax.sgd(0.1), optim.Stiefel()), mask)
    grads = jax.tree.map(jnp.ones_like, params)
    updates, _ = optimizer.update(grads, optimizer.init(params), params)
    assert gap(updates["weight"], grads["weight"]) == 0
    assert orthonormality(optax.apply_updates(params, updates)["frame"]) <= 10 * eps(jnp.float32)


@pytest.mark.parametrize(
    "manifold", [optim.Stiefel("polar"), optim.Grassmann(), optim.Sphere(), optim.Euclidean()], ids=repr
)
def test_every_manifold_descends_on_trees(manifold):
    params = [stiefel.random(KEY, (2, 6, 2)), stiefel.random(KEY, (5, 1))]
    if isinstance(manifold, optim.Sphere):
        params = [sphere.random(KEY, (2, 6)), sphere.random(KEY, (5,))]
    A = jax.random.normal(KEY, (6, 6))

    def loss(params):
        return sum(
            jnp.sum(jnp.sin(A[: x.shape[-1], : x.shape[-1]] @ x[..., None] if x.ndim == 1 else x))
            for x in params
        )

    optimizer = optim.riemannian(optax.sgd(0.05), manifold)
    updates, _ = optimizer.update(jax.grad(loss)(params), optimizer.init(params), params)
    moved = optax.apply_updates(params, updates)
    if not isinstance(manifold, optim.Grassmann):
        assert loss(moved) < loss(params)
    if isinstance(manifold, optim.Stiefel | optim.Grassmann):
        assert max(map(orthonormality, moved)) <= 10 * eps(jnp.float32)
    assert {manifold: 1}[type(manifold)(*vars(manifold).values())] == 1  # equal values hash alike


def test_update_needs_the_point():
    optimizer = optim.riemannian(optax.sgd(0.1), optim.Sphere())
    x = sphere.random(KEY, (3,))
    with pytest.raises(ValueError, match="params"):
        optimizer.update(x, optimizer.init(x))


@pytest.mark.parametrize(
    "build",
    [
        lambda manifold: optim.riemannian(optax.sgd(0.1), manifold),
        optim.riemannian_gradient,
        optim.retract_updates,
    ],
    ids=["riemannian", "riemannian_gradient", "retract_updates"],
)
def test_what_is_no_manifold_is_refused_at_once(build):
    with pytest.raises(TypeError, match=r"got the class Stiefel; make one by Stiefel\(\)"):
        build(optim.Stiefel)
    with pytest.raises(TypeError, match=r"methods of optim\.Manifold, got str without"):
        build("stiefel")
    build(stiefel)  # a module holds the methods too


def test_swapped_arguments_and_unknown_methods_are_refused_at_once():
    with pytest.raises(TypeError, match=r"the order is riemannian\(inner, manifold\)"):
        optim.riemannian(optim.Stiefel(), optax.sgd(0.1))
    with pytest.raises(TypeError, match="inner must be an optax optimiser"):
        optim.riemannian(0.1, optim.Sphere())
    for manifold in (optim.Stiefel, optim.Grassmann):
        with pytest.raises(
            ValueError, match="retraction must be one of qr, polar, cayley, householder, got 'svd'"
        ):
            manifold("svd")
