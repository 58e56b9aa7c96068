"""What a run gives back."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._types import PyTree
from ridgewalk.diagnostics import plots
from ridgewalk.diagnostics.check import check
from ridgewalk.diagnostics.inference_data import to_arviz
from ridgewalk.diagnostics.report import CheckReport
from ridgewalk.gradients import GradientEstimator
from ridgewalk.kernel import Info, Sampler, State
from ridgewalk.priors.base import AdaptivePrior
from ridgewalk.run.health import ChainStatus
from ridgewalk.run.recording import Moments
from ridgewalk.target import Posterior

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Result:
    """Draws and final states of all chains.

    `positions`, `collected` and `info` have leading axes (chain, draw) and lie in the host's memory, so that the device
    is free for the chains; `step_sizes` (draw,) holds ε at each draw.
    `positions` is None where only moments or collected values were kept, and arrays on disk (zarr) where they were
    streamed to a store. A chain that diverged stays in its place with NaN from then on; averages and summaries leave
    it out.
    """

    positions: PyTree
    final_states: tuple[State, ...]
    info: Info
    step_sizes: np.ndarray
    sampler: Sampler
    estimator: GradientEstimator
    batch_size: int | None
    status: tuple[ChainStatus, ...]
    steps: int
    """Steps made: fewer than asked for where the run was interrupted."""
    collected: Any = None
    moments: Moments | None = None
    store: Path | None = None
    burn_in: int = 0
    thin: int = 1

    @property
    def chains(self) -> int:
        """How many chains were run."""
        return len(self.final_states)

    @property
    def draws(self) -> int:
        """How many draws were kept of each chain."""
        return int(self.step_sizes.shape[0])

    @property
    def draw_steps(self) -> np.ndarray:
        """The step, counted from 1, that each draw was kept after."""
        return self.burn_in + self.thin * np.arange(1, self.draws + 1)

    @property
    def alive(self) -> np.ndarray:
        """Which chains did not diverge."""
        return np.array([status.alive for status in self.status])

    @property
    def inclusion_probabilities(self) -> PyTree:
        """P(γ = 1) of every parameter as each chain has learnt it in the end: leading axis chain, then as the position.

        Parameters that the prior never leaves out have 1.
        """
        target = self.estimator.target
        prior = target.log_prior if isinstance(target, Posterior) else None
        if not isinstance(prior, AdaptivePrior) or self.final_states[0].prior is None:
            raise ValueError(
                "inclusion_probabilities: the chains learnt none; use log_prior=spike_and_slab(), and do not freeze it"
            )
        each = [prior.inclusion_probabilities(state.prior, state.position) for state in self.final_states]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *each)

    def kept_positions(self) -> PyTree:
        """Positions of the chains that did not diverge, in memory; an error where none were kept."""
        if self.positions is None:
            raise ValueError("positions: this run kept none; use keep='draws' or store=path")
        alive = self.alive

        def load(leaf: Any) -> jax.Array:
            if alive.all():
                return jnp.asarray(leaf[:, : self.draws])
            return jnp.asarray(np.asarray(leaf[:, : self.draws])[alive])

        return jax.tree.map(load, self.positions)

    def summary(self, *, max_parameters: int = 1000) -> "pd.DataFrame":
        """A table of means, standard deviations, their errors, effective draws and R̂ (see `diagnostics.summary`)."""
        from ridgewalk.diagnostics.summary import summary  # noqa: PLC0415  (pandas is slow to import)

        return summary(self, max_parameters=max_parameters)

    def check(self) -> CheckReport:
        """What is wrong with the run, in plain words, and what to try; nothing where it is healthy."""
        return check(self)

    def to_arviz(self, *, log_likelihood: bool = False, observed_data: bool = False) -> Any:
        """An ArviZ InferenceData, on request with data and pointwise log likelihood (for `az.loo`, `az.waic`)."""
        return to_arviz(self, log_likelihood=log_likelihood, observed_data=observed_data)

    def plot_trace(self, parameters: Sequence[str] | None = None, *, max_parameters: int = 8) -> Any:
        """Marginals, and draws over time. `parameters` are names as in the summary, or whole leaves."""
        return plots.plot_trace(self, parameters, max_parameters=max_parameters)

    def plot_autocorrelation(
        self, parameters: Sequence[str] | None = None, *, max_parameters: int = 8, max_lag: int | None = None
    ) -> Any:
        """Autocorrelation of the draws."""
        return plots.plot_autocorrelation(self, parameters, max_parameters=max_parameters, max_lag=max_lag)

    def plot_pairs(self, parameters: Sequence[str] | None = None, *, max_parameters: int = 5) -> Any:
        """Scatter of every two parameters."""
        return plots.plot_pairs(self, parameters, max_parameters=max_parameters)

    def plot_posterior(self, parameters: Sequence[str] | None = None, *, max_parameters: int = 8) -> Any:
        """Marginal densities with mean and 94 % interval."""
        return plots.plot_posterior(self, parameters, max_parameters=max_parameters)

    def plot_steps(self) -> Any:
        """Potential, gradient norm and temperature over the steps."""
        return plots.plot_steps(self)

    def __repr__(self) -> str:
        """A line, not a page of numbers."""
        d = sum(int(np.size(leaf)) for leaf in jax.tree.leaves(self.final_states[0].position))
        dead = self.chains - int(self.alive.sum())
        note = f", {dead} diverged" if dead else ""
        return f"Result({self.chains} chains x {self.draws} draws of {d} parameters{note})"
