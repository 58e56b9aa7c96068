"""Curvature pairs: how they are judged, damped and scaled."""

from typing import NamedTuple

import jax.numpy as jnp

from ridgewalk._types import Scalar, Vector
from ridgewalk.precondition.base import Transition


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


STEEPEST_FALL = 10.0
"""By how much γ may fall from one pair to the next."""


def base_curvature(
    ss: Scalar, sy: Scalar, yy: Scalar, r: Scalar | float, floor: Scalar | float, previous: Scalar
) -> Scalar:
    """γ = max(yᵀy / sᵀy, δ) (paper, below eq. 5, with y for ȳ), kept from extremes.

    The cosine of s and y counts as at least r: a pair almost at right angles would make G vanish, and a chain that
    stands still in a place of negative curvature, where the paper keeps γ as it was, would never move again. And γ
    falls by at most a factor 10 a pair: where the gradient is constant y is 0, and G would leap to 1/δ.
    """
    along = jnp.maximum(sy, r * jnp.sqrt(ss * yy))
    seen = jnp.where(yy > 0, yy * inverse(along), previous)
    return jnp.maximum(jnp.maximum(seen, previous / STEEPEST_FALL), floor)


def inverse(x: Scalar) -> Scalar:
    """1/x, and 0 for x = 0, which is how an empty slot of a window drops out of a recursion."""
    return jnp.where(x == 0, 0, 1 / jnp.where(x == 0, 1, x))


def check_pairs(memory: int, damping: float, curvature_every: int) -> None:
    """Raise on settings for which no pair could be kept."""
    if memory < 1:
        raise ValueError(f"memory: {memory} pairs is not at least 1; the paper uses 1 and 2")
    if not 0 < damping < 1:
        raise ValueError(f"damping: {damping} is not in (0, 1); 0.2 is Powell's choice")
    if curvature_every < 1:
        raise ValueError(f"curvature_every: {curvature_every} is not a positive number of steps; use 1 for every step")
