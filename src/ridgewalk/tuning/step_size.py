"""`find_step_size`: the step size of least error for a run of a given length.

Pilot runs are short runs that adapt the preconditioner, provide probe points and check a step size.
"""

import math
import warnings
from dataclasses import replace
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from ridgewalk._pytree import array_field, layout_of, pytree_dataclass
from ridgewalk._types import GradientAt, Key, PyTree, Vector
from ridgewalk._validation import check_choice
from ridgewalk.diagnostics.curvature import curvature_pair_stats, stability_bound
from ridgewalk.diagnostics.measurements import (
    DRIFT_ERRORS,
    LARGE,
    Arrival,
    compare_potentials,
    potential_scale,
)
from ridgewalk.distributed.shards import refuse_shards
from ridgewalk.dynamics import AsPrinted, Dynamics
from ridgewalk.gradients import SVRG, GradientEstimator, as_estimator, estimator_on_device, with_prior
from ridgewalk.kernel import Sampler
from ridgewalk.preconditioners.base import AdaptivePreconditioner, Preconditioner, StaticPreconditioner
from ridgewalk.preconditioners.dense import Dense
from ridgewalk.result import Result
from ridgewalk.sampling.batching import BatchIndexer, find_nonfinite_rows
from ridgewalk.sampling.loop import DivergenceError, stability_limit
from ridgewalk.sampling.sample import check_counts, check_data, check_functions, check_kinds, check_position, sample
from ridgewalk.target import Density, Target, model_starts
from ridgewalk.tuning.local_gaussian import (
    STABILITY_MARGIN,
    Criterion,
    IntendedRun,
    LocalGaussian,
    ProbePoints,
    excess_potential,
    fit_local_gaussian,
    optimal_step_size,
    predict_error,
)

CHAINS = 2
DRAWS = 32
"""Chains of a pilot run, and draws kept of each."""

PROBE_POINTS = 4
"""Draws of each chain at which curvature and noise are measured, from the second half of the run."""

CHECK_CHAINS, CHECK_STEPS = 8, 1_000
"""Chains of the step-halving check, from whose differences its standard error is estimated, and their length."""

STANDARD_ERRORS = 2.5
"""Standard errors by which the potential must exceed the prediction for a step-halving check to fail."""

MAX_TRIES = 8

MAX_DAMPED = 0.5
"""The fraction of damped curvature pairs above which the preconditioner has not adapted."""


@pytree_dataclass
class FrozenPreconditioner(StaticPreconditioner):
    """The preconditioner of a pilot run's final state, without further adaptation."""

    operator: Any = array_field()

    def init(self, position: Vector, gradient_at: GradientAt) -> Any:
        """The operator."""
        return self.operator


class StepHalvingCheck(NamedTuple):
    """Mean potential at ε minus that at ε/2, its standard error, and the prediction of the local Gaussian model."""

    step_size: float
    measured: float
    standard_error: float
    expected: float
    passed: bool


