"""The Darcy studies from data to page, with small networks on small grids."""

import json
from dataclasses import replace
from html import escape

import pytest

from ridgewalk.studies.darcy import problem
from ridgewalk.studies.darcy.problem import ADAM, BEST, DIAGONAL, PRINTED, PSGLD, SGLD, RandomPart, Settings
from ridgewalk.studies.darcy.study import assemble, plan
from ridgewalk.studies.framework.runner import run_studies
from ridgewalk.studies.framework.study import Preset, Study

SMALL = Settings(
    "source",
    size=10,
    samples=40,
    train=30,
    held=10,
    seeds=1,
    sparsities=(0.5,),
    methods=(SGLD, BEST, ADAM),
    batch_size=5,
    optimiser_steps=40,
    chain_gradients=150,
    draws=5,
    tuned=False,
    multiscale_samples=2,
)

RANDOM = RandomPart(gradients=900, methods=(BEST,), seeds=1, sparsities=(0.5,), tuned=False)
TINY = replace(
    SMALL, size=6, samples=28, train=22, held=10, chain_gradients=80, draws=4, mlp_widths=(8,), random=RANDOM
)


def run(settings, folder):
    study = Study(settings.kind, "", {Preset.quick: settings}, "everything.", plan, assemble)
    page = run_studies([study], Preset.quick, folder, workers=1).read_text()
    metrics = json.loads((folder / settings.kind / "metrics.json").read_text())
    return metrics, {row["method"]: row for row in metrics["numbers"]["runs"]}, page


@pytest.fixture(autouse=True)
def _no_spe10(monkeypatch):
    monkeypatch.delenv("RIDGEWALK_SPE10", raising=False)


def check(metrics, runs, page, folder):
    (start,) = metrics["numbers"]["starts"]
    assert {name: row["diverged"] for name, row in runs.items()} == {SGLD: 0, BEST: 0, ADAM: 0}
    for row in runs.values():
        assert 0.4 < row["zeros"] <= 0.5, "half of the weights, without biases"
        assert 0.7 < row["coverage"] <= 1
        assert row["error"] < 3 * start["error"]
        assert f"{row['error']:.3f}" in page
    assert "last_potential" in runs[BEST]
    assert "last_potential" not in runs[ADAM], "it has no posterior draws"
    assert not list((folder / "arrays").glob(".*.partial"))
    figures = ["errors.png", "fields.png", *(["random-weights.png"] if metrics["numbers"]["random"] else [])]
    assert sorted(path.name for path in folder.glob("*.png")) == figures
    pictures = [picture for section in metrics["report"]["sections"] for picture in section["pictures"]]
    assert sorted(picture["file"] for picture in pictures) == figures
    assert all(f'<img alt="{escape(picture["alt"])}" src="data:image/' in page for picture in pictures)
    assert f"{start['weights']:,} weights" in page


def test_from_data_to_page_in_seconds(tmp_path):
    """All of the study but its size: optimiser, statistics, three methods, calibration, report, page."""
    settings = replace(TINY, random=SMALL.random)
    metrics, runs, page = run(settings, tmp_path)
    check(metrics, runs, page, tmp_path / "source")
    assert metrics["numbers"]["starts"][0]["weights"] == 36 * 8 + 8 + 8 * 60 + 60
    before = {path: path.read_bytes() for path in (tmp_path / "source").rglob("*.json")}
    problem._darcy_posterior.cache_clear()
    run(settings, tmp_path)
    assert before == {path: path.read_bytes() for path in (tmp_path / "source").rglob("*.json")}
    assert problem._darcy_posterior.cache_info().currsize == 0, "the report needs no data and no network"


@pytest.mark.slow
def test_from_data_and_from_random_weights_to_page(tmp_path):
    metrics, runs, page = run(TINY, tmp_path)
    check(metrics, runs, page, tmp_path / "source")
    (random,) = metrics["numbers"]["random"]
    assert random["error"] == random["errors"][-1] < random["errors"][0] / 2
    assert 860 <= random["gradients"][-1] <= 900
    assert 0.4 < random["zeros"] <= 0.5
    assert f"{random['error']:.3f}" in page


@pytest.mark.slow
@pytest.mark.parametrize("widths", [(40,), ()])
def test_from_data_to_page(tmp_path, widths):
    metrics, runs, page = run(replace(SMALL, mlp_widths=widths), tmp_path)
    check(metrics, runs, page, tmp_path / "source")
    assert runs[BEST]["error"] < runs[SGLD]["error"], "forty steps of Adam leave something to learn"


@pytest.mark.slow
def test_both_sides_with_tuning(tmp_path):
    settings = replace(
        SMALL,
        kind="permeability",
        seeds=2,
        sparsities=(0.0, 0.5),
        methods=(SGLD, PSGLD, PRINTED.format(2), DIAGONAL, BEST, ADAM),
        mirrors=(True, False),
        secondary_methods=(SGLD, BEST),
        secondary_sparsities=(0.5,),
        tuned=True,
        mlp_widths=(40,),
    )
    metrics, _, _ = run(settings, tmp_path)
    tuning, runs = metrics["numbers"]["tuning"], metrics["numbers"]["runs"]
    assert [len(row["errors"]) for row in tuning] == [4] * 8
    for row in tuning:
        chosen = next(r for r in runs if (r["method"], r["mirror"]) == (row["method"], row["mirror"]))
        assert chosen["relative_step_size"] == row["relative_step_size"]
        assert min(error for error in row["errors"] if error is not None) > 0
    sections = [section["heading"] for section in metrics["report"]["sections"]]
    assert sections[:2] == ["Errors with the mirror symmetry", "Errors without the mirror symmetry"]


@pytest.mark.slow
def test_from_random_weights_with_all_methods_and_step_sizes(tmp_path):
    part = RandomPart(gradients=300, seeds=2, sparsities=(0.0, 0.5))
    settings = replace(SMALL, size=6, samples=40, mlp_widths=(8,), methods=(SGLD, BEST), random=part)
    metrics, _, _ = run(settings, tmp_path)
    rows = metrics["numbers"]["random"]
    assert len(rows) == len(part.methods) * (4 + 3)
    for name in part.methods:
        own = [row for row in rows if row["method"] == name]
        tried = [row for row in own if (row["sparsity"], row["seed"]) == (0.5, 0) and not row["diverged"]]
        best = min(tried, key=lambda row: row["held_error"])
        others = {row["relative_step_size"] for row in own if (row["sparsity"], row["seed"]) != (0.5, 0)}
        assert others == {best["relative_step_size"]}
    errors = {
        name: min(row["error"] for row in rows if row["method"] == name and "error" in row) for name in (SGLD, BEST)
    }
    assert errors[BEST] < errors[SGLD]
    headings = [section["heading"] for section in metrics["report"]["sections"]]
    assert headings[1] == "From random weights"
