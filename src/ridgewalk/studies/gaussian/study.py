"""The paper's 2D Gaussian: covariance error against autocorrelation time, and the first samples."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from ridgewalk.studies.framework.comparison import (
    Contender,
    best_rows,
    condition,
    mean_and_se,
    operator_matrix,
    run_chains,
    slowest_time,
    sweep_tasks,
)
from ridgewalk.studies.framework.schema import save_figure
from ridgewalk.studies.framework.study import Outcome, Preset, Study, Task
from ridgewalk.studies.framework.task_cache import row_fields
from ridgewalk.studies.gaussian.contenders import CONTENDERS, DENSE, PRINTED, GaussianRow, on_paper_grid, paper_gaussian
from ridgewalk.studies.gaussian.report import build_report, compare, faster_at_no_more_error, plot_errors, plot_samples


@dataclass(frozen=True)
class Settings:
    """30,000 samples per chain as in the paper; the chains are the seeds."""

    steps: int = 30_000
    burn_in: int = 500
    seeds: int = 128
    timed_seeds: int = 32
    """Chains whose autocorrelation time is estimated, which takes longer than sampling them."""
    seed: int = 0
    every_step_size: bool = True
    shown_steps: int = 2_500
    """Figure (a) shows the samples after burn-in up to this step."""


def measure(contender: Contender, step_size: float, settings: Settings) -> GaussianRow:
    """Covariance error, autocorrelation time and cond(G H) of one sampler at one step size, over the seeds."""
    problem = paper_gaussian()
    row = GaussianRow(contender.name, step_size, contender.gradients, settings.seeds, dict(contender.options))
    result = run_chains(
        contender.make(),
        problem.target,
        jnp.asarray(problem.mode),
        seed=settings.seed,
        steps=settings.steps,
        step_size=step_size,
        chains=settings.seeds,
        burn_in=settings.burn_in,
    )
    if result is None:
        return row
    covariance = np.linalg.inv(problem.hessian)
    draws = np.asarray(result.positions, float)[result.alive]
    error, error_se = mean_and_se(np.array([np.abs(np.cov(chain.T) - covariance).mean() for chain in draws]))
    time, time_se = slowest_time(draws[: settings.timed_seeds], contender.interleaved)
    states = [state for state, alive in zip(result.final_states, result.alive, strict=True) if alive]
    shown = np.round(draws[0, : settings.shown_steps - settings.burn_in], 5).tolist()
    return row._replace(
        diverged=settings.seeds - len(draws),
        covariance_error=error,
        covariance_error_se=error_se,
        autocorrelation_time=time,
        autocorrelation_time_se=time_se,
        worst_condition=max(condition(operator_matrix(state), problem.hessian) for state in states),
        first_draws=shown if contender.name in ("SGLD", DENSE) else None,
    )


def plan(settings: Settings) -> list[Task]:
    """One task per sampler and step size, on its own grid and on the paper's."""

    def seconds(contender: Contender) -> float:
        return 1.0 if contender.name == PRINTED else 2.0

    own = sweep_tasks(CONTENDERS, settings, measure, GaussianRow, prefix="own-grid-", seconds=seconds)
    paper = sweep_tasks(on_paper_grid(), settings, measure, GaussianRow, prefix="paper-grid-", seconds=seconds)
    return [*own, *paper]


def assemble(settings: Settings, rows: Mapping[str, GaussianRow], folder: Path) -> Outcome:
    """Build both figures, the tables of both grids and the comparison."""
    own = [row for name, row in rows.items() if name.startswith("own-grid-")]
    paper = [row for name, row in rows.items() if name.startswith("paper-grid-")]
    best = best_rows(own, lambda row: row.covariance_error)
    comparison = compare(best)
    save_figure(folder, "samples.png", plot_samples(paper_gaussian(), best, settings.burn_in, settings.shown_steps))
    save_figure(folder, "errors.png", plot_errors(own, paper))

    def numbers_of(row: GaussianRow) -> dict[str, Any]:
        return row_fields(row, without=("first_draws",))

    numbers = {
        "own_grids": list(map(numbers_of, own)),
        "paper_grid": list(map(numbers_of, paper)),
        "best": {name: numbers_of(row) for name, row in best.items()},
        "comparisons": {
            form: {other: result._asdict() for other, result in results.items()} for form, results in comparison.items()
        },
        "faster_at_no_more_error": faster_at_no_more_error(own),
    }
    return Outcome(build_report(settings.steps, settings.seeds, best, own, paper, comparison), numbers)


STUDY = Study(
    "gaussian",
    f"{__name__}:STUDY",
    {Preset.quick: Settings(seeds=16, timed_seeds=16, every_step_size=False), Preset.paper: Settings()},
    "16 seeds instead of 128, and one to four step sizes per sampler (and one friction) instead of three to six (and "
    "two or three). Chains have the full 30,000 steps.",
    plan,
    assemble,
)
