"""`find_step_size`: the step size of least error for a run of a given length."""

import math
import warnings
from dataclasses import replace
from typing import Any, NamedTuple, get_args

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from ridgewalk._pytree import layout_of
from ridgewalk._types import Key, PyTree
from ridgewalk._validation import check_choice
from ridgewalk.diagnostics.curvature import stability_bound
from ridgewalk.distributed.shards import refuse_shards
from ridgewalk.dynamics.as_printed import AsPrinted
from ridgewalk.dynamics.base import Dynamics
from ridgewalk.gradients import GradientEstimator, as_estimator, estimator_on_device
from ridgewalk.kernel import Sampler
from ridgewalk.preconditioners.base import AdaptivePreconditioner, Preconditioner
from ridgewalk.sampling.batching import find_nonfinite_rows
from ridgewalk.sampling.sample import check_counts, check_data, check_functions, check_kinds, check_position
from ridgewalk.sampling.stability import stability_limit
from ridgewalk.target import Density, Target, model_starts
from ridgewalk.tuning.local_gaussian import (
    STABILITY_MARGIN,
    Criterion,
    IntendedRun,
    LocalGaussian,
    optimal_step_size,
    predict_error,
)
from ridgewalk.tuning.pilot_runs import DRAWS, PilotRuns, StepHalvingCheck

ROUNDS, ADAPTIVE_ROUNDS = (1, 2), (1, 2, 4, 16)
"""Lengths of the pilot runs in units of the first; more of them for a preconditioner that adapts."""


class StepSizeRow(NamedTuple):
    """Predicted errors of log variances at one step size."""

    step_size: float
    bias: float
    monte_carlo: float
    total: float


class StepSize(float):
    """A step size: a float, with the measurements it was chosen by."""

    limit: float
    """The stability limit at the probe points, the smallest over chains: 2 / λ_max(G H), with momentum up to twice."""
    table: tuple[StepSizeRow, ...]
    """Predicted errors at the chosen step size and at multiples of it; none if the pilot runs have not arrived."""
    halving_checks: tuple[StepHalvingCheck, ...]
    explanation: str
    arrived: bool
    """Whether the pilot runs reached the stationary distribution, as far as they can tell."""

    def __new__(
        cls,
        value: float,
        limit: float,
        table: tuple[StepSizeRow, ...],
        halving_checks: tuple[StepHalvingCheck, ...],
        explanation: str,
        arrived: bool,
    ) -> "StepSize":
        """A float with attributes."""
        made = super().__new__(cls, value)
        made.limit, made.table, made.halving_checks = limit, table, halving_checks
        made.explanation, made.arrived = explanation, arrived
        return made

    def __repr__(self) -> str:
        """The value and the stability limit."""
        return f"StepSize({float(self):.3g}, limit={self.limit:.3g})"

    def __getnewargs__(self) -> tuple[Any, ...]:
        """Arguments of copies."""
        return float(self), self.limit, self.table, self.halving_checks, self.explanation, self.arrived


