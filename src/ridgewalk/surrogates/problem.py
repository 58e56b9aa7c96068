"""The posterior of a network's weights, from the choices a person makes."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._types import Key, PyTree, Scalar
from ridgewalk.priors.base import AdaptivePrior
from ridgewalk.priors.by_leaf import prior_by_leaf
from ridgewalk.surrogates.likelihoods import Batch, gaussian, relative_l2
from ridgewalk.surrogates.model import Model, Network, Shape, count_weights
from ridgewalk.target import Posterior

LikelihoodName = Literal["gaussian", "relative_l2"]
NoiseKind = Literal["each", "shared"]

FIRST_NOISE, NOISE_WIDTH = 0.1, 2.0
"""log σ ~ N(log 0.1, 2²) for outputs scaled to a spread of 1."""


class Spec(NamedTuple):
    """What fixes the posterior beside the data; hashable, so that equal fits share what JAX compiled."""

    network: Network
    input_shape: Shape
    outputs: int
    examples: int
    likelihood: LikelihoodName
    prior: Any
    """A scale, or a prior of the network's weights; never of the noise, which has its own."""
    noise: NoiseKind
    relative_error: float
    data_weight: float
    """The power of the likelihood: how often every example counts."""
    units: tuple[tuple[float, ...], tuple[float, ...]] | None
    """Centre and scale of the outputs in units of their typical size, which the relative error needs."""
    dtype: str


class Problem(NamedTuple):
    """Positions are what `start` gives; `outputs` are the network's, in scaled units."""

    start: Callable[[Key], PyTree]
    log_prior: Any
    log_likelihood: Callable[[PyTree, Batch], jax.Array]
    outputs: Callable[[PyTree, jax.Array], jax.Array]
    noise: Callable[[PyTree], jax.Array]

    def posterior(self, x: jax.Array, y: jax.Array) -> Posterior:
        """With data."""
        return Posterior(self.log_prior, self.log_likelihood, (x, y))


def relative_gaussian(model: Model, scale: float) -> Callable[[PyTree], Scalar]:
    """log Π N(w; 0, (scale · r)²), r the root mean square of the weight's array where training starts.

    So layers of any width give outputs of about the size that they give at the start. Arrays that start at zero, such
    as biases, have r = 1.
    """
    start = jax.tree.leaves(model.init(jax.random.key(0)))
    sizes = [float(np.sqrt(np.mean(np.square(np.asarray(leaf, float))))) or 1.0 for leaf in start]

    def log_prior(weights: PyTree) -> Scalar:
        terms = [jnp.sum((w / (scale * r)) ** 2) for w, r in zip(jax.tree.leaves(weights), sizes, strict=True)]
        return -0.5 * sum(terms, start=jnp.zeros((), terms[0].dtype))

    return log_prior


def cold_weight(network: Network, input_shape: Shape, outputs: int, examples: int) -> float:
    """Weights over targets, at least 1."""
    weights = count_weights(jax.eval_shape(network.build(input_shape, outputs).init, jax.random.key(0)))
    return max(1.0, weights / (examples * outputs))


def define(spec: Spec) -> Problem:
    """The problem of a specification; the same object for the same specification, where it can be hashed."""
    try:
        return _remembered(spec)
    except TypeError:
        return _define(spec)


@lru_cache(maxsize=32)
def _remembered(spec: Spec) -> Problem:
    return _define(spec)


def _define(spec: Spec) -> Problem:
    model = spec.network.build(spec.input_shape, spec.outputs)
    log_weights = _plain_prior(spec.prior, model)
    if spec.likelihood == "gaussian":
        each = spec.outputs if spec.noise == "each" else None
        known = gaussian(model.apply, noise=FIRST_NOISE, noise_width=NOISE_WIDTH, outputs=each, log_weights=log_weights)
    else:
        temperature = spec.relative_error / spec.outputs
        known = relative_l2(_in_units(model, spec), temperature=temperature, log_weights=log_weights)

    def start(key: Key) -> PyTree:
        return known.start(jax.tree.map(lambda w: w.astype(spec.dtype), model.init(key)))

    def weights(position: PyTree) -> PyTree:
        return position["network"] if spec.likelihood == "gaussian" else position

    def weighted(position: PyTree, batch: Batch) -> jax.Array:
        return spec.data_weight * known.log_likelihood(position, batch)

    return Problem(
        start=start,
        log_prior=_whole_prior(spec, known.log_prior),
        log_likelihood=weighted,
        outputs=lambda position, x: model.apply(weights(position), x),
        noise=known.noise,
    )


def _plain_prior(prior: Any, model: Model) -> Callable[[PyTree], Scalar]:
    """log p of the network's weights, but for what an adaptive prior adds."""
    if isinstance(prior, int | float | np.number):
        return relative_gaussian(model, float(prior))
    return _nothing if isinstance(prior, AdaptivePrior) else prior


def _whole_prior(spec: Spec, plain: Callable[[PyTree], Scalar]) -> Any:
    """The prior of all that is sampled: an adaptive one learns from the weights only, never from the noise."""
    if not isinstance(spec.prior, AdaptivePrior):
        return plain
    return prior_by_leaf({"log_noise": _noise_prior}, spec.prior) if spec.likelihood == "gaussian" else spec.prior


def _noise_prior(leaves: PyTree) -> Scalar:
    """log σ ~ N(log 0.1, 2²), without its constant."""
    return -0.5 * jnp.sum(((leaves["log_noise"] - float(np.log(FIRST_NOISE))) / NOISE_WIDTH) ** 2)


def _nothing(weights: PyTree) -> Scalar:
    return jnp.zeros((), jax.tree.leaves(weights)[0].dtype)


def _in_units(model: Model, spec: Spec) -> Callable[[PyTree, jax.Array], jax.Array]:
    """The network's outputs with centre and spread put back."""
    assert spec.units is not None
    centre, scale = (np.asarray(part, spec.dtype) for part in spec.units)

    def apply(weights: PyTree, x: jax.Array) -> jax.Array:
        return jnp.asarray(centre)[None] + jnp.asarray(scale)[None] * model.apply(weights, x)

    return apply
