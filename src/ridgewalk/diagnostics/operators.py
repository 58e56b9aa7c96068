"""The preconditioner as a run left it: its rank, what it makes of the curvature, and whether it learnt at all."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._types import Scalar, Vector
from ridgewalk.diagnostics.draws import Draws
from ridgewalk.diagnostics.gradients_at import seen_target
from ridgewalk.diagnostics.select import dimension, living_info, living_states, typical_step_size
from ridgewalk.dynamics.hamiltonian import Hamiltonian
from ridgewalk.dynamics.thermostat import Thermostat
from ridgewalk.kernel import State, preconditioner_matrix
from ridgewalk.precondition.base import Preconditioner, Settling
from ridgewalk.precondition.spectrum import largest_curvature
from ridgewalk.pruning import apply_mask, degrees_of_freedom
from ridgewalk.ravel import layout_of
from ridgewalk.target import Target

SMALL = 512
"""Up to so many parameters G is computed whole, above it is probed."""

PROBES = 64
CHAINS = 4


class PairShares(NamedTuple):
    """Of the curvature pairs seen at the draws: how many were damped, how many left out, and the mean θ_d."""

    pairs: int
    damped: float
    rejected: float
    mean_damping: float


class Stiffness(NamedTuple):
    """Eigenvalues of G H at the chains' final states: the largest and the mean, as medians over chains."""

    largest: float
    mean: float


def chosen_preconditioner(result: Draws) -> Preconditioner:
    """The preconditioner that the sampler took for these parameters."""
    form = layout_of(result.final_states[0].position)
    return result.sampler.preconditioner.specialise(form.size, form.unravel)


def pair_shares(result: Draws) -> PairShares:
    """Shares of damped (θ_d < 1) and rejected pairs among the draws whose step had a pair."""
    rule = chosen_preconditioner(result).learner
    due = result.draw_steps % rule.interval == 0 if isinstance(rule, Settling) else np.zeros(result.draws, bool)
    damping, rejected = living_info(result, "damping")[:, due], living_info(result, "rejected")[:, due]
    if damping.size == 0:
        return PairShares(0, 0.0, 0.0, 1.0)
    used = damping[rejected == 0]
    mean = float(used.mean()) if used.size else float("nan")
    return PairShares(damping.size, float((used < 1).sum() / damping.size), float(rejected.mean()), mean)


@jax.jit
def _traces(state: State) -> tuple[Scalar, Scalar]:
    """tr G and tr G², by Hutchinson's ±1 probes."""
    form = layout_of(state.position)
    probes = jax.random.rademacher(jax.random.key(0), (PROBES, form.size), form.dtype)

    def one(probe: Vector) -> tuple[Scalar, Scalar]:
        image = apply_mask(state.preconditioner.multiply(apply_mask(probe, state.mask)), state.mask)
        return jnp.vdot(probe, image), jnp.vdot(image, image)

    first, second = jax.lax.map(one, probes)
    return jnp.mean(first), jnp.mean(second)


def effective_rank(result: Draws) -> np.ndarray:
    """(tr G)² / tr(G²) of every chain's final G: d where all directions are alike, 1 where one has all the variance.

    From G itself up to 512 parameters, above that from 64 random probes; NaN for a chain that diverged.
    """
    ranks = []
    for state, alive in zip(result.final_states, result.alive, strict=True):
        if not alive:
            ranks.append(np.nan)
        elif dimension(result) <= SMALL:
            matrix = np.asarray(preconditioner_matrix(state), float)
            ranks.append(np.trace(matrix) ** 2 / (matrix**2).sum())
        else:
            first, second = map(float, _traces(state))
            ranks.append(first**2 / second)
    return np.array(ranks)


@jax.jit
def _stiffness(target: Target, state: State) -> tuple[Scalar, Scalar]:
    """The largest eigenvalue and the mean one of SᵀHS, which has those of G H."""
    form = layout_of(state.position)
    flat, operator, sketch = form.ravel(state.position), state.preconditioner, target.sketch()
    target = target if state.prior is None else target.frozen(state.prior)

    def whitened_gradient(x: Vector) -> Vector:
        position = form.unravel(flat + operator.factor(apply_mask(x, state.mask)))
        gradient = apply_mask(form.ravel(jax.grad(target.potential)(position, sketch)), state.mask)
        return apply_mask(operator.factor_transpose(gradient), state.mask)

    origin = jnp.zeros_like(flat)
    probes = jax.random.rademacher(jax.random.key(0), (PROBES // 4, form.size), form.dtype)
    traces = jax.lax.map(lambda probe: jnp.vdot(probe, jax.jvp(whitened_gradient, (origin,), (probe,))[1]), probes)
    return largest_curvature(whitened_gradient, origin), jnp.mean(traces) / degrees_of_freedom(state.mask, form.size)


def stiffness(result: Draws) -> Stiffness:
    """What the steps see of the curvature, on at most 1,024 examples: all ones for the ideal G."""
    target = seen_target(result.estimator.target)
    pairs = np.array([[float(x) for x in _stiffness(target, state)] for state in living_states(result)[:CHAINS]])
    return Stiffness(*(float(x) for x in np.median(pairs, axis=0)))


def largest_stable(result: Draws) -> float:
    """ε λ_max(G H) at which the dynamics stop being stable: 2, or with friction α, 2 (2 − α).

    On a Gaussian the variance along a direction with eigenvalue λ is 1 / (1 − ε λ / limit) times what it should be.
    """
    dynamics = result.sampler.dynamics
    if isinstance(dynamics, Hamiltonian):
        return 2 * (2 - dynamics.friction)
    if isinstance(dynamics, Thermostat):
        friction = np.mean([float(state.dynamics.friction) for state in living_states(result)])
        return 2 * (2 - float(np.clip(friction, 0, 1)))
    return 2.0


def stability_share(result: Draws, curvature: Stiffness) -> float:
    """ε λ_max(G H) as a share of what is stable."""
    return typical_step_size(result) * curvature.largest / largest_stable(result)


def is_finite(state: State) -> bool:
    """Whether every number of a chain's G is finite."""
    leaves = [leaf for leaf in jax.tree.leaves(state.preconditioner) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in leaves)


def is_scalar(state: State) -> bool:
    """Whether G still is a multiple of the identity, among kept coordinates, as every G that learns begins."""
    form = layout_of(state.position)
    probe = apply_mask(jax.random.normal(jax.random.key(3), (form.size,), form.dtype), state.mask)
    image = apply_mask(state.preconditioner.multiply(probe), state.mask)
    scale = jnp.vdot(probe, image) / jnp.vdot(probe, probe)
    distance = jnp.linalg.norm(image - scale * probe) / jnp.linalg.norm(image)
    return bool(distance < 100 * jnp.finfo(form.dtype).eps)
