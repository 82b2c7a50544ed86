"""The HTML page of results: its text, its safety, and how a real browser shows it."""

import html
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from fedgeo import cli, evaluation, page, report, runs
from fedgeo.runs import result as run_result
from fedgeo.runs.streams import alarm_table

HOSTILE = "<script>alert('x')</script> & \"$\\frac{\" %s {{ 7 * 7 }}"
MATHEMATICAL = 'id="$\\frac{$ #0b57a4'
VOID = {"meta", "br", "img", "link", "input", "hr"}
PHONE = 390


def scores_of(methods, units, seeds, rows=120):
    """Scores that tell anomalies as well as ``methods`` says, evaluated: units table and curves."""
    frames, curves = [], run_result.Curves()
    for method, shift in methods.items():
        for seed in seeds:
            rng = np.random.default_rng([seed, *method.encode()])
            labels = {name: (rng.random(rows) < 0.3).astype(int) for name in units}
            scores = {name: rng.random(rows) + shift * y for name, y in labels.items()}
            frames.append(
                evaluation.per_client(scores, labels, dict.fromkeys(labels, 0.9)).assign(
                    method=method, seed=seed
                )
            )
            curves.add(method, seed, scores, labels)
    return run_result.tidy(frames), curves.table()


def history_of(methods, seeds, rounds, **columns):
    rounds_ = np.arange(rounds)
    if not methods:
        return pd.DataFrame()
    return pd.concat(
        pd.DataFrame(
            {"method": m, "seed": s, "round": rounds_, **{c: f(rounds_ + s) for c, f in columns.items()}}
        )
        for m in methods
        for s in seeds
    )


