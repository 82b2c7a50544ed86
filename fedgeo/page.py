"""One self-contained HTML page from a folder of results: text, tables and inline pictures, nothing from a network.

What users named (clients, channels, data sets) is text everywhere: the template escapes it, and pictures keep it from
being read as mathematics. The page's own policy forbids scripts and every request, and a browser enforces that.
"""

import io
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import pandas as pd
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator, NullFormatter

from fedgeo import evaluation, report
from fedgeo.runs import Result, StreamExample

LIGHT = {
    "paper": "#ffffff", "ink": "#1a1a1e", "muted": "#55565c", "grid": "#d4d5da", "c1": "#0b57a4", "c2": "#a8480a",
    "c3": "#1c6b48", "c4": "#7a3f98", "c5": "#8a6100", "fault": "#c98a00", "alarm": "#b3202a",
}  # fmt: skip
"""Colours by their part on the page; pictures are drawn in these and follow the page to dark."""

DARK = {
    "paper": "#16171b", "ink": "#ececf0", "muted": "#b3b4bd", "grid": "#3c3e46", "c1": "#7db7f2", "c2": "#f0a36b",
    "c3": "#72cfa2", "c4": "#cfa0e6", "c5": "#d9b655", "fault": "#e0aa35", "alarm": "#ff8087",
}  # fmt: skip

SIMPLE = ("random", "row norm", "persistence", "PCA", "window PCA", "Mahalanobis")
UNTRAINED = ("untrained subspace", "untrained encoder")
HEADLINES = ("FedKAD, recommended", "Geodesic (OS)")
"""What the conclusions speak of, where it was run."""

TUNED_ON = ("SMAP", "MSL", "SMD")
"""Data sets by whose results ``RECOMMENDED`` was chosen."""

COLUMNS_DRAWN = 800
"""Steps of time in a picture: of what lies between, the lowest and the highest value are drawn."""

PARTS_DRAWN = 2
"""Thresholds that fill a channel's axis: what a channel adds to the score beyond that is cut off."""

NAME_LENGTH = 22
ALARMS_LISTED = 12
FEWEST_PAIRS = 5
"""Clients or classes below which a test of differences is not worth naming."""

LINES_DRAWN = 5
LEVEL = 0.05


class Picture(NamedTuple):
    """An inline picture with its caption."""

    title: str
    svg: Markup
    caption: str
    wide: bool = False


