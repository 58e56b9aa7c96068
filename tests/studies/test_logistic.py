"""The logistic study: its report, made of rows invented for it, and its claims."""

import numpy as np
import pytest

from ridgewalk.studies import logistic as study
from ridgewalk.studies.framework.study import Preset
from ridgewalk.studies.logistic import CONTROL_VARIATES, TRUTH, LogisticRow, logistic_regression


def row(name, step_size, error, diverged=0):
    made = LogisticRow(name, step_size, 100, diverged, 1.4e5)
    return made if diverged else made._replace(
        covariance_error=error, covariance_error_se=0.01, worst_condition=2.0
    )  # fmt: skip


def test_the_best_step_size_is_compared_with_the_true_covariance(tmp_path):
    rows = [
        row("SGLD", 1e-5, 2.0),
        row("HASGLD-SA", 0.01, 0.9),
        row("HASGLD-SA", 0.02, 0.52),
        row(TRUTH, 0.01, 0.5),
        row("HASGLD-SA" + CONTROL_VARIATES, 0.1, 0.2),
        row(TRUTH + CONTROL_VARIATES, 0.1, None, diverged=1),
    ]
    outcome = study.assemble(study.Settings(), dict(enumerate(rows)), tmp_path)
    shown = {line[0]: line for line in outcome.report.sections[0].tables[0].rows}
    assert list(shown) == ["SGLD", TRUTH, "HASGLD-SA", "HASGLD-SA" + CONTROL_VARIATES]
    assert shown["HASGLD-SA"][1] == "0.02"
    assert (shown["HASGLD-SA"][2].value, shown["HASGLD-SA"][2].mark) == (0.52, "equal")
    assert shown["SGLD"][2].mark is None
    assert shown["HASGLD-SA" + CONTROL_VARIATES][2].mark is None, "there is no reference"
    assert len(outcome.numbers["best"]["HASGLD-SA"]["tried"]) == 2


@pytest.mark.slow
def test_hasgld_sa_is_as_good_as_the_true_covariance(tmp_path):
    assert np.linalg.cond(logistic_regression().hessian) == pytest.approx(1.4e5, rel=0.05)
    settings = study.STUDY.presets[Preset.quick]
    best = study.lowest_errors({task.name: task.run(tmp_path) for task in study.plan(settings)})
    for suffix in ("", CONTROL_VARIATES):
        ours, oracle = best["HASGLD-SA" + suffix], best[TRUTH + suffix]
        assert ours.worst_condition <= 4
        assert ours.covariance_error <= 1.1 * oracle.covariance_error
    best_sgld = min(row.covariance_error for name, row in best.items() if name.startswith("SGLD"))
    assert best["HASGLD-SA" + CONTROL_VARIATES].covariance_error < best_sgld / 10
