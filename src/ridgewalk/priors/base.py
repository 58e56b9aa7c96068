"""What a prior is: a function of the position, or one whose hyper-parameters the chain learns."""

import functools
import math
import numbers
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from ridgewalk._types import PyTree, Scalar


class Residuals(NamedTuple):
    """What the data say of a noise that the likelihood shares with the prior."""

    squares: Scalar
    """Σ r² over all data, or its estimate (N/n) Σ r² from a batch."""
    number: int
    """How many residuals all the data have."""


class AdaptivePrior(ABC):
    """log p(θ | η) whose hyper-parameters η follow the chain; η and what it is learnt from are the prior's state.

    The state travels with each chain (`State.prior`), so adaptive priors compose with every sampler and every gradient
    estimator, and are checkpointed.
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

        `position` is where the step left from: the step's batch, which `residuals` come from, had no part in it. In a
        pruned chain `kept`, like the position, is one where a parameter is kept, and zero where it is pruned: nothing
        is to be learnt from the zeros that stand there.
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
    """|x| with slope 0 at 0, where JAX's own has 1: a parameter at 0 must not be pushed to one side."""
    return x * jax.lax.stop_gradient(jnp.sign(x))


def check_positive(**values: float) -> None:
    """Raise where a setting is not a positive finite number."""
    for name, value in values.items():
        if not _is_positive(value):
            raise ValueError(f"{name}: {value!r} is not a positive finite number; try 1.0")


def _is_positive(value: Any) -> bool:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and bool(value > 0)