def write(folder: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> Path:
    """Write the page.

    Args:
        folder: with one result, or with results in folders below it.
        out: the page, ``report.html`` in the folder by default; its folder is created if absent.

    Returns:
        The page's path.

    Raises:
        ValueError: no folder, or no whole result in it.
    """
    text = page(folder)
    path = Path(folder, "report.html") if out is None else Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def page(folder: str | os.PathLike[str]) -> str:
    """The page's HTML; see :func:`write`."""
    saved, left_out = _found(Path(folder))
    names = [one.result.name for one in saved]
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(
        resources.files("fedgeo").joinpath("page.html").read_text(encoding="utf-8")
    )
    return template.render(
        title="; ".join(names),
        source=f"{len(names)} result{'s' if len(names) > 1 else ''} from the folder {Path(folder).resolve().name}",
        light=LIGHT,
        dark=DARK,
        left_out=left_out,
        results=[_section(one, f"r{number}") for number, one in enumerate(saved, start=1)],
    )


def _found(folder: Path) -> tuple[list[report.Saved], list[str]]:
    """Whole results in and below a folder, and why others are left out."""
    if not folder.is_dir():
        raise ValueError(
            f"no folder {folder}; want one that fedgeo run or fedgeo demo wrote, such as results/demo"
        )
    marks = ("run.json", "units.csv", "seconds.csv")
    homes = sorted({file.parent for mark in marks for file in folder.rglob(mark)})
    if not homes:
        raise ValueError(
            f"no result in {folder} or below: no run.json; write one with fedgeo run ... --out {folder}"
        )
    saved, left_out = [], []
    for home in homes:
        try:
            saved.append(report.read(home))
        except ValueError as error:
            left_out.append(str(error))
    if not saved:
        raise ValueError(f"no whole result in {folder}: " + "; ".join(left_out))
    return saved, left_out


def _section(saved: report.Saved, name: str) -> dict[str, Any]:
    """What the template shows of one result; ``name`` is unique on the page."""
    result, made_by = saved
    shown, seconds = report.shown(result), report.shown_seconds(result)
    kinds = [kind(method) for method in shown.index]
    shown["kind"] = kinds
    plural = "clients" if result.unit == "client" else "classes"
    settings = result.settings
    sizes = [
        f"{settings[key]:,} {key}" for key in ("clients", "channels", "rows", "features") if key in settings
    ]
    return {
        "name": result.name,
        "unit": result.unit,
        "what": f"{', '.join(sizes)}; seeds {', '.join(map(str, settings['seeds']))}. "
        f"Means over {plural}, then over seeds.",
        "conclusions": conclusions(result),
        "table": _rows(
            shown,
            "Percent; in bold: the method, all other rows are what it must beat. How to read it stands below.",
        )
        | {"classes": ["method" if kind == "method" else "control" for kind in kinds]},
        "reading": report.reading(result),
        "stream": None if result.stream is None else _stream(result.stream, name),
        "ranking": _ranking(result, name),
        "convergence": _convergence(result, name),
        "once": _once(result),
        "traffic": _traffic(result),
        "cost": _rows(seconds, "Wall time: compiling in all, running a seed")
        | {"figure": _cost(result.seconds, name)},
        "notes": result.notes,
        "missing": _missing(result),
        "settings": [(key, _plain(value)) for key, value in settings.items()],
        "origin": report.origin(made_by),
    }


def _rows(frame: pd.DataFrame, caption: str) -> dict[str, Any]:
    return {
        "columns": [frame.index.name or "", *frame.columns],
        "rows": [(name, *row) for name, row in zip(frame.index, frame.to_numpy(), strict=True)],
        "caption": caption,
    }


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _missing(result: Result) -> list[str]:
    lines = []
    if not len(result.history):
        lines.append(
            "history.csv: no convergence can be drawn; the run had no rounds, or another version wrote it."
        )
    if not len(result.curves):
        lines.append(
            "curves.csv: no precision-recall curve; no unit had both classes, or another version wrote it."
        )
    if result.unit == "client" and result.stream is None:
        lines.append("stream.npz: no stream can be drawn; another version wrote this folder.")
    return lines


def kind(method: str) -> str:
    """What part a row of the table plays."""
    if method in SIMPLE:
        return "simple control"
    if method in UNTRAINED:
        return "untrained"
    if method.startswith("local-only"):
        return "each alone"
    return "method" if method.startswith(("FedKAD", "Geodesic")) else "other method"


def headline(methods: Sequence[str]) -> str:
    """The row that the conclusions speak of."""
    return next((name for name in HEADLINES if name in methods), methods[0])


def conclusions(result: Result) -> list[str]:
    """What a reader may conclude, in sentences made from the numbers.

    The headline row against noise, against the strongest simple control and against no training, then the alarms. A
    difference counts if a paired t-test over clients or classes puts it below :data:`LEVEL`.
    """
    table = result.table()
    methods = list(table.index)
    ours = headline(methods)
    plural = "clients" if result.unit == "client" else "classes"
    by_unit = result.units.groupby(["method", "unit"])["ap"].mean().unstack("method")
    lines = [_level(table, ours)]
    simple = table.loc[[name for name in methods if name in SIMPLE and name != ours], "ap"].dropna()
    if len(simple):
        rival = str(simple.idxmax())
        found = _against(by_unit, ours, rival, plural)
        lines.append(f"Against {rival}, the strongest simple control by average precision: {found}")
    trained = methods[0]  # it has the score of the untrained row, which the headline may not have
    for control in (name for name in UNTRAINED if name in methods and kind(trained) == "method"):
        found = _against(by_unit, trained, control, plural)
        lines.append(f"What training adds, {trained} against {control}: {found}")
    lines.append(_alarms(result, ours))
    if ours == HEADLINES[0] and result.settings["data"] in TUNED_ON:
        lines.append(
            f"The settings of {ours} were chosen with results on {', '.join(TUNED_ON)} in view: expect less on data "
            "that nobody has looked at."
        )
    spread = (
        ", and for one seed: nothing is known of the spread" if len(result.settings["seeds"]) == 1 else ""
    )
    return [*lines, f"This holds for these data and settings{spread}."]


def _level(table: pd.DataFrame, ours: str) -> str:
    level = f"{ours}: AUROC {_points(table, ours, 'auroc')}, average precision {_points(table, ours, 'ap')}"
    if "random" not in table.index:
        return level + "."
    return f"{level}; a random score has {_points(table, 'random', 'auroc')} and {_points(table, 'random', 'ap')}."


def _points(table: pd.DataFrame, method: str, metric: str) -> str:
    value = float(table[metric][method])
    return "undefined" if np.isnan(value) else f"{value:.1f} %"


def _against(by_unit: pd.DataFrame, ours: str, theirs: str, plural: str) -> str:
    pairs = by_unit[[ours, theirs]].dropna() * 100
    if not len(pairs):
        return f"not comparable, no {plural} have an average precision in both rows."
    difference = pairs[ours] - pairs[theirs]
    better = int((difference > 0).sum())
    found = evaluation.paired(pairs[ours].to_numpy(), pairs[theirs].to_numpy())
    start = f"{found.margin:+.1f} points of average precision, better for {better} of {len(pairs)} {plural}"
    if len(pairs) < FEWEST_PAIRS:
        return f"{start}; too few {plural} for a test, so this run decides nothing."
    verdict = "no difference that this run can show"
    if found.p < LEVEL:
        verdict = "ahead" if found.margin > 0 else "behind"
    return f"{start}, paired t-test p = {found.p:.2g}: {verdict}."


def _alarms(result: Result, method: str) -> str:
    rows = result.units[result.units["method"] == method]
    aimed = 100 * (1 - result.settings["quantile"])
    rate, false = 100 * rows["alarm_rate"].mean(), rows["false_alarms_per_1000"].mean()
    found = f"{_share(rows['recall'].mean())} of the anomalous rows raised one"
    return (
        f"Its threshold aims at alarms on {aimed:.3g} % of normal rows; {rate:.1f} % of test rows raised one, "
        f"and {false / 10:.1f} % of the normal ones. {found}."
    ).replace("nan %", "an undefined share")


def _share(value: float) -> str:
    return "An undefined share" if np.isnan(value) else f"{100 * value:.1f} %"


def _traffic(result: Result) -> list[str]:
    settings = result.settings
    lines = [report.upload(result)]
    size, rounds = settings["upload_bytes_per_client_and_round"], settings.get("rounds")
    drawn = settings.get("cohort", settings.get("clients"))
    if rounds is not None and drawn is not None:
        total = size * rounds * drawn
        lines.append(
            f"{rounds} rounds of {drawn} clients: {total:,} bytes up in all, and about as many down."
        )
    return lines


# Pictures


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(figure)
    return figure


def _tidy(axis: Axes, *, grid: str = "both") -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["bottom", "left"]].set_color(LIGHT["muted"])
    axis.tick_params(colors=LIGHT["muted"], labelcolor=LIGHT["ink"], labelsize=9)
    axis.grid(axis=grid, color=LIGHT["grid"], linewidth=0.6)  # type: ignore[arg-type]
    axis.set_axisbelow(True)
    for label in (axis.xaxis.label, axis.yaxis.label, axis.title):
        label.set_color(LIGHT["ink"])
        label.set_fontsize(9)


