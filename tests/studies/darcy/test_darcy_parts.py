"""The Darcy studies: their data, their parts, and the tables made of runs."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import ridgewalk as rw
from ridgewalk.darcy import Boundary, Pressure, solve
from ridgewalk.pruning import Pruning
from ridgewalk.studies.darcy.methods import RANDOM_SAMPLERS, SAMPLERS, adam_baseline, random_step_sizes_of, tapered
from ridgewalk.studies.darcy.problem import (
    ADAM,
    BEST,
    METHOD_NAMES,
    PAPER_SIZE,
    RANDOM_METHOD_NAMES,
    SCALE_GRADIENTS,
    SGLD,
    MultiscaleRow,
    RandomPart,
    RandomRow,
    RandomStartRow,
    RunRow,
    Settings,
    StartRow,
    curvature_at,
    flow_data,
    mirrored,
    standardised,
    start_settings,
)
from ridgewalk.studies.darcy.report import (
    Results,
    comparison_table,
    coverage_table,
    error_table,
    random_table,
    random_tuning_table,
    ratio_to_sgld,
)
from ridgewalk.studies.darcy.study import multiscale_error, plan

TINY = Settings(
    "permeability",
    size=10,
    samples=12,
    train=9,
    held=3,
    seeds=2,
    mirrors=(True,),
    multiscale_samples=2,
    methods=METHOD_NAMES,
)
SOURCES = Settings("source", size=10, samples=12, train=9, held=3, multiscale_samples=2)


@pytest.fixture(autouse=True)
def _no_spe10(monkeypatch):
    monkeypatch.delenv("RIDGEWALK_SPE10", raising=False)


def test_the_mirror_image_of_a_solution_solves_the_mirrored_problem():
    data = flow_data(TINY)
    image = mirrored(data.grid, data.test)
    boundary = Boundary(left=Pressure(1.0), right=Pressure(0.0))
    for field, flux in zip(image.fields, image.fluxes, strict=True):
        np.testing.assert_allclose(solve(field, 1.0, boundary, data.grid).flux, flux, atol=1e-12)


def test_held_out_and_test_samples_are_not_learnt_from():
    data = flow_data(TINY)
    parts = [part.fields for part in (data.train, data.held, data.test)]
    assert [len(part) for part in parts] == [6, 3, 3]
    rows = np.concatenate(parts).reshape(12, -1)
    assert len(np.unique(rows, axis=0)) == 12
    seen = standardised(data, mirror=True)
    assert seen.x.shape == (12, 10, 10), "six samples and their mirror images"
    np.testing.assert_allclose(seen.x[6:], seen.x[:6, ::-1])
    assert seen.x.dtype == np.float32
    back = seen.outputs.mean(seen.y[:6].astype(float))
    np.testing.assert_allclose(back, data.train.fluxes, atol=1e-6)


@pytest.mark.parametrize("settings", [TINY, SOURCES], ids=["permeability", "source"])
def test_more_basis_functions_bring_the_multiscale_solver_to_the_truth(settings):
    errors = [multiscale_error(settings, 2, count) for count in (1, 2, 5)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-6, "the complete basis is exact"


def regression():
    x = jax.random.normal(jax.random.key(0), (64, 4))
    y = x @ jnp.array([2.0, 0.0, 0.02, -1.0])
    likelihood = lambda w, batch: -50 * (batch[1] - batch[0] @ w["w"][0]) ** 2  # noqa: E731
    log_prior = lambda w: -0.5 * jnp.sum(w["w"] ** 2) / 0.25  # noqa: E731
    return rw.Posterior(log_prior, likelihood, (x, y))


def test_adam_refines_and_prunes():
    target = regression()
    start = {"w": jnp.array([[1.0, 0.1, 0.1, -0.5]])}
    pruning = Pruning(0.5, 1, 100, 10)
    end = adam_baseline(jax.random.key(1), target, start, 0.05, steps=300, batch_size=16, pruning=pruning)["w"][0]
    np.testing.assert_array_equal(end == 0, [False, True, True, False])
    np.testing.assert_allclose(end[np.array([0, 3])], [2.0, -1.0], atol=0.02)


def test_the_largest_curvature_is_the_hessians_in_both_units():
    x = jax.random.normal(jax.random.key(0), (64, 4)) * jnp.array([[1.0, 3.0, 0.1, 5.0]])
    likelihood = lambda w, batch: -50 * (batch[1] - batch[0][:, :3] @ w["b"] - batch[0][:, 3:] @ w["a"]) ** 2  # noqa: E731
    target = rw.Posterior(lambda w: -0.5 * jnp.sum(w["b"] ** 2), likelihood, (x, x[:, 0]))
    position = {"b": jnp.array([2.0, 0.0, -1.0]), "a": jnp.array([0.3])}
    flat, unravel = ravel_pytree(position)
    examples = jax.tree.map(lambda a: a[::2], target.data)
    hessian = jax.hessian(lambda w: target.potential(unravel(w), examples))(flat)
    for given in (jnp.ones(4), jnp.array([0.1, 1.0, 2.0, 0.5])):
        wanted = np.linalg.eigvalsh(hessian * jnp.outer(given, given))[-1]
        np.testing.assert_allclose(curvature_at(target, position, given, stride=2), wanted, rtol=0.01)


def test_methods_pay_for_their_own_gradients():
    assert SAMPLERS[SGLD].steps(1_000) == 1_000
    ours = SAMPLERS[BEST]
    assert 998 <= ours.steps(1_000) + ours.steps(1_000) // ours.pair_every + SCALE_GRADIENTS <= 1_000
    assert SAMPLERS["HASGLD-SA, M=1, as printed"].steps(1_000) == 500


def test_every_run_is_a_task_of_its_own():
    tasks = plan(TINY)
    names = [task.name for task in tasks]
    assert len(set(names)) == len(names)
    runs = [task for task in tasks if "sparsity" in task.settings]
    assert len(runs) == len(METHOD_NAMES) * 4 * 2
    assert all("mirror" in task.settings and "data" in task.settings for task in tasks)


def test_the_second_side_may_be_smaller():
    """Which tasks there are does not change their settings: results stay valid."""
    settings = replace(TINY, mirrors=(True, False), secondary_methods=(SGLD, BEST), secondary_sparsities=(0.0, 0.3))
    everything = {task.name: task.settings for task in plan(replace(TINY, mirrors=(True, False)))}
    tasks = plan(settings)
    sides = [[p for p in tasks if "sparsity" in p.settings and p.settings["mirror"] is side] for side in (True, False)]
    assert [len(side) for side in sides] == [len(METHOD_NAMES) * 4 * 2, 2 * 2 * 2]
    assert {task.settings["method"] for task in sides[1]} == {SGLD, BEST}
    assert all(everything[task.name] == task.settings for task in tasks)
    assert start_settings(settings) == start_settings(TINY)


def runs(errors):
    return [
        RunRow(name, sparsity, seed, True, 0.1, 0, error, coverage_before=0.5, coverage=0.97, width=1.0, seconds=1.0)
        for name, level in errors.items()
        for sparsity in TINY.sparsities
        for seed, error in enumerate((level, level + 0.02))
    ]


def test_sgld_is_compared_seed_by_seed():
    """Starts differ by more than the methods do; a seed that one method lost counts for neither."""
    found = [row._replace(error=row.error + 10 * row.seed) for row in runs({SGLD: 3.0, BEST: 2.99})]
    assert ratio_to_sgld(found, 0.0).mark == "better"
    found = [row._replace(error=row.error + 0.05 * (row.method == BEST and row.seed == 1)) for row in found]
    assert ratio_to_sgld(found, 0.0).mark == "equal"
    lost = [row._replace(diverged=int(row.method == SGLD and row.seed == 1)) for row in found]
    assert ratio_to_sgld(lost, 0.0).value == pytest.approx(2.99 / 3)


def test_tables_have_the_papers_numbers_and_gaps():
    starts = [StartRow(seed, True, error, 1.0, 100, "a field") for seed, error in enumerate((1.4, 1.6))]
    found = runs({SGLD: 3.02, BEST: 0.6, ADAM: 0.5})
    results = Results.of([MultiscaleRow(5, [1, 2], [9.0, 3.0]), *starts, *found])
    settings = replace(TINY, size=PAPER_SIZE)
    table = error_table(settings, True, results, "caption")
    first = dict(zip(table.columns, table.rows[1], strict=True))
    assert first[SGLD].paper == 3.04
    assert first[SGLD].mark == "equal"
    assert first[BEST].paper == 0.78
    assert first[BEST].mark == "better"
    assert first["pSGLD"].value is None
    assert first["multiscale solver"].value == 9.0
    assert dict(zip(table.columns, table.rows[3], strict=True))[SGLD].paper is None, "the paper stops at 50 %"
    assert first["start"].value == 1.5
    assert comparison_table(TINY, True, results).rows[0][1].paper is None, "a reduced grid is not the paper's"
    comparison = comparison_table(settings, True, results)
    assert [row[1].mark for row in comparison.rows] == ["better", "better", "better", None]
    assert all(row[2].mark == "better" and row[2].value < 0.25 for row in comparison.rows)
    assert comparison.rows[0][3].value == pytest.approx(0.61 / 1.5)
    assert all(row[2].mark == "worse" for row in coverage_table(TINY, found).rows), "97 % is outside 85 to 95 %"


RANDOM = replace(TINY, random=RandomPart(gradients=500, seeds=3, mirror=True))


@pytest.mark.parametrize("method", RANDOM_SAMPLERS.values(), ids=list(RANDOM_SAMPLERS))
def test_from_random_weights_no_method_has_more_gradients(method):
    steps = method.steps(1_000)
    assert 980 <= method.gradients(steps) <= 1_000
    assert method.gradients(steps + 20) > 1_000
    assert len(method.relative_step_sizes) == 4
    assert method.default in method.relative_step_sizes


def test_step_sizes_from_random_weights_are_constant_and_then_fall():
    steps = np.arange(1_000)
    sizes = np.asarray(tapered(0.2, 1_000)(steps))
    np.testing.assert_allclose(sizes[:500], 0.2, rtol=1e-6)
    assert np.all(np.diff(sizes[501:]) < 0)
    assert sizes[-1] == pytest.approx(0.002, rel=0.02)


def test_from_random_weights_every_run_is_a_task_and_other_tasks_stay_valid():
    tasks = {task.name: task for task in plan(RANDOM)}
    others = {task.name: task for task in plan(TINY)}
    assert all(tasks[name].settings == task.settings for name, task in others.items())
    runs = [task for name, task in tasks.items() if name not in others and "method" in task.settings]
    cells = {(t.settings["method"], t.settings["sparsity"], t.settings["seed"]) for t in runs}
    assert len(cells) == len(RANDOM_METHOD_NAMES) * 4 * 3
    tried = [task for task in runs if "relative_step_size" in task.settings]
    assert {(t.settings["sparsity"], t.settings["seed"]) for t in tried} == {(0.5, 0)}
    assert len(tried) == len(RANDOM_METHOD_NAMES) * 4, "four step sizes of each"
    assert len(runs) == len(cells) + 3 * len(RANDOM_METHOD_NAMES)
    for task in runs:
        if task not in tried:
            assert sum(other.name in task.after for other in tried) == 4, "the step size is chosen first"
    longer = replace(RANDOM, optimiser_steps=7)
    assert all(t.settings == tasks[t.name].settings for t in plan(longer) if t.name.startswith("random-"))


def random_rows(levels):
    return [
        RandomRow(name, sparsity, seed, True, step, 0, error, held_error=error, seconds=1.0)
        for name, level in levels.items()
        for sparsity in RANDOM.random.sparsities
        for seed in range(3)
        for place, step in enumerate(random_step_sizes_of(name))
        if place == 1 or (sparsity, seed) == (0.5, 0)
        for error in (level * (1 + abs(place - 1)),)
    ]


def test_the_table_from_random_weights_has_the_best_step_size_of_each_cell():
    found = random_rows({SGLD: 3.04, BEST: 1.0})
    lost = found[-1]._replace(diverged=1, error=float("nan"), held_error=float("nan"))
    starts = [RandomStartRow(seed, 10.0, 2.0) for seed in range(3)]
    results = Results.of([MultiscaleRow(5, [1], [9.0]), *found[:-1], lost, *starts])
    settings = replace(RANDOM, size=PAPER_SIZE)
    table = random_table(settings, settings.random, results)
    for row in table.rows:
        cells = dict(zip(table.columns, row, strict=True))
        assert cells[SGLD].value == pytest.approx(3.04), "not that of larger or smaller steps"
        assert cells["pSGLD"].note == "diverged"
        assert cells[f"{BEST} / SGLD"].value == pytest.approx(1 / 3.04)
        assert cells[f"{BEST} / SGLD"].mark == "better"
    assert dict(zip(table.columns, table.rows[1], strict=True))[BEST].mark == "worse", "the paper has 0.78"
    ours = dict(zip(table.columns, table.rows[-1], strict=True))[BEST]
    assert ours.note == "1 diverged"
    tried = random_tuning_table(settings, settings.random, results)
    sgld = next(row for row in tried.rows if row[0] == SGLD)
    assert [cell.value for cell in sgld[1:]] == pytest.approx([6.08, 3.04, 6.08, 9.12])
