"""Detector files for tests, made from the algorithms' own detectors, and what JAX says that they score."""

from functools import cached_property, partial

import jax
import jax.numpy as jnp
import numpy as np

from fedgeo.algorithms import comparators, fedkad, koopman, moments, online
from fedgeo.algorithms.one_shot import OneShotServer, one_shot
from fedgeo.deploy import runtime
from fedgeo.models.encoder import geodesic_svdd
from fedgeo.protocol import Series

CLIP = 10.0

STATIC = ("horizon", "residual", "scale")
_residuals = jax.jit(koopman.residuals, static_argnames=STATIC)
_contributions = jax.jit(koopman.contributions, static_argnames=STATIC)
_smooth = jax.jit(koopman.smooth, static_argnames="width")


@partial(jax.jit, static_argnames=(*STATIC, "smoothing"))
def _row_by_row(detector, x, *, horizon, smoothing, **names):
    watch = online.begin(detector, x.shape[1], horizon=horizon, smoothing=smoothing)
    return jax.lax.scan(lambda watch, row: online.update(detector, watch, row, **names), watch, x)[1]


def close(got, want, scale=None):
    """1e-5 relative; where a scale is given, scores below a thousandth of it have 1e-8 of it to spare.

    A score is a sum of squared differences of numbers near 1 in float32: the smaller it is, the more of it is rounding.
    """
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    known = ~np.isnan(want)
    assert np.isfinite(got[known]).all()
    assert known.any()
    spare = 0 if scale is None else 1e-8 * scale
    assert (np.abs(got[known] - want[known]) - 1e-5 * np.abs(want[known])).max() <= spare


