"""Stochastic approximation of the Hessian's largest directions, for networks.

Curvature enters on the Hessian's side, where keeping the largest is the right truncation, by subspace iteration on
minibatch Hessian products.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ridgewalk._control_flow import when
from ridgewalk._pytree import pytree_dataclass
from ridgewalk._types import Adaptation, GradientAt, Scalar, Unravel, Vector
from ridgewalk.precondition.base import Lesson, Settling, Transition
from ridgewalk.precondition.factorise import cholesky, eigh
from ridgewalk.precondition.long_rows import long_products
from ridgewalk.precondition.pairs import inverse
from ridgewalk.precondition.restrict import restrict_core
from ridgewalk.precondition.spectrum import check_first_curvature, check_growth, first_scale
from ridgewalk.pruning import apply_mask
from ridgewalk.schedules import DEFAULT_ADAPTATION, adaptation_weight


class LowRankOperator(NamedTuple):
    """S = s I + Qᵀ K Q and G = S S, where s = μ^{−1/2} and Q, d numbers in each of a few rows, spans the directions.

    In an orthonormal basis U of that span it is G⁻¹ = B = μ (I − UᵀU) + Uᵀ Λ U. The rows of Q need not be orthonormal:
    their Gram matrix W = Q Qᵀ is known, and with `G = s² I + Qᵀ (2 s K + K W K) Q` drift and noise agree to rounding.
    `probes` are the directions of the next sweep, `overlap` is probes Uᵀ, and `curvatures` is Λ.
    """

    bulk: Scalar
    core: jax.Array
    square: jax.Array
    directions: jax.Array
    probes: jax.Array
    overlap: jax.Array
    curvatures: jax.Array
    sweeps: Scalar

    def multiply(self, vector: Vector) -> Vector:
        """G v."""
        return vector / self.bulk + (self.square @ (self.directions @ vector)) @ self.directions

    def factor(self, noise: Vector) -> Vector:
        """S z."""
        return noise / jnp.sqrt(self.bulk) + (self.core @ (self.directions @ noise)) @ self.directions

    def factor_transpose(self, vector: Vector) -> Vector:
        """Sᵀ v: S is symmetric."""
        return self.factor(vector)

    def displace(self, covector: Vector, noise: Vector) -> Vector:
        """G v + S z: two looks along Q, one move along it."""
        back = self.square @ (self.directions @ covector) + self.core @ (self.directions @ noise)
        return covector / self.bulk + noise / jnp.sqrt(self.bulk) + back @ self.directions


def whitener(gram: jax.Array) -> jax.Array:
    """V with V W Vᵀ = I for the Gram matrix W of some rows; nearly parallel ones are set apart as far as W tells."""
    unit = inverse(jnp.sqrt(jnp.diagonal(gram)))
    scaled = gram * unit[:, None] * unit[None, :]
    eye = jnp.eye(gram.shape[0], dtype=gram.dtype)
    lower = cholesky(scaled + 10 * gram.shape[0] * jnp.finfo(gram.dtype).eps * eye)
    white = jax.scipy.linalg.solve_triangular(lower, eye, lower=True)
    lengths = jnp.sqrt(jnp.maximum(jnp.diagonal(white @ scaled @ white.T), 1e-6))
    return (white / lengths[:, None]) * unit[None, :]


FORGETFUL_SWEEPS = 3
"""First sweeps that keep nothing of what came before: random directions know nothing of the Hessian."""


@pytree_dataclass
class LowRank(Settling):
    """The `rank` largest directions of the averaged |Hessian|, and one curvature μ for all others.

    `rank + spare` directions Q are followed. A sweep multiplies all of them by the Hessian H of one minibatch; sweeps
    come as often as makes one product every `curvature_every` steps. A product is the difference of two gradients, one
    posterior standard deviation apart as far as B knows it, and costs one gradient. Written for orthonormal Q,
    T = |Q H Qᵀ|, its eigenvalues made positive, enters the average T̄ = (1−ω) Q B Qᵀ + ω T, whose eigenpairs are the
    new U and Λ, and the next directions are Q ← (1−ω) Λ U + ω |H| U: subspace iteration.
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
        rows, dtype = self.rank + self.spare, position.dtype
        largest = first_scale(self.first_curvature, gradient_at, position)
        # Behind a barrier, or XLA computes the normals while it compiles, at many times the cost.
        key = jax.random.key(jax.lax.optimization_barrier(jnp.asarray(1)))
        probes = jax.random.normal(key, (rows, position.shape[0]), dtype)
        probes = whitener(long_products(probes, probes)) @ probes
        nothing = jnp.zeros((rows, rows), dtype)
        return LowRankOperator(
            bulk=largest,
            core=nothing,
            square=nothing,
            directions=probes,
            probes=probes,
            overlap=nothing,
            curvatures=jnp.full((rows,), largest),
            sweeps=jnp.zeros((), jnp.int32),
        )

    @property
    def interval(self) -> int:
        """A sweep has one product for every `curvature_every` steps."""
        return self.curvature_every * (self.rank + self.spare)

    def update(self, old: LowRankOperator, transition: Transition) -> tuple[LowRankOperator, Lesson]:
        """A sweep: one step of stochastic approximation."""
        count, dtype = self.rank + self.spare, old.bulk.dtype
        sweeps = jnp.minimum(old.sweeps, 2**31 - 2) + 1
        omega = jnp.where(sweeps <= FORGETFUL_SWEEPS, 1.0, adaptation_weight(self.adaptation, sweeps, dtype)).astype(
            dtype
        )
        images = self._products(old, transition)
        gram = long_products(old.probes, old.probes)
        white = whitener(gram)  # white Q is orthonormal

        remembered = white @ old.overlap
        remembered = (remembered * (old.curvatures - old.bulk)[None, :]) @ remembered.T
        remembered = remembered + old.bulk * jnp.eye(count, dtype=dtype)
        seen = white @ long_products(old.probes, images) @ white.T
        signed, axes = eigh((seen + seen.T) / 2)
        seen = (axes * jnp.abs(signed)[None, :]) @ axes.T
        upright = (axes * jnp.where(signed < 0, -1, 1)[None, :]) @ axes.T  # turns H into |H| on the span

        values, turn = eigh((1 - omega) * remembered + omega * seen)
        rounding = 100 * jnp.finfo(dtype).eps * jnp.max(values)
        values = jnp.maximum(values, jnp.maximum(old.bulk / self.growth, rounding))
        bulk = jnp.min(values)
        to_basis = turn.T @ white  # U = to_basis Q
        core = to_basis.T @ ((values**-0.5 - bulk**-0.5)[:, None] * to_basis)
        square = 2 * core / jnp.sqrt(bulk) + core @ gram @ core

        # A little of the directions just measured keeps the next ones independent where products vanish.
        of_probes = values[:, None] * ((1 - omega) * to_basis + 1e-4 * jnp.roll(white, 1, axis=0))
        rows = of_probes @ old.probes + (omega * turn.T @ upright @ white) @ images
        spread = whitener(long_products(rows, rows))
        good = jnp.all(jnp.isfinite(square)) & jnp.all(jnp.isfinite(spread))

        def turned() -> LowRankOperator:
            probes = spread @ rows
            overlap = long_products(probes, old.probes) @ to_basis.T
            return LowRankOperator(bulk, core, square, old.probes, probes, overlap, values, sweeps)

        return jax.lax.cond(good, turned, lambda: old), Lesson(jnp.ones((), dtype), ~good)

    def _products(self, old: LowRankOperator, transition: Transition) -> jax.Array:
        """H Q, a row at a time, by differences of gradients on the batch of this step."""
        remembered = old.bulk + jnp.sum(old.overlap**2 * (old.curvatures - old.bulk)[None, :], axis=1)
        lengths = 1 / jnp.sqrt(remembered)

        def product(row: tuple[Vector, Scalar]) -> Vector:
            direction, length = row
            return (transition.gradient_at(transition.before + length * direction) - transition.gradient) / length

        return jax.lax.map(product, (old.probes, lengths))

    def restrict(
        self, old: LowRankOperator, mask: Vector, position: Vector, gradient_at: GradientAt
    ) -> LowRankOperator:
        """G⁻¹ restricted: what is left of the directions spans its large curvatures, which lie between μ and λ_max."""
        directions = apply_mask(old.directions, mask)
        gram = long_products(directions, directions)
        pruned = long_products(old.directions, old.directions) - gram
        white = whitener(gram)
        image = white @ gram
        inside = image @ restrict_core(old.square, 1 / old.bulk, pruned) @ image.T
        variances, turn = eigh(jnp.eye(len(gram), dtype=gram.dtype) / old.bulk + inside)
        curvatures = jnp.clip(1 / jnp.maximum(variances, 1 / jnp.max(old.curvatures)), old.bulk)
        to_basis = turn.T @ white
        core = to_basis.T @ ((curvatures**-0.5 - old.bulk**-0.5)[:, None] * to_basis)
        square = 2 * core / jnp.sqrt(old.bulk) + core @ gram @ core
        probes = _upheld(old.probes, mask)
        overlap = long_products(probes, directions) @ to_basis.T
        return LowRankOperator(old.bulk, core, square, directions, probes, overlap, curvatures, old.sweeps)


def _upheld(probes: jax.Array, mask: Vector) -> jax.Array:
    """What is left of the probes, orthonormal; one that lay in pruned coordinates alone is drawn anew."""
    held = apply_mask(probes, mask)
    lost = jnp.sum(held**2, axis=1) < jnp.finfo(held.dtype).eps

    def redraw(rows: jax.Array, given: tuple[jax.Array, jax.Array]) -> jax.Array:
        lost, seed = given
        fresh = jax.random.normal(jax.random.key(seed), rows.shape, rows.dtype)
        return jnp.where(lost[:, None], apply_mask(fresh, mask), rows)

    held = when(jnp.any(lost), redraw, held, (lost, jnp.asarray(2)))
    return whitener(long_products(held, held)) @ held
