"""The tasks of a Darcy study: starts, step sizes, runs of the methods from the shared start and from random weights,
and the multiscale solver for comparison.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from ridgewalk._io import write_atomically
from ridgewalk._types import PyTree
from ridgewalk.darcy import Boundary, Grid, multiscale_basis, solve_multiscale
from ridgewalk.darcy.grid import Pressure, split_flux
from ridgewalk.kernel import Sampler
from ridgewalk.neural.assessment import coverage, mean_relative_error, width
from ridgewalk.neural.conformal import fit_conformal
from ridgewalk.neural.networks import count_weights
from ridgewalk.neural.predictive import Predictive, gaussian_intervals, summarise
from ridgewalk.samplers import pruned, sgld
from ridgewalk.studies.darcy.methods import (
    RANDOM_SAMPLERS,
    SAMPLERS,
    adam_baseline,
    default_random_step_size,
    default_step_size,
    method_settings,
    random_method_settings,
    random_step_sizes_of,
    step_sizes_of,
    tapered,
)
from ridgewalk.studies.darcy.problem import (
    ADAM,
    ADAM_EPSILON,
    BEST,
    PERMEABILITY_PAPER,
    PERMEABILITY_QUICK,
    PLAN_ONLY,
    SGLD,
    SOURCE_PAPER,
    SOURCE_QUICK,
    DarcyPosterior,
    MultiscaleRow,
    Part,
    RandomPart,
    RandomRow,
    RandomStartRow,
    RunRow,
    Settings,
    Start,
    StartRow,
    TuningRow,
    darcy_posterior,
    data_source,
    flow_data,
    load_start,
    mirrored_flux,
    random_settings,
    random_start,
    spe10_path,
)
from ridgewalk.studies.darcy.report import (
    FIELDS_FIGURE,
    RANDOM_FIGURE,
    Results,
    build_report,
    error_figure,
    errors_of,
    plot_error_bars,
    plot_fields,
    plot_random_curves,
)
from ridgewalk.studies.framework.comparison import run_chains, slug
from ridgewalk.studies.framework.study import Outcome, Preset, Study, Task, save_figure
from ridgewalk.studies.framework.tasks import Arrays, TaskCache, cached_arrays, row_fields

LEVEL = 0.9
BATCH_OF_PREDICTIONS = 50
PRUNED_BY, KEPT_FROM = 0.4, 0.6
"""Fractions of a chain: pruning ends, draws are kept from."""
CURVE_POINTS, LAST_DRAWS = 25, 0.2
"""From random weights: draws kept over the whole run, and the fraction of those so far whose mean is judged."""
SHOWN = (SGLD, BEST)
"""Methods whose predicted fields are plotted."""
SHOWN_PARTS = ("truth", "mean", "lower", "upper")
FIELD_FILE = "field.json"
BASES = (1, 2, 4)
"""Basis functions per coarse edge of the multiscale solver."""


class Draws(NamedTuple):
    """Draws of the weights along the first axis; a single one for Adam."""

    weights: PyTree
    seconds: float
    potentials: tuple[float, float] | None = None
    """The potential on a batch, averaged over the first and the last twentieth of the draws; None for Adam."""


def with_pruning(sampler: Sampler, sparsity: float, steps: int) -> Sampler:
    """The sampler with magnitude pruning over the first part of the chain."""
    return pruned(sampler, sparsity, stop=max(1, int(PRUNED_BY * steps))) if sparsity else sampler


def run_method(
    problem: DarcyPosterior,
    start: Start,
    name: str,
    *,
    sparsity: float,
    seed: int,
    relative_step_size: float,
    gradients: int,
    from_random: bool = False,
) -> Draws | None:
    """Run a method for a budget of gradients; None if it diverged.

    From random weights, step sizes are tapered and draws of the whole run are kept.
    """
    settings = problem.settings
    began = time.perf_counter()
    if name == ADAM:
        end = adam_baseline(
            jax.random.key(1_000 + seed),
            problem.target,
            start.position,
            relative_step_size,
            steps=gradients,
            batch_size=settings.batch_size,
            pruning=with_pruning(sgld(), sparsity, gradients).pruning,
        )
        weights = jax.tree.map(lambda leaf: np.asarray(leaf)[None], end)
        finite = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(weights))
        return Draws(weights, time.perf_counter() - began) if finite else None
    method = RANDOM_SAMPLERS[name] if from_random else SAMPLERS[name]
    steps = method.steps(gradients)
    burn_in, draws = (0, CURVE_POINTS) if from_random else (int(KEPT_FROM * steps), settings.draws)
    step_size = relative_step_size * method.unit(start.statistics)
    result = run_chains(
        with_pruning(method.build(settings.temperature, start.statistics), sparsity, steps),
        problem.target,
        start.position,
        seed=1_000 + seed,
        steps=steps,
        step_size=tapered(step_size, steps) if from_random else step_size,
        batch_size=settings.batch_size,
        burn_in=burn_in,
        thin=max(1, (steps - burn_in) // draws),
    )
    if result is None:
        return None
    potential = np.asarray(result.info.potential)[0]
    few = max(1, len(potential) // 20)
    weights = jax.tree.map(lambda leaf: np.asarray(leaf[0]), result.kept_positions())
    ends = float(potential[:few].mean()), float(potential[-few:].mean())
    return Draws(weights, time.perf_counter() - began, ends)


def predictions(problem: DarcyPosterior, weights: PyTree, part: Part) -> np.ndarray:
    """Standardised predictions (draw, example, varying output), with the symmetry averaged over both images."""
    outputs, grid = problem.scaled.outputs, problem.data.grid
    apply = jax.jit(problem.model.apply)

    def outputs_of(one: PyTree, fields: np.ndarray) -> np.ndarray:
        x = problem.scaled.standardise(fields)
        starts = range(0, len(x), BATCH_OF_PREDICTIONS)
        return np.concatenate([np.asarray(apply(one, x[i : i + BATCH_OF_PREDICTIONS])) for i in starts])

    found = []
    for number in range(len(jax.tree.leaves(weights)[0])):
        one = jax.tree.map(lambda leaf, n=number: leaf[n], weights)
        predicted = outputs_of(one, part.fields)
        if problem.mirror:
            image = outputs.mean(outputs_of(one, part.fields[:, ::-1]).astype(float))
            predicted = (predicted + outputs.forward(mirrored_flux(grid, image))) / 2
        found.append(predicted)
    return np.stack(found)


def predictive_of(problem: DarcyPosterior, weights: PyTree, part: Part) -> Predictive:
    """Standardised predictive mean and standard deviation; for a single draw the likelihood's noise alone."""
    found = predictions(problem, weights, part).astype(float)
    if len(found) == 1:
        return Predictive(found[0], np.full(found[0].shape, problem.noise))
    return summarise(found, problem.noise)


