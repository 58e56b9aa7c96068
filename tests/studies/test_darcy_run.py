"""The Darcy studies from data to page, on a grid of 10 × 10."""

import json

import pytest

from ridgewalk.report.page import write_page
from ridgewalk.studies import darcy_posterior
from ridgewalk.studies.darcy_names import ADAM, BEST, DIAGONAL, PRINTED, PSGLD, SGLD
from ridgewalk.studies.darcy_settings import Settings
from ridgewalk.studies.darcy_story import assemble
from ridgewalk.studies.darcy_study import plan
from ridgewalk.studies.runner import run_study
from ridgewalk.studies.study import Preset, Study
from ridgewalk.surrogates.mlp import mlp
from ridgewalk.surrogates.networks import source_network

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


def made(settings, folder):
    study = Study(settings.kind, {Preset.quick: settings}, "everything.", plan, assemble)
    metrics = json.loads(run_study(study, Preset.quick, folder).read_text())
    return metrics, {row["method"]: row for row in metrics["numbers"]["runs"] if "sparsity" in row}


@pytest.fixture(autouse=True)
def _no_spe10_and_no_tasks_of_others(monkeypatch):
    monkeypatch.delenv("RIDGEWALK_SPE10", raising=False)
    darcy_posterior._task.cache_clear()
    yield
    darcy_posterior._task.cache_clear()


def small_network():
    return mlp(hidden=(40,))


@pytest.mark.slow
@pytest.mark.parametrize("network", [small_network, source_network])
def test_from_data_to_page(tmp_path, monkeypatch, network):
    monkeypatch.setitem(darcy_posterior.NETWORKS, "source", network)
    metrics, runs = made(SMALL, tmp_path)
    start = next(row for row in metrics["numbers"]["runs"] if "start" in row)
    assert {name: row["diverged"] for name, row in runs.items()} == {SGLD: 0, BEST: 0, ADAM: 0}
    for row in runs.values():
        assert 0.4 < row["zeros"] <= 0.5, "half of the weights, biases aside"
        assert 0.7 < row["coverage"] <= 1
        assert row["error"] < 3 * start["error"]
    assert runs[BEST]["error"] < runs[SGLD]["error"], "forty steps of Adam leave something to learn"
    assert "last_potential" in runs[BEST]
    assert "last_potential" not in runs[ADAM], "it samples nothing"
    assert not list((tmp_path / "source" / "kept").glob(".*.partial"))
    page = write_page(tmp_path).read_text()
    assert f"{runs[BEST]['error']:.3f}" in page


@pytest.mark.slow
def test_both_sides_with_tuning(tmp_path, monkeypatch):
    monkeypatch.setitem(darcy_posterior.NETWORKS, "permeability", small_network)
    settings = Settings(
        "permeability",
        size=10,
        samples=40,
        train=30,
        held=10,
        seeds=2,
        sparsities=(0.0, 0.5),
        methods=(SGLD, PSGLD, PRINTED.format(2), DIAGONAL, BEST, ADAM),
        mirrors=(True, False),
        methods_aside=(SGLD, BEST),
        sparsities_aside=(0.5,),
        batch_size=5,
        optimiser_steps=40,
        chain_gradients=150,
        draws=5,
        multiscale_samples=2,
    )
    metrics, _ = made(settings, tmp_path)
    rows = metrics["numbers"]["runs"]
    tuned = [row for row in rows if "tuned" in row]
    assert [len(row["errors"]) for row in tuned] == [4] * 8
    for row in tuned:
        finite = [error for error in row["errors"] if error is not None]
        run = next(r for r in rows if "sparsity" in r and (r["method"], r["mirror"]) == (row["method"], row["mirror"]))
        assert run["share"] == row["share"]
        assert min(finite) > 0
    sections = [section["heading"] for section in metrics["report"]["sections"]]
    assert sections[:2] == ["Errors with the mirror symmetry", "Errors without the mirror symmetry"]
