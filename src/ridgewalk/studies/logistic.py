"""50-d logistic regression of condition 1.4e5: HASGLD-SA from a cold start beside the true covariance and SGLD."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ridgewalk.dynamics.langevin import Langevin
from ridgewalk.gradients import control_variates
from ridgewalk.kernel import Sampler
from ridgewalk.precondition.fixed import fixed
from ridgewalk.samplers import hasgld_sa, sgld
from ridgewalk.studies.chains import mean_and_error, operator_matrix, run_chains
from ridgewalk.studies.problems import condition, covariance_error, logistic_regression
from ridgewalk.studies.schema import Cell, Number, Report, Section, Table, judge
from ridgewalk.studies.study import Outcome, Piece, Preset, Study, Values
from ridgewalk.target import Posterior

CENTRED = ", control variates"
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


class Entrant(NamedTuple):
    """A sampler, its step sizes (all, and those of the quick preset), and the minibatch gradients it takes a step."""

    name: str
    step_sizes: tuple[float, ...]
    quick: tuple[float, ...]
    gradients: int


NOISY, EXACT = (0.005, 0.0075, 0.01, 0.015), (0.05, 0.075, 0.1, 0.15)

ENTRANTS = (
    Entrant("SGLD", (3e-6, 1e-5, 2e-5, 3e-5), (2e-5, 3e-5), 1),
    Entrant(TRUTH, NOISY, NOISY[1:3], 1),
    Entrant("HASGLD-SA", NOISY, NOISY[1:3], 2),
    Entrant("SGLD" + CENTRED, (1e-5, 3e-5, 6e-5), (3e-5,), 2),
    Entrant(TRUTH + CENTRED, EXACT, EXACT[2:], 2),
    Entrant("HASGLD-SA" + CENTRED, EXACT, EXACT[2:], 3),
)


def _sampler(name: str) -> Sampler:
    base = name.removesuffix(CENTRED)
    if base == TRUTH:
        return Sampler(Langevin(), fixed(np.linalg.inv(logistic_regression().hessian)))
    return {"SGLD": sgld, "HASGLD-SA": hasgld_sa}[base]()


def measure(entrant: Entrant, step_size: float, settings: Settings) -> Values:
    """Covariance error and worst cond(G H) of one sampler at one step size, over the seeds."""
    problem = logistic_regression()
    assert isinstance(problem.target, Posterior)
    mode = jnp.asarray(problem.mode)
    centred = entrant.name.endswith(CENTRED)
    row: Values = {"sampler": entrant.name, "step_size": step_size, "gradients": entrant.gradients * settings.steps}
    result = run_chains(
        _sampler(entrant.name),
        control_variates(problem.target, mode) if centred else problem.target,
        mode,
        seed=settings.seed,
        steps=settings.steps,
        step_size=step_size,
        batch_size=settings.batch_size,
        chains=settings.seeds,
        burn_in=settings.burn_in,
    )
    if result is None or not result.alive.all():
        return {**row, "diverged": settings.seeds if result is None else int((~result.alive).sum())}
    errors = [covariance_error(np.asarray(chain, float), problem.hessian) for chain in result.positions]
    mean, spread = mean_and_error(np.array(errors))
    worst = max(condition(operator_matrix(state), problem.hessian) for state in result.final_states)
    return {
        **row,
        "diverged": 0,
        "covariance_error": mean,
        "covariance_error_se": spread,
        "worst_condition": worst,
    }


def plan(settings: Settings) -> list[Piece]:
    """A piece for every sampler and step size."""
    pieces = []
    for entrant in ENTRANTS:
        for step_size in entrant.step_sizes if settings.every_step_size else entrant.quick:

            def make(_: Path, entrant: Entrant = entrant, step_size: float = step_size) -> Values:
                return measure(entrant, step_size, settings)

            known = {"sampler": entrant.name, "step_size": step_size, **asdict(settings)}
            del known["every_step_size"]
            label = entrant.name.lower().replace(", ", "-").replace(" ", "-")
            cost = 3 if entrant.name.startswith("HASGLD") else 1
            pieces.append(Piece(f"{label}-step{step_size:g}", known, make, cost))
    return pieces


def best_rows(results: Mapping[str, Values]) -> dict[str, dict[str, Any]]:
    """Each sampler at its step size of least error."""
    table: dict[str, dict[str, Any]] = {}
    for entrant in ENTRANTS:
        rows = [row for row in results.values() if row["sampler"] == entrant.name]
        stable = [row for row in rows if not row["diverged"]]
        if stable:
            table[entrant.name] = {**min(stable, key=lambda row: row["covariance_error"]), "tried": rows}
    return table


def _line(name: str, table: dict[str, dict[str, Any]]) -> tuple[Cell, ...]:
    row = table[name]
    truth = TRUTH + (CENTRED if name.endswith(CENTRED) else "")
    ours = name.startswith("HASGLD") and truth in table
    seen = row["covariance_error"]
    mark = judge(seen, table[truth]["covariance_error"], error=0.1 * seen) if ours else None
    error = Number(seen, row["covariance_error_se"], ".3f", mark=mark)
    cond = Number(row["worst_condition"], style=".3g")
    return name, f"{row['step_size']:g}", error, cond, f"{row['gradients']:,}"


def assemble(settings: Settings, results: Mapping[str, Values], folder: Path) -> Outcome:
    """The table of the best step sizes."""
    table = best_rows(results)
    hessian_condition = float(np.linalg.cond(logistic_regression().hessian))
    shown = Table(
        f"Each sampler at its step size of least error ({settings.steps:,} steps, {settings.seeds} seeds)",
        ("sampler", "step size", "covariance error", "worst cond(G H)", "minibatch gradients"),
        tuple(_line(name, table) for name in table),
        "± one standard error over seeds. The covariance error is the mean absolute log eigenvalue of the whitened "
        "sample covariance. HASGLD-SA is marked against the true covariance as preconditioner: equal is within 10 %.",
    )
    text = (
        f"50 weights, 10,000 examples, batches of {settings.batch_size}; the Hessian has condition number "
        f"{hessian_condition:.2g}. Not in the paper: it shows what is left to gain where gradients are noisy. The "
        "ideal is Langevin dynamics preconditioned with the true covariance.",
    )
    report = Report("50-d logistic regression", text, (Section("Results", tables=(shown,)),))
    return Outcome(report, {"hessian_condition": hessian_condition, "best": table})


STUDY = Study(
    "logistic",
    {Preset.quick: Settings(seeds=4, every_step_size=False), Preset.paper: Settings()},
    "4 seeds in place of 12, and one or two step sizes a sampler in place of three or four.",
    plan,
    assemble,
)
