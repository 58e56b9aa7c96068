"""Configurational and kinetic temperature of the draws, with Monte Carlo standard errors."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from ridgewalk._pytree import layout_of
from ridgewalk._types import Scalar, Vector
from ridgewalk.diagnostics.draw_access import alive_info, map_gradients, thinned_positions, thinning
from ridgewalk.diagnostics.mixing import deinterleave_draws, standard_error
from ridgewalk.dynamics.hamiltonian import MomentumDynamics
from ridgewalk.result import Result, posterior_mean


class Estimate(NamedTuple):
    """A Monte Carlo estimate and its standard error."""

    value: float
    error: float

    def __str__(self) -> str:
        """`1.02 ± 0.03`."""
        return f"{self.value:.3g} ± {self.error:.2g}"


def mean_estimate(values: np.ndarray) -> Estimate:
    """The mean of (chain, draw) with its Monte Carlo standard error; NaN without draws."""
    return Estimate(float(values.mean()) if values.size else float("nan"), standard_error(values))


def configurational_series(result: Result, max_draws: int, examples: int | None) -> np.ndarray:
    """(θ − θ̄)·∇U(θ) / d of about `max_draws` draws, (chain, draw); interleaved chains are separated."""
    positions = thinned_positions(result, max_draws, "the configurational temperature")
    centre = posterior_mean(result)
    middle = layout_of(centre).ravel(centre)
    d, pruned = result.dimension, result.sampler.pruning is not None

    def virial(position: Vector, gradient: Vector) -> Scalar:
        if not pruned:
            return jnp.vdot(position - middle, gradient) / d
        moves = position != 0  # the expectation is the same for any fixed centre
        return jnp.vdot(jnp.where(moves, position - middle, 0), gradient) / jnp.sum(moves)

    return deinterleave_draws(result, map_gradients(result, positions, virial, examples), thinning(result, max_draws))


def configurational_temperature(result: Result, *, max_draws: int = 1000, examples: int | None = None) -> Estimate:
    """⟨(θ − θ̄)·∇U(θ)⟩ / d, which equals T for draws from p(θ)^{1/T} of any shape (virial theorem).

    Large steps and gradient noise raise it; chains that have not mixed lower it. Gradients use all data, or with
    `examples` an independent batch of that size for each draw, which leaves the mean unbiased.
    """
    return mean_estimate(configurational_series(result, max_draws, examples))


def has_momentum(result: Result) -> bool:
    """Whether the dynamics have a momentum."""
    return isinstance(result.sampler.dynamics, MomentumDynamics)


def kinetic_temperature(result: Result) -> Estimate:
    """⟨|w|²⟩ (1 − α/2) / d of the white momentum w with friction α, which equals T in the stationary distribution."""
    if not has_momentum(result):
        raise ValueError(
            f"sampler: {type(result.sampler.dynamics).__name__} dynamics have no momentum; "
            "use configurational_temperature"
        )
    return mean_estimate(alive_info(result, "temperature"))
