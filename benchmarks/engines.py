"""Rounds a second of federated averaging: one compiled program, a loop over clients, and other engines.

    python -m benchmarks.engines [--json] [--clients 10 100 1000] [--repeats 5]

Every engine runs the same task, full participation, 20 batches of 16 rows a client and round, plain SGD: a linear model
of 50 features, and a network of 50-64-1. The loop calls one jitted client update after the other and averages with one
jitted mean; it shares its update with `fit`. fedjax and Flower's simulation are measured where they are installed, in
an environment of their own; Flower's clients do nothing, so that its value is overhead alone.
"""

import argparse
import importlib.util
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks._timing import Report, interleaved
from fedgeo import federation, trees
from fedgeo.algorithms.fedavg import fedavg
from fedgeo.protocol import Model, Rows

FEATURES, BATCHES, BATCH, HIDDEN, ROUNDS = 50, 20, 16, 64, 5


def squared_error(predict, init):
    """A regression as a model: the last column of a row is the target."""

    def errors(params, x):
        return (predict(params, x[:, :-1]) - x[:, -1]) ** 2

    def loss(key, params, anchor, x, mask):
        return jnp.sum(jnp.where(mask, errors(params, x), 0)) / jnp.maximum(jnp.sum(mask), 1)

    return Model(
        init=lambda key, x: init(key),
        anchor=lambda params, x, mask: (),
        loss=loss,
        score=lambda params, anchor, x: errors(params, x),
    )


def linear():
    """``x w``."""
    return squared_error(lambda w, x: x @ w, lambda key: jnp.zeros(FEATURES))


def network():
    """One hidden layer of tanh."""

    def init(key):
        first, second = jax.random.split(key)
        return (
            jax.random.normal(first, (FEATURES, HIDDEN)) / FEATURES**0.5,
            jax.random.normal(second, (HIDDEN,)) / HIDDEN**0.5,
        )

    return squared_error(lambda w, x: jnp.tanh(x @ w[0]) @ w[1], init)


def clients(number):
    """Rows ``(K, 320, 51)`` of one linear truth."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((number, BATCHES * BATCH, FEATURES), np.float32)
    y = x @ rng.standard_normal(FEATURES).astype(np.float32) / FEATURES**0.5
    return Rows(jnp.asarray(np.concatenate([x, y[..., None]], axis=2)), jnp.ones(x.shape[:2], bool))


def algorithm(model):
    """One local epoch of SGD a round."""
    return fedavg(model, optimizer=optax.sgd(0.01), epochs=1, batch_size=BATCH)


def program(alg, data, key, block_size=None):
    """All rounds, compiled: a call, and the bytes of its temporary buffers."""
    start = federation.init(alg, key, data)
    run = partial(federation.run, alg, sampler=federation.everyone, rounds=ROUNDS, block_size=block_size)
    compiled = jax.jit(run).lower(key, start, data, jnp.asarray(0)).compile()
    held = compiled.memory_analysis().temp_size_in_bytes
    return lambda: jax.block_until_ready(compiled(key, start, data, jnp.asarray(0)))[0].server, held


def loop(alg, data, key):
    """The same rounds as a Python loop over clients."""
    update, mean = jax.jit(alg.update), jax.jit(trees.mean)
    number = data.x.shape[0]
    each = [jax.tree.map(lambda leaf, k=k: leaf[k], data) for k in range(number)]
    start = federation.init(alg, key, data).server
    weights = jnp.full(number, BATCHES * BATCH, jnp.float32)

    def call():
        server = start
        for r in range(ROUNDS):
            work_key = jax.random.split(jax.random.fold_in(key, r))[1]
            uploads = [
                update(jax.random.fold_in(work_key, k), server, (), data_k)[1]
                for k, data_k in enumerate(each)
            ]
            server = server._replace(
                params=mean(jax.tree.map(lambda *leaves: jnp.stack(leaves), *uploads), weights)
            )
        return jax.block_until_ready(server)

    return call


def fedjax_rounds(data):
    """Fedjax's jitted client loop on the linear model, or None."""
    if importlib.util.find_spec("fedjax") is None:
        return None
    for name in (
        "map",
        "leaves",
        "flatten",
        "unflatten",
    ):  # fedjax calls them by names that JAX no longer has
        vars(jax).setdefault(f"tree_{name}", getattr(jax.tree, name))
    import fedjax

    x = np.asarray(data.x)
    sets = {str(k).encode(): {"x": rows[:, :-1], "y": rows[:, -1]} for k, rows in enumerate(x)}
    federated = fedjax.InMemoryFederatedData(sets)
    grad = jax.grad(lambda w, batch, rng: jnp.mean((batch["x"] @ w - batch["y"]) ** 2))
    optimizer = fedjax.optimizers.sgd(0.01)
    averaging = fedjax.algorithms.fed_avg.federated_averaging(
        grad, optimizer, fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH, num_epochs=1, seed=0),
    )  # fmt: skip
    keys = jax.random.split(jax.random.PRNGKey(0), len(x))
    members = [(i, s, keys[k]) for k, (i, s) in enumerate(federated.clients())]

    def call():
        state = averaging.init(jnp.zeros(FEATURES))
        for _ in range(ROUNDS):
            state, _ = averaging.apply(state, members)
        return jax.block_until_ready(state.params)

    return call


