"""`sample`: the whole run, from a key to draws."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ridgewalk.gradients import GradientEstimator, as_estimator
from ridgewalk.kernel import Info, Sampler, State, build_kernel
from ridgewalk.run import checks
from ridgewalk.run.loop import Draws, Span, block_length, init_chains, run_chunk, take_chain
from ridgewalk.run.progress import progress_bar
from ridgewalk.run.result import Result
from ridgewalk.target import Posterior, Target
from ridgewalk.types import Key, PyTree

CHUNK_NUMBERS = 2**22
"""About how many parameters a chunk's draws hold on the device."""

LONGEST_CHUNK = 10_000
"""Steps between two looks of the host."""


def sample(
    key: Key,
    sampler: Sampler,
    target: Target | GradientEstimator,
    position: PyTree,
    *,
    steps: int,
    step_size: float | Callable[[Any], Any],
    batch_size: int | None = None,
    chains: int = 1,
    burn_in: int = 0,
    thin: int = 1,
    start_per_chain: bool = False,
    progress: bool = True,
) -> Result:
    """Run `chains` chains of `steps` steps and keep every `thin`-th position after `burn_in`.

    Args:
        key: a JAX random key; the same key gives the same draws.
        sampler: one of the recipes, such as `hasgld_sa()`, or a `Sampler(dynamics, preconditioner)`.
        target: a `Posterior`, a `Density`, or an estimator such as `control_variates(posterior, centre)`.
        position: where the chains start: any pytree of float arrays, whose structure and dtypes the draws keep.
        steps: steps of each chain, burn-in included.
        step_size: ε, a positive number or a schedule (any optax schedule: a function of the step, from 0); the drift
            is −ε G ∇U and the noise has covariance 2 ε T G.
        batch_size: examples drawn with replacement for each step; None uses the full data.
        chains: independent chains, run together.
        burn_in: first steps that are not kept.
        thin: keep one of so many positions.
        start_per_chain: `position` has a leading axis with one start per chain.
        progress: show a bar, where there is a terminal.
    """
    checks.check_kinds(sampler, target)
    checks.check_counts(steps, burn_in, thin, chains)
    epsilons = checks.step_sizes(step_size, steps)
    estimator = as_estimator(target)
    checks.check_data(estimator.target, batch_size)
    starts = _starts(checks.check_position(position), chains, start_per_chain)
    first = jax.tree.map(lambda x: x[0], starts)
    flat, unravel = ravel_pytree(first)
    sampler.preconditioner.specialise(flat.shape[0], unravel)
    for chain in range(chains if start_per_chain else 1):
        checks.check_functions(estimator.target, jax.tree.map(lambda x, c=chain: x[c], starts), batch_size)
    if isinstance(estimator.target, Posterior):
        estimator = jax.tree.map(jnp.asarray, estimator)

    states = init_chains(sampler, estimator, starts)
    keys = jax.random.split(key, chains)
    block = block_length(flat.shape[0], batch_size, chains, steps)
    chunk_draws = max(1, min(CHUNK_NUMBERS // (flat.shape[0] * chains), LONGEST_CHUNK // thin, steps // thin))
    longest = max(chunk_draws * thin, LONGEST_CHUNK)  # not of `steps`: longer runs then share the compiled loop
    store = _empty_draws(sampler, estimator, states, chunk_draws, batch_size)
    kept: list[Draws] = []
    with progress_bar(steps, progress) as advance:
        for start, stop in _spans(steps, burn_in, chunk_draws * thin, longest):
            sizes = np.zeros(longest)
            sizes[: stop - start] = epsilons[start:stop]
            span = Span(*map(jnp.asarray, (start, stop, burn_in, thin)))
            states, store = run_chunk(
                sampler,
                estimator,
                keys,
                states,
                store,
                jnp.asarray(sizes, flat.dtype),
                span,
                block=block,
                batch_size=batch_size,
            )
            done = (stop - burn_in) // thin - max(start - burn_in, 0) // thin if stop > burn_in else 0
            if done:
                kept.append(jax.tree.map(lambda x, n=done: np.array(x[:n]), store))
            advance(stop - start)

    draws = jax.tree.map(lambda *parts: jnp.asarray(np.swapaxes(np.concatenate(parts), 0, 1)), *kept)
    last_steps = np.arange(burn_in + thin - 1, steps, thin)
    return Result(
        draws.positions,
        tuple(take_chain(states, chain) for chain in range(chains)),
        draws.info,
        epsilons[last_steps],
        sampler,
    )


def _starts(position: PyTree, chains: int, per_chain: bool) -> PyTree:
    if not per_chain:
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (chains, *x.shape)), position)
    for path, leaf in jax.tree_util.tree_flatten_with_path(position)[0]:
        if leaf.ndim < 1 or leaf.shape[0] != chains:
            raise ValueError(
                f"position{jax.tree_util.keystr(path)}: shape {leaf.shape} has no leading axis of {chains} chains, "
                "which start_per_chain=True asks for"
            )
    return position


def _spans(steps: int, burn_in: int, drawing: int, longest: int) -> Iterator[tuple[int, int]]:
    """Pieces of the run: burn-in in long ones, then pieces that end with a whole draw."""
    start = 0
    while start < steps:
        stop = min(start + longest, burn_in) if start < burn_in else min(start + drawing, steps)
        yield start, stop
        start = stop


def _empty_draws(
    sampler: Sampler, estimator: GradientEstimator, states: State, slots: int, batch_size: int | None
) -> Draws:
    """Room for the draws of a chunk."""
    chains = jax.tree.leaves(states.position)[0].shape[0]
    info = jax.eval_shape(lambda: _one_info(sampler, estimator, states, batch_size))
    positions = jax.tree.map(lambda x: jnp.zeros((slots, *x.shape), x.dtype), states.position)
    return Draws(positions, jax.tree.map(lambda x: jnp.zeros((slots, chains, *x.shape), x.dtype), info))


def _one_info(sampler: Sampler, estimator: GradientEstimator, states: State, batch_size: int | None) -> Info:
    kernel = build_kernel(sampler, estimator)
    batch = None
    if isinstance(estimator.target, Posterior):
        batch = jax.tree.map(lambda x: x[:batch_size], estimator.target.data)
    return kernel.step(jax.random.key(0), take_chain(states, 0), batch, 1.0)[1]
