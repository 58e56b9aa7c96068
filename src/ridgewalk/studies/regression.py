"""The paper's large-p-small-n regression: SGLD, SGLD-SA and HASGLD-SA, and how their predictions err as they run."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from ridgewalk.result import Result
from ridgewalk.studies.chains import run_chains
from ridgewalk.studies.record import save_figure
from ridgewalk.studies.regression_data import PREDICTORS, data_set, errors, posterior, true_weights
from ridgewalk.studies.regression_plots import draw_errors, draw_means
from ridgewalk.studies.regression_report import tell
from ridgewalk.studies.regression_samplers import ENTRANTS, PAPER_STEP_SIZE, Entrant
from ridgewalk.studies.regression_verdict import mean_curve, steps_chosen, verdict
from ridgewalk.studies.study import Outcome, Piece, Preset, Study, Values


@dataclass(frozen=True)
class Settings:
    """Every seed is a data set of its own, on which each sampler runs several chains from zero."""

    steps: int = 5_000
    burn_in: int = 100
    batch_size: int = 50
    """Of 100 training samples; the paper gives none."""
    seeds: int = 10
    chains: int = 4
    mark_every: int = 50
    """Errors are measured every so many steps."""
    every_step_size: bool = True


def marks(settings: Settings) -> np.ndarray:
    """The steps after which errors are measured."""
    return np.arange(settings.burn_in + settings.mark_every, settings.steps + 1, settings.mark_every)


def running_means(draws: np.ndarray, burn_in: int, at: np.ndarray) -> np.ndarray:
    """Mean of the draws (chain, step, p) from `burn_in` to each of the steps `at`: (mark, chain, p)."""
    sums = np.cumsum(draws[:, burn_in:], axis=1, dtype=float)
    counts = at - burn_in
    return np.swapaxes(sums[:, counts - 1] / counts[:, None], 0, 1)


def _run(entrant: Entrant, step_size: float, settings: Settings, seed: int) -> Result | None:
    return run_chains(
        entrant.make(),
        posterior(data_set(seed).training, sparse=entrant.sparse),
        jnp.zeros(PREDICTORS, jnp.float32),
        seed=seed,
        steps=settings.steps,
        step_size=step_size,
        batch_size=settings.batch_size,
        chains=settings.chains,
    )


def measure(entrant: Entrant, step_size: float, settings: Settings) -> Values:
    """Errors as the chain runs, and the posterior mean in the end, of one sampler at one step size on every seed.

    The prediction at a step is that of the mean of a chain's positions from the end of burn-in to this step; errors
    are averaged over the chains of a seed. The first chain that diverges ends the measurement.
    """
    at = marks(settings)
    row: Values = {"sampler": entrant.name, "step_size": step_size, "gradients": entrant.gradients, "step": at.tolist()}
    curves: dict[str, list[list[float]]] = {"validation_mse": [], "mse": [], "mae": []}
    means, included, sigmas = [], [], []
    for seed in range(settings.seeds):
        result = _run(entrant, step_size, settings, seed)
        if result is None or not result.alive.all():
            return {**row, "diverged": True}
        split = data_set(seed)
        estimates = running_means(np.asarray(result.positions), settings.burn_in, at)
        for names, samples in ((("validation_mse",), split.validation), (("mse", "mae"), split.test)):
            for name, values in zip(names, errors(estimates, samples), strict=False):
                curves[name].append(np.round(values.mean(axis=1), 6).tolist())
        means.append(np.round(estimates[-1].mean(axis=0), 5).tolist())
        if entrant.sparse:
            included.append(np.round(result.inclusion_probabilities.mean(axis=0), 4).tolist())
            sigmas.append(float(np.mean([float(state.prior.sigma) for state in result.final_states])))
    return {**row, "diverged": False, **curves, "means": means, "inclusion": included, "sigma": sigmas}


def _entries(settings: Settings) -> Iterator[tuple[Entrant, float]]:
    for entrant in ENTRANTS:
        sizes = entrant.step_sizes if settings.every_step_size else entrant.quick
        for step_size in dict.fromkeys((*sizes, PAPER_STEP_SIZE)):
            yield entrant, step_size


def plan(settings: Settings) -> list[Piece]:
    """A piece for every sampler and step size, the paper's 0.1 among them."""
    pieces = []
    for entrant, step_size in _entries(settings):

        def make(_: Path, entrant: Entrant = entrant, step_size: float = step_size) -> Values:
            return measure(entrant, step_size, settings)

        known = {"sampler": entrant.name, "step_size": step_size, **asdict(settings)}
        del known["every_step_size"]
        label = entrant.name.lower().replace(", ", "-").replace(" ", "-")
        pieces.append(Piece(f"{label}-step{step_size:g}", known, make, 3 if entrant.gradients > 1 else 1))
    return pieces


def assemble(settings: Settings, results: Mapping[str, Values], folder: Path) -> Outcome:
    """Both figures, the tables, and whether HASGLD-SA errs less than SGLD-SA."""
    rows = list(results.values())
    chosen = steps_chosen(rows, settings.steps)
    found = verdict(chosen, settings.steps)
    floor = [errors(true_weights(), data_set(seed).test) for seed in range(settings.seeds)]
    least = {"mse": float(np.mean([f[0] for f in floor])), "mae": float(np.mean([f[1] for f in floor]))}
    save_figure(folder, "means.png", draw_means(chosen, true_weights()))
    save_figure(folder, "errors.png", draw_errors(chosen, least, found))
    numbers = {
        "chosen": {name: mean_curve(row) for name, row in chosen.items()},
        "tried": [mean_curve(row, settings.steps) for row in rows],
        "truth": least,
        "verdict": found,
    }
    return Outcome(tell(asdict(settings), rows, chosen, least, found), numbers)


STUDY = Study(
    "regression",
    {
        Preset.quick: Settings(steps=2_000, seeds=6, chains=2, every_step_size=False),
        Preset.paper: Settings(),
    },
    "6 data sets with 2 chains of 2,000 steps in place of 10 with 4 of 5,000, and three step sizes a sampler in place "
    "of six. Differences of so few chains are mostly noise; the claims are judged at full scale.",
    plan,
    assemble,
)
