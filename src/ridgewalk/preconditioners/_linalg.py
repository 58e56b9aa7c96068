"""Linear algebra of preconditioners: small factorisations, low-rank updates and roots, and restriction to a mask.

Low-rank corrections c I + Pᵀ Q P are handled through the Gram matrix of the rows of P: everything is m×m, with m the
number of stored vectors, and nothing divides by a small singular value, so rows of P may be parallel (near convergence
s and y of a whitened pair are).

Pruning restricts B = G⁻¹: the new G is (B_kept)⁻¹, the conditional covariance of the kept parameters given the pruned
ones if G is a covariance. The eigenvalues of G H, with H restricted too, then stay within their former range (Cauchy
interlacing), so a stable step size stays stable. The kept block of G itself would be larger. Operators map vectors
that are zero in pruned parameters to such vectors.
"""

import jax
import jax.numpy as jnp

from ridgewalk._pytree import current_placement
from ridgewalk._types import Scalar, Vector

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
