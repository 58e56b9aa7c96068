"""A run as an `xarray.DataTree` in ArviZ's schema, and the pointwise log likelihood that PSIS-LOO needs."""

from collections.abc import Collection
from typing import Any

import jax
import numpy as np

from ridgewalk._pytree import leaf_names
from ridgewalk._types import PyTree
from ridgewalk._validation import requires_extra
from ridgewalk.data import Batches
from ridgewalk.diagnostics.draw_access import alive_info, map_draws, require_positions, targets_by_chain
from ridgewalk.result import Result
from ridgewalk.target import Posterior, on_device

STATS_NOTE = (
    "of the step that led to each draw: lp is minus the potential on the step's batch at the position before the step; "
    "an estimate if gradients use minibatches"
)

EXAMPLE_BLOCK = 4096
"""Examples evaluated per compiled call."""

MAX_BYTES = 8 * 2**30
"""Upper bound on the size of the array."""


def _values(target: Posterior, position: PyTree, batch: PyTree) -> Any:
    return target.likelihood_values(position, batch)


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


def pointwise_log_likelihood(result: Result) -> np.ndarray:
    """log p(d_i | θ) of every draw and example, (chain, draw, example), computed in blocks of both.

    A noise level shared with an adaptive prior has its final value of each chain.
    """
    target = _indexable_posterior(result)
    require_positions(result, "the pointwise log likelihood")
    chains, count = int(result.alive.sum()), result.draws
    need = 8 * chains * count * target.size
    if need > MAX_BYTES:
        raise ValueError(
            f"draws: the log likelihood of {chains * count:,} draws and {target.size:,} examples takes {need:,} bytes, "
            f"above {MAX_BYTES:,}; raise thin, or compute it for a part of the data"
        )
    targets = [on_device(one) for one in targets_by_chain(result)]
    functions = [jax.tree_util.Partial(_values, one) for one in (targets if len(targets) > 1 else targets * chains)]
    return np.asarray(map_draws(result, functions, target.data, target.size, EXAMPLE_BLOCK), float)


def _log_likelihood_group(result: Result) -> dict[str, np.ndarray]:
    return {"log_likelihood": pointwise_log_likelihood(result)}


def _observed_data(result: Result) -> PyTree:
    """The target's data as NumPy arrays."""
    return jax.tree.map(lambda leaf: np.asarray(leaf[:]), _indexable_posterior(result).data)


def _variable_names(names: list[str], taken: Collection[str]) -> list[str]:
    """Leaf names; a bare number (an item of a tuple), and the name of a parameter, get a prefix."""
    return [f"data_{name}" if name.isdigit() or name in taken else name for name in names]


def to_arviz(result: Result, *, log_likelihood: bool = False, observed_data: bool = False) -> Any:
    """Convert a run to an `xarray.DataTree` with groups `posterior` and `sample_stats`.

    It works with every function of arviz-stats and arviz-plots (ArviZ 1). Variables are those of `result.posterior`:
    the sites of a model, constrained, with the names of its plates or dims as axes; else leaves named by their path in
    the position (`position` for a bare array). Chains that diverged are left out; the coordinate `chain` keeps the
    indices of the others.

    Args:
        result: a run that kept its draws.
        log_likelihood: add the group `log_likelihood` (chain, draw, example), for `arviz_stats.loo`.
        observed_data: add the target's data as the group `observed_data`.
    """
    with requires_extra("arviz"):
        import arviz_base  # noqa: PLC0415
    require_positions(result, "to_arviz")
    potential = alive_info(result, "potential")
    stats = {
        "lp": -potential,
        **{name: alive_info(result, name) for name in ("gradient_norm", "noise_norm", "temperature", "damping")},
        "rejected": alive_info(result, "rejected").astype(bool),
        "step_size": np.broadcast_to(np.asarray(result.step_sizes, float), potential.shape).copy(),
        "diverging": ~np.isfinite(potential),
    }
    groups: dict[str, Any] = {
        "posterior": {name.replace("/", "_"): np.array(draws) for name, draws in result.posterior.items()},
        "sample_stats": stats,
    }
    coords: dict[str, Any] = {"chain": np.flatnonzero(result.alive), "draw": np.arange(result.draws)}
    dims: dict[str, Any] = {}
    model = None if result.shows_positions else result.estimator.target.model
    if model is not None:
        dims |= {name.replace("/", "_"): list(axes) for name, axes in model.dims.items()}
        coords |= {name: np.asarray(labels) for name, labels in model.coords.items()}
    if log_likelihood:
        groups["log_likelihood"] = _log_likelihood_group(result)
        dims["log_likelihood"] = ["example"]
    if observed_data:
        data = _observed_data(result)
        names = _variable_names(leaf_names(data), groups["posterior"])
        groups["observed_data"] = dict(zip(names, jax.tree.leaves(data), strict=True))
        for name, array in groups["observed_data"].items():
            dims[name] = ["example", *(f"{name}_dim_{i}" for i in range(1, array.ndim))]
    attributes = {
        "/": {"inference_library": "ridgewalk"},
        "posterior": {"inference_library": "ridgewalk", "sampler": type(result.sampler.dynamics).__name__},
        "sample_stats": {"note": STATS_NOTE},
    }
    return arviz_base.from_dict(groups, coords=coords, dims=dims, attrs=attributes)
