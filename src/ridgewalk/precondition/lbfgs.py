"""Online damped L-BFGS: a window of curvature pairs as an inverse Hessian (paper, Algorithm 1, corrected).

The paper's Algorithm 1 is printed with slips; what stands here is checked against the dense recursion.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ridgewalk._pytree import pytree_dataclass
from ridgewalk._types import GradientAt, Scalar, Unravel, Vector
from ridgewalk.precondition.base import Lesson, Settling, Transition
from ridgewalk.precondition.pairs import Pair, base_curvature, check_pairs, inverse, observe, powell, usable
from ridgewalk.precondition.spectrum import check_first_curvature, first_scale
from ridgewalk.pruning import apply_mask


class Damped(NamedTuple):
    """One pair ready for use: s, ȳ and 1/(sᵀȳ), which is 0 for an empty slot."""

    s: Vector
    y: Vector
    rho: Scalar


class Window(NamedTuple):
    """The newest M pairs as the operator G̃ = B̃⁻¹, with B̃ the BFGS updates of γ I, oldest pair first.

    A ring: pair number n sits in row n mod M, so that a new pair moves no other.
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

    def push(self, pair: Pair, floor: float) -> tuple["Window", Lesson]:
        """The window with one more pair and its γ, or as it was if the pair is unusable."""
        ss, sy, yy = pair.s @ pair.s, pair.s @ pair.y, pair.y @ pair.y
        good = usable(ss, sy, yy)
        row = self.pushed % self.memory
        scale = jnp.where(good, base_curvature(ss, sy, yy, self.damping, floor, self.scale), self.scale)
        s = self.s.at[row].set(jnp.where(good, pair.s, self.s[row]))
        y = self.y.at[row].set(jnp.where(good, pair.y, self.y[row]))
        lesson = Lesson(powell(scale * ss, sy, self.damping), ~good)
        return Window(s, y, scale, self.pushed + good, self.damping), lesson

    def damped(self) -> list[Damped]:
        """The pairs, oldest first, damped against B₀ = γ I."""
        pairs = []
        for age in range(self.memory):
            row = (self.pushed + age) % self.memory
            s, y = self.s[row], self.y[row]
            sbs = self.scale * (s @ s)
            theta = powell(sbs, s @ y, self.damping)
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

    def displace(self, covector: Vector, noise: Vector) -> Vector:
        """G̃ v + S̃ z."""
        return self.multiply(covector) + self.factor(noise)


def empty_window(memory: int, scale: Scalar, position: Vector, damping: float) -> Window:
    """No pairs yet: G̃ = I / γ."""
    zeros = jnp.zeros((memory, position.shape[0]), position.dtype)
    return Window(zeros, zeros, scale, jnp.zeros((), jnp.int32), jnp.asarray(damping, position.dtype))


def restrict_window(old: Window, mask: Vector, position: Vector, gradient_at: GradientAt, floor: float) -> Window:
    """The window's steps without their pruned part, with the change of the gradient along each seen anew.

    Held at zero in pruned coordinates, an old pair would not fit: y = H s has a share of the pruned part of s.
    """
    rows = (old.pushed + jnp.arange(old.memory)) % old.memory
    steps, here = apply_mask(old.s[rows], mask), gradient_at(position)
    changes = jax.lax.map(lambda s: gradient_at(position + s) - here, steps)
    window = Window(jnp.zeros_like(old.s), jnp.zeros_like(old.y), old.scale, jnp.zeros_like(old.pushed), old.damping)
    for age in range(old.memory):
        window, _ = window.push(Pair(steps[age], changes[age]), floor)
    return window


@pytree_dataclass
class LBFGS(Settling):
    """G = G̃ of the newest pairs alone, without averaging: what HAMCMC uses.

    `first_curvature` is γ before the first pair; None asks for the largest curvature at the start.
    """

    memory: int = 4
    damping: float = 0.2
    curvature_every: int = 1
    curvature_floor: float = 1e-8
    first_curvature: float | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        check_pairs(self.memory, self.damping, self.curvature_every)
        check_first_curvature(self.first_curvature)

    def specialise(self, dimension: int, unravel: Unravel) -> "LBFGS":
        """Itself."""
        return self

    def init(self, position: Vector, gradient_at: GradientAt) -> Window:
        """An empty window."""
        scale = first_scale(self.first_curvature, gradient_at, position)
        return empty_window(self.memory, scale, position, self.damping)

    @property
    def interval(self) -> int:
        """Every `curvature_every`-th step gives a pair."""
        return self.curvature_every

    def update(self, operator: Window, transition: Transition) -> tuple[Window, Lesson]:
        """Take in the pair of this step."""
        return operator.push(observe(transition), self.curvature_floor)

    def restrict(self, operator: Window, mask: Vector, position: Vector, gradient_at: GradientAt) -> Window:
        """The pairs seen anew; it costs a gradient each."""
        return restrict_window(operator, mask, position, gradient_at, self.curvature_floor)
