"""Every residual and scale of FedKAD's score, its comparators and the control rows, on real streams.

Writes ``fedkad_scores.csv`` (one row a data set, seed, method and smoothing), ``fedkad_scores.json`` (what
made them) and ``fedkad_scores.md`` beside this file.

    python -m experiments.fedkad_scores --root DIR [--data SMAP MSL SMD] [--seeds 0 1 2]
    python -m experiments.fedkad_scores --report

The first form replaces the rows of the data sets and seeds it runs; both write the page from what is there.
"""

import argparse
import functools
import itertools
import json
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from experiments._results import provenance, remember, store
from fedgeo import data, evaluation, federation
from fedgeo.algorithms import comparators, koopman, moments
from fedgeo.algorithms.fedkad import fedkad
from fedgeo.algorithms.local import local_only
from fedgeo.baselines import controls

HERE = Path(__file__).with_suffix("")
WINDOW, LIFT, RANK, ROUNDS, SHARE, VALIDATION, QUANTILE = 20, 128, 24, 30, 0.25, 0.15, 0.99
SMOOTHING = (
    5,
    WINDOW,
)  # rows; the paper's, and what makes the newest row count as often as the full residual does
RESIDUALS, SCALES = ("full", "newest"), ("none", "variance", "log")
PAPER = "FedKAD: full, none"


@functools.partial(jax.jit, static_argnames="residual")
def score(detectors, x, residual):
    """Raw scores ``(K, T, 3)`` of all clients, one for each of ``SCALES`` from one pass."""

    def one(pair):
        detector, stream = pair
        variance = koopman.counted(residual, "variance", detector, stream.shape[1])[1]

        def scales(squares):
            scaled = squares / variance[None]
            return jnp.stack([jnp.sum(part, axis=1) for part in (squares, scaled, jnp.log1p(scaled))], axis=1)

        return koopman.fold_errors(detector, stream, scales, (3,), 1, residual, "none", 1024)

    return jax.lax.map(one, (detectors, x))


@functools.partial(jax.jit, static_argnames=("alg", "sampler", "rounds"))
def train(alg, key, sums, sampler, rounds):
    """The state after the last round."""
    state = federation.init(alg, key, sums)
    return federation.run(alg, key, state, sums, jnp.asarray(0), sampler=sampler, rounds=rounds)[0]


@functools.partial(jax.jit, static_argnames="alg")
def deploy(alg, server, clients, sums):
    """All clients' detectors, one client at a time."""
    return jax.lax.map(lambda pair: alg.deploy(server, *pair), (clients, sums))


def detectors_of(lift, key, sums, first):
    """Yields ``(name, residual, detectors)``; detectors carry variances, so that every scale can be scored."""
    sampler = federation.uniform(max(round(SHARE * len(sums.pairs)), 1))
    pooled = jax.jit(comparators.pool)(sums)
    one_shot = jax.jit(comparators.pooled_subspace, static_argnums=1)(pooled, RANK)
    servers = {
        "FedKAD": train(fedkad(lift, rank=RANK), key, sums, sampler, ROUNDS).server,
        "FedKAD warm": train(fedkad(lift, rank=RANK, start="warm"), key, sums, sampler, ROUNDS).server,
        "untrained": federation.init(fedkad(lift, rank=RANK), key, sums).server,
        "pooled one-shot": one_shot,
        "centralised OMD": jax.jit(comparators.optimal_modes)(pooled, one_shot),
    }
    alone = local_only(fedkad(lift, rank=RANK, start="warm"))
    locally = train(alone, key, sums, federation.everyone, ROUNDS)
    for residual in RESIDUALS:
        made = fedkad(lift, rank=RANK, residual=residual, scale="variance")
        for name, server in servers.items():
            yield name, residual, deploy(made, server, None, sums)
        yield "local-only warm", residual, deploy(local_only(made), (), locally.clients, sums)
    if not first:
        return  # the lift, which depends on the seed, has no part in autoregression
    regression = jax.jit(
        lambda all_sums: jax.lax.map(lambda one: comparators.autoregression(lift, one), all_sums)
    )(sums)
    yield "ridge VAR", "newest", regression


