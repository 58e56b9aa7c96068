"""Short runs that show where a chain goes and what a step size does to it."""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._pytree import array_field, pytree_dataclass
from ridgewalk._types import GradientAt, Key, PyTree, Vector
from ridgewalk.gradients import SVRG, GradientEstimator, with_prior
from ridgewalk.kernel import Sampler
from ridgewalk.precondition.base import Preconditioner, Settling, Unchanging
from ridgewalk.precondition.dense import Dense
from ridgewalk.result import Result
from ridgewalk.run.health import DivergenceError
from ridgewalk.run.local_fit import fit
from ridgewalk.run.local_law import LocalModel, excess_potential
from ridgewalk.run.local_look import Places
from ridgewalk.run.rows import Rows
from ridgewalk.run.sample import sample

CHAINS = 2
DRAWS = 32
PLACES = 4
"""Chains of a pilot run, draws kept of each, and how many of the last ones curvature and noise are looked at."""

CHECK_CHAINS, CHECK_STEPS = 8, 1_000
"""Chains of the step-halving check, whose differences give its standard error, and their length."""

STANDARD_ERRORS = 2.5
"""By so many the potential must exceed the prediction in the step-halving check to be believed."""

MOST_TRIES = 8


@pytree_dataclass
class Frozen(Unchanging):
    """A G that has been learnt, as it is."""

    operator: Any = array_field()

    def init(self, position: Vector, gradient_at: GradientAt) -> Any:
        """The operator."""
        return self.operator


class Halving(NamedTuple):
    """Mean potential at ε less that at ε/2, its standard error, and what the local model expects."""

    step_size: float
    measured: float
    standard_error: float
    expected: float
    passed: bool


class Pilots:
    """Short runs, each from where the last one ended."""

    def __init__(
        self,
        key: Key,
        sampler: Sampler,
        estimator: GradientEstimator,
        seen: GradientEstimator,
        batch_size: int | None,
        position: PyTree,
    ) -> None:
        self.key, self.sampler, self.estimator, self.seen = key, sampler, estimator, seen
        self.batch_size = batch_size
        self.starts = jax.tree.map(lambda x: jnp.broadcast_to(x, (CHAINS, *x.shape)), position)
        self.runs = 0
        self.result: Result

    def _sample(self, step_size: float, length: int, **options: Any) -> Result | None:
        """Chains from where the last ones ended; None where one diverged.

        A run that Ctrl-C or SIGTERM has cut short is of no use: here they end the search as Ctrl-C does elsewhere.
        """
        try:
            result = sample(
                jax.random.fold_in(self.key, self.runs),
                self.sampler,
                self.estimator,
                self.starts,
                steps=length,
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

    def run(self, step_size: float, length: int) -> float:
        """A run at `step_size`, or at a smaller one where chains diverge; the step size it was made with."""
        self.runs += 1
        for _ in range(MOST_TRIES):
            result = self._sample(step_size, length, thin=length // DRAWS)
            if result is not None:
                self.result, self.length = result, length
                self.starts = jax.tree.map(
                    lambda *leaves: jnp.stack(leaves), *[state.position for state in result.final_states]
                )
                return step_size
            step_size /= 4
        raise DivergenceError(
            f"chains of {length} steps diverge at all step sizes down to {4 * step_size:.2g}; start nearer a mode, or "
            "check that the log density is smooth there"
        )

    def look(self, rows: Rows, rule: Preconditioner) -> list[LocalModel]:
        """Curvature and gradient noise at some of the last draws, seen through what each chain has learnt."""
        estimator, lag = self.estimator, 1
        if isinstance(estimator, SVRG):
            lag = min(max(1, round(estimator.every * DRAWS / self.length / 2)), DRAWS // 2)
        chosen = DRAWS - 1 - np.arange(PLACES) * (DRAWS // 2 // PLACES)

        def take(back: int) -> PyTree:
            return jax.tree.map(lambda x: x[:, chosen - back].reshape(-1, *x.shape[2:]), self.result.kept_positions())

        key = jax.random.fold_in(self.key, 1_000 + self.runs)
        places, states = Places(take(0), take(lag)), self.result.final_states
        if isinstance(rule.learner, Unchanging):
            states = states[:1]
        models = [fit(key, with_prior(self.seen, s.prior), s.preconditioner, places, rows) for s in states]
        # Where G is H⁻¹ in the end, directions not learnt yet will be.
        return [model.settled() for model in models] if isinstance(rule.learner, Dense) else models

    def check_halving(
        self, step_size: float, model: LocalModel, rule: Preconditioner
    ) -> tuple[float, tuple[Halving, ...]]:
        """Runs at ε and ε/2 with the same random numbers and the learnt G; the step size they leave, what they show.

        Where the potential rises f times as much as predicted, so does the bias: with bias ∝ f ε and Monte Carlo
        variance ∝ 1/ε the best step size is f^{−2/3} times the one chosen. The next check expects f times the
        prediction.
        """
        self.runs += 1
        if isinstance(rule.learner, Settling):
            self.sampler = replace(self.sampler, preconditioner=Frozen(self.result.final_states[0].preconditioner))
        self.estimator = with_prior(self.estimator, self.result.final_states[0].prior)
        self.starts = jax.tree.map(lambda x: jnp.concatenate([x] * (CHECK_CHAINS // CHAINS)), self.starts)
        found: list[Halving] = []
        scale = 1.0
        for _ in range(MOST_TRIES):
            full, half = self._potentials(step_size), self._potentials(step_size / 2)
            predicted = excess_potential(self.sampler.dynamics, step_size, model, CHECK_STEPS)
            if full is None or half is None:
                found.append(Halving(step_size, math.inf, 0.0, scale * predicted, False))
                step_size /= 4
                continue
            error = float((full - half).std(ddof=1) / math.sqrt(CHECK_CHAINS))
            measured = float((full - half).mean())
            passed = measured - STANDARD_ERRORS * error <= scale * predicted
            found.append(Halving(step_size, measured, error, scale * predicted, passed))
            if passed:
                return step_size, tuple(found)
            before, scale = scale, (measured - error) / predicted
            step_size *= max((scale / before) ** (-2 / 3), 1 / 2)
        raise DivergenceError(
            f"no step size down to {step_size:.2g} passes the step-halving check; start nearer a mode"
        )

    def _potentials(self, step_size: float) -> np.ndarray | None:
        """The mean potential of each chain in the second half of a run."""
        result = self._sample(step_size, CHECK_STEPS, burn_in=CHECK_STEPS // 2, thin=4, keep="moments")
        return None if result is None else np.asarray(result.info.potential, float).mean(axis=1)
