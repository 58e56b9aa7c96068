"""The dense form with the paper's base γ⁻¹ I: for comparison with the running base."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ridgewalk._pytree import pytree_dataclass
from ridgewalk._types import Adaptation, GradientAt, Unravel, Vector
from ridgewalk.precondition.base import Lesson, Settling, Transition
from ridgewalk.precondition.dense import check_fits
from ridgewalk.precondition.factorise import cholesky
from ridgewalk.precondition.fixed import MatrixOperator
from ridgewalk.precondition.lbfgs import Window, empty_window, restrict_window
from ridgewalk.precondition.pairs import check_pairs, observe
from ridgewalk.precondition.restrict import restrict_root
from ridgewalk.precondition.spectrum import check_first_curvature, first_scale
from ridgewalk.schedules import DEFAULT_ADAPTATION, adaptation_weight


class DenseScaledOperator(NamedTuple):
    """G stored whole with its Cholesky factor, and the window of pairs."""

    matrix: jax.Array
    cholesky: MatrixOperator
    window: Window

    def multiply(self, vector: Vector) -> Vector:
        """G v."""
        return self.cholesky.multiply(vector)

    def factor(self, noise: Vector) -> Vector:
        """S z."""
        return self.cholesky.factor(noise)

    def factor_transpose(self, vector: Vector) -> Vector:
        """Sᵀ v."""
        return self.cholesky.factor_transpose(vector)

    def displace(self, covector: Vector, noise: Vector) -> Vector:
        """G v + S z."""
        return self.cholesky.displace(covector, noise)


@pytree_dataclass
class DenseScaled(Settling):
    """G_k = (1−ω_k) G_{k−1} + ω_k G̃_k (eq. 13) with G̃_k from γ⁻¹ I and the newest M pairs: O(d³) a step."""

    memory: int = 4
    adaptation: Adaptation = DEFAULT_ADAPTATION
    curvature_every: int = 1
    damping: float = 0.2
    curvature_floor: float = 1e-8
    first_curvature: float | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        check_pairs(self.memory, self.damping, self.curvature_every)
        check_first_curvature(self.first_curvature)

    def specialise(self, dimension: int, unravel: Unravel) -> "DenseScaled":
        """Itself, if the matrices fit."""
        check_fits(dimension)
        return self

    def init(self, position: Vector, gradient_at: GradientAt) -> DenseScaledOperator:
        """G₀ = I / λ_max."""
        curvature = first_scale(self.first_curvature, gradient_at, position)
        eye = jnp.eye(position.shape[0], dtype=position.dtype)
        window = empty_window(self.memory, curvature, position, self.damping)
        return DenseScaledOperator(eye / curvature, MatrixOperator(eye / jnp.sqrt(curvature)), window)

    @property
    def interval(self) -> int:
        """Every `curvature_every`-th step gives a pair."""
        return self.curvature_every

    def update(self, operator: DenseScaledOperator, transition: Transition) -> tuple[DenseScaledOperator, Lesson]:
        """One step of stochastic approximation."""
        window, lesson = operator.window.push(observe(transition), self.curvature_floor)
        omega = adaptation_weight(self.adaptation, transition.step // self.curvature_every, operator.matrix.dtype)
        newest = jax.vmap(window.multiply)(jnp.eye(operator.matrix.shape[0], dtype=operator.matrix.dtype))
        matrix = (1 - omega) * operator.matrix + omega * (newest + newest.T) / 2
        return DenseScaledOperator(matrix, MatrixOperator(cholesky(matrix)), window), lesson

    def restrict(
        self, operator: DenseScaledOperator, mask: Vector, position: Vector, gradient_at: GradientAt
    ) -> DenseScaledOperator:
        """G⁻¹ restricted, and the pairs seen anew; the window then leaves pruned coordinates apart from the others."""
        root = restrict_root(operator.cholesky.root, mask)
        window = restrict_window(operator.window, mask, position, gradient_at, self.curvature_floor)
        return DenseScaledOperator(root @ root.T, MatrixOperator(root), window)
