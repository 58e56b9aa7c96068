"""Stochastic approximation of G with its factor stored, for up to a few thousand parameters.

`Dense` keeps the factor S of G. In coordinates whitened by S the running base is the identity, so a window of M pairs
changes G by a matrix of rank 2M, and S follows in O(M d²) without solving or factorising anything of size d.
`DenseScaled` starts every window from γ⁻¹ I, as the paper does, for comparison.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ridgewalk._compilation import every, when
from ridgewalk._pytree import pytree_dataclass
from ridgewalk._types import Adaptation, GradientAt, Scalar, Vector
from ridgewalk.preconditioners.base import (
    FactorMethods,
    PairSettings,
    Transition,
    UpdateInfo,
    bfgs_core,
    check_growth,
    cholesky,
    initial_curvature,
    is_usable,
    measure_pair,
    mixed_root,
    powell_damping,
    prune_root,
)
from ridgewalk.preconditioners.lbfgs import Window, empty_window, prune_window
from ridgewalk.preconditioners.static import LeafScaled
from ridgewalk.schedules import DEFAULT_ADAPTATION, adaptation_weight

MOST_BYTES = 4 * 2**30
"""The largest factor that is stored."""


def check_fits(dimension: int, itemsize: int = 4) -> None:
    """Raise if a dense factor of d parameters would not fit in memory."""
    need = dimension * dimension * itemsize
    if need > MOST_BYTES:
        raise ValueError(
            f"form: 'dense' stores a {dimension} x {dimension} matrix, {need:,} bytes, above the limit of "
            f"{MOST_BYTES:,}; use form='low_rank' (or 'snapshot_lbfgs') for {dimension:,} parameters"
        )


class _DenseFields(NamedTuple):
    root: jax.Array
    steps: jax.Array
    changes: jax.Array


class DenseOperator(_DenseFields, FactorMethods):
    """G = S Sᵀ with S stored, and the pairs collected so far in whitened coordinates: a = S⁻¹ s, b = Sᵀ y."""


@pytree_dataclass
class Dense(PairSettings):
    """G_k = (1−ω_k) G_{k−1} + ω_k G̃_k (eq. 13), G̃_k the BFGS updates of G_{k−1} itself by M pairs.

    The fixed-point equation of the paper lets the map depend on G. Starting the recursion from the running G makes the
    exact H⁻¹ the fixed point on a Gaussian target; starting it from γ⁻¹ I does not.
    G is averaged once per M new pairs, not after every pair: each pair then enters one G̃ instead of M overlapping
    ones, which costs less and converges further at equal numbers of steps.
    G̃ exceeds G_{k−1} in no direction by more than the factor `growth`: on flat or negatively curved parts of a
    posterior, damped BFGS alone grows until the chain diverges. On a Gaussian target the bound is inactive once G has
    converged. G₀ = I / first_curvature.
    """

    adaptation: Adaptation = DEFAULT_ADAPTATION
    growth: float = 3.0

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        check_growth(self.growth)

    def check_dimension(self, dimension: int) -> None:
        """Raise if the factor does not fit in memory."""
        check_fits(dimension)

    def init(self, position: Vector, gradient_at: GradientAt) -> DenseOperator:
        """G₀ = I / λ_max."""
        curvature = initial_curvature(self.first_curvature, gradient_at, position)
        empty = jnp.zeros((self.memory, position.shape[0]), position.dtype)
        return DenseOperator(jnp.eye(position.shape[0], dtype=position.dtype) / jnp.sqrt(curvature), empty, empty)

    def init_from_diagonal(self, position: Vector, gradient_at: GradientAt, diagonal: Vector) -> DenseOperator:
        """G₀ = diag(diagonal)."""
        empty = jnp.zeros((self.memory, position.shape[0]), position.dtype)
        return DenseOperator(jnp.diag(jnp.sqrt(diagonal)), empty, empty)

    def adapt(self, operator: DenseOperator, transition: Transition) -> tuple[DenseOperator, UpdateInfo]:
        """Store the pair of this step; after M pairs, average."""
        a = operator.factor_transpose(transition.covector) + transition.noise
        b = operator.factor_transpose(transition.gradient_at(transition.after) - transition.gradient)
        pair = jnp.stack([a, b])
        (aa, ab), (_, bb) = pair @ pair.T
        good = is_usable(aa, ab, bb)
        pairs = transition.step // self.curvature_every
        row = (pairs - 1) % self.memory
        steps = operator.steps.at[row].set(jnp.where(good, a, 0))
        changes = operator.changes.at[row].set(jnp.where(good, b, 0))
        window = (steps, changes, pairs, self.hot_pairs(transition))
        root = every(self.memory, pairs, self._average, operator.root, window)
        return DenseOperator(root, steps, changes), UpdateInfo(powell_damping(aa, ab, self.damping), ~good)

    def limit(self, operator: DenseOperator, gradient: Vector, variance: Scalar, largest: Scalar) -> DenseOperator:
        """G halved along G g if |Sᵀg|² is above what a Gaussian distribution has with probability 10⁻⁹."""
        whitened = operator.factor_transpose(gradient)
        size, d = whitened @ whitened, whitened.shape[0]

        def halve(operator: DenseOperator, whitened: Vector) -> DenseOperator:
            unit = whitened / jnp.sqrt(size)
            root = operator.root + (0.5**0.5 - 1) * jnp.outer(operator.root @ unit, unit)
            nothing = jnp.zeros_like(operator.steps)  # pairs are stored in the former coordinates
            return DenseOperator(root, nothing, nothing)

        return when(size > d * variance + (9 * (2 * d) ** 0.5 + 20) * largest, halve, operator, whitened)

    def prune(self, operator: DenseOperator, mask: Vector, position: Vector, gradient_at: GradientAt) -> DenseOperator:
        """G⁻¹ restricted; stored pairs are dropped, because pruned parameters moved in them."""
        nothing = jnp.zeros_like(operator.steps)
        return DenseOperator(prune_root(operator.root, mask), nothing, nothing)

    def _average(self, root: jax.Array, window: tuple[jax.Array, jax.Array, Scalar, Scalar | None]) -> jax.Array:
        """S of (1−ω) G + ω G̃ = S (I + ω Pᵀ Q P) Sᵀ, the rows of P being the whitened pairs."""
        steps, changes, pairs, hot = window
        hot = None if hot is None else hot // self.memory
        omega = adaptation_weight(self.adaptation, pairs // self.memory, root.dtype, hot)
        vectors = jnp.concatenate([steps, changes])
        gram = vectors @ vectors.T
        core = jnp.zeros_like(gram)
        for pair in range(self.memory):
            core = bfgs_core(gram, core, jnp.ones((), gram.dtype), pair, self.memory + pair, self.damping)
        # G is S Sᵀ by definition, so rounding errors in the root cause no mismatch.
        change = mixed_root(gram, core, omega, self.growth, quick=True)
        return root + ((root @ vectors.T) @ change) @ vectors


@pytree_dataclass
class DenseOrLeafScaled(Dense):
    """`Dense`, unless warm-up finds that no constant G describes the posterior; then `LeafScaled`.

    Where the curvature turns with the position, as in neural networks at temperature 1, an average of inverse Hessians
    is far smaller than the posterior covariance, and with momentum a G near the identity mixes faster with less bias.
    """

    @property
    def fallback(self) -> LeafScaled:
        """A multiple of the identity for each leaf."""
        return LeafScaled()


class _DenseScaledFields(NamedTuple):
    matrix: jax.Array
    root: jax.Array
    window: Window


class DenseScaledOperator(_DenseScaledFields, FactorMethods):
    """G stored with its Cholesky factor, and the window of pairs."""


@pytree_dataclass
class DenseScaled(PairSettings):
    """G_k = (1−ω_k) G_{k−1} + ω_k G̃_k (eq. 13) with G̃_k from γ⁻¹ I and the newest M pairs: O(d³) a step."""

    memory: int = 4
    adaptation: Adaptation = DEFAULT_ADAPTATION
    curvature_floor: float = 1e-8

    def check_dimension(self, dimension: int) -> None:
        """Raise if the matrices do not fit in memory."""
        check_fits(dimension)

    def init(self, position: Vector, gradient_at: GradientAt) -> DenseScaledOperator:
        """G₀ = I / λ_max."""
        curvature = initial_curvature(self.first_curvature, gradient_at, position)
        eye = jnp.eye(position.shape[0], dtype=position.dtype)
        window = empty_window(self.memory, curvature, position, self.damping)
        return DenseScaledOperator(eye / curvature, eye / jnp.sqrt(curvature), window)

    def adapt(self, operator: DenseScaledOperator, transition: Transition) -> tuple[DenseScaledOperator, UpdateInfo]:
        """One step of stochastic approximation."""
        window, info = operator.window.push(measure_pair(transition), self.curvature_floor)
        pairs, hot = transition.step // self.curvature_every, self.hot_pairs(transition)
        omega = adaptation_weight(self.adaptation, pairs, operator.matrix.dtype, hot)
        newest = jax.vmap(window.multiply)(jnp.eye(operator.matrix.shape[0], dtype=operator.matrix.dtype))
        matrix = (1 - omega) * operator.matrix + omega * (newest + newest.T) / 2
        return DenseScaledOperator(matrix, cholesky(matrix), window), info

    def prune(
        self, operator: DenseScaledOperator, mask: Vector, position: Vector, gradient_at: GradientAt
    ) -> DenseScaledOperator:
        """G⁻¹ restricted, and the pairs measured again; the window then decouples pruned parameters."""
        root = prune_root(operator.root, mask)
        window = prune_window(operator.window, mask, position, gradient_at, self.curvature_floor)
        return DenseScaledOperator(root @ root.T, root, window)
