"""Eigenvalues, factors and solutions of small matrices, one matrix after the other."""

import jax
import jax.numpy as jnp

# Under vmap, JAX's CPU kernels split a batch of matrices over the same threads that wait for them: four chains with
# matrices of 32 rows never came back on two cores (seen with JAX 0.10.2). One at a time they do, as fast.


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
    """R of the QR factorisation, with no negative number on its diagonal: Rᵀ is the Cholesky factor of AᵀA."""
    upper = jnp.linalg.qr(matrix, mode="r")
    return upper * jnp.where(jnp.diagonal(upper) < 0, -1, 1).astype(upper.dtype)[:, None]


@jax.custom_batching.sequential_vmap  # type: ignore[untyped-decorator]
def solve(matrix: jax.Array, right: jax.Array) -> jax.Array:
    """A⁻¹ B."""
    return jnp.linalg.solve(matrix, right)
