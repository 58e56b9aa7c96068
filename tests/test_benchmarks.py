"""The comparison with other libraries: its page and its tables are those of the record, and no row is left out."""

import pytest

from peers import machine, predictions, study
from peers.samplers import SAMPLERS, Drawn, MomentError, error_of
from ridgewalk.studies.framework.page import write_page
from ridgewalk.studies.framework.runner import write_record
from ridgewalk.studies.framework.study import Number, Preset, to_json
from ridgewalk.studies.uci import UciRow

SETTINGS = study.STUDY.presets[Preset.quick]


def row_of(task):
    """A result as a task would return it; every second sampler is lost by Ridgewalk."""
    kind, rest = task.name.split("-", 1)
    if task.row is study.StepTimes:
        names = ["Ridgewalk", "BlackJAX, lax.scan"] if "peers" in rest else ["SGLD", "network recipe"]
        return study.StepTimes(task.settings["section"], "a title", names, [2e-6, 1e-6])
    if task.row is study.Memory:
        return study.Memory(task.settings["case"], 20, 1000, 100.0, 150.0, 8.0)
    if task.row is study.Resumed:
        return study.Resumed(task.settings["library"], "nothing", task.settings["library"] == "Ridgewalk", True)
    if task.row is Drawn:
        ours = task.settings["sampler"].startswith("auto")
        name = f"{'Ridgewalk' if ours else 'BlackJAX'} {task.settings['sampler']}"
        if task.settings["sampler"] == "mclmc":
            return Drawn(name, "", 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, [], [], None, "diverged")
        bias = 1.0 if task.settings["sampler"] == "sgld" else 0.0
        r_hat = 1.5 if task.settings["sampler"] == "sghmc" else 1.01
        return Drawn(name, "10 steps", 50.0 + ours, 40.0, r_hat, 2.0, 1.0, 1e4, 1e3, [bias], [1.0], 3.0)
    assert kind == "predict"
    return UciRow(task.settings["data"], 10, task.settings["method"], -1.0, 0.5, 0.9, 3.0)


@pytest.fixture(scope="module", name="made")
def _made():
    tasks = study.plan(SETTINGS)
    rows = {task.name: row_of(task) for task in tasks}
    moments = {name: ([0.0], [1.0]) for name in study.POSTERIORS}
    return tasks, rows, *study.report_and_numbers(SETTINGS, rows, moments)


def tables_of(report, heading):
    (section,) = (part for part in report.sections if part.heading == heading)
    return section.tables


def test_no_row_is_left_out(made):
    tasks, rows, report, _ = made
    shown = {row[0] for table in tables_of(report, "Effective draws") for row in table.rows}
    assert shown == {rows[task.name].sampler for task in tasks if task.name.startswith("draws-")}
    for posterior, table in zip(study.POSTERIORS, tables_of(report, "Effective draws"), strict=True):
        left_out = sum(name == posterior for name, _ in study.NOT_FOR)
        assert len(table.rows) == len(SAMPLERS) - left_out
    assert [row[0] for row in tables_of(report, "Memory")[0].rows] == list(machine.MEMORY_CASES)
    assert [row[0] for row in tables_of(report, "Resuming a run")[0].rows] == list(machine.RESUME_CASES)
    for table in tables_of(report, "Predictions of networks"):
        assert [row[0] for row in table.rows] == [predictions.TITLES[method] for method in predictions.METHODS]
    times = tables_of(report, "Time of a step")
    assert len(times) == len(study.SECTIONS)
    assert "BlackJAX, lax.scan, 2 times better than Ridgewalk" in times[0].note


def test_wrong_and_failed_samplers_do_not_win_and_say_why(made):
    table = tables_of(made[2], "Effective draws")[0]
    by_name = {row[0]: row for row in table.rows}
    assert by_name["BlackJAX mclmc"][7] == "diverged"
    assert by_name["BlackJAX sgld"][7].endswith("wrong")
    assert by_name["BlackJAX sghmc"][7].endswith("chains differ")
    summary = made[3]["summary"]["draws"]["logistic"]["per_second"]
    assert not {"BlackJAX sgld", "BlackJAX sghmc", "BlackJAX mclmc"} & set(summary)
    assert "BlackJAX nuts" in summary


def test_moments_are_judged_as_in_the_zoo():
    row = Drawn("a", "", 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, [0.1, 0.0], [1.1, 0.9], None)
    assert error_of(row, [0.0, 0.0], [1.0, 1.0]) == pytest.approx(MomentError(0.1, 0.9, 1.1))
    assert error_of(row, [0.0, 0.0], [1.0, 1.0]).right
    assert not error_of(row, [0.0, 0.3], [1.0, 1.0]).right
    assert not error_of(row, [0.0, 0.0], [1.3, 1.0]).right


def test_the_page_shows_the_record(made, tmp_path):
    """Both pages: docs/benchmarks.md, and the section of `make reproduce`'s."""
    _, _, report, numbers = made
    folder = tmp_path / "records" / study.BENCHMARKS
    folder.mkdir(parents=True)
    known = {"study": study.BENCHMARKS, "preset": "paper", "command": "make benchmark", "reduced": "", "seconds": 90.0}
    write_record(folder, {**known, "settings": {}, "numbers": numbers, "report": to_json(report)})
    record, found = study.read_record(tmp_path / "records")
    page = study.markdown(record, found)
    run = tmp_path / "run"
    run.mkdir()
    folder.rename(run / study.BENCHMARKS)  # a folder of records must not be empty
    html = write_page(tmp_path / "run", tmp_path / "run").read_text()
    assert 'href="#libraries"' in html
    for section in report.sections:
        assert f"## {section.heading}" in page
        assert section.heading in html or section is report.sections[0]
        for table in section.tables:
            for cell in (cell for row in table.rows for cell in row):
                assert str(cell).replace("|", "\\|") in page
                if isinstance(cell, Number) and cell.value is not None:
                    assert f'value="{cell.value!r}"' in html


def test_the_committed_page_is_that_of_the_committed_record():
    assert study.PAGE.read_text() == study.expected_page()


@pytest.mark.skipif(not study.RECORD.exists(), reason="no benchmark is recorded in docs/results/benchmarks")
def test_the_committed_tables_are_those_of_the_committed_rows():
    record, numbers = study.read_record(study.RECORD.parent)
    settings = study.STUDY.presets[Preset(record.preset)]
    tasks = {task.name: task for task in study.plan(settings)}
    assert set(tasks) == set(numbers["rows"])
    rows = {name: task.row(**numbers["rows"][name]) for name, task in tasks.items()}
    report, _ = study.report_and_numbers(settings, rows, numbers["references"])
    assert report == record.report
