import signal

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedgeo import federation
from fedgeo.protocol import FedState
from tests.federation import common
from tests.federation.test_engine import averaging

KEY = jax.random.key(0)
DATA = jnp.arange(5.0)


def fit(
    folder, rounds, *, data=DATA, key=KEY, alg=None, every=3, sampler=None, quorum=1, state=None, **options
):
    checkpoints = federation.Checkpoints(folder, every=every, **options)
    return federation.fit(
        alg or averaging(), key, data, rounds=rounds, sampler=sampler or federation.uniform(3), quorum=quorum,
        state=state, checkpoints=checkpoints,
    )  # fmt: skip


def test_a_run_goes_on_where_it_was(tmp_path):
    want = fit(tmp_path / "whole", 10)
    plain = federation.fit(averaging(), KEY, DATA, rounds=10, sampler=federation.uniform(3))
    chex.assert_trees_all_equal(want, plain)
    fit(tmp_path / "part", 6)
    got = fit(tmp_path / "part", 10)
    chex.assert_tree_all_finite(got[0])
    chex.assert_trees_all_equal(got, want)
    again = fit(tmp_path / "part", 10)  # nothing is left to do
    chex.assert_trees_all_equal(again, want)
    with pytest.raises(ValueError, match="the checkpoints hold 10 rounds, but 6 were asked for"):
        fit(tmp_path / "part", 6)


def test_only_the_newest_are_kept(tmp_path):
    fit(tmp_path, 12, keep=2)
    assert sorted(int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()) == [9, 12]


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"key": jax.random.key(1)}, "key differ"),
        ({"data": DATA + 1}, "data_checksums differ"),
        ({"data": jnp.arange(6.0)}, "data, data_checksums, sampler differ"),
        ({"every": 2}, "every differ"),
        ({"about": {"rho": 2.0}}, "about differ"),
        ({"quorum": 2}, r"quorum differ \(quorum 1 there and 2 here\)"),
        (
            {"sampler": federation.uniform(4)},
            r"cohort_size, sampler differ \(cohort_size 3 there and 4 here\)",
        ),
        ({"sampler": federation.with_dropout(federation.uniform(3))}, "sampler differ"),
        (
            {"state": FedState(jnp.ones(()), jnp.zeros(5))},
            r"start differ \(start init there and a given state \(.*\) here\)",
        ),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, change, differs):
    fit(tmp_path, 3)
    with pytest.raises(federation.CheckpointError, match=f"is of another run: {differs}"):
        fit(tmp_path, 6, **change)
    assert np.isfinite(fit(tmp_path, 6)[0].server)  # nothing was lost


def test_a_checkpoint_of_another_algorithm_is_refused(tmp_path):
    fit(tmp_path, 3)
    other = averaging()
    more = other._replace(
        update=lambda *a: (lambda client, upload, _: (client, upload, {}))(*other.update(*a)),
    )
    with pytest.raises(federation.CheckpointError, match="the state of another algorithm"):
        fit(tmp_path, 6, alg=more)


def ranked(rank):
    """Clients that hold and send vectors of that length."""
    return averaging()._replace(
        init=lambda key, data: FedState(jnp.zeros(rank), jnp.zeros((len(data), rank))),
        update=lambda key, server, client, data_k: (client + 1, data_k + jnp.zeros(rank), {}),
    )


@pytest.mark.parametrize("rounds", [3, 6])
def test_a_checkpoint_of_other_shapes_is_refused(tmp_path, rounds):
    fit(tmp_path, 3, alg=ranked(2))
    message = r"server float32\[2\] there and float32\[3\] here; state.clients float32\[5, 2\] there"
    with pytest.raises(federation.CheckpointError, match=message):
        fit(tmp_path, rounds, alg=ranked(3))
    again, _ = fit(tmp_path, 6, alg=ranked(2))
    assert again.server.shape == (2,)


def stepping(size):
    """Two algorithms that only a number tells apart."""
    return averaging()._replace(
        update=lambda key, server, client, data_k: (client + 1, server + size * (data_k - server), {})
    )


def test_a_checkpoint_of_another_step_size_is_refused(tmp_path, monkeypatch):
    want = fit(tmp_path, 3, alg=stepping(0.5))
    with pytest.raises(
        federation.CheckpointError, match="another program on the same shapes, for a setting such as"
    ):
        fit(tmp_path, 3, alg=stepping(0.25))
    chex.assert_trees_all_equal(
        fit(tmp_path, 3, alg=stepping(0.5)), want
    )  # another function, the same program
    monkeypatch.setattr(jax, "__version__", "9.9.9")
    fit(tmp_path, 6, alg=stepping(0.25))  # an older program cannot be told from one of another version


