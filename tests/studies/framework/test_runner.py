"""Studies are run task by task; completed tasks are reused under equal settings and no others."""

import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from tests.studies.framework import toy
from tests.studies.framework.toy import toy_study
from typer.testing import CliRunner

from ridgewalk.cli import app
from ridgewalk.samplers import sgld
from ridgewalk.sampling.loop import DivergenceError
from ridgewalk.studies.framework import comparison, runner, study
from ridgewalk.studies.framework.study import (
    Number,
    Preset,
    Table,
    Task,
    from_json,
    mark_against,
    to_json,
    versus_paper,
)
from ridgewalk.studies.framework.tasks import cached_arrays


def run(toy_or_other, preset, out):
    runner.run_studies([toy_or_other], preset, out, workers=1)
    return json.loads((out / toy_or_other.name / "metrics.json").read_text())


def test_a_study_leaves_metrics_figures_and_a_page(tmp_path, capsys):
    made = []
    metrics = run(toy_study(made), Preset.quick, tmp_path)
    assert made == [1, 2, 3]
    assert metrics["numbers"]["values"] == [2.0, 4.0, 6.0]
    assert metrics["settings"] == {"factor": 2.0, "sizes": [1, 2, 3]}
    assert metrics["preset"] == "quick"
    assert metrics["reduced"] == "fewer sizes."
    assert {"ridgewalk", "jax", "numpy", "python"} <= set(metrics["versions"])
    assert metrics["environment"]["precision"] == "float64"
    assert sorted(p.name for p in (tmp_path / "toy").iterdir()) == ["line.png", "metrics.json", "tasks"]
    assert from_json(metrics["report"]).sections[0].tables[0].rows[0][1] == Number(2.0)
    assert "A toy &amp; its numbers" in (tmp_path / "index.html").read_text()
    shown = capsys.readouterr()
    assert "Products" in shown.out
    assert "paper" not in shown.out  # a reduced run is not comparable with it
    assert [line.split(",")[0] for line in shown.err.splitlines()] == [f"toy {i}/3: size{i}" for i in (1, 2, 3)]


def test_completed_tasks_are_not_run_again(tmp_path):
    made = []
    run(toy_study(made), Preset.quick, tmp_path)
    run(toy_study(made), Preset.quick, tmp_path)
    assert made == [1, 2, 3]


def test_an_interrupted_study_resumes_with_its_next_task(tmp_path):
    made = []
    with pytest.raises(KeyboardInterrupt):
        run(toy_study(made, fail_at=3), Preset.quick, tmp_path)
    assert not (tmp_path / "toy" / "metrics.json").exists()
    assert made == [1, 2]
    run(toy_study(made), Preset.quick, tmp_path)
    assert made == [1, 2, 3]


def test_results_of_other_settings_are_not_used(tmp_path):
    made = []
    run(toy_study(made), Preset.quick, tmp_path)
    metrics = run(toy_study(made), Preset.paper, tmp_path)
    assert made == [1, 2, 3, 1, 2, 3, 4]
    assert metrics["numbers"]["values"] == [3.0, 6.0, 9.0, 12.0]
    assert metrics["reduced"] == ""
    again = run(toy_study(made), Preset.quick, tmp_path)
    assert again["numbers"]["values"] == [2.0, 4.0, 6.0]
    assert len(made) == 7  # both presets are stored


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:20],
        lambda text: text.replace('"factor": 2.0', '"factor": 5.0'),
        lambda text: text.replace('"value"', '"other"'),
        lambda text: "[]",
    ],
)
def test_a_task_with_a_damaged_result_is_run_again(tmp_path, damage):
    made = []
    run(toy_study(made), Preset.quick, tmp_path)
    path = next((tmp_path / "toy" / "tasks").glob("size2-*"))
    path.write_text(damage(path.read_text()))
    assert run(toy_study(made), Preset.quick, tmp_path)["numbers"]["values"] == [2.0, 4.0, 6.0]
    assert made == [1, 2, 3, 2]


def test_two_workers_share_the_tasks(tmp_path, capsys):
    runner.run_studies([toy.PARALLEL], Preset.quick, tmp_path, workers=2)
    numbers = json.loads((tmp_path / "parallel" / "metrics.json").read_text())["numbers"]
    assert numbers["values"] == [6.0, 2.0, 4.0], "in the order of the plan"
    third, first, second = numbers["processes"]
    assert os.getpid() not in {first, second, third}
    assert first != second
    assert len(capsys.readouterr().err.splitlines()) == 3
    runner.run_studies([toy.PARALLEL], Preset.quick, tmp_path, workers=2)
    again = json.loads((tmp_path / "parallel" / "metrics.json").read_text())["numbers"]
    assert again == numbers, "nothing was run again"


