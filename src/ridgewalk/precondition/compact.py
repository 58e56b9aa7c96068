"""Low-rank corrections c I + Pᵀ Q P in terms of the small Gram matrix of the rows of P.

Everything here is m×m, with m the number of stored vectors; nothing divides by a small singular value, so rows
of P may be parallel (near convergence s and y of a whitened pair are).
"""

import jax
import jax.numpy as jnp

from ridgewalk.precondition.pairs import inverse, powell
from ridgewalk.types import Scalar


def bfgs_core(
    gram: jax.Array, core: jax.Array, scale: Scalar, s: Scalar | int, y: Scalar | int, damping: float
) -> jax.Array:
    """Q after one damped BFGS update (eq. 5) of G = I/γ + Pᵀ Q P by the pair in rows s and y of P.

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


def symmetric_root(gram: jax.Array, core: jax.Array) -> jax.Array:
    """X with (I + Pᵀ Q P)^{1/2} = I + Pᵀ X P.

    With W = P Pᵀ = F Fᵀ and r² = 1 + eig(Fᵀ Q F), the identity f(A B) = f(0) I + A f̃(B A) B, f̃(x) = (f(x) − f(0)) / x,
    applied twice gives X = ½ Q − ½ Q F (1 + r)^{−2} Fᵀ Q.
    """
    lengths = jnp.sqrt(jnp.diagonal(gram))
    unit = inverse(lengths)
    spread, axes = jnp.linalg.eigh(gram * unit[:, None] * unit[None, :])
    half = lengths[:, None] * axes * jnp.sqrt(jnp.maximum(spread, 0))[None, :]
    seen = core @ half
    change, turn = jnp.linalg.eigh(half.T @ seen)
    r = jnp.sqrt(jnp.maximum(1 + change, jnp.finfo(gram.dtype).eps))
    seen = seen @ turn
    return 0.5 * core - 0.5 * (seen / (1 + r) ** 2) @ seen.T
