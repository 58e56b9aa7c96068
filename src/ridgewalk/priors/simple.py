"""Priors without hyper-parameters to learn: independent and identical for all parameters."""

import math

import jax.numpy as jnp

from ridgewalk._pytree import pytree_dataclass
from ridgewalk._types import PyTree, Scalar
from ridgewalk._validation import check_positive
from ridgewalk.priors.base import absolute, total


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
