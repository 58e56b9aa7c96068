"""Online damped L-BFGS: a window of curvature pairs as an inverse Hessian (paper, Algorithm 1, corrected).

The paper's Algorithm 1 is printed with errors; this implementation is tested against the dense recursion.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ridgewalk._pytree import apply_mask, pytree_dataclass
from ridgewalk._types import GradientAt, Scalar, Vector
from ridgewalk.preconditioners._curvature import Pair, PairSettings, initial_curvature, is_usable, measure_pair
from ridgewalk.preconditioners._linalg import inverse, powell_damping
from ridgewalk.preconditioners.base import Transition, UpdateInfo

LARGEST_DECREASE = 10.0
"""The largest factor by which γ may decrease from one pair to the next."""


def base_curvature(
    ss: Scalar, sy: Scalar, yy: Scalar, r: Scalar | float, floor: Scalar | float, previous: Scalar
) -> Scalar:
    """γ = max(yᵀy / sᵀy, δ) (paper, below eq. 5, with y for ȳ), bounded from both sides.

    The cosine of s and y counts as at least r: a nearly orthogonal pair would make G vanish, and a chain at a point of
    negative curvature, where the paper leaves γ unchanged, would never move again. γ decreases by at most a factor 10
    per pair: with a constant gradient y is 0, and G would jump to 1/δ.
    """
    along = jnp.maximum(sy, r * jnp.sqrt(ss * yy))
    measured = jnp.where(yy > 0, yy * inverse(along), previous)
    return jnp.maximum(jnp.maximum(measured, previous / LARGEST_DECREASE), floor)


class Damped(NamedTuple):
    """A damped pair: s, ȳ and 1/(sᵀȳ), which is 0 for an empty slot."""

    s: Vector
    y: Vector
    rho: Scalar


class Window(NamedTuple):
    """The newest M pairs as the operator G̃ = B̃⁻¹, with B̃ the BFGS updates of γ I, oldest pair first.

    A ring: pair number n sits in row n mod M, so a new pair moves no other.
    """

    s: jax.Array
    y: jax.Array
    scale: Scalar
    pushed: Scalar
    damping: Scalar

    @property
    def memory(self) -> int:
        """M."""
        return int(self.s.shape[0])

    def push(self, pair: Pair, floor: float) -> tuple["Window", UpdateInfo]:
        """The window with one more pair and its γ; unchanged if the pair is not usable."""
        ss, sy, yy = pair.s @ pair.s, pair.s @ pair.y, pair.y @ pair.y
        good = is_usable(ss, sy, yy)
        row = self.pushed % self.memory
        scale = jnp.where(good, base_curvature(ss, sy, yy, self.damping, floor, self.scale), self.scale)
        s = self.s.at[row].set(jnp.where(good, pair.s, self.s[row]))
        y = self.y.at[row].set(jnp.where(good, pair.y, self.y[row]))
        info = UpdateInfo(powell_damping(scale * ss, sy, self.damping), ~good)
        return Window(s, y, scale, self.pushed + good, self.damping), info

    def damped(self) -> list[Damped]:
        """The pairs, oldest first, damped against B₀ = γ I."""
        pairs = []
        for age in range(self.memory):
            row = (self.pushed + age) % self.memory
            s, y = self.s[row], self.y[row]
            sbs = self.scale * (s @ s)
            theta = powell_damping(sbs, s @ y, self.damping)
            y = theta * y + (1 - theta) * self.scale * s
            pairs.append(Damped(s, y, inverse(s @ y)))
        return pairs

    def multiply(self, vector: Vector) -> Vector:
        """G̃ v by the two-loop recursion."""
        pairs, q = self.damped(), vector
        weights = []
        for pair in reversed(pairs):
            weights.append(pair.rho * (pair.s @ q))
            q = q - weights[-1] * pair.y
        q = q / self.scale
        for pair, weight in zip(pairs, reversed(weights), strict=True):
            q = q + (weight - pair.rho * (pair.y @ q)) * pair.s
        return q

    def _reflections(self) -> list[tuple[Vector, Vector]]:
        """s and q of every `S_{i+1} = (I − s qᵀ) S_i`, q = ȳ / sᵀȳ + a / √(sᵀȳ sᵀa), a = B_i s."""
        images: list[tuple[Vector, Vector, Scalar, Scalar]] = []
        result = []
        for s, y, rho in self.damped():
            a = self.scale * s
            for y_old, a_old, rho_old, sigma_old in images:
                a = a + rho_old * (y_old @ s) * y_old - sigma_old * (a_old @ s) * a_old
            sigma = inverse(s @ a)
            images.append((y, a, rho, sigma))
            result.append((s, rho * y + jnp.sqrt(rho * sigma) * a))
        return result

    def factor(self, noise: Vector) -> Vector:
        """S̃ z with S̃ S̃ᵀ = G̃."""
        eta = noise / jnp.sqrt(self.scale)
        for s, q in self._reflections():
            eta = eta - (q @ eta) * s
        return eta

    def factor_transpose(self, vector: Vector) -> Vector:
        """S̃ᵀ v: the same reflections, transposed, newest first."""
        for s, q in reversed(self._reflections()):
            vector = vector - (s @ vector) * q
        return vector / jnp.sqrt(self.scale)

    def drift_plus_noise(self, covector: Vector, noise: Vector) -> Vector:
        """G̃ v + S̃ z."""
        return self.multiply(covector) + self.factor(noise)


def empty_window(memory: int, scale: Scalar, position: Vector, damping: float) -> Window:
    """No pairs yet: G̃ = I / γ."""
    zeros = jnp.zeros((memory, position.shape[0]), position.dtype)
    return Window(zeros, zeros, scale, jnp.zeros((), jnp.int32), jnp.asarray(damping, position.dtype))


def prune_window(old: Window, mask: Vector, position: Vector, gradient_at: GradientAt, floor: float) -> Window:
    """The window's steps without their pruned part, and the change of the gradient along each measured again.

    Masking both vectors of an old pair would not do: y = H s includes the effect of the pruned part of s.
    """
    rows = (old.pushed + jnp.arange(old.memory)) % old.memory
    steps, here = apply_mask(old.s[rows], mask), gradient_at(position)
    changes = jax.lax.map(lambda s: gradient_at(position + s) - here, steps)
    window = Window(jnp.zeros_like(old.s), jnp.zeros_like(old.y), old.scale, jnp.zeros_like(old.pushed), old.damping)
    for age in range(old.memory):
        window, _ = window.push(Pair(steps[age], changes[age]), floor)
    return window


@pytree_dataclass
class LBFGS(PairSettings):
    """G = G̃ of the newest pairs alone, without averaging: what HAMCMC uses; γ is at least `curvature_floor`."""

    memory: int = 4
    curvature_floor: float = 1e-8

    def init(self, position: Vector, gradient_at: GradientAt) -> Window:
        """An empty window."""
        scale = initial_curvature(self.first_curvature, gradient_at, position)
        return empty_window(self.memory, scale, position, self.damping)

    def adapt(self, operator: Window, transition: Transition) -> tuple[Window, UpdateInfo]:
        """The window with the pair of this step."""
        return operator.push(measure_pair(transition), self.curvature_floor)

    def prune(self, operator: Window, mask: Vector, position: Vector, gradient_at: GradientAt) -> Window:
        """The pairs measured again, one gradient each."""
        return prune_window(operator, mask, position, gradient_at, self.curvature_floor)