def test_a_checkpoint_of_another_dtype_is_refused(tmp_path):
    fit(tmp_path, 3)
    counting = averaging()._replace(init=lambda key, data: FedState(jnp.zeros(()), jnp.zeros(len(data), int)))
    with pytest.raises(federation.CheckpointError, match=r"clients float32\[5\] there and int32\[5\] here"):
        fit(tmp_path, 6, alg=counting)


def test_a_run_from_a_given_state_is_one_of_that_state(tmp_path):
    start = FedState(jnp.zeros(()), 10 * jnp.arange(5.0))
    fit(tmp_path, 3, state=start)
    for other in (None, FedState(jnp.zeros(()), 20 * jnp.arange(5.0))):
        with pytest.raises(federation.CheckpointError, match="is of another run: start differ"):
            fit(tmp_path, 6, state=other)
    got, _ = fit(tmp_path, 6, state=start)
    want, _ = federation.fit(averaging(), KEY, DATA, rounds=6, sampler=federation.uniform(3), state=start)
    chex.assert_trees_all_equal(got, want)
    assert float(got.clients.sum()) == 10 * 10 + 6 * 3


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "remove"])
def test_a_damaged_checkpoint_is_refused_and_the_one_before_still_serves(tmp_path, damage):
    want = fit(tmp_path / "whole", 9)
    fit(tmp_path / "run", 6)
    newest = tmp_path / "run" / "6"
    files = [path for path in newest.rglob("*") if path.is_file() and path.stat().st_size > 0]
    for path in files:
        content = path.read_bytes()
        if damage == "truncate":
            path.write_bytes(content[: len(content) // 2])
        elif damage == "flip":
            path.write_bytes(bytes(255 - byte for byte in content))
        elif damage == "empty":
            path.write_bytes(b"")
        else:
            path.unlink()
    with pytest.raises(federation.CheckpointError, match=r"checkpoint 6 in .* remove it to go on"):
        fit(tmp_path / "run", 9)
    for path in sorted(newest.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    newest.rmdir()
    chex.assert_trees_all_equal(fit(tmp_path / "run", 9), want)


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="every and keep must be at least 1, got 0 and 2"):
        federation.Checkpoints("folder", every=0)
    with pytest.raises(ValueError, match="about holds strings, numbers and lists"):
        federation.Checkpoints("folder", about={"model": lambda x: x})


def test_a_folder_that_cannot_be_is_named_before_any_work(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ValueError, match=r"checkpoints cannot be kept in .*file.* give another folder"):
            fit(path, 3)
        with pytest.raises(ValueError, match=r"records cannot be kept in .*file.* give another folder"):
            federation.Records(path, ["a"])


def same(got, want):
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_sigterm_saves_and_the_next_run_goes_on(tmp_path):
    want = common.run(tmp_path / "want.npz", 12, "--folder", tmp_path / "whole")
    process = common.start(tmp_path / "cut.npz", 12, "--folder", tmp_path / "cut", "--slow")
    assert process.stdout.readline().strip() == "2"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=100)
    assert process.returncode == 143
    assert not (tmp_path / "cut.npz").exists()
    same(common.run(tmp_path / "cut.npz", 12, "--folder", tmp_path / "cut"), want)
    whole, cut = ((tmp_path / f"{name}-records" / "clients.csv").read_text() for name in ("whole", "cut"))
    assert whole == cut
    assert whole.count("\n") == 1 + 12 * 6


@pytest.mark.slow
@pytest.mark.parametrize(("number", "seconds"), [(1, 0.0), (2, 0.02), (4, 0.05), (5, 0.1)])
def test_a_run_killed_while_it_saves_goes_on(tmp_path, number, seconds):
    want = common.run(tmp_path / "want.npz", 12, "--folder", tmp_path / "whole")
    process = common.start(
        tmp_path / "cut.npz", 12, "--folder", tmp_path / "cut", "--die-in-save", number, seconds
    )
    process.communicate(timeout=100)
    assert process.returncode == -signal.SIGKILL
    same(common.run(tmp_path / "cut.npz", 12, "--folder", tmp_path / "cut"), want)
