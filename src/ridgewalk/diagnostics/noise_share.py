"""How much of a step's randomness comes from the minibatch instead of from the sampler."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._types import PyTree, Scalar
from ridgewalk.data import Batches
from ridgewalk.diagnostics.draws import Draws
from ridgewalk.diagnostics.gradients_at import FreshBatches, seen_target
from ridgewalk.diagnostics.select import living_states, typical_step_size
from ridgewalk.dynamics.base import Dynamics
from ridgewalk.dynamics.hamiltonian import Hamiltonian
from ridgewalk.dynamics.thermostat import Thermostat
from ridgewalk.gradients import GradientEstimator, with_prior
from ridgewalk.kernel import State
from ridgewalk.pruning import apply_mask, degrees_of_freedom
from ridgewalk.ravel import layout_of
from ridgewalk.target import Density

CHAINS = 4
BATCHES = 64


@jax.jit
def _spread(estimator: GradientEstimator, state: State, batches: PyTree) -> Scalar:
    """tr(G V) / d at a state, V the covariance of the gradient estimate over batches."""
    form = layout_of(state.position)
    estimator = with_prior(estimator, state.prior)

    def whitened(batch: PyTree) -> jax.Array:
        gradient = jax.grad(estimator.target.potential)(state.position, batch)
        correction = estimator.correction(state.estimator, batch)
        if correction is not None:
            gradient = jax.tree.map(jnp.add, gradient, correction)
        return apply_mask(
            state.preconditioner.factor_transpose(apply_mask(form.ravel(gradient), state.mask)), state.mask
        )

    def add(carry: tuple[jax.Array, Scalar, Scalar], batch: PyTree) -> tuple[Any, None]:
        mean, squares, count = carry  # Welford's sums: no array of all gradients, and no cancellation
        vector, count = whitened(batch), count + 1
        change = vector - mean
        mean = mean + change / count
        return (mean, squares + jnp.vdot(change, vector - mean), count), None

    nothing = jnp.zeros((), form.dtype)
    (_, squares, count), _ = jax.lax.scan(add, (jnp.zeros(form.size, form.dtype), nothing, nothing), batches)
    return squares / (count - 1) / degrees_of_freedom(state.mask, form.size)


def _expected(dynamics: Dynamics) -> tuple[float, float]:
    """A step's noise in units of 2 ε G: T, or α T with friction α. Then what of it is left to the gradients."""
    if isinstance(dynamics, Hamiltonian):
        return dynamics.friction * dynamics.temperature, dynamics.gradient_noise
    share = dynamics.diffusion if isinstance(dynamics, Thermostat) else 1.0
    return share * dynamics.temperature, 0.0


def gradient_noise_share(result: Draws, *, batches: int = BATCHES, seed: int = 0) -> float:
    """ε² tr(G V G) against a step's noise, 2 ε T tr(G), both whitened: ε tr(G V) / (2 T d), with friction α over α.

    V is the covariance of the gradient estimate over batches, at the chains' final states with the final G. What SGHMC
    was told to expect (`gradient_noise`) is taken off: less than that is negative. Without a thermostat the draws'
    variances come out too large by about this share.
    """
    target, dynamics = result.estimator.target, result.sampler.dynamics
    if isinstance(target, Density) or (result.batch_size is None and not isinstance(target.data, Batches)):
        return 0.0
    if not dynamics.temperature > 0:
        return float("inf")
    estimator: Any = result.estimator
    estimator = jax.tree.map(jnp.asarray, replace(estimator, target=seen_target(target)))
    source = FreshBatches(target, result.batch_size or 0, seed)
    states = living_states(result)[:CHAINS]
    spread = np.mean([float(_spread(estimator, state, source.take(batches))) for state in states])
    whole, left = _expected(dynamics)
    return float((typical_step_size(result) * spread / 2 - left) / whole)
