"""FedKAD's whole evaluation (section VI): four detectors under one FedAvg envelope, FedKAD, and control rows.

Writes beside this file, after every method, ``fedkad_benchmark.csv`` (one row a data set, seed, method, stride and
protocol), ``fedkad_benchmark_costs.csv``, ``fedkad_benchmark.json`` (what made them), and from these the page
``fedkad_benchmark.md`` with its figures.

    python -m experiments.fedkad_benchmark --root DIR --data MSL SMAP --seeds 0 1 2 --stride 20
    python -m experiments.fedkad_benchmark --root DIR --data MSL --methods FedKAD controls
    python -m experiments.fedkad_benchmark --root DIR --data SMAP --costs
    python -m experiments.fedkad_benchmark --report

The first two forms replace the rows of what they run. A row that is there under the same settings is kept with
``--resume``, so that an interrupted run goes on where it stopped.
"""

import argparse
import functools
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from benchmarks import _timing
from experiments._results import provenance, remember, store
from fedgeo import data, evaluation, federation, trees
from fedgeo.algorithms import koopman, moments
from fedgeo.algorithms.examples import windows
from fedgeo.algorithms.fedavg import fedavg
from fedgeo.algorithms.fedkad import RECOMMENDED, fedkad
from fedgeo.baselines import controls
from fedgeo.evaluation import PROTOCOLS, Protocol
from fedgeo.models.autoencoders import lstm_autoencoder, usad
from fedgeo.models.tranad import tranad
from fedgeo.models.window_svdd import window_svdd
from fedgeo.protocol import Series

HERE = Path(__file__).with_suffix("")
RESULTS, RECORD = HERE.with_suffix(".csv"), HERE.with_suffix(".json")
COSTS, SIZES, SKEWS = (
    HERE.with_name(f"{HERE.name}_{what}.csv") for what in ("costs", "sizes", "heterogeneity")
)
WINDOW, LIFT, RANK, SMOOTHING = 20, 128, 24, 5
ROUNDS, SHARE, VALIDATION, EPOCHS, BATCH = 30, 0.25, 0.15, 5, 128
COST_STRIDE = 10  # of the round that is timed; its seconds are scaled to a stride of 1
LOADERS = {"SMAP": data.smap, "MSL": data.msl, "SMD": data.smd}
NEURAL = {
    "DeepSVDD": lambda channels: window_svdd(),
    "LSTM-AE": lambda channels: lstm_autoencoder(),
    "USAD": lambda channels: usad(window=WINDOW, channels=channels),
    "TranAD": lambda channels: tranad(),
}
METHODS = ("FedKAD", "controls", *NEURAL)
PAPER_SIZES = {"PSM": (24, 25, 32), "SMD": (28, 38, 24), "MSL": (27, 55, 24), "SMAP": (54, 25, 24)}  # K, C, r
PAPER_BYTES = {  # sections VI-B3 and VI-B4, where they name one
    ("FedKAD", "SMAP"): "59 KB up; 1.7 MB a round", ("FedKAD", "PSM"): "1.0 MB a round",
    ("LSTM-AE", "SMAP"): "227 KB up", ("USAD", "SMAP"): "1.9 MB up", ("USAD", "MSL"): "129 MB a round",
    ("TranAD", "PSM"): "2.7 MB a round",
}  # fmt: skip


def _named(name, threshold, **options):
    return Protocol(name, threshold, k_percent=1, **options)


RULES = (
    *(_named(f"quantile {q:g}", partial(evaluation.quantile, q=q)) for q in (0.9, 0.95, 0.99, 0.995, 0.999)),
    _named("largest validation score", partial(evaluation.quantile, q=1.0)),
    *(
        _named(
            f"POT {q:g}, level {level:g}", partial(evaluation.pot, q=q, level=level, on_degenerate="quantile")
        )
        for level, q in ((0.9, 1e-2), (0.98, 1e-2), (0.98, 1e-3), (0.98, 1e-4))
    ),
    _named("quantile 0.98, more than 1 %", evaluation.validation_quantile, boundary=">"),
)
"""Readings of "tuned on each client's validation split" beside the primary protocol's, for FedKAD and random."""


TEST_RULES = tuple(
    _named(f"test quantile {q:g}", partial(evaluation.quantile, q=q)) for q in (0.9, 0.95, 0.98, 0.99, 0.995)
)
"""The same of the test scores, without their labels: a fixed alarm rate."""