def find_step_size(
    key: Key,
    sampler: Sampler,
    target: Target | GradientEstimator,
    position: PyTree | None = None,
    *,
    batch_size: int | None = None,
    steps: int = 20_000,
    chains: int = 1,
    criterion: Criterion = "joint",
    progress: bool = True,
) -> StepSize:
    """The step size with which a run of `steps` steps has the least error: bias² + Monte Carlo variance.

    Pilot runs adapt the preconditioner G. At probe points of their chains the preconditioned Hessian and the covariance
    of the gradient noise are measured. For a Gaussian posterior with these, bias (from ε and from gradient noise) and
    Monte Carlo error after `steps` steps are known in closed form for every ε. Finally chains at ε and ε/2 are
    compared: if the potential differs by more than predicted, ε is lowered. If the pilot runs have not arrived at the
    posterior, a warning says so, and no errors are predicted. The step size is below its stability limit, `limit`.

        options = {"steps": 20_000, "batch_size": 100}
        size = rw.find_step_size(key, rw.hasgld_sa(), target, start, **options)
        print(size.limit, size.explanation)
        result = rw.sample(key, rw.hasgld_sa(), target, start, step_size=size, **options)

    Ctrl-C and SIGTERM in a pilot run raise KeyboardInterrupt at the end of its chunk.

    For runs of 20,000 steps or more it costs two chains of 3,000 steps, or of 23,000 for an adaptive preconditioner,
    sixteen chains of 1,000 steps for the step-halving check, and a Hessian-vector product per parameter (24 for large
    models) at 8 probe points, for two values of G, or up to eight for an adaptive preconditioner.

    Args:
        key: a JAX random key.
        sampler: the sampler of the intended run.
        target: the target of the intended run, or an estimator such as `control_variates(posterior, centre)`.
        position: where the chains start, preferably near a mode; None for the start of a model (`from_numpyro`,
            `from_pymc`).
        batch_size: examples of each step's batch, as in the intended run.
        steps: length of the intended run: the longer it is, the smaller the optimal step size.
        chains: chains of the intended run, whose draws are pooled.
        criterion: the error that is minimised. "joint": of the covariance matrix of the quantities of interest,
            correlations included. "marginal": of the mean and variance of each quantity, such as error bars of
            predictions. With data the quantities are the score vectors of some examples (for a network its
            predictions), without data the parameters, in units of their standard deviations.
        progress: print the result.
    """
    check_kinds(key, sampler, target)
    sampler = replace(sampler, pruning=None)  # a step size that is stable for all weights is stable for a subset
    check_counts(steps, 0, 1, chains)
    _check_dynamics(sampler.dynamics)
    check_choice("criterion", criterion, get_args(Criterion))
    estimator = as_estimator(target)
    refuse_shards(estimator.target, "find_step_size")
    rows = check_data(estimator.target, batch_size, True)
    suspected = find_nonfinite_rows(None if isinstance(estimator.target, Density) else estimator.target.data)
    if position is None:
        position = jax.tree.map(lambda leaf: leaf[0], model_starts(key, estimator.target, 1))
    position = check_position(position)
    compiled = estimator_on_device(estimator)
    check_functions(compiled.target, position, rows, suspected)
    first = stability_limit(sampler, compiled, position)
    if not math.isfinite(first):
        data = f", and second derivatives where {' and '.join(suspected)} hold NaN or infinity" if suspected else ""
        raise ValueError(
            "target: its curvature at the position is zero, NaN or infinite, so no step size can be chosen; start "
            f"elsewhere, or check log_density (log_prior, log_likelihood) for kinks and overflow{data}"
        )
    pilot = PilotRuns(key, sampler, estimator, compiled, batch_size, position)
    # A multiple of the draws, so that all rounds share one compilation.
    length = int(np.clip(steps // 20 // DRAWS, 8, 32)) * DRAWS
    rule = sampler.resolve(layout_of(position))
    chosen, run = first / 20, IntendedRun(steps, chains, criterion)
    for factor in ADAPTIVE_ROUNDS if isinstance(rule.unwrapped, AdaptivePreconditioner) else ROUNDS:
        chosen = pilot.run(chosen, length * factor)
        models = pilot.fit_models(rows, rule)
        limit = stability_bound(pilot.result) / max(model.max_curvature for model in models)
        chosen = min(optimal_step_size(sampler.dynamics, models, run), limit / STABILITY_MARGIN)
    value, halving_checks = pilot.check_step_halving(chosen, models[0], rule)
    reason = pilot.not_arrived()
    if reason:
        found = _doubt(value, limit, halving_checks, reason, rule)
        warnings.warn(found.explanation, stacklevel=2)
    else:
        found = _explain(sampler.dynamics, value, models[0], limit, halving_checks, run)
    if progress:
        _show(found, steps)
    return found


def _check_dynamics(dynamics: Dynamics) -> None:
    if isinstance(dynamics, AsPrinted):
        raise ValueError(
            "sampler: form='as_printed' does not sample the posterior, so no step size has a small bias; use "
            "form='dense', 'low_rank' or 'snapshot_lbfgs'"
        )
    if not dynamics.temperature > 0:
        raise ValueError(
            f"sampler: at temperature {dynamics.temperature} it is gradient descent; use 1.0 for the posterior"
        )


def _doubt(
    value: float, limit: float, halving_checks: tuple[StepHalvingCheck, ...], reason: str, rule: Preconditioner
) -> StepSize:
    """The step size without predicted errors, which hold for draws of the posterior only."""
    other = "" if isinstance(rule.unwrapped, AdaptivePreconditioner) else ", or use hasgld_sa(), which adapts to it"
    explanation = (
        f"position: the pilot runs have not arrived at the posterior: {reason}. Step size {value:.3g} is for the place "
        f"where they are, stable up to {limit:.3g} there, and its error in a longer run is unknown. Start from "
        f"rw.find_mode(key, target, position), or from the end of a run{other}."
    )
    return StepSize(value, limit, (), halving_checks, explanation, arrived=False)


def _explain(
    dynamics: Dynamics,
    value: float,
    model: LocalGaussian,
    limit: float,
    halving_checks: tuple[StepHalvingCheck, ...],
    run: IntendedRun,
) -> StepSize:
    def row(step_size: float) -> StepSizeRow:
        found = predict_error(dynamics, step_size, model, run)
        return StepSizeRow(step_size, found.bias, found.monte_carlo, found.total)

    table = tuple(row(value * factor) for factor in (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0))
    chosen, last = table[3], halving_checks[-1]
    noise_free = predict_error(dynamics, value, model.without_noise(), run).bias
    source = "gradient noise" if chosen.bias > 2 * noise_free else "the step size or slow mixing"
    explanation = (
        f"step size {value:.3g}: after {run.steps:,} steps log variances have a bias of {chosen.bias:.2g} (mostly from "
        f"{source}) and a Monte Carlo error of {chosen.monte_carlo:.2g}. Stable up to "
        f"{limit:.3g}. Step-halving check: the potential at ε exceeds that at ε/2 by {last.measured:.3g} ± "
        f"{last.standard_error:.2g}, expected {last.expected:.3g}"
    )
    if len(halving_checks) > 1:
        first = halving_checks[0].step_size
        explanation += f"; at {first:.3g}, of least predicted error, it rose by more than predicted"
    return StepSize(value, limit, table, halving_checks, explanation + ".", arrived=True)


def _show(found: StepSize, steps: int) -> None:
    table = Table(title=f"predicted error of log variances after {steps:,} steps", title_justify="left")
    for column in ("step size", "bias", "Monte Carlo", "total", ""):
        table.add_column(column, justify="right")
    for row in found.table:
        numbers = [f"{x:.2g}" if math.isfinite(x) else "unstable" for x in row[1:]]
        table.add_row(f"{row.step_size:.3g}", *numbers, "chosen" if row.step_size == float(found) else "")
    console = Console(width=None if Console().is_terminal else 110)
    if found.table:
        console.print(table)
    console.print(found.explanation, highlight=False)
