"""Pointwise log likelihood: of every example at every draw, for PSIS-LOO and WAIC."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._types import PyTree
from ridgewalk.data import Batches, on_host, read_rows
from ridgewalk.diagnostics.draw_access import require_positions
from ridgewalk.diagnostics.gradients import targets_by_chain
from ridgewalk.result import Result
from ridgewalk.target import Posterior, Target, on_device

DRAW_BLOCK = 64
EXAMPLE_BLOCK = 4096
"""Draws and examples evaluated per compiled call."""

MAX_BYTES = 8 * 2**30
"""Upper bound on the size of the array."""


@jax.jit
def _evaluate(target: Any, positions: PyTree, batch: PyTree) -> jax.Array:
    return jax.lax.map(lambda position: target.likelihood_values(position, batch), positions)


def _indexable_posterior(result: Result) -> Posterior:
    """The target, if every one of its examples can be evaluated."""
    target = result.estimator.target
    if not isinstance(target, Posterior):
        raise ValueError("target: a Density has no examples, so no pointwise likelihood; sample a Posterior")
    if isinstance(target.data, Batches):
        raise ValueError(
            "target: pointwise likelihoods need every example once, which Batches does not guarantee; use arrays"
        )
    return target


def log_likelihood(result: Result) -> np.ndarray:
    """log p(d_i | θ) of every draw and example, (chain, draw, example), computed in blocks of both.

    A noise level shared with an adaptive prior has its final value of each chain.
    """
    target = _indexable_posterior(result)
    positions = require_positions(result, "the pointwise log likelihood")
    chains, count = int(result.alive.sum()), result.draws
    need = 8 * chains * count * target.size
    if need > MAX_BYTES:
        raise ValueError(
            f"draws: the log likelihood of {chains * count:,} draws and {target.size:,} examples takes {need:,} bytes, "
            f"above {MAX_BYTES:,}; raise thin, or compute it for a part of the data"
        )
    targets = targets_by_chain(result)
    draws_per_target = chains * count // len(targets)
    flat = jax.tree.map(lambda leaf: result.load_leaf(leaf).reshape(chains * count, *leaf.shape[2:]), positions)
    table = np.empty((chains * count, target.size))
    compiled, host = [on_device(one) for one in targets], on_host(target.data)
    for start in range(0, target.size, EXAMPLE_BLOCK):
        rows = np.arange(start, min(start + EXAMPLE_BLOCK, target.size))
        batch = jax.tree.map(
            lambda leaf, rows=rows: jnp.asarray(read_rows(leaf, rows) if host else leaf[rows[0] : rows[-1] + 1]),
            target.data,
        )
        for first, last, one in _blocks(draws_per_target, compiled):
            some = jax.tree.map(lambda x, first=first, last=last: jnp.asarray(x[first:last]), flat)
            table[first:last, rows] = _evaluate(one, some, batch)
    return table.reshape(chains, count, target.size)


def _blocks(draws: int, targets: list[Target]) -> Iterator[tuple[int, int, Target]]:
    """Ranges of draws with their target: each target has `draws` consecutive ones."""
    for number, target in enumerate(targets):
        stop = (number + 1) * draws
        for first in range(number * draws, stop, DRAW_BLOCK):
            yield first, min(first + DRAW_BLOCK, stop), target


def observed_data(result: Result) -> PyTree:
    """The target's data as NumPy arrays."""
    return jax.tree.map(lambda leaf: np.asarray(leaf[:]), _indexable_posterior(result).data)
