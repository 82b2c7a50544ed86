"""Speed and memory of FedKAD's training at the size of the Server Machine Dataset, on generated streams.

    python -m benchmarks.fedkad [--json] [--clients 28] [--repeats 5]

Time is counted in products: 360 GFLOP for the windowless moments of 28 clients, 120 for 30 rounds of 7 clients, against
the rate of a float32 product of 2000 x 2000 matrices taken in turns with them. The comparison with PyTorch (skipped
where it is not installed) runs both on 4 clients, all in every round, for 8 rounds, the same proportion of moments to
rounds, and again on a quarter of the rows.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import _timing
from fedgeo import federation
from fedgeo.algorithms import koopman, moments
from fedgeo.algorithms.fedkad import fedkad
from fedgeo.protocol import Series

WINDOW, LIFT, RANK, INNER, ROUNDS, SIDE = 20, 128, 24, 5, 30, 2000
BLOCKS = {"whole cohort": None, "one client at a time": 1}


def streams(clients: int, rows: int, channels: int) -> np.ndarray:
    """Noisy oscillations ``(K, T, C)``."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((clients, rows, channels), np.float32)
    return x + np.sin(np.arange(rows, dtype=np.float32) * 0.1)[None, :, None]


def floors(clients: int, rows: int, channels: int, cohort: int, rounds: int) -> tuple[float, float]:
    """Operations of the windowless moments and of the rounds."""
    wide = WINDOW * channels
    first_row, lift = channels * (wide + channels), LIFT * wide
    cross, lifted = LIFT * (wide + 2 * channels), 2 * LIFT * LIFT
    size = wide + LIFT
    return (
        2.0 * clients * rows * (first_row + lift + cross + lifted),
        6.0 * size * size * RANK * cohort * INNER * rounds,
    )


def matmul_rate(repeats: int) -> float:
    """Operations a second of a float32 product."""
    a = jax.random.normal(jax.random.key(0), (SIDE, SIDE))
    product = jax.jit(partial(jnp.matmul, precision="highest"))
    seconds = _timing.interleaved({"product": lambda: product(a, a).block_until_ready()}, repeats)
    return 2.0 * SIDE**3 / seconds["product"]


def rounds_program(alg, sampler, rounds, block_size):
    """Rounds from the start, as a function of key and moments."""

    def program(key, sums):
        state = federation.init(alg, key, sums)
        return federation.run(
            alg, key, state, sums, jnp.asarray(0), sampler=sampler, rounds=rounds, block_size=block_size
        )[0].server

    return program


