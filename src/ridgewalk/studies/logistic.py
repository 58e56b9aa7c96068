"""50-d logistic regression: HASGLD-SA from a cold start, compared with the true covariance and with SGLD."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._types import Vector
from ridgewalk.dynamics import Langevin
from ridgewalk.gradients import control_variates
from ridgewalk.kernel import Sampler
from ridgewalk.preconditioners.static import fixed
from ridgewalk.samplers import hasgld_sa, sgld
from ridgewalk.studies.framework.comparison import (
    BenchmarkPosterior,
    Contender,
    best_rows,
    condition,
    covariance_error,
    mean_and_se,
    operator_matrix,
    run_chains,
    sweep_tasks,
)
from ridgewalk.studies.framework.study import (
    Cell,
    Number,
    Outcome,
    Preset,
    Report,
    Section,
    Study,
    Table,
    Task,
    mark_against,
)
from ridgewalk.studies.framework.tasks import row_fields
from ridgewalk.target import Posterior

CONTROL_VARIATES = ", control variates"
"""Suffix of the names of samplers with control-variate gradients."""
TRUTH = "true covariance"


@dataclass(frozen=True)
class Settings:
    """Minibatches of 100 of 10,000 examples; the chains are the seeds."""

    steps: int = 20_000
    burn_in: int = 2_000
    batch_size: int = 100
    seeds: int = 12
    seed: int = 0
    every_step_size: bool = True


class LogisticRow(NamedTuple):
    """Results of one sampler at one step size, over the seeds; NaN if a chain diverged."""

    sampler: str
    step_size: float
    gradients: int
    """Minibatch gradients of the whole chain."""
    diverged: int
    hessian_condition: float
    covariance_error: float = math.nan
    covariance_error_se: float = math.nan
    worst_condition: float = math.nan
    """The largest cond(G H) over the seeds, at the end of the chain."""


def _line(row: LogisticRow, reference: LogisticRow | None) -> tuple[Cell, ...]:
    mark = None
    if reference is not None:
        mark = mark_against(row.covariance_error, reference.covariance_error, error=0.1 * row.covariance_error)
    error = Number(row.covariance_error, row.covariance_error_se, ".3f", mark=mark)
    cond = Number(row.worst_condition, style=".3g")
    return row.sampler, f"{row.step_size:g}", error, cond, f"{row.gradients:,}"


def build_report(settings: Settings, best: Mapping[str, LogisticRow], hessian_condition: float) -> Report:
    """Build the report of the study."""

    def reference(name: str) -> LogisticRow | None:
        suffix = CONTROL_VARIATES if name.endswith(CONTROL_VARIATES) else ""
        return best.get(TRUTH + suffix) if name.startswith("HASGLD") else None

    table = Table(
        f"Each sampler at its best step size ({settings.steps:,} steps, {settings.seeds} seeds)",
        ("sampler", "step size", "covariance error", "worst cond(G H)", "minibatch gradients"),
        tuple(_line(row, reference(name)) for name, row in best.items()),
        "± one standard error over seeds. The covariance error is the mean absolute log eigenvalue of the whitened "
        "sample covariance. HASGLD-SA is marked against the true covariance as preconditioner: “equal” means within "
        "10 %.",
    )
    text = (
        f"50 weights, 10,000 examples, batches of {settings.batch_size}; the Hessian has condition number "
        f"{hessian_condition:.2g}. Not in the paper: this study shows the effect of gradient noise. The "
        "ideal is Langevin dynamics preconditioned with the true covariance.",
    )
    return Report("50-d logistic regression", text, (Section("Results", tables=(table,)),))


@cache
def logistic_regression(d: int = 50, size: int = 10_000, seed: int = 0) -> BenchmarkPosterior:
    """Features with correlation 0.95^|i−j| and scales from 0.1 to 3: a Hessian of condition about 1.4e5."""
    rng = np.random.default_rng(seed)
    correlation = 0.95 ** np.abs(np.subtract.outer(np.arange(d), np.arange(d)))
    scale = np.logspace(-1, 0.5, d)
    features = rng.multivariate_normal(np.zeros(d), correlation, size=size) * scale
    truth = rng.normal(size=d) / scale / np.sqrt(d)
    labels = (rng.uniform(size=size) < 1 / (1 + np.exp(-features @ truth))).astype(float)

    mode = np.zeros(d)
    for _ in range(30):  # Newton's method
        chance = 1 / (1 + np.exp(-features @ mode))
        hessian = (features.T * (chance * (1 - chance))) @ features + np.eye(d) / 100
        mode = mode - np.linalg.solve(hessian, features.T @ (chance - labels) + mode / 100)

    def log_prior(weights: Vector) -> jax.Array:
        return -jnp.sum(weights**2) / 200

    def log_likelihood(weights: Vector, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
        logits = batch[0] @ weights
        return batch[1] * logits - jax.nn.softplus(logits)

    data = (jnp.asarray(features), jnp.asarray(labels))
    return BenchmarkPosterior(Posterior(log_prior, log_likelihood, data), mode, hessian)


def _true_covariance() -> Sampler:
    return Sampler(Langevin(), fixed(np.linalg.inv(logistic_regression().hessian)))


MINIBATCH, CENTRED = (0.005, 0.0075, 0.01, 0.015), (0.05, 0.075, 0.1, 0.15)
"""Step sizes for plain minibatch gradients and for control variates, where there is a preconditioner."""

CONTENDERS = (
    Contender("SGLD", sgld, (3e-6, 1e-5, 2e-5, 3e-5), (2e-5, 3e-5)),
    Contender(TRUTH, _true_covariance, MINIBATCH, MINIBATCH[1:3]),
    Contender("HASGLD-SA", hasgld_sa, MINIBATCH, MINIBATCH[1:3], gradients=2),
    Contender("SGLD" + CONTROL_VARIATES, sgld, (1e-5, 3e-5, 6e-5), (3e-5,), gradients=2),
    Contender(TRUTH + CONTROL_VARIATES, _true_covariance, CENTRED, CENTRED[2:], gradients=2),
    Contender("HASGLD-SA" + CONTROL_VARIATES, hasgld_sa, CENTRED, CENTRED[2:], gradients=3),
)


def measure(contender: Contender, step_size: float, settings: Settings) -> LogisticRow:
    """Covariance error and worst cond(G H) of one sampler at one step size, over the seeds."""
    problem = logistic_regression()
    assert isinstance(problem.target, Posterior)
    mode = jnp.asarray(problem.mode)
    centred = contender.name.endswith(CONTROL_VARIATES)
    result = run_chains(
        contender.make(),
        control_variates(problem.target, mode) if centred else problem.target,
        mode,
        seed=settings.seed,
        steps=settings.steps,
        step_size=step_size,
        batch_size=settings.batch_size,
        chains=settings.seeds,
        burn_in=settings.burn_in,
    )
    diverged = settings.seeds if result is None else int((~result.alive).sum())
    hessian_condition = float(np.linalg.cond(problem.hessian))
    gradients = contender.gradients * settings.steps
    row = LogisticRow(contender.name, step_size, gradients, diverged, hessian_condition)
    if result is None or diverged:
        return row
    errors = [covariance_error(np.asarray(chain, float), problem.hessian) for chain in result.positions]
    error, error_se = mean_and_se(np.array(errors))
    worst = max(condition(operator_matrix(state), problem.hessian) for state in result.final_states)
    return row._replace(covariance_error=error, covariance_error_se=error_se, worst_condition=worst)


def plan(settings: Settings) -> list[Task]:
    """One task per sampler and step size."""

    def seconds(contender: Contender) -> float:
        return 3.0 if contender.name.startswith("HASGLD") else 1.0

    return list(sweep_tasks(CONTENDERS, settings, measure, LogisticRow, seconds=seconds))


def lowest_errors(rows: Mapping[str, LogisticRow]) -> dict[str, LogisticRow]:
    """Each sampler at its step size of lowest covariance error, in the order of the contenders."""
    best = best_rows(rows.values(), lambda row: row.covariance_error)
    return {contender.name: best[contender.name] for contender in CONTENDERS if contender.name in best}


def assemble(settings: Settings, rows: Mapping[str, LogisticRow], folder: Path) -> Outcome:
    """Build the table of the best step sizes."""
    best = lowest_errors(rows)
    hessian_condition = next(iter(rows.values())).hessian_condition
    numbers_of = partial(row_fields, without=("hessian_condition",))
    tried = {name: [numbers_of(row) for row in rows.values() if row.sampler == name] for name in best}
    numbers = {name: {**numbers_of(row), "tried": tried[name]} for name, row in best.items()}
    report = build_report(settings, best, hessian_condition)
    return Outcome(report, {"hessian_condition": hessian_condition, "best": numbers})


STUDY = Study(
    "logistic",
    f"{__name__}:STUDY",
    {Preset.quick: Settings(seeds=4, every_step_size=False), Preset.paper: Settings()},
    "4 seeds instead of 12, and one or two step sizes per sampler instead of three or four.",
    plan,
    assemble,
)