def _logarithmic(axis: Axes, values: np.ndarray) -> None:
    """A logarithmic axis upwards where all values are positive, with plain numbers at its ticks."""
    if not (values[np.isfinite(values)] > 0).all():
        return
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter("{x:g}" if np.nanmax(values) < 10 * np.nanmin(values) else NullFormatter())


def _legend(figure: Figure, axis: Axes) -> None:
    """Below the picture, where it hides nothing."""
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=2, fontsize=8.5, frameon=False, labelcolor=LIGHT["ink"]
    )  # fmt: skip


def _svg(figure: Figure, name: str, alt: str) -> Markup:
    """A figure as inline SVG: text stays text, colours follow the page, names are unique on the page."""
    text = io.StringIO()
    for part in figure.findobj(Text):
        part.set_parse_math(False)
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "text.parse_math": False}):
        figure.savefig(
            text,
            format="svg",
            transparent=True,
            metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")),
        )
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(
        r"<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>|<!--.*?-->", "", svg, flags=re.DOTALL
    )
    svg = re.sub(r' (?:width|height)="[\d.]+pt"', "", svg, count=2)
    # What stands between tags is users' text.
    svg = re.sub(r"<[^>]*>", lambda tag: _inline(tag[0], name), svg)
    label = Markup.escape(" ".join(alt.split()))
    return Markup(svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1).strip())