def speed(report: _timing.Report, clients: int, rows: int, channels: int, repeats: int) -> None:
    """Moments and rounds against the rate of a matrix product."""
    cohort = max(clients // 4, 1)
    x = jnp.asarray(streams(clients, rows, channels))
    series = Series(x, jnp.ones(x.shape[:2], bool))
    key = jax.random.key(0)
    lift = koopman.random_lift(key, channels, window=WINDOW, size=LIFT)
    a = jax.random.normal(key, (SIDE, SIDE))
    product = jax.jit(partial(jnp.matmul, precision="highest"))

    compiling, run_moments = _timing.compile_seconds(moments.prepare, lift, series)
    sums = run_moments()
    calls = {"product": lambda: product(a, a).block_until_ready(), "moments": run_moments}
    alg, sampler = fedkad(lift, rank=RANK, inner_steps=INNER), federation.uniform(cohort)
    for name, block in BLOCKS.items():
        seconds, calls[name] = _timing.compile_seconds(rounds_program(alg, sampler, ROUNDS, block), key, sums)
        if block is None:
            compiling += seconds
    seconds = _timing.interleaved(calls, repeats)

    of_moments, of_rounds = floors(clients, rows, channels, cohort, ROUNDS)
    rate = 2.0 * SIDE**3 / seconds["product"]
    best = min(BLOCKS, key=lambda name: seconds[name])
    report.line(f"shape: {clients} clients x {rows} rows x {channels} channels, cohort", cohort, "clients")
    report.line("compile, moments and rounds", compiling, "s", most=15)
    report.line("float32 product, 2000 x 2000", rate / 1e9, "GFLOP/s")
    report.line("second moments of all clients", seconds["moments"], "s")
    report.line("  share of the product's rate", of_moments / seconds["moments"] / rate, "")
    for name in BLOCKS:
        report.line(f"{ROUNDS} rounds, {name}", seconds[name], "s")
        report.line("  share of the product's rate", of_rounds / seconds[name] / rate, "")
    share = (of_moments + of_rounds) / (seconds["moments"] + seconds[best]) / rate
    report.line(f"moments + rounds ({best}), share of the product's rate", share, "", least=0.4)


def against_torch(report: _timing.Report, torch: ModuleType, rows: int, channels: int) -> float:
    """Seconds of PyTorch to ours, compilation left out, memory for windows and all."""
    from benchmarks import _fedkad_torch

    clients, rounds = 4, 8
    x = streams(clients, rows, channels)
    key = jax.random.key(0)
    lift = koopman.random_lift(key, channels, window=WINDOW, size=LIFT)
    series = Series(jnp.asarray(x), jnp.ones(x.shape[:2], bool))
    alg = fedkad(lift, rank=RANK, inner_steps=INNER)
    program = rounds_program(alg, federation.everyone, rounds, None)
    _, ours = _timing.compile_seconds(
        lambda lift, series: program(key, moments.prepare(lift, series)), lift, series
    )
    ours()
    start = federation.init(alg, key, moments.prepare(lift, series)).server
    weight, bias, frame = (torch.from_numpy(np.array(part)) for part in (lift.matrix, lift.bias, start))
    tensors = [torch.from_numpy(one) for one in x]

    before = _seconds(ours)
    began = time.perf_counter()
    server, _ = _fedkad_torch.fit(
        tensors, weight, bias, WINDOW, frame, [range(clients)] * rounds, inner=INNER
    )
    theirs = time.perf_counter() - began
    mine = (before + _seconds(ours)) / 2  # on both sides of theirs
    gap = float(np.abs(np.asarray(ours()) - server.numpy()).max())
    name = f"{rows} rows, {clients} clients, {rounds} rounds"
    report.line(f"PyTorch {torch.__version__}, {name}", theirs, "s")
    report.line(f"ours, {name}", mine, "s")
    report.line("  largest difference of the results", gap, "", most=1e-3)
    return theirs / mine


def _seconds(call) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def memory(rows: int, channels: int) -> None:
    """In a process of its own: fit one long stream and print the peak resident memory in bytes."""
    x = jnp.asarray(np.random.default_rng(0).standard_normal((1, rows, channels), np.float32))
    key = jax.random.key(0)
    lift = koopman.random_lift(key, channels, window=WINDOW, size=LIFT)
    began = time.perf_counter()
    sums = jax.block_until_ready(moments.prepare(lift, Series(x, jnp.ones(x.shape[:2], bool))))
    alg = fedkad(lift, rank=RANK)
    state, _ = federation.fit(alg, key, sums, rounds=ROUNDS)
    assert bool(jnp.isfinite(state.server).all())
    print(json.dumps({"bytes": _peak_bytes(), "seconds": time.perf_counter() - began}))


def _peak_bytes() -> int:
    """Peak resident memory of this program; getrusage would count the parent that it was forked from, too."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--clients", type=int, default=28)
    parser.add_argument("--rows", type=int, default=24_000)
    parser.add_argument("--channels", type=int, default=38)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--memory", type=int, metavar="ROWS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        memory(options.memory, 25)
        return

    report = _timing.Report(options.json)
    speed(report, options.clients, options.rows, options.channels, options.repeats)
    try:
        import torch
    except ImportError:
        report.line("PyTorch is not installed: ratio not measured", None, "", least=5)
    else:
        report.line("PyTorch threads", torch.get_num_threads(), "")
        short = against_torch(report, torch, options.rows // 4, options.channels)
        long = against_torch(report, torch, options.rows, options.channels)
        report.line("ratio to PyTorch", long, "", least=5)
        report.line("  growth of the ratio for 4 times the rows", long / short, "", least=1)
    command = [sys.executable, "-m", "benchmarks.fedkad", "--memory", "1000000"]
    record = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    report.line("1,000,000 rows x 25 channels, 1 client: time with compiling", record["seconds"], "s")
    report.line("1,000,000 rows x 25 channels, 1 client: peak memory", record["bytes"] / 1e9, "GB", most=1)


if __name__ == "__main__":
    main()
