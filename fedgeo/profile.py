"""Where a training's time goes: compiling and running apart, operations, bytes, the share of the matmul rate, a trace.

Streams and rows are generated, so that any size can be asked about. Two counts of operations stand side by side:

- ours, from the traced program: products of matrices and triangular factorisations, a loop's body as often as it
  runs. Elementwise arithmetic is left out, as in the counts of the literature.
- XLA's ``cost_analysis()`` of the compiled program. It counts elementwise arithmetic too, but the body of a loop once,
  however often it runs, and nothing inside a call to a library.

So of a program with a scan, such as all rounds of a training, only ours says how much work was done.
"""

import contextlib
import gzip
import importlib.metadata
import json
import math
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from fedgeo import federation
from fedgeo.algorithms import koopman, moments
from fedgeo.algorithms.fedavg import fedavg
from fedgeo.algorithms.fedkad import fedkad
from fedgeo.algorithms.one_shot import one_shot
from fedgeo.federation.history import made_folder
from fedgeo.models.encoder import geodesic_svdd
from fedgeo.protocol import Cohort, FedAlgorithm, FedState, Key, PyTree, Rows, Series

SIDES = {"cpu": 2000}
"""Side of the product that sets the rate, by platform; 8192 on any other, which a GPU needs to be busy."""

TESTED = 2000
"""Rows a client that are scored."""


class Operations(NamedTuple):
    """What a traced program computes.

    Attributes:
        flops: of products and triangular factorisations, a loop's body as often as it runs.
        open_loops: loops whose length depends on data, counted at the length that the caller named.
        uncounted: other factorisations in the program, which are in no count.
    """

    flops: float
    open_loops: int
    uncounted: frozenset[str]


class Stage(NamedTuple):
    """One program of a training.

    Attributes:
        name: what it does.
        part_of: the stage that it is a part of, or "".
        compile_seconds: tracing, lowering and compiling.
        run_seconds: median of the repeats.
        flops: our count, see the module.
        xla_flops: XLA's count, loop bodies once; None where it gives none.
        xla_bytes: bytes read and written by XLA's count, loop bodies once.
        argument_bytes: of the program's inputs.
        output_bytes: of its results.
        temporary_bytes: that it needs beside those.
        rate_share: our flops a second, of those of a float32 product in the same run.
        time_share: of the run time of all stages that are no part of another.
    """

    name: str
    part_of: str
    compile_seconds: float
    run_seconds: float
    flops: float
    xla_flops: float | None
    xla_bytes: float | None
    argument_bytes: int | None
    output_bytes: int | None
    temporary_bytes: int | None
    rate_share: float
    time_share: float


