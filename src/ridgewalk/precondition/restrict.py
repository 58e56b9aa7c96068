"""An operator on the coordinates that a chain keeps, when it prunes others.

It is B = G⁻¹ that is restricted: the new G is (B_kept)⁻¹, the covariance of the kept coordinates given the pruned ones
where G was a covariance. The eigenvalues of G H, with H restricted too, then stay within the range they had (Cauchy's
interlacing), so that a stable step size stays stable; the kept block of G itself is larger, by as much as the pruned
coordinates explained of the others. Pruned coordinates are set apart: the operators map held vectors to held vectors.
"""

import jax
import jax.numpy as jnp

from ridgewalk._types import Scalar, Vector
from ridgewalk.precondition.factorise import solve, triangular


def _apart(matrix: jax.Array, mask: Vector) -> jax.Array:
    """The matrix with the rows and columns of pruned coordinates those of the identity."""
    return jnp.where(mask[:, None] & mask[None, :], matrix, jnp.eye(matrix.shape[0], dtype=matrix.dtype))


def restrict_root(root: jax.Array, mask: Vector) -> jax.Array:
    """A factor of ((S Sᵀ)⁻¹_kept)⁻¹ from S, the identity on pruned coordinates.

    With pruned coordinates first, the last block of the triangular factor L of G is that of G's Schur complement, and
    Lᵀ comes from Sᵀ by orthogonal transformations, without squaring its condition.
    """
    order = jnp.argsort(mask, stable=True)
    lower = triangular(root[order].T).T
    return _apart(jnp.zeros_like(root).at[order[:, None], order[None, :]].set(lower), mask)


def restrict_matrix(matrix: jax.Array, mask: Vector) -> jax.Array:
    """(G⁻¹_kept)⁻¹ from G whole (d, d) or by its diagonal (d,), differentiable; the identity where pruned."""
    if matrix.ndim == 1:
        return jnp.where(mask, matrix, 1)
    return jnp.linalg.inv(_apart(jnp.linalg.inv(matrix), mask))


def restrict_core(core: jax.Array, identity: Scalar, pruned: jax.Array) -> jax.Array:
    """Q' of ((c I + Pᵀ Q P)⁻¹_kept)⁻¹ = c I + P_keptᵀ Q' P_kept, with D = P_pruned P_prunedᵀ.

    Q' = Q (I + D Q / c)⁻¹, by the Schur complement and Woodbury's identity; I + D Q / c has the eigenvalues of the
    pruned block of G / c, which are positive.
    """
    system = jnp.eye(core.shape[0], dtype=core.dtype) + pruned @ core / identity
    found = solve(system.T, core).T
    return (found + found.T) / 2
