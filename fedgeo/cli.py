"""The command line; the only module that prints."""

import json
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pandas as pd
import tyro
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from fedgeo import data, federation, page, profile, report, runs
from fedgeo.data.streams import listed
from fedgeo.deploy import export
from fedgeo.deploy import runtime as deploy
from fedgeo.estimators import DetectorWarning, FedKAD, GeodesicSVDD, load

console = Console(highlight=False)
stderr = Console(stderr=True, highlight=False)


@dataclass(frozen=True)
class RunFedKAD:
    """FedKAD on a federation of streams, beside its control rows."""

    data: Literal["smap", "msl", "smd", "psm", "plants"]
    """data set; plants are generated"""
    root: Path | None = None
    """folder that holds the data set's folder; FEDGEO_DATA by default"""
    seeds: tuple[int, ...] = (0, 1, 2)
    """each draws the lift, the start and the cohorts anew"""
    out: Path | None = None
    """folder for tables; results/fedkad-DATA by default"""
    settings: tyro.conf.OmitArgPrefixes[runs.KoopmanSettings] = field(default_factory=runs.KoopmanSettings)

    def run(self) -> None:
        """Load, run, print and write."""
        load: dict[str, Callable[[], data.Streams]] = {
            "smap": lambda: data.smap(self.root),
            "msl": lambda: data.msl(self.root),
            "smd": lambda: data.smd(self.root),
            "psm": lambda: data.psm(self.root),
            "plants": data.plants,
        }
        streams = load[self.data]()
        out = _folder(self.out or Path("results", f"fedkad-{self.data}"))
        with _progress(f"FedKAD on {self.data}") as on_step:
            result = runs.run_fedkad(streams, self.settings, seeds=self.seeds, on_step=on_step)
        _finish(result, out)


@dataclass(frozen=True)
class RunGeodesic:
    """Geodesic-SVDD on a labelled table, each class in turn held normal, beside its control rows."""

    data: Literal["breast-cancer", "iris", "titanic", "adult", "covertype"]
    """data set; the first two come with scikit-learn"""
    root: Path | None = None
    """folder that holds the data set's folder; FEDGEO_DATA by default"""
    rows: int = 20_000
    """of Covertype, drawn at random; the table says how many"""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """each draws the split, the partition and the start anew"""
    out: Path | None = None
    """folder for tables; results/geodesic-svdd-DATA by default"""
    settings: tyro.conf.OmitArgPrefixes[runs.GeodesicSettings] = field(default_factory=runs.GeodesicSettings)

    def run(self) -> None:
        """Load, run, print and write."""
        load: dict[str, Callable[[], data.Table]] = {
            "breast-cancer": data.breast_cancer,
            "iris": data.iris,
            "titanic": lambda: data.titanic(self.root),
            "adult": lambda: data.adult(self.root),
            "covertype": lambda: data.covertype(self.root, rows=self.rows),
        }
        table = load[self.data]()
        federation.one_device_a_core()
        out = _folder(self.out or Path("results", f"geodesic-svdd-{self.data}"))
        with _progress(f"Geodesic-SVDD on {self.data}") as on_step:
            result = runs.run_geodesic(table, self.settings, seeds=self.seeds, on_step=on_step)
        _finish(result, out)


@dataclass(frozen=True)
class Demo:
    """Both methods, on data that come with the installation; takes a minute or two."""

    out: Path = Path("results", "demo")
    """folder for tables and the picture"""
    seeds: tuple[int, ...] = (0, 1, 2)
    """for both methods"""

    def run(self) -> None:
        """Run, print and write both methods, and draw one stream."""
        began = time.perf_counter()
        federation.one_device_a_core()
        folders = [_folder(self.out / name) for name in ("geodesic-svdd", "fedkad")]
        with _progress("Geodesic-SVDD on Breast Cancer (real)") as on_step:
            tabular = runs.run_geodesic(data.breast_cancer(), seeds=self.seeds, on_step=on_step)
        _finish(tabular, folders[0])
        streams = data.plants()
        with _progress("FedKAD on sensor plants (generated)") as on_step:
            temporal = runs.run_fedkad(streams, seeds=self.seeds, on_step=on_step)
        _finish(temporal, folders[1])
        client = streams.names[0]
        report.plot_stream(
            self.out / "stream.png", streams.test[client], temporal.example[client], temporal.thresholds[client],
            streams.labels[client], channels=streams.channels,
            title=f"FedKAD, recommended, on {client} of a generated federation, first seed",
        )  # fmt: skip
        _say(f"Picture: {self.out / 'stream.png'}")
        _say(f"Demo took {time.perf_counter() - began:.0f} s.")