def error_of(problem: DarcyPosterior, mean: np.ndarray, part: Part) -> float:
    """Mean relative error over all edges, in per cent."""
    return mean_relative_error(problem.scaled.outputs.mean(mean), part.fluxes)


def held_error(problem: DarcyPosterior, weights: PyTree) -> float:
    """The error on held-out training samples, by which step sizes are chosen."""
    held = problem.data.held
    return error_of(problem, predictions(problem, weights, held).astype(float).mean(0), held)


def judge_draws(problem: DarcyPosterior, draws: Draws, row: RunRow) -> RunRow:
    """Fill in error, calibration and cost of a run."""
    scaled, data = problem.scaled, problem.data
    held, test = (predictive_of(problem, draws.weights, part) for part in (data.held, data.test))
    true_held, true_test = (scaled.outputs.forward(part.fluxes) for part in (data.held, data.test))
    before = gaussian_intervals(test, [LEVEL])
    after = fit_conformal(held, true_held, [LEVEL]).intervals(test)
    first, last = draws.potentials or (None, None)
    return row._replace(
        diverged=0,
        error=error_of(problem, test.mean, data.test),
        coverage_before=float(coverage(before, true_test)[0]),
        coverage=float(coverage(after, true_test)[0]),
        width=float(width(after)[0]),
        zeros=_zeros(draws.weights),
        seconds=draws.seconds,
        first_potential=first,
        last_potential=last,
    )


def _zeros(weights: PyTree) -> float:
    """The fraction of zeros of the last draw, without biases."""
    matrices = [leaf for leaf in jax.tree.leaves(weights) if leaf.ndim > 2]
    return float(np.mean(np.concatenate([leaf[-1].ravel() for leaf in matrices]) == 0))


