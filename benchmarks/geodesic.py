"""Geodesic-SVDD's training of a whole setting as one program, against the same training called in Python loops.

    python -m benchmarks.geodesic [--json] [--alpha 0.5] [--seeds 5] [--rounds 50] [--repeats 3]

The setting is Breast Cancer with every class in turn held normal, several seeds, three clients. The one program maps
over classes, seeds and clients and scans over rounds. The loops call the same compiled local training, start and
aggregation from Python, for one client, seed and class at a time: once on rows padded to one shape, which compile once,
and once on each client's own rows, as a loop would be written without a simulator, which compile once for every number
of rows. The program takes all tasks at once, or in turn, which on a CPU stays in its caches and compiles faster.
"""

import argparse
import itertools
import time
from functools import partial

import jax
import jax.numpy as jnp
import optax

from benchmarks import _timing
from fedgeo import data, federation
from fedgeo.algorithms.fedavg import fedavg
from fedgeo.algorithms.one_shot import one_shot
from fedgeo.models.encoder import geodesic_svdd
from fedgeo.protocol import Cohort, Rows
from fedgeo.runs.tables import GeodesicSettings, stack_each, tasks_of

CLIENTS, BATCH = 3, 128
PROTOCOLS = ("one-shot", "iterative")
PROGRAMS = ("one program", "one program, tasks in turn")


def setting(alpha, seeds):
    """All tasks of Breast Cancer: by task, K standardised tables ``(N_k, F)`` of one class."""
    table, settings = data.breast_cancer(), GeodesicSettings(clients=CLIENTS, alpha=alpha)
    return [task.clients for seed in range(seeds) for task in tasks_of(table, settings, seed)]


def stack(tasks):
    """``x (B, K, N, F)``, ``mask (B, K, N)``."""
    return stack_each(tasks, max(len(rows) for task in tasks for rows in task))


def one_program(alg, rounds, *, in_turn=False):
    """``(keys (B,), rows (B, K, N, F)) -> servers``: one compiled program, of all tasks at once or in turn."""

    def train(key, rows):
        state = federation.init(alg, key, rows)
        first = jnp.asarray(0)
        return federation.run(alg, key, state, rows, first, sampler=federation.everyone, rounds=rounds)[
            0
        ].server

    if in_turn:
        return lambda keys, rows: jax.lax.map(lambda task: train(*task), (keys, rows))
    return jax.vmap(train)


def loop(alg, rounds, keys, rows, clients):
    """The same in Python over tasks, rounds and clients, each step compiled.

    Args:
        alg: the algorithm.
        rounds: R.
        keys: ``(B,)``.
        rows: stacked, for the start that all clients share.
        clients: by task, K :class:`Rows` of one client each, of any length.

    Returns:
        A function of no arguments, to servers by task.
    """
    init = jax.jit(partial(federation.init, alg))
    update, aggregate, weight = jax.jit(alg.update), jax.jit(alg.aggregate), jax.jit(alg.weight)
    split = jax.jit(lambda key, number: jax.random.split(jax.random.fold_in(key, number))[1])
    fold = jax.jit(jax.random.fold_in)
    cohort = Cohort(jnp.arange(CLIENTS), jnp.ones(CLIENTS, bool))

    def one_task(key, stacked, task):
        server = init(key, stacked).server
        weights = jnp.stack([weight(own) for own in task])
        for number in range(rounds):
            work = split(key, number)
            uploads = [update(fold(work, k), server, (), own)[1] for k, own in enumerate(task)]
            server = aggregate(
                server, jax.tree.map(lambda *leaves: jnp.stack(leaves), *uploads), weights, cohort
            )
        return server

    def run():
        servers = [
            one_task(keys[b], jax.tree.map(lambda leaf, b=b: leaf[b], rows), task)
            for b, task in enumerate(clients)
        ]
        return jax.block_until_ready(servers)

    return run


def seconds(call):
    """Wall time of one call, and its result."""
    began = time.perf_counter()
    result = call()
    return time.perf_counter() - began, result


def compare(report, name, alg, rounds, tasks, repeats):
    """One program against both loops; the loops' first calls compile."""
    rows = stack(tasks)
    keys = jax.random.split(jax.random.key(0), len(tasks))
    padded = [[Rows(rows.x[b, k], rows.mask[b, k]) for k in range(CLIENTS)] for b in range(len(tasks))]
    whole = 1  # a client without rows still needs an array to compile for
    own = [
        [Rows(*(part[: max(int(one.mask.sum()), whole)] for part in one)) for one in task] for task in padded
    ]
    shapes = len({one.x.shape for task in own for one in task})

    calls, with_compiling = {}, {}
    for kind in PROGRAMS:
        whole_setting = one_program(alg, rounds, in_turn=kind != "one program")
        compiling, calls[kind] = _timing.compile_seconds(whole_setting, keys, rows)
        first, servers = seconds(calls[kind])
        with_compiling[kind] = compiling + first
    for kind, clients in {"loop, padded rows": padded, "loop, own rows": own}.items():
        calls[kind] = loop(alg, rounds, keys, rows, clients)
        with_compiling[kind], found = seconds(calls[kind])
        if kind == "loop, padded rows":
            together = jax.tree.map(lambda *leaves: jnp.stack(leaves), *found)
            gaps = jax.tree.map(
                lambda a, b: jnp.max(jnp.abs(a.astype(float) - b.astype(float))), servers, together
            )
            gap = float(max(jax.tree.leaves(gaps)))
    running = _timing.interleaved(calls, repeats)

    report.line(
        f"{name}: local trainings, of {shapes} different numbers of rows", len(tasks) * CLIENTS * rounds, ""
    )
    for kind in calls:
        report.line(f"{name}: {kind}, with compiling", with_compiling[kind], "s")
        report.line(f"{name}: {kind}, without", running[kind], "s")
    report.line(f"{name}: largest difference of parameters, program and padded loop", gap, "", most=1e-3)
    for program, kind in itertools.product(PROGRAMS, list(calls)[len(PROGRAMS) :]):
        title = f"{name}: {kind} / {program}"
        report.line(f"{title}, with compiling", with_compiling[kind] / with_compiling[program], "", least=5)
        report.line(f"{title}, without", running[kind] / running[program], "", least=2)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--alpha", default="0.5", help="of the Dirichlet label skew, or iid")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--rounds", type=int, default=50, help="of the iterative protocol, and epochs of the one-shot"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--protocol", nargs="+", default=PROTOCOLS, choices=PROTOCOLS)
    options = parser.parse_args()

    report = _timing.Report(options.json)
    alpha = None if options.alpha == "iid" else float(options.alpha)
    tasks = setting(alpha, options.seeds)
    model, adam = geodesic_svdd(), optax.adam(1e-3)
    programs = {
        "one-shot": (one_shot(model, optimizer=adam, epochs=options.rounds, batch_size=BATCH), 1),
        "iterative": (fedavg(model, optimizer=adam, epochs=1, batch_size=BATCH), options.rounds),
    }
    skew = "IID" if alpha is None else f"Dirichlet {alpha:g}"
    for protocol in options.protocol:
        compare(report, f"{protocol}, {skew}", *programs[protocol], tasks, options.repeats)


if __name__ == "__main__":
    main()
