"""Gaussian approximations of the posterior around modes: Laplace's, and SWAG. Baselines for sampling.

**Laplace.** At each mode the Hessian of −log posterior is replaced by the generalised Gauss–Newton matrix
H = Σ_i w_i J_iᵀ Λ_i J_i + P, J_i the Jacobian of the network's outputs for example i, Λ_i the Hessian of the negative
log likelihood in the outputs (negative eigenvalues set to 0), P that of the prior. Predictions are those of the network
linearised at the mode, for weights θ ~ N(mode, H⁻¹), as this H assumes (Immer, Korzepa and Bauer 2021). The noise is
that of the mode.

**SWAG** (Maddox et al. 2019): stochastic gradient descent from each mode with a constant learning rate; the mean,
the diagonal of the covariance and the last deviations of its positions give a Gaussian with a covariance of low rank
plus diagonal.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ridgewalk._compilation import jit
from ridgewalk._types import Key, PyTree, Vector
from ridgewalk.neural.posterior import NetworkPosterior
from ridgewalk.preconditioners.base import largest_curvature
from ridgewalk.target import Posterior

MOST_DENSE = 4_000
"""Parameters up to which H is formed."""

ROWS_AT_ONCE = 64

SWAG_STEPS, SWAG_BATCH, SWAG_RANK = 1_000, 32, 20
"""Steps of gradient descent, examples of each, and deviations that are kept."""

SWAG_EVERY = 10
"""Steps between positions that count."""


def laplace_draws(key: Key, posterior: NetworkPosterior, target: Posterior, starts: PyTree, count: int) -> PyTree:
    """Parameters (chain, draw, …) with a "tangent": the deviation of the weights from the mode."""
    size = _size(starts)
    if size > MOST_DENSE:
        raise ValueError(
            f"method: 'laplace' needs a matrix of {size:,} × {size:,} numbers for this network; it is formed for up to "
            f"{MOST_DENSE:,} weights. Use method='swag' or 'sample', or a smaller network"
        )
    chains = len(jax.tree.leaves(starts)[0])
    found = []
    for chain in range(chains):
        start = jax.tree.map(lambda leaf, c=chain: jnp.asarray(leaf[c]), starts)
        found.append(_laplace(jax.random.fold_in(key, chain), target, start, posterior=posterior, count=count))
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *found)


def _size(starts: PyTree) -> int:
    sampled = _sampled_part(jax.tree.map(lambda leaf: leaf[0], starts))
    return sum(np.size(leaf) for leaf in jax.tree.leaves(sampled))


def _sampled_part(position: PyTree) -> PyTree:
    """The weights and their scales; the likelihood's own parameters stay at the mode."""
    return {name: position[name] for name in ("network", "scales") if name in position}


class _Curvature(NamedTuple):
    """At a mode: the flat weights, H by its eigenvalues and eigenvectors, and the parameters of flat weights."""

    flat: Vector
    values: jax.Array
    vectors: jax.Array
    parameters: Callable[[Vector], PyTree]


def _curvature(target: Posterior, position: PyTree, posterior: NetworkPosterior) -> _Curvature:
    flat, unravel = ravel_pytree(_sampled_part(position))
    own = {name: leaf for name, leaf in position.items() if name not in ("network", "scales")}

    def parameters(vector: Vector) -> PyTree:
        return posterior.parameters({**position, **unravel(vector)})

    def loss(raw: jax.Array, y: jax.Array) -> jax.Array:
        return -posterior.likelihood.log_likelihood(own, raw[None], y[None])[0]

    def terms(example: Any) -> tuple[jax.Array, jax.Array]:
        """The Jacobian of the outputs, and the Hessian of −log likelihood in them."""
        x, y, _ = example

        def outputs(vector: Vector) -> jax.Array:
            return posterior.raw(parameters(vector), x[None])[0]

        values, vectors = jnp.linalg.eigh(jax.hessian(loss)(outputs(flat), y))
        return jax.jacrev(outputs)(flat), (vectors * jnp.maximum(values, 0)[None]) @ vectors.T

    def add(total: jax.Array, rows: Any) -> tuple[jax.Array, None]:
        jacobian, inner = jax.vmap(terms)(rows)
        scaled = jnp.einsum("nab,nbp->nap", rows[2][:, None, None] * inner, jacobian)
        return total + jnp.einsum("nap,naq->pq", jacobian, scaled), None

    log_prior: Any = target.log_prior
    prior = -jax.hessian(lambda vector: log_prior({**position, **unravel(vector)}))(flat)
    hessian, _ = jax.lax.scan(add, prior, _in_blocks(target.data))
    values, vectors = jnp.linalg.eigh(hessian)
    return _Curvature(flat, jnp.maximum(values, 1e-6), vectors, parameters)