@dataclass(frozen=True)
class Run:
    """A method on a data set, with its control rows: tables on screen and in a folder."""

    method: tyro.conf.OmitSubcommandPrefixes[
        Annotated[RunFedKAD, tyro.conf.subcommand("fedkad")]
        | Annotated[RunGeodesic, tyro.conf.subcommand("geodesic-svdd")]
    ]

    def run(self) -> None:
        """Run the method."""
        self.method.run()


@dataclass(frozen=True)
class Data:
    """Fetch a data set from its publisher, every file checked; names those that must be got by hand."""

    name: tyro.conf.Positional[Literal["smd", "adult", "covertype", "smap", "msl", "psm", "titanic"]]
    """data set; of SMD the 23 machines of 28 whose checksums we have"""
    root: Path | None = None
    """folder to put the data set's folder in; FEDGEO_DATA by default"""

    def run(self) -> None:
        """Fetch and say where."""
        folder = {"smd": "SMD", "psm": "PSM", "smap": "SMAP_MSL", "msl": "SMAP_MSL"}.get(self.name, self.name)
        with _progress(f"Fetching {folder}") as on_step:
            path = data.download(folder, self.root, on_file=on_step)
        _say(f"{folder}: {path}")


@dataclass(frozen=True)
class Fit:
    """A detector from machines' own CSV files: FedKAD with our recommended settings, a threshold for every machine."""

    files: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE...")]
    """one CSV file of normal rows a machine, which is called by the file's name; or folders of such files"""
    out: Path = Path("detector")
    """the detector's file"""
    time: str | None = None
    """name of the column of times, if it is not a usual one"""
    missing: data.Missing = "error"
    """on missing values: name the first one and stop, take the last value, or that and leave it out of the score"""
    threshold: Literal["quantile", "rate", "pot"] = "quantile"
    """how thresholds are set on the last rows of each file, which are not trained on"""
    quantile: float = 0.99
    """of those rows' scores, for a threshold by quantile"""
    rate: float = 0.01
    """of alarms on those rows, at most, for a threshold by rate"""
    validation: float = 0.15
    """share of each file kept for its threshold"""
    rank: int = 24
    """columns of the subspace that machines share"""
    window: int = 20
    """rows a window"""
    rounds: int = 30
    """federated rounds"""
    seed: int = 0
    """of all that is random"""

    def run(self) -> None:
        """Read, fit, say what was found, save."""
        _check_target(self.out)
        clients = _machines(self.files, self.time)
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("files", "out", "time")}
        with _progress(f"FedKAD on {len(clients)} machines") as on_step, warnings.catch_warnings():
            warnings.simplefilter("ignore", DetectorWarning)  # the notes say the same
            model = FedKAD(**own, progress=lambda done: on_step(f"{done} rounds", self.rounds)).fit(clients)
        _print_calibration(model, "Thresholds, from rows that were not trained on")
        _say(f"Detector: {model.save(self.out)}")


@dataclass(frozen=True)
class Join:
    """Add machines to a detector: the shared subspace, an operator and a threshold of their own; nothing is trained."""

    detector: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DETECTOR")]
    """the detector's file, which is replaced"""
    files: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE...")]
    """one CSV file of normal rows a machine, or folders of such files"""
    time: str | None = None
    """name of the column of times, if it is not a usual one"""

    def run(self) -> None:
        """Load, join, say what was found, save."""

        def join(model: FedKAD | GeodesicSVDD, machines: dict[str, pd.DataFrame]) -> None:
            for name, frame in machines.items():
                model.join(name, frame)

        _change(self.detector, self.files, self.time, join)


