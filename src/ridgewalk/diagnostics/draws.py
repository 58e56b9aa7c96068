"""What a diagnostic asks of a run; `ridgewalk.Result` is one."""

from typing import Any, Protocol

import numpy as np

from ridgewalk._types import PyTree
from ridgewalk.gradients import GradientEstimator
from ridgewalk.kernel import Info, Sampler, State


class Draws(Protocol):
    """The draws of some chains, and how they were made."""

    @property
    def positions(self) -> PyTree:
        """Arrays (chain, draw, …), in memory or on disk, of all chains; None where they were not kept."""

    @property
    def moments(self) -> Any:
        """Running `weight`, `mean` and `squares` of all chains; None where draws are in memory."""

    @property
    def info(self) -> Info:
        """What each draw's step showed, (chain, draw)."""

    @property
    def step_sizes(self) -> np.ndarray:
        """ε of each draw."""

    @property
    def draws(self) -> int:
        """How many draws each chain has."""

    @property
    def draw_steps(self) -> np.ndarray:
        """The step, counted from 1, that each draw was kept after."""

    @property
    def steps(self) -> int:
        """Steps made."""

    @property
    def final_states(self) -> tuple[State, ...]:
        """One state per chain."""

    @property
    def sampler(self) -> Sampler:
        """The sampler that made the draws."""

    @property
    def estimator(self) -> GradientEstimator:
        """The target, with its gradient estimator."""

    @property
    def batch_size(self) -> int | None:
        """Examples per step, None for all."""

    @property
    def status(self) -> tuple[Any, ...]:
        """How each chain ended."""

    @property
    def alive(self) -> np.ndarray:
        """Which chains did not diverge."""

    def kept_positions(self) -> PyTree:
        """Positions (chain, draw, …) of the chains that did not diverge."""
