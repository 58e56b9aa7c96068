"""50-d logistic regression of condition 1.4e5: HASGLD-SA from a cold start beside the true covariance and SGLD."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk.dynamics.langevin import Langevin
from ridgewalk.gradients import GradientEstimator, control_variates
from ridgewalk.kernel import Sampler, preconditioner_matrix
from ridgewalk.precondition.fixed import fixed
from ridgewalk.run.sample import sample
from ridgewalk.samplers import hasgld_sa, sgld
from ridgewalk.studies.problems import Problem, condition, covariance_error, logistic_regression
from ridgewalk.studies.record import print_table, write_metrics
from ridgewalk.target import Posterior

STEPS, BURN_IN, BATCH, SEEDS = 20_000, 2_000, 100, 4


def measure(
    problem: Problem, sampler: Sampler, target: Posterior | GradientEstimator, step_size: float, seed: int = 0
) -> dict[str, float]:
    """Covariance error (mean over seeds) and worst cond(G H) of one sampler at one step size."""
    result = sample(
        jax.random.key(seed),
        sampler,
        target,
        jnp.asarray(problem.mode),
        steps=STEPS,
        step_size=step_size,
        batch_size=BATCH,
        chains=SEEDS,
        burn_in=BURN_IN,
        progress=False,
    )
    errors = [covariance_error(np.asarray(chain, float), problem.hessian) for chain in result.positions]
    conditions = [condition(preconditioner_matrix(state), problem.hessian) for state in result.final_states]
    return {"step_size": step_size, "covariance_error": float(np.mean(errors)), "worst_condition": max(conditions)}


def compare(problem: Problem) -> dict[str, dict[str, Any]]:
    """Each sampler at its best step size, with plain minibatches and with control variates."""
    assert isinstance(problem.target, Posterior)
    centred = control_variates(problem.target, jnp.asarray(problem.mode))
    oracle = Sampler(Langevin(), fixed(np.linalg.inv(problem.hessian)))
    noisy, exact = (0.005, 0.0075, 0.01, 0.015), (0.05, 0.075, 0.1, 0.15)
    runs: dict[str, tuple[Sampler, Any, tuple[float, ...], int]] = {
        "SGLD": (sgld(), problem.target, (3e-6, 1e-5, 2e-5, 3e-5), 1),
        "true covariance": (oracle, problem.target, noisy, 1),
        "HASGLD-SA": (hasgld_sa(), problem.target, noisy, 2),
        "SGLD, control variates": (sgld(), centred, (1e-5, 3e-5, 6e-5), 2),
        "true covariance, control variates": (oracle, centred, exact, 2),
        "HASGLD-SA, control variates": (hasgld_sa(), centred, exact, 3),
    }
    table: dict[str, dict[str, Any]] = {}
    for name, (sampler, target, grid, gradients) in runs.items():
        rows = [measure(problem, sampler, target, e) for e in grid]
        best = min(rows, key=lambda row: row["covariance_error"])
        table[name] = {**best, "gradients": gradients * STEPS, "tried": rows}
    return table


def run(folder: Path) -> dict[str, Any]:
    """Run the study and write its metrics into `folder`."""
    problem = logistic_regression()
    table = compare(problem)
    settings = {"steps": STEPS, "burn_in": BURN_IN, "batch_size": BATCH, "seeds": SEEDS}
    metrics = {
        "study": "logistic",
        **settings,
        "hessian_condition": float(np.linalg.cond(problem.hessian)),
        "table": table,
    }
    write_metrics(folder, metrics)
    print_table(
        "50-d logistic regression, 20,000 steps, each at its best step size",
        ("sampler", "step size", "covariance error", "worst cond(G H)", "minibatch gradients"),
        [
            (
                name,
                f"{row['step_size']:g}",
                f"{row['covariance_error']:.3f}",
                f"{row['worst_condition']:.3g}",
                f"{row['gradients']:,}",
            )
            for name, row in table.items()
        ],
    )
    return metrics