@dataclass(frozen=True)
class Profile:
    """What was measured.

    Attributes:
        method: of the training.
        settings: its sizes.
        environment: versions and device.
        matmul_flops_per_second: of a float32 product at highest precision, in turns with the stages.
        peak_bytes: of memory; of the device where it says so, else of this process so far.
        peak_of: "device" or "process".
        stages: in the order of a training.
        notes: what a reader of the counts must know.
        trace: a file for Perfetto (ui.perfetto.dev), in a folder for TensorBoard; None if none was asked for.
    """

    method: str
    settings: dict[str, Any]
    environment: dict[str, Any]
    matmul_flops_per_second: float
    peak_bytes: int
    peak_of: Literal["device", "process"]
    stages: list[Stage]
    notes: list[str] = field(default_factory=list)
    trace: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Plain values, for ``json.dumps``."""
        return asdict(self) | {"stages": [stage._asdict() for stage in self.stages]}


@dataclass(frozen=True)
class FedKADSizes:
    """A training of FedKAD; the defaults are those of the Server Machine Dataset.

    Attributes:
        clients: K.
        rows: T, training rows a client.
        channels: C.
        window: W.
        lift_size: d_lift.
        rank: r.
        inner_steps: C, local steps a round.
        rounds: R.
        participation: share of clients drawn each round.
    """

    clients: int = 28
    rows: int = 24_000
    channels: int = 38
    window: int = 20
    lift_size: int = 128
    rank: int = 24
    inner_steps: int = 5
    rounds: int = 30
    participation: float = 0.25

    def cohort(self) -> int:
        """S."""
        return max(round(self.participation * self.clients), 1)


@dataclass(frozen=True)
class GeodesicSizes:
    """A training of Geodesic-SVDD on rows of F features; other defaults are those of ``fedgeo run``.

    Attributes:
        clients: K; all of them train in every round.
        rows: N, training rows a client.
        channels: F, features.
        latent: d.
        width: of the hidden layers.
        blocks: residual blocks.
        batch_size: rows a local step.
        protocol: "iterative", with an epoch a round, or "one-shot", a single round.
        epochs: local epochs of the one-shot protocol.
        rounds: R of the iterative one.
    """

    clients: int = 3
    rows: int = 1000
    channels: int = 30
    latent: int = 32
    width: int = 128
    blocks: int = 2
    batch_size: int = 128
    protocol: Literal["iterative", "one-shot"] = "iterative"
    epochs: int = 50
    rounds: int = 50


def profile_fedkad(
    sizes: FedKADSizes | None = None, *, repeats: int = 3, trace: str | os.PathLike[str] | None = None
) -> Profile:
    """Profile FedKAD on generated streams.

    Args:
        sizes: of the training.
        repeats: runs of each stage, taken in turns; the median counts.
        trace: folder for a trace of one run of every stage.

    Raises:
        ValueError: a size out of its range, or a trace folder that cannot be.
    """
    sizes = sizes or FedKADSizes()
    _check_positive(sizes, repeats, trace)
    if sizes.rows <= sizes.window:
        raise ValueError(
            f"rows must be more than the window of {sizes.window} for a training pair, got {sizes.rows}"
        )
    if not 0 < sizes.participation <= 1:
        raise ValueError(f"participation is a share of the clients in (0, 1], got {sizes.participation}")
    key = jax.random.key(0)
    lift = koopman.random_lift(key, sizes.channels, window=sizes.window, size=sizes.lift_size)
    alg = fedkad(lift, rank=sizes.rank, inner_steps=sizes.inner_steps)
    x = _streams(sizes.clients, sizes.rows, sizes.channels)
    bench = _Bench()
    sums = bench.add("second moments", moments.prepare, lift, Series(x, jnp.ones(x.shape[:2], bool)))
    sampler = federation.uniform(sizes.cohort())
    _add_training(bench, alg, key, sums, sampler, sizes.rounds, x[:, : TESTED + sizes.window])
    return bench.measure("fedkad", asdict(sizes) | {"cohort": sizes.cohort()}, repeats, trace)


def profile_geodesic(
    sizes: GeodesicSizes | None = None, *, repeats: int = 3, trace: str | os.PathLike[str] | None = None
) -> Profile:
    """Profile Geodesic-SVDD on generated rows; arguments and errors as for :func:`profile_fedkad`."""
    sizes = sizes or GeodesicSizes()
    _check_positive(sizes, repeats, trace)
    if sizes.protocol not in ("iterative", "one-shot"):
        raise ValueError(f'protocol must be "iterative" or "one-shot", got {sizes.protocol!r}')
    model = geodesic_svdd(latent=sizes.latent, width=sizes.width, blocks=sizes.blocks)
    options: dict[str, Any] = dict(optimizer=optax.adam(1e-3), batch_size=sizes.batch_size)
    if sizes.protocol == "iterative":
        alg, rounds = fedavg(model, epochs=1, **options), sizes.rounds
    else:
        alg, rounds = one_shot(model, epochs=sizes.epochs, **options), 1
    x = _streams(sizes.clients, sizes.rows, sizes.channels)
    data = Rows(x, jnp.ones(x.shape[:2], bool))
    steps = -(-sizes.rows // min(sizes.batch_size, sizes.rows))
    bench = _Bench(turns=steps)
    _add_training(bench, alg, jax.random.key(0), data, federation.everyone, rounds, x[:, :TESTED])
    return bench.measure(
        "geodesic-svdd", asdict(sizes) | {"rounds": rounds, "steps_per_epoch": steps}, repeats, trace
    )


def _check_positive(sizes: Any, repeats: int, trace: str | os.PathLike[str] | None) -> None:
    """Raise ValueError before any work is done."""
    for name, value in {**asdict(sizes), "repeats": repeats}.items():
        least = 0 if name in ("lift_size", "blocks") else 1
        if isinstance(value, int) and value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    if trace is not None:
        made_folder(Path(trace), "a trace")


def _streams(clients: int, rows: int, channels: int) -> jax.Array:
    """Noisy oscillations ``(K, T, C)``, float32."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((clients, rows, channels), np.float32)
    return jnp.asarray(x + np.sin(np.arange(rows, dtype=np.float32) * 0.1)[None, :, None])


