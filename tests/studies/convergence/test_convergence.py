"""The convergence study: what it measures against answers known beforehand, and its report."""

import numpy as np
import pytest

from ridgewalk.dynamics import Langevin
from ridgewalk.kernel import Sampler
from ridgewalk.preconditioners.static import fixed
from ridgewalk.samplers import hasgld_sa
from ridgewalk.schedules import PowerDecay
from ridgewalk.studies.convergence import study
from ridgewalk.studies.convergence.measure import (
    BiasRow,
    ChainSettings,
    OperatorRow,
    conjugate_regression,
    predicted_slope,
    predicted_variance_bias,
    slope_with_se,
    square_distances,
    trace_operator,
    variance_bias,
    whitened_gradient_noise,
)


def test_prediction_of_the_bias_holds_for_the_true_covariance():
    """With G = Σ, ε = 0.2 and batches of 50 of 1,000; without the gradient's noise, or half of it, it would not."""
    problem = conjugate_regression()
    sampler = Sampler(Langevin(), fixed(np.linalg.inv(problem.hessian)))
    run = ChainSettings(seed=0, step_size=0.2, steps=4_000, chains=16)
    measured = variance_bias(problem, sampler, run, x=0.2, batch_size=50)
    predicted = predicted_variance_bias(0.2, whitened_gradient_noise(problem, 50))
    assert predicted > 2
    # To leading order: a random Hessian adds a share of about ε d / n = 0.016 more.
    assert abs(measured.bias / predicted - 1) < 0.04 + 4 * measured.bias_se / predicted


def test_gradient_noise_is_that_of_minibatches():
    problem = conjugate_regression()
    features, responses = (np.asarray(part) for part in problem.target.data)
    rng = np.random.default_rng(1)
    root = np.linalg.cholesky(np.linalg.inv(problem.hessian))
    positions = problem.mode + rng.normal(size=(4_000, 4)) @ root.T
    rows = rng.integers(0, 1_000, size=(4_000, 20))
    residuals = responses - positions @ features.T
    each = -50 * np.einsum("kb,kbi->ki", np.take_along_axis(residuals, rows, 1), features[rows])
    away = each + residuals @ features
    found = np.mean((away @ root) ** 2)
    assert whitened_gradient_noise(problem, 20) == pytest.approx(found, rel=0.06)


def test_slopes_are_found_with_their_error():
    k = np.geomspace(100, 1_000, 12)
    noise = np.random.default_rng(2).chisquare(4, size=(12, 400)) / 4
    fitted, error = slope_with_se(k, noise * k[:, None] ** -0.75)
    assert abs(fitted + 0.75) < 4 * error < 0.3
    assert predicted_slope(k, PowerDecay(alpha=0.75)) == pytest.approx(-0.75, abs=0.03)


@pytest.mark.slow
def test_the_operator_is_traced_towards_the_covariance():
    problem = conjugate_regression()
    sampler = hasgld_sa(form="dense", memory=2)
    run = {"seed": 0, "step_size": 0.05, "batch_size": 200, "chains": 4}
    traces = trace_operator(problem, sampler, **run, at_steps=[20, 400])
    assert traces.shape == (2, 4, 4, 4)
    early, late = square_distances(traces, np.eye(4)).mean(axis=1)
    assert late < 0.03 < early


def test_the_report_has_the_slopes_and_biases(tmp_path):
    settings = study.QUICK
    rng = np.random.default_rng(3)
    rows = {}
    for task in study.plan(settings):
        if task.name.startswith("operator"):
            k = study.averages_shown(settings.averages)
            size = np.array(k, float)[:, None, None, None] ** (-task.settings["alpha"] / 2)
            traces = np.eye(2) + 0.1 * size * rng.normal(size=(len(k), 200, 2, 2))
            rows[task.name] = OperatorRow(k, traces.tolist())
        else:
            base = task.settings.get("base", "")
            x = task.settings["memory"] if base else task.settings.get("batch_size", task.settings["step_size"])
            rows[task.name] = BiasRow(x, 0, 0.1, 0.01, 0.1, 0.1, base)
    outcome = study.assemble(settings, rows, tmp_path)
    for curve in outcome.numbers["operator"]["curves"]:
        assert curve["slope"] == pytest.approx(-curve["alpha"], abs=0.1)
    assert outcome.numbers["operator"]["fixed_point_distance"] < 0.01
    tables = [table for section in outcome.report.sections for table in section.tables]
    assert [len(table.rows) for table in tables] == [3, 4, 3, 3, 3]
    assert {path.name for path in tmp_path.iterdir()} == {"operator.png", "biases.png"}
