"""Preconditioners: the operator G = S Sᵀ that a chain moves with, the rule that updates it, and the curvature it is
learnt from: Hessian-vector products, their largest eigenvalue, and curvature pairs of single steps.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp

from ridgewalk._compilation import every
from ridgewalk._pytree import Layout, apply_mask, array_field, pytree_dataclass
from ridgewalk._types import GradientAt, Mask, Scalar, Vector
from ridgewalk._validation import check_between, check_positive, check_whole


class Operator(Protocol):
    """A positive definite matrix G with a factor S, `S Sᵀ = G`, given by its products with vectors.

    The state of every preconditioner is an operator. `multiply` and `factor` must agree: the noise of a step has
    covariance G only if they do.
    """

    def multiply(self, vector: Vector) -> Vector:
        """G v."""

    def factor(self, noise: Vector) -> Vector:
        """S z."""

    def factor_transpose(self, vector: Vector) -> Vector:
        """Sᵀ v."""

    def drift_plus_noise(self, covector: Vector, noise: Vector) -> Vector:
        """G v + S z, in as few passes over memory as the form allows."""


class _HasRoot(Protocol):
    @property
    def root(self) -> jax.Array: ...


class FactorMethods:
    """Operator methods for a stored factor: `root` is S as a (d, d) matrix, or its diagonal (d,)."""

    def multiply(self: _HasRoot, vector: Vector) -> Vector:
        """G v."""
        return self.root**2 * vector if self.root.ndim == 1 else self.root @ (vector @ self.root)

    def factor(self: _HasRoot, noise: Vector) -> Vector:
        """S z."""
        return self.root * noise if self.root.ndim == 1 else self.root @ noise

    def factor_transpose(self: _HasRoot, vector: Vector) -> Vector:
        """Sᵀ v."""
        return self.root * vector if self.root.ndim == 1 else vector @ self.root

    def drift_plus_noise(self: _HasRoot, covector: Vector, noise: Vector) -> Vector:
        """G v + S z = S (Sᵀ v + z)."""
        if self.root.ndim == 1:
            return self.root * (self.root * covector + noise)
        return self.root @ (covector @ self.root + noise)


class NoiseDirections(NamedTuple):
    """The covariance of the gradient's noise in whitened coordinates: a few directions, and all others alike."""

    vectors: jax.Array
    """Orthonormal columns (d, R)."""
    variances: Vector
    """Along each of them (R,)."""
    others: Scalar
    """The variance in every other direction."""


class StepContext(NamedTuple):
    """What a step is computed from; dynamics and preconditioners get it before the step is made."""

    step: Scalar
    """The number of the step, from 1."""
    position: Vector
    """The point that the step leaves from."""
    gradient: Vector
    """The estimate of ∇U there."""
    gradient_at: GradientAt
    """∇Ũ on the batch of this step."""
    noise: Vector
    """z: independent entries of mean 0 and variance 1."""
    step_size: Scalar
    """ε."""
    degrees_of_freedom: Scalar | int
    """The number of parameters that are not pruned."""
    mask: Mask = None
    """Which parameters are not pruned; gradients and noise are zero in all others."""
    friction: Scalar | None = None
    """The friction that warm-up chose, for dynamics whose friction is "auto"."""
    noise_variance: Scalar | None = None
    """The variance of the gradient's noise in whitened coordinates that warm-up measured: it is part of the noise of
    the step, and dynamics inject that much less."""
    noise_directions: NoiseDirections | None = None
    """Where it is not the same in all directions: in place of `noise_variance`, which is then its mean."""


class Transition(NamedTuple):
    """One step of a chain, as passed to a preconditioner that learns from it.

    `after − before = G covector + S noise` with the operator that made the step, up to a drift correction.
    `gradient_at` and `gradient` are ∇Ũ on the batch of this step, so differences of them are curvature.
    """

    step: Scalar
    before: Vector
    after: Vector
    gradient: Vector
    covector: Vector
    noise: Vector
    gradient_at: GradientAt
    hot_until: Scalar | None = None
    """The step up to which adaptation is hot (see `adaptation_weight`); None in a run without warm-up."""


class UpdateInfo(NamedTuple):
    """Diagnostics of one update of a preconditioner."""

    damping: Scalar
    """θ_d of Powell's damping: 1 if the newest pair was used without damping."""
    rejected: Scalar
    """Whether the newest pair was discarded, because it was not finite or the chain had not moved."""


def no_update(like: jax.Array) -> UpdateInfo:
    """The diagnostics of a step without an update; dtype of `like`."""
    return UpdateInfo(jnp.ones((), like.dtype), jnp.zeros((), bool))


class PreconditionerSpec(ABC):
    """A preconditioner, or a rule that chooses one when the structure of the position is known."""

    @abstractmethod
    def resolve(self, layout: Layout) -> "Preconditioner":
        """The preconditioner for positions of this layout; raises `ValueError` if it does not fit."""


