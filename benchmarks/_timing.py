"""Interleaved timing, the record of the environment, and the one format all benchmarks print."""

import importlib.metadata
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax


def compile_seconds(function: Callable[..., Any], *args: Any) -> tuple[float, Callable[[], Any]]:
    """Seconds to trace, lower and compile, and a call of the result that returns when it is done."""
    start = time.perf_counter()
    compiled = jax.jit(function).lower(*args).compile()
    seconds = time.perf_counter() - start
    return seconds, lambda: jax.block_until_ready(compiled(*args))


def interleaved(calls: Mapping[str, Callable[[], Any]], repeats: int = 50) -> dict[str, float]:
    """Median seconds of each call, taken in turns so that what else the machine does hits all alike."""
    for call in calls.values():
        call()
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            samples[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in samples.items()}


def environment() -> dict[str, Any]:
    """What a reader needs to judge the numbers."""
    device = jax.devices()[0]
    versions = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "numpy", "scipy")}
    return {
        "python": platform.python_version(),
        **versions,
        "device": device.device_kind,
        "platform": device.platform,
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "openblas_threads": os.environ.get("OPENBLAS_NUM_THREADS", "default"),
        "dtype": "float32",
    }


class Report:
    """Prints the environment, then one measurement a line, as a table or as JSON."""

    def __init__(self, as_json: bool, **facts: Any):
        self.as_json = as_json
        record = environment() | facts
        if as_json:
            print(json.dumps({"environment": record}), flush=True)
        else:
            print("  ".join(f"{key} {value}" for key, value in record.items()), flush=True)

    def line(
        self,
        name: str,
        value: float | None,
        unit: str,
        *,
        most: float | None = None,
        least: float | None = None,
    ):
        """Print a value and whether it is at most or at least its target; None says that it was not measured."""
        target = most if least is None else least
        met = None
        if value is not None and target is not None:
            met = bool(value <= target if least is None else value >= target)
        value = None if value is None else float(f"{value:.3g}")
        if self.as_json:
            print(
                json.dumps({"name": name, "value": value, "unit": unit, "target": target, "met": met}),
                flush=True,
            )
        else:
            bound = "" if target is None else f"{'<=' if least is None else '>='} {target:g}"
            verdict = {True: "met", False: "MISSED", None: ""}[met]
            print(
                f"{name:58} {'-' if value is None else value:>9} {unit:24} {bound:>8} {verdict}", flush=True
            )