def _add_training(
    bench: "_Bench", alg: FedAlgorithm, key: Key, data: PyTree, sampler: federation.Sampler, rounds: int, x: PyTree
) -> None:  # fmt: skip
    """The stages that every algorithm has: start, one round and its parts, all rounds, deployment, scoring."""
    state = bench.add("start", partial(federation.init, alg), key, data)
    number, whole = jnp.asarray(0), ""
    if rounds > 1:
        whole = f"{rounds} rounds"
        train = partial(federation.run, alg, sampler=sampler, rounds=rounds)
        state, _ = bench.add(whole, lambda *start: train(*start, number), key, state, data)
    draw, work = federation.round_keys(key, 0)
    cohort = sampler(draw, jax.tree.leaves(data)[0].shape[0], number)
    last, _ = bench.add(
        "one round", partial(federation.fed_round, alg), work, state, data, cohort, part_of=whole
    )
    update = partial(_local_work, alg)
    clients, uploads, weights = bench.add(
        "local work", update, work, state, data, cohort, part_of="one round"
    )
    aggregate = partial(_aggregation, alg)
    bench.add("aggregation", aggregate, state.server, clients, uploads, weights, cohort, part_of="one round")
    detectors = bench.add("deployment", partial(federation.deploy, alg), last, data)
    bench.add("scoring", partial(federation.score, alg), detectors, x)


def _local_work(
    alg: FedAlgorithm, key: Key, state: FedState, data: PyTree, cohort: Cohort
) -> tuple[PyTree, PyTree, jax.Array]:
    """What the cohort's devices do in a round: the new client states, uploads and weights."""

    def one(k: jax.Array, client: PyTree, data_k: PyTree) -> tuple[PyTree, PyTree, jax.Array]:
        client, upload, _ = alg.update(jax.random.fold_in(key, k), state.server, client, data_k)
        return client, upload, alg.weight(data_k)

    clients, data = jax.tree.map(lambda leaf: leaf[cohort.index], (state.clients, data))
    return jax.vmap(one)(cohort.index, clients, data)


def _aggregation(
    alg: FedAlgorithm, server: PyTree, clients: PyTree, uploads: PyTree, weights: jax.Array, cohort: Cohort
) -> tuple[PyTree, PyTree]:
    """What follows: the server's step, and the clients' second one."""
    server, *_ = federation.combine(alg, server, uploads, weights, cohort)
    return server, jax.vmap(alg.sync, in_axes=(None, 0), axis_size=weights.shape[0])(server, clients)


class _Bench:
    """Compiles stages one after the other, since each needs what the one before gave, and then times them in turns."""

    def __init__(self, *, turns: int = 1) -> None:
        """``turns``: length of the loops whose length depends on data."""
        self._turns = turns
        self._stages: list[tuple[Stage, Callable[[], Any]]] = []
        self._open, self._uncounted = False, frozenset[str]()

    def add(self, name: str, function: Callable[..., Any], *arguments: Any, part_of: str = "") -> Any:
        """Compile and run a stage once; returns its result."""
        count = operations(function, *arguments, turns=self._turns)
        self._open |= count.open_loops > 0
        self._uncounted |= count.uncounted
        began = time.perf_counter()
        compiled = jax.jit(function).lower(*arguments).compile()
        seconds = time.perf_counter() - began
        cost, memory = _analysed(compiled)
        # What is NaN here takes the times of all stages.
        stage = Stage(
            name, part_of, seconds, math.nan, count.flops, cost.get("flops"), cost.get("bytes accessed"),
            argument_bytes=getattr(memory, "argument_size_in_bytes", None),
            output_bytes=getattr(memory, "output_size_in_bytes", None),
            temporary_bytes=getattr(memory, "temp_size_in_bytes", None),
            rate_share=math.nan, time_share=math.nan,
        )  # fmt: skip

        def call() -> Any:
            return jax.block_until_ready(compiled(*arguments))

        self._stages.append((stage, call))
        return call()

    def measure(
        self, method: str, settings: dict[str, Any], repeats: int, trace: str | os.PathLike[str] | None
    ) -> Profile:
        """Time all stages in turns with a product of matrices, then trace one run of each."""
        side = SIDES.get(jax.default_backend(), 8192)
        a = jax.random.normal(jax.random.key(0), (side, side))
        product = jax.jit(partial(jnp.matmul, precision="highest"))
        rate_seconds, seconds = _in_turns(
            lambda: jax.block_until_ready(product(a, a)), [call for _, call in self._stages], repeats
        )
        rate = 2.0 * side**3 / rate_seconds
        timed = list(zip((stage for stage, _ in self._stages), seconds, strict=True))
        whole = sum(s for stage, s in timed if not stage.part_of)
        stages = [
            stage._replace(run_seconds=s, rate_share=stage.flops / s / rate, time_share=s / whole)
            for stage, s in timed
        ]
        peak, of = _peak_memory()
        file = None
        if trace is not None:
            with _traced(Path(trace)) as found:
                for stage, call in self._stages:
                    with jax.profiler.TraceAnnotation(stage.name):
                        call()
            file = str(found[0])
        return Profile(method, settings, environment(), rate, peak, of, stages, self._notes(), file)

    def _notes(self) -> list[str]:
        notes = [
            "GFLOP: products and triangular factorisations, counted in the traced program, loops as often as they run",
            "XLA GFLOP, XLA MB moved: cost_analysis() of the compiled program, the body of a loop once",
        ]
        if self._open:
            notes.append(
                f"loops whose length depends on the data are counted at {self._turns} "
                f"turn{'s' if self._turns > 1 else ''}, their length for these data"
            )
        if self._uncounted:
            notes.append(f"in no count: {', '.join(sorted(self._uncounted))}")
        return notes


