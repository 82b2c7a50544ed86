"""The command line; the only module that prints."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

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

from fedgeo import data, page, profile, report, runs

console = Console(highlight=False)


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
        console.print(f"Picture: {self.out / 'stream.png'}")
        console.print(f"Demo took {time.perf_counter() - began:.0f} s.")


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
class Report:
    """One self-contained HTML page from a folder of results: tables, pictures, and what may be concluded."""

    folder: tyro.conf.Positional[Path]
    """what run or demo wrote; results in folders below it come on the same page"""
    out: Path | None = None
    """the page; report.html in the folder by default"""

    def run(self) -> None:
        """Write the page and say where it is."""
        path = page.write(self.folder, self.out)
        console.print(f"Page: {path} ({path.stat().st_size / 1e6:.1f} MB)")


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


Command = (
    Annotated[Demo, tyro.conf.subcommand("demo")]
    | Annotated[Run, tyro.conf.subcommand("run")]
    | Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[Profile, tyro.conf.subcommand("profile")]
)


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
        console.print(f"Trace: {found.trace} (open it at ui.perfetto.dev, or its folder in TensorBoard)")


def _finish(result: runs.Result, out: Path) -> None:
    _print_table(report.shown(result), result.name)
    for line in report.reading(result):
        console.print(line)
    _print_table(report.shown_seconds(result))
    console.print(report.upload(result))
    for note in result.notes[:12]:
        console.print(f"note: {note}", markup=False)
    if len(result.notes) > 12:
        console.print(f"note: {len(result.notes) - 12} more in {out / 'table.md'}")
    report.write(result, out)
    console.print(f"Tables: {out}\n")


def main() -> None:
    """Entry point of ``fedgeo``; bad input ends with a message and exit status 2."""
    command = tyro.cli(
        Command, prog="fedgeo", description="Federated anomaly detection as compiled JAX programs."
    )
    try:
        command.run()
    except (ValueError, OSError, ImportError) as error:
        if os.environ.get("FEDGEO_TRACEBACK"):
            raise
        Console(stderr=True, highlight=False).print(f"error: {error}", markup=False)
        sys.exit(2)


if __name__ == "__main__":
    main()