class PilotRuns:
    """Short runs, each started from the final positions of the one before."""

    def __init__(
        self,
        key: Key,
        sampler: Sampler,
        estimator: GradientEstimator,
        compiled: GradientEstimator,
        batch_size: int | None,
        position: PyTree,
    ) -> None:
        self.key, self.sampler, self.estimator, self.compiled = key, sampler, estimator, compiled
        self.batch_size = batch_size
        self.starts = jax.tree.map(lambda x: jnp.broadcast_to(x, (CHAINS, *x.shape)), position)
        self.runs = 0
        self.result: Result
        self.potential: np.ndarray
        """Of the step-halving check at the chosen step size, (chain, draw)."""

    def _sample(self, step_size: float, steps: int, **options: Any) -> Result | None:
        """Chains from the last positions; None if one diverged. A run that was interrupted raises KeyboardInterrupt."""
        try:
            result = sample(
                jax.random.fold_in(self.key, self.runs),
                self.sampler,
                self.estimator,
                self.starts,
                steps=steps,
                step_size=step_size,
                batch_size=self.batch_size,
                chains=jax.tree.leaves(self.starts)[0].shape[0],
                start_per_chain=True,
                progress=False,
                **options,
            )
        except DivergenceError:
            return None
        if any(status.outcome == "interrupted" for status in result.status):
            raise KeyboardInterrupt
        return result if result.alive.all() else None

    def run(self, step_size: float, steps: int) -> float:
        """Run at `step_size`, or at a smaller one if chains diverge. Returns the step size that was used."""
        self.runs += 1
        for _ in range(MAX_TRIES):
            result = self._sample(step_size, steps, thin=steps // DRAWS)
            if result is not None:
                self.result, self.steps = result, steps
                self.starts = jax.tree.map(
                    lambda *leaves: jnp.stack(leaves), *[state.position for state in result.final_states]
                )
                return step_size
            step_size /= 4
        raise DivergenceError(
            f"chains of {steps} steps diverge at all step sizes down to {4 * step_size:.2g}; start nearer a mode, or "
            "check that the log density is smooth there"
        )

    def fit_models(self, rows: BatchIndexer, rule: Preconditioner) -> list[LocalGaussian]:
        """The local Gaussian model at the last draws, one for the preconditioner of each chain if it adapts."""
        estimator, lag = self.estimator, 1
        if isinstance(estimator, SVRG):
            lag = min(max(1, round(estimator.every * DRAWS / self.steps / 2)), DRAWS // 2)
        chosen = DRAWS - 1 - np.arange(PROBE_POINTS) * (DRAWS // 2 // PROBE_POINTS)

        def take(back: int) -> PyTree:
            return jax.tree.map(lambda x: x[:, chosen - back].reshape(-1, *x.shape[2:]), self.result.kept_positions())

        key = jax.random.fold_in(self.key, 1_000 + self.runs)
        points, states = ProbePoints(take(0), take(lag)), self.result.final_states
        if isinstance(rule.unwrapped, StaticPreconditioner):
            states = states[:1]
        models = [
            fit_local_gaussian(key, with_prior(self.compiled, state.prior), state.preconditioner, points, rows)
            for state in states
        ]
        # The dense form converges to G = H⁻¹: directions that have not adapted yet will.
        return [model.at_fixed_point() for model in models] if isinstance(rule.unwrapped, Dense) else models

    def check_step_halving(
        self, step_size: float, model: LocalGaussian, rule: Preconditioner
    ) -> tuple[float, tuple[StepHalvingCheck, ...]]:
        """Compare runs at ε and ε/2 with the same random numbers and the final G; lower ε until the check passes.

        If the potential rises f times as much as predicted, so does the bias: with bias ∝ f ε and Monte Carlo
        variance ∝ 1/ε the optimal step size is f^{−2/3} times the chosen one. The next check expects f times the
        prediction.
        """
        self.runs += 1
        if isinstance(rule.unwrapped, AdaptivePreconditioner):
            frozen = FrozenPreconditioner(self.result.final_states[0].preconditioner)
            self.sampler = replace(self.sampler, preconditioner=frozen)
        self.estimator = with_prior(self.estimator, self.result.final_states[0].prior)
        self.starts = jax.tree.map(lambda x: jnp.concatenate([x] * (CHECK_CHAINS // CHAINS)), self.starts)
        checks: list[StepHalvingCheck] = []
        scale = 1.0
        for _ in range(MAX_TRIES):
            full, half = self._potentials(step_size), self._potentials(step_size / 2)
            predicted = excess_potential(self.sampler.dynamics, step_size, model, CHECK_STEPS)
            if full is None or half is None:
                checks.append(StepHalvingCheck(step_size, math.inf, 0.0, scale * predicted, False))
                step_size /= 4
                continue
            self.potential = full
            change = full.mean(axis=1) - half.mean(axis=1)
            error = float(change.std(ddof=1) / math.sqrt(CHECK_CHAINS))
            measured = float(change.mean())
            passed = measured - STANDARD_ERRORS * error <= scale * predicted
            checks.append(StepHalvingCheck(step_size, measured, error, scale * predicted, passed))
            if passed:
                return step_size, tuple(checks)
            before, scale = scale, (measured - error) / predicted
            step_size *= max((scale / before) ** (-2 / 3), 1 / 2)
        raise DivergenceError(
            f"no step size down to {step_size:.2g} passes the step-halving check; start nearer a mode"
        )

    def _potentials(self, step_size: float) -> np.ndarray | None:
        """The potentials (chain, draw) in the second half of a run; None if a chain diverged."""
        result = self._sample(step_size, CHECK_STEPS, burn_in=CHECK_STEPS // 2, thin=4, keep="moments")
        return None if result is None else np.asarray(result.info.potential, float)

    def not_arrived(self) -> str:
        """What shows that the last pilot run was not at rest; empty if nothing does.

        Its potential drifts, differs between the chains or from that of the step-halving check, or, with exact
        gradients, fluctuates more than at rest; or most curvature pairs were damped.
        """
        last, scale = np.asarray(self.result.info.potential, float), potential_scale(self.result)
        arrival, exact = compare_potentials(last, scale), self.batch_size is None
        late, now = last[:, DRAWS // 2 :], self.potential
        change = float(now.mean() - last[:, -DRAWS // 4 :].mean())
        error = math.hypot(now.mean(axis=1).std() / math.sqrt(len(now)), late.std() / math.sqrt(late.size))
        damped = curvature_pair_stats(self.result).damped
        if arrival is not None and (arrival.drifting or arrival.late):
            return f"from the first to the last quarter of the run the potential changed by {_change(arrival):+.3g}"
        if arrival is not None and arrival.above:
            middle = arrival.quarters[:, 2:].mean(axis=1)
            return f"the chains stay at different potentials, {middle[0]:.5g} and {middle[1]:.5g}"
        if abs(change) > max(LARGE * scale, DRIFT_ERRORS * error):
            return f"the potential changed by {change:+.3g} in the {CHECK_STEPS} steps that followed"
        if exact and late.std(axis=1).max() > LARGE * scale:
            return f"the potential fluctuates by {late.std(axis=1).max():.3g}, at rest by about {scale:.2g}"
        if damped > MAX_DAMPED:
            return f"{damped:.0%} of the curvature pairs were damped"
        return ""


def _change(arrival: Arrival) -> float:
    """The largest change of a chain's potential from the first to the last quarter."""
    change = arrival.quarters[:, 3] - arrival.quarters[:, 0]
    return float(change[np.abs(change).argmax()])


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
