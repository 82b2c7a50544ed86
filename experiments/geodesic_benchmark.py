"""Section IV of the Geodesic-SVDD paper: nine methods, controls, five tables, four skews, and the statistics.

Writes beside this file ``geodesic_benchmark.csv`` (one row a data set, skew, method, seed and class held normal),
``geodesic_benchmark_curve.csv`` (AUROC against bytes sent), ``geodesic_benchmark_variants.csv`` (other readings),
``geodesic_benchmark.json`` (what made them), ``geodesic_benchmark.md`` and pictures.

    python -m experiments.geodesic_benchmark --root DIR [--data iris ...] [--alpha iid 0.5 0.1 0.01] [--seeds 0 1 2 3 4]
                                             [--methods "Geodesic (OS)" ...] [--rows 20000]
    python -m experiments.geodesic_benchmark --root DIR --variant "Adam anew" --methods "Geodesic (Iter)"
    python -m experiments.geodesic_benchmark --curve     train the iterative protocol in blocks for the plot of bytes
    python -m experiments.geodesic_benchmark --report    only write the page, from the files

The first form replaces the rows of the data sets, skews, methods and seeds that it runs. The page needs the extra
``fedgeo[stats]``. References that train on pooled rows depend on no skew and run in the IID setting alone.
"""

import argparse
import dataclasses
import json
import os
import time
from pathlib import Path

# Two thirds of the time of the small tables is compilation, and this halves it without slowing the programs down.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=1")

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd

from experiments import geodesic_page
from experiments._results import provenance, remember, store
from fedgeo import data, evaluation, federation, runs
from fedgeo.algorithms.fedavg import fedavg
from fedgeo.algorithms.one_shot import one_shot
from fedgeo.models.encoder import geodesic_svdd
from fedgeo.runs import tables

HERE = Path(__file__).with_suffix("")
CURVE = HERE.with_name("geodesic_benchmark_curve.csv")
VARIANTS = HERE.with_name("geodesic_benchmark_variants.csv")
SETS, ALPHAS = geodesic_page.SETS, geodesic_page.ALPHAS
POOLED = (
    "centralised Deep SVDD",
    "centralised",
    "centralised k-NN",
    "random",
    "row norm",
    "PCA",
    "Mahalanobis",
)
METHODS = (
    "Geodesic (OS)", "Geodesic (OS, lerp)", "Geodesic (OS, no mixup)", "Geodesic (Iter)", "Geodesic (Iter, lerp)",
    "FedAvg (FE)", "FedAvg (MLP)", "FedAvg (MLP, SM)", "Fed-Forest", "Fed-XGB", "untrained encoder", *POOLED,
)  # fmt: skip
ALPHA = {"alpha": str}  # "0.50" and "iid" are names
KEYS = ["data", "alpha", "method", "seed", "unit"]
COLUMNS = [
    *KEYS, "auroc", "ap", "youden_accuracy", "youden_precision", "youden_recall", "youden_f1", "precision", "recall",
    "f1", "alarm_rate", "distinct_scores", "distinct_rows", "effective_rank", "sd_squared_distance",
]  # fmt: skip


def load(name, root, rows):
    """A table by its name; of Covertype a random sample, or all of it for 0 rows."""
    loaders = {
        "iris": data.iris,
        "breast-cancer": data.breast_cancer,
        "titanic": lambda: data.titanic(root),
        "adult": lambda: data.adult(root),
        "covertype": lambda: data.covertype(root, rows=rows or None),
    }
    return loaders[name]()


def run(table, name, alpha, methods, seeds, **reading):
    """Rows of the CSV for one setting, and what made them."""
    began = time.perf_counter()
    chosen = tuple(m for m in methods if alpha == "iid" or m not in POOLED)
    settings = runs.GeodesicSettings(
        alpha=None if alpha == "iid" else float(alpha), methods=chosen, **reading
    )
    if not chosen:
        return pd.DataFrame(columns=COLUMNS), {}

    def on_step(step, steps):
        print(f"  {time.perf_counter() - began:6.1f} s  {step}", flush=True)

    result = runs.run_geodesic(table, settings, seeds=seeds, on_step=on_step)
    frame = result.units.assign(data=name, alpha=alpha).reindex(columns=COLUMNS)
    facts = {
        "seconds": round(time.perf_counter() - began, 1),
        "compiling": round(float(result.seconds["compile"].sum()), 1),
        "rows": len(table),
        "features": len(table.features),
        "classes": len(table.classes),
        "seeds": list(seeds),
        "notes": result.notes,
        "settings": dataclasses.asdict(settings) | {"methods": ()},
        "traffic": tables.traffic(settings, len(table.features)),
    }
    return frame, facts


def setting(table, alpha, seeds):
    """Every class held normal under every seed: rows ``(B, K, N, F)``, test rows ``(B, Q, F)``, labels ``(B, Q)``."""
    settings = runs.GeodesicSettings(alpha=None if alpha == "iid" else float(alpha))
    tasks = [task for seed in seeds for task in tables.tasks_of(table, settings, seed)]
    length = max(sum(map(len, task.clients)) for task in tasks)
    rows = tables.stack_each([task.clients for task in tasks], length)
    test = jnp.asarray(np.stack([task.test.x for task in tasks]), jnp.float32)
    return rows, test, [task.test.anomalous for task in tasks]


