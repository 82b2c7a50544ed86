"""Counts against hand counts and XLA's own, complete output, a trace that opens, and errors that say what to do."""

import dataclasses
import gzip
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedgeo import cli, federation, profile
from fedgeo.algorithms import koopman, moments
from fedgeo.algorithms.fedkad import fedkad
from fedgeo.protocol import Series

SMD = profile.FedKADSizes()
SMALL = profile.FedKADSizes(
    clients=3, rows=60, channels=2, window=3, lift_size=4, rank=2, inner_steps=2, rounds=4
)
A, B = jnp.ones((8, 5)), jnp.ones((5, 3))


def flops(function, *arguments, **options):
    return profile.operations(function, *arguments, **options).flops


def test_products_are_counted_by_hand():
    one = 2 * 8 * 5 * 3
    assert flops(jnp.matmul, A, B) == one
    assert flops(lambda a, b: jnp.tanh(a) @ b + 1, A, B) == one  # elementwise arithmetic is no product
    assert flops(jax.vmap(jnp.matmul), jnp.ones((7, 8, 5)), jnp.ones((7, 5, 3))) == 7 * one
    assert (
        flops(lambda a, b: jnp.einsum("kti,kij->ktj", a, b), jnp.ones((2, 8, 5)), jnp.ones((2, 5, 3)))
        == 2 * one
    )
    assert flops(jax.grad(lambda a, b: jnp.sum(jnp.sin(a @ b)), (0, 1)), A, B) == 3 * one
    assert flops(jax.jit(jnp.matmul), A, B) == one
    assert flops(lambda a: jnp.linalg.cholesky(a), jnp.eye(6)) == 6**3 / 3
    kernel = jnp.ones((4, 3, 5))  # (outputs, inputs, width)
    series = jnp.ones((2, 3, 20))
    assert flops(lambda x: jax.lax.conv_general_dilated(x, kernel, (1,), "VALID"), series) == 2 * (
        2 * 4 * 16
    ) * (3 * 5)


def test_loops_count_as_often_as_they_run():
    square = jnp.ones((4, 4))
    one = 2 * 4**3

    def scanned(a):
        return jax.lax.scan(lambda c, _: (c @ a, None), a, length=7)[0]

    def nested(a):
        return jax.lax.scan(lambda c, _: (scanned(c), None), a, length=3)[0]

    def until(a, n):
        return jax.lax.fori_loop(0, n, lambda _, c: c @ a, a)

    def either(a, n):
        return jax.lax.cond(n > 0, lambda c: c @ c @ c, lambda c: c @ c, a)

    assert flops(scanned, square) == 7 * one
    assert flops(nested, square) == 21 * one
    assert flops(jax.grad(lambda a: jnp.sum(scanned(a))), square) == 3 * 7 * one
    count = profile.operations(until, square, 5, turns=5)
    assert (count.flops, count.open_loops) == (5 * one, 1)
    assert profile.operations(scanned, square).open_loops == 0
    assert flops(either, square, 1) == 2 * one
    assert profile.operations(lambda a: jnp.linalg.svd(a)[1], square).uncounted == {"svd"}


def test_xla_agrees_where_there_is_no_loop_and_counts_a_loop_once():
    a, b = jnp.ones((64, 48)), jnp.ones((48, 32))

    def of_xla(function, *arguments):
        return profile._analysed(jax.jit(function).lower(*arguments).compile())[0]["flops"]

    assert of_xla(jnp.matmul, a, b) == pytest.approx(flops(jnp.matmul, a, b), rel=0.01)
    square = jnp.ones((64, 64))

    def loop(c):
        return jax.lax.scan(lambda c, _: (c @ square, None), c, length=50)[0]

    assert flops(loop, square) == 50 * 2 * 64**3
    assert of_xla(loop, square) == pytest.approx(2 * 64**3, rel=0.01)


def round_of(sizes):
    """FedKAD's round at some size, as a function and shapes; nothing is allocated."""
    lift = jax.eval_shape(
        lambda key: koopman.random_lift(key, sizes.channels, window=sizes.window, size=sizes.lift_size),
        jax.random.key(0),
    )
    series = Series(
        jax.ShapeDtypeStruct((sizes.clients, sizes.rows, sizes.channels), jnp.float32),
        jax.ShapeDtypeStruct((sizes.clients, sizes.rows), jnp.bool),
    )
    sums = jax.eval_shape(moments.prepare, lift, series)
    alg = fedkad(lift, rank=sizes.rank, inner_steps=sizes.inner_steps)
    state = jax.eval_shape(lambda sums: federation.init(alg, jax.random.key(0), sums), sums)
    sampler = federation.uniform(sizes.cohort())

    def one_round(key, state, sums):
        cohort = sampler(key, sizes.clients, jnp.asarray(0))
        return federation.fed_round(alg, key, state, sums, cohort)

    return one_round, (jax.random.key(0), state, sums), lift, series


