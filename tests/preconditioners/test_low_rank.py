"""The low-rank form where it is fragile: single precision, negative curvature, vanishing products."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgewalk as rw
from ridgewalk.preconditioners.base import BLOCK, Transition, blocked_gram
from ridgewalk.preconditioners.low_rank import whitener

D = 60


def hessian_of(curvatures, seed=0):
    axes, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(D, D)))
    return axes @ np.diag(curvatures) @ axes.T, axes


def swept(form, hessians, dtype=jnp.float64):
    """The operator after a sweep on each Hessian."""
    operator = form.init(jnp.zeros(D, dtype), lambda x: jnp.asarray(hessians[0], dtype) @ x)
    period = form.curvature_every * (form.rank + form.spare)
    zero = jnp.zeros(D, dtype)

    @jax.jit
    def sweep(operator, step, hessian):
        transition = Transition(step, zero, zero, zero, zero, zero, lambda x: hessian @ x)
        return form.update(operator, transition)[0]

    for k, hessian in enumerate(hessians):
        operator = sweep(operator, jnp.asarray((k + 1) * period), jnp.asarray(hessian, dtype))
    return operator


def columns(function, dtype=jnp.float64):
    return np.asarray(jax.vmap(function, out_axes=1)(jnp.eye(D, dtype=dtype)), float)


BULK = np.linspace(0.5, 2, D - 5)


def test_drift_and_noise_agree_in_single_precision():
    """Outliers to 10⁵ over a bulk of 1: rounding must not set G apart from S Sᵀ along them."""
    hessian, axes = hessian_of(np.concatenate([np.logspace(3, 5, 5), BULK]))
    operator = swept(rw.LowRank(rank=5, spare=3), [hessian] * 60, jnp.float32)
    g, s = columns(operator.multiply, jnp.float32), columns(operator.factor, jnp.float32)
    along = np.diag(axes.T @ g @ axes)
    assert np.diag(axes.T @ s @ s.T @ axes)[:5] == pytest.approx(along[:5], rel=0.02)
    eigenvalues = np.diag(axes.T @ g @ hessian @ axes)
    assert eigenvalues[:5] == pytest.approx(np.ones(5), rel=0.05)
    assert eigenvalues.max() < 2


@pytest.mark.slow
def test_variances_along_outliers_in_single_precision():
    hessian, axes = hessian_of(np.concatenate([np.logspace(3, 4.5, 5), BULK]))
    precision = jnp.asarray(hessian, jnp.float32)
    sampler = rw.Sampler(rw.Langevin(), rw.LowRank(rank=5, spare=3))
    result = rw.sample(
        jax.random.key(0), sampler, rw.Density(lambda x: -0.5 * x @ precision @ x), jnp.zeros(D, jnp.float32),
        steps=20_000, step_size=0.05, chains=4, burn_in=2_000, thin=10, progress=False,
    )  # fmt: skip
    along = np.asarray(result.positions, float) @ axes[:, :5]
    assert along.var((0, 1)) * np.logspace(3, 4.5, 5) == pytest.approx(np.ones(5), abs=0.12)


def test_negative_curvature_counts_by_its_size():
    hessian, axes = hessian_of(np.concatenate([[-300.0, 400.0, 200.0, 100.0, 50.0], BULK]))
    operator = swept(rw.LowRank(rank=5, spare=3), [hessian] * 100)
    product = np.diag(axes.T @ columns(operator.multiply) @ hessian @ axes)
    assert product[:5] == pytest.approx([-1, 1, 1, 1, 1], rel=0.02)
    assert product.max() < 2


def test_directions_survive_a_sweep_that_sees_nothing():
    hessian, axes = hessian_of(np.concatenate([np.logspace(2, 4, 5), BULK]))
    operator = swept(rw.LowRank(rank=5, spare=3, first_curvature=1e4), [0 * hessian, *[hessian] * 40])
    product = np.diag(axes.T @ columns(operator.multiply) @ hessian @ axes)
    assert product[:5] == pytest.approx(np.ones(5), rel=0.05)


def test_a_hessian_of_low_rank_leaves_g_bounded_by_rounding():
    hessian, _ = hessian_of(np.concatenate([np.logspace(2, 4, 3), np.zeros(D - 3)]))
    operator = swept(rw.LowRank(rank=5, spare=3), [hessian] * 60, jnp.float32)
    g = columns(operator.multiply, jnp.float32)
    assert np.all(np.isfinite(g))
    assert np.linalg.eigvalsh((g + g.T) / 2)[-1] <= 1 / (99 * np.finfo(np.float32).eps * 1e4)


def test_long_products_and_whitener():
    rows = jax.random.normal(jax.random.key(0), (3, 2 * BLOCK + 17))
    np.testing.assert_allclose(blocked_gram(rows, rows[:2]), rows @ rows[:2].T, rtol=1e-10)
    white = whitener(blocked_gram(rows, rows)) @ rows
    np.testing.assert_allclose(white @ white.T, np.eye(3), atol=1e-12)