def curve(table, name, alphas, seeds, block=5):
    """AUROC of both protocols against bytes, the iterative one after every ``block`` rounds; one row a seed."""
    settings = runs.GeodesicSettings()
    sent = tables.traffic(settings, len(table.features))
    model, adam = geodesic_svdd(), optax.adam(settings.learning_rate)
    every_round = fedavg(
        model, optimizer=adam, epochs=1, batch_size=settings.batch_size, stateful=settings.stateful
    )
    at_once = one_shot(model, optimizer=adam, epochs=settings.one_shot_epochs, batch_size=settings.batch_size)

    def advance(alg, rounds):
        def program(key, rows, test, state, first):
            run = federation.run(alg, key, state, rows, first, sampler=federation.everyone, rounds=rounds)
            server = run[0].server
            return run[0], alg.score(server, test)

        return jax.jit(jax.vmap(program, in_axes=(0, 0, 0, 0, None)))

    some_rounds, one_round = advance(every_round, block), advance(at_once, 1)
    starts = [
        jax.jit(jax.vmap(lambda key, rows, alg=alg: federation.init(alg, key, rows)))
        for alg in (every_round, at_once)
    ]
    records = []
    for alpha in alphas:
        rows, test, labels = setting(table, alpha, seeds)
        keys = jax.random.split(jax.random.key(0), len(labels))

        def add(protocol, megabytes, scores, alpha=alpha, labels=labels):
            values = [evaluation.auroc(s, y) for s, y in zip(np.asarray(scores), labels, strict=True)]
            by_seed = np.reshape(values, (len(seeds), -1)).mean(axis=1)
            facts = {"data": name, "alpha": alpha, "protocol": protocol, "megabytes": megabytes}
            records.extend(facts | {"seed": seed, "auroc": v} for seed, v in zip(seeds, by_seed, strict=True))

        warm_up = settings.clients * 2 * sent["warm_up"]
        state = starts[0](keys, rows)
        for first in range(0, settings.rounds, block):
            state, scores = some_rounds(keys, rows, test, state, jnp.asarray(first))
            per_round = settings.clients * (sent["upload"] + sent["broadcast"])
            add("iterative", ((first + block) * per_round + warm_up) / 1e6, scores)
        _, scores = one_round(keys, rows, test, starts[1](keys, rows), jnp.asarray(0))
        add("one-shot", (settings.clients * sent["upload"] + warm_up) / 1e6, scores)
    return pd.DataFrame(records)


def main():
    """Run, write the CSV files and the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--root", type=Path, help="folder with titanic, adult and covertype; FEDGEO_DATA by default"
    )
    parser.add_argument("--data", nargs="+", default=SETS[:4], choices=SETS)
    parser.add_argument("--alpha", nargs="+", default=ALPHAS, choices=ALPHAS)
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument(
        "--rows", type=int, default=20_000, help="sample of Covertype; 0 for all 581,012 rows"
    )
    parser.add_argument(
        "--variant",
        choices=geodesic_page.VARIANTS,
        help="another reading of the iterative protocol, into a CSV of its own",
    )
    parser.add_argument("--curve", action="store_true", help="only AUROC against bytes")
    parser.add_argument("--report", action="store_true", help="only write the page from the files")
    options = parser.parse_args()
    federation.one_device_a_core()
    path, record = HERE.with_suffix(".csv"), HERE.with_suffix(".json")
    made_by = provenance(options.root)
    if options.curve:
        for name in ("breast-cancer", "iris"):
            frame = curve(load(name, None, 0), name, ("iid", "0.01"), options.seeds)
            store(CURVE, frame, ["data", "alpha"], ALPHA)
            remember(record, f"bytes, {name}", made_by)
    for name in () if options.report or options.curve else options.data:
        table = load(name, options.root, options.rows)
        for alpha in options.alpha:
            print(f"{name}, {alpha}", flush=True)
            reading = geodesic_page.VARIANTS[options.variant] if options.variant else {}
            frame, facts = run(table, name, alpha, options.methods, options.seeds, **reading)
            if facts and options.variant:
                store(VARIANTS, frame.assign(variant=options.variant), [*KEYS[:4], "variant"], ALPHA)
                remember(record, f"{name}, {alpha}, {options.variant}", made_by | facts)
            elif facts:
                store(path, frame, KEYS[:4], ALPHA)
                label = "" if "Geodesic (Iter)" in options.methods else ", other methods"
                remember(record, f"{name}, {alpha}{label}", made_by | facts)
                print(f"{name}, {alpha}: {facts['seconds']} s, compiling {facts['compiling']} s", flush=True)
    units = pd.read_csv(path, dtype=ALPHA)
    curves, variants = (pd.read_csv(p, dtype=ALPHA) if p.exists() else None for p in (CURVE, VARIANTS))
    if geodesic_page.sets_of(geodesic_page.summary(units)):
        geodesic_page.write(units, json.loads(record.read_text()), curves, variants)


if __name__ == "__main__":
    main()
