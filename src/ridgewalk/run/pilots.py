"""Short runs that show where a chain goes and what a step size does to it."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk.gradients import SVRG, GradientEstimator
from ridgewalk.kernel import Sampler
from ridgewalk.run.health import DivergenceError
from ridgewalk.run.local_fit import fit
from ridgewalk.run.local_law import LocalModel, excess_potential
from ridgewalk.run.local_look import Places
from ridgewalk.run.result import Result
from ridgewalk.run.rows import Rows
from ridgewalk.run.sample import sample
from ridgewalk.types import Key, PyTree

CHAINS = 2
DRAWS = 32
PLACES = 4
"""Chains of a pilot run, draws kept of each, and how many of the last ones curvature and noise are looked at."""

STANDARD_ERRORS = 3.0
"""By so many the potential must exceed the prediction in the step-halving check to fail it."""

MOST_TRIES = 8


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
        """Chains from where the last ones ended; None where one diverged."""
        try:
            result = sample(
                jax.random.fold_in(self.key, self.runs),
                self.sampler,
                self.estimator,
                self.starts,
                steps=length,
                step_size=step_size,
                batch_size=self.batch_size,
                chains=CHAINS,
                start_per_chain=True,
                progress=False,
                **options,
            )
        except DivergenceError:
            return None
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

    def look(self, rows: Rows) -> LocalModel:
        """Curvature and gradient noise at some of the last draws, seen through the first chain's preconditioner."""
        estimator, lag = self.estimator, 1
        if isinstance(estimator, SVRG):
            lag = min(max(1, round(estimator.every * DRAWS / self.length / 2)), DRAWS // 2)
        chosen = DRAWS - 1 - np.arange(PLACES) * (DRAWS // 2 // PLACES)

        def take(back: int) -> PyTree:
            return jax.tree.map(lambda x: x[:, chosen - back].reshape(-1, *x.shape[2:]), self.result.kept_positions())

        operator = self.result.final_states[0].preconditioner
        key = jax.random.fold_in(self.key, 1_000 + self.runs)
        return fit(key, self.seen, operator, Places(take(0), take(lag)), rows)

    def check_halving(self, step_size: float, model: LocalModel, length: int) -> tuple[Halving, ...]:
        """Runs at ε and ε/2 with the same random numbers, ε halved until the potentials agree as predicted."""
        self.runs += 1
        temperature, found = self.sampler.dynamics.temperature, []
        full = self._potentials(step_size, length)
        for _ in range(MOST_TRIES):
            half = self._potentials(step_size / 2, length)
            expected = excess_potential(self.sampler.dynamics, step_size, model, length)
            if full is None or half is None:
                found.append(Halving(step_size, math.inf, 0.0, expected, False))
            else:
                groups = (full - half).reshape(CHAINS * 4, -1).mean(axis=1)
                error = float(groups.std(ddof=1) / math.sqrt(groups.size))
                slack = STANDARD_ERRORS * error + 0.05 * temperature * model.counts.sum() / 2
                measured = float(groups.mean())
                found.append(Halving(step_size, measured, error, expected, measured <= 2 * expected + slack))
            if found[-1].passed:
                return tuple(found)
            step_size, full = step_size / 2, half
        raise DivergenceError(
            f"no step size down to {step_size:.2g} passes the step-halving check; start nearer a mode"
        )

    def _potentials(self, step_size: float, length: int) -> np.ndarray | None:
        """Potentials (chain, draw) of the second half of a run."""
        result = self._sample(step_size, length, burn_in=length // 2, thin=4, keep="moments")
        if result is None:
            return None
        potentials = np.asarray(result.info.potential, float)
        return potentials[:, : potentials.shape[1] // 4 * 4]