def operations(function: Callable[..., Any], *arguments: Any, turns: int = 1) -> Operations:
    """Count the operations of a function for arguments of these shapes; nothing is computed.

    Args:
        function: one that JAX can trace.
        arguments: arrays or :class:`jax.ShapeDtypeStruct`.
        turns: how often a loop runs whose length depends on data.
    """
    return _count(jax.make_jaxpr(function)(*arguments).jaxpr, turns)


_NONE = Operations(0.0, 0, frozenset())


def _count(program: Jaxpr, turns: int) -> Operations:
    total = _NONE
    for equation in program.eqns:
        total = _add(total, _of_equation(equation, turns))
    return total


def _add(a: Operations, b: Operations, times: float = 1) -> Operations:
    return Operations(a.flops + times * b.flops, a.open_loops + b.open_loops, a.uncounted | b.uncounted)


def _of_equation(equation: JaxprEqn, turns: int) -> Operations:
    name = equation.primitive.name
    if name in _FORMULAS:
        return Operations(float(_FORMULAS[name](equation)), 0, frozenset())
    if name in _UNCOUNTED:
        return Operations(0.0, 0, frozenset({name}))
    inner = [_count(program, turns) for program in _programs(equation.params.values())]
    if name == "cond":  # one branch runs; the longest is the work there may be
        longest = max(inner, key=lambda count: count.flops)
        return _add(_NONE, longest)._replace(
            open_loops=max(count.open_loops for count in inner),
            uncounted=frozenset().union(*(count.uncounted for count in inner)),
        )
    total = _NONE
    for count in inner:
        total = _add(total, count)
    if name == "scan":
        return total._replace(flops=total.flops * equation.params["length"])
    if name == "while":
        # A loop without a product in it costs nothing here, however often it runs.
        return Operations(total.flops * turns, total.open_loops + (total.flops > 0), total.uncounted)
    return total


def _programs(values: Any) -> Iterator[Jaxpr]:
    """The programs inside an equation's parameters."""
    for value in values:
        if isinstance(value, ClosedJaxpr):
            yield value.jaxpr
        elif isinstance(value, Jaxpr):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _programs(value)


def _shape(variable: Any) -> tuple[int, ...]:
    return tuple(variable.aval.shape)


def _product(equation: JaxprEqn) -> int:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left = _shape(equation.invars[0])
    return 2 * math.prod(_shape(equation.outvars[0])) * math.prod(left[axis] for axis in contracted)


def _convolution(equation: JaxprEqn) -> int:
    kernel = _shape(equation.invars[1])
    outputs = kernel[equation.params["dimension_numbers"].rhs_spec[0]]
    return 2 * math.prod(_shape(equation.outvars[0])) * math.prod(kernel) // outputs


