"""A saved detector for another machine: NumPy alone, ONNX, or a compiled program of ``jax.export``.

ONNX and ``jax.export`` hold one client's detector. In a call both score one stream without gaps, and take complete
rows: a missing value makes the scores of all rows whose window holds it NaN, never 0. What fills values, sees gaps and
goes row by row is :mod:`fedgeo.deploy.runtime`.

ONNX needs the extra ``fedgeo[onnx]``. Its graphs are written out here, node by node, for they are small; what converts
JAX programs brings a score of packages and its own bounds on JAX's version.
"""

import functools
import json
import math
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from fedgeo.algorithms import koopman
from fedgeo.deploy import runtime
from fedgeo.models import encoder

PROGRAM = "fedgeo program"
"""The format of the files of :func:`to_stablehlo`."""

OPSET = {"fedkad": 17, "geodesic-svdd": 20}
"""Versions of ONNX's operators: 17 is what older runtimes know, and Gelu came with 20."""

_IR_VERSION = 9  # of opset 20; runtimes refuse files of a later one than theirs


def to_runtime(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> Path:
    """A folder for a device with Python and NumPy alone: the runtime, the detector, and how to use them.

    Args:
        path: of the detector's file.
        folder: is made; files of these names in it are replaced.

    Returns:
        The folder.

    Raises:
        FileNotFoundError: no detector there.
        ValueError: a file that is no detector.
    """
    detector, path, folder = runtime.load(path), Path(path), Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for source in (Path(runtime.__file__), path):
        if source.resolve() != (folder / source.name).resolve():
            shutil.copyfile(source, folder / source.name)
    client = f" --client {shlex.quote(detector.clients[0])}" if len(detector.clients) > 1 else ""
    (folder / "README.txt").write_text(
        "Needs Python 3.11 and NumPy. Scores rows of CSV as they come, a line each:\n"
        f"    python runtime.py {shlex.quote(path.name)}{client} < rows.csv\n"
        f"In Python: import runtime; scores = runtime.load({json.dumps(path.name)}).score(rows, client)\n"
    )
    return folder


def to_onnx(path: str | os.PathLike[str], file: str | os.PathLike[str], client: str | None = None) -> Path:
    """One client's detector as an ONNX graph.

    Its input ``rows (T, C)``, float64, is in the units of the training data; T is free. Its outputs are ``score (T,)``,
    float32, smoothed, and ``alarm (T,)``, boolean. The metadata hold method, client, columns, threshold and warm-up.

    Args:
        path: of the detector's file.
        file: what to write; replaced at once, when it is whole.
        client: whose; may be left out where there is only one, and for Geodesic-SVDD's threshold of nobody.

    Raises:
        ImportError: without the extra ``fedgeo[onnx]``.
        FileNotFoundError: no detector there.
        ValueError: a file that is no detector, or an unknown client.
    """
    onnx = _onnx()
    _check_target(path, file)
    about, arrays = runtime.read(path)
    detector = runtime.load(path)
    threshold = detector.threshold(client)
    graph = _Graph(onnx)
    scaled = _scale_rows(graph, arrays, detector, client)
    if isinstance(detector, runtime.StreamDetector):
        score = _stream_score(graph, scaled, arrays, detector, client)
    else:
        score = _row_score(graph, scaled, arrays, detector)
    graph.node("Identity", score, output="score")
    graph.node("Greater", graph.cast(score, np.float64), np.float64(threshold), output="alarm")
    tensor = onnx.helper.make_tensor_value_info
    types = onnx.TensorProto
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            graph.nodes,
            "fedgeo",
            [tensor("rows", types.DOUBLE, ["T", len(detector.columns)])],
            [tensor("score", types.FLOAT, ["T"]), tensor("alarm", types.BOOL, ["T"])],
            graph.constants,
        ),
        opset_imports=[onnx.helper.make_opsetid("", OPSET[about["method"]])],
        ir_version=_IR_VERSION,
        producer_name="fedgeo",
    )
    facts = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in _facts(detector, client).items()
    }
    onnx.helper.set_model_props(model, facts)
    onnx.checker.check_model(model, full_check=True)
    return _write_whole(Path(file), model.SerializeToString())


