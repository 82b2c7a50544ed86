"""Latency and throughput of a FedKAD detector on a device: the NumPy runtime, ONNX and JAX, at SMAP's sizes.

    python -m benchmarks.scoring [--json] [--rows 40000] [--steps 3000] [--repeats 9]

25 channels, W = 20, d_lift = 128, r = 24, the newest row's residual over its variance, H = 1, smoothed over 20 rows:
the recommended score. Every call takes rows in their own units and is timed from there to scores (and, step by step,
to the alarm) in NumPy: scaling, windowing, lift, residual, smoothing and threshold are included, reading and parsing
are not. A single step of ONNX scores the 40 rows that one score depends on, for its graph keeps no state; JAX's is
``algorithms.online``, compiled. Steps of the three are taken in turns too, and each finds the caches as the others left
them: alone on a device it is faster. All is run twice, in a process that may use one CPU only, and with all; where
others keep the CPUs busy, BLAS with several threads waits for the slowest of them at each of a batch's many products.

A row of the batch is 2 (W C d_lift + D r + r C) FLOPs with D = W C + d_lift, which is the matrix products alone: tanh,
scaling, squares and smoothing count for nothing and cost time. The matmul rate is the higher of NumPy's and JAX's for
2000 x 2000 float32 matrices, taken in turns with the scores, so that what else the machine does hits all alike.

Cold start is a new process, from before its imports to the first score, in seconds of wall time; peak memory is that
process's after scoring all rows in one call, interpreter and libraries included. Energy is not measured.
"""

import argparse
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from functools import partial
from pathlib import Path

import numpy as np

CHANNELS, WINDOW, SIZE, RANK, SMOOTHING = 25, 20, 128, 24, 20
WIDE = WINDOW * CHANNELS
FLOPS = 2 * (WIDE * SIZE + (WIDE + SIZE) * RANK + RANK * CHANNELS)
NEEDED = WINDOW + SMOOTHING  # rows that one smoothed score depends on, H = 1
MATRIX, WARM_UP = 2000, 200
KINDS = ("runtime", "ONNX", "JAX")

COLD = {
    "runtime": """
import numpy as np, runtime
score = runtime.load("pump.fedgeo").score
""",
    "ONNX": """
import numpy as np, onnxruntime
session = onnxruntime.InferenceSession("pump.onnx", providers=["CPUExecutionProvider"])
score = lambda rows: session.run(None, {"rows": rows})[0]
""",
    "JAX": """
import numpy as np
from fedgeo.deploy import export
score = export.load_stablehlo("pump.program").score
""",
}
FRAME = """
import time
began = time.perf_counter()
{setup}
rows = np.load("rows.npy")
score(rows[:{needed}])
seconds = time.perf_counter() - began
score(rows)
peak = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]  # getrusage inherits the caller's
print(seconds, int(peak[0].split()[1]) / 1024)
"""


def write_detector(folder, rows):
    """Files of all kinds of a detector with SMAP's sizes, and the JAX values that it was made of."""
    import jax

    from fedgeo.algorithms import koopman
    from fedgeo.deploy import export, runtime

    rng = np.random.default_rng(0)
    lift = koopman.random_lift(jax.random.key(0), CHANNELS, window=WINDOW, size=SIZE)
    basis = np.linalg.qr(rng.standard_normal((WIDE + SIZE, RANK)))[0].astype(np.float32)
    readout = rng.standard_normal((1, CHANNELS, RANK)).astype(np.float32) / RANK
    variance = rng.uniform(0.5, 2, (1, CHANNELS)).astype(np.float32)
    center, scale = rows.mean(axis=0), rows.std(axis=0)
    about = {
        "method": "fedkad",
        "columns": [f"channel {c}" for c in range(CHANNELS)],
        "clients": ["pump"],
        "settings": {
            "window": WINDOW,
            "horizon": 1,
            "smoothing": SMOOTHING,
            "residual": "newest",
            "score_scale": "variance",
            "clip": 10.0,
            "missing": "error",
            "interval": None,
        },
    }
    arrays = {
        "center": center[None],
        "scale": scale[None],
        "lift_weight": np.asarray(lift.weight),
        "lift_bias": np.asarray(lift.bias),
        "basis": basis,
        "operator": np.zeros((1, RANK, RANK), np.float32),
        "readout": readout,
        "variance": variance,
        "threshold": np.array([2.0 * CHANNELS]),
    }
    path = runtime.write(folder / "pump.fedgeo", about, arrays)
    export.to_onnx(path, folder / "pump.onnx")
    export.to_stablehlo(path, folder / "pump.program")
    # The score reads the newest row's entries alone, so the others of a whole readout may be anything.
    entire = np.zeros((WIDE + SIZE, RANK), np.float32)
    entire[WIDE - CHANNELS : WIDE] = readout[0]
    spread = np.ones(WIDE + SIZE, np.float32)
    spread[WIDE - CHANNELS : WIDE] = variance[0]
    detector = koopman.Detector(lift, *map(jax.numpy.asarray, (basis, arrays["operator"][0], entire, spread)))
    return detector, partial(runtime.standardise, center=center, scale=scale, most=10.0)


