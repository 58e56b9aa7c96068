"""1,000 parameters, 20 outlying Hessian eigenvalues: the low-rank form from a cold start, with minibatch curvature."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._types import Vector
from ridgewalk.samplers import hasgld_sa
from ridgewalk.studies.framework.comparison import (
    BenchmarkPosterior,
    condition,
    mean_and_se,
    operator_matrix,
    run_chains,
)
from ridgewalk.studies.framework.study import Number, Outcome, Preset, Report, Section, Study, Table, Task
from ridgewalk.studies.framework.tasks import row_fields
from ridgewalk.target import Posterior


@dataclass(frozen=True)
class Settings:
    """One chain per seed and length, each from a cold start."""

    lengths: tuple[int, ...] = (250, 500, 1_000, 3_000)
    step_size: float = 0.05
    batch_size: int = 200
    seeds: int = 3


class OutliersRow(NamedTuple):
    """Results of one chain; NaN if it diverged."""

    steps: int
    seed: int
    diverged: int
    hessian_condition: float
    condition: float = math.nan
    """cond(G H) at the end of the chain."""
    largest_root_mean_square: float = math.nan
    """The largest root mean square of a position along the chain, in posterior standard deviations."""


def _over_seeds(values: Sequence[float], style: str) -> Number:
    finite = np.array([value for value in values if not math.isnan(value)])
    if not len(finite):
        return Number(None, note="diverged")
    mean, se = mean_and_se(finite)
    return Number(mean, se if len(finite) > 1 else None, style)


def build_report(settings: Settings, rows: Sequence[OutliersRow], hessian_condition: float) -> Report:
    """Build the report of the study."""
    lines = []
    for steps in settings.lengths:
        chains = [row for row in rows if row.steps == steps]
        conditions = _over_seeds([row.condition for row in chains], ".1f")
        excursions = _over_seeds([row.largest_root_mean_square for row in chains], ".2f")
        lines.append((f"{steps:,}", conditions, excursions))
    plural = "seed" if settings.seeds == 1 else "seeds"
    table = Table(
        f"Low-rank form, rank 20, batches of {settings.batch_size}, step size {settings.step_size:g}, "
        f"{settings.seeds} {plural}",
        ("steps", "cond(G H)", "largest whitened RMS along the chain"),
        tuple(lines),
        "The remaining eigenvalues alone have condition number 4, which no low-rank form can remove. Under the "
        "posterior the whitened root mean square is near 1; it would be much larger if the chain were unstable before "
        "the preconditioner is learnt.",
    )
    text = (
        f"20 eigenvalues from 10² to 10⁴, the others in [0.5, 2]: condition number {hessian_condition:,.0f}. Not in "
        "the paper: it tests the form intended for neural networks on a spectrum like theirs.",
    )
    return Report("1,000 parameters with 20 outliers", text, (Section("Results", tables=(table,)),))


@cache
def outlier_regression(d: int = 1_000, outliers: int = 20, size: int = 10_000, seed: int = 0) -> BenchmarkPosterior:
    """A linear model whose Hessian has 20 eigenvalues from 10² to 10⁴ and the others in [0.5, 2]."""
    rng = np.random.default_rng(seed)
    axes, _ = np.linalg.qr(rng.normal(size=(d, d)))
    curvatures = np.concatenate([np.logspace(2, 4, outliers), rng.uniform(0.5, 2, d - outliers)])
    white = rng.normal(size=(size, d))
    white = np.linalg.solve(np.linalg.cholesky(white.T @ white / size), white.T).T
    features = jnp.asarray(white @ (axes * np.sqrt(curvatures)).T / np.sqrt(size))

    def log_likelihood(weights: Vector, batch: jax.Array) -> jax.Array:
        return -0.5 * (batch @ weights) ** 2

    hessian = axes @ np.diag(curvatures) @ axes.T
    return BenchmarkPosterior(Posterior(lambda weights: jnp.zeros(()), log_likelihood, features), np.zeros(d), hessian)


@cache
def _hessian_condition() -> float:
    return float(np.linalg.cond(outlier_regression().hessian))


def measure(steps: int, step_size: float, batch_size: int, seed: int = 0) -> OutliersRow:
    """cond(G H) after so many steps, and the largest excursion of the chain, in posterior standard deviations."""
    problem = outlier_regression()
    result = run_chains(
        hasgld_sa(form="low_rank"),
        problem.target,
        jnp.asarray(problem.mode),
        seed=seed,
        steps=steps,
        step_size=step_size,
        batch_size=batch_size,
    )
    if result is None:
        return OutliersRow(steps, seed, 1, _hessian_condition())
    whitened = np.asarray(result.positions[0], float) @ np.linalg.cholesky(problem.hessian)
    largest = float(np.sqrt(np.mean(whitened**2, axis=1)).max())
    final_condition = condition(operator_matrix(result.final_states[0]), problem.hessian)
    return OutliersRow(steps, seed, 0, _hessian_condition(), final_condition, largest)


def plan(settings: Settings) -> list[Task]:
    """One task per length and seed."""
    tasks = []
    for steps in settings.lengths:
        for seed in range(settings.seeds):
            known: dict[str, Any] = {"steps": steps, "seed": seed}
            known |= {"step_size": settings.step_size, "batch_size": settings.batch_size}

            def run(_: Path, known: dict[str, Any] = known) -> OutliersRow:
                return measure(**known)

            tasks.append(
                Task(f"steps{steps}-seed{seed}", known, run, OutliersRow, cost=2 + steps / 1000, group="low-rank")
            )
    return tasks


def assemble(settings: Settings, rows: Mapping[str, OutliersRow], folder: Path) -> Outcome:
    """Build the table over the lengths."""
    chains = list(rows.values())
    hessian_condition = chains[0].hessian_condition
    numbers_of = partial(row_fields, without=("hessian_condition",))
    numbers = {"hessian_condition": hessian_condition, "table": list(map(numbers_of, chains))}
    return Outcome(build_report(settings, chains, hessian_condition), numbers)


STUDY = Study(
    "outliers",
    f"{__name__}:STUDY",
    {Preset.quick: Settings(seeds=1), Preset.paper: Settings()},
    "one seed instead of three.",
    plan,
    assemble,
)
