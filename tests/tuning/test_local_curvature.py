"""The local Gaussian model fitted at probe points, against exact curvature and noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgewalk as rw
from ridgewalk.gradients import as_estimator
from ridgewalk.sampling.batching import BatchIndexer
from ridgewalk.tuning import local_curvature
from ridgewalk.tuning.local_curvature import ProbePoints, fit_local_gaussian


@pytest.mark.parametrize("power", [1.0, 20.0])
def test_curvature_of_a_likelihood_to_a_power(power):
    """H = I + w XᵀX / s², whatever the scores' variance, which grows with w²."""
    rng = np.random.default_rng(3)
    x = jnp.asarray(rng.normal(size=(500, 3)) * np.array([1.0, 0.3, 2.0]))
    y = x @ jnp.ones(3) + 0.5 * jnp.asarray(rng.normal(size=500))
    target = rw.Posterior(
        lambda w: -0.5 * jnp.sum(w**2), lambda w, batch: -0.5 * power * ((batch[1] - batch[0] @ w) / 0.5) ** 2, (x, y)
    )
    centre = jnp.broadcast_to(jnp.linalg.lstsq(x, y)[0], (4, 3))
    rows = BatchIndexer("replacement", 500, 50)
    operator = rw.Identity().init(centre[0], lambda v: v)
    model = fit_local_gaussian(jax.random.key(0), as_estimator(target), operator, ProbePoints(centre, centre), rows)
    exact = np.linalg.eigvalsh(np.eye(3) + power * np.asarray(x.T @ x) / 0.25)
    assert np.all(model.curvatures > 0.9 * exact)
    assert np.all(model.curvatures < 2 * exact), "512 scores determine it within a factor of about 1.5"


@pytest.mark.parametrize("max_dense", [400, 2])
def test_curvature_and_noise_of_a_regression(max_dense, monkeypatch):
    """V = N²/n Var_i(∇ log p(d_i | θ)), both from the full Hessian and from Lanczos."""
    monkeypatch.setattr(local_curvature, "MAX_DENSE", max_dense)
    monkeypatch.setattr(local_curvature, "LANCZOS_STEPS", 3)
    rng = np.random.default_rng(4)
    x = jnp.asarray(rng.normal(size=(500, 3)) * np.array([1.0, 0.3, 2.0]))
    y = x @ jnp.ones(3) + jnp.asarray(rng.normal(size=500))
    target = rw.Posterior(
        lambda w: -0.5 * jnp.sum(w**2), lambda w, batch: -0.5 * (batch[1] - batch[0] @ w) ** 2, (x, y)
    )
    centre = np.linalg.lstsq(x, y)[0]
    points = jnp.broadcast_to(jnp.asarray(centre), (64, 3))
    operator = rw.Identity().init(points[0], lambda v: v)
    rows = BatchIndexer("replacement", 500, 50)
    model = fit_local_gaussian(jax.random.key(0), as_estimator(target), operator, ProbePoints(points, points), rows)
    exact = np.linalg.eigvalsh(np.eye(3) + np.asarray(x.T @ x))
    np.testing.assert_allclose(model.max_curvature, exact.max(), rtol=0.15)
    gradients = np.asarray(x) * (np.asarray(x) @ centre - np.asarray(y))[:, None]
    np.testing.assert_allclose(np.trace(model.noise), 500**2 / 50 * gradients.var(0).sum(), rtol=0.15)
