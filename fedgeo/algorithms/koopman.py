"""Koopman models of windowed streams: lift, reduced operator, residual score. FedKAD, sections IV-A to IV-F."""

import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedgeo.protocol import Key
from manifolds import linalg

_matmul = functools.partial(jnp.matmul, precision="highest")


class Lift(NamedTuple):
    """The fixed observables of eq. 7, shared by all clients: ``Phi(z) = [z, tanh(weight z + bias)]``.

    Attributes:
        weight: ``(d_lift, W, C)``.
        bias: ``(d_lift,)``.
    """

    weight: jax.Array
    bias: jax.Array

    @property
    def matrix(self) -> jax.Array:
        """The weight ``(d_lift, W C)`` of a flattened window."""
        return self.weight.reshape(self.weight.shape[0], self.wide)

    @property
    def wide(self) -> int:
        """W C."""
        return self.weight.shape[1] * self.weight.shape[2]

    @property
    def dimension(self) -> int:
        """D = W C + d_lift."""
        return self.wide + self.weight.shape[0]

    def __call__(self, z: jax.Array) -> jax.Array:
        """Lifted states ``(..., D)`` of windowed states ``(..., W C)``."""
        hidden = jnp.einsum("...d,ld->...l", z, self.matrix, precision="highest")
        bias = jnp.expand_dims(self.bias, range(hidden.ndim - 1))
        return jnp.concatenate([z, jnp.tanh(hidden + bias)], axis=-1)

    def window(self, channels: int) -> int:
        """W; ValueError for streams of another number of channels than the lift was made for."""
        _, window, wanted = self.weight.shape
        if channels != wanted:
            raise ValueError(
                f"this lift reads {wanted} channels, got streams of {channels}; "
                f"make one with random_lift(key, channels={channels})"
            )
        return window


def random_lift(key: Key, channels: int, *, window: int = 20, size: int = 128) -> Lift:
    """Random tanh features: weights N(0, 1/d), bias U(-1, 1); eq. 7 says only "fixed random".

    Args:
        key: the seed that all clients share.
        channels: C.
        window: W.
        size: d_lift, 0 for none.
    """
    if min(channels, window) < 1 or size < 0:
        raise ValueError(f"need channels, window >= 1 and size >= 0, got {channels}, {window}, {size}")
    weight_key, bias_key = jax.random.split(key)
    return Lift(
        jax.random.normal(weight_key, (size, window, channels)) / jnp.sqrt(window * channels),
        jax.random.uniform(bias_key, (size,), minval=-1.0, maxval=1.0),
    )


def windows(x: jax.Array, window: int) -> jax.Array:
    """Windowed states of eq. 4, oldest row first: ``(T, C) -> (T-W+1, W C)``; row i ends at time i+W-1."""
    count = max(x.shape[0] - window + 1, 0)
    return jnp.concatenate([x[lag : lag + count] for lag in range(window)], axis=1)


def fit_operator(pap: jax.Array, pbp: jax.Array, ridge: float) -> jax.Array:
    """Ridge-guarded reduced operator, eq. 10: ``Q = P'YX'P (P'XX'P + lambda I)^-1``.

    ``lambda = ridge * tr(P'XX'P) / r``, so that the ridge depends neither on units nor on the number of rows; the
    paper gives 0.01 and no unit.

    Args:
        pap: ``P'XX'P``, ``(..., r, r)``.
        pbp: ``P'YX'P``, ``(..., r, r)``.
        ridge: relative to the mean eigenvalue of ``pap``.

    Returns:
        ``(..., r, r)``; zero for a client without rows.
    """
    r = pap.shape[-1]
    scale = jnp.trace(pap, axis1=-2, axis2=-1)[..., None, None] / r
    scale = jnp.where(scale > 0, scale, 1)
    eye = jnp.broadcast_to(jnp.eye(r, dtype=pap.dtype), pap.shape)
    inv_l = linalg.inverse_cholesky(pap / scale + ridge * eye)
    inverse = jnp.einsum("...ki,...kj->...ij", inv_l, inv_l, precision="highest")
    return jnp.matmul(pbp / scale, inverse, precision="highest")


