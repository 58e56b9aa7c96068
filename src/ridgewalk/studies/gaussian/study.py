"""The paper's 2D Gaussian: covariance error against autocorrelation time, and the first samples."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ridgewalk._io import write_atomically
from ridgewalk.dynamics import Langevin
from ridgewalk.kernel import Sampler
from ridgewalk.preconditioners.dense import Dense
from ridgewalk.preconditioners.low_rank import LowRank
from ridgewalk.samplers import hamcmc, hasgld_sa, psgld, sghmc, sgld, sgrld
from ridgewalk.studies.framework.comparison import (
    BenchmarkPosterior,
    Contender,
    best_rows,
    condition,
    mean_and_se,
    operator_matrix,
    run_chains,
    slowest_time,
    slug,
    sweep_tasks,
)
from ridgewalk.studies.framework.study import Outcome, Preset, Study, Task, save_figure
from ridgewalk.studies.framework.tasks import row_fields
from ridgewalk.studies.gaussian.report import (
    DENSE,
    MOMENTUM,
    ORACLE,
    OURS,
    PRINTED,
    GaussianRow,
    build_report,
    compare,
    faster_at_no_more_error,
    plot_errors,
    plot_samples,
)
from ridgewalk.target import Density

MEMORY = 2
"""M of all forms: the larger of the two values in the paper, and the dimension."""

PAPER_GRID = tuple(0.02 * 0.8**j for j in (0, 1, 2, 4))
"""The step sizes that the paper gives for both of its samplers."""


@cache
def paper_gaussian() -> BenchmarkPosterior:
    """The paper's 2D Gaussian: σ_x = 0.12, σ_y = 1, correlation −0.95."""
    covariance = np.array([[0.12**2, -0.95 * 0.12], [-0.95 * 0.12, 1.0]])
    hessian = np.linalg.inv(covariance)
    precision = jnp.asarray(hessian)
    return BenchmarkPosterior(Density(lambda x: -0.5 * x @ precision @ x), np.zeros(2), hessian)


@cache
def _true_covariance() -> Sampler:
    covariance = jnp.asarray(np.linalg.inv(paper_gaussian().hessian))
    return sgrld(lambda position: covariance)


def _momentum(friction: float) -> Contender:
    return Contender(
        MOMENTUM,
        lambda: sghmc(preconditioner=Dense(memory=MEMORY), friction=friction),
        (0.02, 0.035, 0.05, 0.07, 0.1),
        (0.05, 0.07) if friction == 0.3 else (),
        {"memory": MEMORY, "friction": friction},
        gradients=2,
    )


def _sghmc(friction: float) -> Contender:
    return Contender(
        "SGHMC",
        lambda: sghmc(friction=friction),
        (0.002, 0.003, 0.0035, 0.004, 0.0045),
        (0.0035, 0.004) if friction == 0.07 else (),
        {"friction": friction},
    )


CONTENDERS: tuple[Contender, ...] = (
    Contender("SGLD", sgld, (0.0006, 0.0012, 0.002, 0.0023, 0.0026), (0.002, 0.0026)),
    Contender("pSGLD", psgld, (0.03, 0.06, 0.1, 0.14, 0.2), (0.06, 0.1)),
    Contender("HAMCMC", hamcmc, (0.05, 0.1, 0.15, 0.2, 0.3), (0.1, 0.2), {"memory": 3}, gradients=2, interleaved=3),
    _sghmc(0.05),
    _sghmc(0.07),
    _sghmc(0.1),
    Contender(ORACLE, _true_covariance, (0.02, 0.035, 0.05, 0.07, 0.1), (0.035, 0.05, 0.07)),
    Contender(
        DENSE,
        lambda: hasgld_sa(form="dense", memory=MEMORY),
        (0.02, 0.035, 0.05, 0.07, 0.1, 0.2),
        (0.035, 0.05, 0.07, 0.2),
        {"memory": MEMORY},
        gradients=2,
    ),
    Contender(
        OURS + "low rank",
        lambda: Sampler(Langevin(), LowRank(rank=1, spare=1)),
        (0.02, 0.035, 0.05, 0.07, 0.1),
        (0.05,),
        {"rank": 1, "spare": 1},
        gradients=2,
    ),
    Contender(
        OURS + "limited",
        lambda: hasgld_sa(form="snapshot_lbfgs", memory=MEMORY),
        (0.02, 0.05, 0.1, 0.2, 0.3),
        (0.2,),
        {"memory": MEMORY, "snapshots": 2},
        gradients=2,
    ),
    Contender(
        OURS + "dense, base γ⁻¹I",
        lambda: hasgld_sa(form="dense", base="scaled_identity", memory=MEMORY),
        (0.05, 0.1, 0.2, 0.3, 0.5),
        (0.3,),
        {"memory": MEMORY},
        gradients=2,
    ),
    _momentum(0.2),
    _momentum(0.3),
    Contender(
        PRINTED,
        lambda: hasgld_sa(form="as_printed", memory=MEMORY),
        (1e-4, 1e-5, 1e-6),
        (1e-4,),
        {"memory": MEMORY},
        gradients=2,
    ),
)
"""Every sampler with step sizes at which it is stable: SGLD diverges above 2/λ_max = 0.0028."""


