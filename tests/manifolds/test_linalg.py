"""Inverses from matrix products against NumPy and SciPy."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from manifolds import linalg
from tests.manifolds.common import check_derivatives, double, eps, gap

pytestmark = pytest.mark.usefixtures("strict")

KEY = jax.random.key(1)


def spd(shape, dtype):
    A = jax.random.normal(KEY, shape, dtype)
    return jnp.matmul(A, A.mT, precision="highest") + linalg.identity(A)


@pytest.mark.parametrize("p", [1, 2, 4, 5, 24, 33])
def test_inverse_cholesky(p, dtype):
    G = spd((3, p, p), dtype)
    N = linalg.inverse_cholesky(G)
    condition = np.linalg.cond(double(G)).max()
    assert gap(N, np.linalg.inv(np.linalg.cholesky(double(G)))) <= 10 * condition * eps(dtype)
    assert np.abs(np.triu(double(N), 1)).max() == 0


@pytest.mark.parametrize("p", [1, 3, 24])
def test_inverse(p, dtype):
    A = jax.random.normal(KEY, (3, p, p), dtype)
    M = spd((3, p, p), dtype) + 10 * (A - A.mT)
    condition = np.linalg.cond(double(M)).max()
    assert gap(linalg.inverse(M), np.linalg.inv(double(M))) <= 10 * condition * eps(dtype)


@pytest.mark.parametrize("p", [1, 3, 24])
def test_inverse_sqrt(p, dtype):
    S = spd((3, p, p), dtype)
    exact = np.stack([scipy.linalg.inv(scipy.linalg.sqrtm(s)) for s in double(S)])
    condition = np.linalg.cond(double(S)).max()
    assert gap(linalg.inverse_sqrt(S, floor=1.0), exact) <= 10 * condition * eps(dtype)


@pytest.mark.parametrize("size", [0.0, 1e-6, 0.3, 5.0, 60.0])
def test_expm(size, dtype):
    A = jax.random.normal(KEY, (3, 6, 6), dtype) * jnp.asarray(size / 6, dtype)
    exact = scipy.linalg.expm(double(A))
    scale = np.abs(exact).max()
    assert gap(linalg.expm(A) / jnp.asarray(scale, dtype), exact / scale) <= 50 * max(1, size) * eps(dtype)


def test_expm_beyond_its_range_is_not_a_number():
    assert np.isnan(np.asarray(linalg.expm(1e6 * jnp.ones((2, 2))))).all()


def test_derivatives(x64):
    G = spd((5, 5), jnp.float64)
    check_derivatives(lambda G: linalg.inverse_cholesky(linalg.sym(G)), (G,), order=2)
    check_derivatives(linalg.inverse, (G,), order=1)
    check_derivatives(lambda G: linalg.inverse_sqrt(linalg.sym(G), floor=1.0), (G,), order=1)
    check_derivatives(linalg.expm, (G / 10,), order=1)


@pytest.mark.parametrize("name", ["inverse", "inverse_cholesky", "inverse_sqrt", "expm"])
def test_bad_matrices_are_refused(name):
    f = getattr(linalg, name)
    f = (lambda A: linalg.inverse_sqrt(A, floor=1.0)) if name == "inverse_sqrt" else f
    for shape in ((2, 3), (4,)):
        with pytest.raises(ValueError, match=rf"{name}: expected square.*{re.escape(str(shape))}"):
            f(jnp.ones(shape))
    with pytest.raises(TypeError, match=rf"{name}: expected a real floating dtype, got int32"):
        f(jnp.eye(3, dtype=jnp.int32))


def test_inverse_sqrt_does_not_stall_on_a_floor_of_zero(dtype):
    S = spd((3, 4, 4), dtype)
    exact = linalg.inverse_sqrt(S, floor=1.0)
    assert gap(linalg.inverse_sqrt(S, floor=0.0), exact) <= 50 * eps(dtype)
