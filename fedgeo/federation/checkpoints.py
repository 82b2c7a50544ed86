"""A run's state and history on disk, so that a run that was cut off goes on where it was.

Orbax writes each checkpoint beside the others and renames it when it is whole: a process killed at any moment leaves
the last one intact. On top of that a checkpoint states what it is of, and the checksums of what it holds.
"""

import hashlib
import json
import signal
import threading
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedgeo.federation.history import made_folder
from fedgeo.protocol import Key, PyTree

_FORMAT = 3


@dataclass(frozen=True)
class Checkpoints:
    """Where and how often :func:`fedgeo.federation.fit` saves, ``fit(..., checkpoints=Checkpoints("run"))``.

    A folder belongs to one run: the same algorithm, key, data, ``every``, sampler, quorum and start (``init``, or the
    same ``state=``). Calling ``fit`` again with the same arguments goes on from the newest checkpoint, to the same bits
    as a run that was never cut off; anything else is refused as far as ``fit`` can tell: by the shapes of all that a
    run holds, by one draw of the sampler, and, under one version of JAX, by the program of a round, which holds every
    setting such as a step size.
    On SIGTERM, ``fit`` finishes its block of rounds, saves, and leaves by ``SystemExit(143)``.

    Attributes:
        folder: made if it is not there.
        every: rounds from one checkpoint to the next; they run as one program.
        keep: newest checkpoints that are kept.
        about: what neither arrays nor program tell and a later call must agree on, such as where the data are from;
            strings, numbers and lists of them.
    """

    folder: str | Path
    every: int = 10
    keep: int = 2
    about: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.every < 1 or self.keep < 1:
            raise ValueError(f"every and keep must be at least 1, got {self.every} and {self.keep}")
        try:
            json.dumps(dict(self.about))
        except TypeError as error:
            raise ValueError(
                f"about holds strings, numbers and lists of them, to be compared later: {error}"
            ) from None


class CheckpointError(ValueError):
    """A checkpoint that is damaged, or of another run. Nothing was changed."""


