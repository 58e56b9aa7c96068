"""Pilot runs: short runs that adapt the preconditioner, provide probe points and check a step size."""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._pytree import array_field, pytree_dataclass
from ridgewalk._types import GradientAt, Key, PyTree, Vector
from ridgewalk.diagnostics.curvature import curvature_pair_stats
from ridgewalk.diagnostics.measurements import (
    DRIFT_ERRORS,
    LARGE,
    Arrival,
    compare_potentials,
    potential_scale,
)
from ridgewalk.gradients import SVRG, GradientEstimator, with_prior
from ridgewalk.kernel import Sampler
from ridgewalk.preconditioners.base import AdaptivePreconditioner, Preconditioner, StaticPreconditioner
from ridgewalk.preconditioners.dense import Dense
from ridgewalk.result import Result
from ridgewalk.sampling.batching import BatchIndexer
from ridgewalk.sampling.sample import sample
from ridgewalk.sampling.stability import DivergenceError
from ridgewalk.tuning.local_curvature import ProbePoints, fit_local_gaussian
from ridgewalk.tuning.local_gaussian import LocalGaussian, excess_potential

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
