"""One run of a Darcy study: a method from the shared start, and what its draws predict."""

import time
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from ridgewalk._types import PyTree
from ridgewalk.kernel import Sampler
from ridgewalk.samplers import pruned, sgld
from ridgewalk.studies.chains import run_chains
from ridgewalk.studies.darcy_adam import refine
from ridgewalk.studies.darcy_data import Part, mirrored_flux
from ridgewalk.studies.darcy_look import look
from ridgewalk.studies.darcy_methods import SAMPLERS
from ridgewalk.studies.darcy_names import ADAM
from ridgewalk.studies.darcy_posterior import Task, warm_start
from ridgewalk.studies.study import Values
from ridgewalk.surrogates.calibration import coverage, width
from ridgewalk.surrogates.errors import mean_relative_error
from ridgewalk.surrogates.predictive import Predictive, gaussian_intervals, summarise
from ridgewalk.surrogates.recalibration import fit_conformal

LEVEL = 0.9
EXAMPLES_AT_ONCE = 50
POTENTIALS = "first_potential", "last_potential"
PRUNED_BY, KEPT_FROM = 0.4, 0.6
"""Shares of a chain: pruning ends, draws begin."""


class Ended(NamedTuple):
    """Draws of the weights with their axis first; one where there is no posterior to draw from."""

    draws: PyTree
    seconds: float
    potentials: tuple[float, float] | None = None
    """Ũ on a batch, averaged over the first and the last twentieth of the draws; of samplers only."""


def pruning_of(sampler: Sampler, sparsity: float, steps: int) -> Sampler:
    """With magnitude pruning over the first part of the chain."""
    return pruned(sampler, sparsity, stop=max(1, int(PRUNED_BY * steps))) if sparsity else sampler


def run_method(
    task: Task, name: str, sparsity: float, seed: int, share: float, gradients: int, folder: Path
) -> Ended | None:
    """Draws of a method after so many gradients; None where it diverged. `share` stands for its step size."""
    start, seen, settings = warm_start(task, seed, folder), look(task, seed, folder), task.settings
    began = time.perf_counter()
    if name == ADAM:
        pruning = pruning_of(sgld(), sparsity, gradients).pruning
        end = refine(
            jax.random.key(1_000 + seed),
            task.target,
            start,
            share,
            steps=gradients,
            batch_size=settings.batch_size,
            pruning=pruning,
        )
        draws = jax.tree.map(lambda leaf: np.asarray(leaf)[None], end)
        finite = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(draws))
        return Ended(draws, time.perf_counter() - began) if finite else None
    method = SAMPLERS[name]
    plain = method.build(settings.temperature, seen)
    steps = method.steps(gradients)
    burn_in = int(KEPT_FROM * steps)
    result = run_chains(
        pruning_of(plain, sparsity, steps),
        task.target,
        start,
        seed=1_000 + seed,
        steps=steps,
        step_size=share * method.unit(seen),
        batch_size=settings.batch_size,
        burn_in=burn_in,
        thin=max(1, (steps - burn_in) // settings.draws),
    )
    if result is None:
        return None
    potential = np.asarray(result.info.potential)[0]
    few = max(1, len(potential) // 20)
    draws = jax.tree.map(lambda leaf: np.asarray(leaf[0]), result.kept_positions())
    ends = float(potential[:few].mean()), float(potential[-few:].mean())
    return Ended(draws, time.perf_counter() - began, ends)


def predictions(task: Task, draws: PyTree, part: Part) -> np.ndarray:
    """(draw, example, varying output) in scaled units; with the symmetry, averaged with what the mirror image says."""
    outputs, grid = task.scaled.outputs, task.data.grid
    apply = jax.jit(task.model.apply)

    def outputs_of(weights: PyTree, fields: np.ndarray) -> np.ndarray:
        x = task.scaled.seen(fields)
        starts = range(0, len(x), EXAMPLES_AT_ONCE)
        return np.concatenate([np.asarray(apply(weights, x[i : i + EXAMPLES_AT_ONCE])) for i in starts])

    made = []
    for number in range(len(jax.tree.leaves(draws)[0])):
        weights = jax.tree.map(lambda leaf, n=number: leaf[n], draws)
        here = outputs_of(weights, part.fields)
        if task.mirror:
            image = outputs.mean(outputs_of(weights, part.fields[:, ::-1]).astype(float))
            here = (here + outputs.forward(mirrored_flux(grid, image))) / 2
        made.append(here)
    return np.stack(made)


def predictive_of(task: Task, draws: PyTree, part: Part) -> Predictive:
    """Mean and spread, in scaled units; a single draw has the likelihood's noise alone."""
    made = predictions(task, draws, part).astype(float)
    if len(made) == 1:
        return Predictive(made[0], np.full(made[0].shape, task.noise))
    return summarise(made, task.noise)


def error_of(task: Task, mean: np.ndarray, part: Part) -> float:
    """Mean relative error in %, of all edges."""
    return mean_relative_error(task.scaled.outputs.mean(mean), part.fluxes)


def held_error(task: Task, draws: PyTree) -> float:
    """The error on held-out training samples: what step sizes are chosen by."""
    held = task.data.held
    return error_of(task, predictions(task, draws, held).astype(float).mean(0), held)


def judge_draws(task: Task, ended: Ended) -> Values:
    """Everything that a table shows of a run."""
    scaled, data = task.scaled, task.data
    held, test = (predictive_of(task, ended.draws, part) for part in (data.held, data.test))
    wanted_held, wanted = (scaled.outputs.forward(part.fluxes) for part in (data.held, data.test))
    plain = gaussian_intervals(test, [LEVEL])
    corrected = fit_conformal(held, wanted_held, [LEVEL]).intervals(test)
    leaves = [leaf for leaf in jax.tree.leaves(ended.draws) if leaf.ndim > 2]
    return {
        "error": error_of(task, test.mean, data.test),
        "coverage_before": float(coverage(plain, wanted)[0]),
        "coverage": float(coverage(corrected, wanted)[0]),
        "width": float(width(corrected)[0]),
        "zeros": float(np.mean(np.concatenate([leaf[-1].ravel() for leaf in leaves]) == 0)),
        "seconds": ended.seconds,
    } | ({} if ended.potentials is None else dict(zip(POTENTIALS, ended.potentials, strict=True)))
