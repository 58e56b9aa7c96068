"""The claims of the README, as tests: mixing on three ill-conditioned posteriors."""

import numpy as np
import pytest

from ridgewalk.studies import gaussian, logistic, outliers
from ridgewalk.studies.gaussian_samplers import DENSE, ENTRANTS
from ridgewalk.studies.gaussian_verdict import faster_at_no_more_error
from ridgewalk.studies.problems import logistic_regression, outlier_regression


def test_paper_gaussian_mixes_fifty_times_faster_at_no_more_error():
    settings = gaussian.Settings(seeds=16, timed_seeds=8)
    entrants = {entrant.name: entrant for entrant in ENTRANTS}
    rows = [gaussian.measure(entrants["SGLD"], e, settings) for e in (0.002, 0.0025)]
    rows += [gaussian.measure(entrants[DENSE], e, settings) for e in (0.15, 0.2)]
    best = faster_at_no_more_error(rows)
    assert best["worst_condition"] <= 1.1
    assert best["hasgld_error"] <= best["sgld_error"]
    assert best["ratio"] >= 50


@pytest.mark.slow
def test_logistic_regression_is_as_good_as_with_the_true_covariance():
    assert np.linalg.cond(logistic_regression().hessian) == pytest.approx(1.4e5, rel=0.05)
    settings = logistic.STUDY.presets["quick"]
    table = logistic.best_rows({piece.name: piece.make() for piece in logistic.plan(settings)})
    for suffix in ("", ", control variates"):
        ours, oracle = table["HASGLD-SA" + suffix], table["true covariance" + suffix]
        assert ours["worst_condition"] <= 4
        assert ours["covariance_error"] <= 1.1 * oracle["covariance_error"]
    best_sgld = min(row["covariance_error"] for name, row in table.items() if name.startswith("SGLD"))
    assert table["HASGLD-SA, control variates"]["covariance_error"] < best_sgld / 10


def test_low_rank_finds_twenty_outliers_from_minibatches():
    problem = outlier_regression()
    assert np.linalg.cond(problem.hessian) == pytest.approx(19_969, rel=0.01)
    for step_size in (0.02, 0.1):
        row = outliers.measure(problem, 3_000, step_size, 200)
        assert row["condition"] <= 8
        assert row["largest_root_mean_square"] < 2
