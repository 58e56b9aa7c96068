"""The digits study: its report, made of rows invented for it, and one small run."""

import pytest

from ridgewalk.studies import digits as study
from ridgewalk.studies.digits import DigitsRow


def test_the_report(tmp_path):
    curve = [0.55, 0.95], [0.5, 1.0], [10, 90]
    rows = {
        f"{method}-{split}": DigitsRow(split, method, 0.97, 0.1 + 0.1 * split, 0.02, 9.0, *curve)
        for method in study.TITLES
        for split in (0, 1)
    }
    outcome = study.assemble(study.Settings(splits=2), rows, tmp_path)
    table = outcome.report.sections[0].tables[0]
    assert table.rows[0][2].value == pytest.approx(0.15)
    line = dict(zip(table.columns, table.rows[0], strict=True))
    assert line["R-hat"].value is None
    assert line["raw ECE"].value == 0.02, "not recalibrated"
    changed = {name: row._replace(temperature=0.5, raw_nll=0.3, raw_ece=0.05) for name, row in rows.items()}
    again = study.assemble(study.Settings(splits=2), changed, tmp_path).report.sections[0].tables[0]
    line = dict(zip(again.columns, again.rows[0], strict=True))
    assert (line["raw ECE"].value, line["ECE"].value, line["temperature"].value) == pytest.approx((0.05, 0.02, 0.5))
    assert (tmp_path / "reliability.png").stat().st_size > 1000
    assert "counts" not in outcome.numbers["rows"][0]
    pooled = study._pooled(list(rows.values()))
    assert pooled.ece == pytest.approx(0.05)
    assert pooled.examples == 600


def test_one_task_for_each_method_and_split():
    tasks = study.plan(study.Settings(splits=2))
    assert [task.name for task in tasks] == [f"{m}-{s}" for s in (0, 1) for m in ("sample", "ensemble", "single")]


@pytest.mark.slow
def test_a_small_run():
    settings = study.Settings(network="conv:3", rows=200, steps=400, burn_in=150, optimiser_steps=300)
    row = study.measure(0, "sample", settings)
    assert row.accuracy > 0.8
    assert sum(row.counts) == 450
