"""The study of tall data: its reference, its errors, extrapolated times, and its claims."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from ridgewalk.studies.framework.study import Preset, from_json, to_json
from ridgewalk.studies.tall import problem, study
from ridgewalk.studies.tall.problem import Gaussian, as_problem, errors_of, importance_reference, laplace
from ridgewalk.studies.tall.report import (
    DENSE_NUTS,
    HMCECS,
    NUTS,
    RIDGEWALK,
    Curve,
    PosteriorRow,
    SamplerRow,
    Settings,
    build_report,
    cost_of,
    growth,
)


@pytest.fixture(autouse=True)
def as_numpyro_expects():
    """Its distributions promote ranks."""
    with jax.numpy_rank_promotion("allow"):
        yield


def linear(x, y):
    w = numpyro.sample("w", dist.Normal(0, 2).expand([3]).to_event(1))
    with numpyro.plate("row", len(x)):
        numpyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)


def rates(x, y):
    w = numpyro.sample("w", dist.Normal(0, 2).expand([1]).to_event(1))
    with numpyro.plate("row", len(x)):
        numpyro.sample("y", dist.Poisson(jnp.exp(x @ w)), obs=y)


@pytest.mark.slow
def test_the_reference_of_a_gaussian_posterior_is_exact(monkeypatch):
    """All weights are then equal; rows and draws are taken in blocks."""
    monkeypatch.setattr(problem, "ROWS_AT_ONCE", 64)
    monkeypatch.setattr(problem, "DRAWS_AT_ONCE", 128)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3))
    made = as_problem(linear, x, x @ [1.0, 2, 3] + 0.5 * rng.normal(size=200))
    precision = x.T @ x / 0.25 + np.eye(3) / 4
    exact = Gaussian(np.linalg.solve(precision, x.T @ np.asarray(made.y) / 0.25), np.linalg.inv(precision))
    found = laplace(made, {"w": jnp.zeros(3)})
    assert found.passes == 2
    assert errors_of(found.gaussian, exact).covariance < 1e-4
    reference = importance_reference(made, found.gaussian, 400)
    assert reference.effective_draws == pytest.approx(400, rel=1e-3)
    assert max(errors_of(reference.gaussian, exact)) < 2e-3


def test_the_reference_of_a_skew_posterior_is_that_of_quadrature():
    x, y = np.linspace(0.5, 1.5, 8)[:, None], np.array([0, 1, 0, 2, 0, 1, 1, 0])
    made = as_problem(rates, x, y)
    grid = np.linspace(-6, 3, 20_001)
    log_density = -(grid**2) / 8 + np.sum(y[:, None] * x * grid - np.exp(x * grid), axis=0)
    weight = np.exp(log_density - log_density.max())
    mean = np.average(grid, weights=weight)
    exact = Gaussian(np.array([mean]), np.array([[np.average((grid - mean) ** 2, weights=weight)]]))
    approximation = laplace(made, {"w": jnp.zeros(1)}).gaussian
    assert errors_of(approximation, exact).mean > 0.1
    reference = importance_reference(made, approximation._replace(covariance=1.5 * approximation.covariance), 60_000)
    assert errors_of(reference.gaussian, exact).mean < 0.01
    assert errors_of(reference.gaussian, exact).covariance < 0.02


def test_errors_are_in_units_of_the_reference():
    reference = Gaussian(np.zeros(2), np.diag([1.0, 100.0]))
    found = errors_of(Gaussian(np.array([0.0, 10.0]), np.diag([4.0, 100.0])), reference)
    assert found.mean == pytest.approx(math.sqrt(0.5))
    assert found.sd == pytest.approx(math.log(2) / math.sqrt(2))
    assert found.covariance == pytest.approx(math.log(4) / 2)


SETTINGS = Settings(kinds=("logistic",), sizes=(1_000, 500_000), nuts_sizes=(1_000,), chains=2)
CURVE = Curve([100, 400], [0.1, 0.05], [0.1, 0.05], [0.4, 0.1])
POSTERIORS = {
    ("logistic", size): PosteriorRow("logistic", size, 3e4, size * 1e-6, 5e3, 0.01, 3, size * 1e-5, 0.01, 0.02, 0.03)
    for size in SETTINGS.sizes
}


def sampler_row(name, size, **changes):
    row = SamplerRow(name, "logistic", size, 1.0, 2.0, 0.01, 5.0, 1e6, [CURVE, CURVE], 1e-3)
    return row._replace(**changes)


ROWS = [
    sampler_row(RIDGEWALK, 1_000),
    sampler_row(RIDGEWALK, 500_000, step_seconds=1.2e-3, warmup_seconds=14.0),
    sampler_row(NUTS, 1_000, leapfrogs=60.0, warmup_leapfrogs=10_000),
    sampler_row(DENSE_NUTS, 1_000, leapfrogs=7.0, warmup_leapfrogs=10_000),
    sampler_row(HMCECS, 1_000, curves=[Curve([100, 400], [1, 1], [1, 1], [0.5, 0.3])]),
]


def test_times_to_an_error():
    """The curve falls from 0.4 to 0.1 between 100 and 400 draws: as 1/draws, so 0.2 is at 200."""
    measured = cost_of(RIDGEWALK, "logistic", 1_000, SETTINGS, POSTERIORS, ROWS)
    assert ROWS[0].draws_to(0.2) == pytest.approx(200)
    assert measured.seconds == pytest.approx(1 + 2 + 0.01 * 200)
    assert not measured.extrapolated
    nuts = cost_of(NUTS, "logistic", 500_000, SETTINGS, POSTERIORS, ROWS)
    assert nuts.extrapolated
    assert nuts.seconds == pytest.approx((10_000 + 60 * 200) * 0.5)
    np.testing.assert_allclose(nuts.times(), [(10_000 + 60 * 100) * 0.5, (10_000 + 60 * 400) * 0.5])
    assert cost_of(HMCECS, "logistic", 1_000, SETTINGS, POSTERIORS, ROWS).seconds == math.inf
    assert cost_of(HMCECS, "logistic", 500_000, SETTINGS, POSTERIORS, ROWS) is None


def test_growth_is_without_passes():
    """Six passes of 0.5 s."""
    found = growth("logistic", SETTINGS, POSTERIORS, ROWS)
    assert found.step == pytest.approx(1.2)
    assert found.run == pytest.approx((14 + 4 - 6 * 0.5) / (2 + 4 - 6 * 1e-3))


def test_the_report_says_what_is_extrapolated(tmp_path):
    rows = {row.kind + str(row.size): row for row in POSTERIORS.values()} | {str(i): row for i, row in enumerate(ROWS)}
    outcome = study.assemble(SETTINGS, rows, tmp_path)
    assert (tmp_path / "logistic.png").stat().st_size > 10_000
    times = outcome.report.sections[0].tables[0]
    cells = {line[0]: dict(zip(times.columns, line, strict=True)) for line in times.rows}
    assert cells["1,000"][NUTS].note == ""
    assert cells["500,000"][NUTS].note == "extrapolated"
    assert cells["500,000"][NUTS].value == pytest.approx(11_000)
    assert cells["500,000"]["NUTS / ridgewalk"].value == pytest.approx(11_000 / 17)
    assert cells["1,000"][HMCECS].note == "not reached"
    assert cells["500,000"][HMCECS].note == "not measured"
    assert "extrapolated, not measured" in " ".join(outcome.report.text)
    assert from_json(json.loads(json.dumps(to_json(outcome.report), allow_nan=False))) == outcome.report
    assert json.loads(json.dumps(outcome.numbers, allow_nan=False))["logistic"]["growth_of_a_step"] == 1.2
    assert build_report(SETTINGS, POSTERIORS, ROWS)[0] == outcome.report


def test_plans():
    """Samplers come after the reference they are compared with; both presets name every task once."""
    for preset in Preset:
        plan = study.plan(study.STUDY.presets[preset])
        names = [task.name for task in plan]
        assert len(set(names)) == len(names)
        assert all(set(task.after) <= set(names) for task in plan)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["logistic", "robust"])
def test_ridgewalk_reaches_the_error_with_many_rows(kind, tmp_path):
    """With N/n = 200: G must be learnt from gradients with the control variates' correction."""
    settings = Settings(seeds=1, reference_work=4 * 10**8)
    posterior = study.measure_posterior(kind, 100_000, settings, tmp_path)
    assert 2e4 < posterior.condition < 6e4
    assert posterior.reference_error < 0.03
    row = study.measure_ridgewalk(kind, 100_000, settings, tmp_path)
    mean, sd, covariance = row.error_at(-1)
    assert mean < 0.05
    assert sd < 0.05
    assert covariance < 0.15
