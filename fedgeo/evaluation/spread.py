"""Whether a one-class network has learnt to map everything to one place. Shapes: N rows, d latent."""

import numpy as np


def effective_rank(covariance: np.ndarray) -> float:
    """How many directions embeddings spread over: ``exp`` of the entropy of their singular values' shares.

    1 if they lie on a line, d if they spread alike in all directions, 0 if they do not spread at all.

    Args:
        covariance: ``(d, d)`` of the embeddings; its eigenvalues are the squares of their singular values.

    References:
        Roy and Vetterli (2007), The effective rank: A measure of effective dimensionality.
    """
    values = np.linalg.eigvalsh(np.asarray(covariance, dtype=np.float64))
    floor = len(values) * np.finfo(np.float32).eps * max(values.max(initial=0.0), 0.0)
    singular = np.sqrt(values[values > floor])
    if not len(singular):
        return 0.0
    shares = singular / singular.sum()
    return float(np.exp(-np.sum(shares * np.log(shares))))


def distinct(rows: np.ndarray) -> int:
    """How many different scores ``(N,)``, or rows ``(N, F)``, there are."""
    return len(np.unique(rows, axis=0))
