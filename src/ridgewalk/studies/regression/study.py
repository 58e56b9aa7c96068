"""The paper's regression with n = 100 and p = 200: prediction errors of SGLD, SGLD-SA and HASGLD-SA along the chain.

Neighbouring predictors have correlation 0.8^{1/4} = 0.946.
"""

from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._types import Vector
from ridgewalk.priors.base import gaussian_prior
from ridgewalk.priors.spike_slab import shared_noise, spike_and_slab
from ridgewalk.result import Result
from ridgewalk.samplers import hasgld_sa, sgld
from ridgewalk.studies.framework.comparison import Contender, best_rows, run_chains, sweep_tasks
from ridgewalk.studies.framework.study import Outcome, Preset, Study, Task, save_figure
from ridgewalk.studies.regression.report import (
    OURS,
    PAPER_STEP_SIZE,
    PLAIN,
    PRINTED,
    SPARSE,
    RegressionRow,
    Settings,
    build_report,
    compare,
    plot_errors,
    plot_means,
    summary_of,
    validation_score,
)
from ridgewalk.target import Posterior

CONTENDERS = (
    Contender(PLAIN, sgld, (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 8e-4), (2e-5, 5e-5, 1e-4)),
    Contender(SPARSE, sgld, (2e-4, 4e-4, 8e-4, 1.1e-3, 1.6e-3, 2.2e-3), (8e-4, 1.1e-3, 1.6e-3)),
    Contender(OURS, hasgld_sa, (0.05, 0.1, 0.15, 0.2, 0.3, 0.4), (0.1, 0.15, 0.2), gradients=2),
    Contender(
        PRINTED,
        lambda: hasgld_sa(form="as_printed", memory=2),
        (1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1),
        (1e-3, 1e-2, 0.1),
        gradients=2,
    ),
)
"""Each grid brackets its optimum, except that of the as-printed variant. All but SGLD use the spike-and-slab prior."""

PREDICTORS, TRAINING, VALIDATION, TEST = 200, 100, 50, 50
NOISE_VARIANCE = 3.0

Samples: TypeAlias = tuple[np.ndarray, np.ndarray]
"""Predictors (n, p) and responses (n,)."""


class Split(NamedTuple):
    """Independent samples: for the posterior, for the choice of step sizes, and for the reported errors."""

    training: Samples
    validation: Samples
    test: Samples


def true_weights() -> np.ndarray:
    """β = (3, 1, 0, …, 0)."""
    weights = np.zeros(PREDICTORS)
    weights[:2] = 3, 1
    return weights


@cache
def _factor() -> np.ndarray:
    """Cholesky factor of Σ_ij = 0.8^{|i−j|/4}."""
    places = np.arange(PREDICTORS)
    return np.linalg.cholesky(0.8 ** (np.abs(np.subtract.outer(places, places)) / 4))


@cache
def data_set(seed: int) -> Split:
    """The data of one seed: every seed has its own predictors and noise."""
    rng = np.random.default_rng([seed, 6])

    def samples(size: int) -> Samples:
        x = rng.normal(size=(size, PREDICTORS)) @ _factor().T
        y = x @ true_weights() + np.sqrt(NOISE_VARIANCE) * rng.normal(size=size)
        return x.astype(np.float32), y.astype(np.float32)

    return Split(samples(TRAINING), samples(VALIDATION), samples(TEST))


def _residual(weights: Vector, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
    return batch[1] - batch[0] @ weights


def _known_noise(weights: Vector, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
    return -0.5 * _residual(weights, batch) ** 2 / NOISE_VARIANCE


# Module constants: `sample` recompiles for a new target function, but not for new data.
SPARSE_PRIOR = spike_and_slab(spike_scale=0.1, slab_variance=100.0, delta=0.5, a=1.0, b=PREDICTORS, nu=1.0, lam=1.0)
PLAIN_PRIOR = gaussian_prior(1.0)
SHARED = shared_noise(_residual)


def posterior(samples: Samples, *, sparse: bool) -> Posterior:
    """Spike-and-slab prior with unknown σ, or N(0, 1) prior with known noise variance."""
    data = tuple(jnp.asarray(part) for part in samples)
    return Posterior(SPARSE_PRIOR, SHARED, data) if sparse else Posterior(PLAIN_PRIOR, _known_noise, data)


def errors(weights: np.ndarray, samples: Samples) -> tuple[np.ndarray, np.ndarray]:
    """Mean squared and mean absolute error of the predictions of each row of weights (…, p)."""
    x, y = (part.astype(float) for part in samples)
    residuals = y - weights @ x.T
    return (residuals**2).mean(axis=-1), np.abs(residuals).mean(axis=-1)


def contender_named(name: str) -> Contender:
    """Return the contender of this name."""
    return next(contender for contender in CONTENDERS if contender.name == name)


def has_sparse_prior(contender: Contender) -> bool:
    """Whether a contender uses the spike-and-slab prior."""
    return contender.name != PLAIN


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
