"""Speed and accuracy of ``manifolds`` against the usual alternatives: ``python -m benchmarks.manifolds [--json]``.

Ratios are of medians taken in turns in one run, with LAPACK on one thread; the script restarts itself with
``OPENBLAS_NUM_THREADS=1``. Peers (pymanopt, geoopt, geojax) are measured if they are installed.
"""

import argparse
import functools
import importlib.util
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from scipy.spatial import geometric_slerp

from benchmarks._timing import Report, compile_seconds, interleaved
from manifolds import sphere, stiefel

CLIENTS, ROWS, RANK = 28, 888, 24
CALLS = 20_000


def frames_and_steps(n: int = ROWS, p: int = RANK, clients: int = CLIENTS) -> tuple[jax.Array, jax.Array]:
    """A batch of frames and of tangent steps of spectral norm 0.5."""
    key_x, key_v = jax.random.split(jax.random.key(0))
    X = stiefel.random(key_x, (clients, n, p))
    V = stiefel.random_tangent(key_v, X)
    return X, V * (0.5 / np.linalg.norm(np.asarray(V), 2, axis=(-2, -1)))[:, None, None]


def svd_polar(X: jax.Array, V: jax.Array) -> jax.Array:
    """Polar retraction as it is usually written."""
    U, _, Wt = jnp.linalg.svd(X + V, full_matrices=False)
    return jnp.matmul(U, Wt, precision="highest")


def unsafe_slerp(x: jax.Array, y: jax.Array, t: jax.Array) -> jax.Array:
    """SLERP as it is usually written, clipped against arccosines of numbers above 1."""
    angle = jnp.arccos(jnp.clip(jnp.sum(x * y, -1, keepdims=True), -1, 1))
    return (jnp.sin((1 - t) * angle) * x + jnp.sin(t * angle) * y) / jnp.sin(angle)


def gradient(retract: Callable[[jax.Array, jax.Array], jax.Array], W: jax.Array) -> Callable:
    """Value and gradients of a scalar function of a retraction."""
    return jax.value_and_grad(lambda X, V: jnp.sum(W * retract(X, V)), argnums=(0, 1))


def installed(name: str) -> bool:
    """Whether a peer can be imported."""
    return importlib.util.find_spec(name) is not None


def retractions(report: Report) -> None:
    """T1, T2, T3, T5 and the compile times of T8."""
    X, V = frames_and_steps()
    W = jax.random.normal(jax.random.key(1), X.shape)
    methods = {
        m: functools.partial(stiefel.retract, method=m) for m in ("qr", "polar", "cayley", "householder")
    }
    functions = {
        **methods,
        "one pass": lambda X, V: stiefel.qf(X + V, passes=1),
        "exp": stiefel.exp,
        "project": lambda X, V: stiefel.project(X + V),
        "svd": svd_polar,
        "qr gradient": gradient(methods["qr"], W),
        "polar gradient": gradient(methods["polar"], W),
        "householder gradient": gradient(methods["householder"], W),
    }
    calls, compiling = {}, {}
    for name, function in functions.items():
        compiling[name], calls[name] = compile_seconds(function, X, V)
    calls.update(retraction_peers(X, V))
    took = interleaved(calls)
    base = took["householder"]
    shape = f"{CLIENTS} x ({ROWS}, {RANK})"
    report.line(f"Householder QR, {shape}", base * 1e3, "ms")
    report.line("T1 retract qr / Householder", took["qr"] / base, "ratio", most=0.95)
    report.line("   one pass / Householder", took["one pass"] / base, "ratio", most=0.55)
    report.line("   retract cayley / Householder", took["cayley"] / base, "ratio")
    report.line("   exp / Householder", took["exp"] / base, "ratio")
    report.line("   project / Householder", took["project"] / base, "ratio")
    backward = took["householder gradient"]
    report.line(
        "T2 qr forward and backward / Householder", took["qr gradient"] / backward, "ratio", most=0.65
    )
    report.line("   polar forward and backward / Householder", took["polar gradient"] / backward, "ratio")
    for peer, target in (("pymanopt", 0.35), ("geoopt", 1.2)):
        ratio = took["qr"] / took[peer] if peer in took else None
        report.line(
            f"T3 retract qr / {peer}", ratio, "ratio" if ratio else f"{peer} not installed", most=target
        )
    report.line("T5 retract polar / SVD polar", took["polar"] / took["svd"], "ratio", most=0.8)
    for name in ("qr", "polar", "cayley", "exp", "project", "qr gradient", "polar gradient"):
        report.line(f"T8 compile {name}", compiling[name], "s", most=3)


