"""Nearest neighbours on pooled rows: a centralised reference that no federation can run."""

import numpy as np
from sklearn.neighbors import NearestNeighbors

from fedgeo.baselines.controls import Score


def knn(train: np.ndarray, *, neighbours: int = 5) -> Score:
    """Mean distance to the nearest training rows.

    Args:
        train: ``(N, F)``, standardised.
        neighbours: k; all rows where there are fewer. The Geodesic-SVDD paper does not state its k.

    Raises:
        ValueError: no training rows.
    """
    if len(train) == 0:
        raise ValueError("no training rows to be near to; want at least one")
    index = NearestNeighbors(n_neighbors=min(neighbours, len(train))).fit(train)
    return lambda x: index.kneighbors(x)[0].mean(axis=1)