def _cholesky(equation: JaxprEqn) -> float:
    *batch, _, n = _shape(equation.invars[0])
    return math.prod(batch) * n**3 / 3


def _triangular(equation: JaxprEqn) -> int:
    return math.prod(_shape(equation.outvars[0])) * _shape(equation.invars[0])[-1]


_FORMULAS: dict[str, Callable[[JaxprEqn], float]] = {
    "dot_general": _product,
    "conv_general_dilated": _convolution,
    "cholesky": _cholesky,
    "triangular_solve": _triangular,
}

_UNCOUNTED = frozenset(
    {"qr", "geqrf", "householder_product", "eigh", "eig", "svd", "lu", "schur", "tridiagonal_solve"}
)


def _analysed(compiled: Any) -> tuple[dict[str, float], Any]:
    """XLA's cost and memory analysis; a backend may have neither."""
    try:
        cost = compiled.cost_analysis() or {}
        memory = compiled.memory_analysis()
    except (NotImplementedError, jax.errors.JaxRuntimeError):
        return {}, None
    return (cost[0] if isinstance(cost, list) else cost), memory


def _in_turns(
    reference: Callable[[], Any], calls: list[Callable[[], Any]], repeats: int
) -> tuple[float, list[float]]:
    """Median seconds of the reference and of each call, in turns: what else the machine does hits all alike."""

    def timed(call: Callable[[], Any]) -> float:
        began = time.perf_counter()
        call()
        return time.perf_counter() - began

    reference()  # the calls have run before
    of_reference: list[float] = []
    of_calls: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for call, times in zip(calls, of_calls, strict=True):
            of_reference.append(timed(reference))
            times.append(timed(call))
    return statistics.median(of_reference), [statistics.median(times) for times in of_calls]


def _peak_memory() -> tuple[int, Literal["device", "process"]]:
    stats = jax.local_devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in stats:
        return int(stats["peak_bytes_in_use"]), "device"
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count the parent that this process was forked from, too
        line = next((line for line in status.read_text().splitlines() if line.startswith("VmHWM")), None)
        if line:
            return int(line.split()[1]) * 1024, "process"
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, "process"


@contextlib.contextmanager
def _traced(folder: Path) -> Iterator[list[Path]]:
    """Trace what happens inside; afterwards the list holds the file for Perfetto."""
    before = set(folder.rglob("*.json.gz"))
    found: list[Path] = []
    with jax.profiler.trace(folder, create_perfetto_trace=True):
        yield found
    new = sorted(set(folder.rglob("*.json.gz")) - before, key=lambda path: "perfetto" not in path.name)
    if not new:
        raise ValueError(f"JAX's profiler wrote no trace to {folder}; run without a trace")
    with gzip.open(new[0], "rt") as file:
        if not json.load(file)["traceEvents"]:
            raise ValueError(f"JAX's profiler wrote an empty trace to {new[0]}; run without a trace")
    found.append(new[0])


def shown(profile: Profile) -> pd.DataFrame:
    """The stages as text, parts of a stage indented below it."""
    depth = {"": -1}
    rows = {}
    for stage in profile.stages:
        depth[stage.name] = depth[stage.part_of] + 1
        rows["  " * depth[stage.name] + stage.name] = {
            "compile [s]": f"{stage.compile_seconds:.2f}",
            "run [s]": f"{stage.run_seconds:.3g}",
            "of all": f"{100 * stage.time_share:.0f} %",
            "GFLOP": f"{stage.flops / 1e9:.3g}",
            "of the rate": f"{100 * stage.rate_share:.0f} %",
            "XLA GFLOP": _scaled(stage.xla_flops, 1e9),
            "XLA MB moved": _scaled(stage.xla_bytes, 1e6, ".1f"),
            "MB in": _scaled(stage.argument_bytes, 1e6, ".1f"),
            "MB out": _scaled(stage.output_bytes, 1e6, ".1f"),
            "MB temporary": _scaled(stage.temporary_bytes, 1e6, ".1f"),
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("stage")


def _scaled(value: float | None, unit: float, form: str = ".3g") -> str:
    return "unknown" if value is None else f"{value / unit:{form}}"


def environment() -> dict[str, Any]:
    """What a reader needs to judge the numbers."""
    device = jax.devices()[0]
    return {
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "numpy")},
        "device": device.device_kind,
        "platform": device.platform,
        "devices": jax.device_count(),
        "processors": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "dtype": "float32",
    }