def batches(folder, detector, scaled):
    """Functions of rows ``(T, C)`` in their own units to scores ``(T,)`` in NumPy."""
    import jax
    import onnxruntime

    from fedgeo.algorithms import koopman
    from fedgeo.deploy import runtime

    session = onnxruntime.InferenceSession(folder / "pump.onnx", providers=["CPUExecutionProvider"])

    @jax.jit
    def score(x):
        return koopman.smooth(koopman.residuals(detector, x, residual="newest", scale="variance"), SMOOTHING)

    return {
        "runtime": runtime.load(folder / "pump.fedgeo").score,
        "ONNX": lambda rows: session.run(None, {"rows": rows})[0],
        "JAX": lambda rows: np.asarray(score(scaled(rows))),
    }


def steps(folder, detector, scaled):
    """Functions of a row ``(C,)`` to its score and alarm, which remember the rows before it."""
    import jax
    import onnxruntime

    from fedgeo.algorithms import online
    from fedgeo.deploy import runtime

    loaded = runtime.load(folder / "pump.fedgeo")
    threshold = loaded.threshold()
    session = onnxruntime.InferenceSession(folder / "pump.onnx", providers=["CPUExecutionProvider"])
    recent = deque(maxlen=NEEDED)
    update = jax.jit(partial(online.update, detector, residual="newest", scale="variance"))
    watch = online.begin(detector, CHANNELS, smoothing=SMOOTHING)

    def onnx_step(row):
        recent.append(row)
        scores, alarms = session.run(None, {"rows": np.asarray(recent)})
        return float(scores[-1]), bool(alarms[-1])

    def jax_step(row):
        nonlocal watch
        watch, score = update(watch, scaled(row))
        score = float(score)
        return score, score > threshold

    return {"runtime": loaded.stream().update, "ONNX": onnx_step, "JAX": jax_step}


def measure_steps(report, threads, calls, rows):
    """Percentiles of single steps, all kinds in turns on each row."""
    seconds = {kind: [] for kind in calls}
    for number, row in enumerate(rows):
        for kind, call in calls.items():
            began = time.perf_counter()
            call(row)
            if number >= WARM_UP:
                seconds[kind].append(time.perf_counter() - began)
    for kind, taken in seconds.items():
        for name, q in (("p50", 50), ("p95", 95), ("p99", 99), ("max", 100)):
            report.line(f"{threads}: single step, {kind}, {name}", 1e6 * np.percentile(taken, q), "us")


def measure_batches(report, threads, calls, rows, repeats):
    """Throughput beside the matmul rate of the same turns."""
    import jax

    from benchmarks import _timing

    square = np.random.default_rng(0).standard_normal((MATRIX, MATRIX), np.float32)
    there = jax.numpy.asarray(square)
    product = jax.jit(lambda a: jax.numpy.matmul(a, a, precision="highest"))
    turns = {kind: partial(call, rows) for kind, call in calls.items()}
    turns["NumPy matmul"] = lambda: square @ square
    turns["JAX matmul"] = lambda: jax.block_until_ready(product(there))
    seconds = _timing.interleaved(turns, repeats)
    rates = {name: 2 * MATRIX**3 / seconds[name] / 1e9 for name in ("NumPy matmul", "JAX matmul")}
    for name, rate in rates.items():
        report.line(f"{threads}: {name} {MATRIX}^3", rate, "GFLOP/s")
    for kind in calls:
        report.line(f"{threads}: batch, {kind}", 1e6 * seconds[kind] / len(rows), "us a row")
        rate = FLOPS * len(rows) / seconds[kind] / 1e9
        report.line(f"{threads}: batch, {kind}, {FLOPS} FLOPs a row", rate, "GFLOP/s")
        share = rate / max(rates.values())
        least = 0.3 if kind == "runtime" else None
        report.line(f"{threads}: batch, {kind}, of the matmul rate", share, "", least=least)


def measure_parity(report, threads, calls, one_by_one, rows):
    """Largest relative difference from JAX's scores of the whole."""
    want = calls["JAX"](rows)
    known = ~np.isnan(want)
    for kind in ("runtime", "ONNX"):
        error = np.max(np.abs(calls[kind](rows)[known] / want[known] - 1))
        report.line(f"{threads}: batch, {kind}, largest relative difference from JAX", error, "", most=1e-5)
    for kind, call in one_by_one.items():
        got = np.array([call(row)[0] for row in rows[:500]])
        # A stream that goes on from other rows is that of these after what one score depends on.
        error = np.max(np.abs(got[NEEDED:] / want[NEEDED:500] - 1))
        report.line(f"{threads}: single step, {kind}, likewise", error, "", most=1e-5)


