"""The paper's 2D Gaussian: covariance error against autocorrelation time, and the first samples."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from ridgewalk.studies.chains import mean_and_error, operator_matrix, run_chains, slowest_time
from ridgewalk.studies.gaussian_plots import draw_errors, draw_samples
from ridgewalk.studies.gaussian_report import tell
from ridgewalk.studies.gaussian_samplers import DENSE, ENTRANTS, Entrant, on_paper_grid
from ridgewalk.studies.gaussian_verdict import best_rows, faster_at_no_more_error, verdict
from ridgewalk.studies.problems import condition, paper_gaussian
from ridgewalk.studies.record import save_figure
from ridgewalk.studies.study import Outcome, Piece, Preset, Study, Values


@dataclass(frozen=True)
class Settings:
    """30,000 samples a chain as in the paper; the chains are the seeds."""

    steps: int = 30_000
    burn_in: int = 500
    seeds: int = 128
    timed_seeds: int = 32
    """Chains whose autocorrelation time is estimated: it takes longer than running them."""
    seed: int = 0
    every_step_size: bool = True
    shown_steps: int = 2_500
    """Figure (a) shows the samples after burn-in up to this step."""


def measure(entrant: Entrant, step_size: float, settings: Settings) -> Values:
    """Covariance error, autocorrelation time and cond(G H) of one sampler at one step size, over the seeds."""
    problem = paper_gaussian()
    row: Values = {"sampler": entrant.name, **entrant.options, "step_size": step_size, "gradients": entrant.gradients}
    result = run_chains(
        entrant.make(),
        problem.target,
        jnp.asarray(problem.mode),
        seed=settings.seed,
        steps=settings.steps,
        step_size=step_size,
        chains=settings.seeds,
        burn_in=settings.burn_in,
    )
    if result is None:
        return {**row, "diverged": settings.seeds}
    covariance = np.linalg.inv(problem.hessian)
    draws = np.asarray(result.positions, float)[result.alive]
    error, error_se = mean_and_error(np.array([np.abs(np.cov(chain.T) - covariance).mean() for chain in draws]))
    time, time_se = slowest_time(draws[: settings.timed_seeds], entrant.turns)
    states = [state for state, alive in zip(result.final_states, result.alive, strict=True) if alive]
    row |= {
        "diverged": settings.seeds - len(draws),
        "covariance_error": error,
        "covariance_error_se": error_se,
        "autocorrelation_time": time,
        "autocorrelation_time_se": time_se,
        "worst_condition": max(condition(operator_matrix(state), problem.hessian) for state in states),
    }
    if entrant.name in ("SGLD", DENSE):
        shown = draws[0, : settings.shown_steps - settings.burn_in]
        row["first_draws"] = np.round(shown, 5).tolist()
    return row


def _entries(settings: Settings) -> Iterator[tuple[str, Entrant, float]]:
    for group, entrants in (("stable", ENTRANTS), ("printed", on_paper_grid())):
        for entrant in entrants:
            for step_size in entrant.step_sizes if settings.every_step_size else entrant.quick:
                yield group, entrant, step_size


def plan(settings: Settings) -> list[Piece]:
    """A piece for every sampler and step size."""
    pieces = []
    for group, entrant, step_size in _entries(settings):
        options = "".join(f"-{key}{value:g}" for key, value in entrant.options.items())
        label = entrant.name.lower().replace(", ", "-").replace(" ", "-").replace("γ⁻¹i", "scaled-identity")
        known = {
            "sampler": entrant.name,
            "options": entrant.options,
            "step_size": step_size,
            "steps": settings.steps,
            "burn_in": settings.burn_in,
            "seeds": settings.seeds,
            "timed_seeds": settings.timed_seeds,
            "seed": settings.seed,
            "shown_steps": settings.shown_steps,
        }

        def make(_: Path, entrant: Entrant = entrant, step_size: float = step_size) -> Values:
            return measure(entrant, step_size, settings)

        pieces.append(Piece(f"{group}-{label}{options}-step{step_size:.3g}", known, make))
    return pieces


def assemble(settings: Settings, results: Mapping[str, Values], folder: Path) -> Outcome:
    """Figures (a) and (b), the table of both grids, and who wins."""
    rows: dict[str, list[dict[str, Any]]] = {"stable": [], "printed": []}
    for name, row in results.items():
        rows[name.split("-", 1)[0]].append(row)
    best = best_rows(rows["stable"])
    comparison = verdict(best)
    save_figure(folder, "samples.png", draw_samples(paper_gaussian(), best, settings.burn_in, settings.shown_steps))
    save_figure(folder, "errors.png", draw_errors(rows["stable"], rows["printed"]))

    def bare(row: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in row.items() if key != "first_draws"}

    numbers = {
        "stable_grids": [bare(row) for row in rows["stable"]],
        "paper_grid": [bare(row) for row in rows["printed"]],
        "best": {name: bare(row) for name, row in best.items()},
        "verdict": comparison,
        "faster_at_no_more_error": faster_at_no_more_error(rows["stable"]),
    }
    return Outcome(tell(settings.steps, settings.seeds, best, rows["stable"], rows["printed"], comparison), numbers)


STUDY = Study(
    "gaussian",
    {Preset.quick: Settings(seeds=16, timed_seeds=16, every_step_size=False), Preset.paper: Settings()},
    "16 seeds in place of 128, and one to four step sizes a "
    "sampler (and one friction) in place of three to six (and two or three). Chains have their full 30,000 steps.",
    plan,
    assemble,
)
