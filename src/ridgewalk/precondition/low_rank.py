"""Stochastic approximation of the Hessian's largest directions, for networks.

Curvature enters on the Hessian's side, where keeping the largest is the right truncation, by subspace iteration on
minibatch Hessian products.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ridgewalk.precondition.adaptation import DEFAULT_ADAPTATION, Adaptation, weight
from ridgewalk.precondition.base import (
    Departure,
    GradientAt,
    Lesson,
    Preconditioner,
    Transition,
    Unravel,
    every,
    no_lesson,
)
from ridgewalk.precondition.spectrum import check_first_curvature, check_growth, first_scale
from ridgewalk.settings import settings
from ridgewalk.types import Scalar, Vector


class LowRankOperator(NamedTuple):
    """B = μ (I − UᵀU) + Uᵀ Λ U, G = B⁻¹, S = B^{−1/2}, with orthonormal rows U.

    `probes` are the directions that the next sweep of Hessian products will measure.
    """

    bulk: Scalar
    curvatures: jax.Array
    basis: jax.Array
    probes: jax.Array
    sweeps: Scalar

    def _along(self, power: float) -> tuple[Scalar, jax.Array]:
        outside = self.bulk**power
        return outside, self.curvatures**power - outside

    def multiply(self, vector: Vector) -> Vector:
        """G v."""
        outside, inside = self._along(-1.0)
        return outside * vector + (inside * (self.basis @ vector)) @ self.basis

    def factor(self, noise: Vector) -> Vector:
        """S z."""
        outside, inside = self._along(-0.5)
        return outside * noise + (inside * (self.basis @ noise)) @ self.basis

    def factor_transpose(self, vector: Vector) -> Vector:
        """Sᵀ v: S is symmetric."""
        return self.factor(vector)

    def displace(self, covector: Vector, noise: Vector) -> Vector:
        """G v + S z, with one pass to look along U and one to move along it."""
        g_out, g_in = self._along(-1.0)
        s_out, s_in = self._along(-0.5)
        along = self.basis @ jnp.stack([covector, noise], axis=1)
        return g_out * covector + s_out * noise + (g_in * along[:, 0] + s_in * along[:, 1]) @ self.basis


def orthonormal_rows(rows: jax.Array) -> jax.Array:
    """An orthonormal basis of the span of a few long rows, by two rounds of Cholesky."""
    for _ in range(2):
        lengths = jnp.linalg.norm(rows, axis=1, keepdims=True)
        rows = rows / jnp.where(lengths > 0, lengths, 1)
        gram = rows @ rows.T
        ridge = 10 * jnp.finfo(rows.dtype).eps * rows.shape[0]
        lower = jnp.linalg.cholesky(gram + ridge * jnp.eye(rows.shape[0], dtype=rows.dtype))
        rows = jax.scipy.linalg.solve_triangular(lower, rows, lower=True)
    return rows


FORGETFUL_SWEEPS = 3
"""First sweeps that keep nothing of what came before: random directions know nothing of the Hessian."""


@settings
class LowRank(Preconditioner):
    """The `rank` largest directions of the averaged |Hessian|, and one curvature μ for all others.

    `rank + spare` orthonormal directions Q are followed. A sweep multiplies all of them by the Hessian H of one
    minibatch, which keeps T = Q H Qᵀ positive where H is; sweeps come as often as makes one product every
    `curvature_every` steps. T enters the average T̄ = (1−ω) Q B Qᵀ + ω T, whose eigenpairs are the new U and Λ (in
    absolute value), and the next directions are Q ← orth((1−ω) Λ U + ω H Q): subspace iteration.
    μ is the smallest curvature followed, which is about the largest of those left out: an overestimate slows
    the bulk down, an underestimate would diverge. No sweep lowers a curvature below μ / growth, so that from the first
    B = λ_max I the large directions are found before the step along them could become too long.
    """

    rank: int = 20
    spare: int = 4
    adaptation: Adaptation = DEFAULT_ADAPTATION
    curvature_every: int = 1
    growth: float = 3.0
    first_curvature: float | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.rank < 1:
            raise ValueError(f"rank: {self.rank} directions is not at least 1; the default is 20")
        if self.spare < 1:
            raise ValueError(f"spare: {self.spare} is not at least 1; the spare directions give the bulk's scale")
        if self.curvature_every < 1:
            raise ValueError(f"curvature_every: {self.curvature_every} is not a positive number of steps")
        check_growth(self.growth)
        check_first_curvature(self.first_curvature)

    def specialise(self, dimension: int, unravel: Unravel) -> "LowRank":
        """Itself, if there are more dimensions than directions."""
        if dimension < self.rank + self.spare:
            raise ValueError(
                f"rank: {self.rank} and {self.spare} spare directions do not fit {dimension} parameters; "
                "use form='dense', or a smaller rank"
            )
        return self

    def init(self, position: Vector, gradient_at: GradientAt) -> LowRankOperator:
        """B₀ = λ_max I."""
        rows = self.rank + self.spare
        largest = first_scale(self.first_curvature, gradient_at, position)
        probes = orthonormal_rows(jax.random.normal(jax.random.key(1), (rows, position.shape[0]), position.dtype))
        return LowRankOperator(
            bulk=largest,
            curvatures=jnp.full((rows,), largest),
            basis=probes,
            probes=probes,
            sweeps=jnp.zeros((), jnp.int32),
        )

    def prepare(self, operator: LowRankOperator, departure: Departure) -> LowRankOperator:
        """G as it is."""
        return operator

    def correction(self, operator: LowRankOperator) -> None:
        """None: G moves by ω_k and settles, it is no function of the position."""
        return

    def learn(self, operator: LowRankOperator, transition: Transition) -> tuple[LowRankOperator, Lesson]:
        """A sweep when it is due: one step of stochastic approximation."""
        return every(
            self.curvature_every * (self.rank + self.spare),
            transition.step,
            lambda: self._sweep(operator, transition),
            lambda: (operator, no_lesson(operator.bulk)),
        )

    def _sweep(self, old: LowRankOperator, transition: Transition) -> tuple[LowRankOperator, Lesson]:
        sweeps = old.sweeps + 1
        omega = weight(self.adaptation, sweeps, old.bulk.dtype)
        omega = jnp.where(sweeps <= FORGETFUL_SWEEPS, 1.0, omega).astype(old.bulk.dtype)
        _, product = jax.linearize(transition.gradient_at, transition.before)
        images = jax.vmap(product)(old.probes)
        seen = old.probes @ images.T
        overlap = old.probes @ old.basis.T
        outside = old.bulk * jnp.eye(overlap.shape[0], dtype=overlap.dtype)
        remembered = outside + (overlap * (old.curvatures - old.bulk)[None, :]) @ overlap.T
        values, turn = jnp.linalg.eigh((1 - omega) * remembered + omega * (seen + seen.T) / 2)
        values = jnp.maximum(jnp.abs(values), old.bulk / self.growth)
        basis = turn.T @ old.probes
        probes = orthonormal_rows((1 - omega) * values[:, None] * basis + omega * (turn.T @ images))
        swept = LowRankOperator(jnp.min(values), values, basis, probes, sweeps)
        good = jnp.all(jnp.isfinite(seen)) & jnp.all(jnp.isfinite(probes))
        kept = jax.tree.map(lambda new, before: jnp.where(good, new, before), swept, old)
        return kept, Lesson(jnp.ones((), old.bulk.dtype), ~good)
