"""Posterior averages that weight draws by their step size (the paper's φ̂ = Σ ε_k φ(θ_k) / S_K)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from ridgewalk._types import PyTree
from ridgewalk.run.result import Result


def _weights(result: Result) -> jax.Array:
    """ε_k / S_K of every draw: equal where the step size is constant."""
    sizes = jnp.asarray(result.step_sizes)
    return sizes / jnp.sum(sizes)


def _mean(weights: jax.Array, values: PyTree) -> PyTree:
    def average(leaf: jax.Array) -> jax.Array:
        values = jnp.asarray(leaf)
        if not jnp.issubdtype(values.dtype, jnp.inexact):
            values = values.astype(weights.dtype)  # indicators and counts
        return jnp.mean(jnp.tensordot(weights.astype(values.dtype), values, axes=(0, 1)), axis=0)

    return jax.tree.map(average, values)


def posterior_expectation(result: Result, function: Callable[[PyTree], PyTree]) -> PyTree:
    """E[function(θ)] over all chains and draws."""
    values = jax.jit(jax.vmap(jax.vmap(function)))(result.kept_positions())
    return _mean(_weights(result), values)


def posterior_mean(result: Result) -> PyTree:
    """E[θ], in the structure of the position."""
    if result.moments is not None:
        return jax.tree.map(lambda means: jnp.mean(means[result.alive], axis=0), result.moments.mean)
    return _mean(_weights(result), result.kept_positions())


def posterior_variance(result: Result) -> PyTree:
    """Var[θ] of every parameter, in the structure of the position."""
    centre = posterior_mean(result)
    if result.moments is not None:
        alive, weight = result.alive, result.moments.weight

        def pooled(means: jax.Array, squares: jax.Array, centre: jax.Array) -> jax.Array:
            within = squares[alive] / weight.astype(squares.dtype)
            return jnp.mean(within + (means[alive] - centre[None]) ** 2, axis=0)

        return jax.tree.map(pooled, result.moments.mean, result.moments.squares, centre)
    squares = jax.tree.map(lambda x, m: (x - m[None, None]) ** 2, result.kept_positions(), centre)
    return _mean(_weights(result), squares)


def posterior_std(result: Result) -> PyTree:
    """The posterior standard deviation of every parameter."""
    return jax.tree.map(jnp.sqrt, posterior_variance(result))


def posterior_covariance(result: Result) -> jax.Array:
    """Cov[θ] as a (d, d) matrix, rows in the order of `ravel_pytree(position)`; for small d."""
    flat = jax.vmap(jax.vmap(lambda position: ravel_pytree(position)[0]))(result.kept_positions())
    centred = flat - _mean(_weights(result), flat)[None, None]
    return jnp.einsum("k,cki,ckj->ij", _weights(result).astype(flat.dtype), centred, centred) / flat.shape[0]