class Preconditioner(PreconditionerSpec):
    """The rule: how the operator starts, what it is before a step, and how a step updates it."""

    def resolve(self, layout: Layout) -> "Preconditioner":
        """Itself, if it fits."""
        self.check_dimension(layout.size)
        return self

    def check_dimension(self, dimension: int) -> None:
        """Raise `ValueError` if the preconditioner does not fit d parameters; by default any number fits."""

    @abstractmethod
    def init(self, position: Vector, gradient_at: GradientAt) -> Any:
        """The first operator; `gradient_at` is ∇Ũ on a subsample of the data."""

    def init_from_diagonal(self, position: Vector, gradient_at: GradientAt, diagonal: Vector) -> Any:
        """The first operator at a position where warm-up has learnt a diagonal G; by default that of `init`."""
        return self.init(position, gradient_at)

    @abstractmethod
    def prepare(self, operator: Any, context: StepContext) -> Any:
        """The operator for the step about to be made."""

    @abstractmethod
    def correction(self, operator: Any) -> Vector | None:
        """Γ_i = Σ_j ∂G_ij/∂θ_j, or None if G does not depend on the position."""

    @abstractmethod
    def update(self, operator: Any, transition: Transition) -> tuple[Any, UpdateInfo]:
        """The operator after a step."""

    def limit(self, operator: Any, gradient: Vector, variance: Scalar, largest: Scalar) -> Any:
        """The operator with G reduced where it is too large for the gradient; by default unchanged.

        In the stationary distribution the entries of Sᵀg have a variance of about 1, plus that of the gradient noise,
        together `variance` on average and `largest` in the direction of most noise. Where the potential is linear,
        curvature is zero and curvature pairs set no bound on G.
        """
        return operator

    @property
    def fallback(self) -> "Preconditioner | None":
        """The rule to go on with if warm-up finds that no constant G describes the posterior; by default none other."""
        return None

    @property
    def unwrapped(self) -> "Preconditioner":
        """The innermost preconditioner: itself, or the one that it wraps."""
        return self

    def prune(self, operator: Any, mask: Vector, position: Vector, gradient_at: GradientAt) -> Any:
        """The operator restricted to the parameters in `mask`.

        It maps vectors that are zero elsewhere to such vectors, with `S Sᵀ = G` among them. Curvature learnt while
        other parameters moved must be dropped, or measured again with `gradient_at`: ∇Ũ, zero in pruned parameters.
        """
        raise ValueError(
            f"preconditioner: {type(self).__name__} has no method prune(operator, mask, position, gradient_at), "
            "which pruning needs; write one (a diagonal operator may be returned unchanged)"
        )


class AdaptivePreconditioner(Preconditioner):
    """Base class of preconditioners that learn from steps: G changes ever less, and is no function of the position."""

    reads: ClassVar[tuple[str, ...]] = ("before", "after", "gradient", "covector", "noise")
    """The vectors of a `Transition` that `adapt` reads: they are computed in every step, also if no update is due."""

    @property
    @abstractmethod
    def interval(self) -> int:
        """Steps from one update to the next."""

    @abstractmethod
    def adapt(self, operator: Any, transition: Transition) -> tuple[Any, UpdateInfo]:
        """The operator after a step that it learns from."""

    def prepare(self, operator: Any, context: StepContext) -> Any:
        """The operator unchanged."""
        return operator

    def correction(self, operator: Any) -> None:
        """None: G does not depend on the position."""
        return

    def update(
        self, operator: Any, transition: Transition, convert: Callable[[Transition], Transition] | None = None
    ) -> tuple[Any, UpdateInfo]:
        """`adapt` in every `interval`-th step, to `convert(transition)` if given."""
        unchanged = operator, no_update(transition.before)

        def adapt(carry: tuple[Any, UpdateInfo], arrays: Any) -> tuple[Any, UpdateInfo]:
            known = transition._replace(**arrays)
            return self.adapt(carry[0], known if convert is None else convert(known))

        arrays = {name: getattr(transition, name) for name in (*self.reads, "step", "hot_until")}
        return every(self.interval, transition.step, adapt, unchanged, arrays)


class StaticPreconditioner(Preconditioner):
    """Base class of preconditioners with a constant G."""

    def prepare(self, operator: Any, context: StepContext) -> Any:
        """The operator unchanged."""
        return operator

    def correction(self, operator: Any) -> None:
        """None: G does not depend on the position."""
        return

    def update(self, operator: Any, transition: Transition) -> tuple[Any, UpdateInfo]:
        """The operator unchanged."""
        return operator, no_update(transition.before)


DENSE_UP_TO = 2_000
"""The largest number of parameters for which form "auto" stores a dense G, which costs O(M d²) per step."""


@pytree_dataclass
class ByDimension(PreconditionerSpec):
    """`small` for up to 2,000 parameters, `large` above."""

    small: PreconditionerSpec = array_field()
    large: PreconditionerSpec = array_field()

    def resolve(self, layout: Layout) -> Preconditioner:
        """The one for d parameters."""
        chosen = self.small if layout.size <= DENSE_UP_TO else self.large
        return chosen.resolve(layout)


