"""Preconditioners: the operator G = S Sᵀ that a chain moves with, the rule that updates it, and what the forms share.

They learn from curvature: Hessian-vector products, their largest eigenvalue, and curvature pairs of single steps. Their
linear algebra is at the end: small factorisations, low-rank updates and roots, and restriction to a mask.

Low-rank corrections c I + Pᵀ Q P are handled through the Gram matrix of the rows of P: everything is m×m, with m the
number of stored vectors, and nothing divides by a small singular value, so rows of P may be parallel (near convergence
s and y of a whitened pair are).

Pruning restricts B = G⁻¹: the new G is (B_kept)⁻¹, the conditional covariance of the kept parameters given the pruned
ones if G is a covariance. The eigenvalues of G H, with H restricted too, then stay within their former range (Cauchy
interlacing), so a stable step size stays stable. The kept block of G itself would be larger. Operators map vectors
that are zero in pruned parameters to such vectors.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp

from ridgewalk._compilation import every
from ridgewalk._pytree import Layout, apply_mask, array_field, current_placement, pytree_dataclass
from ridgewalk._types import GradientAt, Mask, Scalar, Vector
from ridgewalk._validation import check_between, check_positive, check_whole

# Interfaces


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
    """∇Ũ on the batch of this step, up to a constant (see `gradients.on_batch`)."""
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
    `gradient_at` and `gradient` are ∇Ũ on the batch of this step, up to a constant (see `gradients.on_batch`), so
    differences of them are curvature.
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


# Curvature

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


# Linear algebra

# Under vmap, JAX's CPU kernels split a batch of matrices over the same threads that wait for them: four chains with
# matrices of 32 rows deadlock on two cores (JAX 0.10.2). One matrix at a time does not, and is as fast.


@jax.custom_batching.sequential_vmap  # type: ignore[untyped-decorator]
def eigh(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Eigenvalues, ascending, and eigenvectors of a symmetric matrix."""
    values, vectors = jnp.linalg.eigh(matrix)
    return values, vectors


@jax.custom_batching.sequential_vmap  # type: ignore[untyped-decorator]
def cholesky(matrix: jax.Array) -> jax.Array:
    """The lower Cholesky factor."""
    return jnp.linalg.cholesky(matrix)


@jax.custom_batching.sequential_vmap  # type: ignore[untyped-decorator]
def triangular(matrix: jax.Array) -> jax.Array:
    """R of the QR factorisation, with a non-negative diagonal: Rᵀ is the Cholesky factor of AᵀA."""
    upper = jnp.linalg.qr(matrix, mode="r")
    return upper * jnp.where(jnp.diagonal(upper) < 0, -1, 1).astype(upper.dtype)[:, None]


@jax.custom_batching.sequential_vmap  # type: ignore[untyped-decorator]
def solve(matrix: jax.Array, right: jax.Array) -> jax.Array:
    """A⁻¹ B."""
    return jnp.linalg.solve(matrix, right)


BLOCK = 16_384
"""Columns per block of a product of long rows, so that a block fits the cache (`benchmarks/primitives.py`)."""


def blocked_gram(rows: jax.Array, others: jax.Array) -> jax.Array:
    """`rows @ others.T` for a few rows of any length, summed over blocks of columns, and over devices."""
    placement = current_placement()
    if placement is not None and rows.shape[1] == placement.length:
        return placement.sum_of_parts(_gram_of_device, rows, others)
    return _gram_of_device(rows, others)


def _gram_of_device(rows: jax.Array, others: jax.Array) -> jax.Array:
    length = rows.shape[1]
    blocks = length // BLOCK
    if blocks == 0:
        return rows @ others.T

    def add(total: jax.Array, i: jax.Array) -> tuple[jax.Array, None]:
        part, other = (jax.lax.dynamic_slice_in_dim(x, i * BLOCK, BLOCK, 1) for x in (rows, others))
        return total + part @ other.T, None

    rest = rows[:, blocks * BLOCK :] @ others[:, blocks * BLOCK :].T
    return jax.lax.scan(add, rest, jnp.arange(blocks))[0]


def inverse(x: Scalar) -> Scalar:
    """1/x, and 0 for x = 0: an empty slot of a window then drops out of a recursion."""
    return jnp.where(x == 0, 0, 1 / jnp.where(x == 0, 1, x))


def powell_damping(sbs: Scalar, sy: Scalar, r: Scalar | float) -> Scalar:
    """θ_d of Powell's damping: ȳ = θ_d y + (1−θ_d) B₀s then has `sᵀȳ ≥ r sᵀB₀s` (paper, the line after eq. 4).

    `sbs` is sᵀB₀s and `sy` is sᵀy.
    """
    low = sy < r * sbs
    return jnp.where(low, (1 - r) * sbs / jnp.where(low, sbs - sy, 1), 1)


