"""What a run gives back."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk.gradients import GradientEstimator
from ridgewalk.kernel import Info, Sampler, State
from ridgewalk.run.health import ChainStatus
from ridgewalk.run.recording import Moments
from ridgewalk.types import PyTree


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

    @property
    def chains(self) -> int:
        """How many chains were run."""
        return len(self.final_states)

    @property
    def draws(self) -> int:
        """How many draws were kept of each chain."""
        return int(self.step_sizes.shape[0])

    @property
    def alive(self) -> np.ndarray:
        """Which chains did not diverge."""
        return np.array([status.alive for status in self.status])

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

    def __repr__(self) -> str:
        """A line, not a page of numbers."""
        d = sum(int(np.size(leaf)) for leaf in jax.tree.leaves(self.final_states[0].position))
        dead = self.chains - int(self.alive.sum())
        note = f", {dead} diverged" if dead else ""
        return f"Result({self.chains} chains x {self.draws} draws of {d} parameters{note})"