def retraction_peers(X: jax.Array, V: jax.Array) -> dict[str, Callable]:
    """Calls of the peers that are installed."""
    peers: dict[str, Callable] = {}
    if installed("pymanopt"):
        from pymanopt.manifolds import Stiefel

        manifold = Stiefel(ROWS, RANK, k=CLIENTS)
        x, v = np.asarray(X), np.asarray(V)
        peers["pymanopt"] = lambda: manifold.retraction(x, v)
    if installed("geoopt"):
        import geoopt
        import torch

        torch.set_num_threads(1)
        x, v = torch.tensor(np.asarray(X)), torch.tensor(np.asarray(V))
        peers["geoopt"] = lambda: geoopt.EuclideanStiefel().retr(x, v)
    return peers


def slerps(report: Report) -> None:
    """T6 and the compile times of SLERP."""
    x, y = sphere.random(jax.random.key(2), (2, 4096, 128))
    t = jnp.full((4096, 1), 0.3)
    W = jax.random.normal(jax.random.key(3), x.shape)

    def backward(path: Callable) -> Callable:
        return jax.value_and_grad(lambda x, y: jnp.sum(W * path(x, y)), argnums=(0, 1))

    functions = {
        "ours": lambda x, y: sphere.slerp(x, y, t[:, 0]),
        "unsafe": lambda x, y: unsafe_slerp(x, y, t),
        "ours gradient": backward(lambda x, y: sphere.slerp(x, y, t[:, 0])),
        "unsafe gradient": backward(lambda x, y: unsafe_slerp(x, y, t)),
    }
    calls, compiling = {}, {}
    for name, function in functions.items():
        compiling[name], calls[name] = compile_seconds(function, x, y)
    if installed("geojax"):
        from geojax.geometry import Sphere

        manifold = Sphere(128)
        peer = jax.vmap(lambda x, y, t: manifold.exp(x, t[0] * manifold.log(x, y)))
        calls["geojax"] = compile_seconds(lambda x, y: peer(x, y, t), x, y)[1]
    took = interleaved(calls)
    pairs = list(zip(np.asarray(x, np.float64), np.asarray(y, np.float64), strict=True))
    unit = [(a / np.linalg.norm(a), b / np.linalg.norm(b)) for a, b in pairs]
    start = time.perf_counter()
    for a, b in unit:
        geometric_slerp(a, b, 0.3)
    scipy_loop = time.perf_counter() - start
    report.line("unsafe SLERP, (4096, 128)", took["unsafe"] * 1e3, "ms")
    report.line("T6 slerp / unsafe formula", took["ours"] / took["unsafe"], "ratio", most=1.6)
    report.line(
        "T6 slerp gradient / unsafe formula",
        took["ours gradient"] / took["unsafe gradient"],
        "ratio",
        most=2.5,
    )
    report.line("T6 scipy loop / slerp", scipy_loop / took["ours"], "ratio", least=300)
    ratio = took["geojax"] / took["ours"] if "geojax" in took else None
    report.line("T6 geojax exp(t log) / slerp", ratio, "ratio" if ratio else "geojax not installed", least=3)
    for name in ("ours", "ours gradient"):
        report.line(f"T8 compile slerp {name}", compiling[name], "s", most=3)


