"""`find_step_size`: the step size of least error for a run of a given length."""

import math
from dataclasses import replace
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from rich.console import Console
from rich.table import Table

from ridgewalk._types import Key, PyTree
from ridgewalk.data import on_host, streamed
from ridgewalk.dynamics.as_printed import AsPrinted
from ridgewalk.dynamics.base import Dynamics
from ridgewalk.gradients import GradientEstimator, as_estimator
from ridgewalk.kernel import Sampler
from ridgewalk.precondition.base import Settling
from ridgewalk.run import checks
from ridgewalk.run.finite import suspects
from ridgewalk.run.health import stability_limit
from ridgewalk.run.local_law import Judge, LocalModel, Prediction, predict, stationary_law
from ridgewalk.run.pilots import DRAWS, Halving, Pilots
from ridgewalk.target import Density, Target

ROUNDS, ROUNDS_OF_LEARNING = (1, 2), (1, 2, 4, 16)
"""How long each pilot run is, in twentieths of the intended run; a preconditioner that learns needs time."""

MARGIN = 1.25
"""The chosen step size is stable by this factor: curvature is not the same everywhere."""


class Run(NamedTuple):
    """The intended run."""

    steps: int
    chains: int
    judge: Judge


class Row(NamedTuple):
    """What a run at one step size is predicted to show: errors of the covariance, as log ratios."""

    step_size: float
    bias: float
    monte_carlo: float
    total: float


class StepSize(float):
    """A step size, usable as the number it is, with how it was found."""

    limit: float
    """2 / λ_max(G H), where the chains have been, for the one that allows the least."""
    table: tuple[Row, ...]
    halvings: tuple[Halving, ...]
    explanation: str

    def __new__(
        cls, value: float, limit: float, table: tuple[Row, ...], halvings: tuple[Halving, ...], explanation: str
    ) -> "StepSize":
        """The number with its reasons."""
        made = super().__new__(cls, value)
        made.limit, made.table, made.halvings, made.explanation = limit, table, halvings, explanation
        return made

    def __repr__(self) -> str:
        """The number and the limit it keeps to."""
        return f"StepSize({float(self):.3g}, limit={self.limit:.3g})"

    def __getnewargs__(self) -> tuple[Any, ...]:
        """What copies are made from."""
        return float(self), self.limit, self.table, self.halvings, self.explanation


