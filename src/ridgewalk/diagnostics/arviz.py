"""A run as an `xarray.DataTree` in ArviZ's schema, and the pointwise log likelihood that PSIS-LOO needs."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._optional import requires_extra
from ridgewalk._pytree import leaf_names
from ridgewalk._types import PyTree
from ridgewalk.data import Batches, read_rows
from ridgewalk.diagnostics.draw_access import alive_info, require_positions, targets_by_chain
from ridgewalk.result import Result
from ridgewalk.target import Posterior, Target, on_device, on_host

STATS_NOTE = (
    "of the step that led to each draw: lp is minus the potential on the step's batch at the position before the step; "
    "an estimate if gradients use minibatches"
)

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


def _log_likelihood_group(result: Result) -> dict[str, np.ndarray]:
    return {"log_likelihood": log_likelihood(result)}


def _observed_data(result: Result) -> PyTree:
    """The target's data as NumPy arrays."""
    return jax.tree.map(lambda leaf: np.asarray(leaf[:]), _indexable_posterior(result).data)


def _variable_names(names: list[str]) -> list[str]:
    """Leaf names; a bare number (an item of a tuple) gets a prefix that makes it an identifier."""
    return [f"data_{name}" if name.isdigit() else name for name in names]


def to_arviz(result: Result, *, log_likelihood: bool = False, observed_data: bool = False) -> Any:
    """Convert a run to an `xarray.DataTree` with groups `posterior` and `sample_stats`.

    It works with every function of arviz-stats and arviz-plots (ArviZ 1). Variables are named by their path in the
    position (`position` for a bare array). Chains that diverged are left out; the coordinate `chain` keeps the indices
    of the others.

    Args:
        result: a run that kept its draws.
        log_likelihood: add the group `log_likelihood` (chain, draw, example), for `arviz_stats.loo`.
        observed_data: add the target's data as the group `observed_data`.
    """
    with requires_extra("arviz"):
        import arviz_base  # noqa: PLC0415
    positions = require_positions(result, "to_arviz")
    leaves = [np.array(result.load_leaf(leaf)) for leaf in jax.tree.leaves(positions)]
    potential = alive_info(result, "potential")
    stats = {
        "lp": -potential,
        **{name: alive_info(result, name) for name in ("gradient_norm", "noise_norm", "temperature", "damping")},
        "rejected": alive_info(result, "rejected").astype(bool),
        "step_size": np.broadcast_to(np.asarray(result.step_sizes, float), potential.shape).copy(),
        "diverging": ~np.isfinite(potential),
    }
    groups: dict[str, Any] = {
        "posterior": dict(zip(leaf_names(positions), leaves, strict=True)),
        "sample_stats": stats,
    }
    coords: dict[str, Any] = {"chain": np.flatnonzero(result.alive), "draw": np.arange(result.draws)}
    dims: dict[str, Any] = {}
    if log_likelihood:
        groups["log_likelihood"] = _log_likelihood_group(result)
        dims["log_likelihood"] = ["example"]
    if observed_data:
        data = _observed_data(result)
        names = _variable_names(leaf_names(data))
        groups["observed_data"] = dict(zip(names, jax.tree.leaves(data), strict=True))
        for name, array in groups["observed_data"].items():
            dims[name] = ["example", *(f"{name}_dim_{i}" for i in range(1, array.ndim))]
    attributes = {
        "/": {"inference_library": "ridgewalk"},
        "posterior": {"inference_library": "ridgewalk", "sampler": type(result.sampler.dynamics).__name__},
        "sample_stats": {"note": STATS_NOTE},
    }
    return arviz_base.from_dict(groups, coords=coords, dims=dims, attrs=attributes)