def smooth(scores, width):
    """Causal moving means, by client."""
    return {
        name: pd.Series(raw).rolling(width, min_periods=1).mean().where(~np.isnan(raw)).to_numpy()
        for name, raw in scores.items()
    }


def judge(scores, on_validation, labels, buffers, smoothing):
    """Per-client macro means of smoothed scores, under thresholds of each client's own and under one for all."""
    scores, on_validation = smooth(scores, smoothing), smooth(on_validation, smoothing)
    own = evaluation.calibrate(on_validation, lambda s: evaluation.quantile(s, QUANTILE))
    one = evaluation.quantile(np.concatenate([s[~np.isnan(s)] for s in on_validation.values()]), QUANTILE)
    frame = evaluation.per_client(scores, labels, own, extra=("vus",), vus_buffer=buffers)
    shared = evaluation.per_client(scores, labels, dict.fromkeys(scores, one))
    return {
        "smoothing": smoothing,
        **{name: frame[name].mean() for name in ("auroc", "ap", "vus_pr", "f1", "alarm_rate")},
        "worst_alarm_rate": frame["alarm_rate"].max(),
        "f1_shared": shared["f1"].mean(),
        "alarm_rate_shared": shared["alarm_rate"].mean(),
        "worst_alarm_rate_shared": shared["alarm_rate"].max(),
        "silent_clients_shared": int((shared["alarm_rate"] == 0).sum()),
        "clients": int(frame["ap"].notna().sum()),
    }


def run(streams, seed, first):
    """All records of one data set and seed."""
    scaled, _ = data.standardise(streams, validation=VALIDATION)
    fit_on, validation = data.split(scaled.train, VALIDATION)
    stacked = jax.tree.map(jnp.asarray, data.stack_series(fit_on))
    parts = [(jnp.asarray(data.stack_series(part).x), part) for part in (scaled.test, validation)]
    buffers = {name: evaluation.buffer_length(x[:, 0]) for name, x in streams.test.items()}
    records = []

    def add(method, scores, on_validation):
        facts = {"data": streams.name, "seed": seed, "method": method}
        records.extend(
            facts | judge(scores, on_validation, streams.labels, buffers, width) for width in SMOOTHING
        )
        shown = " ".join(f"{100 * record['ap']:.1f}" for record in records[-len(SMOOTHING) :])
        print(*facts.values(), "AP", shown, time.strftime("%H:%M:%S"), flush=True)

    key = jax.random.key(seed)
    lift = koopman.random_lift(jax.random.fold_in(key, 1), stacked.x.shape[-1], window=WINDOW, size=LIFT)
    sums = jax.block_until_ready(moments.prepare(lift, stacked))
    for name, residual, detectors in detectors_of(lift, key, sums, first):
        both = [data.unstack(score(detectors, x, residual), part) for x, part in parts]
        for k, scale in enumerate(SCALES):
            add(f"{name}: {residual}, {scale}", *({c: s[:, k] for c, s in raw.items()} for raw in both))
    for name, fit in controls.stream_controls("", seed).items():
        if name == "random" or first:
            scorers = {
                client: controls.stream_controls(client, seed)["random"] if name == "random" else fit
                for client in streams.names
            }
            fitted = {client: scorers[client](x) for client, x in fit_on.items()}
            add(name, *({c: fitted[c](x) for c, x in part.items()} for _, part in parts))
    return records


def chosen(means, sets):
    """The FedKAD setting with the best mean rank of average precision over some data sets."""
    own = means[[name.startswith("FedKAD") for name, _ in means.index]]
    return own[sets].rank(ascending=False).mean(axis=1).idxmin()


def label(setting):
    """A setting in words."""
    return f"{setting[0]}, smoothing {setting[1]}"


