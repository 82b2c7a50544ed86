"""Geodesic-SVDD as an estimator."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self
from zlib import crc32

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd

from fedgeo import data, evaluation, federation, trees
from fedgeo.algorithms.fedavg import FedAvgServer, fedavg
from fedgeo.algorithms.one_shot import OneShotServer, one_shot
from fedgeo.data import policy, scaling
from fedgeo.data.streams import listed, named
from fedgeo.estimators.base import CHUNK, LARGEST, Estimator, check_seed, clients_of, like, padded, warn_user
from fedgeo.evaluation.calibration import Kind
from fedgeo.models.encoder import Mixup, geodesic_svdd
from fedgeo.protocol import FedAlgorithm, Model, PyTree, Rows
from manifolds import sphere

LEAST_CENTER = 1e-6
"""Length of the clients' mean embedding below which it names no direction, and so no centre on the sphere."""


class GeodesicSVDD(Estimator):
    """One-class learning on the sphere for tables, one a client. arXiv 2610.33619.

    In the one-shot protocol every client trains an encoder once from a shared start, and a row's score is the sum of
    all experts' scores; in the iterative one the encoders are averaged in every round. Scores are the same for whoever
    asks; thresholds are each client's, and ``threshold_all_`` is for rows of nobody. Shapes: N rows, F features.

    Args:
        protocol: "one-shot" or "iterative".
        latent: d, of the sphere.
        width: of the hidden layers.
        blocks: residual blocks.
        dropout: rate on the residual path.
        mixup: "slerp", "lerp" or "none".
        kappa: of the Beta(kappa, kappa) that mixes.
        learning_rate: of each client's Adam.
        batch_size: rows a local step.
        epochs: local epochs a round; None for 50 in the one-shot protocol and 1 in the iterative one.
        rounds: of the iterative protocol.
        max_steps: local steps an epoch at most; None for every row in every epoch.
        participation: share of the clients drawn in a round of the iterative protocol.
        scaling: by the federation's mean and deviation ("standard"), or median and quartiles ("robust").
        clip: bound on scaled values, infinity for none.
        missing: "error" names a missing value, "center" puts the column's centre in its place.
        validation: share of each client's rows, drawn at random, kept for calibration.
        threshold: "quantile", "pot" or "rate", see :class:`fedgeo.evaluation.Rule`.
        quantile: for "quantile".
        level: for "pot".
        q: for "pot".
        rate: for "rate".
        seed: of the start, of training and of what is kept for calibration.
        progress: called with the number of rounds done.

    Attributes:
        clients_: names of all clients, those without rows included.
        columns_: names of the F features.
        left_out_: why a client had no part in training, by name.
        notes_: sentences on what a user should know of the fit.
        calibration_: a frame by client with ``threshold``, ``rule``, ``rows`` and ``alarm_rate`` on them.
        threshold_: by client.
        threshold_all_: from all clients' calibration rows together.
        history_: what the rounds report; not saved.
        settings_: the parameters that this detector was fitted with.
    """

    method = "geodesic-svdd"

    def __init__(
        self,
        *,
        protocol: Literal["one-shot", "iterative"] = "one-shot",
        latent: int = 32,
        width: int = 128,
        blocks: int = 2,
        dropout: float = 0.1,
        mixup: Mixup = "slerp",
        kappa: float = 0.2,
        learning_rate: float = 1e-3,
        batch_size: int = 128,
        epochs: int | None = None,
        rounds: int = 50,
        max_steps: int | None = None,
        participation: float = 1.0,
        scaling: Literal["standard", "robust"] = "standard",
        clip: float = math.inf,
        missing: Literal["error", "center"] = "error",
        validation: float = 0.2,
        threshold: Kind = "quantile",
        quantile: float = 0.99,
        level: float = 0.98,
        q: float = 1e-3,
        rate: float = 0.01,
        seed: int = 0,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.protocol = protocol
        self.latent = latent
        self.width = width
        self.blocks = blocks
        self.dropout = dropout
        self.mixup = mixup
        self.kappa = kappa
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.epochs = epochs
        self.rounds = rounds
        self.max_steps = max_steps
        self.participation = participation
        self.scaling = scaling
        self.clip = clip
        self.missing = missing
        self.validation = validation
        self.threshold = threshold
        self.quantile = quantile
        self.level = level
        self.q = q
        self.rate = rate
        self.seed = seed
        self.progress = progress

    def fit(self, tables: data.streams.Clients, y: None = None) -> Self:
        """Train on normal rows and set every client's threshold.

        Args:
            tables: ``(N, F)`` array or data frame a client, by name or in order; N may be 0.
            y: not used; scikit-learn's signature.

        Raises:
            ValueError: a parameter out of its range, data that :mod:`fedgeo.data.policy` refuses, or no row at all.
        """
        del y
        rule = self._check()
        columns = policy.columns_of(clients := clients_of(tables))
        self._begin_anew(columns, clients)
        self.settings_["encoder"] = "spherical"  # for whoever reads the file
        readings = {name: self._read(x, f"client {name}") for name, x in clients.items()}
        rows = {name: x for name, (x, _) in readings.items()}
        for name, x in rows.items():
            if not len(x):
                self.left_out_[name] = "it has no rows"
                self._tell(f"client {name} has no rows, and so no part in training", warn=True)
        if len(self.left_out_) == len(rows):
            raise ValueError(f"no client has a row: {listed(list(rows))}")
        parts = {name: self._cut(name, x) for name, x in rows.items()}
        self._fit_scaler([train for train, _ in parts.values()])
        self._look_for_outliers(readings)

        scaled = [self._scaled(train) for train, _ in parts.values()]
        stacked = Rows(*map(jnp.asarray, data.stack_rows(scaled, length=padded(max(map(len, scaled))))))
        key, rounds = jax.random.key(self.seed), self.rounds if self.protocol == "iterative" else 1
        cohort = max(round(self.participation * len(rows)), 1)
        sampler = _uniform(cohort) if self.protocol == "iterative" else federation.everyone
        alg = self._training()
        state, self.history_ = federation.fit(
            alg, key, stacked, rounds=rounds, sampler=sampler, state=_begin(alg, key, stacked),
            on_progress=self.progress,
        )  # fmt: skip
        for line in federation.incidents(self.history_, self.clients_):
            if "usable" not in line:  # clients without rows were named above
                self._tell(line, warn=True)
        self._keep(state.server)
        self._recalibrate(
            {name: self._score(held) for name, (_, held) in parts.items() if len(rows[name])}, rule
        )
        self._set_threshold_for_all(np.concatenate([self._score(held) for _, held in parts.values()]), rule)
        self._look_for_collapse({name: held for name, (_, held) in parts.items()})
        return self

    def join(self, name: str, table: Any) -> Self:
        """Add a client with a threshold of its own, from all of its normal rows ``(N, F)``; nothing is trained.

        Raises:
            ValueError: a name that is taken, or a table that is refused or empty.
        """
        self._must_be_fitted()
        rule, name = self._rule(), str(name)
        if name in self.clients_:
            raise ValueError(f"there is a client {name} already; join under another name, or fit anew")
        rows, _ = self._read(table, f"client {name}")
        if not len(rows):
            raise ValueError(f"client {name} cannot join: it has no rows")
        self.clients_.append(name)
        self._arrays["threshold"] = np.append(self._arrays["threshold"], np.nan)
        self._recalibrate({name: self._score(rows)}, rule)
        return self

    def recalibrate(self, clients: Any, client: str | None = None) -> Self:
        """Set thresholds anew from other normal rows, by the present parameters ``threshold``, ``quantile``, ...

        Args:
            clients: normal rows of some or all clients, by name; or of the one named. Those of all clients together
                set ``threshold_all_``; it stays where only one is named.
            client: whose rows they are, if it is one table alone.
        """
        super().recalibrate(clients, client)
        if client is None:
            tables = {n: self._read(x, f"client {n}")[0] for n, x in named(clients, "recalibrate").items()}
            self._set_threshold_for_all(
                np.concatenate([self._score(x) for x in tables.values()]), self._rule()
            )
            self._look_for_collapse(tables)
        return self

    @property
    def threshold_all_(self) -> float:
        """The threshold for rows of nobody."""
        self._must_be_fitted()
        return float(self._arrays["threshold_all"])

    def score_samples(self, x: Any, client: str | None = None) -> Any:
        """One score a row, ``sum over experts of log(1 + |phi(x) - c|^2)``; it depends on that row alone.

        Args:
            x: rows ``(N, F)``, an array or data frame; or a dict of them.
            client: not needed: scores are the same for all.

        Returns:
            In the form of what was given: for a data frame a Series on its index, for an array an array ``(N,)``.
        """
        self._must_be_fitted()
        if isinstance(x, Mapping):
            return {name: self.score_samples(value) for name, value in x.items()}
        if client is not None:
            self._number(str(client))
        rows, index = self._read(x, "the data")
        return like(self._score(rows), index, "score")

    def predict(self, x: Any, client: str | None = None) -> Any:
        """1 for every row whose score is above the threshold, else 0.

        Args:
            x: as for :meth:`score_samples`; rows in a dict are held against the threshold of that client.
            client: whose threshold; ``threshold_all_`` if it is None, and for a client that has none.
        """
        self._must_be_fitted()
        if isinstance(x, Mapping):
            return {name: self.predict(value, str(name)) for name, value in x.items()}
        threshold = (
            self.threshold_all_ if client is None else self._arrays["threshold"][self._number(str(client))]
        )
        if np.isnan(threshold) and client is not None:
            warn_user(f"client {client} has no threshold of its own; that of all clients together is used")
            threshold = self.threshold_all_
        score = self.score_samples(x)
        alarms = evaluation.alarms(np.asarray(score), threshold).astype(np.int64)
        return like(alarms, score.index if isinstance(score, pd.Series) else None, "alarm")

    # What follows is for this module.

    _MASKING = 'missing="center"'

    def _check(self) -> evaluation.Rule:
        rule = self._rule()
        for name, value, wanted in (
            ("protocol", self.protocol, ("one-shot", "iterative")),
            ("scaling", self.scaling, ("standard", "robust")),
            ("missing", self.missing, ("error", "center")),
        ):
            if value not in wanted:
                raise ValueError(f'{name}={value!r}; want "{wanted[0]}" or "{wanted[1]}"')
        if not 0 < self.participation <= 1:
            raise ValueError(f"participation={self.participation}; want a share of the clients in (0, 1]")
        if not 0 <= self.validation < 1:
            raise ValueError(f"validation={self.validation}; want a share of each table in [0, 1)")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate={self.learning_rate}; want a positive finite number")
        if not self.clip > 0:
            raise ValueError(f"clip={self.clip}; want a positive bound, or infinity for none")
        check_seed(self.seed)
        return rule

    def _model(self) -> Model:
        s = self.settings_
        return _geodesic_model(s["latent"], s["width"], s["blocks"], s["dropout"], s["mixup"], s["kappa"])

    def _training(self) -> FedAlgorithm:
        epochs = (50 if self.protocol == "one-shot" else 1) if self.epochs is None else self.epochs
        return _algorithm(
            self.protocol, self._model(), self.learning_rate, epochs, self.batch_size, self.max_steps
        )

    def _cut(self, name: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows to train on and rows kept for calibration, drawn by seed and name; one to train on is left."""
        order = np.random.default_rng([self.seed, crc32(name.encode())]).permutation(len(rows))
        held = min(round(self.validation * len(rows)), max(len(rows) - 1, 0))
        return rows[np.sort(order[held:])], rows[np.sort(order[:held])]

    def _fit_scaler(self, tables: Sequence[np.ndarray]) -> None:
        fit = data.federated_robust_scaler if self.scaling == "robust" else data.federated_scaler
        scaler = fit(tables, clip=self.clip)
        if constant := [self.columns_[c] for c in scaler.constant]:
            self._tell(
                f"constant in training: {listed(constant)}; a change there is measured in the feature's own unit"
            )
        if len(constant) == len(self.columns_):
            self._tell(
                f"all {len(constant)} features are constant in training: there is nothing to learn", warn=True
            )
        self._arrays = {"center": scaler.center, "scale": scaler.scale}

    def _look_for_outliers(self, readings: Mapping[str, tuple[np.ndarray, pd.Index | None]]) -> None:
        """Warn of rows that set the federation's scale alone; quartiles do not mind them."""
        if self.scaling == "robust":
            return
        found = {name: scaling.outliers(x) for name, (x, _) in readings.items()}
        parts = []
        for name, (x, _) in readings.items():
            rest = x.copy()
            for column, at in found[name].items():
                rest[at, column] = np.nan
            parts.append(data.moments(rest))
        # A client's own scale is not that of the federation, to which other clients' rows add.
        few = self._arrays["scale"] >= 10 * data.standard(data.merge(parts)).scale
        for name, (x, index) in readings.items():
            self._tell_outliers(name, x, {c: at for c, at in found[name].items() if few[c]}, index)

    def _keep(self, server: FedAvgServer | OneShotServer) -> None:
        """Take over the encoders that there are, and the centre that their loss drew to."""
        if isinstance(server, OneShotServer):
            present = np.flatnonzero(np.asarray(server.present))
            params = trees.take(server.experts, jnp.asarray(present))
        else:
            params = jax.tree.map(lambda leaf: leaf[None], server.params)
        if not np.linalg.norm(np.asarray(server.anchor)) > LEAST_CENTER:
            raise ValueError(
                "the mean embedding of the clients' rows is zero, so that there is no centre to learn towards; try "
                "another seed or a larger latent"
            )
        if not len(jax.tree.leaves(params)[0]) or not bool(trees.all_finite(params)):
            raise ValueError(
                "no encoder came out of training, every upload was set aside as not finite; try a smaller learning_rate"
            )
        self._arrays |= {
            "anchor": np.asarray(sphere.project(server.anchor)),
            **{name: np.asarray(leaf) for name, leaf in _dotted(params).items()},
            "threshold": np.full(len(self.clients_), np.nan),
            "threshold_all": np.asarray(np.nan),
        }

    def _set_threshold_for_all(self, scores: np.ndarray, rule: evaluation.Rule) -> None:
        self._arrays["threshold_all"] = np.asarray(evaluation.calibrated(scores, rule).threshold)

    def _look_for_collapse(self, tables: Mapping[str, np.ndarray]) -> None:
        """Warn of encoders that map everything to one point, so that scores say nothing."""
        scores = {name: self._score(rows) for name, rows in tables.items()}
        scaled = {name: self._scaled(rows) for name, rows in tables.items()}
        for line in evaluation.collapse_warnings(scores, scaled):
            self._tell(f"client {line}; fewer epochs or a smaller learning_rate may help", warn=True)

    def _read(self, x: Any, where: str) -> tuple[np.ndarray, pd.Index | None]:
        missing = self.settings_["missing"]
        reading = policy.read(x, self.columns_, where, missing=missing, ordered=False)
        return reading.values, reading.index

    def _scaled(self, rows: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):  # what overflows is clipped below
            z = (rows - self._arrays["center"]) / self._arrays["scale"]
        bound = min(self.settings_["clip"], LARGEST)
        return np.clip(np.where(np.isnan(z), 0.0, z), -bound, bound)  # what is missing becomes the centre

    def _score(self, rows: np.ndarray) -> np.ndarray:
        x = np.zeros((padded(len(rows)), rows.shape[1]), np.float32)
        x[: len(rows)] = self._scaled(rows)
        params = _nested({k: jnp.asarray(v) for k, v in self._arrays.items() if k.startswith("params.")})
        blocks = x.reshape(-1, CHUNK, rows.shape[1])
        found = _expert_scores(self._model(), params, jnp.asarray(self._arrays["anchor"]), blocks)
        return np.asarray(found).reshape(-1)[: len(rows)].astype(np.float64)

    def _known_score(self, name: str, x: Any) -> np.ndarray:
        self._number(name)
        return self._score(self._read(x, f"client {name}")[0])

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        features, latent = len(self.columns_), self.settings_["latent"]
        one = jax.eval_shape(self._model().init, jax.random.key(0), jnp.zeros((1, features)))
        experts = len(next(v for k, v in self._arrays.items() if k.startswith("params.")))
        return {
            "center": (features,),
            "scale": (features,),
            "anchor": (latent,),
            "threshold": (len(self.clients_),),
            "threshold_all": (),
            **{name: (experts, *leaf.shape) for name, leaf in _dotted(one).items()},
        }


@functools.lru_cache(maxsize=8)
def _geodesic_model(
    latent: int, width: int, blocks: int, dropout: float, mixup: Mixup, kappa: float
) -> Model:
    """One value for equal settings, so that a scoring program is compiled once for them."""
    return geodesic_svdd(latent=latent, width=width, blocks=blocks, dropout=dropout, mixup=mixup, kappa=kappa)


@functools.lru_cache(maxsize=8)
def _algorithm(
    protocol: str, model: Model, learning_rate: float, epochs: int, batch_size: int, max_steps: int | None
) -> FedAlgorithm:
    adam = optax.adam(learning_rate)
    if protocol == "one-shot":
        return one_shot(model, optimizer=adam, epochs=epochs, batch_size=batch_size, max_steps=max_steps)
    return fedavg(
        model, optimizer=adam, epochs=epochs, batch_size=batch_size, max_steps=max_steps, stateful=True
    )


_uniform = functools.lru_cache(maxsize=16)(federation.uniform)
_begin = jax.jit(federation.init, static_argnames="alg")


@functools.partial(jax.jit, static_argnames="model")
def _expert_scores(model: Model, params: PyTree, anchor: jax.Array, x: jax.Array) -> jax.Array:
    """``(B, N)`` from blocks of rows ``(B, N, F)``: the sum over the experts, leaves of ``params`` ``(M, ...)``."""

    def block(rows: jax.Array) -> jax.Array:
        return jnp.sum(jax.vmap(model.score, in_axes=(0, None, None))(params, anchor, rows), axis=0)

    return jax.lax.map(block, x)


def _dotted(params: PyTree) -> dict[str, Any]:
    """Leaves of nested dicts by their path, such as ``params.Dense_0.kernel``."""
    return {".".join(part.key for part in path): leaf for path, leaf in jax.tree.leaves_with_path(params)}


def _nested(leaves: Mapping[str, Any]) -> PyTree:
    """The inverse of :func:`_dotted`."""
    tree: dict[str, Any] = {}
    for name, leaf in leaves.items():
        *folders, last = name.split(".")
        place = tree
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = leaf
    return tree
