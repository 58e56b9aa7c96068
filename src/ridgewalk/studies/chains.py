"""Chains for a study: seeds are chains of one vectorised run."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ridgewalk.diagnostics.mixing import ess
from ridgewalk.gradients import GradientEstimator
from ridgewalk.kernel import Sampler, preconditioner_matrix
from ridgewalk.result import Result
from ridgewalk.run.health import DivergenceError
from ridgewalk.run.sample import sample
from ridgewalk.target import Target


def run_chains(
    sampler: Sampler,
    target: Target | GradientEstimator,
    position: Any,
    *,
    seed: int,
    steps: int,
    step_size: float | Callable[[Any], Any],
    **options: Any,
) -> Result | None:
    """`sample` without its bar; None where every chain diverged. A run that was stopped is not a result."""
    try:
        result = sample(
            jax.random.key(seed), sampler, target, position, steps=steps, step_size=step_size, progress=False, **options
        )
    except DivergenceError:
        return None
    if result.steps < steps:
        raise KeyboardInterrupt
    return result


operator_matrix = jax.jit(preconditioner_matrix)
"""G of a chain's state, compiled once for all chains of a sampler."""


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """Mean over seeds and its standard error (0 for a single seed)."""
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
    return float(np.mean(values)), float(error)


def slowest_time(draws: np.ndarray, turns: int = 1) -> tuple[float, float]:
    """Autocorrelation time, in steps, of the slowest parameter of (chain, draw, d), and its standard error.

    All draws over the sum of each chain's own effective size. With `turns` > 1 so many positions take turns (HAMCMC):
    each is a chain of its own. Looked at as one chain, correlations at lag 1 vanish and the estimate of the effective
    size stops there, far too soon.
    """
    _, count, d = draws.shape
    times = []
    for i in range(d):
        sizes = np.array([sum(ess(chain[None, turn::turns, i]) for turn in range(turns)) for chain in draws])
        size, error = mean_and_error(sizes)
        times.append((count / size, count / size**2 * error))
    return max(times)
