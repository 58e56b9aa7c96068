"""Likelihoods of a network's outputs, with Gaussian priors on its weights, ready for `ridgewalk.Posterior`:

    likelihood = gaussian(model.apply)
    target = rw.Posterior(likelihood.log_prior, likelihood.log_likelihood, data=(x, y))
    rw.sample(key, sampler, target, likelihood.start(model.init(key)), …)

Data are pairs of inputs (example, …) and targets (example, output).
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._types import PyTree, Scalar

Apply = Callable[[PyTree, jax.Array], jax.Array]
Batch = tuple[jax.Array, jax.Array]
LogWeights = Callable[[PyTree], Scalar]
"""A log prior of a network's parameters."""


class Likelihood(NamedTuple):
    """A position is what `start` makes of a network's parameters; the other functions take positions."""

    start: Callable[[PyTree], PyTree]
    log_prior: Callable[[PyTree], Scalar]
    log_likelihood: Callable[[PyTree, Batch], jax.Array]
    """One value for each example of a batch."""
    predict: Callable[[PyTree, jax.Array], jax.Array]
    """The network's outputs, without noise."""
    noise: Callable[[PyTree], jax.Array]
    """The standard deviation σ of the observations, a number or (output,)."""


def gaussian(
    apply: Apply,
    *,
    prior_scale: float = 1.0,
    noise: float = 0.1,
    noise_width: float = 1.0,
    outputs: int | None = None,
    log_weights: LogWeights | None = None,
) -> Likelihood:
    """y_i ~ N(F(x_i), σ²) for each output, with log σ a parameter: log σ ~ N(log noise, noise_width²).

    Weights have the prior N(0, prior_scale²), or what `log_weights` says. With `outputs`, each output has its own σ;
    with `noise_width = 0` σ is fixed at `noise`, and positions are the network's parameters as they are.
    """
    _check_positive(prior_scale=prior_scale, noise=noise)
    if not (np.isfinite(noise_width) and noise_width >= 0):
        raise ValueError(
            f"noise_width: {noise_width} is no standard deviation of log σ; give a number ≥ 0, 0 for fixed"
        )
    if outputs is not None and outputs < 1:
        raise ValueError(f"outputs: {outputs}; give the number of outputs, or None for one σ")
    learnt = noise_width > 0
    weights_prior = log_weights or partial(_log_weights, scale=prior_scale)
    centre = float(np.log(noise))
    shape = () if outputs is None else (outputs,)

    def start(parameters: PyTree) -> PyTree:
        if not learnt:
            return parameters
        dtype = jnp.result_type(*jax.tree.leaves(parameters))
        return {"network": parameters, "log_noise": jnp.full(shape, centre, dtype)}

    def network(position: PyTree) -> PyTree:
        return position["network"] if learnt else position

    def log_noise(position: PyTree) -> jax.Array:
        return position["log_noise"] if learnt else jnp.full(shape, centre)

    def log_prior(position: PyTree) -> Scalar:
        value = weights_prior(network(position))
        return value - 0.5 * jnp.sum(((log_noise(position) - centre) / noise_width) ** 2) if learnt else value

    def log_likelihood(position: PyTree, batch: Batch) -> jax.Array:
        x, y = batch
        guessed = apply(network(position), x)
        logarithm = jnp.broadcast_to(log_noise(position), guessed.shape[1:]).astype(guessed.dtype)[None]
        z = (y - guessed) * jnp.exp(-logarithm)
        return jnp.sum(-0.5 * z**2 - logarithm - 0.5 * float(np.log(2 * np.pi)), axis=1)

    return Likelihood(
        start,
        log_prior,
        log_likelihood,
        lambda position, x: apply(network(position), x),
        lambda position: jnp.exp(log_noise(position)),
    )


def relative_l2(
    apply: Apply, *, temperature: float, prior_scale: float = 1.0, log_weights: LogWeights | None = None
) -> Likelihood:
    """The paper's loss as a tempered likelihood: log p(y_i | θ) = −(‖F(x_i) − y_i‖₂ / ‖y_i‖₂) / temperature.

    This is no density of y that sums to one, so it says nothing of observation noise (`noise` gives 0), and the width
    of the posterior follows `temperature`: about the relative error that one example may have. Targets must not be
    zero everywhere; `relative_errors` finds those that are.
    """
    _check_positive(temperature=temperature, prior_scale=prior_scale)

    def log_likelihood(parameters: PyTree, batch: Batch) -> jax.Array:
        x, y = batch
        difference = apply(parameters, x) - y
        tiny = jnp.finfo(difference.dtype).tiny  # the root has no slope at zero
        error = jnp.sqrt(jnp.sum(difference**2, axis=1) + tiny)
        return -error / (jnp.linalg.norm(y, axis=1) * temperature)

    return Likelihood(
        lambda parameters: parameters,
        log_weights or partial(_log_weights, scale=prior_scale),
        log_likelihood,
        apply,
        lambda parameters: jnp.zeros(()),
    )


def _log_weights(parameters: PyTree, scale: float) -> Scalar:
    """log N(0, scale²) of all weights, without its constant."""
    squares = (jnp.sum(leaf**2) for leaf in jax.tree.leaves(parameters))
    return -0.5 / scale**2 * sum(squares, start=jnp.zeros(()))


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not (np.isfinite(value) and value > 0):
            raise ValueError(f"{name}: {value} is not positive and finite")
