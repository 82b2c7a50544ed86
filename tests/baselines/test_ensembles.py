import numpy as np
import pytest
from sklearn.ensemble import IsolationForest

from fedgeo.baselines import forests, neighbours


@pytest.fixture
def clients():
    rng = np.random.default_rng(0)
    return [rng.normal(k, 1.0, (60, 3)) for k in range(3)]


@pytest.fixture
def queries():
    rng = np.random.default_rng(1)
    return np.concatenate([rng.normal(1.0, 1.0, (50, 3)), rng.uniform(-9.0, 11.0, (50, 3))])


def test_one_client_is_the_forest_of_scikit_learn(clients, queries):
    got = forests.federated_isolation_forest(clients[:1], seed=4)(queries)
    want = IsolationForest(n_estimators=100, random_state=forests._seed(4, 0)).fit(clients[0])
    np.testing.assert_allclose(got, -want.score_samples(queries), rtol=1e-12)


def test_pooled_trees_average_path_ratios_not_scores(clients, queries):
    """Written out from the trees: depth of the leaf, plus what its rows lead one to expect, over c(psi)."""

    def expected(n):
        return 0.0 if n < 2 else 1.0 if n == 2 else 2 * (np.log(n - 1) + np.euler_gamma) - 2 * (n - 1) / n

    ratios = []
    for k, rows in enumerate(clients):
        forest = IsolationForest(n_estimators=10, random_state=forests._seed(0, k)).fit(rows)
        for tree in forest.estimators_:
            leaves = tree.apply(queries.astype(np.float32))
            depth = np.asarray(tree.decision_path(queries.astype(np.float32)).sum(axis=1)).ravel() - 1
            rest = np.array([expected(tree.tree_.n_node_samples[leaf]) for leaf in leaves])
            ratios.append((depth + rest) / expected(len(rows)))
    got = forests.federated_isolation_forest(clients, trees=10)(queries)
    np.testing.assert_allclose(got, np.exp2(-np.mean(ratios, axis=0)), rtol=1e-6)


def test_small_clients_are_left_out(clients, queries):
    few = [clients[0], clients[1][:1], clients[2][:0]]
    want = forests.federated_isolation_forest(clients[:1])(queries)
    np.testing.assert_array_equal(forests.federated_isolation_forest(few)(queries), want)
    with pytest.raises(ValueError, match="two rows"):
        forests.federated_isolation_forest(few[1:])


def test_boosted_trees_tell_rows_from_noise(clients, queries):
    pytest.importorskip("xgboost", reason="needs the extra fedgeo[xgboost]")
    score = forests.federated_xgboost([*clients, clients[0][:1]], rounds=20)
    got = score(queries)
    assert ((got >= 0) & (got <= 1)).all()
    assert got[:50].mean() + 0.1 < got[50:].mean()
    np.testing.assert_array_equal(forests.federated_xgboost(clients, rounds=20)(queries), got)
    with pytest.raises(ValueError, match="two rows"):
        forests.federated_xgboost([clients[0][:1]])


def test_neighbours_are_those_of_brute_force(clients, queries):
    train = np.concatenate(clients)
    distances = np.sort(np.linalg.norm(queries[:, None] - train[None], axis=2), axis=1)
    np.testing.assert_allclose(neighbours.knn(train)(queries), distances[:, :5].mean(axis=1), rtol=1e-9)
    np.testing.assert_allclose(neighbours.knn(train[:2])(queries).shape, (100,))
    with pytest.raises(ValueError, match="no training rows"):
        neighbours.knn(train[:0])
