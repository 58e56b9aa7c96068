"""Mean and spread of a network's outputs over draws of its weights, a few examples at a time."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from ridgewalk._types import PyTree
from ridgewalk.surrogates.predictive import Predictive, with_least_spread
from ridgewalk.surrogates.problem import Problem, Spec, define

Array = NDArray[np.float64]

EXAMPLES_AT_ONCE = 256


def predict_scaled(spec: Spec, draws: PyTree, x: np.ndarray) -> Predictive:
    """μ and σ of observations in scaled units: σ² = Var_draws[f] + mean_draws[noise²]."""
    parts = [_compiled(spec).moments(draws, part) for part in _padded(x)]
    mean, variance = (np.concatenate([np.asarray(p[i], float) for p in parts])[: len(x)] for i in (0, 1))
    return with_least_spread(mean, variance)


def predict_each(spec: Spec, draws: PyTree, x: np.ndarray) -> np.ndarray:
    """The network's outputs (draw, example, output) for every draw, in scaled units; for few examples."""
    return np.asarray(_compiled(spec).each(draws, x))


def _padded(x: np.ndarray) -> list[np.ndarray]:
    """Slices of 256 examples; the last is filled up to a power of 2, so that few sizes are compiled."""
    parts = [x[i : i + EXAMPLES_AT_ONCE] for i in range(0, len(x), EXAMPLES_AT_ONCE)]
    last = parts[-1]
    wanted = 1 << (len(last) - 1).bit_length()
    parts[-1] = np.concatenate([last, np.repeat(last[-1:], wanted - len(last), axis=0)])
    return parts


Sums = tuple[jax.Array, jax.Array, jax.Array, jax.Array]
"""Draws counted, their mean, squares about it, and the noise's squares."""


class Compiled(NamedTuple):
    """The two ways to predict, compiled."""

    moments: Callable[[PyTree, Any], tuple[jax.Array, jax.Array]]
    each: Callable[[PyTree, Any], jax.Array]


def _compiled(spec: Spec) -> Compiled:
    try:
        return _remembered(spec)
    except TypeError:  # a network or prior that cannot be hashed
        return _compile(define(spec))


@lru_cache(maxsize=32)
def _remembered(spec: Spec) -> Compiled:
    return _compile(define(spec))


def _compile(problem: Problem) -> Compiled:
    def moments(draws: PyTree, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Welford's recursion over the draws: no array of all predictions is made."""
        first = jax.tree.map(lambda leaf: leaf[0], draws)
        shape = jax.eval_shape(problem.outputs, first, x)
        nothing = jnp.zeros(shape.shape, shape.dtype)

        def add(seen: Sums, draw: PyTree) -> tuple[Sums, None]:
            count, mean, squares, noise = seen
            value, count = problem.outputs(draw, x), count + 1
            change = value - mean
            mean = mean + change / count
            sigma = jnp.broadcast_to(problem.noise(draw), shape.shape[1:]).astype(shape.dtype)
            return (count, mean, squares + change * (value - mean), noise + sigma**2), None

        start = (jnp.zeros((), shape.dtype), nothing, nothing, jnp.zeros(shape.shape[1:], shape.dtype))
        (count, mean, squares, noise), _ = jax.lax.scan(add, start, draws)
        return mean, squares / jnp.maximum(count - 1, 1) + (noise / count)[None]

    def each(draws: PyTree, x: jax.Array) -> jax.Array:
        return jax.lax.map(lambda draw: problem.outputs(draw, x), draws)

    return Compiled(jax.jit(moments), jax.jit(each))