def flower_seconds(number, rounds=3):
    """Seconds a round of Flower's simulation with clients that do nothing, or None."""
    if importlib.util.find_spec("flwr") is None or importlib.util.find_spec("ray") is None:
        return None
    from flwr.app import ArrayRecord, MetricRecord, RecordDict
    from flwr.client import ClientApp
    from flwr.server import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    client, server = ClientApp(), ServerApp()

    @client.train()
    def train(message, context):
        from flwr.app import Message

        content = RecordDict(
            {"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 1})}
        )
        return Message(content, reply_to=message)

    took = []

    @server.main()
    def main(grid, context):
        strategy = FedAvg(fraction_evaluate=0, min_available_nodes=number)
        began = time.perf_counter()
        strategy.start(grid, ArrayRecord([np.zeros(1000, np.float32)]), num_rounds=rounds)
        took.append((time.perf_counter() - began) / rounds)

    run_simulation(server, client, number)
    return took[0]


def check(ours, looped):
    """Both engines end at the same model."""
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(looped), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def main():
    """Print every ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    report, key = Report(options.json), jax.random.key(0)
    for name, model in {"linear": linear(), "network": network()}.items():
        alg = algorithm(model)
        for number in options.clients:
            data = clients(number)
            fit, _ = program(alg, data, key)
            calls = {"fit": fit, "loop": loop(alg, data, key)}
            check(calls["fit"](), calls["loop"]())
            peer = fedjax_rounds(data) if name == "linear" else None
            took = interleaved(calls | ({"fedjax": peer} if peer else {}), options.repeats)
            title = f"{name}, {number} clients"
            report.line(f"{title}: fit", ROUNDS / took["fit"], "rounds/s")
            asked = 5 if (name, number) == ("linear", 1000) else None
            report.line(
                f"{title}: fit / loop over clients",
                took["loop"] / took["fit"],
                "times the rounds/s",
                least=asked,
            )
            if name == "linear":
                ratio = took["fedjax"] / took["fit"] if peer else None
                report.line(f"{title}: fit / fedjax", ratio, "ratio" if peer else "fedjax not installed")
    for number in options.clients:
        seconds = flower_seconds(number)
        unit = "s/round" if seconds else "flwr[simulation] not installed"
        report.line(f"Flower simulation, {number} idle clients", seconds, unit)
    alg = algorithm(network())
    for block_size in (None, 10):
        for number in options.clients:
            _, held = program(alg, clients(number), key, block_size)
            cap = "no cap" if block_size is None else f"{block_size} clients at a time"
            report.line(f"network, {number} clients, {cap}: temporary buffers", held / 1e6, "MB")


if __name__ == "__main__":
    main()