@dataclass(frozen=True)
class Recalibrate:
    """New thresholds for a detector's machines, by the rule it was fitted with, from more of their normal rows."""

    detector: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DETECTOR")]
    """the detector's file, which is replaced"""
    files: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE...")]
    """one CSV file of normal rows a machine, called like it, or folders of such files"""
    time: str | None = None
    """name of the column of times, if it is not a usual one"""

    def run(self) -> None:
        """Load, recalibrate, say what was found, save."""
        _change(self.detector, self.files, self.time, lambda model, machines: model.recalibrate(machines))


@dataclass(frozen=True)
class Score:
    """Scores and alarms of a machine's CSV file, as CSV in the form of watch."""

    detector: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DETECTOR")]
    """the detector's file"""
    rows: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="ROWS.csv")]
    """CSV file with the columns that the detector was fitted on"""
    client: str | None = None
    """whose rows they are; by default the client that is called like the file, or the only one"""
    time: str | None = None
    """name of the column of times, if it is not a usual one"""
    out: Path | None = None
    """file to write instead of the screen"""

    def run(self) -> None:
        """Read, score, write."""
        detector = deploy.load(self.detector)
        for own in (self.rows, self.detector):
            if self.out and self.out.is_dir():
                raise ValueError(f"--out {self.out} is a folder; want the name of a file")
            if self.out and self.out.exists() and self.out.samefile(own):
                raise ValueError(f"--out {self.out} would replace what is read; choose another file")
        client = self.client or (self.rows.stem if self.rows.stem in detector.clients else None)
        frame = data.read_csv(self.rows, time=self.time, columns=detector.columns)
        stream = detector if isinstance(detector, deploy.StreamDetector) else None
        missing = "error" if detector.settings["missing"] == "error" else "ffill"
        values, index = data.policy.read(
            frame, detector.columns, str(self.rows), missing=missing, ordered=stream is not None
        )
        times = index.to_numpy() if isinstance(index, pd.DatetimeIndex) else None
        scores = detector.score(values, client, times)
        alarms = detector.alarms(scores, client)
        table = pd.DataFrame(  # of the form that watch writes
            {
                "time": frame.attrs.get("stamps", ""),
                "score": scores,
                "alarm": alarms.astype(int),
                "channels": "",
                "note": "",
            },
            index=pd.RangeIndex(len(scores), name="row"),
        )
        if stream and index is not None:
            gaps = data.policy.run_starts(index, len(scores), detector.settings.get("interval"))[1:]
            table.loc[gaps, "note"] = deploy.RESTARTED
        if stream and alarms.any():
            parts = stream.contributions(values, client, times)
            table["channels"] = [
                " ".join(deploy.causes(part, detector.columns)) if alarm else ""
                for part, alarm in zip(parts, alarms, strict=True)
            ]
        table.to_csv(self.out or sys.stdout, float_format="%.9g")
        if ignored := frame.attrs["ignored"]:
            stderr.print(f"note: ignored columns: {listed(ignored, 5)}", markup=False, soft_wrap=True)
        for line in _score_summary(detector, client, self.rows.stem, scores, alarms):
            stderr.print(line, markup=False, soft_wrap=True)


@dataclass(frozen=True)
class Watch:
    """Rows of CSV from standard input: a line of score and alarm for each as it comes, bad lines reported.

    A row that is not sent is a gap, which times tell: the window starts anew, without a score until it is full. A line
    that cannot be read, or has an empty field (without --missing at the fit), counts as a lost row: it has no score,
    the last values stand in for it, and the next line is scored; a window's length of them starts the window anew. The
    closing line says how many scores rest on values that were filled in. An empty line counts for nothing.
    """

    detector: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DETECTOR")]
    """the detector's file"""
    client: str | None = None
    """whose rows they are; may be left out where there is only one"""
    time: str | None = None
    """name of the column of times, if it is not a usual one"""
    json: bool = False
    """one JSON object a line instead of CSV"""

    def run(self) -> None:
        """The same as ``python runtime.py`` on a device."""
        options = [f"--client={self.client}"] * (self.client is not None) + ["--json"] * self.json
        sys.exit(
            deploy.main([str(self.detector), *options, *[f"--time={self.time}"] * (self.time is not None)])
        )