def by_hand(sizes):
    """A round of FedKAD from its equations, in sums and products of matrices (D, D) and (D, r)."""
    wide = sizes.window * sizes.channels
    size, rank, steps = wide + sizes.lift_size, sizes.rank, sizes.inner_steps
    moments_times_frame = 3 * 2 * size**2 * rank  # [A; B; B'] P
    thin = 2 * size * rank**2  # (r, D) (D, r) or (D, r) (r, r)
    operator = 2 * thin  # eq. 10: P'AP and P'BP
    gradient = 3 * thin  # eq. 18: A P Q'Q, B P Q', B' P Q
    projection = 2 * thin  # eq. 19: P'G and P (P'G)
    retraction = 2 * thin  # the Gram matrix, and its inverse factor
    step = gradient + projection + retraction + moments_times_frame
    # eq. 8 and what a round reports: two gradients, three projections, the loss and |P'P - I|.
    reported = 2 * gradient + 3 * projection + 2 * thin + thin
    return sizes.cohort() * (moments_times_frame + operator + steps * step + reported)


def test_a_round_of_fedkad_is_within_a_tenth_of_the_hand_count():
    one_round, arguments, *_ = round_of(SMD)
    count = profile.operations(one_round, *arguments)
    assert by_hand(SMD) == pytest.approx(5.14e9, rel=0.01)
    assert count.flops == pytest.approx(by_hand(SMD), rel=0.03)
    # The leading term alone, 6 D^2 r for the start and each of the C steps of m clients.
    assert count.flops == pytest.approx(6 * 888**2 * 24 * (5 + 1) * 7, rel=0.1)
    assert count.open_loops == 0


def test_all_rounds_are_so_many_rounds():
    one_round, arguments, *_ = round_of(SMALL)
    lift = koopman.random_lift(jax.random.key(0), SMALL.channels, window=SMALL.window, size=SMALL.lift_size)
    alg = fedkad(lift, rank=SMALL.rank, inner_steps=SMALL.inner_steps)

    def run(key, state, sums):
        options = dict(sampler=federation.uniform(SMALL.cohort()), rounds=SMALL.rounds)
        return federation.run(alg, key, state, sums, jnp.asarray(0), **options)

    assert flops(run, *arguments) == SMALL.rounds * flops(one_round, *arguments) > 0


def test_moments_are_within_a_tenth_of_the_hand_count():
    """Lagged products of the windowless form: a block row of the stream, the lift, and their cross moments."""
    *_, lift, series = round_of(SMD)
    channels, hidden, wide = SMD.channels, SMD.lift_size, SMD.window * SMD.channels
    a_row = channels * (wide + channels) + hidden * wide + hidden * (wide + 2 * channels) + 2 * hidden**2
    want = 2 * SMD.clients * SMD.rows * a_row
    assert flops(moments.prepare, lift, series) == pytest.approx(want, rel=0.1)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """A profile of a small training, with its trace."""
    return profile.profile_fedkad(SMALL, repeats=2, trace=tmp_path_factory.mktemp("trace"))


def test_every_stage_is_measured(found):
    stages = {stage.name: stage for stage in found.stages}
    assert list(stages) == [
        "second moments", "start", "4 rounds", "one round", "local work", "aggregation", "deployment", "scoring"
    ]  # fmt: skip
    for stage in found.stages:
        assert stage.compile_seconds > 0
        assert stage.run_seconds > 0
        assert np.isfinite([stage.flops, stage.rate_share, stage.time_share]).all()
        assert stage.xla_flops > 0
        assert stage.xla_bytes > 0
        assert min(stage.argument_bytes, stage.output_bytes) > 0
        assert stage.temporary_bytes >= 0
    assert [stages[name].part_of for name in ("one round", "local work", "aggregation")] == [
        "4 rounds", "one round", "one round"
    ]  # fmt: skip
    assert sum(stage.time_share for stage in found.stages if not stage.part_of) == pytest.approx(1)
    assert stages["4 rounds"].flops == pytest.approx(4 * stages["one round"].flops)
    # What the server itself multiplies is next to nothing: the round's work is the cohort's.
    assert stages["local work"].flops == stages["one round"].flops - stages["aggregation"].flops
    stage = stages["scoring"]
    assert stage.rate_share == pytest.approx(stage.flops / stage.run_seconds / found.matmul_flops_per_second)
    assert found.peak_bytes > 1e7
    assert {"jax", "device", "processors", "dtype"} <= set(found.environment)
    assert any("the body of a loop once" in note for note in found.notes)