def page(table, made_by):
    """The Markdown page, from the CSV's frame."""
    by = ["method", "smoothing"]
    means = 100 * table.pivot_table(index=by, columns="data", values="ap", sort=False)
    sds = 100 * table.pivot_table(index=by, columns="data", values="ap", aggfunc="std", sort=False)
    sds = sds.reindex(index=means.index, columns=means.columns)
    aucs, volumes = (
        100 * table.pivot_table(index=by, columns="data", values=metric, sort=False)
        for metric in ("auroc", "vus_pr")
    )
    sets = ["SMAP", "MSL", "SMD"]
    means = means[sets]
    shown = pd.DataFrame(index=means.index)
    for name in sets:
        pairs = zip(means[name], sds[name], strict=True)
        shown[f"AP {name}"] = [f"{m:.1f}" + ("" if np.isnan(sd) else f"±{sd:.1f}") for m, sd in pairs]
    shown["AP mean"] = means.mean(axis=1).map("{:.1f}".format)
    for name in sets:
        shown[f"VUS-PR {name}"] = volumes[name].map("{:.1f}".format)
    for name in sets:
        shown[f"AUROC {name}"] = aucs[name].map("{:.1f}".format)

    average = means.mean(axis=1)
    paper, default = average[PAPER, SMOOTHING[0]], chosen(means, sets)
    controls_ = {name: average[name, SMOOTHING[0]] for name in ("row norm", "window PCA")}
    held_out = {name: chosen(means, [other for other in sets if other != name]) for name in sets}
    honest = np.mean([means.loc[setting, name] for name, setting in held_out.items()])
    goal = max(1.1 * paper, *controls_.values())
    rule = pd.DataFrame(
        {
            "chosen on the other two": [label(held_out[name]) for name in sets],
            "its AP": [f"{means.loc[held_out[name], name]:.1f}" for name in sets],
            "paper's residual": [f"{means.loc[(PAPER, SMOOTHING[0]), name]:.1f}" for name in sets],
        },
        index=pd.Index(sets, name="data set"),
    )
    seeds = "; ".join(
        f"{name} {', '.join(map(str, sorted(table.loc[table['data'] == name, 'seed'].unique())))}"
        for name in sets
    )
    versions = next(iter(made_by.values()))["versions"]
    runs = "\n".join(
        f"- {name}: `{facts['command']}`, commit {facts['commit']}, {facts['time']}, {facts['minutes']} min, "
        f"{facts['clients']} clients"
        for name, facts in sorted(made_by.items())
    )
    verdict = "reached" if honest >= goal else "**not reached**"
    parts = [
        "# Scores of FedKAD, its comparators and the control rows",
        f"Average precision, VUS-PR and AUROC in percent, of each client's test stream alone, then the mean over "
        f"clients, then over seeds ({seeds}; ± is their standard deviation; rows without it depend on no seed). "
        f"W = {WINDOW}, d_lift = {LIFT}, r = {RANK}, {ROUNDS} rounds, {SHARE:.0%} of the clients a round; SMD is 23 of "
        "its 28 machines. Every row is smoothed by the same causal mean, of 5 rows as in the paper and of W. VUS-PR "
        "has a buffer of each client's own, the period of its first channel (125 rows where there is none).",
        shown.reset_index().to_markdown(index=False, disable_numparse=True),
        "## Which score by default",
        "The goal: mean average precision at least 10 % (relative) above the paper's residual (FedKAD: full, none, "
        "smoothing 5), and above window PCA and the row norm. The rule: of the FedKAD rows, the one with the best mean "
        "rank of average precision over the data sets other than the one it is judged on, so no set's labels choose "
        "its own score.",
        rule.to_markdown(disable_numparse=True),
        f"So chosen, the mean is {honest:.1f}; the paper's residual has {paper:.1f} "
        f"({100 * (honest / paper - 1):+.1f} %), the row norm {controls_['row norm']:.1f}, window PCA "
        f"{controls_['window PCA']:.1f} (smoothing 5). The goal is {verdict} by this rule. Over all three sets the "
        f"best mean rank is that of *{label(default)}*, mean {average[default]:.1f} "
        f"({100 * (average[default] / paper - 1):+.1f} %); that figure has seen the labels. At the same smoothing of "
        f"{default[1]} the paper's residual has {average[PAPER, default[1]]:.1f}, the row norm "
        f"{average['row norm', default[1]]:.1f} and window PCA {average['window PCA', default[1]]:.1f}.",
        READING,
        "## One threshold for each client, or one for all",
        f"F1 and the share of test rows that raise an alarm, in percent. The threshold is the {QUANTILE:.0%} quantile "
        "of the validation scores: of each client's own, or of all clients' together. *Worst* is the client with most "
        "alarms, *silent* the number of clients without any under the shared threshold.",
        thresholds(table, sets, default).to_markdown(index=False, disable_numparse=True),
        THRESHOLDS,
        "## Made by",
        runs,
        ", ".join(f"{name} {version}" for name, version in versions.items()),
    ]
    return "\n\n".join(parts) + "\n"


