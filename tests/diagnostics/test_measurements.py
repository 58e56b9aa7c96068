"""Potentials that drift or differ between chains are found, others not; temperatures follow formulas; costs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.diagnostics.runs import GAUSSIAN, REGRESSION, healthy, run

import ridgewalk as rw
from ridgewalk.diagnostics import measurements
from ridgewalk.diagnostics.draw_access import map_gradients
from ridgewalk.diagnostics.measurements import are_separated, compare_potentials

SCALE = 1.0


def autoregressive(rng, chains=4, draws=1_000, correlation=0.9):
    """Stationary series with unit variance."""
    values = rng.normal(size=(chains, draws))
    values[:, 1:] *= np.sqrt(1 - correlation**2)
    for t in range(1, draws):
        values[:, t] += correlation * values[:, t - 1]
    return values


@pytest.mark.parametrize("correlation", [0.0, pytest.param(0.9, marks=pytest.mark.slow), 0.98])
def test_stationary_potentials_are_not_flagged(correlation):
    rng = np.random.default_rng(0)
    found = [compare_potentials(autoregressive(rng, correlation=correlation), SCALE) for _ in range(100)]
    flagged = sum(bool(one.drifting or one.late or one.above) for one in found)
    assert flagged <= 1


def test_a_drift_is_found_in_the_chain_that_has_it():
    values = autoregressive(np.random.default_rng(1))
    values[2] += np.linspace(40, 0, 1_000)
    found = compare_potentials(values, SCALE)
    assert found.drifting == (2,)
    assert not found.late


def test_a_small_drift_of_all_chains_is_found_from_their_mean():
    values = autoregressive(np.random.default_rng(1), chains=16, correlation=0.5) + np.linspace(3.2, 0, 1_000)
    assert compare_potentials(values, SCALE).drifting == tuple(range(16))
    assert not compare_potentials(values[:, 500:], 10 * SCALE).drifting


def test_a_drift_that_has_ended_is_late():
    values = autoregressive(np.random.default_rng(1), correlation=0.5)
    values[:, :200] += 20
    found = compare_potentials(values, SCALE)
    assert (found.drifting, found.late, found.above) == ((), True, ())


def test_a_chain_above_the_others_is_in_a_mode_or_stuck():
    values = autoregressive(np.random.default_rng(1), correlation=0.5)
    values[1] += 8
    found = compare_potentials(values, SCALE)
    assert (found.drifting, found.above, found.stuck) == ((), (1,), False)
    assert found.lowest != 1
    values[1] = 8 + 0.1 * np.sin(np.linspace(0, 6 * np.pi, 1_000))
    assert compare_potentials(values, SCALE).stuck


def test_too_few_or_nonfinite_potentials_are_not_compared():
    assert compare_potentials(np.zeros((2, 31)), SCALE) is None
    assert compare_potentials(np.full((2, 100), np.nan), SCALE) is None


def test_separated_chains_mix_within_themselves():
    rng = np.random.default_rng(1)
    values = autoregressive(rng, chains=2, correlation=0.5)
    assert not are_separated(values)
    values[1] += 10
    assert are_separated(values)
    creeping = np.stack([np.linspace(0, 1, 1_000), np.linspace(20, 21, 1_000)])
    assert not are_separated(creeping)


def plan(rows, batch_size, steps):
    """What each measurement of a run of two chains would cost, relative to the run."""
    data = jnp.ones((rows, 1))
    target = rw.Posterior(lambda x: -0.5 * jnp.sum(x**2), lambda x, b: -0.5 * (b[:, 0] - x[0]) ** 2, data)
    options = {"steps": steps, "step_size": 1e-6, "batch_size": batch_size, "chains": 2, "keep": "moments"}
    result = rw.sample(jax.random.key(0), rw.sgld(), target, jnp.zeros(1), progress=False, **options)
    whole = 2 * steps * (batch_size or rows)
    draws, examples = measurements._gradient_plan(result)
    rows_of = (
        (measurements.CURVATURE_GRADIENTS, measurements._subsample),
        (measurements.NOISE_BATCHES, measurements._batch_rows),
    )
    others = [n * f(result) * measurements._affordable(result, n, f) for n, f in rows_of]
    return draws * (examples or rows) / whole, *(cost / whole for cost in others)


@pytest.mark.parametrize(
    ("rows", "batch_size", "steps"),
    [
        pytest.param(100, None, 10_000, marks=pytest.mark.slow),
        (10_000, 50, 20_000),
        pytest.param(100_000, 100, 20_000, marks=pytest.mark.slow),
    ],
)
def test_measurements_cost_at_most_a_tenth_of_the_run(rows, batch_size, steps):
    assert sum(plan(rows, batch_size, steps)) <= 0.1


def test_configurational_temperature_follows_linear_theory():
    """Along an eigenvalue λ of the Hessian the variance is T / (λ (1 − ελ/2)), so its temperature is 1 / (1 − ελ/2)."""
    epsilon = 0.8 / GAUSSIAN.steepest
    result = run(rw.sgld(), GAUSSIAN.target, 2, step_size=epsilon, thin=10, steps=40_000)
    curvatures = np.linalg.eigvalsh(np.linalg.inv(GAUSSIAN.covariance))
    exact = np.mean(1 / (1 - epsilon * curvatures / 2))
    seen = rw.configurational_temperature(result, max_draws=10**6)
    assert abs(seen.value - exact) < 4 * seen.error
    assert seen.error < 0.05 * exact
    assert str(seen) == f"{seen.value:.3g} ± {seen.error:.2g}"
    assert abs(exact - 1) > 4 * seen.error, "the test distinguishes the two"


def test_minibatch_gradients_leave_the_temperature_unbiased():
    result = healthy("sgld, minibatch")
    whole = rw.configurational_temperature(result, max_draws=4000)
    part = rw.configurational_temperature(result, max_draws=4000, examples=50)
    assert abs(part.value - whole.value) < 4 * np.hypot(part.error, whole.error)


def test_gradients_are_those_of_the_whole_potential():
    result = healthy("sgld, minibatch")
    some = result.positions[:2, :3]
    got = map_gradients(result, some, lambda _, gradient: gradient)
    precision = np.linalg.inv(REGRESSION.covariance)
    np.testing.assert_allclose(got, (np.asarray(some) - REGRESSION.mean) @ precision, rtol=1e-8)


def test_kinetic_temperature():
    seen = rw.kinetic_temperature(healthy("sghmc"))
    assert abs(seen.value - 1) < 4 * seen.error + 0.03
    with pytest.raises(ValueError, match="Langevin dynamics have no momentum"):
        rw.kinetic_temperature(healthy("hasgld_sa"))
