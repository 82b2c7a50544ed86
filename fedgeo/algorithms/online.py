"""Scores of a stream row by row, equal to those of the whole stream, with a state that does not grow."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedgeo.algorithms import koopman


class Watch(NamedTuple):
    """What a device remembers between two rows.

    Attributes:
        rows: ``(W, C)`` the last rows, the newest at the end.
        seen: ``()`` rows so far, counted no further than the warm-up.
        states: ``(H, r)`` reduced states ``basis' Phi``, the newest first.
        open: ``(H,)`` errors so far of the predictions made from ``states``.
        recent: ``(smoothing,)`` the last raw scores, the newest first; NaN where there was none.
    """

    rows: jax.Array
    seen: jax.Array
    states: jax.Array
    open: jax.Array
    recent: jax.Array


def begin(detector: koopman.Detector, channels: int, *, horizon: int = 1, smoothing: int = 5) -> Watch:
    """The state before the first row of a stream of C channels; also what to go back to after a gap."""
    dtype = detector.basis.dtype
    return Watch(
        jnp.zeros((detector.lift.window(channels), channels), dtype),
        jnp.zeros((), jnp.int32),
        jnp.zeros((horizon, detector.basis.shape[1]), dtype),
        jnp.zeros(horizon, dtype),
        jnp.full(smoothing, jnp.nan, dtype),
    )


def update(
    detector: koopman.Detector,
    watch: Watch,
    row: jax.Array,
    *,
    residual: koopman.Residual = "full",
    scale: koopman.Scale = "none",
) -> tuple[Watch, jax.Array]:
    """Take in one row; O(d_lift W C + H D r) arithmetic.

    Args:
        detector: the model.
        watch: from :func:`begin` or an earlier call.
        row: ``(C,)``, scaled as in training.
        residual: as for :func:`koopman.residuals`.
        scale: as for :func:`koopman.residuals`.

    Returns:
        The new state, and this row's smoothed score: that of ``koopman.smooth(koopman.residuals(...))``, NaN during the
        first W - 1 + H rows.
    """
    window, channels = watch.rows.shape
    horizon = watch.states.shape[0]
    entries, variance = koopman.counted(residual, scale, detector, channels)
    rows = jnp.concatenate([watch.rows[1:], row[None]])
    phi = detector.lift(rows.reshape(-1))

    # The state of h rows ago predicts this row after h - 1 steps of the operator.
    carried = [watch.states[h] for h in range(horizon)]
    for h in range(1, horizon):
        carried[h:] = [jnp.matmul(detector.operator, state, precision="highest") for state in carried[h:]]
    predicted = jnp.matmul(jnp.stack(carried), detector.predicts()[entries].T, precision="highest")
    errors = koopman.rescale(phi[entries][None] - predicted, variance, scale)
    total = watch.open + jnp.sum(errors, axis=-1)

    seen = jnp.minimum(watch.seen + 1, window + horizon)
    raw = jnp.where(seen >= window + horizon, total[-1] / horizon, jnp.nan)
    recent = jnp.concatenate([raw[None], watch.recent[:-1]])
    state = jnp.matmul(phi, detector.basis, precision="highest")
    new = Watch(
        rows,
        seen,
        jnp.concatenate([state[None], watch.states[:-1]]),
        jnp.concatenate([jnp.zeros(1, total.dtype), total[:-1]]),
        recent,
    )
    known = ~jnp.isnan(recent)
    mean = jnp.sum(jnp.where(known, recent, 0)) / jnp.maximum(jnp.sum(known), 1)
    return new, jnp.where(known[0], mean, jnp.nan)
