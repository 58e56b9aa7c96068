"""The claims of the README, as tests: mixing on three ill-conditioned posteriors, and the commands."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from ridgewalk.cli import app
from ridgewalk.studies import gaussian, logistic, outliers
from ridgewalk.studies.problems import logistic_regression, outlier_regression, paper_gaussian


def test_paper_gaussian_mixes_fifty_times_faster_at_no_more_error():
    problem = paper_gaussian()
    table = {
        name: [gaussian.measure(problem, sampler, e) for e in sizes]
        for name, sampler, sizes in (
            ("SGLD", gaussian.GRIDS["SGLD"][0], (0.002, 0.0025)),
            ("HASGLD-SA", gaussian.GRIDS["HASGLD-SA"][0], (0.15, 0.2)),
        )
    }
    best = gaussian.verdict(table)
    assert best["worst_condition"] <= 1.1
    assert best["hasgld_error"] <= best["sgld_error"]
    assert best["ratio"] >= 50


def test_logistic_regression_is_as_good_as_with_the_true_covariance():
    problem = logistic_regression()
    assert np.linalg.cond(problem.hessian) == pytest.approx(1.4e5, rel=0.05)
    table = logistic.compare(problem)
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
        row = outliers.measure(problem, 3_000, step_size)
        assert row["condition"] <= 8
        assert row["largest_root_mean_square"] < 2


def test_reproduce_writes_metrics_and_a_figure(tmp_path, monkeypatch):
    monkeypatch.setattr(gaussian, "STEPS", 3_000)
    monkeypatch.setattr(gaussian, "SEEDS", 2)
    done = CliRunner().invoke(app, ["reproduce", "gaussian", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    metrics = json.loads((tmp_path / "gaussian" / "metrics.json").read_text())
    assert metrics["steps"] == 3_000
    assert {"SGLD", "HASGLD-SA"} == set(metrics["table"])
    shown = metrics["table"]["HASGLD-SA"][0]
    assert f"{shown['covariance_error']:.4f}" in done.output
    assert (tmp_path / "gaussian" / "gaussian.png").stat().st_size > 10_000
    assert sorted(path.name for path in (tmp_path / "gaussian").iterdir()) == ["gaussian.png", "metrics.json"]