def to_stablehlo(
    path: str | os.PathLike[str], file: str | os.PathLike[str], client: str | None = None
) -> Path:
    """One client's detector as a program of ``jax.export``, for CPUs; :func:`load_stablehlo` reads it.

    Programs run on versions of JAX up to half a year newer: the detector's own file is the archive.

    Args:
        path: of the detector's file.
        file: what to write.
        client: as for :func:`to_onnx`.

    Raises:
        FileExistsError: there is something else.
        FileNotFoundError: no detector there.
        ValueError: a file that is no detector, or an unknown client.
    """
    _check_target(path, file)
    _, arrays = runtime.read(path)
    detector = runtime.load(path)
    threshold = detector.threshold(client)
    if isinstance(detector, runtime.StreamDetector):
        score = _stream_program(arrays, detector, client)
    else:
        score = _row_program(arrays, detector)
    (steps,) = jax.export.symbolic_shape("T")
    shape = jax.ShapeDtypeStruct((steps, len(detector.columns)), jnp.float32)
    exported = jax.export.export(jax.jit(score), platforms=["cpu"])(shape)
    center, scale = _scaler(arrays, detector, client)
    return runtime.write(
        file,
        {**_facts(detector, client), "settings": detector.settings},
        {
            "program": np.frombuffer(exported.serialize(), np.uint8),
            "center": center,
            "scale": scale,
            "threshold": np.asarray(threshold),
        },
        form=PROGRAM,
    )


class Program:
    """A loaded program.

    Attributes:
        about: the facts of the file: method, client, columns and more.
        exported: the ``jax.export.Exported`` of scaled float32 rows ``(T, C)`` to scores ``(T,)``.
        threshold: above which a score is an alarm; NaN for none.
    """

    def __init__(self, about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]):
        self.about = dict(about)
        self.exported = jax.export.deserialize(bytearray(arrays["program"].tobytes()))
        self.threshold = float(arrays["threshold"])
        self._center, self._scale = arrays["center"], arrays["scale"]
        self._call = jax.jit(self.exported.call)

    def score(self, rows: Any) -> np.ndarray:
        """Scores ``(T,)`` of rows ``(T, C)`` in the units of the training data; compiles once for every new T."""
        x = runtime.standardise(
            runtime.matrix(rows, self.about["columns"]),
            self._center,
            self._scale,
            runtime.bound(self.about["settings"]),
        )
        if self.about["settings"]["missing"] == "center":
            x = np.where(np.isnan(x), np.float32(0), x)
        return np.asarray(self._call(x))

    def alarms(self, scores: np.ndarray) -> np.ndarray:
        """Which scores are alarms, boolean; never one that is NaN."""
        return np.asarray(scores) > self.threshold


def load_stablehlo(file: str | os.PathLike[str]) -> Program:
    """What :func:`to_stablehlo` wrote.

    Raises:
        FileNotFoundError: no file there.
        ValueError: another file, another version, or one that is damaged or was changed.
    """
    return Program(*runtime.read(file, form=PROGRAM))


def _check_target(path: str | os.PathLike[str], file: str | os.PathLike[str]) -> None:
    if Path(path).resolve() == Path(file).resolve():
        raise ValueError(f"{file} is the detector itself; choose another name for what is made of it")


def _facts(detector: runtime.StreamDetector | runtime.RowDetector, client: str | None) -> dict[str, Any]:
    threshold = detector.threshold(client)
    facts = {
        "method": detector.about["method"],
        "client": client or (detector.clients[0] if len(detector.clients) == 1 else ""),
        "columns": list(detector.columns),
        "threshold": None if math.isnan(threshold) else threshold,
    }
    if isinstance(detector, runtime.StreamDetector):
        facts |= {"warm_up": detector.warm_up, "interval": detector.settings.get("interval")}
    return facts


def _index(detector: runtime.StreamDetector | runtime.RowDetector, client: str | None) -> int:
    return 0 if client is None else detector.clients.index(client)


def _scaler(
    arrays: Mapping[str, np.ndarray],
    detector: runtime.StreamDetector | runtime.RowDetector,
    client: str | None,
) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(detector, runtime.RowDetector):
        return arrays["center"], arrays["scale"]
    k = _index(detector, client)
    return arrays["center"][k], arrays["scale"][k]


# jax.export


