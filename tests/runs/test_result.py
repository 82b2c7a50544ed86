import jax.numpy as jnp
import numpy as np

from fedgeo.runs import result


def test_judging_takes_thresholds_from_validation_scores():
    rng = np.random.default_rng(0)
    validation, test = {"a": rng.random(200)}, {"a": rng.random(300) + 0.3}
    labels = {"a": (rng.random(300) < 0.3).astype(int)}
    frame, thresholds = result.judge(validation, test, labels, 0.9)
    assert thresholds["a"] == np.quantile(validation["a"], 0.9, method="inverted_cdf")
    assert frame.loc["a", "alarm_rate"] == np.mean(test["a"] > thresholds["a"])


def test_the_clock_keeps_methods_and_compiling_apart(monkeypatch):
    ticks = iter(range(0, 1000, 7))
    monkeypatch.setattr(result.time, "perf_counter", lambda: float(next(ticks)))
    clock = result.Clock()
    work = clock.timed(lambda x: x + 1)
    clock.method = "a"
    for _ in range(2):
        assert work(jnp.ones(3)).tolist() == [2, 2, 2]
    clock.method = "b"
    assert clock.measure(lambda: 5) == 5
    table = clock.table(seeds=2)
    assert table.loc["a"].tolist() == [7, 7]  # one compilation; two runs over two seeds
    assert table.loc["b"].tolist() == [0, 3.5]