def bfgs_core(
    gram: jax.Array, core: jax.Array, scale: Scalar, s: Scalar | int, y: Scalar | int, damping: float
) -> jax.Array:
    """Q after one damped BFGS update (eq. 6) of G = I/γ + Pᵀ Q P by the pair in rows s and y of P.

    G' = (I − ρ s ȳᵀ) G (I − ρ ȳ sᵀ) + ρ s sᵀ with ρ = 1 / sᵀȳ; rows of zeros leave Q unchanged.
    """
    size = gram.shape[0]
    along_s, along_y = jax.nn.one_hot(s, size, dtype=gram.dtype), jax.nn.one_hot(y, size, dtype=gram.dtype)
    theta = powell_damping(scale * gram[s, s], gram[s, y], damping)
    ybar = theta * along_y + (1 - theta) * scale * along_s
    gram_ybar = gram @ ybar
    rho = inverse(gram_ybar[s])
    image = ybar / scale + core @ gram_ybar
    cross = rho * along_s[:, None] * image[None, :]
    return core - cross - cross.T + rho * (1 + rho * (gram_ybar @ image)) * along_s[:, None] * along_s[None, :]


def _spectrum(gram: jax.Array, core: jax.Array, quick: bool = False) -> tuple[jax.Array, jax.Array]:
    """x = eig(Fᵀ Q F), the nonzero eigenvalues of Pᵀ Q P, and Q F along their axes, with W = P Pᵀ = F Fᵀ.

    `quick` takes the Cholesky factor of W, regularised on its diagonal by a little more than rounding: a tenth of the
    time, for callers to whom that accuracy suffices.
    """
    lengths = jnp.sqrt(jnp.diagonal(gram))
    unit = inverse(lengths)
    cosines = gram * unit[:, None] * unit[None, :]
    if quick:
        size = len(gram)
        half = cholesky(cosines + 10 * size * jnp.finfo(gram.dtype).eps * jnp.eye(size, dtype=gram.dtype))
    else:
        values, axes = eigh(cosines)
        half = axes * jnp.sqrt(jnp.maximum(values, 0))[None, :]
    half = lengths[:, None] * half
    image = core @ half
    x, axes = eigh(half.T @ image)
    return x, image @ axes


def mixed_root(gram: jax.Array, core: jax.Array, weight: Scalar | float, most: float, quick: bool = False) -> jax.Array:
    """X with ((1−ω) I + ω K)^{1/2} = I + Pᵀ X P, where K is I + Pᵀ Q P, eigenvalues clipped at `most`.

    f(x) = √(1 + ω min(x, most − 1)) of the matrix Pᵀ Q P follows from f(A B) = f(0) I + A f₁(B A) B with
    f₁(x) = (f(x) − f(0)) / x, applied twice: X = f₁(0) Q + Q F f₂(x) Fᵀ Q, where
    f₂(x) = (f₁(x) − f₁(0)) / x, which is −ω² / (2 (1 + f)²) where nothing is clipped.
    """
    x, image = _spectrum(gram, core, quick)
    f = jnp.sqrt(jnp.maximum(1 + weight * jnp.minimum(x, most - 1), jnp.finfo(gram.dtype).eps))
    free = -(weight**2) / (2 * (1 + f) ** 2)
    large = jnp.where(x > most - 1, x, 1)
    clipped = ((f - 1) / large - weight / 2) / large
    second = jnp.where(x > most - 1, clipped, free)
    return weight / 2 * core + (image * second[None, :]) @ image.T


def clipped_core(gram: jax.Array, core: jax.Array, most: float) -> jax.Array:
    """Q of I + Pᵀ Q P with its eigenvalues clipped at `most`: as `mixed_root` with f(x) = 1 + min(x, most − 1)."""
    x, image = _spectrum(gram, core)
    large = jnp.where(x > most - 1, x, 1)
    second = jnp.where(x > most - 1, ((most - 1) / large - 1) / large, 0)
    return core + (image * second[None, :]) @ image.T


def _decouple(matrix: jax.Array, mask: Vector) -> jax.Array:
    """The matrix with the rows and columns of pruned parameters replaced by those of the identity."""
    return jnp.where(mask[:, None] & mask[None, :], matrix, jnp.eye(matrix.shape[0], dtype=matrix.dtype))


def prune_root(root: jax.Array, mask: Vector) -> jax.Array:
    """A factor of ((S Sᵀ)⁻¹_kept)⁻¹ from S, the identity on pruned parameters.

    With pruned parameters first, the last block of the triangular factor L of G is that of G's Schur complement, and
    Lᵀ comes from Sᵀ by orthogonal transformations, without squaring its condition.
    """
    order = jnp.argsort(mask, stable=True)
    lower = triangular(root[order].T).T
    return _decouple(jnp.zeros_like(root).at[order[:, None], order[None, :]].set(lower), mask)


def prune_matrix(matrix: jax.Array, mask: Vector) -> jax.Array:
    """(G⁻¹_kept)⁻¹ from G whole (d, d) or by its diagonal (d,), differentiable; the identity where pruned."""
    if matrix.ndim == 1:
        return jnp.where(mask, matrix, 1)
    return jnp.linalg.inv(_decouple(jnp.linalg.inv(matrix), mask))


def prune_core(core: jax.Array, identity: Scalar, pruned: jax.Array) -> jax.Array:
    """Q' of ((c I + Pᵀ Q P)⁻¹_kept)⁻¹ = c I + P_keptᵀ Q' P_kept, with D = P_pruned P_prunedᵀ.

    Q' = Q (I + D Q / c)⁻¹, by the Schur complement and Woodbury's identity; I + D Q / c has the eigenvalues of the
    pruned block of G / c, which are positive.
    """
    system = jnp.eye(core.shape[0], dtype=core.dtype) + pruned @ core / identity
    found = solve(system.T, core).T
    return (found + found.T) / 2