def _in_blocks(data: Any) -> Any:
    """Rows in blocks; rows that fill the last block have weight 0."""
    x, y, weights = data
    rows = -(-weights.shape[0] // ROWS_AT_ONCE) * ROWS_AT_ONCE
    more = rows - weights.shape[0]
    filled = (
        jnp.concatenate([x, jnp.repeat(x[-1:], more, axis=0)]),
        jnp.concatenate([y, jnp.repeat(y[-1:], more, axis=0)]),
        jnp.concatenate([weights, jnp.zeros(more, weights.dtype)]),
    )
    return jax.tree.map(lambda leaf: leaf.reshape(-1, ROWS_AT_ONCE, *leaf.shape[1:]), filled)


@partial(jit, static_argnames=("posterior", "count"))
def _laplace(key: Key, target: Posterior, position: PyTree, *, posterior: NetworkPosterior, count: int) -> PyTree:
    found = _curvature(target, position, posterior)
    normals = jax.random.normal(key, (count, found.flat.shape[0]), found.flat.dtype)
    deviations = (normals / jnp.sqrt(found.values)[None]) @ found.vectors.T

    def tangent(deviation: Vector) -> PyTree:
        at, along = jax.jvp(found.parameters, (found.flat,), (deviation,))
        return {**at, "tangent": along["network"]}

    return jax.lax.map(tangent, deviations)


def swag_draws(key: Key, target: Posterior, starts: PyTree, examples: int, count: int) -> tuple[PyTree, int]:
    """Positions (chain, draw, …), and the number of steps of gradient descent."""
    chains = len(jax.tree.leaves(starts)[0])
    found = []
    for chain in range(chains):
        start = jax.tree.map(lambda leaf, c=chain: jnp.asarray(leaf[c]), starts)
        flat, unravel = ravel_pytree(start)
        steepest = _steepest(target, start)
        rate = jnp.asarray(0.5 / max(float(steepest), 1e-12), flat.dtype)
        rows = jnp.asarray(examples, jnp.int32)
        draws = _swag(jax.random.fold_in(key, chain), target, start, rate, rows, count=count)
        found.append(jax.vmap(unravel)(draws))
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *found), SWAG_STEPS


@jit
def _steepest(target: Posterior, position: PyTree) -> jax.Array:
    flat, unravel = ravel_pytree(position)
    gradient = jax.grad(lambda vector: target.potential(unravel(vector), target.data))
    return jnp.abs(largest_curvature(gradient, flat))


@partial(jit, static_argnames="count")
def _swag(
    key: Key, target: Posterior, position: PyTree, rate: jax.Array, examples: jax.Array, *, count: int
) -> jax.Array:
    """Draws (draw, parameter) of the Gaussian; batches are of the first rows, those that are not padding."""
    flat, unravel = ravel_pytree(position)
    order, normals = jax.random.split(key)
    log_prior: Any = target.log_prior
    log_likelihood: Any = target.log_likelihood

    def potential(vector: Vector, rows: jax.Array) -> jax.Array:
        batch = jax.tree.map(lambda leaf: leaf[rows], target.data)
        weight = examples / rows.shape[0]
        likelihood = jnp.sum(log_likelihood(unravel(vector), batch))
        return -log_prior(unravel(vector)) - weight * likelihood

    def step(carry: Any, k: jax.Array) -> tuple[Any, None]:
        at, mean, squares, deviations = carry
        rows = jax.random.randint(jax.random.fold_in(order, k), (SWAG_BATCH,), 0, examples)
        at = at - rate * jax.grad(potential)(at, rows)
        number = k // SWAG_EVERY
        due = k % SWAG_EVERY == 0
        new = mean + (at - mean) / (number + 1)
        spread = squares + (at**2 - squares) / (number + 1)
        kept = deviations.at[number % SWAG_RANK].set(at - new)
        chosen = jax.tree.map(lambda a, b: jnp.where(due, a, b), (new, spread, kept), (mean, squares, deviations))
        return (at, *chosen), None

    nothing = jnp.zeros((SWAG_RANK, flat.shape[0]), flat.dtype)
    (_, mean, squares, deviations), _ = jax.lax.scan(step, (flat, flat, flat**2, nothing), jnp.arange(SWAG_STEPS))
    diagonal = jnp.sqrt(jnp.maximum(squares - mean**2, 0))
    first, second = jax.random.split(normals)
    wide = jax.random.normal(first, (count, flat.shape[0]), flat.dtype) * diagonal[None]
    low = jax.random.normal(second, (count, SWAG_RANK), flat.dtype) @ deviations
    return mean[None] + wide / jnp.sqrt(2.0) + low / jnp.sqrt(2.0 * (SWAG_RANK - 1))