def test_the_trace_opens(found):
    with gzip.open(found.trace, "rt") as file:
        events = json.load(file)["traceEvents"]
    names = {event.get("name") for event in events}
    assert {stage.name for stage in found.stages} <= names


def test_plain_values_and_a_table_hold_it_all(found):
    record = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert [stage["name"] for stage in record["stages"]] == [stage.name for stage in found.stages]
    assert record["settings"]["cohort"] == 1
    table = profile.shown(found)
    assert [name.strip() for name in table.index] == [stage.name for stage in found.stages]
    assert table.index[4] == "    local work"
    assert not table.isin(["nan", "unknown"]).to_numpy().any()


class Counted:
    """Stands in for what compiles and runs: every stage is traced and counted alone."""

    def __init__(self, *, turns=1):
        self.turns, self.stages = turns, {}

    def add(self, name, function, *arguments, part_of=""):
        self.stages[name] = profile.operations(function, *arguments, turns=self.turns)
        return jax.eval_shape(function, *arguments)

    def measure(self, method, settings, repeats, trace):
        return self.stages, settings


BATCHES = profile.GeodesicSizes(
    clients=2, rows=40, channels=3, latent=4, width=8, blocks=1, batch_size=16, epochs=2, rounds=3
)


@pytest.mark.parametrize("protocol", ["iterative", "one-shot"])
def test_geodesic_svdd_counts_its_batches(monkeypatch, protocol):
    monkeypatch.setattr(profile, "_Bench", Counted)
    stages, settings = profile.profile_geodesic(dataclasses.replace(BATCHES, protocol=protocol))
    epochs = 2 if protocol == "one-shot" else 1
    assert ("3 rounds" in stages) == (protocol == "iterative")
    assert settings["steps_per_epoch"] == 3
    # Backwards costs twice forwards, but for the inputs, of which no gradient is taken.
    dense = [3 * 8, *[8 * 8] * 2, 8 * 4]
    a_row = 6 * sum(dense) - 2 * dense[0]
    want = BATCHES.clients * epochs * 3 * BATCHES.batch_size * a_row
    assert stages["local work"].flops == pytest.approx(want, rel=0.1)
    assert stages["one round"].flops == stages["local work"].flops + stages["aggregation"].flops
    assert stages["one round"].open_loops == 1


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["iterative", "one-shot"])
def test_geodesic_svdd_is_measured(protocol):
    found = profile.profile_geodesic(dataclasses.replace(BATCHES, protocol=protocol), repeats=1)
    assert all(stage.run_seconds > 0 for stage in found.stages)
    assert any("counted at 3 turns" in note for note in found.notes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clients": 0}, "clients must be at least 1, got 0"),
        ({"rounds": 0}, "rounds must be at least 1, got 0"),
        ({"lift_size": -1}, "lift_size must be at least 0, got -1"),
        ({"rows": 3}, "rows must be more than the window of 3"),
        ({"rank": 99}, "rank must lie between 1 and the lifted dimension D = 10, got 99"),
        ({"participation": 1.5}, r"participation is a share of the clients in \(0, 1\], got 1.5"),
    ],
)
def test_sizes_out_of_range_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        profile.profile_fedkad(profile.FedKADSizes(**{**SMALL.__dict__, **change}))


def test_other_bad_arguments_are_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"a trace cannot be kept in .*file"):
        profile.profile_fedkad(SMALL, trace=tmp_path / "file")
    with pytest.raises(ValueError, match="repeats must be at least 1"):
        profile.profile_geodesic(repeats=0)
    with pytest.raises(ValueError, match='protocol must be "iterative" or "one-shot"'):
        profile.profile_geodesic(profile.GeodesicSizes(protocol="both"))


def call(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["fedgeo", "profile", *map(str, words)])
    cli.main()


def test_the_command_prints_one_object(monkeypatch, capsys, found):
    monkeypatch.setattr(profile, "profile_fedkad", lambda sizes, repeats, trace: found)
    call(monkeypatch, "fedkad", "--json")
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(found.as_json()))
    call(monkeypatch, "fedkad")
    out = capsys.readouterr().out
    for part in ("local work", "GFLOP/s", "peak memory", "Trace:", "cost_analysis()"):
        assert part in out


def test_a_bad_size_is_a_message(monkeypatch, capsys):
    with pytest.raises(SystemExit) as exit_info:
        call(monkeypatch, "fedkad", "--clients", 0)
    assert exit_info.value.code == 2
    assert "clients must be at least 1" in capsys.readouterr().err
