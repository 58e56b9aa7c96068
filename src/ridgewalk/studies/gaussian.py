"""The paper's 2D Gaussian: covariance error against autocorrelation time, and the first samples."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ridgewalk.diagnostics.mixing import autocorrelation_time
from ridgewalk.kernel import Sampler, preconditioner_matrix
from ridgewalk.run.sample import sample
from ridgewalk.samplers import hasgld_sa, sgld
from ridgewalk.studies.problems import Problem, condition, paper_gaussian
from ridgewalk.studies.record import print_table, write_metrics

STEPS, BURN_IN, SEEDS = 30_000, 500, 16

GRIDS: dict[str, tuple[Sampler, tuple[float, ...]]] = {
    "SGLD": (sgld(), (0.0003, 0.0006, 0.0012, 0.002, 0.0025)),
    "HASGLD-SA": (hasgld_sa(), (0.02, 0.05, 0.1, 0.15, 0.2)),
}
"""Every sampler on its own stable grid: SGLD diverges above 2/λ_max = 0.0028."""


def measure(problem: Problem, sampler: Sampler, step_size: float, seed: int = 0) -> dict[str, Any]:
    """Covariance error, autocorrelation time and cond(G H), mean and standard error over the seeds."""
    result = sample(
        jax.random.key(seed),
        sampler,
        problem.target,
        jnp.asarray(problem.mode),
        steps=STEPS,
        step_size=step_size,
        chains=SEEDS,
        burn_in=BURN_IN,
        progress=False,
    )
    covariance = np.linalg.inv(problem.hessian)
    draws = np.asarray(result.positions, float)
    errors = [np.abs(np.cov(chain.T) - covariance).mean() for chain in draws]
    conditions = [condition(preconditioner_matrix(state), problem.hessian) for state in result.final_states]
    return {
        "step_size": step_size,
        "covariance_error": float(np.mean(errors)),
        "covariance_error_se": float(np.std(errors) / np.sqrt(SEEDS - 1)),
        "autocorrelation_time": float(autocorrelation_time(result).max()),
        "worst_condition": float(max(conditions)),
        "first_draws": draws[0, : 2_500 - BURN_IN],
    }


def verdict(table: dict[str, list[dict[str, Any]]]) -> dict[str, float]:
    """SGLD at the step size of least error, and HASGLD-SA's fastest mixing at that error or less."""
    reference = min(table["SGLD"], key=lambda row: row["covariance_error"])
    matching = [row for row in table["HASGLD-SA"] if row["covariance_error"] <= reference["covariance_error"]]
    ours = min(matching, key=lambda row: row["autocorrelation_time"])
    return {
        "sgld_error": reference["covariance_error"],
        "sgld_time": reference["autocorrelation_time"],
        "hasgld_error": ours["covariance_error"],
        "hasgld_time": ours["autocorrelation_time"],
        "hasgld_step_size": ours["step_size"],
        "ratio": reference["autocorrelation_time"] / ours["autocorrelation_time"],
        "worst_condition": max(row["worst_condition"] for row in table["HASGLD-SA"]),
    }


def run(folder: Path) -> dict[str, Any]:
    """Run the study and write its metrics and figure into `folder`."""
    problem = paper_gaussian()
    table = {name: [measure(problem, sampler, e) for e in grid] for name, (sampler, grid) in GRIDS.items()}
    best = verdict(table)
    _draw(folder, problem, table, best)
    for rows in table.values():
        for row in rows:
            del row["first_draws"]
    metrics = {"study": "gaussian", "steps": STEPS, "burn_in": BURN_IN, "seeds": SEEDS, "table": table, "verdict": best}
    write_metrics(folder, metrics)
    print_table(
        f"2D Gaussian, {STEPS:,} steps, {SEEDS} seeds",
        ("sampler", "step size", "covariance error", "autocorrelation time", "worst cond(G H)"),
        [
            (
                name,
                f"{row['step_size']:g}",
                f"{row['covariance_error']:.4f} ± {row['covariance_error_se']:.4f}",
                f"{row['autocorrelation_time']:.0f}",
                f"{row['worst_condition']:.3g}",
            )
            for name, rows in table.items()
            for row in rows
        ],
    )
    return metrics


def _draw(folder: Path, problem: Problem, table: dict[str, list[dict[str, Any]]], best: dict[str, float]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(11, 3.8), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    reference = min(table["SGLD"], key=lambda row: row["covariance_error"])
    ours = next(row for row in table["HASGLD-SA"] if row["step_size"] == best["hasgld_step_size"])
    for axes, name, row, colour in ((left, "SGLD", reference, "tab:orange"), (middle, "HASGLD-SA", ours, "tab:blue")):
        _scatter(axes, problem, row["first_draws"], colour)
        axes.set_title(f"{name}, step size {row['step_size']:g}:\nsteps 500 to 2,500")
    for (name, rows), colour, marker in zip(table.items(), ("tab:orange", "tab:blue"), ("s", "o"), strict=True):
        times = [row["autocorrelation_time"] for row in rows]
        errors = [row["covariance_error"] for row in rows]
        bars = [2 * row["covariance_error_se"] for row in rows]
        right.errorbar(times, errors, bars, color=colour, marker=marker, capsize=3, label=name)
    right.set(xscale="log", yscale="log", xlabel="autocorrelation time (steps)", ylabel="covariance error")
    right.set_title("error and mixing over step sizes:\nlower left is better")
    right.legend()
    figure.savefig(folder / "gaussian.png", dpi=150)


def _scatter(axes: Axes, problem: Problem, draws: np.ndarray, colour: str) -> None:
    x, y = np.meshgrid(np.linspace(-0.42, 0.42, 120), np.linspace(-3.4, 3.4, 120))
    points = np.stack([x, y], axis=-1)
    height = np.exp(-0.5 * np.einsum("...i,ij,...j", points, problem.hessian, points))
    axes.contour(x, y, height, levels=[0.011, 0.135, 0.607], colors="0.5", linewidths=1)
    axes.plot(draws[:, 0], draws[:, 1], ".", markersize=2, color=colour)
    axes.set(xlabel="x", ylabel="y", xlim=(-0.42, 0.42), ylim=(-3.4, 3.4))
