"""What the studies measure with, against answers known beforehand; small runs, statistically tight."""

import numpy as np
import pytest

from ridgewalk.dynamics.langevin import Langevin
from ridgewalk.kernel import Sampler
from ridgewalk.precondition.fixed import fixed
from ridgewalk.samplers import hasgld_sa
from ridgewalk.schedules import PowerDecay
from ridgewalk.studies import convergence, gaussian
from ridgewalk.studies.chains import slowest_time
from ridgewalk.studies.convergence_bias import predicted_spread_bias, spread_bias, whitened_gradient_noise
from ridgewalk.studies.convergence_operator import predicted_slope, slope_with_error, square_distances, trace_operator
from ridgewalk.studies.gaussian_samplers import DENSE, ENTRANTS, MOMENTUM, ORACLE, PAPER_GRID, PRINTED
from ridgewalk.studies.gaussian_verdict import best_rows, verdict
from ridgewalk.studies.problems import conjugate_regression


def test_positions_that_take_turns_are_timed_each_on_its_own():
    """AR(1) chains have autocorrelation time (1 + ρ) / (1 − ρ), also when three of them are interleaved."""
    rng = np.random.default_rng(0)
    rho, turns, length = 0.9, 3, 20_000
    state, rows = rng.normal(size=(4, turns)), []
    for _ in range(length):
        state = rho * state + np.sqrt(1 - rho**2) * rng.normal(size=state.shape)
        rows.append(state)
    draws = np.stack(rows, axis=1).reshape(4, length * turns, 1)
    time, error = slowest_time(draws, turns)
    assert time == pytest.approx(19, rel=0.15)
    assert 0 < error < 3
    assert slowest_time(draws)[0] < 10  # what the estimate says that takes them for one chain


def test_prediction_of_the_bias_holds_for_the_true_covariance():
    """With G = Σ, ε = 0.2 and batches of 50 of 1,000; without the gradient's noise, or half of it, it would not."""
    problem = conjugate_regression()
    sampler = Sampler(Langevin(), fixed(np.linalg.inv(problem.hessian)))
    run = {"seed": 0, "step_size": 0.2, "steps": 4_000, "chains": 16}
    measured = spread_bias(problem, sampler, **run, batch_size=50)
    predicted = predicted_spread_bias(0.2, whitened_gradient_noise(problem, 50))
    assert predicted > 2
    # To leading order: a random Hessian adds a share of about ε d / n = 0.016 more.
    assert abs(measured["bias"] / predicted - 1) < 0.04 + 4 * measured["bias_se"] / predicted


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
    fitted, error = slope_with_error(k, noise * k[:, None] ** -0.75)
    assert abs(fitted + 0.75) < 4 * error < 0.3
    assert predicted_slope(k, PowerDecay(alpha=0.75)) == pytest.approx(-0.75, abs=0.03)


def test_the_operator_is_traced_towards_the_covariance():
    problem = conjugate_regression()
    sampler = hasgld_sa(form="dense", memory=2)
    run = {"seed": 0, "step_size": 0.05, "batch_size": 200, "chains": 4}
    traces = trace_operator(problem, sampler, **run, marks=[20, 400])
    assert traces.shape == (2, 4, 4, 4)
    early, late = square_distances(traces, np.eye(4)).mean(axis=1)
    assert late < 0.03 < early


def _row(name, step_size, error, time, diverged=0, **more):
    row = {"sampler": name, "step_size": step_size, "gradients": 1, "diverged": diverged, **more}
    if diverged:
        return row
    row |= {"covariance_error": error, "covariance_error_se": error / 20, "autocorrelation_time": time}
    return row | {"autocorrelation_time_se": time / 20, "worst_condition": 1.0, "first_draws": [[0.0, 0.0], [0.1, 1.0]]}


def test_the_verdict_takes_each_sampler_at_its_least_error():
    rows = [_row("SGLD", 0.001, 0.05, 900), _row("SGLD", 0.002, 0.04, 1_000), _row("SGLD", 0.003, 0.01, 1, diverged=2)]
    rows += [_row(ORACLE, 0.05, 0.010, 40), _row(DENSE, 0.05, 0.011, 41), _row(MOMENTUM, 0.05, 0.02, 10, friction=0.3)]
    best = best_rows(rows)
    assert best["SGLD"]["step_size"] == 0.002
    found = verdict(best)
    assert found["wins"] == {DENSE: True, MOMENTUM: False}  # 1.1 times the oracle is allowed, 2 times is not
    assert found["comparisons"][MOMENTUM][ORACLE]["standing"] == "above"
    best["SGHMC"] = _row("SGHMC", 0.004, 0.0109, 50)
    assert verdict(best)["comparisons"][DENSE]["SGHMC"]["standing"] == "close"
    assert found["comparisons"][DENSE]["SGLD"]["error_ratio"] == pytest.approx(0.275)
    assert found["comparisons"][DENSE]["SGLD"]["error_ratio_se"] == pytest.approx(0.275 * np.sqrt(2) / 20)


def test_the_gaussian_study_tells_what_diverged(tmp_path):
    settings = gaussian.Settings(seeds=4)
    results = {}
    for piece in gaussian.plan(settings):
        known = piece.settings
        gone = known["sampler"] == PRINTED or (known["sampler"] == "SGLD" and known["step_size"] > 0.003)
        row = _row(known["sampler"], known["step_size"], 0.01, 40, diverged=4 * gone, **known["options"])
        results[piece.name] = row
    outcome = gaussian.assemble(settings, results, tmp_path)
    names = {entrant.name for entrant in ENTRANTS}
    best, claims, printed = outcome.report.sections[0].tables
    assert {row[0] for row in best.rows} == names
    assert next(row for row in best.rows if row[0] == PRINTED)[2].note == "all chains diverged at every step size"
    assert [str(cell) for cell in printed.rows[0][1:]] == ["all diverged"] * 4
    assert printed.columns[1:] == ("0.02", "0.016", "0.0128", "0.008192")
    assert pytest.approx((0.02, 0.016, 0.0128, 0.008192)) == PAPER_GRID
    assert len(claims.rows) == 5
    assert {path.name for path in tmp_path.iterdir()} == {"samples.png", "errors.png"}


def test_the_convergence_study_tells_its_numbers(tmp_path):
    settings = convergence.QUICK
    rng = np.random.default_rng(3)
    results = {}
    for piece in convergence.plan(settings):
        if piece.name.startswith("operator"):
            k = convergence._marks(settings.averages)
            size = np.array(k, float)[:, None, None, None] ** (-piece.settings["alpha"] / 2)
            traces = np.eye(2) + 0.1 * size * rng.normal(size=(len(k), 200, 2, 2))
            results[piece.name] = {"k": k, "traces": traces.tolist()}
        else:
            x = piece.settings.get("batch_size", piece.settings["step_size"])
            row = {"x": x, "diverged": 0, "bias": 0.1, "bias_se": 0.01, "distance": 0.1, "predicted": 0.1}
            base = piece.settings.get("base")
            results[piece.name] = row | ({"base": base, "x": piece.settings["memory"]} if base else {})
    outcome = convergence.assemble(settings, results, tmp_path)
    for curve in outcome.numbers["operator"]["curves"]:
        assert curve["slope"] == pytest.approx(-curve["alpha"], abs=0.1)
    assert outcome.numbers["operator"]["fixed_point_distance"] < 0.01
    tables = [table for section in outcome.report.sections for table in section.tables]
    assert [len(table.rows) for table in tables] == [3, 4, 3, 3, 3]
    assert {path.name for path in tmp_path.iterdir()} == {"operator.png", "biases.png"}
