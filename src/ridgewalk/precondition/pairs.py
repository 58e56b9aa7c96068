"""Curvature pairs: how they are judged, damped and scaled."""

from typing import NamedTuple

import jax.numpy as jnp

from ridgewalk.precondition.base import Transition
from ridgewalk.types import Scalar, Vector


class Pair(NamedTuple):
    """s = θ' − θ and y = ∇Ũ(θ'; batch) − ∇Ũ(θ; batch), both gradients on the same batch."""

    s: Vector
    y: Vector


def observe(transition: Transition) -> Pair:
    """The pair of one step; it costs one gradient."""
    y = transition.gradient_at(transition.after) - transition.gradient
    return Pair(transition.after - transition.before, y)


def usable(ss: Scalar, sy: Scalar, yy: Scalar) -> Scalar:
    """Whether a pair with these inner products is finite and the chain has moved."""
    return jnp.isfinite(sy) & jnp.isfinite(yy) & jnp.isfinite(ss) & (ss > 0)


def powell(sbs: Scalar, sy: Scalar, r: Scalar | float) -> Scalar:
    """θ_d of Powell's damping: ȳ = θ_d y + (1−θ_d) B₀s then has `sᵀȳ ≥ r sᵀB₀s` (paper, the line after eq. 4).

    `sbs` is sᵀB₀s and `sy` is sᵀy.
    """
    low = sy < r * sbs
    return jnp.where(low, (1 - r) * sbs / jnp.where(low, sbs - sy, 1), 1)


def base_curvature(ss: Scalar, sy: Scalar, yy: Scalar, r: Scalar | float, floor: float) -> Scalar:
    """γ = max(yᵀy / sᵀy, δ) (paper, below eq. 5, with y for ȳ), the cosine of s and y taken as at least r.

    Without that, a pair with s and y almost at right angles makes G vanish, and a chain that stands still in a place
    of negative curvature, where the paper keeps γ as it was, never moves again.
    """
    along = jnp.maximum(sy, r * jnp.sqrt(ss * yy))
    return jnp.maximum(yy * inverse(along), floor)


def inverse(x: Scalar) -> Scalar:
    """1/x, and 0 for x = 0, which is how an empty slot of a window drops out of a recursion."""
    return jnp.where(x == 0, 0, 1 / jnp.where(x == 0, 1, x))


def check_pairs(memory: int, damping: float, curvature_every: int) -> None:
    """Raise on settings for which no pair could be kept."""
    if memory < 1:
        raise ValueError(f"memory: {memory} pairs is not at least 1; the paper uses 1 and 2, the default is 4")
    if not 0 < damping < 1:
        raise ValueError(f"damping: {damping} is not in (0, 1); 0.2 is Powell's choice")
    if curvature_every < 1:
        raise ValueError(f"curvature_every: {curvature_every} is not a positive number of steps; use 1 for every step")