def thresholds(table, sets, default):
    """Per-client thresholds beside a shared one, for the paper's score, the default and the controls."""
    rows = [
        (PAPER, SMOOTHING[0]),
        default,
        *((name, SMOOTHING[0]) for name in ("window PCA", "row norm", "random")),
    ]
    means = table.groupby(["data", "method", "smoothing"]).mean(numeric_only=True)
    percent = "{:.1f}".format
    return pd.DataFrame(
        {
            "data set": name,
            "score": label(row),
            "F1, own": percent(100 * (at := means.loc[(name, *row)])["f1"]),
            "F1, shared": percent(100 * at["f1_shared"]),
            "alarms, own": percent(100 * at["alarm_rate"]),
            "alarms, shared": percent(100 * at["alarm_rate_shared"]),
            "worst, own": percent(100 * at["worst_alarm_rate"]),
            "worst, shared": percent(100 * at["worst_alarm_rate_shared"]),
            "silent": f"{at['silent_clients_shared']:.0f}",
        }
        for name in sets
        for row in rows
    )


READING = """\
What was tried, and how to read it.

- From a random start, thirty rounds of the paper's settings hardly move the subspace: the rows *FedKAD* and *untrained*
  are level. *FedKAD warm* starts from federated power iterations; the pooled one-shot subspace (one upload), and
  centralised optimal mode decomposition, are level with it. What is gained here is gained by the score.
- Dividing by each entry's training variance helps most on MSL, where quiet channels matter, and costs a little of SMD.
  The logarithm is worse with the full residual of a random subspace, and mixed elsewhere.
- The newest row is counted W times by the full residual, in W successive windows. So the newest residual is to be
  compared at a smoothing of W. Smoothing the full residual by W as well lowers it on SMD.
- The rule keeps a set's labels from choosing its own score, but not from the list of candidates: the reference
  figures for these sets were known, and the smoothing of W was added after a first look at SMAP and MSL at both widths.
  A set that nobody has looked at will tell more.
- The floors of the variances (1 % of their mean) were set before any run and not changed."""

THRESHOLDS = """\
Neither rule is ahead everywhere. A threshold of each client's own gives FedKAD the better F1 on SMAP and MSL, a shared
one on SMD, and with a shared one about half of the alarms are raised on all three; it leaves clients whose scores are
small silent. Under both, detectors raise many times the 1 % of alarms that the quantile promises, and some clients
never stop: their test stream is not like the rows that the threshold was set on. The random score, which knows no
stream, keeps the promise."""


def main():
    """Run, write the CSV and the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, help="folder with SMAP_MSL and SMD")
    parser.add_argument("--data", nargs="+", default=["SMAP", "MSL", "SMD"], choices=["SMAP", "MSL", "SMD"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--report", action="store_true", help="only write the page from the CSV")
    options = parser.parse_args()
    path, record = HERE.with_suffix(".csv"), HERE.with_suffix(".json")
    for name, seed in () if options.report else itertools.product(options.data, options.seeds):
        streams = {"SMAP": data.smap, "MSL": data.msl, "SMD": data.smd}[name](options.root)
        began = time.perf_counter()
        made = pd.DataFrame(run(streams, seed, seed == options.seeds[0]))
        store(path, made, ["data", "seed"])
        minutes = round((time.perf_counter() - began) / 60, 1)
        facts = provenance(options.root) | {"clients": len(streams), "minutes": minutes}
        remember(record, f"{name}, seed {seed}", facts)
    table = pd.read_csv(path)
    if missing := {"SMAP", "MSL", "SMD"} - set(table["data"]):
        print(
            "no page yet: its rule chooses a score for each set on the other two, and there is no", *missing
        )
    else:
        HERE.with_suffix(".md").write_text(page(table, json.loads(record.read_text())))


if __name__ == "__main__":
    main()
