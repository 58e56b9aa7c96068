"""The Gaussian study: its claims, its comparison against answers known beforehand, and its report."""

import json

import numpy as np
import pytest

from ridgewalk.studies.framework.comparison import best_rows
from ridgewalk.studies.gaussian import study
from ridgewalk.studies.gaussian.report import (
    DENSE,
    MOMENTUM,
    ORACLE,
    OURS,
    PRINTED,
    GaussianRow,
    compare,
    faster_at_no_more_error,
    wins,
)
from ridgewalk.studies.gaussian.study import CONTENDERS, PAPER_GRID


def best_of(rows):
    return best_rows(rows, lambda row: row.covariance_error)


@pytest.mark.slow
def test_hasgld_sa_mixes_fifty_times_faster_than_sgld_at_no_more_error():
    settings = study.Settings(seeds=16, timed_seeds=8)
    contenders = {contender.name: contender for contender in CONTENDERS}
    rows = [study.measure(contenders["SGLD"], e, settings) for e in (0.002, 0.0025)]
    rows += [study.measure(contenders[DENSE], e, settings) for e in (0.15, 0.2)]
    best = faster_at_no_more_error(rows)
    assert best["worst_condition"] <= 1.1
    assert best["hasgld_error"] <= best["sgld_error"]
    assert best["ratio"] >= 50


@pytest.mark.slow
def test_hasgld_sa_has_less_error_and_mixes_faster_than_every_other_sampler():
    """At 128 seeds; of the others the step sizes (and SGHMC's friction) around the best of the paper preset."""
    settings = study.Settings()
    near_best = {
        "SGLD": (0.002, 0.0023, 0.0026), "pSGLD": (0.06, 0.1, 0.14), "HAMCMC": (0.1, 0.2),
        "SGHMC": (0.003, 0.0035, 0.004), ORACLE: (0.035, 0.05, 0.07), DENSE: (0.035, 0.05, 0.07),
    }  # fmt: skip
    rows = [
        study.measure(contender, step_size, settings)
        for contender in CONTENDERS
        if contender.name == DENSE or not contender.name.startswith(OURS)
        for step_size in near_best[contender.name]
        if contender.options.get("friction", 0.07) == 0.07
    ]
    found = compare(best_of(rows))
    assert set(found[DENSE]) == set(near_best) - {DENSE}
    assert wins(found, DENSE), found[DENSE]


def _row(name, step_size, error, time, diverged=0, **options):
    row = GaussianRow(name, step_size, 1, diverged, options)
    return row if diverged else row._replace(
        covariance_error=error, covariance_error_se=error / 20, autocorrelation_time=time,
        autocorrelation_time_se=time / 20, worst_condition=1.0, first_draws=[[0.0, 0.0], [0.1, 1.0]],
    )  # fmt: skip


def test_each_sampler_is_compared_at_its_lowest_error():
    rows = [_row("SGLD", 0.001, 0.05, 900), _row("SGLD", 0.002, 0.04, 1_000), _row("SGLD", 0.003, 0.01, 1, diverged=2)]
    rows += [_row(ORACLE, 0.05, 0.010, 40), _row(DENSE, 0.05, 0.011, 41), _row(MOMENTUM, 0.05, 0.02, 10, friction=0.3)]
    best = best_of(rows)
    assert best["SGLD"].step_size == 0.002
    found = compare(best)
    assert wins(found, DENSE)  # 1.1 times the error of the true covariance is allowed, 2 times is not
    assert not wins(found, MOMENTUM)
    assert found[MOMENTUM][ORACLE].standing == "above"
    best["SGHMC"] = _row("SGHMC", 0.004, 0.0109, 50)
    assert compare(best)[DENSE]["SGHMC"].standing == "close"
    assert found[DENSE]["SGLD"].error_ratio == pytest.approx(0.275)
    assert found[DENSE]["SGLD"].error_ratio_se == pytest.approx(0.275 * np.sqrt(2) / 20)


def test_the_report_says_what_diverged(tmp_path):
    settings = study.Settings(seeds=4)
    rows = {}
    for task in study.plan(settings):
        known = task.settings
        if task.name.startswith("walk-"):
            rows[task.name] = study.WalkRow(known["sampler"], [0.1], [[[0.0, 1.0]]])
            continue
        lost = known["sampler"] == PRINTED or (known["sampler"] == "SGLD" and known["step_size"] > 0.003)
        rows[task.name] = _row(known["sampler"], known["step_size"], 0.01, 40, diverged=4 * lost, **known["options"])
    outcome = study.assemble(settings, rows, tmp_path)
    names = {contender.name for contender in CONTENDERS}
    best, claims, printed = outcome.report.sections[0].tables
    assert {row[0] for row in best.rows} == names
    assert next(row for row in best.rows if row[0] == PRINTED)[2].note == "all chains diverged at every step size"
    assert [str(cell) for cell in printed.rows[0][1:]] == ["all diverged"] * 4
    assert printed.columns[1:] == ("0.02", "0.016", "0.0128", "0.008192")
    assert pytest.approx((0.02, 0.016, 0.0128, 0.008192)) == PAPER_GRID
    assert len(claims.rows) == 5
    assert {path.name for path in tmp_path.iterdir()} == {"samples.png", "errors.png", "walk.json"}
    assert [walk["sampler"] for walk in json.loads((tmp_path / "walk.json").read_text())["walks"]] == ["SGLD", DENSE]
    diverged = next(row for row in outcome.numbers["own_grids"] if row["sampler"] == PRINTED)
    assert "covariance_error" not in diverged
