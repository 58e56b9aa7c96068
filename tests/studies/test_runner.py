"""Studies are made in pieces that survive, under the settings they were made with and no others."""

import json
from types import SimpleNamespace

import pytest
from tests.studies.toy import toy_study
from typer.testing import CliRunner

from ridgewalk.cli import app
from ridgewalk.run.health import DivergenceError
from ridgewalk.samplers import sgld
from ridgewalk.studies import chains, progress, registry, runner
from ridgewalk.studies.schema import Number, Table, as_json, beside_paper, from_json, judge
from ridgewalk.studies.study import Preset


def read(path):
    return json.loads(path.read_text())


def test_a_study_leaves_metrics_figures_and_no_litter(tmp_path, capsys):
    made = []
    path = runner.run_study(toy_study(made), Preset.quick, tmp_path)
    assert made == [1, 2, 3]
    metrics = read(path)
    assert metrics["numbers"]["values"] == [2.0, 4.0, 6.0]
    assert metrics["settings"] == {"factor": 2.0, "sizes": [1, 2, 3]}
    assert metrics["preset"] == "quick"
    assert metrics["reduced"] == "fewer sizes."
    assert {"ridgewalk", "jax", "numpy", "python"} <= set(metrics["versions"])
    assert metrics["environment"]["precision"] == "float64"
    assert sorted(p.name for p in (tmp_path / "toy").iterdir()) == ["line.png", "metrics.json", "pieces"]
    assert from_json(metrics["report"]).sections[0].tables[0].rows[0][1] == Number(2.0, paper=4.0, mark="better")
    shown = capsys.readouterr()
    assert "Products" in shown.out
    assert "[paper 4], better" in shown.out
    assert shown.err == ""  # no bar in a pipe


def test_what_is_done_is_not_done_again(tmp_path):
    made = []
    runner.run_study(toy_study(made), Preset.quick, tmp_path)
    runner.run_study(toy_study(made), Preset.quick, tmp_path)
    assert made == [1, 2, 3]


def test_an_interrupted_study_goes_on_with_its_next_piece(tmp_path):
    made = []
    with pytest.raises(KeyboardInterrupt):
        runner.run_study(toy_study(made, fail_at=3), Preset.quick, tmp_path)
    assert not (tmp_path / "toy" / "metrics.json").exists()
    assert made == [1, 2]
    runner.run_study(toy_study(made), Preset.quick, tmp_path)
    assert made == [1, 2, 3]


def test_pieces_of_other_settings_are_not_used(tmp_path):
    made = []
    runner.run_study(toy_study(made), Preset.quick, tmp_path)
    metrics = read(runner.run_study(toy_study(made), Preset.paper, tmp_path))
    assert made == [1, 2, 3, 1, 2, 3, 4]
    assert metrics["numbers"]["values"] == [3.0, 6.0, 9.0, 12.0]
    assert metrics["reduced"] == ""
    again = read(runner.run_study(toy_study(made), Preset.quick, tmp_path))
    assert again["numbers"]["values"] == [2.0, 4.0, 6.0]
    assert len(made) == 7  # both presets are kept


@pytest.mark.parametrize(
    "damage", [lambda text: text[:20], lambda text: text.replace('"factor": 2.0', '"factor": 5.0')]
)
def test_a_damaged_piece_is_made_again(tmp_path, damage):
    made = []
    runner.run_study(toy_study(made), Preset.quick, tmp_path)
    piece = next((tmp_path / "toy" / "pieces").glob("size2-*"))
    piece.write_text(damage(piece.read_text()))
    assert read(runner.run_study(toy_study(made), Preset.quick, tmp_path))["numbers"]["values"] == [2.0, 4.0, 6.0]
    assert made == [1, 2, 3, 2]


def test_the_estimate_weighs_pieces_by_cost():
    estimate = progress.Estimate()
    assert estimate.of(10) is None
    estimate.add(2.0, 1.0)
    estimate.add(10.0, 3.0)
    assert estimate.of(6.0) == pytest.approx(18.0)
    words = [progress.in_words(seconds) for seconds in (None, 18.2, 600, 9000)]
    assert words == ["not known yet", "about 18 s", "about 10 min", "about 2.5 h"]


def test_marks():
    assert judge(1.0, 2.0) == "better"
    assert judge(1.0, 2.0, lower_is_better=False) == "worse"
    assert judge(1.9, 2.0, error=0.2) == "equal"
    assert beside_paper(0.2704, 0.27, style=".2f").mark == "equal"
    assert beside_paper(0.30, 0.27, spread=0.02, style=".2f").mark == "equal"
    assert beside_paper(0.30, 0.27, spread=0.01, style=".2f").mark == "worse"
    with pytest.raises(ValueError, match="2 cells in a table of 1 columns"):
        Table("t", ("a",), (("x", "y"),))


def test_a_report_survives_json(tmp_path):
    study = toy_study([])
    outcome = study.assemble(study.presets[Preset.quick], {"a": {"size": 1, "value": 2.0}}, tmp_path)
    assert from_json(json.loads(json.dumps(as_json(outcome.report)))) == outcome.report


def test_the_command_runs_a_study_and_names_unknown_ones(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr("ridgewalk.cli.study_named", lambda name: toy_study(made, name=name))
    monkeypatch.setattr("ridgewalk.cli.NAMES", ("one", "two"))
    done = CliRunner().invoke(app, ["reproduce", "all", "--preset", "paper", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert made == [1, 2, 3, 4] * 2
    monkeypatch.setattr("ridgewalk.cli.study_named", lambda name: toy_study(made, fail_at=2, name=name))
    stopped = CliRunner().invoke(app, ["reproduce", "one", "--out", str(tmp_path)])
    assert stopped.exit_code == 130
    assert "the same command goes on" in stopped.output
    monkeypatch.setattr("ridgewalk.cli.study_named", registry.study_named)
    wrong = CliRunner().invoke(app, ["reproduce", "gausian", "--out", str(tmp_path)])
    assert wrong.exit_code == 2
    assert "gaussian, regression" in wrong.output


def test_every_study_of_the_registry_has_both_presets_and_distinct_pieces():
    for name in registry.NAMES:
        study = registry.study_named(name)
        assert study.name == name
        assert study.reduced
        for preset in Preset:
            plan = study.plan(study.presets[preset])
            assert len({piece.name for piece in plan}) == len(plan)
            assert all(json.loads(json.dumps(dict(piece.settings))) for piece in plan)


def test_a_run_that_was_stopped_or_diverged_is_no_result(monkeypatch):
    """`sample` returns what there is after Ctrl-C; a piece must not be made of it."""
    run = {"seed": 0, "steps": 10, "step_size": 0.1}
    monkeypatch.setattr(chains, "sample", lambda *_, **__: SimpleNamespace(steps=7))
    with pytest.raises(KeyboardInterrupt):
        chains.run_chains(sgld(), None, None, **run)

    def diverge(*_, **__):
        raise DivergenceError("all chains diverged")

    monkeypatch.setattr(chains, "sample", diverge)
    assert chains.run_chains(sgld(), None, None, **run) is None