class Federation:
    """One data set, scaled and split as in section VI-A1."""

    def __init__(self, streams):
        self.streams = streams
        self.scaled, _ = data.standardise(streams, validation=VALIDATION)
        self.train, self.validation = data.split(self.scaled.train, VALIDATION)
        self.stacked = jax.tree.map(jnp.asarray, data.stack_series(self.train))
        self.channels = self.stacked.x.shape[-1]
        self.sampler = federation.uniform(max(round(SHARE * len(streams)), 1))


@functools.cache  # one value, so that all seeds share one compiled program
def neural(name, channels, stride):
    """One baseline under the FedAvg envelope of Table II."""
    examples = windows(WINDOW, stride=stride, smoothing=SMOOTHING)
    return fedavg(NEURAL[name](channels), epochs=EPOCHS, batch_size=BATCH, examples=examples)


@functools.partial(jax.jit, static_argnames="alg")
def score_stream(alg, server, x):
    """Scores ``(T,)`` of one stream."""
    return alg.score(server, x)


def scores_of(function, streams, step=2048):
    """``function`` of each stream ``(T, C)``, padded to a multiple of ``step`` rows to save compilations."""
    scores = {}
    for name, x in streams.items():
        padded = np.zeros((-(-len(x) // step) * step, x.shape[1]), np.float32)
        padded[: len(x)] = x
        scores[name] = np.asarray(function(jnp.asarray(padded)))[: len(x)]
    return scores


def run_neural(name, fed, seed, stride):
    """Yields ``(method, validation scores, test scores, facts)``, for seed 0 also of the untrained model."""
    alg, key = neural(name, fed.channels, stride), jax.random.key(seed)
    start = jax.jit(partial(federation.init, alg))(key, fed.stacked)
    score = partial(score_stream, alg)
    began = time.perf_counter()
    state, history = jax.block_until_ready(
        federation.fit(alg, key, fed.stacked, rounds=ROUNDS, sampler=fed.sampler, state=start, block_size=1)
    )
    seconds = time.perf_counter() - began
    for line in federation.incidents(history, fed.streams.names):
        print(" ", name, seed, line, flush=True)
    servers = {name: state.server} | ({f"{name}, untrained": start.server} if seed == 0 else {})
    before = mean_score(scores_of(partial(score, start.server), fed.validation))
    for method, server in servers.items():
        validation = scores_of(partial(score, server), fed.validation)
        test = scores_of(partial(score, server), fed.scaled.test)
        collapsed = evaluation.collapse_warnings(test, fed.scaled.test, WINDOW)
        for line in collapsed:
            print(" ", method, seed, line, flush=True)
        facts = {"collapsed": len(collapsed)}
        if server is state.server:
            facts |= {"seconds": seconds, "before": before, "after": mean_score(validation)}
        yield method, validation, test, facts


def mean_score(scores):
    """Mean over clients of their mean score."""
    return float(np.mean([np.nanmean(s) for s in scores.values()]))


def run_fedkad(fed, seed):
    """Yields ``(method, validation scores, test scores, facts)`` of FedKAD as published, recommended and untrained."""
    key = jax.random.key(seed)
    lift = koopman.random_lift(jax.random.fold_in(key, 1), fed.channels, window=WINDOW, size=LIFT)
    began = time.perf_counter()
    sums = jax.block_until_ready(moments.prepare(lift, fed.stacked))
    preparing = time.perf_counter() - began
    settings = {"FedKAD": ({}, ROUNDS), "FedKAD, recommended": (dict(RECOMMENDED), ROUNDS)}
    if seed == 0:
        settings["FedKAD, untrained"] = ({}, 0)
    for method, (options, rounds) in settings.items():
        alg = fedkad(lift, rank=RANK, **options)
        began = time.perf_counter()
        state, _ = jax.block_until_ready(federation.fit(alg, key, sums, rounds=rounds, sampler=fed.sampler))
        seconds = preparing + time.perf_counter() - began
        detectors = jax.jit(partial(federation.deploy, alg, block_size=1))(state, sums)
        score = jax.jit(partial(federation.score, alg))
        parts = [
            data.unstack(score(detectors, jnp.asarray(data.stack_series(part).x)), part)
            for part in (fed.validation, fed.scaled.test)
        ]
        yield method, *parts, {"seconds": seconds} if rounds else {}


def run_controls(fed, seed):
    """Yields ``(control, validation scores, test scores, facts)``; all but the random row once."""
    for name in controls.stream_controls(""):
        if seed and name != "random":
            continue
        parts = [{}, {}]
        for client, x in fed.train.items():
            score = controls.stream_controls(client, seed)[name](x)
            for part, streams in zip(parts, (fed.validation, fed.scaled.test), strict=True):
                raw = score(streams[client])
                smoothed = pd.Series(raw).rolling(SMOOTHING, min_periods=1).mean().where(~np.isnan(raw))
                part[client] = smoothed.to_numpy()
        yield name, *parts, {}


def judged(validation, test, labels, rules):
    """One record a protocol, and one of what needs no threshold."""
    free = evaluation.macro(evaluation.per_client(test, labels, extra=("vus",), vus_buffer=WINDOW))
    record = {"protocol": "no threshold"}
    yield record | {m: free.loc[m, "mean"] for m in ("auroc", "ap", "vus_roc", "vus_pr")} | {
        "n_defined": int(free.loc["ap", "n_defined"]), "clients": len(test),
    }  # fmt: skip
    table = evaluation.protocol_table(validation, test, labels, (*PROTOCOLS.values(), *rules))
    if rules:
        table = pd.concat([table, evaluation.protocol_table(test, test, labels, TEST_RULES)])
    for protocol, row in table.drop(columns="auc").iterrows():
        yield {"protocol": protocol} | row.to_dict()


def parameters(method, channels, rank=RANK):
    """How many numbers a client uploads, by the architecture alone."""
    wide, half, quarter = WINDOW * channels, WINDOW * channels // 2, WINDOW * channels // 4
    d = 2 * channels
    attention, forward = 4 * (d * d + d), d * 16 + 16 + 16 * d + d
    encoder = wide * half + half + half * quarter + quarter + quarter * 40 + 40
    decoder = 40 * quarter + quarter + quarter * half + half + half * wide + wide
    return {
        "FedKAD": (wide + LIFT) * rank,
        "DeepSVDD": wide * 128 + 128 * 64 + 64 * 32,
        "LSTM-AE": 4 * 64 * (channels + 64 + 1) + 4 * 64 * (64 + 64 + 1) + 64 * channels + channels,
        "USAD": encoder + 2 * decoder,
        "TranAD": 5 * attention + 3 * forward + d * channels + channels,
    }[method]


def sizes():
    """Bytes of the messages of every method at the paper's sizes; no data are needed."""
    key, records = jax.random.key(0), []
    for name, (clients, channels, rank) in PAPER_SIZES.items():
        series = Series(jnp.zeros((clients, 30, channels)), jnp.ones((clients, 30), bool))
        lift = koopman.random_lift(key, channels, window=WINDOW, size=LIFT)
        algorithms = {"FedKAD": (fedkad(lift, rank=rank), jax.eval_shape(moments.prepare, lift, series))}
        algorithms |= {method: (neural(method, channels, 1), series) for method in NEURAL}
        for method, (alg, of) in algorithms.items():
            state = jax.eval_shape(partial(federation.init, alg), key, of)
            up, down = federation.upload_bytes(alg, state, of), trees.nbytes(state.server)
            records.append({
                "data": name, "method": method, "clients": clients, "channels": channels,
                "parameters": up // 4, "upload": up, "download": down, "round": 2 * round(SHARE * clients) * up,
                "formula": 4 * parameters(method, channels, rank), "paper": PAPER_BYTES.get((method, name), ""),
            })  # fmt: skip
    return pd.DataFrame(records)


def costs(name, fed, calls=300):
    """Seconds of training, scaled to a stride of 1, and microseconds of scoring, of every method in one run."""
    key = jax.random.key(0)
    lift = koopman.random_lift(jax.random.fold_in(key, 1), fed.channels, window=WINDOW, size=LIFT)
    cohort = max(round(SHARE * len(fed.streams)), 1)
    stream = jnp.asarray(max(fed.scaled.test.values(), key=len)[:4096], jnp.float32)
    records, whole, single = {}, {}, {}
    for method in ("FedKAD", *NEURAL):
        if method == "FedKAD":
            alg, rows = fedkad(lift, rank=RANK), WINDOW + 1
            preparing, prepare = _timing.compile_seconds(moments.prepare, lift, fed.stacked)
            began = time.perf_counter()
            train_on, rounds, scale = prepare(), ROUNDS, 1.0
            before = time.perf_counter() - began
        else:
            alg, rows, rounds = neural(method, fed.channels, COST_STRIDE), WINDOW, 1
            train_on, preparing, before = fed.stacked, 0.0, 0.0
        start = jax.block_until_ready(jax.jit(partial(federation.init, alg))(key, train_on))
        program = partial(
            federation.run, alg, sampler=fed.sampler, rounds=rounds, block_size=None if rounds > 1 else 1
        )
        compiling, train = _timing.compile_seconds(program, key, start, train_on, jnp.asarray(0))
        began = time.perf_counter()
        state, history = train()
        seconds = time.perf_counter() - began
        if method != "FedKAD":
            windows_each = [max(len(x) - WINDOW + 1, 0) for x in fed.train.values()]
            scale = ROUNDS * cohort * np.mean(windows_each) / float(history.weight.sum())
        first = jax.tree.map(lambda leaf: leaf[0], (state.clients, train_on))
        detector = jax.jit(alg.deploy)(state.server, *first)
        score = jax.jit(alg.score)
        whole[method] = lambda score=score, detector=detector: score(detector, stream).block_until_ready()
        single[method] = (score, detector, stream[:rows])
        records[method] = {
            "data": name, "method": method, "compile": preparing + compiling, "train": before + scale * seconds,
            "round": 2 * cohort * federation.upload_bytes(alg, start, train_on),
        }  # fmt: skip
        print(name, records[method], flush=True)
    for method, seconds in _timing.interleaved(whole, 5).items():
        records[method]["batched_us"] = 1e6 * seconds / len(stream)
    for method, (score, detector, rows) in single.items():
        samples = []
        for _ in range(calls + 20):
            began = time.perf_counter()
            score(detector, rows).block_until_ready()
            samples.append(time.perf_counter() - began)
        for share in (50, 95, 99):
            records[method][f"p{share}_us"] = 1e6 * np.percentile(samples[20:], share)
    return list(records.values())


def present(name, seed, method, stride):
    """Whether the results hold a method's row already."""
    if not RESULTS.exists():
        return False
    table = pd.read_csv(RESULTS)
    rows = table[(table["data"] == name) & (table["seed"] == seed) & (table["method"] == method)]
    return bool(((rows["stride"] == stride) | (method not in NEURAL)).any())


def run(name, fed, seed, method, stride, made_by):
    """One method on one data set and seed, all its rows stored."""
    began = time.perf_counter()
    if method in NEURAL:
        made = run_neural(method, fed, seed, stride)
    else:
        made = run_fedkad(fed, seed) if method == "FedKAD" else run_controls(fed, seed)
    for row, validation, test, facts in made:
        rules = RULES if row in ("FedKAD", "random") else ()
        own_stride = stride if method in NEURAL else 1
        base = {"data": name, "seed": seed, "method": row, "stride": own_stride}
        records = [base | record for record in judged(validation, test, fed.streams.labels, rules)]
        records[0] |= facts
        store(RESULTS, pd.DataFrame(records), ["data", "seed", "method", "stride"])
        shown = {r["protocol"]: r.get("f1", np.nan) for r in records}
        print(
            f"{name} seed {seed} {row:22} AP {100 * records[0]['ap']:5.1f} AUROC {100 * records[0]['auroc']:5.1f} "
            f"PA%1 {100 * shown['primary']:5.1f} {facts} {time.strftime('%H:%M:%S')}",
            flush=True,
        )
    minutes = round((time.perf_counter() - began) / 60, 1)
    what = f"{name}, {method}, seed {seed}" + (f", stride {stride}" if method in NEURAL else "")
    remember(RECORD, what, made_by | {"minutes": minutes, "clients": len(fed.streams)})


def main():
    """Run, then write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, help="folder with SMAP_MSL and SMD")
    parser.add_argument("--data", nargs="+", default=["MSL", "SMAP"], choices=LOADERS)
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument(
        "--stride", type=int, default=WINDOW, help="rows between training windows of the networks"
    )
    parser.add_argument("--resume", action="store_true", help="leave out what the results hold already")
    parser.add_argument("--costs", action="store_true", help="measure costs instead")
    parser.add_argument("--report", action="store_true", help="only write the page from the files")
    options = parser.parse_args()
    if not options.report:
        facts = provenance(options.root)
        for name in options.data:
            streams = LOADERS[name](options.root)
            fed = Federation(streams)
            store(SKEWS, data.heterogeneity(streams).reset_index().assign(data=name), ["data", "client"])
            if options.costs:
                sizes().to_csv(SIZES, index=False)
                store(COSTS, pd.DataFrame(costs(name, fed)), ["data", "method"])
                remember(RECORD, f"{name}, costs", facts)
                continue
            for seed in options.seeds:
                for method in options.methods:
                    row = "random" if method == "controls" else method
                    if not (options.resume and present(name, seed, row, options.stride)):
                        run(name, fed, seed, method, options.stride, facts)
    from experiments import fedkad_benchmark_page  # not needed to run

    fedkad_benchmark_page.write(HERE)


if __name__ == "__main__":
    main()