def spectral_radius(q: jax.Array, *, squarings: int = 20) -> jax.Array:
    """Largest modulus of an eigenvalue by Gelfand's formula ``|Q^k|^(1/k)``, k = 2^squarings; matmul only.

    Args:
        q: ``(..., r, r)``.
        squarings: each halves the error of the logarithm.

    Returns:
        ``(...)``; 0 for a nilpotent matrix.
    """
    log_radius = jnp.zeros(q.shape[:-2], q.dtype)
    zero = jnp.zeros(q.shape[:-2], bool)
    for step in range(squarings + 1):
        norm = jnp.sqrt(jnp.sum(q * q, axis=(-2, -1)))
        zero = zero | (norm == 0)
        safe = jnp.where(norm > 0, norm, 1)
        log_radius = log_radius + jnp.log(safe) / 2**step
        q = q / safe[..., None, None]
        if step < squarings:
            q = jnp.matmul(q, q, precision="highest")
    return jnp.where(zero, 0, jnp.exp(log_radius))


def cap_spectrum(q: jax.Array, cap: float) -> jax.Array:
    """Scale ``q`` so that its spectral radius is at most ``cap``; the paper names a cap of 0.995 and no method."""
    radius = spectral_radius(q)[..., None, None]
    return q * jnp.where(radius > cap, cap / jnp.where(radius > 0, radius, 1), 1)


Residual = Literal["full", "newest"]
Scale = Literal["none", "variance", "log"]


class Detector(NamedTuple):
    """What one device keeps: ``Phi(t+h)`` is predicted as ``readout operator^(h-1) basis' Phi(t)``.

    Attributes:
        lift: eq. 7.
        basis: orthonormal, ``(D, r)``.
        operator: ``(r, r)``.
        readout: ``(D, r)``; None for ``basis operator``, which keeps predictions in the span of the basis (the paper).
        variance: ``(D,)`` of the training residuals, by entry; None where no score divides by it.
    """

    lift: Lift
    basis: jax.Array
    operator: jax.Array
    readout: jax.Array | None = None
    variance: jax.Array | None = None

    def predicts(self) -> jax.Array:
        """``(D, r)``: what ``basis' Phi(t)`` says of ``Phi(t+1)``."""
        return _matmul(self.basis, self.operator) if self.readout is None else self.readout


def residuals(
    detector: Detector,
    x: jax.Array,
    *,
    horizon: int = 1,
    residual: Residual = "full",
    scale: Scale = "none",
    chunk: int = 2048,
) -> jax.Array:
    """Mean squared prediction error of section IV-F for every row of a stream.

    The error of the predictions made at t stands at t + H, the first time at which it can be known.

    Args:
        detector: the model.
        x: ``(T, C)`` in time order, scaled as in training.
        horizon: H, at least 1.
        residual: ``"full"`` counts all D entries of Phi (the paper), and so every row W times; ``"newest"`` only the C
            entries that are new.
        scale: ``"none"`` adds up squared errors ``e^2`` (the paper), ``"variance"`` adds ``e^2 / v``, v the variance
            of each entry's training residual, ``"log"`` adds ``log(1 + e^2 / v)``, by which no single entry can
            outweigh all others: the negative log-likelihood of independent Cauchy errors.
        chunk: rows lifted at a time, which bounds memory and changes no result.

    Returns:
        ``(T,)``; the first W - 1 + H are NaN.
    """

    def total(errors: jax.Array) -> jax.Array:
        return jnp.sum(errors, axis=-1)

    return fold_errors(detector, x, total, (), horizon, residual, scale, chunk)


def contributions(
    detector: Detector,
    x: jax.Array,
    *,
    horizon: int = 1,
    residual: Residual = "full",
    scale: Scale = "none",
    chunk: int = 2048,
) -> jax.Array:
    """The parts of :func:`residuals` by channel, to tell which sensors caused an alarm.

    Args:
        detector: the model.
        x: ``(T, C)``.
        horizon: H.
        residual: as for the score.
        scale: as for the score.
        chunk: rows lifted at a time.

    Returns:
        ``(T, C + 1)``, rows that add up to the score; the last column is the lift's part, which belongs to no single
        channel and is 0 for ``residual="newest"``.
    """
    channels = x.shape[1]
    wide = detector.lift.wide

    def by_channel(errors: jax.Array) -> jax.Array:
        rows = errors[:, :wide] if residual == "full" else errors
        parts = jnp.sum(rows.reshape(len(errors), -1, channels), axis=1)
        rest = jnp.sum(errors[:, wide:], axis=1, keepdims=True)
        return jnp.concatenate([parts, rest], axis=1)

    return fold_errors(detector, x, by_channel, (channels + 1,), horizon, residual, scale, chunk)