def _stream_program(
    arrays: Mapping[str, np.ndarray], detector: runtime.StreamDetector, client: str | None
) -> Callable[[jax.Array], jax.Array]:
    """``koopman.residuals`` and ``smooth`` for a T that is not known: zeros before the stream in place of blocks."""
    k, settings = _index(detector, client), detector.settings
    lift = koopman.Lift(
        jnp.asarray(arrays["lift_weight"], jnp.float32), jnp.asarray(arrays["lift_bias"], jnp.float32)
    )
    basis, operator = (jnp.asarray(a, jnp.float32) for a in (arrays["basis"], arrays["operator"][k]))
    multiply = functools.partial(jnp.matmul, precision="highest")
    readout = jnp.asarray(arrays["readout"][k]) if "readout" in arrays else multiply(basis, operator)
    variance = jnp.asarray(arrays["variance"][k], jnp.float32) if settings["score_scale"] != "none" else None
    horizon, wide = detector.horizon, lift.wide
    entries = slice(wide - len(detector.columns), wide) if settings["residual"] == "newest" else slice(None)

    def delayed(rows: jax.Array, by: int) -> jax.Array:
        return jnp.pad(rows, ((by, 0), (0, 0)))[: rows.shape[0]]

    def score(x: jax.Array) -> jax.Array:
        steps = x.shape[0]
        phi = lift(koopman.windows(jnp.pad(x, ((detector.window - 1, 0), (0, 0))), detector.window))
        state = delayed(multiply(phi, basis), horizon)
        total = jnp.zeros(steps, x.dtype)
        for h in range(1, horizon + 1):
            errors = delayed(phi[:, entries], horizon - h) - multiply(state, readout.T)
            total = total + jnp.sum(koopman.rescale(errors, variance, settings["score_scale"]), axis=-1)
            state = multiply(state, operator.T)
        raw = jnp.where(jnp.arange(steps) < detector.warm_up, jnp.nan, total / horizon)
        return koopman.smooth(raw, settings["smoothing"])

    return score


def _row_program(
    arrays: Mapping[str, np.ndarray], detector: runtime.RowDetector
) -> Callable[[jax.Array], jax.Array]:
    kernel, head = arrays["params.Dense_0.kernel"], arrays["params.Dense_1.kernel"]
    model = encoder.geodesic_svdd(
        latent=head.shape[-1], width=kernel.shape[-1], blocks=detector.settings["blocks"]
    )
    experts: dict[str, Any] = {}
    for name, value in arrays.items():
        if name.startswith("params."):
            *folders, leaf = name.split(".")
            place = experts
            for folder in folders:
                place = place.setdefault(folder, {})
            place[leaf] = jnp.asarray(value, jnp.float32)
    anchor = jnp.asarray(arrays["anchor"], jnp.float32)

    def one(params: Any, row: jax.Array) -> jax.Array:
        return model.score(params, anchor, row[None])[0]

    # Row by row, mapped: the geometry checks shapes, and cannot compare an N that is not known.
    everywhere = jax.vmap(jax.vmap(one, in_axes=(None, 0)), in_axes=(0, None))
    return lambda x: jnp.sum(everywhere(experts, x), axis=0)


# ONNX


def _onnx() -> Any:
    try:
        import onnx
    except ImportError as error:
        raise ImportError('export to ONNX needs: pip install "fedgeo[onnx]"') from error
    return onnx


