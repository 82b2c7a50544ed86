"""Geodesic-SVDD's training of a whole setting as one program, against the same training called in Python loops.

    python -m benchmarks.geodesic [--json] [--alpha 0.5] [--seeds 5] [--rounds 50] [--repeats 5]

The setting is Breast Cancer with every class in turn held normal, several seeds, three clients. The one program sweeps
over classes and seeds, shared out among the cores, and scans over rounds; clients come in turn on a CPU, at once
elsewhere. The loops call the same compiled local training, start and aggregation from Python, for one client, seed and
class at a time: once on each client's own rows, as a loop is written without a simulator, which compiles anew for every
number of rows; and once on rows padded to one shape, which compiles once, so that with compiling there is nothing to
win and no target. The program and the loop on padded rows work on short batches in smaller shapes; own rows need none.
``--vmap`` adds the program that trains all tasks at once on one device, as on an accelerator.
"""

import argparse
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
SHORT = (BATCH // 8, BATCH // 4, BATCH // 2, BATCH * 3 // 4)
OWN, PADDED = "loop, own rows", "loop, padded rows"


def setting(alpha, seeds):
    """All tasks of Breast Cancer: by task, K standardised tables ``(N_k, F)`` of one class."""
    table, settings = data.breast_cancer(), GeodesicSettings(clients=CLIENTS, alpha=alpha)
    return [task.clients for seed in range(seeds) for task in tasks_of(table, settings, seed)]


def stack(tasks):
    """``x (B, K, N, F)``, ``mask (B, K, N)``."""
    return stack_each(tasks, max(len(rows) for task in tasks for rows in task))


def trainer_of(alg, rounds, block_size=None):
    """``(key, rows (K, N, F)) -> server``: one task's whole training."""

    def train(key, rows):
        state = federation.init(alg, key, rows)
        options = dict(sampler=federation.everyone, rounds=rounds, block_size=block_size)
        return federation.run(alg, key, state, rows, jnp.asarray(0), **options)[0].server

    return train


def one_program(alg, rounds, tasks):
    """``(keys (B,), rows (B, K, N, F)) -> servers``: a sweep over tasks, shared out among the devices."""
    mesh = federation.client_mesh(min(tasks, jax.device_count()))
    block_size = 1 if federation.in_turn(mesh) else None
    train = trainer_of(alg._replace(merge=None), rounds, block_size)
    return lambda keys, rows: federation.sweep(train, keys, rows, mesh=mesh, cost=worked_on(rows.mask))


def worked_on(mask):
    """``mask (B, K, N)`` to rows that a task works on in an epoch, short batches filled up, ``(B,)``."""
    count = mask.sum(2)
    sizes = jnp.asarray([0, *SHORT, BATCH])
    rest = sizes[jnp.searchsorted(sizes, count % BATCH)]
    return jnp.sum(count // BATCH * BATCH + rest, axis=1)


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


def compare(report, name, make, rounds, tasks, repeats, at_once):
    """One program against both loops; the loops' first calls compile.

    Args:
        report: takes the lines.
        name: of protocol and skew.
        make: short_batches to an algorithm.
        rounds: R.
        tasks: from :func:`setting`.
        repeats: of what is timed without compiling.
        at_once: also the program of all tasks at once.
    """
    rows = stack(tasks)
    keys = jax.random.split(jax.random.key(0), len(tasks))
    padded = [[Rows(rows.x[b, k], rows.mask[b, k]) for k in range(CLIENTS)] for b in range(len(tasks))]
    fewest = 1  # a client without rows still needs an array to compile for
    own = [
        [Rows(*(part[: max(int(one.mask.sum()), fewest)] for part in one)) for one in task] for task in padded
    ]
    shapes = len({one.x.shape for task in own for one in task})
    plain, in_shapes = make(()), make(SHORT)

    programs = {"one program": one_program(in_shapes, rounds, len(tasks))}
    if at_once:
        programs["vmap of all tasks"] = jax.vmap(trainer_of(plain, rounds))
    calls, with_compiling, found = {}, {}, {}
    for kind, program in programs.items():
        compiling, calls[kind] = _timing.compile_seconds(program, keys, rows)
        first, found[kind] = seconds(calls[kind])
        with_compiling[kind] = compiling + first
    for kind, alg, clients in ((OWN, plain, own), (PADDED, in_shapes, padded)):
        calls[kind] = loop(alg, rounds, keys, rows, clients)
        with_compiling[kind], servers = seconds(calls[kind])
        found[kind] = jax.tree.map(lambda *leaves: jnp.stack(leaves), *servers)
    running = _timing.interleaved(calls, repeats)

    trainings = len(tasks) * CLIENTS * rounds
    report.line(f"{name}: local trainings, of {shapes} different numbers of rows", trainings, "")
    for kind in calls:
        report.line(f"{name}: {kind}, with compiling", with_compiling[kind], "s")
        report.line(f"{name}: {kind}, without", running[kind], "s")
    apart = gap(found["one program"], found[PADDED])
    report.line(f"{name}: largest difference of parameters, program and padded loop", apart, "", most=1e-3)
    for program in programs:
        for kind, least in ((OWN, 5), (PADDED, None)):
            title, bounds = f"{name}: {kind} / {program}", program == "one program"
            ratio = with_compiling[kind] / with_compiling[program]
            report.line(f"{title}, with compiling", ratio, "", least=least if bounds else None)
            report.line(
                f"{title}, without", running[kind] / running[program], "", least=2 if bounds else None
            )


def gap(a, b):
    """Largest absolute difference of two trees."""
    apart = jax.tree.map(lambda x, y: jnp.max(jnp.abs(x.astype(float) - y.astype(float))), a, b)
    return float(max(jax.tree.leaves(apart)))


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
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--protocol", nargs="+", default=PROTOCOLS, choices=PROTOCOLS)
    parser.add_argument(
        "--vmap", action="store_true", help="also the program of all tasks at once on one device"
    )
    options = parser.parse_args()

    federation.one_device_a_core()
    report = _timing.Report(options.json)
    alpha = None if options.alpha == "iid" else float(options.alpha)
    tasks = setting(alpha, options.seeds)
    model, adam = geodesic_svdd(), optax.adam(1e-3)
    made = {
        "one-shot": (partial(one_shot, model, optimizer=adam, epochs=options.rounds, batch_size=BATCH), 1),
        "iterative": (partial(fedavg, model, optimizer=adam, epochs=1, batch_size=BATCH), options.rounds),
    }
    skew = "IID" if alpha is None else f"Dirichlet {alpha:g}"
    for protocol in options.protocol:
        make, rounds = made[protocol]
        compare(
            report, f"{protocol}, {skew}", lambda short, make=make: make(short_batches=short), rounds, tasks,
            options.repeats, options.vmap,
        )  # fmt: skip


if __name__ == "__main__":
    main()