def _inline(tag: str, name: str) -> str:
    """A tag of an SVG file as it can stand in a page among others."""
    tag = re.sub(r'\bid="', f'id="{name}-', tag)
    tag = re.sub(r'(url\(|href=")#', rf"\1#{name}-", tag)
    tag = re.sub(r"'DejaVu Sans'[^;\"]*", "system-ui, sans-serif", tag)
    tag = re.sub(r' d="[^"]*"', lambda path: re.sub(r"\d+\.\d+", _tenth, path[0]), tag)
    for part, colour in LIGHT.items():
        tag = tag.replace(colour, f"var(--{part})")
    return tag


def _tenth(number: re.Match[str]) -> str:
    return f"{float(number[0]):.1f}".removesuffix(".0")


def _stream(stream: StreamExample, name: str) -> dict[str, Any]:
    alarms = stream.alarms
    worst = alarms.nlargest(ALARMS_LISTED, "peak", keep="all").head(ALARMS_LISTED).sort_values("first")
    columns = ["rows", "length", "peak / threshold", "of it labelled", "channels that caused it"]
    rows = []
    for _, alarm in worst.iterrows():
        places = [n for n in (1, 2, 3) if f"channel_{n}" in alarms and alarm[f"share_{n}"] > 0]
        causes = ", ".join(f"{alarm[f'channel_{n}']} {100 * alarm[f'share_{n}']:.0f} %" for n in places)
        rows.append(
            (
                f"{alarm['first']:.0f} to {alarm['last']:.0f}", f"{alarm['rows']:.0f}", f"{alarm['peak']:.3g}",
                f"{100 * alarm['true']:.0f} %", causes,
            )
        )  # fmt: skip
    listed = "all" if len(rows) == len(alarms) else f"the {len(rows)} highest"
    caption = (
        f"{len(alarms)} detected spans of client {stream.client} by {stream.method}, {listed} of them, with the "
        "channels whose parts make up most of the score"
    )
    return {"figure": _draw_stream(stream, name), "columns": columns, "alarms": rows, "caption": caption}


def _short(name: str) -> str:
    return name if len(name) <= NAME_LENGTH else name[: NAME_LENGTH - 1] + "…"