POWER_STEPS = 12

Product: TypeAlias = Callable[[Vector], Vector]
"""A symmetric matrix, as the function v ↦ A v."""


def hessian_product(gradient_at: GradientAt, position: Vector) -> Product:
    """v ↦ H v at `position`, by forward-over-reverse differentiation."""
    return lambda direction: jax.jvp(gradient_at, (position,), (direction,))[1]


def whitened_hessian_product(
    operator: Operator, gradient_at: GradientAt, position: Vector, mask: Mask = None
) -> Product:
    """v ↦ Sᵀ H S v at `position`: symmetric, with the eigenvalues of G H; zero in pruned parameters."""
    hessian = hessian_product(gradient_at, position)

    def product(direction: Vector) -> Vector:
        image = apply_mask(hessian(operator.factor(apply_mask(direction, mask))), mask)
        return apply_mask(operator.factor_transpose(image), mask)

    return product


def largest_eigenvalue(product: Product, start: Vector, steps: int = POWER_STEPS) -> Scalar:
    """max |λ| by `steps` power iterations from the unit vector `start`; 0 if the matrix is zero or not finite.

    After 12 products it is within a few percent on spectra with outliers, and low by a small factor on flat spectra.
    """

    def iterate(direction: Vector, _: None) -> tuple[Vector, Scalar]:
        image = product(direction)
        length = jnp.linalg.norm(image)
        usable = jnp.isfinite(length) & (length > 0)
        return jnp.where(usable, image / jnp.where(usable, length, 1), direction), length

    _, lengths = jax.lax.scan(iterate, start, None, length=steps)
    return jnp.max(jnp.where(jnp.isfinite(lengths), lengths, 0))


def random_direction(like: Vector) -> Vector:
    """A fixed random unit vector of the shape of `like`: where power iterations start."""
    start = jax.random.normal(jax.random.key(0), like.shape, like.dtype)
    return start / jnp.linalg.norm(start)


def largest_curvature(gradient_at: GradientAt, position: Vector) -> Scalar:
    """An estimate of max |λ| of the Hessian at `position`; 1 if the Hessian is zero or not finite."""
    largest = largest_eigenvalue(hessian_product(gradient_at, position), random_direction(position))
    return jnp.where(largest > 0, largest, 1)


def initial_curvature(given: float | None, gradient_at: GradientAt, position: Vector) -> Scalar:
    """The curvature that the first G inverts: `first_curvature` if given, else the largest at the start."""
    curvature = largest_curvature(gradient_at, position) if given is None else jnp.asarray(given)
    return curvature.astype(position.dtype)


def check_first_curvature(given: float | None) -> None:
    """Raise if the first G would not be positive definite."""
    if given is not None:
        check_positive("first_curvature", given, "leave it out to have it measured")


def check_growth(growth: float) -> None:
    """Raise if the bound on the growth of G would only let it shrink."""
    check_between("growth", growth, 1, float("inf"), "()", "at 1 or below G could only shrink; the default is 3")


@pytree_dataclass
class PairSettings(AdaptivePreconditioner):
    """The settings of preconditioners that learn from curvature pairs.

    `memory` is M, the number of pairs in a window; `damping` is r of Powell's damping; a pair is measured every
    `curvature_every` steps; `first_curvature` is the curvature that the first G inverts, None for the largest at the
    start.
    """

    memory: int = 8
    damping: float = 0.2
    curvature_every: int = 1
    first_curvature: float | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        check_whole("memory", self.memory, 1, "the paper uses 1 and 2")
        check_between("damping", self.damping, 0, 1, "()", "0.2 is Powell's choice")
        check_whole("curvature_every", self.curvature_every, 1, "use 1 for a pair in every step")
        check_first_curvature(self.first_curvature)

    @property
    def interval(self) -> int:
        """Every `curvature_every`-th step gives a pair."""
        return self.curvature_every

    def hot_pairs(self, transition: Transition) -> Scalar | None:
        """The number of pairs during which adaptation is hot; None without warm-up."""
        return None if transition.hot_until is None else transition.hot_until // self.curvature_every


class Pair(NamedTuple):
    """s = θ' − θ and y = ∇Ũ(θ'; batch) − ∇Ũ(θ; batch), both gradients on the same batch."""

    s: Vector
    y: Vector


def measure_pair(transition: Transition) -> Pair:
    """The pair of one step; it costs one gradient."""
    y = transition.gradient_at(transition.after) - transition.gradient
    return Pair(transition.after - transition.before, y)


def is_usable(ss: Scalar, sy: Scalar, yy: Scalar) -> Scalar:
    """Whether a pair with these inner products is finite and the chain has moved."""
    return jnp.isfinite(sy) & jnp.isfinite(yy) & jnp.isfinite(ss) & (ss > 0)
