"""How the preconditioner converges: E‖G_k − G_*‖² against k, beside ω_k."""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._types import Key, Scalar
from ridgewalk.gradients import as_estimator
from ridgewalk.kernel import Sampler, State, build_kernel
from ridgewalk.run.loop import CHAINS, init_chains
from ridgewalk.schedules import PowerDecay
from ridgewalk.studies.problems import Problem
from ridgewalk.target import Posterior


def trace_operator(
    problem: Problem,
    sampler: Sampler,
    *,
    seed: int,
    step_size: float,
    batch_size: int,
    chains: int,
    marks: Sequence[int],
) -> np.ndarray:
    """G of every chain after each of the steps `marks`, whitened: Lᵀ G L with H = L Lᵀ, (mark, chain, d, d).

    Chains start at the mode. The runner keeps no operators on the way, so this walks the kernel itself.
    """
    assert isinstance(problem.target, Posterior)
    kernel = build_kernel(sampler, problem.target)
    data = problem.target.data
    size = jax.tree.leaves(data)[0].shape[0]

    @partial(jax.jit, donate_argnums=0)
    def walk(states: State, keys: Key, start: Scalar, stop: Scalar) -> State:
        def one(key: Key, state: State, k: Scalar) -> State:
            noise_key, batch_key = jax.random.split(jax.random.fold_in(key, k))
            rows = jax.random.randint(batch_key, (batch_size,), 0, size)
            batch = jax.tree.map(lambda x: x[rows], data)
            return kernel.step(noise_key, state, batch, step_size)[0]

        def body(k: Scalar, states: State) -> State:
            return jax.vmap(one, in_axes=(0, CHAINS, None), out_axes=CHAINS)(keys, states, k)

        return jax.lax.fori_loop(start, stop, body, states)

    starts = jnp.broadcast_to(jnp.asarray(problem.mode), (chains, problem.mode.size))
    states = init_chains(sampler, as_estimator(problem.target), starts)
    keys = jax.random.split(jax.random.key(seed), chains)
    factor = np.linalg.cholesky(problem.hessian)
    done, seen = 0, []
    for mark in marks:
        states = walk(states, keys, jnp.asarray(done), jnp.asarray(mark))
        done = mark
        seen.append(factor.T @ np.asarray(_matrices(states), float) @ factor)
    return np.stack(seen)


@jax.jit
def _matrices(states: State) -> jax.Array:
    def matrix(state: State) -> jax.Array:
        eye = jnp.eye(state.position.shape[0], dtype=state.position.dtype)
        return jax.vmap(state.preconditioner.multiply)(eye)

    return jax.vmap(matrix, in_axes=(CHAINS,))(states)


def square_distances(traces: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """‖G_k − G_*‖² / d in the whitened Frobenius norm, for (mark, chain)."""
    return np.sum((traces - centre) ** 2, axis=(2, 3)) / traces.shape[2]


def slope(k: np.ndarray, values: np.ndarray) -> float:
    """Of log values against log k, by least squares."""
    return float(np.polyfit(np.log(k), np.log(values), 1)[0])


def slope_with_error(k: np.ndarray, squares: np.ndarray, groups: int = 8) -> tuple[float, float]:
    """The slope of the mean over chains of (mark, chain), and its jackknife standard error over groups of chains."""
    parts = np.array_split(np.arange(squares.shape[1]), groups)
    left_out = [slope(k, np.delete(squares, part, axis=1).mean(axis=1)) for part in parts]
    error = np.sqrt((groups - 1) / groups * np.sum((np.array(left_out) - np.mean(left_out)) ** 2))
    return slope(k, squares.mean(axis=1)), float(error)


def predicted_slope(k: np.ndarray, adaptation: PowerDecay) -> float:
    """The slope of ω_k over the same k: −α once k is large beside c₂."""
    return slope(k, np.array([float(adaptation(jnp.asarray(float(value)))) for value in k]))