def counted(
    residual: Residual, scale: Scale, detector: Detector, channels: int
) -> tuple[slice, jax.Array | None]:
    """The entries of Phi that a score counts, and their variances where it divides by them.

    Raises:
        ValueError: an unknown name, or a scale for a detector without variances.
    """
    if residual not in ("full", "newest"):
        raise ValueError(f'residual must be "full" or "newest", got {residual!r}')
    if scale not in ("none", "variance", "log"):
        raise ValueError(f'scale must be "none", "variance" or "log", got {scale!r}')
    wide = detector.lift.wide
    entries = slice(wide - channels, wide) if residual == "newest" else slice(None)
    if scale == "none":
        return entries, None
    if detector.variance is None:
        raise ValueError(f'scale="{scale}" needs a detector with variances; deploy it with the same scale')
    return entries, detector.variance[entries]


def rescale(errors: jax.Array, variance: jax.Array | None, scale: Scale) -> jax.Array:
    """What each entry adds to the score, from its error ``(..., n)`` and variance ``(n,)``."""
    squares = errors * errors
    if variance is None:
        return squares
    squares = squares / jnp.expand_dims(variance, range(errors.ndim - 1))
    return jnp.log1p(squares) if scale == "log" else squares


def fold_errors(
    detector: Detector,
    x: jax.Array,
    reduce: Callable[[jax.Array], jax.Array],
    shape: tuple[int, ...],
    horizon: int,
    residual: Residual,
    scale: Scale,
    chunk: int,
) -> jax.Array:
    """``reduce`` of every row's rescaled errors, averaged over the horizon; what all scores are made of.

    Args:
        detector: the model.
        x: ``(T, C)``.
        reduce: ``(rows, n) -> (rows, *shape)``, of the entries that ``residual`` counts.
        shape: of a row's result.
        horizon: H.
        residual: see :func:`residuals`.
        scale: see :func:`residuals`.
        chunk: rows lifted at a time.

    Returns:
        ``(T, *shape)``; the first W - 1 + H are NaN.
    """
    steps, channels = x.shape
    x = x.astype(jnp.result_type(x, detector.basis))  # integers have no NaN
    window = detector.lift.window(channels)
    entries, variance = counted(residual, scale, detector, channels)
    readout = detector.predicts()[entries]
    count = steps - window + 1 - horizon  # predictions that can be checked
    if count <= 0:
        return jnp.full((steps, *shape), jnp.nan, x.dtype)
    chunk = min(chunk, count)
    blocks = -(-count // chunk)
    padded = jnp.pad(x, ((0, blocks * chunk - count), (0, 0)))
    span = chunk + window - 1 + horizon

    def block(start: jax.Array) -> jax.Array:
        rows = jax.lax.dynamic_slice_in_dim(padded, start, span)
        phi = detector.lift(windows(rows, window))
        state = _matmul(phi[:chunk], detector.basis)
        total = jnp.zeros((chunk, *shape), x.dtype)
        for h in range(1, horizon + 1):
            errors = phi[h : h + chunk, entries] - _matmul(state, readout.T)
            total = total + reduce(rescale(errors, variance, scale))
            state = _matmul(state, detector.operator.T)
        return total / horizon

    errors = jax.lax.map(block, jnp.arange(blocks) * chunk).reshape(-1, *shape)[:count]
    return jnp.concatenate([jnp.full((steps - count, *shape), jnp.nan, x.dtype), errors])


def smooth(scores: jax.Array, width: int) -> jax.Array:
    """Causal moving mean over the last ``width`` known scores: ``(T,) -> (T,)``; NaN where the score itself is.

    An infinite score is known, and makes the mean infinite: it is an alarm, not a gap.
    """
    known = ~jnp.isnan(scores)

    def moving_sum(values: jax.Array) -> jax.Array:  # summed anew for each row: a running sum would drift
        zero = jnp.zeros((), values.dtype)
        return jax.lax.reduce_window(values, zero, jax.lax.add, (width,), (1,), [(width - 1, 0)])

    total, count = moving_sum(jnp.where(known, scores, 0)), moving_sum(known.astype(scores.dtype))
    return jnp.where(known, total / jnp.maximum(count, 1), jnp.nan)