class Store:
    """The open folder of one run."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        key: Key,
        data: PyTree,
        first_round: int,
        *,
        facts: Mapping[str, int],
        program: str,
        draw: PyTree,
        begins: PyTree | None,
    ) -> None:
        """Open or make the folder of a run.

        Args:
            checkpoints: the user's.
            key: the run's.
            data: the run's.
            first_round: the run's.
            facts: numbers that a later call must agree on, by name.
            program: of a round, as text.
            draw: of the sampler, from the same key in every run.
            begins: the state that the run was given, None if it begins at init.
        """
        if jax.process_count() > 1:
            raise ValueError("checkpoints are written by one process; this run has several")
        import orbax.checkpoint as ocp  # takes a second to import, and few runs need it

        self._ocp = ocp
        self._folder = made_folder(checkpoints.folder, "checkpoints")
        self._identity = {
            "format": _FORMAT,
            "key": np.asarray(jax.random.key_data(key)).tolist(),
            "first_round": first_round,
            "every": checkpoints.every,
            "data": {jax.tree_util.keystr(p): _form(leaf) for p, leaf in jax.tree.leaves_with_path(data)},
            "data_checksums": _checksums(data),
            "start": "init" if begins is None else f"a given state ({_digest(begins)})",
            **facts,
            "sampler": _digest(draw),
            "about": json.loads(json.dumps(dict(checkpoints.about))),
        }
        self._program = {"jax": jax.__version__, "digest": hashlib.sha256(program.encode()).hexdigest()}
        options = ocp.CheckpointManagerOptions(
            max_to_keep=checkpoints.keep, enable_async_checkpointing=False, cleanup_tmp_directories=True
        )
        self._manager = ocp.CheckpointManager(self._folder, options=options)

    def save(self, done: int, tree: tuple[PyTree, PyTree]) -> None:
        """Write the state and history of a run after ``done`` rounds; returns when they are on disk."""
        leaves = {str(i): np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(tree))}
        about = {
            "identity": self._identity,
            "program": self._program,
            "form": _forms(*tree),
            "checksums": _checksums(tree),
        }
        args = self._ocp.args
        self._manager.save(
            done,
            args=args.Composite(arrays=args.StandardSave(leaves), about=args.JsonSave(about)),
            force=True,
        )

    def restore(self, like: tuple[PyTree, PyTree]) -> tuple[int, PyTree] | None:
        """Rounds done, and state and history of the run, or None in an empty folder.

        Args:
            like: of that structure, shapes and dtypes; the history may be of another number of rounds.

        Raises:
            CheckpointError: the newest checkpoint is damaged, or of another run.
        """
        done = self._manager.latest_step()
        if done is None:
            return None
        where = f"checkpoint {done} in {self._folder}"
        remedy = "give the run a folder of its own, or remove this one to start over"
        args = self._ocp.args
        try:
            about = self._manager.restore(done, args=args.Composite(about=args.JsonRestore())).about
            found = self._manager.restore(done, args=args.Composite(arrays=args.StandardRestore())).arrays
            leaves = [np.asarray(found[str(i)]) for i in range(len(found))]
        except (
            Exception
        ) as error:  # whatever Orbax and its storage raise for files that are not what they were
            raise CheckpointError(
                f"{where} cannot be read ({type(error).__name__}); remove it to go on from the one before"
            ) from error
        there = about["identity"]
        if differs := [name for name, value in self._identity.items() if there.get(name) != value]:
            brief = [
                f"{name} {there[name]} there and {self._identity[name]} here"
                for name in differs
                if isinstance(there.get(name), int | str) and name != "sampler"
            ]
            what = f"{', '.join(differs)} differ" + (f" ({'; '.join(brief)})" if brief else "")
            raise CheckpointError(f"{where} is of another run: {what}; {remedy}")
        structure, (saved, here) = jax.tree.structure(like), (about["form"], _forms(*like))
        if saved["structure"] != here["structure"] or len(leaves) != len(jax.tree.leaves(like)):
            raise CheckpointError(f"{where} holds the state of another algorithm; {remedy}")
        if differs := [
            f"{name} {saved['leaves'].get(name)} there and {form} here"
            for name, form in here["leaves"].items()
            if saved["leaves"].get(name) != form
        ]:
            raise CheckpointError(
                f"{where} holds the state of another algorithm: {'; '.join(differs[:4])}; {remedy}"
            )
        program = about["program"]  # of another version of JAX the same one has another text
        if program["jax"] == self._program["jax"] and program != self._program:
            raise CheckpointError(
                f"{where} is of another run: its rounds are another program on the same shapes, for a setting such as "
                f"a step size or the code differs; {remedy}"
            )
        if _checksums(leaves) != about["checksums"]:
            raise CheckpointError(f"{where} is damaged; remove it to go on from the one before")
        return done, jax.tree.unflatten(structure, [jnp.asarray(leaf) for leaf in leaves])

    def close(self) -> None:
        """Release the folder."""
        self._manager.close()


def _form(leaf: Any, axes_left_out: int = 0) -> str:
    return f"{leaf.dtype if hasattr(leaf, 'dtype') else jnp.result_type(leaf)}{list(np.shape(leaf)[axes_left_out:])}"


def _forms(state: PyTree, history: PyTree) -> dict[str, Any]:
    """Structure and, by name, shapes and dtypes; those of a history without the axis of rounds."""
    return {
        "structure": str(jax.tree.structure((state, history))),
        "leaves": {
            name + jax.tree_util.keystr(path): _form(leaf, axes)
            for name, tree, axes in (("state", state, 0), ("history", history, 1))
            for path, leaf in jax.tree.leaves_with_path(tree)
        },
    }


def _digest(tree: PyTree) -> str:
    """A short word for shapes, dtypes and values."""
    told = [(jax.tree_util.keystr(path), _form(leaf)) for path, leaf in jax.tree.leaves_with_path(tree)]
    return f"{zlib.crc32(json.dumps([told, _checksums(tree)]).encode()):08x}"


def _checksums(tree: PyTree) -> list[int]:
    return [
        zlib.crc32(np.ascontiguousarray(np.atleast_1d(leaf)).view(np.uint8).data)
        for leaf in jax.tree.leaves(tree)
    ]


@contextmanager
def deferred_sigterm() -> Iterator[list[int]]:
    """While open, SIGTERM only lengthens the list that this yields; outside the main thread it stays what it was."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        yield received
    finally:
        signal.signal(signal.SIGTERM, before)