@dataclass(frozen=True)
class Report:
    """One self-contained HTML page from a folder of results: tables, pictures, and what may be concluded."""

    folder: tyro.conf.Positional[Path]
    """what run or demo wrote; results in folders below it come on the same page"""
    out: Path | None = None
    """the page; report.html in the folder by default"""

    def run(self) -> None:
        """Write the page and say where it is."""
        path = page.write(self.folder, self.out)
        _say(f"Page: {path} ({path.stat().st_size / 1e6:.1f} MB)")


@dataclass(frozen=True)
class ProfileFedKAD:
    """FedKAD on generated streams, by default of the size of the Server Machine Dataset."""

    sizes: tyro.conf.OmitArgPrefixes[profile.FedKADSizes] = field(default_factory=profile.FedKADSizes)
    repeats: int = 3
    """runs of each stage, taken in turns; the median counts"""
    trace: Path | None = None
    """folder for a trace that Perfetto (ui.perfetto.dev) or TensorBoard opens"""
    json: bool = False
    """print one JSON object instead of a table"""

    def run(self) -> None:
        """Measure and print."""
        _print_profile(profile.profile_fedkad(self.sizes, repeats=self.repeats, trace=self.trace), self.json)


@dataclass(frozen=True)
class ProfileGeodesic:
    """Geodesic-SVDD on generated rows."""

    sizes: tyro.conf.OmitArgPrefixes[profile.GeodesicSizes] = field(default_factory=profile.GeodesicSizes)
    repeats: int = 3
    """runs of each stage, taken in turns; the median counts"""
    trace: Path | None = None
    """folder for a trace that Perfetto (ui.perfetto.dev) or TensorBoard opens"""
    json: bool = False
    """print one JSON object instead of a table"""

    def run(self) -> None:
        """Measure and print."""
        _print_profile(
            profile.profile_geodesic(self.sizes, repeats=self.repeats, trace=self.trace), self.json
        )


@dataclass(frozen=True)
class Profile:
    """Where a training's time goes: compiling and running apart, operations, bytes, share of the matmul rate."""

    method: tyro.conf.OmitSubcommandPrefixes[
        Annotated[ProfileFedKAD, tyro.conf.subcommand("fedkad")]
        | Annotated[ProfileGeodesic, tyro.conf.subcommand("geodesic-svdd")]
    ]

    def run(self) -> None:
        """Profile the method."""
        self.method.run()


@dataclass(frozen=True)
class Export:
    """A detector for where there is no fedgeo: a folder for NumPy alone, an ONNX graph, or a program of jax.export."""

    detector: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DETECTOR")]
    """the detector's file"""
    to: Literal["runtime", "onnx", "stablehlo"] = "runtime"
    """runtime keeps all clients, the others hold one"""
    out: Path | None = None
    """folder or file to write; by default beside the detector, called like it"""
    client: str | None = None
    """whose; may be left out where there is only one"""

    def run(self) -> None:
        """Write and say where."""
        kind = {"runtime": "-runtime", "onnx": ".onnx", "stablehlo": ".stablehlo"}[self.to]
        out = self.out or self.detector.with_name(self.detector.name + kind)
        if self.to == "runtime" and out.exists() and not out.is_dir():
            raise ValueError(f"--out {out} is a file; want a folder")
        if self.to != "runtime" and out.is_dir():
            raise ValueError(f"--out {out} is a folder; want the name of a file")
        if self.to == "runtime":
            export.to_runtime(self.detector, out)
        else:
            write = export.to_onnx if self.to == "onnx" else export.to_stablehlo
            write(self.detector, out, self.client)
        use = {
            "runtime": f"how to run it is in {out / 'README.txt'}",
            "onnx": "takes rows (T, C) as float64 in the units of the training files; gives score (T,) and alarm (T,)",
            "stablehlo": f"fedgeo.deploy.export.load_stablehlo({str(out)!r}) reads it",
        }
        _say(f"{self.to}: {out}\n{use[self.to]}")


