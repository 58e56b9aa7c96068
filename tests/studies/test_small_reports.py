"""Reports of the logistic and outliers studies, made of rows invented for them."""

from ridgewalk.studies import logistic, outliers
from ridgewalk.studies.logistic import CENTRED, TRUTH


def row(name, step_size, error, diverged=0):
    measured = {"covariance_error": error, "covariance_error_se": 0.01, "worst_condition": 2.0}
    return {"sampler": name, "step_size": step_size, "gradients": 100, "diverged": diverged} | (
        {} if diverged else measured
    )


def test_logistic_shows_the_best_step_size_beside_the_true_covariance(tmp_path):
    rows = [
        row("SGLD", 1e-5, 2.0),
        row("HASGLD-SA", 0.01, 0.9),
        row("HASGLD-SA", 0.02, 0.52),
        row(TRUTH, 0.01, 0.5),
        row("HASGLD-SA" + CENTRED, 0.1, 0.2),
        row(TRUTH + CENTRED, 0.1, None, diverged=1),
    ]
    report = logistic.assemble(logistic.Settings(), dict(enumerate(rows)), tmp_path).report
    shown = {line[0]: line for line in report.sections[0].tables[0].rows}
    assert set(shown) == {"SGLD", "HASGLD-SA", TRUTH, "HASGLD-SA" + CENTRED}
    assert shown["HASGLD-SA"][1] == "0.02"
    assert (shown["HASGLD-SA"][2].value, shown["HASGLD-SA"][2].mark) == (0.52, "equal")
    assert shown["SGLD"][2].mark is None
    assert shown["HASGLD-SA" + CENTRED][2].mark is None, "nothing is left to compare with"


def test_outliers_average_over_the_seeds_that_ended(tmp_path):
    settings = outliers.Settings(seeds=3)
    steps = settings.lengths[0]
    rows = [
        {"steps": steps, "seed": 0, "diverged": 0, "condition": 4.0, "largest_root_mean_square": 1.0},
        {"steps": steps, "seed": 1, "diverged": 0, "condition": 6.0, "largest_root_mean_square": 1.2},
        {"steps": steps, "seed": 2, "diverged": 1},
    ]
    table = outliers.assemble(settings, dict(enumerate(rows)), tmp_path).report.sections[0].tables[0]
    assert table.rows[0][1].value == 5.0
    assert table.rows[0][1].spread == 1.0
    assert all(line[1].value is None and line[1].note == "diverged" for line in table.rows[1:])
