"""Comparing samplers: step-size sweeps over contenders, runs over seeds, and errors against a known posterior."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import numpy as np

from ridgewalk.diagnostics.mixing import ess_by_chain
from ridgewalk.gradients import GradientEstimator
from ridgewalk.kernel import Sampler, preconditioner_matrix
from ridgewalk.result import Result
from ridgewalk.sampling.loop import DivergenceError
from ridgewalk.sampling.sample import sample
from ridgewalk.studies.framework.study import Row, Task
from ridgewalk.target import Density, Posterior, Target


class BenchmarkPosterior(NamedTuple):
    """A target, its mode and the Hessian of its potential there."""

    target: Posterior | Density
    mode: np.ndarray
    hessian: np.ndarray


class Contender(NamedTuple):
    """A sampler with its grid of step sizes: all of them in the paper preset, `quick` in the quick one."""

    name: str
    make: Callable[[], Sampler]
    step_sizes: tuple[float, ...]
    quick: tuple[float, ...]
    options: Mapping[str, Any] = MappingProxyType({})
    gradients: int = 1
    """Minibatch gradients per step: a curvature pair costs a second one."""
    interleaved: int = 1
    """Number of interleaved chains in one (M for HAMCMC)."""

    def grid(self, every_step_size: bool) -> tuple[float, ...]:
        """The step sizes of a preset."""
        return self.step_sizes if every_step_size else self.quick


class SweepRow(Protocol):
    """What rows of a step-size sweep have in common."""

    @property
    def sampler(self) -> str:
        """The contender's name."""

    @property
    def diverged(self) -> int:
        """Number of chains that diverged."""


R = TypeVar("R", bound=SweepRow)


def best_rows(rows: Iterable[R], score: Callable[[R], float]) -> dict[str, R]:
    """Return for each sampler the row of lowest score among those without diverged chains."""
    best: dict[str, R] = {}
    for row in rows:
        if not row.diverged and (row.sampler not in best or score(row) < score(best[row.sampler])):
            best[row.sampler] = row
    return best


def slug(name: str) -> str:
    """Convert a name to lower-case ASCII words joined by hyphens, for file names."""
    return re.sub(r"[^a-z0-9.]+", "-", name.replace("γ⁻¹I", "scaled identity").lower()).strip("-")


def sweep_tasks(
    contenders: Iterable[Contender],
    settings: Any,
    measure: Callable[[Contender, float, Any], Row],
    row: Callable[..., Row],
    *,
    prefix: str = "",
    also: tuple[float, ...] = (),
    seconds: Callable[[Contender], float] = lambda contender: 1.0,
) -> Iterator[Task]:
    """One task per contender and step size, `also` for all contenders; `measure(contender, step_size, settings)`."""
    shared = {key: value for key, value in asdict(settings).items() if key != "every_step_size"}
    for contender in contenders:
        label = slug(" ".join([contender.name, *(f"{k}{v:g}" for k, v in contender.options.items())]))
        for step_size in dict.fromkeys((*contender.grid(settings.every_step_size), *also)):

            def run(_: Path, contender: Contender = contender, step_size: float = step_size) -> Row:
                return measure(contender, step_size, settings)

            known = {"sampler": contender.name, "options": dict(contender.options), "step_size": step_size, **shared}
            yield Task(f"{prefix}{label}-step{step_size:.3g}", known, run, row, seconds(contender), group=label)


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
    """Call `sample` without a progress bar: None if every chain diverged, KeyboardInterrupt if it was interrupted."""
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
"""The preconditioner G of a chain's state as a matrix; compiled once for all chains of a sampler."""


def mean_and_se(values: np.ndarray) -> tuple[float, float]:
    """Mean over seeds and its standard error (0 for a single seed)."""
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
    return float(np.mean(values)), float(error)


def slowest_time(draws: np.ndarray, interleaved: int = 1) -> tuple[float, float]:
    """Autocorrelation time in steps of the slowest parameter of (chain, draw, d), and its standard error over chains.

    The number of draws over the mean of each chain's own ESS; `interleaved` is the number of chains in one (HAMCMC).
    """
    count = draws.shape[1] // interleaved * interleaved
    sizes = [mean_and_se(column) for column in ess_by_chain(draws, interleaved).T]
    return max((count / size, count / size**2 * se) for size, se in sizes)


def condition(g: jax.Array | np.ndarray, hessian: np.ndarray) -> float:
    """cond(G H): 1 for the ideal preconditioner."""
    values = np.linalg.eigvals(np.asarray(g, float) @ hessian).real
    return float(values.max() / values.min())


def covariance_error(draws: np.ndarray, hessian: np.ndarray) -> float:
    """The covariance error of the sample covariance."""
    return covariance_distance(np.cov(draws.T), hessian)


def covariance_distance(covariance: np.ndarray, hessian: np.ndarray) -> float:
    """Mean absolute log eigenvalue of a covariance whitened with the Hessian: 0 if exact."""
    factor = np.linalg.cholesky(hessian).T
    return float(np.abs(np.log(np.linalg.eigvalsh(factor @ covariance @ factor.T))).mean())