class _Graph:
    """Nodes and constants as they are written; a value is a name, or a NumPy value that becomes a constant."""

    def __init__(self, onnx: Any):
        self._onnx, self.nodes, self.constants = onnx, list[Any](), list[Any]()

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        # np.ascontiguousarray would make a scalar a vector
        self.constants.append(self._onnx.numpy_helper.from_array(np.asarray(value, order="C"), name))
        return name

    def node(self, kind: str, *inputs: Any, output: str | None = None, **attributes: Any) -> str:
        names = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        output = output or f"v{len(self.nodes)}"
        self.nodes.append(self._onnx.helper.make_node(kind, names, [output], **attributes))
        return output

    def cast(self, value: str, dtype: Any) -> str:
        return self.node("Cast", value, to=self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def rows(self, value: str, start: int, stop: int) -> str:
        """``value[start:stop]``."""
        return self.node("Slice", value, np.array([start]), np.array([stop]), np.array([0]))

    def columns(self, value: str, start: int, stop: int) -> str:
        """``value[:, start:stop]``."""
        return self.node("Slice", value, np.array([start]), np.array([stop]), np.array([1]))

    def before(self, value: str, zeros: np.ndarray) -> str:
        """Rows before the first."""
        return self.node("Concat", zeros, value, axis=0) if len(zeros) else value

    def delayed(self, value: str, by: int, width: int) -> str:
        """Rows ``by`` rows ago, zeros before the first."""
        return self.rows(self.before(value, np.zeros((by, width), np.float32)), 0, -by) if by else value


def _scale_rows(
    graph: _Graph,
    arrays: Mapping[str, np.ndarray],
    detector: runtime.StreamDetector | runtime.RowDetector,
    client: str | None,
) -> str:
    center, scale = _scaler(arrays, detector, client)
    bound = np.float64(runtime.bound(detector.settings))
    x = graph.node("Div", graph.node("Sub", "rows", center[None]), scale[None])
    # Clip leaves open what becomes of NaN; comparisons do not.
    x = graph.node("Where", graph.node("Greater", x, bound), bound, x)
    x = graph.node("Where", graph.node("Less", x, -bound), -bound, x)
    if detector.settings["missing"] == "center":
        x = graph.node("Where", graph.node("IsNaN", x), np.float64(0), x)
    return graph.cast(x, np.float32)


def _stream_score(
    graph: _Graph,
    x: str,
    arrays: Mapping[str, np.ndarray],
    detector: runtime.StreamDetector,
    client: str | None,
) -> str:
    """The score ``(T,)`` of scaled rows ``(T, C)``; as :func:`_stream_program`, with the windows in one convolution."""
    k, settings, single = _index(detector, client), detector.settings, np.float32
    weight, basis = arrays["lift_weight"].astype(single), arrays["basis"].astype(single)
    size, window, channels = weight.shape
    wide, rank, horizon = window * channels, basis.shape[1], detector.horizon
    operator = arrays["operator"][k].astype(single)
    readout = arrays["readout"][k].astype(single) if "readout" in arrays else basis @ operator

    padded = graph.before(x, np.zeros((window - 1, channels), single))
    taps = basis[:wide].T.reshape(rank, window, channels)
    kernel = np.concatenate([taps, weight]).transpose(0, 2, 1)
    product = _convolve(graph, graph.node("Transpose", padded, perm=[1, 0]), kernel)
    product = graph.node("Transpose", product, perm=[1, 0])
    state = graph.columns(product, 0, rank)
    lifted = graph.columns(product, rank, rank + size)
    lifted = graph.node("Tanh", graph.node("Add", lifted, arrays["lift_bias"].astype(single)[None]))
    state = graph.node("Add", state, graph.node("MatMul", lifted, basis[wide:]))

    target, width = x, channels
    if settings["residual"] == "full":
        lags = [graph.rows(padded, lag, lag + 1 - window or np.iinfo(np.int64).max) for lag in range(window)]
        target, width = graph.node("Concat", *lags, lifted, axis=1), wide + size
    state = graph.delayed(state, horizon, rank)
    parts = []
    for h in range(1, horizon + 1):
        predicted = graph.node("MatMul", state, readout.T)
        errors = graph.node("Sub", graph.delayed(target, horizon - h, width), predicted)
        parts.append(_rescaled_sum(graph, errors, arrays, settings, k))
        state = graph.node("MatMul", state, operator.T)
    raw = graph.node("Div", parts[0] if horizon == 1 else graph.node("Sum", *parts), single(horizon))
    return _smoothed(graph, raw, detector.warm_up, settings["smoothing"])


def _convolve(graph: _Graph, x: str, kernel: np.ndarray) -> str:
    """``(channels, steps)`` to ``(kernels, steps - taps + 1)`` by kernels ``(kernels, channels, taps)``."""
    batch = graph.node("Unsqueeze", x, np.array([0]))
    return graph.node("Squeeze", graph.node("Conv", batch, kernel), np.array([0]))


def _rescaled_sum(
    graph: _Graph, errors: str, arrays: Mapping[str, np.ndarray], settings: Mapping[str, Any], k: int
) -> str:
    squares = graph.node("Mul", errors, errors)
    if settings["score_scale"] != "none":
        squares = graph.node("Div", squares, arrays["variance"][k].astype(np.float32)[None])
    if settings["score_scale"] == "log":  # in float64, for there is no log1p
        squares = graph.node("Log", graph.node("Add", graph.cast(squares, np.float64), np.float64(1)))
    total = graph.node("ReduceSum", squares, np.array([1]), keepdims=0)
    return graph.cast(total, np.float32) if settings["score_scale"] == "log" else total


def _smoothed(graph: _Graph, raw: str, warm_up: int, width: int) -> str:
    nan, zero, one = np.float32(np.nan), np.float32(0), np.float32(1)
    steps = graph.node("Squeeze", graph.node("Shape", raw), np.array([0]))
    row = graph.node("Range", np.int64(0), steps, np.int64(1))
    raw = graph.node("Where", graph.node("Less", row, np.int64(warm_up)), nan, raw)
    if width == 1:
        return raw
    missing = graph.node("IsNaN", raw)
    ones = np.ones((1, 1, width), np.float32)

    def moving_sum(values: str) -> str:
        row = graph.node("Unsqueeze", graph.before(values, np.zeros(width - 1, np.float32)), np.array([0]))
        return graph.node("Squeeze", _convolve(graph, row, ones), np.array([0]))

    total = moving_sum(graph.node("Where", missing, zero, raw))
    count = moving_sum(graph.node("Where", missing, zero, one))
    return graph.node("Where", missing, nan, graph.node("Div", total, graph.node("Max", count, one)))


def _row_score(graph: _Graph, x: str, arrays: Mapping[str, np.ndarray], detector: runtime.RowDetector) -> str:
    """The score ``(N,)`` of scaled rows ``(N, F)``, all experts at once: values are ``(M, N, ...)``.

    In float32 up to the head, as in JAX: scores of 1e-3 and less, of rows nearest to the centre, keep five digits.
    """

    def parameter(name: str) -> np.ndarray:
        value = arrays[f"params.{name}"].astype(np.float32)
        return value if name.endswith("kernel") else value[:, None]

    def dense(name: str, x: str) -> str:
        product = graph.node("MatMul", x, parameter(f"{name}.kernel"))
        return graph.node("Add", product, parameter(f"{name}.bias"))

    width = arrays["params.Dense_0.kernel"].shape[-1]
    h = dense("Dense_0", graph.node("Unsqueeze", x, np.array([0])))
    for i in range(detector.settings["blocks"]):
        block = f"ResidualBlock_{i}"
        path = graph.node("LayerNormalization", h, np.ones(width, np.float32), axis=-1, epsilon=1e-6)
        path = graph.node("Mul", path, parameter(f"{block}.LayerNorm_0.scale"))
        path = graph.node("Add", path, parameter(f"{block}.LayerNorm_0.bias"))
        path = graph.node("Gelu", dense(f"{block}.Dense_0", path), approximate="tanh")
        h = graph.node("Add", h, dense(f"{block}.Dense_1", path))
    # In float64 from here: a normal row's distance to the centre is small beside both.
    z = graph.cast(graph.node("MatMul", h, parameter("Dense_1.kernel")), np.float64)
    size = graph.node("ReduceMax", graph.node("Abs", z), np.array([2]), keepdims=1)
    empty = graph.node("Equal", size, np.float64(0))
    pole = np.eye(1, len(arrays["anchor"]))[None]  # for an embedding of 0
    z = graph.node(
        "Where", empty, pole, graph.node("Div", z, graph.node("Where", empty, np.float64(1), size))
    )
    square = graph.node("ReduceSum", graph.node("Mul", z, z), np.array([2]), keepdims=1)
    z = graph.node("Div", z, graph.node("Sqrt", square))
    gap = graph.node("Sub", z, arrays["anchor"].astype(np.float64)[None, None])
    distance = graph.node("ReduceSum", graph.node("Mul", gap, gap), np.array([2]), keepdims=0)
    score = graph.node("Log", graph.node("Add", distance, np.float64(1)))
    return graph.cast(graph.node("ReduceSum", score, np.array([0]), keepdims=0), np.float32)


def _write_whole(file: Path, content: bytes) -> Path:
    """Beside its place, then moved there: an interrupted write leaves what was there."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(prefix=f".{file.name}-", dir=file.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        os.chmod(partial, 0o644)
        os.replace(partial, file)
    finally:
        Path(partial).unlink(missing_ok=True)
    return file
