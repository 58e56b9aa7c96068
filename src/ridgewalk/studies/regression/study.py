"""The paper's regression with p > n: prediction errors of SGLD, SGLD-SA and HASGLD-SA along the chain."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from ridgewalk.result import Result
from ridgewalk.studies.framework.comparison import Contender, best_rows, run_chains, sweep_tasks
from ridgewalk.studies.framework.schema import save_figure
from ridgewalk.studies.framework.study import Outcome, Preset, Study, Task
from ridgewalk.studies.regression.data import (
    CONTENDERS,
    PAPER_STEP_SIZE,
    PREDICTORS,
    RegressionRow,
    Settings,
    data_set,
    errors,
    has_sparse_prior,
    posterior,
    true_weights,
)
from ridgewalk.studies.regression.report import (
    build_report,
    compare,
    plot_errors,
    plot_means,
    summary_of,
    validation_score,
)


def evaluation_steps(settings: Settings) -> np.ndarray:
    """The steps after which errors are evaluated."""
    return np.arange(settings.burn_in + settings.mark_every, settings.steps + 1, settings.mark_every)


def running_means(draws: np.ndarray, burn_in: int, at: np.ndarray) -> np.ndarray:
    """Mean of the draws (chain, step, p) from `burn_in` to each of the steps `at`: (at, chain, p)."""
    sums = np.cumsum(draws[:, burn_in:], axis=1, dtype=float)
    counts = at - burn_in
    return np.swapaxes(sums[:, counts - 1] / counts[:, None], 0, 1)


def _run(contender: Contender, step_size: float, settings: Settings, seed: int) -> Result | None:
    return run_chains(
        contender.make(),
        posterior(data_set(seed).training, sparse=has_sparse_prior(contender)),
        jnp.zeros(PREDICTORS, jnp.float32),
        seed=seed,
        steps=settings.steps,
        step_size=step_size,
        batch_size=settings.batch_size,
        chains=settings.chains,
    )


def measure(contender: Contender, step_size: float, settings: Settings) -> RegressionRow:
    """Errors along the chain, and the posterior mean at its end, of one sampler at one step size on every seed.

    The prediction at a step is that of the mean of a chain's positions from the end of burn-in to this step; errors
    are averaged over the chains of a seed. The first chain that diverges ends the measurement.
    """
    at = evaluation_steps(settings)
    row = RegressionRow(contender.name, step_size, contender.gradients, at.tolist(), diverged=True)
    curves: tuple[list[list[float]], ...] = ([], [], [])  # of the validation MSE, test MSE and test MAE
    means, included, sigmas = [], [], []
    for seed in range(settings.seeds):
        result = _run(contender, step_size, settings, seed)
        if result is None or not result.alive.all():
            return row
        split = data_set(seed)
        estimates = running_means(np.asarray(result.positions), settings.burn_in, at)
        evaluated = (errors(estimates, split.validation)[0], *errors(estimates, split.test))
        for curve, values in zip(curves, evaluated, strict=True):
            curve.append(np.round(values.mean(axis=1), 6).tolist())
        means.append(np.round(estimates[-1].mean(axis=0), 5).tolist())
        if has_sparse_prior(contender):
            included.append(np.round(result.inclusion_probabilities.mean(axis=0), 4).tolist())
            sigmas.append(float(np.mean([float(state.prior.sigma) for state in result.final_states])))
    return row._replace(
        diverged=False,
        validation_mse=curves[0],
        mse=curves[1],
        mae=curves[2],
        means=means,
        inclusion=included,
        sigma=sigmas,
    )


def plan(settings: Settings) -> list[Task]:
    """One task per sampler and step size, including the paper's 0.1 for all."""

    def seconds(contender: Contender) -> float:
        return 2.5 if contender.gradients > 1 else 1.0

    return list(sweep_tasks(CONTENDERS, settings, measure, RegressionRow, also=(PAPER_STEP_SIZE,), seconds=seconds))


def assemble(settings: Settings, rows: Mapping[str, RegressionRow], folder: Path) -> Outcome:
    """Build both figures, the tables, and the comparison of HASGLD-SA with SGLD-SA."""
    tried = list(rows.values())
    best = best_rows(tried, partial(validation_score, steps=settings.steps))
    found = compare(best, settings.steps)
    floor = [errors(true_weights(), data_set(seed).test) for seed in range(settings.seeds)]
    truth = {"mse": float(np.mean([f[0] for f in floor])), "mae": float(np.mean([f[1] for f in floor]))}
    save_figure(folder, "means.png", plot_means(best, true_weights()))
    save_figure(folder, "errors.png", plot_errors(best, truth, found))
    numbers = {
        "best": {name: summary_of(row) for name, row in best.items()},
        "tried": [summary_of(row, settings.steps) for row in tried],
        "truth": truth,
        "comparison": found.numbers(),
    }
    return Outcome(build_report(settings, tried, best, truth, found), numbers)


STUDY = Study(
    "regression",
    f"{__name__}:STUDY",
    {
        Preset.quick: Settings(steps=2_000, seeds=6, chains=2, every_step_size=False),
        Preset.paper: Settings(),
    },
    "6 data sets with 2 chains of 2,000 steps instead of 10 with 4 of 5,000, and three step sizes per sampler instead "
    "of six. Differences between so few chains are mostly noise; the claims are evaluated at full scale.",
    plan,
    assemble,
)
