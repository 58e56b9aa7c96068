"""A step size for networks, cheap and safe: a share of what is stable, less where gradients are noisy.

A chain is stable up to ε = 2/λ_max(G H). Where G has learnt H, batches of n from N examples add noise of variance
ε² G C G, C ≈ (N/n) H, to the 2 ε G that a step should have: a share of ε N/(2n). With ε = 0.1 (n/N) · 2/λ_max(G H),
both the discretisation and the share of gradient noise stay near a tenth. Dynamics with friction α put in only
2 ε α G of their own, and get a step α times as long.

Where the likelihood has a power w > 1 (`data_weight`), gradient noise is w times as large against the rest. Steps are
not made shorter for it, as chains of a few hundred steps would stand still: the directions that the data determine are
then sampled at a power of about w / (1 + w/10) instead of w.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._types import PyTree
from ridgewalk.dynamics.hamiltonian import Hamiltonian
from ridgewalk.gradients import as_estimator
from ridgewalk.kernel import Sampler
from ridgewalk.precondition.dense import Dense
from ridgewalk.precondition.dense_scaled import DenseScaled
from ridgewalk.precondition.lbfgs import LBFGS
from ridgewalk.precondition.limited import Limited
from ridgewalk.precondition.low_rank import LowRank
from ridgewalk.ravel import layout_of
from ridgewalk.run.health import stability_limit
from ridgewalk.surrogates.likelihoods import Batch
from ridgewalk.target import Posterior

SHARE = 0.1
SCALED_AT_START = Dense, DenseScaled, LowRank, Limited, LBFGS
"""Without a `first_curvature` they start at G₀ = I/λ_max(H), so that λ_max(G₀ H) = 1 and need not be measured."""
EXAMPLES = 64
"""Examples that λ_max is measured on: it comes from what the network does to all of them alike."""


def stable_step_size(sampler: Sampler, target: Posterior, position: PyTree, batch_size: int) -> float:
    """ε for the sampler with the preconditioner it starts from, at a mode."""
    form, size = layout_of(position), target.size
    chosen = sampler.preconditioner.specialise(form.size, form.unravel)
    scaled_at_start = isinstance(chosen, SCALED_AT_START) and chosen.first_curvature is None
    limit = 2.0 if scaled_at_start else _measured_limit(sampler, target, position)
    if not np.isfinite(limit):
        raise ValueError(
            "step_size: the curvature where sampling starts is zero or not finite, so 'auto' finds none; "
            "give a number, or more optimiser_steps"
        )
    dynamics = sampler.dynamics
    friction = dynamics.friction if isinstance(dynamics, Hamiltonian) and batch_size < size else 1.0
    return float(np.float32(SHARE * limit * friction * min(1.0, batch_size / size)))


def _measured_limit(sampler: Sampler, target: Posterior, position: PyTree) -> float:
    size = target.size
    rows = np.unique(np.linspace(0, size - 1, min(size, EXAMPLES)).astype(int))
    data = jax.tree.map(lambda x: jnp.asarray(x)[rows], target.data)
    few = Posterior(target.log_prior, _weighted(target.log_likelihood, size / len(rows)), data)
    return stability_limit(sampler, as_estimator(few), position)


def _weighted(log_likelihood: Any, weight: float) -> Callable[..., jax.Array]:
    def weighted(position: PyTree, batch: Batch) -> jax.Array:
        return weight * log_likelihood(position, batch)

    return weighted
