"""Stochastic approximation of G with G itself stored, for up to a few thousand parameters.

G is kept as its factor S. In coordinates whitened by S the running base is the identity, so a window of M pairs
changes G by a matrix of rank 2M, and S follows in O(M d²) without solving or factoring anything of size d.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ridgewalk._control_flow import every
from ridgewalk._pytree import pytree_dataclass
from ridgewalk._types import Adaptation, GradientAt, Scalar, Unravel, Vector
from ridgewalk.precondition.base import Lesson, Settling, Transition
from ridgewalk.precondition.compact import bfgs_core, mixed_root
from ridgewalk.precondition.pairs import check_pairs, powell, usable
from ridgewalk.precondition.restrict import restrict_root
from ridgewalk.precondition.spectrum import check_first_curvature, check_growth, first_scale
from ridgewalk.schedules import DEFAULT_ADAPTATION, adaptation_weight

MOST_BYTES = 4 * 2**30
"""What a stored factor may take."""


class DenseOperator(NamedTuple):
    """G = S Sᵀ with S stored, and the pairs collected so far in whitened coordinates: a = S⁻¹ s, b = Sᵀ y."""

    root: jax.Array
    steps: jax.Array
    changes: jax.Array

    def multiply(self, vector: Vector) -> Vector:
        """G v."""
        return self.root @ (vector @ self.root)

    def factor(self, noise: Vector) -> Vector:
        """S z."""
        return self.root @ noise

    def factor_transpose(self, vector: Vector) -> Vector:
        """Sᵀ v."""
        return vector @ self.root

    def displace(self, covector: Vector, noise: Vector) -> Vector:
        """G v + S z = S (Sᵀ v + z)."""
        return self.root @ (covector @ self.root + noise)


def check_fits(dimension: int, itemsize: int = 4) -> None:
    """Raise where a dense factor of d parameters would not fit."""
    need = dimension * dimension * itemsize
    if need > MOST_BYTES:
        raise ValueError(
            f"form: 'dense' stores a {dimension} x {dimension} matrix, {need:,} bytes, above the limit of "
            f"{MOST_BYTES:,}; use form='low_rank' (or 'limited') for {dimension:,} parameters"
        )


@pytree_dataclass
class Dense(Settling):
    """G_k = (1−ω_k) G_{k−1} + ω_k G̃_k (eq. 13), G̃_k the BFGS updates of G_{k−1} itself by M pairs.

    The fixed-point equation of the paper lets the map depend on G; starting the recursion from the running G
    makes the exact H⁻¹ the fixed point on a Gaussian target, where γ⁻¹ I does not.
    An average is taken each time M new pairs have come, not after every pair: each pair then enters one G̃ instead
    of M overlapping ones, which costs less and, measured at equal steps, converges further.
    G̃ exceeds G_{k−1} in no direction by more than the factor `growth`: where a posterior is flat or bends the wrong
    way, damped BFGS alone grows until the chain diverges (seen on a banana, where with growth 2 to 3 it
    does not). On a Gaussian target the limit is idle once G has settled.
    `first_curvature` sets G₀ = I / first_curvature; None asks for the largest curvature at the start.
    """

    memory: int = 8
    adaptation: Adaptation = DEFAULT_ADAPTATION
    curvature_every: int = 1
    damping: float = 0.2
    growth: float = 3.0
    first_curvature: float | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        check_pairs(self.memory, self.damping, self.curvature_every)
        check_first_curvature(self.first_curvature)
        check_growth(self.growth)

    def specialise(self, dimension: int, unravel: Unravel) -> "Dense":
        """Itself, if the factor fits."""
        check_fits(dimension)
        return self

    def init(self, position: Vector, gradient_at: GradientAt) -> DenseOperator:
        """G₀ = I / λ_max."""
        curvature = first_scale(self.first_curvature, gradient_at, position)
        empty = jnp.zeros((self.memory, position.shape[0]), position.dtype)
        return DenseOperator(jnp.eye(position.shape[0], dtype=position.dtype) / jnp.sqrt(curvature), empty, empty)

    @property
    def interval(self) -> int:
        """Every `curvature_every`-th step gives a pair."""
        return self.curvature_every

    def update(self, operator: DenseOperator, transition: Transition) -> tuple[DenseOperator, Lesson]:
        """Collect the pair of this step; with the last of M, average."""
        a = operator.factor_transpose(transition.covector) + transition.noise
        b = operator.factor_transpose(transition.gradient_at(transition.after) - transition.gradient)
        pair = jnp.stack([a, b])
        (aa, ab), (_, bb) = pair @ pair.T
        good = usable(aa, ab, bb)
        pairs = transition.step // self.curvature_every
        row = (pairs - 1) % self.memory
        steps = operator.steps.at[row].set(jnp.where(good, a, 0))
        changes = operator.changes.at[row].set(jnp.where(good, b, 0))
        root = every(self.memory, pairs, self._average, operator.root, (steps, changes, pairs))
        return DenseOperator(root, steps, changes), Lesson(powell(aa, ab, self.damping), ~good)

    def restrict(
        self, operator: DenseOperator, mask: Vector, position: Vector, gradient_at: GradientAt
    ) -> DenseOperator:
        """G⁻¹ restricted; pairs in flight are dropped, as they were made with pruned coordinates moving."""
        nothing = jnp.zeros_like(operator.steps)
        return DenseOperator(restrict_root(operator.root, mask), nothing, nothing)

    def _average(self, root: jax.Array, window: tuple[jax.Array, jax.Array, Scalar]) -> jax.Array:
        """S of (1−ω) G + ω G̃ = S (I + ω Pᵀ Q P) Sᵀ, the rows of P being the whitened pairs."""
        steps, changes, pairs = window
        omega = adaptation_weight(self.adaptation, pairs // self.memory, root.dtype)
        vectors = jnp.concatenate([steps, changes])
        gram = vectors @ vectors.T
        core = jnp.zeros_like(gram)
        for pair in range(self.memory):
            core = bfgs_core(gram, core, jnp.ones((), gram.dtype), pair, self.memory + pair, self.damping)
        # G is S Sᵀ whatever S is, so that rounding in the root is no mismatch of the two.
        change = mixed_root(gram, core, omega, self.growth, quick=True)
        return root + ((root @ vectors.T) @ change) @ vectors