def measure_cold(report, threads, folder, repeats):
    """New processes: to the first score, and memory."""
    for kind in KINDS:
        program = FRAME.format(setup=COLD[kind], needed=NEEDED)
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(folder), str(Path(__file__).parents[1])])
        }
        command = [sys.executable, "-c", program]
        start = partial(subprocess.run, command, cwd=folder, env=environment, capture_output=True, check=True)
        runs = [[float(number) for number in start().stdout.split()] for _ in range(repeats)]
        seconds, memory = map(statistics.median, zip(*runs, strict=True))
        report.line(f"{threads}: cold start, {kind}", seconds, "s")
        report.line(f"{threads}: peak memory, {kind}", memory, "MiB")


def machine(threads):
    """What the reader of a latency must know, as far as the machine tells it."""
    import threadpoolctl

    blas = [pool for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]
    clock = [line.split(":")[1].strip() for line in _text("/proc/cpuinfo").splitlines() if "cpu MHz" in line]
    model = [
        line.split(":")[1].strip() for line in _text("/proc/cpuinfo").splitlines() if "model name" in line
    ]
    return {
        "cpu": model[0] if model else platform.processor(),
        "governor": _text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").strip() or "not readable",
        "clock_mhz": clock[0] if clock else "not readable",
        "os": platform.platform(),
        "threads": threads,
        "blas": ", ".join(f"{p['internal_api']} {p['version']}, {p['num_threads']} threads" for p in blas),
        "warm_up": f"{WARM_UP} steps, one batch",
        "shared_machine": "others may use it; compare within one run",
    }


def _text(path):
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def child(given):
    """All measurements in this process, which the caller has pinned."""
    import onnxruntime

    from benchmarks import _timing
    from fedgeo.deploy import runtime

    threads = "1 thread" if given.child == "1" else "all threads"
    facts = machine(threads) | {
        "onnxruntime": onnxruntime.__version__,
        "batch_rows": given.rows,
        "repeats": f"{given.repeats} batches, {given.steps} steps, medians or percentiles",
    }
    report = _timing.Report(given.json, **facts)
    t = np.arange(given.rows)[:, None]
    rng = np.random.default_rng(0)
    rows = 50 + 7 * (np.sin(t * 0.1 + np.arange(CHANNELS)) + 0.3 * rng.standard_normal((len(t), CHANNELS)))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        detector, scaled = write_detector(folder, rows)
        calls, one_by_one = batches(folder, detector, scaled), steps(folder, detector, scaled)
        measure_steps(report, threads, one_by_one, rows[: WARM_UP + given.steps])
        measure_batches(report, threads, calls, rows, given.repeats)
        measure_parity(report, threads, calls, one_by_one, rows)
        shutil.copy(runtime.__file__, folder)
        np.save(folder / "rows.npy", rows)
        measure_cold(report, threads, folder, 3)
        if given.child == "1":
            for kind, name in zip(KINDS, ("pump.fedgeo", "pump.onnx", "pump.program"), strict=True):
                report.line(f"file, {kind}", (folder / name).stat().st_size / 1024, "KiB")
            report.line("file, runtime.py", (folder / "runtime.py").stat().st_size / 1024, "KiB")


def main():
    """Measure and report, in one process for one CPU and one for all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.add_argument("--rows", type=int, default=40_000, help="of a batch")
    parser.add_argument("--steps", type=int, default=3000, help="single steps measured")
    parser.add_argument("--repeats", type=int, default=9, help="batches measured")
    parser.add_argument("--child", choices=("1", "all"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if min(given.rows - 500, given.steps, given.repeats) < 1 or given.rows < WARM_UP + given.steps:
        parser.error(
            f"want rows above 500 and at least steps + {WARM_UP}, and steps and repeats of at least 1"
        )
    if given.child:
        return child(given)
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    for name in ("1", "all"):
        # Affinity holds for every library alike; BLAS would otherwise start as many threads as the machine has CPUs.
        count = 1 if name == "1" else len(cpus) or os.cpu_count() or 1
        environment = os.environ | {"OPENBLAS_NUM_THREADS": str(count), "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-m", "benchmarks.scoring", *sys.argv[1:], "--child", name]
        pin = partial(os.sched_setaffinity, 0, cpus[-1:]) if name == "1" and cpus else None
        subprocess.run(command, env=environment, preexec_fn=pin, check=True)
    return None


if __name__ == "__main__":
    main()