def test_an_error_in_a_worker_names_the_task(tmp_path):
    with pytest.raises(RuntimeError, match=r"failing: task (one|two) failed: ValueError: size = 0: must be positive"):
        runner.run_studies([toy.FAILING], Preset.quick, tmp_path, workers=2)


INTERRUPTED = """
from pathlib import Path
from ridgewalk.studies.framework.runner import run_studies
from ridgewalk.studies.framework.study import Preset, study_at
if __name__ == "__main__":
    run_studies([study_at("tests.studies.framework.toy:SLOW")], Preset.quick, Path({out!r}), workers=2)
"""


def test_an_interrupt_ends_all_workers(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(INTERRUPTED.format(out=str(tmp_path)))
    path = os.pathsep.join(["src", ".", os.environ.get("PYTHONPATH", "")])
    main = subprocess.Popen(
        [sys.executable, str(script)], env={**os.environ, "PYTHONPATH": path}, stderr=subprocess.PIPE, text=True
    )
    started = []
    last = time.monotonic() + 300
    while len(started) < 2 and time.monotonic() < last and main.poll() is None:
        time.sleep(0.1)
        started = list((tmp_path / "slow").glob("started-*"))
    main.send_signal(signal.SIGINT)
    _, errors = main.communicate(timeout=300)
    assert len(started) == 2, errors
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert errors.count("Traceback") == 1, "workers end silently"
    for process in (int(path.name.split("-")[1]) for path in started):
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
    assert not list((tmp_path / "slow" / "tasks").iterdir())


def tasks(*costs, after=()):
    return {f"t{i}": Task(f"t{i}", {}, None, None, cost, group, after) for i, (group, cost) in enumerate(costs)}


def waiting(name, plan):
    """A study of which no task was started."""
    found = object.__new__(runner.StudyRun)
    found.study, found.plan, found.started, found.completed = SimpleNamespace(name=name), plan, set(), {}
    return found


def test_workers_stay_with_their_group_then_their_study_and_help_out_last():
    one, two = waiting("one", tasks(("a", 1), ("b", 5), ("a", 1))), waiting("two", tasks(("c", 2)))
    owners = {("one", "a"): 0}

    def chosen(worker, active):
        run, task = runner.next_task([one, two], worker, owners, active)
        return run.study.name, task.name

    assert chosen(0, {0: "one", 1: "two"}) == ("one", "t0"), "its own group"
    assert chosen(1, {0: "one"}) == ("two", "t0"), "a study where nobody is"
    assert chosen(1, {0: "one", 1: "one"}) == ("one", "t1"), "its own study"
    one.started |= {"t1"}
    two.started |= {"t0"}
    assert chosen(1, {0: "one", 1: "two"}) == ("one", "t0"), "another's group if nothing else is left"
    one.started |= {"t0", "t2"}
    assert runner.next_task([one, two], 1, owners, {}) is None


def test_tasks_wait_for_those_they_need():
    study = waiting("one", tasks(("a", 1)) | {"late": Task("late", {}, None, None, 1.0, "b", ("t0",))})
    assert [task.name for task in study.ready()] == ["t0"]
    study.started.add("t0")
    assert study.ready() == []
    study.completed["t0"] = None
    assert [task.name for task in study.ready()] == ["late"]


def test_the_remaining_time_weighs_tasks_by_cost():
    study = waiting("one", tasks(("a", 1), ("a", 3), ("a", 6)))
    assert runner.remaining_seconds([study], 1) is None
    study.completed = {"t0": SimpleNamespace(seconds=2.0), "t1": SimpleNamespace(seconds=10.0)}
    assert runner.remaining_seconds([study], 1) == pytest.approx(18.0)
    assert runner.remaining_seconds([study], 2) == pytest.approx(9.0)
    words = [runner.duration(seconds) for seconds in (None, 18.2, 600, 9000)]
    assert words == ["unknown time", "about 18 s", "about 10 min", "about 2.5 h"]


def test_workers_are_limited_by_cores_memory_and_accelerators(monkeypatch):
    monkeypatch.setattr(runner, "available_cores", lambda: 64)
    pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 8 * 2**30 // 4096}
    monkeypatch.setattr(runner.os, "sysconf", pages.__getitem__)
    assert runner.default_workers() == 4
    monkeypatch.setattr(runner, "available_cores", lambda: 2)
    assert runner.default_workers() == 2
    monkeypatch.setattr(runner.jax, "default_backend", lambda: "gpu")
    assert runner.default_workers() == 1


def test_marks():
    assert mark_against(1.0, 2.0) == "better"
    assert mark_against(1.0, 2.0, lower_is_better=False) == "worse"
    assert mark_against(1.9, 2.0, error=0.2) == "equal"
    assert versus_paper(0.2704, 0.27, style=".2f").mark == "equal"
    assert versus_paper(0.30, 0.27, se=0.02, style=".2f").mark == "equal"
    assert versus_paper(0.30, 0.27, se=0.01, style=".2f").mark == "worse"
    with pytest.raises(ValueError, match="2 cells in a table of 1 columns"):
        Table("t", ("a",), (("x", "y"),))


def test_a_report_survives_json(tmp_path):
    outcome = toy.assemble(toy.Settings(), {"a": toy.ToyRow(1, 2.0)}, tmp_path)
    assert from_json(json.loads(json.dumps(to_json(outcome.report)))) == outcome.report


def test_the_command_runs_studies_and_names_unknown_ones(tmp_path, monkeypatch):
    made = []
    monkeypatch.setenv("RIDGEWALK_COMPILATION_CACHE", "off")
    monkeypatch.setattr("ridgewalk.cli.load_study", lambda name: toy_study(made, name=name))
    monkeypatch.setattr("ridgewalk.cli.NAMES", ("one", "two"))
    common = ["--workers", "1", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, ["reproduce", "all", "--preset", "paper", *common])
    assert done.exit_code == 0, done.output
    assert made == [1, 2, 3, 4] * 2
    assert f"written to {tmp_path / 'index.html'}" in done.output.replace("\n", "")
    assert CliRunner().invoke(app, ["reproduce", "two", "one", *common]).exit_code == 0
    assert len(made) == 14
    monkeypatch.setattr("ridgewalk.cli.load_study", lambda name: toy_study(made, fail_at=2, name="three"))
    stopped = CliRunner().invoke(app, ["reproduce", "one", *common])
    assert stopped.exit_code == 130
    monkeypatch.setattr("ridgewalk.cli.load_study", study.load_study)
    wrong = CliRunner().invoke(app, ["reproduce", "gausian", *common])
    assert wrong.exit_code == 2
    assert "gaussian, regression" in wrong.output


def test_every_registered_study_has_both_presets_and_tasks_with_distinct_names():
    for name in study.NAMES:
        found = study.load_study(name)
        assert found.name == name
        assert study.study_at(found.location) is found
        assert found.reduced
        for preset in Preset:
            plan = found.plan(found.presets[preset])
            names = [task.name for task in plan]
            assert len(set(names)) == len(names)
            assert all(json.loads(json.dumps(dict(task.settings))) for task in plan)
            assert all(set(task.after) <= set(names) for task in plan)


def test_an_interrupted_or_diverged_run_is_no_result(monkeypatch):
    """`sample` returns what there is after Ctrl-C, of which no result must be made."""
    options = {"seed": 0, "steps": 10, "step_size": 0.1}
    monkeypatch.setattr(comparison, "sample", lambda *_, **__: SimpleNamespace(steps=7))
    with pytest.raises(KeyboardInterrupt):
        comparison.run_chains(sgld(), None, None, **options)

    def diverge(*_, **__):
        raise DivergenceError("all chains diverged")

    monkeypatch.setattr(comparison, "sample", diverge)
    assert comparison.run_chains(sgld(), None, None, **options) is None


def test_arrays_are_made_once_for_equal_settings(tmp_path):
    made = []

    def make(place):
        made.append(place)
        return {"a": np.arange(3.0)}

    for _ in range(2):
        np.testing.assert_array_equal(cached_arrays(tmp_path, "thing", {"size": 1}, make)["a"], [0, 1, 2])
    assert len(made) == 1
    cached_arrays(tmp_path, "thing", {"size": 2}, make)
    assert len(made) == 2
    path = next((tmp_path / "arrays").glob("thing-*"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="checksum"):
        [cached_arrays(tmp_path, "thing", {"size": size}, make) for size in (1, 2)]