def _draw_stream(stream: StreamExample, name: str) -> Picture:
    true = evaluation.spans(stream.labels)
    found = evaluation.spans(evaluation.alarms(stream.scores, stream.threshold))
    hit = sum(bool((stream.scores[a:b] > stream.threshold).any()) for a, b in true)
    shown = len(stream.channels)
    figure = _figure(10, 0.75 * shown + 3)
    axes = figure.subplots(shown + 2, 1, sharex=True, height_ratios=[1] * shown + [2.4, 0.7])
    step = max(len(stream.scores) // COLUMNS_DRAWN, 1)
    most = PARTS_DRAWN * stream.threshold if stream.threshold > 0 else 1.0
    for c, axis in enumerate(axes[:shown]):
        parts = axis.twinx()
        place, values = envelope(stream.parts[:, c], step, lowest=False)
        parts.fill_between(
            place, 0, np.clip(np.nan_to_num(values), 0, most), color=LIGHT["alarm"], alpha=0.75, linewidth=0
        )
        parts.set(ylim=(0, most), yticks=[])
        parts.spines[:].set_visible(False)
        axis.plot(*envelope(stream.x[:, c], step), color=LIGHT["c1"], linewidth=0.7)
        axis.set_ylabel(_short(stream.channels[c]))
        axis.yaxis.label.set(rotation=0, ha="right", va="center")
        axis.yaxis.set_major_locator(MaxNLocator(3))
        _tidy(axis, grid="x")
    score, span = axes[shown:]
    score.plot(*envelope(stream.scores, step), color=LIGHT["c1"], linewidth=0.9, label="score")
    score.axhline(stream.threshold, color=LIGHT["alarm"], linestyle="--", linewidth=1.2, label="threshold")
    _logarithmic(score, stream.scores)
    score.set_ylabel("score")
    score.legend(loc="upper right", ncols=2, fontsize=9, frameon=False, labelcolor=LIGHT["ink"])
    _tidy(score)
    for axis in axes[:-1]:
        _spans(axis, stream.labels, step, (0, 1), LIGHT["fault"], alpha=0.3, across=True)
    _spans(span, stream.labels, step, (0.6, 0.8), LIGHT["fault"])
    _spans(span, evaluation.alarms(stream.scores, stream.threshold), step, (-0.4, 0.8), LIGHT["alarm"])
    span.set(ylim=(-0.6, 1.6), xlim=(0, len(stream.scores)), xlabel="row of the test stream", yticks=[0, 1])
    span.set_yticklabels(["detected", "true"])
    _tidy(span, grid="x")
    alt = (
        f"Test stream of client {stream.client}: {shown} channels, the score of {stream.method} and its threshold "
        f"{stream.threshold:.3g}. {len(true)} true spans, of which {hit} hold an alarm; {len(found)} detected spans."
    )
    caption = (
        f"Client {stream.client}, whose average precision is in the middle of all clients, by {stream.method}, first "
        f"seed: the {shown} channels that add most to the score in alarms (blue, in their own units), and what each "
        f"adds to it (filled; full height is {PARTS_DRAWN} thresholds or more). Shaded: true spans. An alarm is a "
        "score above the dashed threshold."
    )
    return Picture("Stream, score and spans", _svg(figure, f"{name}-stream", alt), caption, wide=True)


def envelope(values: np.ndarray, step: int, *, lowest: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Places and values to draw: of every ``step`` rows the lowest and the highest, so that no peak is lost.

    Args:
        values: ``(T,)``; NaN only where all rows of a step are.
        step: rows a step; 1 draws all.
        lowest: False for the highest alone.
    """
    values = np.asarray(values, np.float64)
    if step == 1:
        return np.arange(len(values)), values
    starts = np.arange(0, len(values), step)
    high = np.fmax.reduceat(values, starts)
    if not lowest:
        return starts, high
    low = np.fmin.reduceat(values, starts)
    return np.repeat(starts, 2), np.column_stack([low, high]).ravel()


def _spans(
    axis: Axes, flags: np.ndarray, step: int, extent: tuple[float, float], colour: str, *, alpha: float = 1.0,
    across: bool = False,
) -> None:  # fmt: skip
    """Bars from ``extent[0]``, ``extent[1]`` high, where flags ``(T,)`` are set, to a step's width."""
    coarse = np.maximum.reduceat(np.asarray(flags, np.int8), np.arange(0, len(flags), step))
    bars = [(first * step, (stop - first) * step) for first, stop in evaluation.spans(coarse)]
    options = {"transform": axis.get_xaxis_transform()} if across else {}
    axis.broken_barh(bars, extent, color=colour, alpha=alpha, linewidth=0, **options)  # type: ignore[arg-type]


def _ranking(result: Result, name: str) -> list[Picture]:
    pictures = [_dots(result, metric, f"{name}-{metric}") for metric in ("auroc", "ap")]
    if len(result.curves):
        pictures.append(_curves(result, f"{name}-pr"))
    return pictures


def _dots(result: Result, metric: str, name: str) -> Picture:
    """Box and dots, one a unit, for every method."""
    title = report.TITLES[metric]
    plural = "clients" if result.unit == "client" else "classes"
    values = result.units.groupby(["method", "unit"], sort=False)[metric].mean() * 100
    groups = {str(method): rows.dropna().to_numpy() for method, rows in values.groupby("method", sort=False)}
    figure = _figure(4.8, 0.8 + 0.3 * len(groups))
    axis = figure.subplots()
    places = np.arange(len(groups))
    lines = {"color": LIGHT["muted"], "linewidth": 1}
    axis.boxplot(
        list(groups.values()), positions=places, orientation="horizontal", widths=0.6, showfliers=False,
        boxprops=lines, whiskerprops=lines, capprops=lines, medianprops={"color": LIGHT["ink"], "linewidth": 2},
    )  # fmt: skip
    shift = np.random.default_rng(0)
    for place, (method, found) in zip(places, groups.items(), strict=True):
        colour = LIGHT["c1"] if kind(method) == "method" else LIGHT["c2"]
        height = place + 0.35 * (shift.random(len(found)) - 0.5)
        axis.scatter(found, height, s=14, color=colour, alpha=0.8, linewidth=0)
    axis.set_yticks(places, list(groups))
    axis.invert_yaxis()
    axis.set(xlim=(-2, 102), xlabel=f"{title} [%]")
    _tidy(axis, grid="x")
    medians = "; ".join(f"{m} {np.median(v):.1f}" for m, v in groups.items() if len(v))
    alt = f"{title} of every {result.unit} by method. Medians in percent: {medians}."
    caption = (
        f"{title}: one dot a {result.unit} (mean over seeds), box and median over {plural}; blue: the method, "
        "brown: everything else. The values are in units.csv."
    )
    return Picture(title, _svg(figure, name, alt), caption)


def _curves(result: Result, name: str) -> Picture:
    methods = list(dict.fromkeys(result.curves["method"]))
    table = result.table()
    simple = table.loc[[m for m in methods if m in SIMPLE and m != "random"], "ap"].dropna()
    own = [m for m in methods if kind(m) == "method"][:3]
    chosen = [
        *own,
        *([str(simple.idxmax())] if len(simple) else []),
        *(["random"] if "random" in methods else []),
    ]
    figure = _figure(4.8, 3.8)
    axis = figure.subplots()
    for method, style in zip(chosen, _styles(), strict=False):
        rows = result.curves[result.curves["method"] == method]
        axis.plot(100 * rows["recall"], 100 * rows["precision"], label=method, linewidth=1.8, **style)
    axis.set(xlim=(0, 100), ylim=(0, 102), xlabel="recall [%]", ylabel="precision [%]")
    _legend(figure, axis)
    _tidy(axis)
    areas = "; ".join(f"{m} {table.loc[m, 'ap']:.1f} %" for m in chosen)
    alt = f"Precision over recall, mean over units. Areas, which are the average precisions: {areas}."
    caption = (
        f"Precision-recall: mean over {'clients' if result.unit == 'client' else 'classes'} and seeds of the precision "
        "at each recall; the area below a curve is the average precision of the table. Drawn: the method, the "
        "strongest simple control, noise."
    )
    return Picture("Precision-recall", _svg(figure, name, alt), caption)


def _styles() -> Iterable[dict[str, Any]]:
    """Lines that differ in colour and in dashes."""
    dashes = ["solid", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (5, 1.5, 1.2, 1.5)), (0, (8, 2))]
    return [{"color": LIGHT[f"c{n}"], "linestyle": dash} for n, dash in enumerate(dashes, start=1)]


CONVERGENCE: Mapping[str, str] = {
    "consensus_residual": "consensus residual |P - Z|",
    "local_loss": "local loss (eq. 8)",
    "last_loss": "loss of the last local epoch",
}
"""Columns of the history that are drawn, where they are there, and their axis."""


def _convergence(result: Result, name: str) -> list[Picture]:
    """Lines by round; a method that trained for one round alone has none."""
    pictures = []
    history = result.history
    for column, title in CONVERGENCE.items():
        if column not in history:
            continue
        means = history.groupby(["method", "round"], sort=False)[column].mean().unstack("method")
        own = [m for m in means if kind(str(m)) in ("method", "each alone", "other method")]
        drawn = [m for m in own if means[m].count() > 1]
        if column == "consensus_residual":  # a client that trains alone has nobody to agree with
            drawn = [m for m in drawn if kind(str(m)) == "method"]
        if drawn:
            pictures.append(_lines(_merged(means[drawn]), title, f"{name}-{column}"))
    return pictures


def _merged(means: pd.DataFrame) -> pd.DataFrame:
    """Methods that trained alike, and differ in their score alone, as one column."""
    names: dict[bytes, list[str]] = {}
    for method in means:
        names.setdefault(means[method].to_numpy().tobytes(), []).append(str(method))
    return pd.DataFrame({" = ".join(same): means[same[0]] for same in names.values()}).iloc[:, :LINES_DRAWN]


def _once(result: Result) -> list[str]:
    """The loss of methods that train for a single round, of which there is no line to draw."""
    history = result.history
    if "first_loss" not in history:
        return []
    last = history.groupby("method", sort=False)["round"].max()
    means = history.groupby("method", sort=False)[["first_loss", "last_loss"]].mean()
    return [
        f"{method} trains for one round: its loss falls from {means.loc[method, 'first_loss']:.3g} in the first local "
        f"epoch to {means.loc[method, 'last_loss']:.3g} in the last."
        for method in last.index[last == 0]
    ]


def _lines(means: pd.DataFrame, title: str, name: str) -> Picture:
    figure = _figure(4.8, 3.4)
    axis = figure.subplots()
    for (method, values), style in zip(means.items(), _styles(), strict=False):
        axis.plot(values.index, values, label=str(method), linewidth=1.8, **style)
    _logarithmic(axis, means.to_numpy())
    axis.set(xlabel="round", ylabel=title)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(figure, axis)
    _tidy(axis)
    ends = "; ".join(
        f"{m} from {v.dropna().iloc[0]:.3g} to {v.dropna().iloc[-1]:.3g}" for m, v in means.items()
    )
    alt = f"{title} by round: {ends}."
    caption = f"{title[0].upper()}{title[1:]} by round, mean over the round's clients and over seeds: {ends}."
    return Picture(title, _svg(figure, name, alt), caption)


def _cost(seconds: pd.DataFrame, name: str) -> Picture:
    figure = _figure(4.8, 0.8 + 0.3 * len(seconds))
    axis = figure.subplots()
    places = np.arange(len(seconds))
    running, compiling = seconds["run_per_seed"], seconds["compile"]
    axis.barh(places, compiling, color=LIGHT["c2"], height=0.62, label="compile")
    axis.barh(places, running, left=compiling, color=LIGHT["c1"], height=0.62, label="run a seed")
    axis.set_yticks(places, [str(method) for method in seconds.index])
    axis.invert_yaxis()
    axis.set_xlabel("seconds")
    _legend(figure, axis)
    _tidy(axis, grid="x")
    alt = f"Wall time by method: compiling takes {compiling.sum():.3g} s in all, running a seed {running.sum():.3g} s."
    return Picture("Wall time", _svg(figure, f"{name}-cost", alt), alt)