Command = (
    Annotated[Demo, tyro.conf.subcommand("demo")]
    | Annotated[Run, tyro.conf.subcommand("run")]
    | Annotated[Data, tyro.conf.subcommand("data")]
    | Annotated[Fit, tyro.conf.subcommand("fit")]
    | Annotated[Join, tyro.conf.subcommand("join")]
    | Annotated[Recalibrate, tyro.conf.subcommand("recalibrate")]
    | Annotated[Score, tyro.conf.subcommand("score")]
    | Annotated[Watch, tyro.conf.subcommand("watch")]
    | Annotated[Export, tyro.conf.subcommand("export")]
    | Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[Profile, tyro.conf.subcommand("profile")]
)


def _machines(files: Sequence[Path], time: str | None) -> dict[str, pd.DataFrame]:
    """Frames by machine, from CSV files and folders of them."""
    paths: list[Path] = []
    for path in files:
        found = sorted(p for p in path.iterdir() if p.suffix in (".csv", ".txt")) if path.is_dir() else [path]
        if not found:
            raise ValueError(f"no .csv or .txt file in {path}")
        paths += found
    if not paths:
        raise ValueError("no files; name one CSV file a machine, or a folder of them")
    if doubled := [stem for stem, times in Counter(path.stem for path in paths).items() if times > 1]:
        raise ValueError(
            f"several files are called {listed(doubled, 5)}; machines are told apart by their file's name"
        )
    return {path.stem: data.read_csv(path, time=time) for path in paths}


def _change(
    path: Path,
    files: Sequence[Path],
    time: str | None,
    change: Callable[[FedKAD | GeodesicSVDD, dict[str, pd.DataFrame]], object],
) -> None:
    """Load a detector, change it, say what was found, save it in its place."""
    model = load(path)
    model.notes_ = []
    machines = _machines(files, time)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DetectorWarning)  # the notes say the same
        change(model, machines)
    # Whether these rows were trained on is not known.
    _print_calibration(model, f"Thresholds, from the rows given for {listed([*machines], 5)}")
    _say(f"Detector: {model.save(path)}")


def _check_target(path: Path) -> None:
    """Raise OSError, before any work, for a detector's file that could not be written at the end."""
    if path.exists() and not deploy.is_detector(path):
        raise FileExistsError(f"{path} is there and is no detector; choose another file with --out")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise OSError(
            f"cannot write in {path.parent} ({error.strerror}); choose another place with --out"
        ) from error


def _print_calibration(model: FedKAD | GeodesicSVDD, title: str) -> None:
    """The thresholds, a machine that has none included, and what is to be known of them."""
    table = model.calibration_.reindex(model.clients_)
    without = table["rows"].fillna(0) == 0
    shown = pd.DataFrame(
        {
            "threshold": table["threshold"].map("{:.4g}".format),
            "rule": table["rule"],
            "rows": table["rows"].fillna(0).map("{:.0f}".format),
            "alarms": table["alarm_rate"].map("{:.2%}".format),
        }
    )
    shown[without] = ["none", "", "0", ""]
    _print_table(shown, title)
    for note in model.notes_:
        _say(f"note: {note}")


def _score_summary(
    detector: deploy.StreamDetector | deploy.RowDetector,
    client: str | None,
    stem: str,
    scores: np.ndarray,
    alarms: np.ndarray,
) -> Iterator[str]:
    """What came out, and what its reader should doubt."""
    scored = int(np.isfinite(scores).sum())
    share = alarms.sum() / max(scored, 1)
    yield (
        f"{len(scores)} rows, {scored} with a score, {int(alarms.sum())} alarms ({share:.2%}) above "
        f"{detector.threshold(client):.4g}"
    )
    name = client or (detector.clients[0] if len(detector.clients) == 1 else None)
    if name and name != stem:
        yield f"note: taken for rows of {name}, by whose threshold they are judged"
    if not scored and isinstance(detector, deploy.StreamDetector):
        yield f"note: the first score comes with row {detector.warm_up + 1} of a stream without gaps"
    if text := deploy.doubt(detector, client, scored, int(alarms.sum())):
        yield f"note: {text}"


