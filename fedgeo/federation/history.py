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

_SPANS = 8  # of rounds, that a sentence lists


class RoundInfo(NamedTuple):
    """What one round reports; never fed back. A history has a leading round axis ``(R, S, ...)``.

    Attributes:
        client: ``(S,)`` ids; -1 for what a sampler drew that is no client, or one for the second time.
        weight: ``(S,)`` weight in the aggregate; 0 for clients without rows, inactive or quarantined ones.
        active: ``(S,)`` False for clients that were drawn but did not report.
        quarantined: ``(S,)`` True for clients whose upload, state or weight was not finite, or whose weight was
            negative; their weight is 0 and their state is kept from before the round.
        enough: ``()`` whether as many clients counted as the quorum asks for.
        updated: ``()`` False where the round was void: not enough clients, or an aggregate that was not finite.
        metrics: the algorithm's own, each ``(S,)``, floats; NaN for clients whose weight is 0, of which the server
            hears nothing that counts: the mean over those that counted is ``jnp.nanmean``.
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

    Returns:
        One sentence a client and reason, with its rounds, such as ``rounds 0-3, 7: ...``; they count from 0.

    Raises:
        ValueError: fewer names than clients.
    """
    client, weight = np.asarray(history.client), np.asarray(history.weight)
    active, quarantined = np.asarray(history.active), np.asarray(history.quarantined)
    if client.size and client.max() >= len(names):
        raise ValueError(
            f"names are those of all K clients, by client id: got {len(names)}, but client {client.max()} took part"
        )
    lines = []
    for k in np.unique(client[quarantined]):
        rounds = np.flatnonzero((quarantined & (client == k)).any(axis=-1))
        what = "sent or kept was not finite, or its weight negative, and was set aside"
        lines.append(f"{_when(rounds)}: what client {names[k]} {what}")
    idle = np.unique(client[active & ~quarantined & (weight == 0)])
    lines += [f"client {names[k]} has no usable rows; its weight is 0" for k in idle]
    strays = np.flatnonzero((client < 0).any(axis=-1))
    if len(strays):
        lines.append(
            f"{_when(strays)}: the sampler drew an id that is no client's, or one twice; such entries took no part"
        )
    counted = (weight > 0).sum(axis=-1)
    void: dict[str, list[int]] = {}
    for r in np.flatnonzero(~np.asarray(history.updated)):
        few = f"{counted[r]} clients counted, fewer than the quorum" if counted[r] else "nobody reported"
        void.setdefault("the aggregate was not finite" if history.enough[r] else few, []).append(int(r))
    return lines + [f"{_when(rounds)}: {why}; the server kept its state" for why, rounds in void.items()]


def _when(rounds: Sequence[int] | np.ndarray) -> str:
    """Rounds in ascending order as words: ``rounds 0-3, 7``; how many others where there are many gaps."""
    parts = np.split(np.asarray(rounds), np.flatnonzero(np.diff(rounds) > 1) + 1)
    shown = ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts[:_SPANS])
    others = sum(map(len, parts[_SPANS:]))
    return f"round{'s' * (len(rounds) > 1)} {shown}" + (f" and {others} more" if others else "")


class Records:
    """Writes a line a round to ``rounds.jsonl`` and a line a round and client to ``clients.csv``, as rounds are done.

    Give it to ``fit(..., records=Records(folder, names))``. A run that goes on from a checkpoint drops the lines of
    rounds that it does again. Metrics of clients that did not count are ``nan``.
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
                    name = self.names[client] if client >= 0 else ""
                    rows.writerow([number, name, *facts, *metrics])

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
            "drawn": int((info.client[b] >= 0).sum()),
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