def accuracy(report: Report) -> None:
    """T7: orthonormality in units of rounding, after one step and after ten thousand."""

    def error(Q: jax.Array) -> float:
        Q64 = np.asarray(Q, np.float64)
        defect = np.swapaxes(Q64, -1, -2) @ Q64 - np.eye(Q64.shape[-1])
        return float(np.linalg.norm(defect, 2, axis=(-2, -1)).max() / jnp.finfo(Q.dtype).eps)

    for n, p in ((ROWS, RANK), (4096, 64)):
        X, V = frames_and_steps(n, p, 1)
        report.line(f"T7 error of retract qr, ({n}, {p})", error(stiefel.retract(X, V)), "eps", most=10)
    X, V = frames_and_steps(clients=1)

    @jax.jit
    def walk(X: jax.Array) -> jax.Array:
        def step(_: int, X: jax.Array) -> jax.Array:
            return stiefel.retract(X, stiefel.project_tangent(X, V))

        return jax.lax.fori_loop(0, 10_000, step, X)

    report.line("T7 error of retract qr after 10,000 steps", error(walk(X)), "eps", most=10)


def retraction_milliseconds() -> float:
    """Median time of one batched QR retraction in this process."""
    _, call = compile_seconds(stiefel.retract, *frames_and_steps())
    return interleaved({"qr": call})["qr"] * 1e3


def calls_without_hanging() -> float:
    """Seconds for many calls of one program that holds two independent batched retractions."""
    X, V = frames_and_steps(48)
    pair = jax.jit(lambda X, V: (stiefel.retract(X, V), stiefel.retract(X, -V, method="polar")))
    start = time.perf_counter()
    for _ in range(CALLS):
        jax.block_until_ready(pair(X, V))
    return time.perf_counter() - start


def in_subprocess(function: Callable[[], float], timeout: float, **variables: str | None) -> float | None:
    """Value of a function of this module in a fresh process with other environment variables; None if it hangs."""
    environment = {**os.environ, **{k: v for k, v in variables.items() if v is not None}}
    for name in (k for k, v in variables.items() if v is None):
        environment.pop(name, None)
    code = f"from benchmarks.manifolds import {function.__name__} as f; print(f())"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            timeout=timeout,
            capture_output=True,
            text=True,
            check=True,
        )
    except subprocess.TimeoutExpired:
        return None
    return float(done.stdout)


def threads(report: Report) -> None:
    """T4: the same retraction with LAPACK on its default number of threads; T9: no deadlock on two cores."""
    many, one = [], []
    for _ in range(3):
        many.append(in_subprocess(retraction_milliseconds, 300, OPENBLAS_NUM_THREADS=None) or float("inf"))
        one.append(in_subprocess(retraction_milliseconds, 300, OPENBLAS_NUM_THREADS="1") or float("inf"))
    ratio = statistics.median(many) / statistics.median(one)
    report.line("T4 retract qr, default / one BLAS thread", ratio, "ratio", most=1.5)
    seconds = in_subprocess(calls_without_hanging, 600)
    report.line(
        f"T9 {CALLS} calls with two batched retractions", seconds or float("inf"), "s, no hang", most=600
    )


def accelerator(report: Report) -> None:
    """The batched QR retraction against the device's own QR."""
    X, V = frames_and_steps()
    calls = {
        name: compile_seconds(functools.partial(stiefel.retract, method=name), X, V)[1]
        for name in ("qr", "householder")
    }
    took = interleaved(calls)
    report.line("T1 Householder / retract qr", took["householder"] / took["qr"], "ratio", least=5)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    options = parser.parse_args()
    pinned = {"OPENBLAS_NUM_THREADS": "1", "JAX_PLATFORMS": {"cpu": "cpu", "gpu": "cuda"}[options.device]}
    if any(os.environ.get(name) != value for name, value in pinned.items()):
        command = [sys.executable, "-m", "benchmarks.manifolds", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, **pinned})
    report = Report(options.json)
    if options.device == "gpu":
        accelerator(report)
        accuracy(report)
        return
    retractions(report)
    slerps(report)
    accuracy(report)
    threads(report)


if __name__ == "__main__":
    main()