def field_prediction(problem: DarcyPosterior, weights: PyTree) -> dict[str, list[float]]:
    """Fluxes of the test sample that is farthest from the training mean, in original units."""
    test, outputs = problem.data.test, problem.scaled.outputs
    farthest = int(np.argmax(np.linalg.norm(test.fluxes - problem.data.train.fluxes.mean(0), axis=1)))
    one = Part(*(part[farthest : farthest + 1] for part in test))
    found = predictive_of(problem, weights, one)
    total = outputs.std(found.std)[0]
    noise = outputs.std(np.full((1, problem.scaled.y.shape[1]), problem.noise))[0]
    std = np.sqrt(np.maximum(total**2 - noise**2, 0))
    return {
        "truth": one.fluxes[0].tolist(),
        "mean": np.round(outputs.mean(found.mean)[0], 7).tolist(),
        "std": np.round(std, 8).tolist(),
        "noise": noise.tolist(),
    }


def typical_prediction(problem: DarcyPosterior, weights: PyTree) -> dict[str, list[float]]:
    """Fluxes of the test sample of median error, in original units, with their recalibrated intervals."""
    test, held, outputs = problem.data.test, problem.data.held, problem.scaled.outputs
    found = predictive_of(problem, weights, test)
    errors = np.linalg.norm(outputs.mean(found.mean) - test.fluxes, axis=1) / np.linalg.norm(test.fluxes, axis=1)
    middle = int(np.argsort(errors)[len(errors) // 2])
    recalibrated = fit_conformal(predictive_of(problem, weights, held), outputs.forward(held.fluxes), [LEVEL])
    intervals = recalibrated.intervals(Predictive(*(part[middle : middle + 1] for part in found)))
    ends = {"mean": found.mean[middle : middle + 1], "lower": intervals.lower[0], "upper": intervals.upper[0]}
    return {"truth": test.fluxes[middle].tolist()} | {
        name: np.round(outputs.mean(values)[0], 7).tolist() for name, values in ends.items()
    }


def save_field(grid: Grid, fluxes: Mapping[str, list[float]], folder: Path) -> None:
    """Write the field that the page shows: fluxes through the inner vertical edges, in one line."""
    inner = {name: split_flux(grid, np.asarray(fluxes[name]))[0][:, 1:-1] for name in SHOWN_PARTS}
    content = {name: [[float(f"{value:.6g}") for value in row] for row in values] for name, values in inner.items()}
    write_atomically(folder / FIELD_FILE, json.dumps(content, separators=(",", ":")).encode())


def task_settings(settings: Settings, mirror: bool) -> dict[str, Any]:
    """The settings on which all tasks depend."""
    everything = asdict(settings) | {"mirror": mirror, "data": data_source(settings.kind, spe10_path())}
    everything["adam_epsilon"] = ADAM_EPSILON
    return {key: value for key, value in everything.items() if key not in PLAN_ONLY}


def tuned_step_sizes(problem: DarcyPosterior, name: str, folder: Path) -> Arrays:
    """Held-out errors at all step sizes, from runs of half the length at one sparsity and the first seed; cached."""
    settings = problem.settings

    def make(_: Path) -> Arrays:
        start = load_start(problem, 0, folder)
        errors = []
        for relative in step_sizes_of(name):
            draws = run_method(
                problem,
                start,
                name,
                sparsity=settings.tuning_sparsity,
                seed=0,
                relative_step_size=relative,
                gradients=settings.chain_gradients // 2,
            )
            errors.append(np.inf if draws is None else held_error(problem, draws.weights))
        return {"relative_step_sizes": np.array(step_sizes_of(name)), "errors": np.array(errors)}

    about = task_settings(settings, problem.mirror) | method_settings(name)
    return cached_arrays(folder, f"tuned-{slug(name)}", about, make)


def best_step_size(tuned: Arrays) -> float:
    """The relative step size of lowest held-out error."""
    return float(tuned["relative_step_sizes"][np.argmin(tuned["errors"])])


def _run(settings: Settings, mirror: bool, name: str, sparsity: float, seed: int) -> Callable[[Path], RunRow]:
    def run(folder: Path) -> RunRow:
        problem = darcy_posterior(settings, mirror)
        relative = default_step_size(name)
        if settings.tuned:
            relative = best_step_size(tuned_step_sizes(problem, name, folder))
        start, gradients = load_start(problem, seed, folder), settings.chain_gradients
        draws = run_method(
            problem, start, name, sparsity=sparsity, seed=seed, relative_step_size=relative, gradients=gradients
        )
        row = RunRow(name, sparsity, seed, mirror, relative, diverged=1)
        if draws is None:
            return row
        row = judge_draws(problem, draws, row)
        shown = seed == 0 and name in SHOWN and sparsity == settings.tuning_sparsity
        if shown:
            row = row._replace(fields=field_prediction(problem, draws.weights))
        return row._replace(typical=typical_prediction(problem, draws.weights)) if shown and name == BEST else row

    return run


def _start(settings: Settings, mirror: bool, seed: int) -> Callable[[Path], StartRow]:
    def run(folder: Path) -> StartRow:
        problem = darcy_posterior(settings, mirror)
        position = load_start(problem, seed, folder).position
        weights = jax.tree.map(lambda leaf: np.asarray(leaf)[None], position)
        test = problem.data.test
        error = error_of(problem, predictions(problem, weights, test)[0].astype(float), test)
        held = held_error(problem, weights)
        return StartRow(seed, mirror, error, held, count_weights(position), problem.data.label)

    return run


def _tuning(settings: Settings, mirror: bool, name: str) -> Callable[[Path], TuningRow]:
    def run(folder: Path) -> TuningRow:
        tuned = tuned_step_sizes(darcy_posterior(settings, mirror), name, folder)
        errors = [None if np.isinf(error) else error for error in tuned["errors"].tolist()]
        return TuningRow(name, mirror, best_step_size(tuned), errors)

    return run


def multiscale_error(settings: Settings, blocks: int, per_edge: int) -> float:
    """Mean relative error in % of the mixed multiscale solver on the first test samples."""
    data = flow_data(settings, spe10_path())
    test = Part(*(part[: settings.multiscale_samples] for part in data.test))
    varying = settings.kind == "permeability"
    boundary = Boundary(left=Pressure(1.0), right=Pressure(0.0)) if varying else Boundary()
    size, fixed = (blocks, blocks), data.permeability
    shared = None if fixed is None else multiscale_basis(fixed, boundary, size, per_edge)
    found = []
    for field in test.fields:
        basis = shared or multiscale_basis(field, boundary, size, per_edge)
        found.append(solve_multiscale(basis, 1.0 if varying else field, boundary).flux)
    return mean_relative_error(np.array(found), test.fluxes)


def _multiscale(settings: Settings) -> Callable[[Path], MultiscaleRow]:
    def run(_: Path) -> MultiscaleRow:
        blocks = settings.size // 10 if settings.size >= 40 else max(2, settings.size // 4)
        errors = [multiscale_error(settings, blocks, count) for count in BASES]
        return MultiscaleRow(blocks, list(BASES), errors)

    return run


def judge_random(problem: DarcyPosterior, draws: Draws, row: RandomRow, gradients: int) -> RandomRow:
    """Fill in the curve of test errors, of the mean over the last draws so far, and what its end is."""
    test = problem.data.test
    found = predictions(problem, draws.weights, test)
    count = len(found)
    last = [max(1, round(LAST_DRAWS * (number + 1))) for number in range(count)]
    means = (found[number + 1 - few : number + 1].astype(float).mean(0) for number, few in enumerate(last))
    errors = [error_of(problem, mean, test) for mean in means]
    at_end = held_error(problem, jax.tree.map(lambda leaf: leaf[-last[-1] :], draws.weights))
    if not np.isfinite([*errors, at_end]).all():
        return row
    used = [gradients]
    if row.method != ADAM:
        method = RANDOM_SAMPLERS[row.method]
        thin = max(1, method.steps(gradients) // CURVE_POINTS)
        used = [method.gradients(thin * (number + 1)) for number in range(count)]
    return row._replace(
        diverged=0,
        error=errors[-1],
        held_error=at_end,
        zeros=_zeros(draws.weights),
        gradients=used,
        errors=errors,
    )


def _random_run(
    settings: Settings, part: RandomPart, name: str, sparsity: float, seed: int, step_size: float | list[Task]
) -> Callable[[Path], RandomRow]:
    """A run at a step size, or at the best of those that other tasks tried."""

    def run(folder: Path) -> RandomRow:
        began = time.process_time()
        problem = darcy_posterior(settings, part.mirror)
        relative = _best_tried(folder, step_size) if isinstance(step_size, list) else step_size
        draws = run_method(
            problem,
            random_start(problem, seed, folder),
            name,
            sparsity=sparsity,
            seed=seed,
            relative_step_size=relative,
            gradients=part.gradients,
            from_random=True,
        )
        row = RandomRow(name, sparsity, seed, part.mirror, relative, diverged=1)
        if draws is not None:
            row = judge_random(problem, draws, row, part.gradients)
        return row._replace(seconds=time.process_time() - began)

    return run


def _best_tried(folder: Path, tried: list[Task]) -> float:
    """The step size of lowest held-out error; the smallest one if all diverged."""
    found = [TaskCache(folder / "tasks").read(task) for task in tried]
    rows = [one.row for one in found if one is not None and isinstance(one.row, RandomRow)]
    finite = [row for row in rows if not row.diverged]
    best = min(finite or rows, key=lambda row: row.held_error if finite else row.relative_step_size)
    return best.relative_step_size


def _random_statistics(settings: Settings, mirror: bool, seed: int) -> Callable[[Path], RandomStartRow]:
    def run(folder: Path) -> RandomStartRow:
        statistics = random_start(darcy_posterior(settings, mirror), seed, folder).statistics
        return RandomStartRow(seed, statistics.curvature, statistics.rescaled_curvature)

    return run


def _random_tasks(settings: Settings, part: RandomPart) -> list[Task]:
    """One task per method, sparsity and seed, and at the first seed and one sparsity one per step size."""
    settings = replace(settings, mlp_widths=part.mlp_widths or settings.mlp_widths)
    known = random_settings(settings) | {"temperature": settings.temperature, "mirror": part.mirror}
    known |= {"data": data_source(settings.kind, spe10_path()), "from": "random weights"}
    tasks = []
    for seed in range(part.seeds):
        run_start = _random_statistics(settings, part.mirror, seed)
        tasks.append(Task(f"random-start-seed{seed}", known | {"seed": seed}, run_start, RandomStartRow, 5.0, "start"))
    known |= {"gradients": part.gradients, "points": CURVE_POINTS, "kept": LAST_DRAWS, "pruned_by": PRUNED_BY}
    cost, tuned_at = part.gradients / (17 if part.mirror else 25), part.tuned_at(settings.tuning_sparsity)

    def task(name: str, sparsity: float, seed: int, step: float | list[Task], after: list[str]) -> Task:
        about = known | random_method_settings(name) | {"sparsity": sparsity, "seed": seed}
        label, group = f"random-{slug(name)}-{round(100 * sparsity)}-seed{seed}", f"random-{slug(name)}"
        if isinstance(step, list):
            about |= {"relative_step_sizes": list(random_step_sizes_of(name)), "tuned_at": tuned_at}
        else:
            label, about = f"{label}-step{step:g}", about | {"relative_step_size": step}
        run = _random_run(settings, part, name, sparsity, seed, step)
        return Task(label, about, run, RandomRow, cost, group, (f"random-start-seed{seed}", *after))

    for name in part.methods:
        tried: list[Task] = []
        if part.tuned:
            tried = [task(name, tuned_at, 0, step, []) for step in random_step_sizes_of(name)]
        names = [one.name for one in tried]
        tasks += tried
        for sparsity in part.sparsities:
            for seed in range(part.seeds):
                if not (part.tuned and (sparsity, seed) == (tuned_at, 0)):
                    step: float | list[Task] = tried if part.tuned else default_random_step_size(name)
                    tasks.append(task(name, sparsity, seed, step, names))
    return tasks


def plan(settings: Settings) -> list[Task]:
    """The multiscale solver, the starts, the choice of step sizes, one task per run, then runs from random weights."""
    known = task_settings(settings, False)
    tasks = [Task("multiscale", known, _multiscale(settings), MultiscaleRow, 0.5, "multiscale")]
    for mirror in settings.mirrors:
        tasks += _starts_and_tuning(settings, mirror)
        tasks += _runs(settings, mirror)
    return tasks if settings.random is None else tasks + _random_tasks(settings, settings.random)


def _prefix(mirror: bool) -> str:
    return "mirror-" if mirror else ""


def _starts_and_tuning(settings: Settings, mirror: bool) -> list[Task]:
    known, prefix = task_settings(settings, mirror), _prefix(mirror)
    tasks = []
    for seed in range(settings.seeds):
        run, cost = _start(settings, mirror, seed), 8 + settings.optimiser_steps / 50
        tasks.append(Task(f"{prefix}start-seed{seed}", known | {"seed": seed}, run, StartRow, cost, "start"))
    for name in settings.methods_for(mirror) if settings.tuned else ():
        run_tuning, about = _tuning(settings, mirror, name), known | method_settings(name)
        cost = len(step_sizes_of(name)) * settings.chain_gradients / 50
        task = Task(f"{prefix}tuned-{slug(name)}", about, run_tuning, TuningRow, cost, slug(name))
        tasks.append(task._replace(after=(f"{prefix}start-seed0",)))
    return tasks


def _runs(settings: Settings, mirror: bool) -> list[Task]:
    known, prefix = task_settings(settings, mirror), _prefix(mirror)
    tasks = []
    for seed in range(settings.seeds):
        for sparsity in settings.sparsities_for(mirror):
            for name in settings.methods_for(mirror):
                about = known | method_settings(name) | {"sparsity": sparsity, "seed": seed}
                about |= {} if settings.tuned else {"relative_step_size": default_step_size(name)}
                group = f"{slug(name)}-{round(100 * sparsity)}"
                run, cost = (
                    _run(settings, mirror, name, sparsity, seed),
                    settings.chain_gradients / (17 if mirror else 25),
                )
                after = (f"{prefix}start-seed{seed}", *((f"{prefix}tuned-{slug(name)}",) if settings.tuned else ()))
                tasks.append(Task(f"{prefix}{group}-seed{seed}", about, run, RunRow, cost, group, after))
    return tasks


def assemble(settings: Settings, rows: Mapping[str, Any], folder: Path) -> Outcome:
    """Build the figures and the report."""
    results = Results.of(rows.values())
    for mirror in settings.mirrors:
        errors = errors_of(results.runs_for(mirror))
        save_figure(folder, error_figure(mirror), plot_error_bars(errors, settings.paper))
    shown = results.shown_fields(settings.mirrors[0])
    if shown:
        grid = Grid(nx=settings.size, ny=settings.size)
        save_figure(folder, FIELDS_FIGURE, plot_fields(grid, shown))
        typical = [row.typical for row in results.runs_for(settings.mirrors[0]) if row.typical is not None]
        if typical:
            save_field(grid, typical[0], folder)
    if results.random:
        save_figure(folder, RANDOM_FIGURE, plot_random_curves(results.chosen_random(), settings.paper))
    numbers = {
        "data": results.starts[0].data_label,
        "multiscale": row_fields(results.multiscale),
        "starts": list(map(row_fields, results.starts)),
        "tuning": list(map(row_fields, results.tuning)),
        "runs": [row_fields(row, without=("fields", "typical")) for row in results.runs],
        "random_starts": list(map(row_fields, results.random_starts)),
        "random": list(map(row_fields, results.random)),
    }
    return Outcome(build_report(settings, results), numbers)


SOURCE = Study(
    "source",
    f"{__name__}:SOURCE",
    {Preset.quick: SOURCE_QUICK, Preset.paper: SOURCE_PAPER},
    "a 20×20 grid instead of 50×50, 300 samples instead of 1,500, one seed, three of four sparsities, four of eight "
    "methods, about a quarter of the gradients, half the draws, no tuning of step sizes, and no runs from random "
    "weights.",
    plan,
    assemble,
)

PERMEABILITY = Study(
    "permeability",
    f"{__name__}:PERMEABILITY",
    {Preset.quick: PERMEABILITY_QUICK, Preset.paper: PERMEABILITY_PAPER},
    "a 20×20 grid instead of 50×50, 300 samples instead of 1,500, one seed, two of four sparsities, four of six "
    "methods, with the symmetry only, about an eighth of the gradients, five samples for the multiscale solver "
    "instead of 20, no tuning of step sizes, and no runs from random weights.",
    plan,
    assemble,
)
