"""Configurational and kinetic temperatures, and gradients at draws, against formulas."""

import numpy as np
import pytest
from tests.diagnostics.runs import GAUSSIAN, REGRESSION, healthy, run

import ridgewalk as rw
from ridgewalk.diagnostics.draw_access import map_gradients


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
