"""Tables, files and pictures from a :class:`fedgeo.runs.Result`. Nothing here prints."""

import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import jax
import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from fedgeo import evaluation
from fedgeo.algorithms.fedkad import POWER_ITERATIONS, RECOMMENDED
from fedgeo.runs import METRICS, Result, StreamExample

TITLES = {
    "auroc": "AUROC",
    "ap": "AP",
    "f1": "F1",
    "precision": "precision",
    "recall": "recall",
    "f1_pa1": "PA%1",
    "f1_pa10": "PA%10",
    "alarm_rate": "alarms",
    "youden_accuracy": "accuracy (Youden)",
    "youden_precision": "precision (Youden)",
    "youden_recall": "recall (Youden)",
    "youden_f1": "F1 (Youden)",
}


def provenance() -> dict[str, Any]:
    """The command, commit, versions, machine and time that stand behind a result."""
    packages = ("fedgeo", "jax", "jaxlib", "flax", "optax", "numpy", "scikit-learn")
    return {
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "commit": _commit(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in packages},
        "device": jax.devices()[0].device_kind,
        "processors": os.cpu_count(),
    }


def _commit() -> str:
    """The commit of the source tree, ``+`` if its code was changed since, or "installed" outside a repository."""
    root = Path(__file__).parents[1]
    if not (root / ".git").exists():
        return "installed"
    git = ["git", "-C", str(root)]
    head = subprocess.run(
        [*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False
    )
    dirty = subprocess.run(
        [*git, "status", "--porcelain", "-uno", "--", "*.py", "*.toml"],
        capture_output=True,
        text=True,
        check=False,
    )
    return head.stdout.strip() + ("+" if dirty.stdout.strip() else "") or "unknown"


def shown(result: Result) -> pd.DataFrame:
    """The result's table as text: percent, mean ± sd over seeds (sd over classes), and the units that means cover."""
    table = result.table()
    text = pd.DataFrame(index=table.index)
    for metric in METRICS[result.unit]:
        columns = [table[f"{metric}{suffix}"] for suffix in ("", "_sd", "_sd_units")]
        text[TITLES[metric]] = [
            _mean_and_spread(mean)
            if metric == "alarm_rate"
            else _mean_and_spread(mean, sd, units if result.unit == "class" else float("nan"))
            for mean, sd, units in zip(*columns, strict=True)
        ]
    text["n"] = table["covers"]
    return text


def _mean_and_spread(mean: float, sd: float = float("nan"), units: float = float("nan")) -> str:
    if np.isnan(mean):
        return "undefined"
    return (
        f"{mean:.1f}"
        + ("" if np.isnan(sd) else f"±{sd:.1f}")
        + ("" if np.isnan(units) else f" ({units:.1f})")
    )


def shown_seconds(result: Result) -> pd.DataFrame:
    """Wall time as text."""
    return pd.DataFrame(
        {
            "compile [s]": result.seconds["compile"].map("{:.2f}".format),
            "run a seed [s]": result.seconds["run_per_seed"].map("{:.2f}".format),
        }
    )


def reading(result: Result) -> list[str]:
    """How to read the table."""
    unit = "client's test stream" if result.unit == "client" else "class, held normal in turn,"
    seeds, settings = result.settings["seeds"], result.settings
    spread = (
        "; ± is the standard deviation over seeds, rows without it depend on no seed"
        if len(seeds) > 1
        else ""
    )
    lines = [
        f"Percent. Each {unit} is evaluated alone; the mean is over those for which a metric is defined, then over "
        f"{'the seeds' if len(seeds) > 1 else 'seed'} {', '.join(map(str, seeds))}{spread}. Column n says how many "
        f"{'clients' if result.unit == 'client' else 'classes'} the means cover, of how many: the fewest and the most "
        "where the metrics differ.",
        f"One rule for all rows: an alarm is a score above the {settings['quantile']:g} quantile of the validation "
        f"scores{' of normal rows' if result.unit == 'class' else ''}, no test label was used; the column alarms is "
        "the share of test rows that raised one.",
    ]
    if result.unit == "client":
        lines += [
            "PA%K is the F1 that counts a whole anomalous segment as found once K % of it is: noise scores high there, "
            "see the random row; judge by AUROC, AP (average precision) and F1.",
            f"All scores are smoothed over {settings['smoothing']} rows, those of FedKAD, recommended, over "
            f"{RECOMMENDED['smoothing']}: it counts the newest row alone, which the others count in every window.",
            f"FedKAD draws {settings['cohort']} of {settings['clients']} clients a round; the local-only rows train "
            "every client in every round, which is more work, not less.",
        ]
    else:
        lines += [
            "In brackets: the standard deviation over classes of the mean over seeds.",
            "The columns marked Youden take the threshold that maximises Youden's J on validation rows of all classes "
            "with their labels, as the paper does: learners of one class have no such rows.",
            "Features are scaled with the training rows of all classes (the paper does not say of which); only the "
            "class held normal is trained on.",
        ]
    return lines


def upload(result: Result) -> str:
    """What a client sends."""
    size = f"{result.settings['upload_bytes_per_client_and_round']:,} bytes"
    if result.unit == "client":
        return f"Upload: {size} a client and round; the warm start adds {POWER_ITERATIONS} more from every client."
    return f"Upload: {size} a client and round, once in the one-shot protocol."


_ALWAYS = ("data", "seeds", "quantile", "upload_bytes_per_client_and_round")
SETTINGS = {"client": (*_ALWAYS, "clients", "cohort", "smoothing"), "class": (*_ALWAYS, "clients")}
"""Settings that reading a result takes, by unit."""

OPTIONAL = ("history.csv", "curves.csv", "stream.npz", "stream_alarms.csv")
"""Files that a result may lack: a method without rounds has no history, a table no stream."""


def write(result: Result, folder: str | os.PathLike[str]) -> Path:
    """Write ``table.md``, ``table.csv``, ``units.csv``, ``seconds.csv``, ``run.json`` and :data:`OPTIONAL` to a folder.

    Args:
        result: what to write.
        folder: created if absent; files of those names are replaced, and removed where the result has none.

    Returns:
        The folder.
    """
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    made_by = provenance()
    result.table().to_csv(path / "table.csv", float_format="%.4f")
    result.units.to_csv(path / "units.csv", index=False, float_format="%.6g")
    result.seconds.to_csv(path / "seconds.csv", float_format="%.4f")
    for name in OPTIONAL:
        (path / name).unlink(missing_ok=True)
    if len(result.history):
        result.history.to_csv(path / "history.csv", index=False, float_format="%.6g")
    if len(result.curves):
        result.curves.to_csv(path / "curves.csv", index=False, float_format="%.4f")
    if result.stream:
        _write_stream(result.stream, path)
    record = {"name": result.name, "unit": result.unit, "made_by": made_by, "settings": result.settings}
    record |= {"notes": result.notes} | result.details
    (path / "run.json").write_text(json.dumps(record, indent=2, default=str) + "\n")
    (path / "table.md").write_text(_markdown(result, made_by))
    return path


def _write_stream(stream: StreamExample, path: Path) -> None:
    stream.alarms.to_csv(path / "stream_alarms.csv", index=False, float_format="%.4g")
    np.savez_compressed(
        path / "stream.npz", client=stream.client, method=stream.method, channels=np.array(stream.channels, str),
        x=stream.x.astype(np.float32), parts=stream.parts.astype(np.float32),
        scores=stream.scores.astype(np.float32), labels=stream.labels.astype(np.int8),
        threshold=np.float64(stream.threshold),
    )  # fmt: skip


class Saved(NamedTuple):
    """A result read back, with what made it."""

    result: Result
    made_by: dict[str, Any]


def read(folder: str | os.PathLike[str]) -> Saved:
    """Read back what :func:`write` wrote, but for the scores of all clients.

    Args:
        folder: with ``run.json``, ``units.csv``, ``seconds.csv``, and any of :data:`OPTIONAL`.

    Raises:
        ValueError: a file is missing or damaged; says which, and what to do.
    """
    path = Path(folder)
    record = _read(path / "run.json", lambda file: json.loads(file.read_text()))
    if not isinstance(record, dict) or not {"name", "unit", "made_by", "settings", "notes"} <= set(record):
        raise ValueError(f"{path / 'run.json'} is not what this version writes; run the method again")
    if record["unit"] not in METRICS:
        raise ValueError(f"{path / 'run.json'} has the unit {record['unit']!r}, want any of {list(METRICS)}")
    settings = record["settings"]
    if missing := [name for name in SETTINGS[record["unit"]] if name not in settings]:
        raise ValueError(f"{path / 'run.json'} has no setting {', '.join(missing)}; run the method again")
    units = _read_table(path / "units.csv", ("method", "seed", "unit", *METRICS[record["unit"]]))
    seconds = _read_table(path / "seconds.csv", ("method", "compile", "run_per_seed")).set_index("method")
    if not len(units):
        raise ValueError(f"{path / 'units.csv'} has no rows; run the method again")
    columns = {"history.csv": ("method", "seed", "round"), "curves.csv": ("method", "recall", "precision")}
    history, curves = (
        _read_table(path / name, wanted) if (path / name).exists() else pd.DataFrame()
        for name, wanted in columns.items()
    )
    stream = _read_stream(path) if (path / "stream.npz").exists() else None
    own = ("name", "unit", "made_by", "settings", "notes")
    details = {key: value for key, value in record.items() if key not in own}
    result = Result(
        record["name"], record["unit"], units, seconds, settings, record["notes"], details,
        history=history, curves=curves, stream=stream,
    )  # fmt: skip
    return Saved(result, record["made_by"])


def _read_stream(path: Path) -> StreamExample:
    def arrays(file: Path) -> dict[str, np.ndarray]:
        with file.open("rb") as stream, np.load(stream) as archive:  # without pickles
            return dict(archive)

    found = _read(path / "stream.npz", arrays)
    wanted = {"client", "method", "channels", "x", "parts", "scores", "labels", "threshold"}
    if missing := wanted - set(found):
        raise ValueError(
            f"{path / 'stream.npz'} has no array {', '.join(sorted(missing))}; run the method again"
        )
    rows, shown = len(found["scores"]), len(found["channels"])
    shapes = {"x": (rows, shown), "parts": (rows, shown), "labels": (rows,), "threshold": ()}
    for name, shape in shapes.items():
        if found[name].shape != shape:
            raise ValueError(
                f"{path / 'stream.npz'}: {name} has the shape {found[name].shape}, want {shape}; run the method again"
            )
    return StreamExample(
        str(found["client"]), str(found["method"]), tuple(map(str, found["channels"])), found["x"], found["parts"],
        found["scores"], found["labels"], float(found["threshold"]),
        _read_table(path / "stream_alarms.csv", ("first", "last", "rows", "peak", "true")),
    )  # fmt: skip


def _read_table(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    frame = _read(path, pd.read_csv)
    if missing := [name for name in columns if name not in frame.columns]:
        raise ValueError(f"{path} has no column {', '.join(missing)}; run the method again")
    return frame


def _read(path: Path, read_file: Callable[[Path], Any]) -> Any:
    try:
        return read_file(path)
    except FileNotFoundError:
        raise ValueError(
            f"{path} is missing, so this is half a result; run the method again with --out {path.parent}"
        ) from None
    except (ValueError, OSError, KeyError, BadZipFile) as error:  # what JSON, pandas and numpy raise
        raise ValueError(f"{path} cannot be read ({error}); run the method again") from error


def origin(made_by: Mapping[str, Any], quote: str = "") -> str:
    """Where a result comes from, in words: what :func:`provenance` returned, the command between ``quote``."""
    versions = ", ".join(f"{name} {version}" for name, version in made_by["versions"].items())
    return (
        f"{quote}{made_by['command']}{quote} at commit {made_by['commit']}, {made_by['time']}, "
        f"Python {made_by['python']}, {versions}, on {made_by['device']} with {made_by['processors']} processors."
    )


def _markdown(result: Result, made_by: dict[str, Any]) -> str:
    parts = [
        f"# {result.name}",
        shown(result).to_markdown(disable_numparse=True),
        "\n".join(reading(result)),
        "## Wall time",
        shown_seconds(result).to_markdown(disable_numparse=True),
        upload(result),
        "## Notes",
        "\n".join(f"- {note}" for note in result.notes) or "None.",
        "## Settings",
        "\n".join(f"- {key}: {value}" for key, value in result.settings.items()),
        "## Made by",
        origin(made_by, quote="`"),
    ]
    return "\n\n".join(parts) + "\n"


def plot_ranks(path: str | os.PathLike[str], ranks: evaluation.Ranks, *, title: str) -> None:
    """Draw a critical difference diagram: average ranks, with a bar over methods that Nemenyi's test cannot tell apart.

    Args:
        path: of the picture.
        ranks: from :func:`fedgeo.evaluation.ranks`.
        title: of the picture.

    Raises:
        ImportError: without scikit-posthocs, from the extra ``fedgeo[stats]``.
    """
    try:
        from scikit_posthocs import critical_difference_diagram
    except ImportError as error:
        raise ImportError("plot_ranks needs scikit-posthocs: pip install 'fedgeo[stats]'") from error
    figure = Figure(figsize=(9, 0.9 + 0.32 * len(ranks.mean)), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    axis.set_title(title, pad=44)
    critical_difference_diagram(ranks.mean, ranks.nemenyi, ax=axis)
    first = float(ranks.mean.min())
    place = axis.get_xaxis_transform()  # ranks across, shares of the height upwards
    axis.plot(
        [first, first + ranks.critical_difference],
        [1.16, 1.16],
        "|-",
        color="0.2",
        transform=place,
        clip_on=False,
    )
    label = f" critical difference {ranks.critical_difference:.2f}"
    axis.text(first + ranks.critical_difference, 1.16, label, transform=place, va="center", fontsize=9)
    figure.savefig(path, dpi=110)


def plot_stream(
    path: str | os.PathLike[str],
    x: np.ndarray,
    scores: np.ndarray,
    threshold: float,
    labels: np.ndarray,
    *,
    channels: Sequence[str],
    title: str,
) -> None:
    """Draw a stream over its score, with the threshold, the true and the detected spans.

    Args:
        path: of the picture.
        x: ``(T, C)``, in its own units; each channel gets an axis.
        scores: ``(T,)``.
        threshold: an alarm is a score above it.
        labels: ``(T,)`` of 0 and 1.
        channels: C names.
        title: of the picture.
    """
    figure = Figure(figsize=(11, 1.0 * len(channels) + 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(channels) + 2, 1, sharex=True, height_ratios=[1] * len(channels) + [2.6, 0.5])
    figure.suptitle(title)
    alarms = (scores > threshold).astype(np.int64)
    time = np.arange(len(scores))
    for axis, name, values in zip(axes, channels, x.T, strict=False):
        axis.plot(time, values, color="0.25", linewidth=0.7)
        axis.set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)
        axis.tick_params(labelsize=7)
    score_axis, span_axis = axes[-2], axes[-1]
    score_axis.plot(time, scores, color="tab:blue", linewidth=0.9, label="score")
    score_axis.axhline(threshold, color="tab:red", linewidth=1, linestyle="--", label="threshold")
    score_axis.set_yscale("log")
    score_axis.set_ylabel("score", rotation=0, ha="right", va="center", fontsize=8)
    score_axis.legend(loc="upper right", ncols=2, fontsize=8)
    for axis in axes[:-1]:
        for first, last in evaluation.spans(labels):
            axis.axvspan(first, last, color="tab:orange", alpha=0.25, linewidth=0)
    for height, flags, colour in ((1, labels, "tab:orange"), (0, alarms, "tab:red")):
        bars = [(first, max(last - first, 1)) for first, last in evaluation.spans(flags)]
        span_axis.broken_barh(bars, (height - 0.4, 0.8), color=colour)
    span_axis.set(ylim=(-0.6, 1.6), xlim=(0, len(scores)), xlabel="row of the test stream")
    span_axis.set_yticks([0, 1], ["detected", "true fault"], fontsize=8)
    figure.savefig(path, dpi=110)


def plot_costs(path: str | os.PathLike[str], costs: pd.DataFrame) -> None:
    """Draw training time, bytes a round and latency by method, on logarithmic axes; Fig. 4 of FedKAD.

    Args:
        path: of the picture.
        costs: rows with ``data``, ``method``, ``train`` (seconds), ``round`` (bytes), ``p50_us`` and ``batched_us``.
    """
    panels = {
        "train": "training, 30 rounds [s]",
        "round": "a round, up and down [bytes]",
        "p50_us": "one step, median [µs]",
        "batched_us": "batched [µs a row]",
    }
    methods, sets = list(dict.fromkeys(costs["method"])), list(dict.fromkeys(costs["data"]))
    figure = Figure(figsize=(13, 1.6 + 0.42 * len(methods)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(panels), sharey=True)
    place, height = np.arange(len(methods)), 0.8 / len(sets)
    for axis, (column, title) in zip(axes, panels.items(), strict=True):
        for k, name in enumerate(sets):
            values = costs[costs["data"] == name].set_index("method")[column].reindex(methods)
            bars = axis.barh(place + (k - (len(sets) - 1) / 2) * height, values, height * 0.9, label=name)
            axis.bar_label(bars, [_short(v) for v in values], padding=2, fontsize=7)
        axis.set_xscale("log")
        axis.set_xlim(costs[column].min() / 3, costs[column].max() * 8)
        axis.set_title(title, fontsize=9)
        axis.tick_params(labelsize=8)
    axes[0].set_yticks(place, methods)
    axes[0].invert_yaxis()
    if len(sets) > 1:
        axes[0].legend(fontsize=8, loc="upper right")
    figure.suptitle(f"Costs on {', '.join(sets)}, logarithmic axes", fontsize=10)
    figure.savefig(path, dpi=110)


def _short(value: float) -> str:
    """Three figures, with a unit of thousands or millions."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def plot_heterogeneity(path: str | os.PathLike[str], skews: dict[str, pd.DataFrame]) -> None:
    """Draw how clients differ, one dot a client; Fig. 2 of FedKAD for any federation.

    Args:
        path: of the picture.
        skews: frames of ``data.heterogeneity`` by the federation's name.
    """
    panels = {
        "feature_skew": "feature skew between clients\n[sd of the federation]",
        "drift": "drift from training to test\n[sd of the client]",
        "anomaly_ratio": "anomalous share of test rows",
        "train_rows": "training rows",
    }
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    rng = np.random.default_rng(0)
    for axis, (column, title) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        for k, frame in enumerate(skews.values()):
            values = frame[column].dropna()
            axis.scatter(k + 0.3 * (rng.random(len(values)) - 0.5), values, s=12, alpha=0.7)
            if len(values):
                axis.hlines(values.median(), k - 0.25, k + 0.25, color="black", linewidth=1)
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter(NullFormatter())
        axis.set_xticks(range(len(skews)), list(skews))
        axis.set_title(title, fontsize=9)
        axis.tick_params(labelsize=8)
    figure.savefig(path, dpi=110)


def plot_methods(
    path: str | os.PathLike[str], values: pd.DataFrame, published: Mapping[str, float], *, title: str
) -> None:
    """Draw one number a method and data set as bars, the published value of one of them as a line.

    Args:
        path: of the picture.
        values: methods by data set; NaN is one that was not run.
        published: by data set.
        title: of the picture, which says what the number is.
    """
    figure = Figure(figsize=(4.2 * values.shape[1], 1.2 + 0.27 * len(values)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = np.atleast_1d(figure.subplots(1, values.shape[1], sharey=True))
    place = np.arange(len(values))
    for axis, name in zip(axes, values.columns, strict=True):
        colours = ["tab:red" if method == "random" else "tab:blue" for method in values.index]
        bars = axis.barh(place, values[name].fillna(0), color=colours)
        texts = ["not run" if np.isnan(v) else f"{v:.1f}" for v in values[name]]
        for label in axis.bar_label(bars, texts, padding=3, fontsize=8):
            label.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.6})
        if name in published:
            axis.axvline(published[name], color="black", linestyle="--", linewidth=1)
            axis.annotate(
                f"published {published[name]:.2f}", (published[name], 1), (0, 2), fontsize=8, ha="center",
                xycoords=("data", "axes fraction"), textcoords="offset points", annotation_clip=False,
            )  # fmt: skip
        axis.set_xlim(0, 1.15 * np.nanmax([*values[name], published.get(name, 0)]))
        axis.set_xlabel(name)
    axes[0].set_yticks(place, list(values.index))
    axes[0].invert_yaxis()
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=110)
