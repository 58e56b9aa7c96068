"""Priors: the interface of adaptive priors, and the Gaussian, Laplace and Student t priors without hyper-parameters."""

import functools
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from ridgewalk._pytree import pytree_dataclass
from ridgewalk._types import PyTree, Scalar
from ridgewalk._validation import check_positive


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


@pytree_dataclass
class GaussianPrior:
    """θ_j ~ N(0, scale²): log p = Σ_j −θ_j² / (2 scale²) − log(scale √(2π))."""

    scale: float

    def __post_init__(self) -> None:
        """Check the scale."""
        check_positive("scale", self.scale, "try 1.0")

    def __call__(self, position: PyTree) -> Scalar:
        """log p(θ)."""
        constant = math.log(self.scale) + 0.5 * math.log(2 * math.pi)
        return total(position, lambda x: -0.5 * (x / self.scale) ** 2 - constant)


@pytree_dataclass
class LaplacePrior:
    """θ_j ~ Laplace(0, scale): log p = Σ_j −|θ_j| / scale − log(2 scale); its standard deviation is √2 scale."""

    scale: float

    def __post_init__(self) -> None:
        """Check the scale."""
        check_positive("scale", self.scale, "try 1.0")

    def __call__(self, position: PyTree) -> Scalar:
        """log p(θ)."""
        return total(position, lambda x: -absolute(x) / self.scale - math.log(2 * self.scale))


@pytree_dataclass
class StudentTPrior:
    """θ_j / scale ~ t_ν: log p = Σ_j −(ν+1)/2 log(1 + θ_j² / (ν scale²)) + log of the constant."""

    degrees: float
    scale: float

    def __post_init__(self) -> None:
        """Check the settings."""
        check_positive("degrees", self.degrees, "try 4.0")
        check_positive("scale", self.scale, "try 1.0")

    def __call__(self, position: PyTree) -> Scalar:
        """log p(θ)."""
        half = (self.degrees + 1) / 2
        constant = math.lgamma(half) - math.lgamma(self.degrees / 2)
        constant -= 0.5 * math.log(self.degrees * math.pi) + math.log(self.scale)
        return total(position, lambda x: constant - half * jnp.log1p((x / self.scale) ** 2 / self.degrees))


def gaussian_prior(scale: float) -> GaussianPrior:
    """N(0, scale²) on every parameter, for use as `log_prior`."""
    return GaussianPrior(scale)


def laplace_prior(scale: float) -> LaplacePrior:
    """Laplace(0, scale) on every parameter, for use as `log_prior`: zeros at the mode, not in the draws."""
    return LaplacePrior(scale)


def student_t_prior(degrees: float, scale: float) -> StudentTPrior:
    """Student's t with `degrees` degrees of freedom on every parameter, for use as `log_prior`: heavy tails."""
    return StudentTPrior(degrees, scale)