def find_step_size(
    key: Key,
    sampler: Sampler,
    target: Target | GradientEstimator,
    position: PyTree,
    *,
    batch_size: int | None = None,
    steps: int = 20_000,
    chains: int = 1,
    judge: Judge = "together",
    progress: bool = True,
) -> StepSize:
    """The step size with which a run of `steps` steps has the least error: bias² + Monte Carlo variance.

    Pilot runs teach the preconditioner and show where the chain goes. There the Hessian H and the covariance of the
    gradient's noise are measured, seen through G; the chain is then that of a Gaussian posterior, whose bias (from ε
    and from gradient noise) and Monte Carlo error after `steps` steps are known in closed form, for every ε. Last,
    chains at ε and ε/2 are compared: where the potential differs by more than predicted, ε is lowered.

        options = {"steps": 20_000, "batch_size": 100}
        size = rw.find_step_size(key, rw.hasgld_sa(), target, start, **options)
        print(size.limit, size.explanation)
        result = rw.sample(key, rw.hasgld_sa(), target, start, step_size=size, **options)

    Ctrl-C and SIGTERM in a pilot run raise KeyboardInterrupt once its chunk is done.

    It costs two chains of 3,000 steps, or of 23,000 where G is learnt, for runs of 20,000 steps or more, sixteen of
    1,000 for the check, and a Hessian product per parameter (24 for large models) at 8 places, once for each G that is
    looked at (two, or up to eight where G is learnt).

    Args:
        key: a JAX random key.
        sampler: the sampler of the intended run.
        target: the target of the intended run, or an estimator such as `control_variates(posterior, centre)`.
        position: where the chains start, best near a mode.
        batch_size: examples of each step's batch, as in the intended run.
        steps: length of the intended run: the longer, the smaller the step size that pays.
        chains: chains of the intended run, whose draws are pooled.
        judge: what the run is for. "together": the covariance matrix, correlations included. "each": mean and variance
            of every quantity on its own, such as error bars of predictions. The quantities are, with data, what the
            likelihood sees of the parameters at some examples (for a network its predictions); without data the
            parameters. Each counts in units of its own spread.
        progress: print what was found.
    """
    checks.check_kinds(key, sampler, target)
    sampler = replace(sampler, pruning=None)  # what is stable for all weights is for some
    checks.check_counts(steps, 0, 1, chains)
    _check_dynamics(sampler.dynamics)
    if judge not in get_args(Judge):
        raise ValueError(f"judge: {judge!r} is unknown; use one of {', '.join(map(repr, get_args(Judge)))}")
    estimator = as_estimator(target)
    rows = checks.check_data(estimator.target, batch_size, True)
    suspected = suspects(None if isinstance(estimator.target, Density) else estimator.target.data)
    position = checks.check_position(position)
    seen = _seen(estimator)
    checks.check_functions(seen.target, position, rows, suspected)
    first = stability_limit(sampler, seen, position)
    if not math.isfinite(first):
        data = f", and second derivatives where {' and '.join(suspected)} hold NaN or infinity" if suspected else ""
        raise ValueError(
            "target: its curvature at the position is zero, NaN or infinite, so no step size can be told; start "
            f"elsewhere, or check log_density (log_prior, log_likelihood) for kinks and overflow{data}"
        )
    pilot = Pilots(key, sampler, estimator, seen, batch_size, position)
    length = int(np.clip(steps // 20 // DRAWS, 8, 32)) * DRAWS  # whole draws, so that all rounds compile once
    flat, unravel = ravel_pytree(position)
    rule = sampler.preconditioner.specialise(flat.shape[0], unravel)
    chosen, run = first / 20, Run(steps, chains, judge)
    for factor in ROUNDS_OF_LEARNING if isinstance(rule.learner, Settling) else ROUNDS:
        chosen = pilot.run(chosen, length * factor)
        models = pilot.look(rows, rule)
        chosen = _between(sampler.dynamics, models, run)
    value, halvings = pilot.check_halving(chosen, models[0], rule)
    limit = min(model.limit for model in models)
    found = _explain(sampler.dynamics, value, models[0], limit, halvings, run)
    if progress:
        _show(found, steps)
    return found


def _check_dynamics(dynamics: Dynamics) -> None:
    if isinstance(dynamics, AsPrinted):
        raise ValueError(
            "sampler: form='as_printed' does not sample the posterior, so no step size has a small bias; use "
            "form='dense', 'low_rank' or 'limited'"
        )
    if not dynamics.temperature > 0:
        raise ValueError(
            f"sampler: at temperature {dynamics.temperature} it descends and does not sample; use 1.0 for the posterior"
        )


def _seen(estimator: GradientEstimator) -> GradientEstimator:
    """The estimator as compiled code sees it: data on the host are replaced by a few examples."""
    target = estimator.target
    if isinstance(target, Density) or not on_host(target.data):
        return estimator
    inside: Any = replace(estimator, target=replace(target, data=streamed(target.data)))  # type: ignore[type-var]
    return jax.tree.map(jnp.asarray, inside)


def _between(dynamics: Dynamics, models: list[LocalModel], run: Run) -> float:
    """A step size between the best ones of the models, stable in all: chains that learn do not learn the same."""
    each = [_best(dynamics, model, run) for model in models]
    value = math.exp(np.mean(np.log(each)))
    while value > min(each) and not all(_stable(dynamics, value, model) for model in models):
        value /= 2**0.125
    return max(value, min(each))


def _stable(dynamics: Dynamics, step_size: float, model: LocalModel) -> bool:
    """Whether steps a margin longer would still be stable where it is steepest."""
    return stationary_law(dynamics, MARGIN * step_size, model.at_steepest()).stable


def _best(dynamics: Dynamics, model: LocalModel, run: Run) -> float:
    """The ε of least predicted error: by factors of 2, then 8 between each."""

    def error(step_size: float) -> float:
        if not _stable(dynamics, step_size, model):
            return math.inf
        return predict(dynamics, step_size, model, *run).total

    coarse = 4 * model.limit * 2.0 ** -np.arange(1, 28.0)
    best = coarse[int(np.argmin([error(e) for e in coarse]))]
    fine = best * 2.0 ** np.linspace(-1, 1, 17)
    return float(fine[int(np.argmin([error(e) for e in fine]))])


def _explain(
    dynamics: Dynamics, value: float, model: LocalModel, limit: float, halvings: tuple[Halving, ...], run: Run
) -> StepSize:
    def row(step_size: float) -> Row:
        found: Prediction = predict(dynamics, step_size, model, *run)
        return Row(step_size, found.bias, found.monte_carlo, found.total)

    table = tuple(row(value * factor) for factor in (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0))
    chosen, last = table[3], halvings[-1]
    noise_free = predict(dynamics, value, model.quiet(), *run).bias
    source = "gradient noise" if chosen.bias > 2 * noise_free else "the size of the steps, or mixing too slow"
    explanation = (
        f"step size {value:.3g}: in {run.steps:,} steps variances have a bias of {chosen.bias:.2g} (most of it from "
        f"{source}) and a Monte Carlo error of {chosen.monte_carlo:.2g}, in log ratios. 2/λ_max(G H) = "
        f"{limit:.3g}. Halving: the potential at ε exceeds that at ε/2 by {last.measured:.3g} ± "
        f"{last.standard_error:.2g}, expected {last.expected:.3g}"
    )
    if len(halvings) > 1:
        explanation += f"; at {halvings[0].step_size:.3g}, of least predicted error, it rose by more than predicted"
    return StepSize(value, limit, table, halvings, explanation + ".")


def _show(found: StepSize, steps: int) -> None:
    table = Table(title=f"predicted error of variances after {steps:,} steps (log ratio)", title_justify="left")
    for column in ("step size", "bias", "Monte Carlo", "total", ""):
        table.add_column(column, justify="right")
    for row in found.table:
        numbers = [f"{x:.2g}" if math.isfinite(x) else "unstable" for x in row[1:]]
        table.add_row(f"{row.step_size:.3g}", *numbers, "chosen" if row.step_size == float(found) else "")
    console = Console(width=None if Console().is_terminal else 110)
    console.print(table)
    console.print(found.explanation, highlight=False)
