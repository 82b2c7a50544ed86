"""Detector files for tests, made from the algorithms' own detectors, and what JAX says that they score."""

import jax
import jax.numpy as jnp
import numpy as np

from fedgeo import federation
from fedgeo.algorithms import comparators, fedkad, koopman, moments, online
from fedgeo.algorithms.one_shot import one_shot
from fedgeo.deploy import runtime
from fedgeo.models.encoder import geodesic_svdd
from fedgeo.protocol import Rows, Series

CLIP = 10.0


def generated(clients=2, steps=600, channels=5, seed=0):
    """Streams ``(K, T, C)`` with offsets and units of their own, and a burst that no model foresees."""
    rng = np.random.default_rng(seed)
    t = np.arange(steps)[None, :, None]
    phase, speed = rng.uniform(0, 6, (2, clients, 1, channels))
    x = np.sin(t * (0.1 + speed / 20) + phase) + 0.1 * rng.standard_normal((clients, steps, channels))
    x[:, steps // 2 : steps // 2 + 8, 1] += 4
    return x * rng.uniform(0.5, 50, channels) + rng.uniform(-1e3, 1e3, channels)


def scaled(x, center, scale):
    """As a scaler of ``fedgeo.data`` does it, then float32."""
    return jnp.asarray(np.clip((np.asarray(x) - center) / scale, -CLIP, CLIP), jnp.float32)


class Made:
    """A FedKAD detector file and its parts.

    ``train`` is ``(K, T, C)``; detectors come from the pooled subspace, which is one exchange of moments.
    """

    def __init__(
        self,
        path,
        train,
        *,
        residual="newest",
        scale="variance",
        horizon=1,
        smoothing=5,
        window=4,
        size=6,
        rank=3,
        missing="error",
        interval=None,
        own_readout=True,
        columns=None,
        clients=None,
    ):
        count, _, channels = train.shape
        self.center = train.mean(axis=1)
        deviation = train.std(axis=1)
        self.scale = np.where(deviation > 0, deviation, 1.0)
        self.lift = koopman.random_lift(jax.random.key(7), channels, window=window, size=size)
        x = jnp.stack([scaled(train[k], self.center[k], self.scale[k]) for k in range(count)])
        sums = moments.prepare(self.lift, Series(x, jnp.ones(x.shape[:2], bool)))
        alg = fedkad.fedkad(self.lift, rank=rank, residual=residual, scale=scale)
        server = comparators.pooled_subspace(sums, rank)
        self.detectors = [
            jax.jit(alg.deploy)(server, None, jax.tree.map(lambda leaf, k=k: leaf[k], sums))
            for k in range(count)
        ]
        self.names = dict(residual=residual, scale=scale)
        self.horizon, self.smoothing, self.window, self.channels = horizon, smoothing, window, channels
        self.clients = clients or [f"machine {k}" for k in range(count)]
        self.columns = columns or [f"sensor {c}" for c in range(channels)]

        entries = (
            slice(window * channels - channels, window * channels) if residual == "newest" else slice(None)
        )
        arrays = {
            "center": self.center,
            "scale": self.scale,
            "lift_weight": self.lift.weight,
            "lift_bias": self.lift.bias,
            "basis": self.detectors[0].basis,
            "operator": jnp.stack([d.operator for d in self.detectors]),
            "threshold": np.full(count, np.nan),
        }
        if residual == "newest" or not own_readout:
            arrays["readout"] = jnp.stack([d.predicts()[entries] for d in self.detectors])
        if scale != "none":
            arrays["variance"] = jnp.stack([d.variance[entries] for d in self.detectors])
        for k in range(count):
            known = self.score(train[k], k)
            arrays["threshold"][k] = np.nanquantile(known, 0.98)
        self.thresholds = arrays["threshold"]
        self.about = {
            "method": "fedkad",
            "columns": self.columns,
            "clients": self.clients,
            "settings": {
                "window": window,
                "horizon": horizon,
                "smoothing": smoothing,
                "residual": residual,
                "score_scale": scale,
                "clip": CLIP,
                "missing": missing,
                "interval": interval,
            },
            "made_by": {"fedgeo": "tests"},
        }
        self.arrays = {name: np.asarray(value) for name, value in arrays.items()}
        self.path = runtime.write(path, self.about, self.arrays)

    def score(self, x, k=0):
        """What JAX says of a stream in its own units."""
        return np.asarray(koopman.smooth(self.raw(x, k), self.smoothing))

    def raw(self, x, k=0):
        z = scaled(x, self.center[k], self.scale[k])
        return koopman.residuals(self.detectors[k], z, horizon=self.horizon, **self.names)

    def parts(self, x, k=0):
        """Likewise by channel, smoothed."""
        z = scaled(x, self.center[k], self.scale[k])
        raw = koopman.contributions(self.detectors[k], z, horizon=self.horizon, **self.names)
        return np.stack([koopman.smooth(column, self.smoothing) for column in raw.T], axis=1)

    def row_by_row(self, x, k=0):
        """What JAX says row by row."""
        detector = self.detectors[k]
        watch = online.begin(detector, self.channels, horizon=self.horizon, smoothing=self.smoothing)

        def step(watch, row):
            return online.update(detector, watch, row, **self.names)

        return np.asarray(
            jax.jit(lambda x: jax.lax.scan(step, watch, x)[1])(scaled(x, self.center[k], self.scale[k]))
        )


class MadeRows:
    """A Geodesic-SVDD detector file of M experts that differ, and its parts."""

    def __init__(
        self, path, *, features=6, experts=3, blocks=2, width=16, latent=8, epochs=3, missing="error"
    ):
        rng = np.random.default_rng(1)
        train = rng.standard_normal((experts, 60, features)) * rng.uniform(0.5, 30, features) + 100
        self.center, self.scale = train.mean(axis=(0, 1)), train.std(axis=(0, 1))
        self.model = geodesic_svdd(latent=latent, width=width, blocks=blocks)
        self.alg = one_shot(self.model, epochs=epochs, batch_size=32)
        x = scaled(train, self.center, self.scale)
        data = Rows(x, jnp.ones(x.shape[:2], bool))
        key = jax.random.key(0)
        state, _ = federation.fit(self.alg, key, data, sampler=federation.everyone, rounds=1)
        self.server = state.server
        self.columns = [f"feature {f}" for f in range(features)]
        flat = jax.tree_util.tree_flatten_with_path(self.server.experts)[0]
        anchor = np.asarray(self.server.anchor, np.float64)
        self.arrays = {
            "center": self.center,
            "scale": self.scale,
            "anchor": anchor / np.linalg.norm(anchor),
            **{".".join(part.key for part in path): np.asarray(leaf) for path, leaf in flat},
        }
        scores = self.score(train[0])
        self.arrays["threshold"] = np.quantile(scores, [0.9] * (experts - 1) + [0.5])
        self.arrays["threshold_all"] = np.asarray(np.quantile(scores, 0.95))
        self.about = {
            "method": "geodesic-svdd",
            "columns": self.columns,
            "clients": [f"bank {k}" for k in range(experts)],
            "settings": {"blocks": blocks, "encoder": "spherical", "clip": CLIP, "missing": missing},
        }
        self.train = train
        self.path = runtime.write(path, self.about, self.arrays)

    def score(self, rows):
        return np.asarray(self.alg.score(self.server, scaled(rows, self.center, self.scale)))
