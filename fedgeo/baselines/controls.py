"""Control detectors: what any result must beat before it is worth reporting.

All share one interface. A :data:`Fit` takes training rows and returns a :data:`Score`, which maps rows to one
score a row, higher for more anomalous, NaN while a window fills. Data are expected standardised. Results stay
defined for constant columns, for one row or none and for fewer rows than components: directions in which
training rows do not vary are never part of a basis, so movement along them counts as residual.

Shapes: N rows, T time steps, C channels, F features, W window, r rank.
"""

from collections.abc import Callable, Mapping
from zlib import crc32

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy.linalg import cho_factor, cho_solve
from sklearn.covariance import ledoit_wolf

from fedgeo.data.scaling import moments

Score = Callable[[np.ndarray], np.ndarray]
"""Rows ``(T, C)`` or ``(N, F)`` to scores ``(T,)`` or ``(N,)``."""

Fit = Callable[[np.ndarray], Score]
"""Training rows ``(T, C)`` or ``(N, F)`` to a fitted :data:`Score`."""

_CHUNK = 2048  # rows or windows held at a time


def stream_controls(client: str, seed: int = 0) -> dict[str, Fit]:
    """The controls for one client's stream, by the name they have in tables."""
    return {
        "random": random(client, seed),
        "row norm": row_norm,
        "persistence": persistence,
        "PCA": pca(),
        "window PCA": window_pca(),
    }


def table_controls(client: str = "", seed: int = 0) -> dict[str, Fit]:
    """The controls for a table's rows, by the name they have in tables."""
    return {
        "random": random(client, seed),
        "row norm": row_norm,
        "PCA": pca(),
        "Mahalanobis": mahalanobis,
    }


def score_streams(
    train: Mapping[str, np.ndarray], *parts: Mapping[str, np.ndarray], seed: int = 0
) -> dict[str, list[dict[str, np.ndarray]]]:
    """Fit every stream control on each client alone and score it on parts such as validation and test.

    Args:
        train: ``(T, C)`` by client.
        parts: what to score, each by client.
        seed: of the random control.

    Returns:
        By control, for each part the scores ``(T,)`` by client.
    """
    results: dict[str, list[dict[str, np.ndarray]]] = {}
    for client, x in train.items():
        for control, fit in stream_controls(client, seed).items():
            score = fit(x)
            for scored, part in zip(results.setdefault(control, [{} for _ in parts]), parts, strict=True):
                scored[client] = score(part[client])
    return results


def random(name: str, seed: int = 0) -> Fit:
    """Uniform scores that depend on the name, the seed and the rows alone, so that a rerun repeats them."""

    def score(x: np.ndarray) -> np.ndarray:
        content = crc32(np.ascontiguousarray(x).tobytes())
        return np.random.default_rng([seed, crc32(name.encode()), content]).random(len(x))

    return lambda train: score


def row_norm(train: np.ndarray) -> Score:
    """Euclidean norm of each row; learns nothing."""
    return lambda x: np.linalg.norm(x, axis=1)


def persistence(train: np.ndarray) -> Score:
    """Distance to the row before; the first row has no score. Learns nothing."""

    def score(x: np.ndarray) -> np.ndarray:
        return np.concatenate([np.full(min(len(x), 1), np.nan), np.linalg.norm(np.diff(x, axis=0), axis=1)])

    return score


def pca(*, energy: float = 0.95, components: int | None = None) -> Fit:
    """Distance of each row to the principal subspace of the training rows.

    Args:
        energy: share of the variance that the subspace must hold.
        components: its dimension, instead of ``energy``; fewer where the rows span fewer.
    """
    if not 0.0 < energy < 1.0:
        raise ValueError(f"energy={energy}; want a share of the variance in (0, 1), such as 0.95")
    if components is not None and components < 1:
        raise ValueError(f"components={components}; want at least 1, or None to choose by energy")

    def fit(train: np.ndarray) -> Score:
        center = moments(train).mean
        centred = train - center
        basis, variance = _principal(centred.T @ centred, len(train))
        rank = components
        if rank is None and len(variance):
            rank = int(np.searchsorted(np.cumsum(variance) / variance.sum(), energy)) + 1
        basis = basis[:, :rank]
        return lambda x: _in_chunks(x, lambda rows: _residual(rows - center, basis))

    return fit


def window_pca(*, window: int = 20, rank: int = 24) -> Fit:
    """Distance of each window to the principal subspace of the training windows, at the window's last row.

    The first W - 1 rows have no score. A training stream shorter than the window leaves the subspace empty.

    Args:
        window: W.
        rank: r, the dimension of the subspace; fewer where the windows span fewer.
    """
    if window < 1 or rank < 1:
        raise ValueError(f"window={window}, rank={rank}; want both at least 1")

    def fit(train: np.ndarray) -> Score:
        windows = _windows(train, window)
        width = windows.shape[1] * windows.shape[2]
        chunks = [windows[i : i + _CHUNK] for i in range(0, len(windows), _CHUNK)]
        total = sum((chunk.sum(axis=0).reshape(width) for chunk in chunks), np.zeros(width))
        center = total / max(len(windows), 1)
        gram = np.zeros((width, width))
        for chunk in chunks:
            centred = chunk.reshape(-1, width) - center
            gram += centred.T @ centred
        basis = _principal(gram, len(windows))[0][:, :rank]

        def score(x: np.ndarray) -> np.ndarray:
            warm_up = np.full(min(len(x), window - 1), np.nan)
            residual = _in_chunks(
                _windows(x, window), lambda w: _residual(w.reshape(-1, width) - center, basis)
            )
            return np.concatenate([warm_up, residual])

        return score

    return fit


def mahalanobis(train: np.ndarray) -> Score:
    """Mahalanobis distance of each row under a Ledoit-Wolf covariance.

    A ridge of a millionth of the mean variance bounds the distance along constant columns; without any
    variance the covariance is the identity.

    References:
        Ledoit and Wolf (2004), A well-conditioned estimator for large-dimensional covariance matrices.
    """
    fitted = moments(train)
    width = train.shape[1]
    covariance = np.eye(width)
    if fitted.m2.any():
        covariance = ledoit_wolf(train - fitted.mean, assume_centered=True)[0]
        covariance += 1e-6 * np.trace(covariance) / width * np.eye(width)
    factor = cho_factor(covariance, lower=True)

    def score(x: np.ndarray) -> np.ndarray:
        centred = x - fitted.mean
        return np.sqrt(np.sum(centred * cho_solve(factor, centred.T).T, axis=1))

    return score


def _principal(gram: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Directions in which the rows vary, by falling variance, from their centred moments ``(F, F)``."""
    values, vectors = np.linalg.eigh(gram)
    values, vectors = values[::-1], vectors[:, ::-1]
    varies = values > max(rows, len(values)) * np.finfo(np.float64).eps * max(values[0], 0.0)
    return vectors[:, varies], values[varies]


def _residual(rows: np.ndarray, basis: np.ndarray) -> np.ndarray:
    return np.linalg.norm(rows - (rows @ basis) @ basis.T, axis=1)


def _windows(x: np.ndarray, window: int) -> np.ndarray:
    """All windows ``(T - W + 1, C, W)`` as a view; none of a stream that is too short."""
    if len(x) < window:
        return np.zeros((0, x.shape[1], window))
    return sliding_window_view(x, window, axis=0)


def _in_chunks(rows: np.ndarray, score: Score) -> np.ndarray:
    parts = [score(rows[i : i + _CHUNK]) for i in range(0, len(rows), _CHUNK)]
    return np.concatenate(parts) if parts else np.zeros(0)
