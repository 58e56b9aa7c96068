"""Temperatures that the draws show, each with its Monte Carlo standard error; T of the sampler where all is well."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from ridgewalk._types import Scalar, Vector
from ridgewalk.diagnostics.draws import Draws
from ridgewalk.diagnostics.gradients_at import map_gradients
from ridgewalk.diagnostics.mixing import standard_error
from ridgewalk.diagnostics.select import dimension, living_info, mean_position, thinned_positions, thinning
from ridgewalk.diagnostics.turns import separated
from ridgewalk.dynamics.hamiltonian import Hamiltonian
from ridgewalk.dynamics.thermostat import Thermostat
from ridgewalk.ravel import layout_of


class Measured(NamedTuple):
    """A number and its standard error."""

    value: float
    error: float

    def __str__(self) -> str:
        """`1.02 ± 0.03`."""
        return f"{self.value:.3g} ± {self.error:.2g}"


def measured(values: np.ndarray) -> Measured:
    """The mean of (chain, draw) with its Monte Carlo error; NaN where there are no draws."""
    return Measured(float(values.mean()) if values.size else float("nan"), standard_error(values))


def configurational_series(result: Draws, max_draws: int, examples: int | None) -> np.ndarray:
    """(θ − θ̄)·∇U(θ) / d of about `max_draws` draws, (chain, draw); chains that take turns are chains of their own."""
    positions = thinned_positions(result, max_draws, "the configurational temperature")
    centre = mean_position(result)
    middle = layout_of(centre).ravel(centre)
    d, pruned = dimension(result), result.sampler.pruning is not None

    def virial(position: Vector, gradient: Vector) -> Scalar:
        if not pruned:
            return jnp.vdot(position - middle, gradient) / d
        moves = position != 0  # the mean over chains may have other zeros; any fixed centre has the same expectation
        return jnp.vdot(jnp.where(moves, position - middle, 0), gradient) / jnp.sum(moves)

    return separated(result, map_gradients(result, positions, virial, examples), thinning(result, max_draws))


def configurational_temperature(result: Draws, *, max_draws: int = 1000, examples: int | None = None) -> Measured:
    """⟨(θ − θ̄)·∇U(θ)⟩ / d, which is T for draws of p(θ)^{1/T}, whatever its shape (the virial theorem).

    Steps that are too long and gradient noise raise it; chains that have not spread out lower it. Gradients are over
    all data, or with `examples` over so many fresh ones for each draw, which leaves the mean unbiased.
    """
    return measured(configurational_series(result, max_draws, examples))


def has_momentum(result: Draws) -> bool:
    """Whether the dynamics have a momentum, and so a kinetic temperature."""
    return isinstance(result.sampler.dynamics, Hamiltonian | Thermostat)


def kinetic_temperature(result: Draws) -> Measured:
    """⟨|w|²⟩ (1 − α/2) / d of the white momentum w with friction α, which is T when positions have it."""
    if not has_momentum(result):
        raise ValueError(
            f"sampler: {type(result.sampler.dynamics).__name__} dynamics have no momentum; "
            "use configurational_temperature"
        )
    return measured(living_info(result, "temperature"))
