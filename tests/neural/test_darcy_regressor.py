"""From Darcy fields to calibrated fluxes: coverage where it was trained, wider intervals where it was not."""

import numpy as np
import pytest

import ridgewalk as rw
from ridgewalk.darcy.grid import Grid
from ridgewalk.darcy.problems import VaryingPermeability, karhunen_loeve
from ridgewalk.neural.assessment import evaluate


def fields(samples, kappa_0=10.0, variance=2.0, first=0):
    expansion = karhunen_loeve(Grid(20, 20), 32, (0.2, 0.3), variance)
    drawn = VaryingPermeability(expansion, "linear", kappa_0).draw(0, range(first, first + samples))
    return drawn["permeability"], drawn["flux"]


@pytest.fixture(scope="module")
def surrogate():
    model = rw.NeuralRegressor("mlp:64x64:silu", optimiser_steps=500, steps=150, burn_in=50)
    return model.fit(*fields(200))


@pytest.mark.slow
def test_coverage_after_recalibration(surrogate):
    found = evaluate(surrogate, *fields(300, first=1_000))
    at = dict(zip(found.levels, found.coverage, strict=True))
    assert 0.85 < at[0.9] < 0.95
    assert found.calibration_error < 0.08
    assert found.relative_error < 3.0  # a mean field is off by 9 %
    assert surrogate.report_.held_out == 40
    assert surrogate.report_.constant_outputs == 40  # no flow through bottom and top
    assert abs(surrogate.report_.temperature - 1) < 0.05


@pytest.mark.slow
@pytest.mark.parametrize(("kappa_0", "variance", "factor"), [(20.0, 2.0, 2.0), (10.0, 6.0, 1.25)])
def test_shifted_fields_get_wider_intervals(surrogate, kappa_0, variance, factor):
    """Twice the mean permeability, or three times the variance of the field."""

    def width(x):
        lower, upper = surrogate.predict_interval(x)
        return np.mean(upper - lower)

    assert width(fields(100, kappa_0, variance, first=2_000)[0]) > factor * width(fields(100, first=1_000)[0])
