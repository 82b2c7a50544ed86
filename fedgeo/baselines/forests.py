"""Tree ensembles that each client grows alone and the server pools (Geodesic-SVDD, section IV-A3)."""

from collections.abc import Sequence

import numpy as np
from sklearn.ensemble import IsolationForest

from fedgeo.baselines.controls import Score


def federated_isolation_forest(clients: Sequence[np.ndarray], *, trees: int = 100, seed: int = 0) -> Score:
    """Isolation trees of every client in one forest (Liu, Ting and Zhou 2008).

    A client's tree judges a row by its path length over the length c(psi) that its own psi training rows lead one to
    expect; the pooled score is ``2^-mean`` of these ratios. With one client it is scikit-learn's.

    Args:
        clients: K tables ``(N, F)``; those with fewer than two rows grow no tree.
        trees: a client.
        seed: of the trees.

    Raises:
        ValueError: no client has two rows.
    """
    forests = [
        IsolationForest(n_estimators=trees, random_state=_seed(seed, k)).fit(rows)
        for k, rows in enumerate(clients)
        if len(rows) >= 2
    ]
    if not forests:
        raise ValueError("no client has the two rows that an isolation tree needs")
    # A client's score_samples is -2^-(mean ratio of its trees), and all clients have equally many trees.
    return lambda x: np.exp2(np.mean([np.log2(-forest.score_samples(x)) for forest in forests], axis=0))


def federated_xgboost(clients: Sequence[np.ndarray], *, rounds: int = 100, seed: int = 0) -> Score:
    """Boosted trees that tell a client's rows from synthetic ones; the server averages the clients' scores.

    The negatives are half permutations of each feature over the client's rows and half uniform draws from the box that
    its rows span, as many as rows. The score is one minus the mean probability of being a row.

    Args:
        clients: K tables ``(N, F)``; those with fewer than two rows train nothing.
        rounds: of boosting.
        seed: of the negatives and of boosting.

    Raises:
        ImportError: without xgboost, from the extra ``fedgeo[xgboost]``.
        ValueError: no client has two rows.
    """
    try:
        from xgboost import XGBClassifier
    except ImportError as error:
        raise ImportError("federated_xgboost needs xgboost: pip install 'fedgeo[xgboost]'") from error

    models = []
    for k, rows in enumerate(clients):
        if len(rows) < 2:
            continue
        rng = np.random.default_rng([seed, k])
        permuted = rng.permuted(rows, axis=0)[: (len(rows) + 1) // 2]
        uniform = rng.uniform(rows.min(axis=0), rows.max(axis=0), size=(len(rows) // 2, rows.shape[1]))
        x = np.concatenate([rows, permuted, uniform])
        y = np.repeat([1, 0], len(rows))
        model = XGBClassifier(n_estimators=rounds, random_state=_seed(seed, k), n_jobs=1, tree_method="hist")
        models.append(model.fit(x, y))
    if not models:
        raise ValueError("no client has the two rows that boosting needs")
    return lambda x: 1 - np.mean([model.predict_proba(x)[:, 1] for model in models], axis=0)


def _seed(seed: int, client: int) -> int:
    return int(np.random.SeedSequence([seed, client]).generate_state(1)[0])
