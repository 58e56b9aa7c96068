"""A prior of the weights in units of the functions that it makes, whatever the network's initialisation.

Every weight is w = centre + unit · s · z with z ~ N(0, 1) a priori:

- arrays of two or more axes, the weights of layers: the unit is c · r, r the root mean square of the array at
  initialisation and c one number for the network; s = exp(t), t ~ N(0, 1) is the scale of the array, which is sampled
  with the weights (or 1, where scales are fixed);
- vectors and scalars (biases, gains): unit 1, s = 1, and the centre is 0, or what they are initialised to if that is
  a constant, as for the gain of a layer norm.

c is found by measurement: for standard normal inputs, the functions of the prior with all s = 1 vary over the inputs
with a standard deviation of `variation`, in the root mean square over functions and outputs. Networks of equinox, of
flax and of this library, whose initialisations differ by constant factors, have the same prior then.

The posterior is sampled in z and t: the prior's scale does not enter its curvature, and the chains start where the
network's initialisation is.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._compilation import jit, quick_compilation
from ridgewalk._types import PyTree, Scalar
from ridgewalk.neural.networks import Model, Shape, count_weights

SCALE_WIDTH = 1.0
"""Standard deviation of the logarithm of an array's scale."""

FUNCTIONS, INPUTS = 64, 128
"""Functions of the prior, and inputs, that the variation is measured on."""

MOST_WORK = 2**27
"""Weights × functions × inputs of a measurement: larger networks are measured on fewer."""

ITERATIONS, TOLERANCE = 30, 0.01


class LeafPrior(NamedTuple):
    """Of one array of weights."""

    centre: float
    unit: float
    scaled: bool
    """Whether it has a scale of its own."""


class FunctionPrior(NamedTuple):
    """The map from coordinates (z, t) to weights, and the log density of the coordinates."""

    leaves: tuple[LeafPrior, ...]
    learnt: bool
    """Whether scales are sampled."""

    @property
    def scales(self) -> int:
        """The number of scales."""
        return sum(leaf.scaled for leaf in self.leaves) if self.learnt else 0

    def weights(self, z: PyTree, scales: jax.Array | None) -> PyTree:
        """The weights at coordinates."""
        flat, structure = jax.tree.flatten(z)
        found, number = [], 0
        for leaf, prior in zip(flat, self.leaves, strict=True):
            size: Any = prior.unit
            if prior.scaled and self.learnt and scales is not None:
                size = size * jnp.exp(SCALE_WIDTH * scales[number])
                number += 1
            found.append(prior.centre + (size * leaf).astype(leaf.dtype))
        return jax.tree.unflatten(structure, found)

    def coordinates(self, weights: PyTree) -> PyTree:
        """z of weights, where all scales are 1."""
        flat, structure = jax.tree.flatten(weights)
        parts = [((w - prior.centre) / prior.unit).astype(w.dtype) for w, prior in zip(flat, self.leaves, strict=True)]
        return jax.tree.unflatten(structure, parts)

    def log_density(self, z: PyTree, scales: jax.Array | None) -> Scalar:
        """Standard normals, without constants."""
        terms = [jnp.sum(leaf**2) for leaf in jax.tree.leaves(z)]
        if self.learnt and scales is not None:
            terms.append(jnp.sum(scales**2))
        return -0.5 * sum(terms, start=jnp.zeros((), terms[0].dtype))


def function_prior(
    model: Model, input_shape: Shape, outputs: int, variation: float, *, learnt: bool = True
) -> FunctionPrior:
    """The prior whose functions vary by `variation`; of the network's outputs only the first `outputs` count."""
    starts = [[np.asarray(leaf, float) for leaf in jax.tree.leaves(model.init(jax.random.key(k)))] for k in (0, 1)]
    leaves = tuple(map(_leaf_prior, *starts))
    unit = FunctionPrior(leaves, learnt=False)
    weights = count_weights(starts[0])
    share = max(1, -(-weights * FUNCTIONS * INPUTS // MOST_WORK))
    functions, inputs = max(2, FUNCTIONS // min(share, 16)), max(8, INPUTS // max(1, share // 16))
    like = jax.eval_shape(model.init, jax.random.key(0))

    @jit
    def spread(factor: jax.Array) -> jax.Array:
        """Root mean square, over functions and outputs, of the standard deviation over inputs."""
        keys = jax.random.split(jax.random.key(2), functions)
        x = jax.random.normal(jax.random.key(3), (inputs, *input_shape))

        def variance(key: jax.Array) -> jax.Array:
            own = jax.random.split(key, len(leaves))
            flat, structure = jax.tree.flatten(like)
            z = [jax.random.normal(k, leaf.shape, leaf.dtype) for k, leaf in zip(own, flat, strict=True)]
            stretched = [factor * one if prior.scaled else one for one, prior in zip(z, leaves, strict=True)]
            raw = model.apply(unit.weights(jax.tree.unflatten(structure, stretched), None), x)
            return jnp.mean(jnp.var(raw[:, :outputs], axis=0))

        return jnp.sqrt(jnp.mean(jax.lax.map(variance, keys)))

    def log_spread(log_factor: float) -> float:
        with np.errstate(divide="ignore"):
            return float(np.log(spread(jnp.asarray(np.exp(log_factor), jnp.float32))))

    with quick_compilation():
        factor = _solve(log_spread, float(np.log(variation)))
    stretched = tuple(leaf._replace(unit=leaf.unit * factor) if leaf.scaled else leaf for leaf in leaves)
    return FunctionPrior(stretched, learnt)


def _leaf_prior(first: np.ndarray, second: np.ndarray) -> LeafPrior:
    if first.ndim < 2:
        constant = np.ptp(first) == 0 and np.array_equal(first, second)
        return LeafPrior(float(first.flat[0]) if constant else 0.0, 1.0, scaled=False)
    size = float(np.sqrt(np.mean(np.square([first, second]))))
    return LeafPrior(0.0, size or 1.0, scaled=True)


def _solve(log_spread: Callable[[float], float], wanted: float) -> float:
    """exp(x) with log_spread(x) = wanted, for an increasing function: the secant method, kept within a bracket."""
    x, slope, low, high = 0.0, 1.0, -np.inf, np.inf
    before: tuple[float, float] | None = None
    for _ in range(ITERATIONS):
        gap = wanted - log_spread(x)
        if not np.isfinite(gap):
            raise ValueError("network: its outputs at random weights are constant or not finite, so they have no prior")
        if abs(gap) < TOLERANCE:
            break
        low, high = (x, high) if gap > 0 else (low, x)
        if before is not None and x != before[0]:
            slope = float(np.clip((before[1] - gap) / (x - before[0]), 0.3, 20.0))
        before = x, gap
        x = x + float(np.clip(gap / slope, -3.0, 3.0))
        if not low < x < high:
            x = 0.5 * (low + high)
    return float(np.exp(x))
