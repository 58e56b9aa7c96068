"""A run as an `xarray.DataTree` in ArviZ's schema, built with arviz-base."""

from typing import Any

import jax
import numpy as np

from ridgewalk._optional import requires_extra
from ridgewalk.diagnostics.draw_access import alive_info, require_positions
from ridgewalk.diagnostics.pointwise import log_likelihood as pointwise_log_likelihood
from ridgewalk.diagnostics.pointwise import observed_data as data_of
from ridgewalk.ravel import leaf_names
from ridgewalk.result import Result

STATS_NOTE = (
    "of the step that led to each draw: lp is minus the potential on the step's batch at the position before the step; "
    "an estimate if gradients use minibatches"
)


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
        groups["log_likelihood"] = {"log_likelihood": pointwise_log_likelihood(result)}
        dims["log_likelihood"] = ["example"]
    if observed_data:
        data = data_of(result)
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
