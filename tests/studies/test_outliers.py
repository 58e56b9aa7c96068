"""The outliers study: its report, made of rows invented for it, and its claim."""

import numpy as np
import pytest

from ridgewalk.studies import outliers as study
from ridgewalk.studies.outliers import OutliersRow, outlier_regression


def test_means_are_over_the_seeds_that_did_not_diverge(tmp_path):
    settings = study.Settings(seeds=3)
    steps = settings.lengths[0]
    rows = [OutliersRow(steps, 0, 0, 2e4, 4.0, 1.0), OutliersRow(steps, 1, 0, 2e4, 6.0, 1.2)]
    rows += [OutliersRow(steps, 2, 1, 2e4)]
    outcome = study.assemble(settings, dict(enumerate(rows)), tmp_path)
    table = outcome.report.sections[0].tables[0]
    assert table.rows[0][1].value == 5.0
    assert table.rows[0][1].se == 1.0
    assert all(line[1].value is None and line[1].note == "diverged" for line in table.rows[1:])
    assert outcome.numbers["table"][2] == {"steps": steps, "seed": 2, "diverged": 1}


@pytest.mark.slow
def test_low_rank_finds_twenty_outliers_from_minibatches():
    assert np.linalg.cond(outlier_regression().hessian) == pytest.approx(19_969, rel=0.01)
    for step_size in (0.02, 0.1):
        row = study.measure(3_000, step_size, 200)
        assert row.condition <= 8
        assert row.largest_root_mean_square < 2
