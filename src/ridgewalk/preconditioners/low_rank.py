"""Stochastic approximation of the Hessian's leading eigenvectors, for networks.

The Hessian is approximated, not its inverse: keeping its largest eigenvalues is the right truncation. The method is
subspace iteration on minibatch Hessian products.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ridgewalk._compilation import when
from ridgewalk._pytree import apply_mask, pytree_dataclass
from ridgewalk._types import Adaptation, GradientAt, Scalar, Vector
from ridgewalk._validation import check_whole
from ridgewalk.preconditioners.base import (
    AdaptivePreconditioner,
    Transition,
    UpdateInfo,
    blocked_gram,
    check_first_curvature,
    check_growth,
    cholesky,
    eigh,
    initial_curvature,
    inverse,
    prune_core,
)
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

    def drift_plus_noise(self, covector: Vector, noise: Vector) -> Vector:
        """G v + S z: three passes over Q."""
        back = self.square @ (self.directions @ covector) + self.core @ (self.directions @ noise)
        return covector / self.bulk + noise / jnp.sqrt(self.bulk) + back @ self.directions


def whitener(gram: jax.Array) -> jax.Array:
    """V with V W Vᵀ = I for the Gram matrix W of some rows; nearly parallel rows are regularised."""
    unit = inverse(jnp.sqrt(jnp.diagonal(gram)))
    scaled = gram * unit[:, None] * unit[None, :]
    eye = jnp.eye(gram.shape[0], dtype=gram.dtype)
    lower = cholesky(scaled + 10 * gram.shape[0] * jnp.finfo(gram.dtype).eps * eye)
    white = jax.scipy.linalg.solve_triangular(lower, eye, lower=True)
    lengths = jnp.sqrt(jnp.maximum(jnp.diagonal(white @ scaled @ white.T), 1e-6))
    return (white / lengths[:, None]) * unit[None, :]


UNWEIGHTED_SWEEPS = 3
"""First sweeps with ω = 1, which discard what came before: the first directions are random."""


@pytree_dataclass
class LowRank(AdaptivePreconditioner):
    """The `rank` leading eigenvectors of the averaged |Hessian|, and one curvature μ for the orthogonal complement.

    `rank + spare` directions Q are tracked. A sweep multiplies all of them by the Hessian H of one minibatch; sweeps
    are spaced so that there is one product per `curvature_every` steps. A product is the difference of two gradients,
    one posterior standard deviation apart according to B, and costs one gradient. For orthonormal Q,
    T = |Q H Qᵀ|, with the absolute values of its eigenvalues, enters the average T̄ = (1−ω) Q B Qᵀ + ω T, whose
    eigenpairs are the new U and Λ, and the next directions are Q ← (1−ω) Λ U + ω |H| U: subspace iteration.
    μ is the smallest curvature tracked. After convergence it is about the largest of the others; with batches smaller
    than the number of directions it is too low for the first tens of sweeps. No sweep lowers a curvature below
    μ / growth: from the first B = λ_max I the leading directions are found before steps along them become too long. Nor
    does it lower one below the rounding error of the largest.
    """

    rank: int = 20
    spare: int = 4
    adaptation: Adaptation = DEFAULT_ADAPTATION
    curvature_every: int = 1
    growth: float = 3.0
    first_curvature: float | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        check_whole("rank", self.rank, 1, "the default is 20")
        check_whole("spare", self.spare, 1, "the spare directions estimate the bulk's curvature; the default is 4")
        check_whole("curvature_every", self.curvature_every, 1, "use 1 for a product in every step")
        check_growth(self.growth)
        check_first_curvature(self.first_curvature)

    def check_dimension(self, dimension: int) -> None:
        """Raise if there are more directions than parameters."""
        if dimension < self.rank + self.spare:
            raise ValueError(
                f"rank: {self.rank} and {self.spare} spare directions do not fit {dimension} parameters; "
                "use form='dense', or fewer of either"
            )

    def init(self, position: Vector, gradient_at: GradientAt) -> LowRankOperator:
        """B₀ = λ_max I."""
        rows, dtype = self.rank + self.spare, position.dtype
        largest = initial_curvature(self.first_curvature, gradient_at, position)
        # The barrier keeps XLA from constant-folding the normals at compile time, at many times the cost.
        key = jax.random.key(jax.lax.optimization_barrier(jnp.asarray(1)))
        probes = jax.random.normal(key, (rows, position.shape[0]), dtype)
        probes = whitener(blocked_gram(probes, probes)) @ probes
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

    def adapt(self, old: LowRankOperator, transition: Transition) -> tuple[LowRankOperator, UpdateInfo]:
        """A sweep: one step of stochastic approximation."""
        count, dtype = self.rank + self.spare, old.bulk.dtype
        sweeps = jnp.minimum(old.sweeps, 2**31 - 2) + 1
        omega = jnp.where(sweeps <= UNWEIGHTED_SWEEPS, 1.0, adaptation_weight(self.adaptation, sweeps, dtype)).astype(
            dtype
        )
        images = self._products(old, transition)
        gram = blocked_gram(old.probes, old.probes)
        white = whitener(gram)  # white Q is orthonormal

        remembered = white @ old.overlap
        remembered = (remembered * (old.curvatures - old.bulk)[None, :]) @ remembered.T
        remembered = remembered + old.bulk * jnp.eye(count, dtype=dtype)
        measured = white @ blocked_gram(old.probes, images) @ white.T
        signed, axes = eigh((measured + measured.T) / 2)
        measured = (axes * jnp.abs(signed)[None, :]) @ axes.T
        sign = (axes * jnp.where(signed < 0, -1, 1)[None, :]) @ axes.T  # maps H to |H| on the span

        values, turn = eigh((1 - omega) * remembered + omega * measured)
        rounding = 100 * jnp.finfo(dtype).eps * jnp.max(values)
        values = jnp.maximum(values, jnp.maximum(old.bulk / self.growth, rounding))
        bulk = jnp.min(values)
        to_basis = turn.T @ white  # U = to_basis Q
        core = to_basis.T @ ((values**-0.5 - bulk**-0.5)[:, None] * to_basis)
        square = 2 * core / jnp.sqrt(bulk) + core @ gram @ core

        # A small multiple of the present directions keeps the next ones independent if products vanish.
        of_probes = values[:, None] * ((1 - omega) * to_basis + 1e-4 * jnp.roll(white, 1, axis=0))
        rows = of_probes @ old.probes + (omega * turn.T @ sign @ white) @ images
        spread = whitener(blocked_gram(rows, rows))
        good = jnp.all(jnp.isfinite(square)) & jnp.all(jnp.isfinite(spread))

        def updated() -> LowRankOperator:
            probes = spread @ rows
            overlap = blocked_gram(probes, old.probes) @ to_basis.T
            return LowRankOperator(bulk, core, square, old.probes, probes, overlap, values, sweeps)

        return jax.lax.cond(good, updated, lambda: old), UpdateInfo(jnp.ones((), dtype), ~good)

    def _products(self, old: LowRankOperator, transition: Transition) -> jax.Array:
        """H Q, a row at a time, by differences of gradients on the batch of this step."""
        remembered = old.bulk + jnp.sum(old.overlap**2 * (old.curvatures - old.bulk)[None, :], axis=1)
        lengths = 1 / jnp.sqrt(remembered)

        def product(row: tuple[Vector, Scalar]) -> Vector:
            direction, length = row
            return (transition.gradient_at(transition.before + length * direction) - transition.gradient) / length

        return jax.lax.map(product, (old.probes, lengths))

    def prune(self, old: LowRankOperator, mask: Vector, position: Vector, gradient_at: GradientAt) -> LowRankOperator:
        """G⁻¹ restricted: the masked directions span its large curvatures, which lie between μ and λ_max."""
        directions = apply_mask(old.directions, mask)
        gram = blocked_gram(directions, directions)
        pruned = blocked_gram(old.directions, old.directions) - gram
        white = whitener(gram)
        image = white @ gram
        inside = image @ prune_core(old.square, 1 / old.bulk, pruned) @ image.T
        variances, turn = eigh(jnp.eye(len(gram), dtype=gram.dtype) / old.bulk + inside)
        curvatures = jnp.clip(1 / jnp.maximum(variances, 1 / jnp.max(old.curvatures)), old.bulk)
        to_basis = turn.T @ white
        core = to_basis.T @ ((curvatures**-0.5 - old.bulk**-0.5)[:, None] * to_basis)
        square = 2 * core / jnp.sqrt(old.bulk) + core @ gram @ core
        probes = _prune_probes(old.probes, mask)
        overlap = blocked_gram(probes, directions) @ to_basis.T
        return LowRankOperator(old.bulk, core, square, directions, probes, overlap, curvatures, old.sweeps)


def _prune_probes(probes: jax.Array, mask: Vector) -> jax.Array:
    """The masked probes, orthonormal; a probe without unpruned entries is replaced by a random one."""
    masked = apply_mask(probes, mask)
    lost = jnp.sum(masked**2, axis=1) < jnp.finfo(masked.dtype).eps

    def redraw(rows: jax.Array, given: tuple[jax.Array, jax.Array]) -> jax.Array:
        lost, seed = given
        fresh = jax.random.normal(jax.random.key(seed), rows.shape, rows.dtype)
        return jnp.where(lost[:, None], apply_mask(fresh, mask), rows)

    masked = when(jnp.any(lost), redraw, masked, (lost, jnp.asarray(2)))
    return whitener(blocked_gram(masked, masked)) @ masked