def on_paper_grid(contenders: tuple[Contender, ...] = CONTENDERS) -> tuple[Contender, ...]:
    """The paper's two samplers, and the valid form of its method, at the paper's step sizes."""
    chosen = [next(c for c in contenders if c.name == name) for name in ("SGLD", PRINTED, DENSE)]
    return tuple(contender._replace(step_sizes=PAPER_GRID, quick=PAPER_GRID) for contender in chosen)


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


class WalkRow(NamedTuple):
    """The first steps of one chain of a sampler, adaptation included, at each of its step sizes."""

    sampler: str
    step_sizes: list[float]
    positions: list[list[list[float]]]
    """By step size and step: x and y."""


WALKS = {"SGLD": (0.0006, 0.0012, 0.002, 0.0023), DENSE: (0.02, 0.05, 0.1, 0.2)}
"""Step sizes at which the first steps are drawn; at the last, both samplers have about the same covariance error."""
WALK_FILE = "walk.json"
WALK_STEPS = 500
WALK_START = (-0.25, 2.2)
"""On the ridge, two standard deviations from the mode."""


def walk(contender: Contender, settings: Settings) -> WalkRow:
    """The first steps of a sampler at its step sizes of `WALKS`."""
    step_sizes = WALKS[contender.name]
    positions = []
    for step_size in step_sizes:
        result = run_chains(
            contender.make(),
            paper_gaussian().target,
            jnp.asarray(WALK_START),
            seed=settings.seed,
            steps=WALK_STEPS,
            step_size=step_size,
            chains=1,
            burn_in=0,
        )
        if result is None:
            raise RuntimeError(f"{contender.name} at step size {step_size}: the chain diverged")
        positions.append(np.round(np.asarray(result.positions, float)[0], 3).tolist())
    return WalkRow(contender.name, list(step_sizes), positions)


def _walk_tasks(settings: Settings) -> list[Task]:
    def task(contender: Contender) -> Task:
        about = {"sampler": contender.name, "step_sizes": WALKS[contender.name], "steps": WALK_STEPS}
        about |= {"start": WALK_START, "seed": settings.seed}
        return Task(f"walk-{slug(contender.name)}", about, lambda _: walk(contender, settings), WalkRow, 4.0, "walk")

    return [task(contender) for contender in CONTENDERS if contender.name in WALKS]


def save_walks(rows: Iterable[WalkRow], folder: Path) -> None:
    """Write the chains that the page draws, in one line: they are data of a figure, not results."""
    content = {"start": WALK_START, "walks": [row._asdict() for row in rows]}
    write_atomically(folder / WALK_FILE, json.dumps(content, separators=(",", ":")).encode())


def plan(settings: Settings) -> list[Task]:
    """One task per sampler and step size, on its own grid and on the paper's, and two for the chains of the page."""

    def seconds(contender: Contender) -> float:
        return 1.0 if contender.name == PRINTED else 2.0

    own = sweep_tasks(CONTENDERS, settings, measure, GaussianRow, prefix="own-grid-", seconds=seconds)
    paper = sweep_tasks(on_paper_grid(), settings, measure, GaussianRow, prefix="paper-grid-", seconds=seconds)
    return [*own, *paper, *_walk_tasks(settings)]


def assemble(settings: Settings, rows: Mapping[str, Any], folder: Path) -> Outcome:
    """Build both figures, the tables of both grids and the comparison."""
    save_walks((row for row in rows.values() if isinstance(row, WalkRow)), folder)
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
