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
    """S = μ^{−1/2} (I − UᵀU) + Uᵀ Λ^{−1/2} U and G = S S, so that G = B⁻¹ of B = μ (I − UᵀU) + Uᵀ Λ U.

    The rows U are orthonormal up to rounding; their Gram matrix W is kept, and with it G is the square of the S in use
    to rounding, also where W is not quite I. `probes` are the directions that the next sweep will measure.
    """

    bulk: Scalar
    curvatures: jax.Array
    basis: jax.Array
    gram: jax.Array
    probes: jax.Array
    sweeps: Scalar

    def _factor(self) -> tuple[Scalar, jax.Array]:
        """s and D of S = s I + Uᵀ D U, D diagonal."""
        outside = self.bulk**-0.5
        return outside, self.curvatures**-0.5 - outside

    def _square(self) -> jax.Array:
        """C of S S = s² I + Uᵀ C U: C = 2 s D + D W D."""
        outside, inside = self._factor()
        return jnp.diag(2 * outside * inside) + inside[:, None] * self.gram * inside[None, :]

    def multiply(self, vector: Vector) -> Vector:
        """G v."""
        return vector / self.bulk + (self._square() @ (self.basis @ vector)) @ self.basis

    def factor(self, noise: Vector) -> Vector:
        """S z."""
        outside, inside = self._factor()
        return outside * noise + (inside * (self.basis @ noise)) @ self.basis

    def factor_transpose(self, vector: Vector) -> Vector:
        """Sᵀ v: S is symmetric."""
        return self.factor(vector)

    def displace(self, covector: Vector, noise: Vector) -> Vector:
        """G v + S z, with one pass to look along U and one to move along it."""
        outside, inside = self._factor()
        along = self.basis @ jnp.stack([covector, noise], axis=1)
        back = self._square() @ along[:, 0] + inside * along[:, 1]
        return covector / self.bulk + outside * noise + back @ self.basis


def _unit_rows(rows: jax.Array) -> jax.Array:
    lengths = jnp.linalg.norm(rows, axis=1, keepdims=True)
    return rows / jnp.where(lengths > 0, lengths, 1)


def orthonormal_rows(rows: jax.Array) -> jax.Array:
    """An orthonormal basis of the span of a few long rows, by three rounds of Cholesky (far faster than QR here).

    A ridge carries the first round over nearly parallel rows; it would shorten the rows of the last.
    """
    eye = jnp.eye(rows.shape[0], dtype=rows.dtype)
    for ridge in (10 * rows.shape[0] * jnp.finfo(rows.dtype).eps, 0.0, 0.0):
        rows = _unit_rows(rows)
        lower = jnp.linalg.cholesky(rows @ rows.T + ridge * eye)
        rows = jax.scipy.linalg.solve_triangular(lower, rows, lower=True)
    return rows


FORGETFUL_SWEEPS = 3
"""First sweeps that keep nothing of what came before: random directions know nothing of the Hessian."""


@settings
class LowRank(Preconditioner):
    """The `rank` largest directions of the averaged |Hessian|, and one curvature μ for all others.

    `rank + spare` orthonormal directions Q are followed. A sweep multiplies all of them by the Hessian H of one
    minibatch; sweeps come as often as makes one product every `curvature_every` steps. T = |Q H Qᵀ|, its eigenvalues
    made positive, enters the average T̄ = (1−ω) Q B Qᵀ + ω T, whose eigenpairs are the new U and Λ, and the next
    directions are Q ← orth((1−ω) Λ U + ω |H| Q): subspace iteration.
    μ is the smallest curvature followed. Once the sweeps have converged that is about the largest of those left out;
    with batches smaller than the number of directions it is too low for the first tens of sweeps. No sweep lowers a
    curvature below μ / growth, so that from the first B = λ_max I the large directions are found before the step along
    them could become too long, nor below what rounding leaves of the largest.
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
                "use form='dense', or fewer of either"
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
            gram=probes @ probes.T,
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
        seen, images = _positive(old.probes, jax.vmap(product)(old.probes))
        overlap = old.probes @ old.basis.T
        outside = old.bulk * jnp.eye(overlap.shape[0], dtype=overlap.dtype)
        remembered = outside + (overlap * (old.curvatures - old.bulk)[None, :]) @ overlap.T
        values, turn = jnp.linalg.eigh((1 - omega) * remembered + omega * seen)
        rounding = 100 * jnp.finfo(values.dtype).eps * jnp.max(values)
        values = jnp.maximum(values, jnp.maximum(old.bulk / self.growth, rounding))
        basis = turn.T @ old.probes
        # A little of the directions just measured keeps the next ones independent where products vanish.
        wanted = (1 - omega) * values[:, None] * basis + omega * (turn.T @ images)
        probes = orthonormal_rows(_unit_rows(wanted) + 1e-4 * jnp.roll(old.probes, 1, axis=0))
        swept = LowRankOperator(jnp.min(values), values, basis, basis @ basis.T, probes, sweeps)
        good = jnp.all(jnp.isfinite(seen)) & jnp.all(jnp.isfinite(probes))
        kept = jax.tree.map(lambda new, before: jnp.where(good, new, before), swept, old)
        return kept, Lesson(jnp.ones((), old.bulk.dtype), ~good)


def _positive(probes: jax.Array, images: jax.Array) -> tuple[jax.Array, jax.Array]:
    """|Q H Qᵀ| and |H| Q from H Q: directions of negative curvature are turned round."""
    seen = probes @ images.T
    values, turn = jnp.linalg.eigh((seen + seen.T) / 2)
    signed = turn * jnp.where(values < 0, -1, 1)[None, :]
    return (turn * jnp.abs(values)[None, :]) @ turn.T, (turn @ signed.T) @ images
