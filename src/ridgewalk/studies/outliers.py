"""1,000 parameters, 20 steep directions: the low-rank form from a cold start, on minibatch curvature alone."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk.kernel import preconditioner_matrix
from ridgewalk.run.sample import sample
from ridgewalk.samplers import hasgld_sa
from ridgewalk.studies.problems import Problem, condition, outlier_regression
from ridgewalk.studies.record import print_table, write_metrics

BATCH, STEP_SIZE, LENGTHS = 200, 0.05, (250, 500, 1_000, 3_000)


def measure(problem: Problem, steps: int, step_size: float = STEP_SIZE, seed: int = 0) -> dict[str, float]:
    """cond(G H) after so many steps, and how far the chain strayed, in posterior standard deviations."""
    result = sample(
        jax.random.key(seed),
        hasgld_sa(form="low_rank"),
        problem.target,
        jnp.asarray(problem.mode),
        steps=steps,
        step_size=step_size,
        batch_size=BATCH,
        progress=False,
    )
    factor = np.linalg.cholesky(problem.hessian)
    whitened = np.asarray(result.positions[0], float) @ factor
    g = preconditioner_matrix(result.final_states[0])
    largest = float(np.sqrt(np.mean(whitened**2, axis=1)).max())
    return {"steps": steps, "condition": condition(g, problem.hessian), "largest_root_mean_square": largest}


def run(folder: Path) -> dict[str, Any]:
    """Run the study and write its metrics into `folder`."""
    problem = outlier_regression()
    rows = [measure(problem, steps) for steps in LENGTHS]
    settings = {
        "batch_size": BATCH,
        "step_size": STEP_SIZE,
        "hessian_condition": float(np.linalg.cond(problem.hessian)),
    }
    metrics = {"study": "outliers", **settings, "table": rows}
    write_metrics(folder, metrics)
    print_table(
        f"Low rank, 1,000-d, cond(H) = {settings['hessian_condition']:,.0f}",
        ("steps", "cond(G H)", "largest whitened RMS on the way"),
        [(f"{r['steps']:,}", f"{r['condition']:.1f}", f"{r['largest_root_mean_square']:.2f}") for r in rows],
    )
    return metrics
