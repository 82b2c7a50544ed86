"""From ragged clients on the host to one padded float32 array with a mask, and back.

Shapes: K clients, N rows, T time steps, C channels, F features.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedgeo.protocol import Rows, Series

Ragged = Mapping[str, np.ndarray] | Sequence[np.ndarray]
"""Arrays that differ in their first axis only, by client name or in order."""


def stack_rows(clients: Ragged, *, length: int | None = None) -> Rows:
    """Stack tables ``(N, F)`` of several clients to :class:`Rows` of numpy arrays.

    Args:
        clients: the tables; one without rows becomes a client whose mask is all False.
        length: rows to pad to, by default those of the longest client; a fixed length saves recompilation.
    """
    return Rows(*_pad(clients, length))


def stack_series(clients: Ragged, *, length: int | None = None) -> Series:
    """Stack streams ``(T, C)`` of several clients to :class:`Series` of numpy arrays, padded at the end."""
    return Series(*_pad(clients, length))


def unstack(values: Any, clients: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Undo the padding: rows ``(K, T, ...)``, such as scores, as one array a client.

    Args:
        values: one row for every row of the stacked clients, the padding included.
        clients: the clients that were stacked, in the same order; only their names and lengths are used.
    """
    values = np.asarray(values)
    if len(values) != len(clients):
        raise ValueError(f"got values of {len(values)} clients for {len(clients)} clients; want one each")
    longest = max((len(x) for x in clients.values()), default=0)
    if len(values) and values.shape[1] < longest:
        raise ValueError(f"got {values.shape[1]} values a client, but the longest client has {longest} rows")
    return {name: values[k, : len(x)] for k, (name, x) in enumerate(clients.items())}


def _pad(clients: Ragged, length: int | None) -> tuple[Any, Any]:
    named = clients if isinstance(clients, Mapping) else {str(k): x for k, x in enumerate(clients)}
    if not named:
        raise ValueError("no clients to stack; want at least one array")
    widths = {int(np.shape(x)[1]) if np.ndim(x) == 2 else -1 for x in named.values()}
    if -1 in widths or len(widths) > 1:
        shapes = ", ".join(f"{name} {np.shape(x)}" for name, x in list(named.items())[:6])
        raise ValueError(f"clients must be 2-D with the same number of columns; got {shapes}")
    longest = max(len(x) for x in named.values())
    if length is None:
        length = max(longest, 1)
    if length < longest:
        raise ValueError(f"length={length} is shorter than the longest client ({longest} rows); cut it first")
    x = np.zeros((len(named), length, widths.pop()), dtype=np.float32)
    mask = np.zeros(x.shape[:2], dtype=bool)
    for k, (name, rows) in enumerate(named.items()):
        limit = np.finfo(np.float32).max
        if not (np.abs(rows) <= limit).all():  # also False for NaN
            row, column = np.argwhere(~(np.abs(rows) <= limit))[0]
            raise ValueError(
                f"client {name}: row {row}, column {column} is {rows[row, column]}, no finite float32 "
                "number; fill or standardise the data before stacking"
            )
        x[k, : len(rows)] = rows
        mask[k, : len(rows)] = True
    return x, mask