def streams_result(methods=None, *, units=None, rows=400, name="FedKAD on made-up streams"):
    """A result of streams without any training; channels, client and data set have hostile names."""
    methods = methods or {
        "FedKAD": 0.2,
        "FedKAD, recommended": 0.6,
        "untrained subspace": 0.1,
        "random": 0.0,
        "PCA": 0.3,
    }
    units = units or [HOSTILE, *(f"machine-{k}" for k in range(7))]
    table, curves = scores_of(methods, units, (0, 1))
    rng = np.random.default_rng(0)
    parts = rng.random((rows, 4))
    parts[rows // 2 : rows // 2 + 30, 1] += 8
    scores = np.where(np.arange(rows) < 20, np.nan, parts.sum(axis=1))
    labels = (np.arange(rows) // 40 == rows // 80).astype(int)
    channels = (HOSTILE, MATHEMATICAL, "flow rate in a very long name that no axis can hold")
    stream = runs.StreamExample(
        HOSTILE, "FedKAD, recommended", channels, rng.standard_normal((rows, 3)), parts[:, :3], scores, labels, 6.0,
        alarm_table(scores, 6.0, labels, parts, channels),
    )  # fmt: skip
    settings = {
        "data": HOSTILE, "clients": len(units), "channels": 3, "cohort": 2, "rounds": 30, "seeds": [0, 1],
        "quantile": 0.99, "smoothing": 5, "upload_bytes_per_client_and_round": 1234,
    }  # fmt: skip
    return runs.Result(
        name, "client", table, seconds_of(methods), settings, [f"a note on {HOSTILE}"],
        history=history_of(
            [m for m in methods if m.startswith("FedKAD")], (0, 1), 30, consensus_residual=lambda r: 1 / (r + 1),
            local_loss=lambda r: np.exp(-r / 9),
        ),
        curves=curves, stream=stream,
    )  # fmt: skip


def tables_result():
    methods = {
        "Geodesic (OS)": 0.8,
        "Geodesic (Iter)": 0.7,
        "untrained encoder": 0.3,
        "random": 0.0,
        "PCA": 0.4,
    }
    table, curves = scores_of(methods, ["a", "b"], (0, 1))
    rng = np.random.default_rng(0)
    for column in runs.METRICS["class"]:
        if column.startswith("youden"):
            table[column] = rng.random(len(table))
    settings = {
        "data": "made up", "rows": 200, "features": 4, "clients": 3, "rounds": 50, "seeds": [0, 1], "quantile": 0.95,
        "upload_bytes_per_client_and_round": 99,
    }  # fmt: skip
    loss = dict(first_loss=lambda r: 2 + 0.0 * r, last_loss=lambda r: 1 / (r + 1.0))
    history = pd.concat(
        [
            history_of(["Geodesic (OS)"], (0, 1), 1, **loss),
            history_of(["Geodesic (Iter)"], (0, 1), 50, **loss),
        ]
    )
    return runs.Result(
        "Geodesic-SVDD on a table",
        "class",
        table,
        seconds_of(methods),
        settings,
        history=history,
        curves=curves,
    )


def seconds_of(methods):
    frame = pd.DataFrame({"compile": 2.0, "run_per_seed": 0.5}, index=list(methods))
    return frame.rename_axis("method")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("results")
    report.write(streams_result(), path / "a")
    report.write(tables_result(), path / "b")
    return path


@pytest.fixture(scope="module")
def text(folder):
    return page.page(folder)


class Outline(HTMLParser):
    """Tags with their attributes in order, and the text outside of styles."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.words, self.headings = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)
        if self.open and self.open[-1] in ("h1", "h2", "h3"):
            self.headings.append((self.open[-1], data))

    def named(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


def test_a_result_comes_back_from_its_folder(folder):
    want = streams_result()
    saved = report.read(folder / "a")
    got = saved.result
    assert (got.name, got.unit, got.settings, got.notes) == (want.name, want.unit, want.settings, want.notes)
    pd.testing.assert_frame_equal(got.table(), want.table(), rtol=1e-4, atol=1e-3)
    pd.testing.assert_frame_equal(got.history, want.history.reset_index(drop=True), rtol=1e-5)
    pd.testing.assert_frame_equal(got.curves, want.curves, atol=1e-4)
    for name in ("client", "method", "channels", "threshold"):
        assert getattr(got.stream, name) == getattr(want.stream, name)
    for name in ("x", "parts", "scores", "labels"):
        np.testing.assert_allclose(getattr(got.stream, name), getattr(want.stream, name), rtol=1e-6)
    pd.testing.assert_frame_equal(got.stream.alarms, want.stream.alarms, rtol=1e-3, check_dtype=False)
    assert saved.made_by["versions"].keys() >= {"jax", "numpy"}


def test_what_a_new_result_lacks_is_removed(tmp_path):
    report.write(streams_result(), tmp_path)
    report.write(tables_result(), tmp_path)
    assert not (tmp_path / "stream.npz").exists()
    assert report.read(tmp_path).result.stream is None


def test_the_page_is_well_formed_and_says_what_it_shows(text):
    outline = Outline(text)
    assert [level for level, _ in outline.headings][:2] == ["h1", "h2"]
    assert {h for _, h in outline.headings} >= {
        "FedKAD on made-up streams", "Geodesic-SVDD on a table", "What this run shows", "One stream, row by row",
        "Convergence", "Cost", "Settings and origin",
    }  # fmt: skip
    pictures = outline.named("svg")
    # A stream; AUROC, AP and a precision-recall curve each; residual and loss, loss; cost each.
    assert len(pictures) == 1 + 2 * 3 + 3 + 2
    for attrs in pictures:
        assert attrs["role"] == "img"
        assert len(attrs["aria-label"]) > 30
    tables = len(outline.named("table"))
    assert tables == len(outline.named("caption")) == 4 + 3
    assert all(attrs["scope"] in ("col", "row") for attrs in outline.named("th"))
    ids = [attrs["id"] for _, attrs in outline.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    references = set(re.findall(r'(?:url\(|href=")#([^")]+)', text))
    assert references <= set(ids)
    words = " ".join(outline.words)
    assert (
        "Geodesic (OS) trains for one round: its loss falls from 2 in the first local epoch to 0.75" in words
    )
    for part in (
        "random",
        "untrained subspace",
        "no test label was used",
        "1,234 bytes",
        "a note on",
        "74,040 bytes up",
    ):
        assert part in words


def test_names_of_users_are_text_and_nothing_else(text):
    outline = Outline(text)
    assert not outline.named("script")
    assert HOSTILE in " ".join(outline.words)  # neither formatted by the template, nor read as mathematics
    channel = html.unescape(next(w for w in outline.words if w.startswith("<script>") and w.endswith("…")))
    assert HOSTILE.startswith(channel[:-1].rstrip())
    assert (
        outline.words.count(MATHEMATICAL) == 1
    )  # the label in the picture; the list of causes stands in longer text
    assert HOSTILE in outline.named("svg")[0]["aria-label"]


def test_nothing_asks_for_a_network(text):
    outline = Outline(text)
    for tag, attrs in outline.tags:
        for name, value in attrs.items():
            if name in ("src", "href", "xlink:href", "action", "data", "srcset"):
                assert value.startswith("#"), (tag, name, value)
    assert not re.search(r"@import|url\((?!#)", text)
    policy = next(
        a["content"] for a in outline.named("meta") if a.get("http-equiv") == "Content-Security-Policy"
    )
    assert "default-src 'none'" in policy


def luminance(colour):
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


@pytest.mark.parametrize("palette", [page.LIGHT, page.DARK], ids=["light", "dark"])
def test_contrast_is_what_the_accessibility_guidelines_ask(palette):
    """WCAG 2.2, 1.4.3 and 1.4.11: 4.5 for text, 3 for what a picture says."""
    paper = luminance(palette["paper"])

    def contrast(name):
        light, dark = sorted([luminance(palette[name]), paper], reverse=True)
        return (light + 0.05) / (dark + 0.05)

    assert min(contrast(name) for name in ("ink", "muted", "c1")) >= 4.5
    assert min(contrast(name) for name in ("c2", "c3", "c4", "c5", "alarm")) >= 3
    assert len(set(palette.values())) == len(palette)
    assert set(page.LIGHT) == set(page.DARK)


def verdicts(**methods):
    result = streams_result({name.replace("_", " "): shift for name, shift in methods.items()})
    return page.conclusions(result)


def test_conclusions_follow_the_numbers():
    shifts = {"FedKAD": 0.3, "FedKAD, recommended": 0.9, "untrained subspace": 0.3, "random": 0.0, "PCA": 0.1}
    ahead = page.conclusions(streams_result(shifts))
    assert ahead[0].startswith("FedKAD, recommended: AUROC ")
    assert "Against PCA, the strongest simple control" in ahead[1]
    assert ahead[1].endswith(": ahead.")
    assert "better for 8 of 8 clients" in ahead[1]
    behind = page.conclusions(streams_result(shifts | {"PCA": 0.99, "FedKAD, recommended": 0.1}))
    assert behind[1].endswith(": behind.")
    assert "+" not in behind[1]
    level = page.conclusions(streams_result(shifts | {"FedKAD, recommended": 0.1}))
    assert level[1].endswith("no difference that this run can show.")
    assert "What training adds, FedKAD against untrained subspace" in level[2]


def test_settings_chosen_on_a_data_set_are_said_to_be():
    result = streams_result()
    assert "were chosen with results on" not in " ".join(page.conclusions(result))
    result.settings["data"] = "MSL"
    assert "were chosen with results on SMAP, MSL, SMD in view" in " ".join(page.conclusions(result))


def test_a_run_of_controls_alone_is_described_too():
    lines = page.conclusions(streams_result({"PCA": 0.4, "untrained subspace": 0.1, "random": 0.0}))
    assert lines[0].startswith("PCA: AUROC ")
    assert "Against random, the strongest simple control" in lines[1]
    assert "What training adds" not in " ".join(lines)


def test_two_classes_decide_nothing():
    lines = page.conclusions(tables_result())
    assert "too few classes for a test, so this run decides nothing" in lines[1]


def test_clients_without_an_anomaly_are_no_reason_to_fail():
    result = streams_result()
    result.units.loc[:, ["auroc", "ap", "f1", "recall", "precision"]] = np.nan
    lines = page.conclusions(result)
    assert "undefined" in lines[0]
    assert "nan" not in " ".join(lines)


def test_an_envelope_keeps_every_peak():
    values = np.zeros(10_001)
    values[[17, 5000, 10_000]] = [5, -3, 7]
    values[:10] = np.nan
    place, drawn = page.envelope(values, 10)
    assert len(drawn) == 2 * 1001
    assert np.isnan(drawn[:2]).all()
    assert (np.nanmax(drawn), np.nanmin(drawn)) == (7, -3)
    assert drawn[place == 5000].tolist() == [-3, 0]
    assert page.envelope(values, 10, lowest=False)[1][1] == 5


def test_a_long_stream_stays_a_small_page(tmp_path):
    report.write(streams_result(rows=30_000), tmp_path)
    assert (tmp_path / "stream.npz").stat().st_size < 1.2e6
    assert page.write(tmp_path).stat().st_size < 1.5e6


def test_half_a_result_is_named_beside_whole_ones(folder, tmp_path):
    both = tmp_path / "both"
    shutil.copytree(folder, both)
    (both / "a" / "units.csv").unlink()
    (both / "b" / "curves.csv").unlink()
    words = " ".join(Outline(page.page(both)).words)
    assert "Left out of this page" in words
    assert "units.csv is missing, so this is half a result" in words
    assert "curves.csv: no precision-recall curve" in words


def keep_lines(file, count):
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:count]))


def forget_setting(path, name):
    record = json.loads((path / "run.json").read_text())
    del record["settings"][name]
    (path / "run.json").write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: (path / "run.json").unlink(), "run.json is missing, so this is half a result"),
        (lambda path: (path / "run.json").write_text("{"), "run.json cannot be read"),
        (lambda path: (path / "run.json").write_text("{}"), "run.json is not what this version writes"),
        (lambda path: (path / "units.csv").write_text("a,b\n1,2\n"), "units.csv has no column method, seed"),
        (lambda path: (path / "seconds.csv").write_text(""), "seconds.csv cannot be read"),
        (
            lambda path: (path / "seconds.csv").write_text("method\n"),
            "seconds.csv has no column compile, run_per_seed",
        ),
        (
            lambda path: (path / "history.csv").write_text("a\n"),
            "history.csv has no column method, seed, round",
        ),
        (lambda path: keep_lines(path / "units.csv", 1), "units.csv has no rows"),
        (lambda path: forget_setting(path, "quantile"), "run.json has no setting quantile"),
        (lambda path: (path / "stream.npz").write_bytes(b"PK\x03\x04"), "stream.npz cannot be read"),
        (lambda path: np.savez(path / "stream.npz", x=np.zeros(3)), "stream.npz has no array channels"),
        (lambda path: (path / "stream_alarms.csv").unlink(), "stream_alarms.csv is missing"),
    ],
)
def test_a_damaged_folder_is_a_message(folder, tmp_path, spoil, message):
    shutil.copytree(folder / "a", tmp_path / "a")
    spoil(tmp_path / "a")
    with pytest.raises(ValueError, match="no whole result") as error:
        page.page(tmp_path)
    assert message in str(error.value)


def test_a_stream_of_other_shapes_is_a_message(folder, tmp_path):
    shutil.copytree(folder / "a", tmp_path / "a")
    with np.load(tmp_path / "a" / "stream.npz") as archive:
        arrays = dict(archive) | {"labels": np.zeros(3)}
    np.savez(tmp_path / "a" / "stream.npz", **arrays)
    with pytest.raises(ValueError, match=r"labels has the shape \(3,\), want \(400,\)"):
        report.read(tmp_path / "a")


def call(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["fedgeo", *map(str, words)])
    cli.main()


def test_the_command_writes_the_page(folder, tmp_path, monkeypatch, capsys):
    out = tmp_path / "deep" / "page.html"
    call(monkeypatch, "report", folder, "--out", out)
    assert out.read_text().startswith("<!doctype html>")
    assert "page.html" in capsys.readouterr().out


@pytest.mark.parametrize("there", [True, False])
def test_a_folder_without_results_is_a_message(tmp_path, monkeypatch, capsys, there):
    with pytest.raises(SystemExit) as exit_info:
        call(monkeypatch, "report", tmp_path if there else tmp_path / "nowhere")
    assert exit_info.value.code == 2
    message = capsys.readouterr().err
    assert ("no result in" if there else "no folder") in message
    assert "fedgeo run" in message


# A real browser

PROBE = """<!doctype html><meta charset="utf-8"><body>
<iframe id="page" style="border:0;width:WIDTHpx;height:900px" srcdoc="PAGE"></iframe><pre id="probe"></pre>
<script>
const violations = [];
const frame = document.getElementById("page");
frame.addEventListener("load", () => {
  const inside = frame.contentDocument, view = frame.contentWindow;
  const clips = (p) => view.getComputedStyle(p).overflowX === "auto" || p.tagName.toLowerCase() === "svg";
  const clipped = (e) => { for (let p = e.parentElement; p; p = p.parentElement) if (clips(p)) return true; };
  const wide = [...inside.body.querySelectorAll("*")].filter(
    (e) => e.getBoundingClientRect().right > WIDTH + 0.5 && !clipped(e)).map((e) => e.tagName + "." + e.className);
  const seen = (e) => { const box = e.getBoundingClientRect(); return box.width > 100 && box.height > 40; };
  document.getElementById("probe").textContent = JSON.stringify({
    width: inside.documentElement.scrollWidth, wide: wide.slice(0, 5),
    tables: [...inside.querySelectorAll("table")].filter(seen).length,
    pictures: [...inside.querySelectorAll("svg")].filter(seen).length,
    requests: view.performance.getEntriesByType("resource").map((e) => e.name),
    ink: view.getComputedStyle(inside.querySelector("svg text")).fill,
    text: view.getComputedStyle(inside.querySelector("svg text")).fontFamily,
    scripts: inside.scripts.length,
  });
});
</script></body>"""


@pytest.fixture(scope="module")
def browser():
    """Path of Chromium or Chrome."""
    found = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None
    )
    if found is None:
        pytest.skip(
            "no chromium on the path: install one (Debian: apt-get install chromium) to open the page"
        )
    return found


def opened(browser, folder, text, width):
    """What a browser makes of a page in a window of some width, and what it wrote to the console."""
    harness = folder / "harness.html"
    harness.write_text(PROBE.replace("WIDTH", str(width)).replace("PAGE", html.escape(text)))
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr",
        "--disable-background-networking", "--disable-component-update", "--no-first-run",
        f"--user-data-dir={folder / 'profile'}", "--window-size=1400,1000", "--virtual-time-budget=10000", "--dump-dom",
        harness.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r'<pre id="probe">(.+?)</pre>', done.stdout, flags=re.DOTALL)
    assert found, done.stderr[-2000:]
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(html.unescape(found[1])), console


@pytest.mark.parametrize("width", [PHONE, 1200])
def test_a_browser_shows_all_of_it_and_finds_no_fault(browser, tmp_path, text, width):
    found, console = opened(browser, tmp_path, text, width)
    assert console == []
    assert found["requests"] == []
    assert found["scripts"] == 0
    assert found["width"] <= width
    assert found["wide"] == []
    assert found["tables"] == len(Outline(text).named("table"))
    assert found["pictures"] == len(Outline(text).named("svg"))
    assert found["ink"] == "rgb(26, 26, 30)"  # the page's colour, so the variables reach the pictures
    assert "system-ui" in found["text"]


def test_the_browser_would_find_a_fault(browser, tmp_path, text):
    spoiled = text.replace(
        "<main>", '<main><div style="width:700px">wide</div><img src="http://localhost:9/x.png" alt="">'
    ).replace("</main>", "<script>1</script></main>")
    found, console = opened(browser, tmp_path, spoiled, PHONE)
    assert found["wide"] == ["DIV."]
    assert found["width"] >= 700
    assert any("Content Security Policy" in line and "x.png" in line for line in console)
    assert any("Content Security Policy" in line and "script" in line for line in console)
