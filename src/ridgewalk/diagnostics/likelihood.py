"""The log likelihood of every example at every draw, for leave-one-out and WAIC."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._types import PyTree
from ridgewalk.data import Batches, on_host, read_rows
from ridgewalk.diagnostics.draws import Draws
from ridgewalk.diagnostics.gradients_at import chain_targets, seen_target
from ridgewalk.diagnostics.select import load_leaf, require_positions
from ridgewalk.target import Posterior, Target

DRAWS_AT_ONCE = 64
EXAMPLES_AT_ONCE = 4096
MOST_BYTES = 8 * 2**30
"""What the whole table may take."""


@jax.jit
def _values(target: Any, positions: PyTree, batch: PyTree) -> jax.Array:
    return jax.lax.map(lambda position: target.likelihood_values(position, batch), positions)


def _posterior(result: Draws) -> Posterior:
    """The target, if every one of its examples can be looked at."""
    target = result.estimator.target
    if not isinstance(target, Posterior):
        raise ValueError("target: a Density has no examples, and so no pointwise likelihood; sample a Posterior")
    if isinstance(target.data, Batches):
        raise ValueError(
            "target: pointwise likelihoods need every example once, which Batches does not promise; use arrays"
        )
    return target


def log_likelihood(result: Draws) -> np.ndarray:
    """log p(d_i | θ) of every draw and example, (chain, draw, example), computed a slice of both at a time.

    A noise shared with an adaptive prior is as each chain has learnt it in the end.
    """
    target = _posterior(result)
    positions = require_positions(result, "the pointwise log likelihood")
    chains, count = int(result.alive.sum()), result.draws
    need = 8 * chains * count * target.size
    if need > MOST_BYTES:
        raise ValueError(
            f"draws: the log likelihood of {chains * count:,} draws and {target.size:,} examples takes {need:,} bytes, "
            f"above {MOST_BYTES:,}; raise thin, or compute it for a part of the data"
        )
    loaded = jax.tree.map(lambda leaf: load_leaf(result, leaf), positions)
    targets = chain_targets(result)
    rows_of = chains * count // len(targets)
    flat = jax.tree.map(lambda x: x.reshape(chains * count, *x.shape[2:]), loaded)
    table = np.empty((chains * count, target.size))
    seen, host = [seen_target(one) for one in targets], on_host(target.data)
    for start in range(0, target.size, EXAMPLES_AT_ONCE):
        rows = np.arange(start, min(start + EXAMPLES_AT_ONCE, target.size))
        batch = jax.tree.map(
            lambda leaf, rows=rows: jnp.asarray(read_rows(leaf, rows) if host else leaf[rows[0] : rows[-1] + 1]),
            target.data,
        )
        for first, last, one in _blocks(rows_of, seen):
            some = jax.tree.map(lambda x, first=first, last=last: jnp.asarray(x[first:last]), flat)
            table[first:last, rows] = _values(one, some, batch)
    return table.reshape(chains, count, target.size)


def _blocks(draws: int, targets: list[Target]) -> Iterator[tuple[int, int, Target]]:
    """Some draws at a time, with the target they are of: each of the targets has `draws` in turn."""
    for number, target in enumerate(targets):
        stop = (number + 1) * draws
        for first in range(number * draws, stop, DRAWS_AT_ONCE):
            yield first, min(first + DRAWS_AT_ONCE, stop), target


def observed(result: Draws) -> PyTree:
    """The target's data as arrays in memory."""
    return jax.tree.map(lambda leaf: np.asarray(leaf[:]), _posterior(result).data)
