"""Priors: a function of the position, or an adaptive prior whose hyper-parameters the chain learns."""

import functools
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from ridgewalk._types import PyTree, Scalar


class Residuals(NamedTuple):
    """Residual statistics for a noise scale that the likelihood shares with the prior."""

    squares: Scalar
    """Σ r² over all data, or its estimate (N/n) Σ r² from a batch."""
    number: int
    """The number of residuals of all data."""


class AdaptivePrior(ABC):
    """log p(θ | η) whose hyper-parameters η are learnt by each chain; the prior's state holds η and its statistics.

    The state is part of each chain's state (`State.prior`), so adaptive priors compose with every sampler and every
    gradient estimator, and are checkpointed.
    """

    @abstractmethod
    def init(self, position: PyTree, residuals: Residuals | None) -> Any:
        """The state before the first step; `residuals` only where the likelihood shares the prior's noise."""

    @abstractmethod
    def log_density(self, state: Any, position: PyTree) -> Scalar:
        """log p(θ | η) at the state's η."""

    @abstractmethod
    def update(
        self, state: Any, position: PyTree, residuals: Residuals | None, step: Scalar, kept: PyTree | None = None
    ) -> Any:
        """The state after step number `step` (from 1).

        `position` is where the step started, independent of the step's batch, which `residuals` come from. In a pruned
        chain `kept` has the structure of the position, ones for kept parameters and zeros for pruned ones, which must
        not enter the statistics.
        """

    @property
    @abstractmethod
    def has_noise(self) -> bool:
        """Whether there is one σ that a likelihood can share."""

    @abstractmethod
    def noise(self, state: Any) -> Scalar:
        """That σ."""

    @abstractmethod
    def inclusion_probabilities(self, state: Any, position: PyTree) -> PyTree:
        """P(γ = 1) of every parameter as learnt so far, in the position's structure."""


Prior: TypeAlias = Callable[[PyTree], Any] | AdaptivePrior


def total(position: PyTree, log_density: Callable[[jax.Array], jax.Array]) -> Scalar:
    """Σ of an elementwise log density over all parameters, in the position's dtype."""
    parts = [jnp.sum(log_density(leaf)) for leaf in jax.tree.leaves(position)]
    return functools.reduce(operator.add, parts)


def absolute(x: jax.Array) -> jax.Array:
    """|x| with gradient 0 at 0, where `jnp.abs` has 1, which would push a parameter at 0 to one side."""
    return x * jax.lax.stop_gradient(jnp.sign(x))
