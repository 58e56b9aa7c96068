"""The local Gaussian model: stationary distributions and predicted errors against simulated chains; its fit at
probe points against exact curvature and noise.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ridgewalk as rw
from ridgewalk.gradients import as_estimator
from ridgewalk.sampling.batching import BatchIndexer
from ridgewalk.tuning import local_gaussian
from ridgewalk.tuning.local_gaussian import (
    STABILITY_MARGIN,
    IntendedRun,
    LocalGaussian,
    ProbePoints,
    fit_local_gaussian,
    optimal_step_size,
    predict_error,
    stationary_distribution,
)


def model_of(curvatures, noise=0.0):
    a = np.asarray(curvatures, float)
    return LocalGaussian(a, noise * np.diag(a), np.eye(a.size), np.ones(a.size), a.size, float(a.max()))


@pytest.mark.parametrize(
    "dynamics",
    [
        rw.Hamiltonian(0.3),
        rw.BAOAB(0.3),
        pytest.param(rw.BAOAB(1.0), marks=pytest.mark.slow),
        pytest.param(rw.DelayedLangevin(2), marks=pytest.mark.slow),
        pytest.param(rw.Langevin(temperature=0.5), marks=pytest.mark.slow),
    ],
)
def test_stationary_distribution_is_that_of_a_simulated_chain(dynamics):
    a = np.array([1.0, 0.2])
    stationary = stationary_distribution(dynamics, 0.3, model_of(a))
    target = rw.Density(lambda x: -0.5 * jnp.sum(jnp.asarray(a) * x**2))
    sampler = rw.Sampler(dynamics, rw.Identity())
    result = rw.sample(
        jax.random.key(0), sampler, target, jnp.zeros(2), steps=20_000, step_size=0.3, chains=8, burn_in=200,
        progress=False,
    )  # fmt: skip
    chains = np.asarray(result.positions).var(axis=1)
    error = 4 * chains.std(axis=0, ddof=1) / np.sqrt(8)
    np.testing.assert_array_less(np.abs(chains.mean(axis=0) - np.diag(stationary.covariance)), error)


@pytest.mark.parametrize("dynamics", [rw.Langevin(), rw.Hamiltonian(0.3)])
def test_the_step_size_for_two_models_is_stable_for_both(dynamics):
    """The geometric mean of the two optima is unstable for the model of larger curvature."""
    run, models = IntendedRun(40), [model_of([1.0]), model_of([400.0])]
    each = [optimal_step_size(dynamics, [model], run) for model in models]
    value = optimal_step_size(dynamics, models, run)
    assert not stationary_distribution(dynamics, math.sqrt(each[0] * each[1]), models[1]).stable
    assert all(stationary_distribution(dynamics, STABILITY_MARGIN * value, model).stable for model in models)
    assert min(each) <= value <= max(each)


@pytest.mark.parametrize("criterion", ["joint", "marginal"])
def test_the_optimal_step_size_has_the_least_predicted_error(criterion):
    model, run = model_of([1.0, 0.1, 0.01], noise=10.0), IntendedRun(20_000, criterion=criterion)
    best = optimal_step_size(rw.Langevin(), [model], run)
    errors = [predict_error(rw.Langevin(), best * 2.0**k, model, run).total for k in (-2, -1, -0.25, 0, 0.25, 1, 2)]
    assert np.argmin(errors) == 3


@pytest.mark.parametrize("friction", [0.01, 0.3, 1.0])
def test_baoab_has_no_step_size_bias(friction):
    """Up to the limit of stability, here at nine tenths of it; gradient noise heats as it does Hamiltonian dynamics."""
    a = np.array([1.0, 0.2])
    step_size = 0.9 * 2 * (2 - friction)
    found = stationary_distribution(rw.BAOAB(friction), step_size, model_of(a))
    np.testing.assert_allclose(np.diag(found.covariance), 1 / a, rtol=1e-9)
    assert not stationary_distribution(rw.BAOAB(friction), step_size / 0.89, model_of(a)).stable
    small = 1e-4
    noisy, former = (
        np.diag(stationary_distribution(each, small, model_of(a, noise=200.0)).covariance) * a - 1
        for each in (rw.BAOAB(friction), rw.Hamiltonian(friction))
    )
    np.testing.assert_allclose(noisy, former, rtol=0.01)
    np.testing.assert_allclose(noisy, small * 200 * a / (2 * friction), rtol=0.01)


def test_langevin_and_full_friction_agree():
    model = model_of([2.0, 0.5], noise=3.0)
    np.testing.assert_allclose(
        stationary_distribution(rw.Langevin(), 0.2, model).covariance,
        stationary_distribution(rw.Hamiltonian(1.0), 0.2, model).covariance,
    )


def test_monte_carlo_error_is_that_of_repeated_runs():
    """RMS of the log variance of an AR(1) direction over many runs, against the prediction."""
    rng, n, runs, step_size = np.random.default_rng(0), 2_000, 400, 0.05
    x, total = rng.normal(size=runs) / np.sqrt(1 - step_size / 2), []
    for _ in range(n):
        x = (1 - step_size) * x + np.sqrt(2 * step_size) * rng.normal(size=runs)
        total.append(x)
    log_ratio, mean = np.log(np.var(total, axis=0)), np.mean(total, axis=0)
    measured = {"joint": np.mean(log_ratio**2), "marginal": np.mean(log_ratio**2 + 2 * mean**2)}
    for criterion, squared in measured.items():
        found = predict_error(rw.Langevin(), step_size, model_of([1.0]), IntendedRun(n, criterion=criterion))
        assert found.total == pytest.approx(np.sqrt(squared), rel=0.15)


def test_longer_runs_and_more_noise_need_smaller_steps():
    def best(noise=0.0, steps=20_000, chains=1):
        return optimal_step_size(rw.Langevin(), [model_of([1.0, 0.1, 0.01], noise)], IntendedRun(steps, chains))

    assert best(steps=200_000) < best() < best(steps=2_000) < 2
    assert best(chains=10) < best()
    assert best(noise=100.0) < best(noise=10.0) < best()


def test_interleaved_chains_count_as_chains():
    """HAMCMC of M = 4 is four chains of a quarter of the steps."""
    model = model_of([1.0, 0.1, 0.01], 10.0)
    interleaved = predict_error(rw.hamcmc(memory=4).dynamics, 0.01, model, IntendedRun(20_000))
    separate = predict_error(rw.Langevin(), 0.01, model, IntendedRun(5_000, chains=4))
    assert interleaved == pytest.approx(separate)


@pytest.mark.parametrize("power", [pytest.param(1.0, marks=pytest.mark.slow), 20.0])
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


@pytest.mark.parametrize("max_dense", [pytest.param(400, marks=pytest.mark.slow), 2])
def test_curvature_and_noise_of_a_regression(max_dense, monkeypatch):
    """V = N²/n Var_i(∇ log p(d_i | θ)), both from the full Hessian and from Lanczos."""
    monkeypatch.setattr(local_gaussian, "MAX_DENSE", max_dense)
    monkeypatch.setattr(local_gaussian, "LANCZOS_STEPS", 3)
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