@contextmanager
def _progress(title: str) -> Iterator[runs.OnStep]:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=None)

        def on_step(step: str, steps: int) -> None:
            begun = progress.tasks[0].total is not None
            progress.update(task, description=f"{title}: {step}", total=steps, advance=int(begun))

        yield on_step


def _say(text: str) -> None:
    """Print a line as it is: a terminal wraps it, a file or a pipe gets it whole."""
    console.print(text, markup=False, soft_wrap=True)


def _print_table(frame: pd.DataFrame, title: str = "") -> None:
    """Print a table, on a narrow terminal as several with the same rows: a number cut short would be a wrong one."""
    columns = list(frame.columns)
    while columns:
        count = len(columns)
        while count > 1 and _width(_table(frame[columns[:count]], title)) > console.width:
            count -= 1
        table = _table(frame[columns[:count]], title)
        Console(width=max(_width(table), console.width), highlight=False).print(table)
        columns, title = columns[count:], ""


def _table(frame: pd.DataFrame, title: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 1, 0, 0))
    table.add_column(str(frame.index.name or ""), no_wrap=True)
    for column in frame.columns:
        table.add_column(str(column), justify="right", no_wrap=True)
    for name, row in frame.iterrows():
        table.add_row(str(name), *row)
    return table


def _width(table: Table) -> int:
    return console.measure(table, options=console.options.update(max_width=1000)).maximum


def _folder(path: Path) -> Path:
    """The folder, created before any work is done, so that no result is lost to a path that cannot be."""
    path.mkdir(parents=True, exist_ok=True)
    if not os.access(path, os.W_OK):
        raise PermissionError(f"cannot write to {path}; choose another folder with --out")
    return path


def _print_profile(found: profile.Profile, as_json: bool) -> None:
    if as_json:
        console.out(json.dumps(found.as_json()))
        return
    console.print(", ".join(f"{name} {value}" for name, value in found.environment.items()))
    console.print(", ".join(f"{name} {value}" for name, value in found.settings.items()))
    _print_table(profile.shown(found), f"{found.method}: a training by stage, parts indented")
    console.print(
        f"float32 product at highest precision: {found.matmul_flops_per_second / 1e9:.3g} GFLOP/s; "
        f"peak memory of the {found.peak_of}: {found.peak_bytes / 1e6:,.0f} MB"
    )
    for note in found.notes:
        console.print(note)
    if found.trace:
        _say(f"Trace: {found.trace} (open it at ui.perfetto.dev, or its folder in TensorBoard)")


def _finish(result: runs.Result, out: Path) -> None:
    _print_table(report.shown(result), result.name)
    for line in report.reading(result):
        _say(line)
    _print_table(report.shown_seconds(result))
    console.print(report.upload(result))
    for note in result.notes[:12]:
        _say(f"note: {note}")
    if len(result.notes) > 12:
        _say(f"note: {len(result.notes) - 12} more in {out / 'table.md'}")
    report.write(result, out)
    _say(f"Tables: {out}\n")


def main() -> None:
    """Entry point of ``fedgeo``; bad input ends with a message and exit status 2."""
    command = tyro.cli(
        Command, prog="fedgeo", description="Federated anomaly detection as compiled JAX programs."
    )
    try:
        command.run()
    except BrokenPipeError:  # who read what is printed has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        stderr.print("stopped")
        sys.exit(130)
    except (ValueError, OSError, ImportError) as error:
        if os.environ.get("FEDGEO_TRACEBACK"):
            raise
        stderr.print(f"error: {deploy.explained(error)}", markup=False, soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
