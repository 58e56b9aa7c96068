"""What a run gives back."""

from dataclasses import dataclass

import jax
import numpy as np

from ridgewalk.kernel import Info, Sampler, State
from ridgewalk.types import PyTree


@dataclass(frozen=True)
class Result:
    """Draws and final states of all chains.

    `positions` and `info` have leading axes (chain, draw); `step_sizes` (draw,) holds ε at each draw.
    """

    positions: PyTree
    final_states: tuple[State, ...]
    info: Info
    step_sizes: np.ndarray
    sampler: Sampler

    @property
    def chains(self) -> int:
        """How many chains were run."""
        return len(self.final_states)

    @property
    def draws(self) -> int:
        """How many draws were kept of each chain."""
        return int(self.step_sizes.shape[0])

    def __repr__(self) -> str:
        """A line, not a page of numbers."""
        d = sum(int(np.prod(leaf.shape[2:])) for leaf in jax.tree.leaves(self.positions))
        return f"Result({self.chains} chains x {self.draws} draws of {d} parameters)"
