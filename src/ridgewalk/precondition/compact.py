"""Low-rank corrections c I + Pᵀ Q P in terms of the small Gram matrix of the rows of P.

Everything here is m×m, with m the number of stored vectors; nothing divides by a small singular value, so rows
of P may be parallel (near convergence s and y of a whitened pair are).
"""

import jax
import jax.numpy as jnp

from ridgewalk._types import Scalar
from ridgewalk.precondition.factorise import cholesky, eigh
from ridgewalk.precondition.pairs import inverse, powell


def bfgs_core(
    gram: jax.Array, core: jax.Array, scale: Scalar, s: Scalar | int, y: Scalar | int, damping: float
) -> jax.Array:
    """Q after one damped BFGS update (eq. 6) of G = I/γ + Pᵀ Q P by the pair in rows s and y of P.

    G' = (I − ρ s ȳᵀ) G (I − ρ ȳ sᵀ) + ρ s sᵀ with ρ = 1 / sᵀȳ; rows of zeros leave Q as it is.
    """
    size = gram.shape[0]
    along_s, along_y = jax.nn.one_hot(s, size, dtype=gram.dtype), jax.nn.one_hot(y, size, dtype=gram.dtype)
    theta = powell(scale * gram[s, s], gram[s, y], damping)
    ybar = theta * along_y + (1 - theta) * scale * along_s
    seen = gram @ ybar
    rho = inverse(seen[s])
    image = ybar / scale + core @ seen
    cross = rho * along_s[:, None] * image[None, :]
    return core - cross - cross.T + rho * (1 + rho * (seen @ image)) * along_s[:, None] * along_s[None, :]


def _spectrum(gram: jax.Array, core: jax.Array, quick: bool = False) -> tuple[jax.Array, jax.Array]:
    """x = eig(Fᵀ Q F), the nonzero eigenvalues of Pᵀ Q P, and Q F along their axes, with W = P Pᵀ = F Fᵀ.

    `quick` takes the Cholesky factor of W, which a little more than rounding on its diagonal keeps regular: a tenth of
    the time, for callers who need no more than that of f.
    """
    lengths = jnp.sqrt(jnp.diagonal(gram))
    unit = inverse(lengths)
    cosines = gram * unit[:, None] * unit[None, :]
    if quick:
        size = len(gram)
        half = cholesky(cosines + 10 * size * jnp.finfo(gram.dtype).eps * jnp.eye(size, dtype=gram.dtype))
    else:
        spread, axes = eigh(cosines)
        half = axes * jnp.sqrt(jnp.maximum(spread, 0))[None, :]
    half = lengths[:, None] * half
    seen = core @ half
    x, turn = eigh(half.T @ seen)
    return x, seen @ turn


def mixed_root(gram: jax.Array, core: jax.Array, weight: Scalar | float, most: float, quick: bool = False) -> jax.Array:
    """X with ((1−ω) I + ω K)^{1/2} = I + Pᵀ X P, where K is I + Pᵀ Q P with its eigenvalues held below `most`.

    f(x) = √(1 + ω min(x, most − 1)) of the matrix Pᵀ Q P follows from f(A B) = f(0) I + A f₁(B A) B with
    f₁(x) = (f(x) − f(0)) / x, applied twice: X = f₁(0) Q + Q F f₂(x) Fᵀ Q, where
    f₂(x) = (f₁(x) − f₁(0)) / x, which is −ω² / (2 (1 + f)²) where nothing is held back.
    """
    x, seen = _spectrum(gram, core, quick)
    f = jnp.sqrt(jnp.maximum(1 + weight * jnp.minimum(x, most - 1), jnp.finfo(gram.dtype).eps))
    free = -(weight**2) / (2 * (1 + f) ** 2)
    large = jnp.where(x > most - 1, x, 1)
    held = ((f - 1) / large - weight / 2) / large
    second = jnp.where(x > most - 1, held, free)
    return weight / 2 * core + (seen * second[None, :]) @ seen.T


def held_core(gram: jax.Array, core: jax.Array, most: float) -> jax.Array:
    """Q of I + Pᵀ Q P with its eigenvalues held below `most`: as above with f(x) = 1 + min(x, most − 1)."""
    x, seen = _spectrum(gram, core)
    large = jnp.where(x > most - 1, x, 1)
    second = jnp.where(x > most - 1, ((most - 1) / large - 1) / large, 0)
    return core + (seen * second[None, :]) @ seen.T
