"""What rounds report: as arrays, as sentences, and as files that can be read while a run goes on."""

import csv
import io
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np


class RoundInfo(NamedTuple):
    """What one round reports; never fed back. A history has a leading round axis ``(R, S, ...)``.

    Attributes:
        client: ``(S,)`` ids.
        weight: ``(S,)`` weight in the aggregate; 0 for clients without rows, inactive or quarantined ones.
        active: ``(S,)`` False for clients that were drawn but did not report.
        quarantined: ``(S,)`` True for clients whose upload, state or weight was not finite; their weight is 0, their
            state is kept from before the round, and their metrics may be NaN.
        enough: ``()`` whether as many clients counted as the quorum asks for.
        updated: ``()`` False where the round was void: not enough clients, or an aggregate that was not finite.
        metrics: the algorithm's own, each ``(S,)``.
    """

    client: jax.Array
    weight: jax.Array
    active: jax.Array
    quarantined: jax.Array
    enough: jax.Array
    updated: jax.Array
    metrics: dict[str, jax.Array]


def incidents(history: RoundInfo, names: Sequence[str]) -> list[str]:
    """What a user should know of a run: quarantined clients, clients without weight, rounds without a report.

    Args:
        history: from :func:`fit`.
        names: K names, by client id.
    """
    client, weight = np.asarray(history.client), np.asarray(history.weight)
    active, quarantined = np.asarray(history.active), np.asarray(history.quarantined)
    lines = [
        f"round {r}: what client {names[client[r, s]]} sent or kept was not finite and was set aside"
        for r, s in np.argwhere(quarantined)
    ]
    idle = np.unique(client[active & ~quarantined & (weight == 0)])
    lines += [f"client {names[k]} has no usable rows; its weight is 0" for k in idle]
    counted = (weight > 0).sum(axis=-1)
    for r in np.flatnonzero(~np.asarray(history.updated)):
        few = f"{counted[r]} clients counted, fewer than the quorum" if counted[r] else "nobody reported"
        why = "the aggregate was not finite" if history.enough[r] else few
        lines.append(f"round {r}: {why}; the server kept its state")
    return lines


class Records:
    """Writes a line a round to ``rounds.jsonl`` and a line a round and client to ``clients.csv``, as rounds are done.

    Give it to ``fit(..., records=Records(folder, names))``. A run that goes on from a checkpoint drops the lines of
    rounds that it does again.
    """

    def __init__(self, folder: str | Path, names: Sequence[str]) -> None:
        """Make the folder.

        Args:
            folder: for the two files; kept if there.
            names: K names, by client id.

        Raises:
            ValueError: a folder that cannot be.
        """
        self.folder, self.names = made_folder(folder, "records"), list(names)
        self._rounds, self._clients = self.folder / "rounds.jsonl", self.folder / "clients.csv"
        self._began = time.perf_counter()

    def start(self, first_round: int) -> None:
        """Forget lines of ``first_round`` and later, and a last line that was cut off."""
        if self._rounds.exists():
            lines = [line for line in self._rounds.read_text().splitlines() if _before(line, first_round)]
            _rewrite(self._rounds, "".join(line + "\n" for line in lines))
        if self._clients.exists():
            with self._clients.open(newline="") as file:
                header, *rows = list(csv.reader(file)) or [[]]
            kept = [row for row in rows if len(row) == len(header) and int(row[0]) < first_round]
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows([header, *kept] if header else [])
            _rewrite(self._clients, text.getvalue())
        self._began = time.perf_counter()

    def write(self, first_round: int, info: RoundInfo, upload_bytes: int) -> None:
        """Append a block of rounds.

        Args:
            first_round: number of the block's first round.
            info: leaves ``(B, S, ...)``.
            upload_bytes: of one client in one round.
        """
        info = RoundInfo(*(_host(part) for part in info))
        rounds = len(info.updated)
        now = time.perf_counter()
        seconds, self._began = (now - self._began) / max(rounds, 1), now
        with self._rounds.open("a") as lines, self._clients.open("a", newline="") as table:
            rows = csv.writer(table, lineterminator="\n")
            if table.tell() == 0:
                rows.writerow(["round", "client", "weight", "active", "quarantined", *info.metrics])
            for b in range(rounds):
                number = first_round + b
                lines.write(json.dumps(self._round(number, info, b, seconds, upload_bytes)) + "\n")
                for s, client in enumerate(info.client[b]):
                    metrics = [f"{values[b, s]:.9g}" for values in info.metrics.values()]
                    facts = [f"{info.weight[b, s]:.9g}", int(info.active[b, s]), int(info.quarantined[b, s])]
                    rows.writerow([number, self.names[client], *facts, *metrics])

    def _round(
        self, number: int, info: RoundInfo, b: int, seconds: float, upload_bytes: int
    ) -> dict[str, Any]:
        counts = info.weight[b] > 0
        means = {
            name: float(np.mean(values[b][counts])) if counts.any() else None
            for name, values in info.metrics.items()
        }
        return {
            "round": number,
            "updated": bool(info.updated[b]),
            "drawn": len(info.client[b]),
            "counted": int(counts.sum()),
            "quarantined": [self.names[k] for k in info.client[b][info.quarantined[b]]],
            "upload_bytes": upload_bytes * int(info.active[b].sum()),
            "seconds": round(seconds, 6),
            **{f"mean_{name}": value for name, value in means.items()},
        }


def made_folder(folder: str | Path, what: str) -> Path:
    """The folder, made if it is not there; ValueError if it cannot be, before any work is done."""
    path = Path(folder).resolve()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"{what} cannot be kept in {path} ({error.strerror}); give another folder"
        ) from error
    if not os.access(path, os.W_OK):
        raise ValueError(f"{what} cannot be written to {path}; give another folder, or its permission")
    return path


def _host(part: Any) -> Any:
    return {k: np.asarray(v) for k, v in part.items()} if isinstance(part, Mapping) else np.asarray(part)


def _before(line: str, first_round: int) -> bool:
    try:
        return bool(json.loads(line)["round"] < first_round)
    except json.JSONDecodeError:  # the process ended while it wrote this line
        return False


def _rewrite(path: Path, text: str) -> None:
    partial = path.with_suffix(path.suffix + ".partial")
    partial.write_text(text)
    partial.replace(path)