def generated(clients=2, steps=700, channels=5, seed=0):
    """Streams ``(K, T, C)`` with offsets and units of their own, and a burst that no model foresees."""
    machine, noise = np.random.default_rng(0), np.random.default_rng(seed)
    unit, offset = machine.uniform(0.5, 50, channels), machine.uniform(-1e3, 1e3, channels)
    phase, speed = machine.uniform(0, 6, (clients, 2, 1, channels)).transpose(1, 0, 2, 3)
    t = np.arange(steps)[None, :, None]
    x = np.sin(t * (0.1 + speed / 20) + phase) + 0.1 * noise.standard_normal((clients, steps, channels))
    x[:, steps // 2 : steps // 2 + 8, 1] += 4
    return x * unit + offset


def scaled(x, center, scale):
    """As a scaler of ``fedgeo.data`` does it, then float32."""
    return jnp.asarray(np.clip((np.asarray(x) - center) / scale, -CLIP, CLIP), jnp.float32)


class Fitted:
    """FedKAD's detectors of K clients ``(K, T, C)`` from the pooled subspace, which is one exchange of moments."""

    def __init__(self, train, residual, *, window=4, size=6, rank=3):
        self.train, self.residual, self.window = train, residual, window
        self.clients, _, self.channels = train.shape
        self.center, deviation = train.mean(axis=1), train.std(axis=1)
        self.scale = np.where(deviation > 0, deviation, 1.0)
        self.lift = koopman.random_lift(jax.random.key(7), self.channels, window=window, size=size)
        x = jnp.stack([scaled(*of) for of in zip(train, self.center, self.scale, strict=True)])
        sums = moments.prepare(self.lift, Series(x, jnp.ones(x.shape[:2], bool)))
        alg = fedkad.fedkad(self.lift, rank=rank, residual=residual, scale="variance")
        basis = comparators.pooled_subspace(comparators.pool(sums), rank)
        deploy = jax.jit(alg.deploy)
        self.detectors = [
            deploy(basis, None, jax.tree.map(lambda leaf, k=k: leaf[k], sums)) for k in range(self.clients)
        ]

    @property
    def entries(self):
        """Of Phi, that the score counts."""
        wide = self.window * self.channels
        return slice(wide - self.channels, wide) if self.residual == "newest" else slice(None)


class Made:
    """A FedKAD detector file of fitted clients, and JAX's scores for streams in their own units."""

    def __init__(
        self, path, fitted, *, scale="variance", horizon=1, smoothing=5, missing="error", interval=None
    ):
        self.fitted, self.horizon, self.smoothing = fitted, horizon, smoothing
        self.names = {"residual": fitted.residual, "scale": scale}
        self.clients = [f"machine {k}" for k in range(fitted.clients)]
        self.columns = [f"sensor {c}" for c in range(fitted.channels)]
        detectors = fitted.detectors
        arrays = {
            "center": fitted.center,
            "scale": fitted.scale,
            "lift_weight": fitted.lift.weight,
            "lift_bias": fitted.lift.bias,
            "basis": detectors[0].basis,
            "operator": jnp.stack([d.operator for d in detectors]),
        }
        if fitted.residual == "newest":
            arrays["readout"] = jnp.stack([d.predicts()[fitted.entries] for d in detectors])
        if scale != "none":
            arrays["variance"] = jnp.stack([d.variance[fitted.entries] for d in detectors])
        known = [self.score(x, k) for k, x in enumerate(fitted.train)]
        arrays["threshold"] = self.thresholds = np.nanquantile(known, 0.98, axis=1).astype(np.float64)
        self.about = {
            "method": "fedkad",
            "columns": self.columns,
            "clients": self.clients,
            "settings": {
                "window": fitted.window,
                "horizon": horizon,
                "smoothing": smoothing,
                "residual": fitted.residual,
                "score_scale": scale,
                "clip": CLIP,
                "missing": missing,
                "interval": interval,
            },
        }
        self.arrays = {name: np.asarray(value) for name, value in arrays.items()}
        self.path = runtime.write(path, self.about, self.arrays)

    @cached_property
    def loaded(self):
        return runtime.load(self.path)

    def scaled(self, x, k):
        return scaled(x, self.fitted.center[k], self.fitted.scale[k])

    def score(self, x, k=0):
        """The whole stream at once."""
        errors = _residuals(self.fitted.detectors[k], self.scaled(x, k), horizon=self.horizon, **self.names)
        return self.smooth(errors)

    def parts(self, x, k=0):
        """By channel, before smoothing."""
        detector = self.fitted.detectors[k]
        return np.asarray(_contributions(detector, self.scaled(x, k), horizon=self.horizon, **self.names))

    def smooth(self, raw):
        """``koopman.smooth``."""
        return np.asarray(_smooth(jnp.asarray(raw, jnp.float32), self.smoothing))

    def row_by_row(self, x, k=0):
        """``algorithms.online``."""
        return np.asarray(
            _row_by_row(
                self.fitted.detectors[k],
                self.scaled(x, k),
                horizon=self.horizon,
                smoothing=self.smoothing,
                **self.names,
            )
        )


class MadeRows:
    """A Geodesic-SVDD detector file of M experts that differ, and JAX's scores for rows in their own units."""

    def __init__(self, path, *, features=6, experts=3, blocks=2, width=16, latent=8, missing="error"):
        rng = np.random.default_rng(1)
        self.train = rng.standard_normal((experts, 60, features)) * rng.uniform(0.5, 30, features) + 100
        self.center, self.scale = self.train.mean(axis=(0, 1)), self.train.std(axis=(0, 1))
        model = geodesic_svdd(latent=latent, width=width, blocks=blocks)
        keys = jax.random.split(jax.random.key(0), experts)
        start = jax.jit(jax.vmap(model.init, in_axes=(0, None)))(keys, jnp.zeros((1, features)))
        # As if trained: no gain at 1 and no bias at 0, and an anchor that is no unit vector.
        params = jax.tree.map(lambda a: a + 0.1 * rng.standard_normal(a.shape, np.float32), start)
        anchor = 0.3 * rng.standard_normal(latent)
        self.server = OneShotServer(None, jnp.asarray(anchor, jnp.float32), params, jnp.ones(experts, bool))
        self._score = jax.jit(one_shot(model).score)
        flat = jax.tree_util.tree_flatten_with_path(self.server.experts)[0]
        self.arrays = {
            "center": self.center,
            "scale": self.scale,
            "anchor": anchor / np.linalg.norm(anchor),
            **{".".join(part.key for part in keys): np.asarray(leaf) for keys, leaf in flat},
        }
        scores = self.score(self.train[0])
        self.arrays["threshold"] = np.quantile(scores, [0.9] * (experts - 1) + [0.5])
        self.arrays["threshold_all"] = np.asarray(np.quantile(scores, 0.95))
        self.columns = [f"feature {f}" for f in range(features)]
        self.clients = [f"bank {k}" for k in range(experts)]
        self.about = {
            "method": "geodesic-svdd",
            "columns": self.columns,
            "clients": self.clients,
            "settings": {"blocks": blocks, "encoder": "spherical", "clip": CLIP, "missing": missing},
        }
        self.path = runtime.write(path, self.about, self.arrays)

    def score(self, rows):
        return np.asarray(self._score(self.server, scaled(rows, self.center, self.scale)))
