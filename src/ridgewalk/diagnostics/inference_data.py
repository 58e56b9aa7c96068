"""A run as ArviZ's InferenceData."""

from typing import Any

import jax
import numpy as np

from ridgewalk._types import PyTree
from ridgewalk.diagnostics.draws import Draws
from ridgewalk.diagnostics.library import arviz
from ridgewalk.diagnostics.likelihood import log_likelihood as pointwise
from ridgewalk.diagnostics.likelihood import observed
from ridgewalk.diagnostics.select import living_info, load_leaf, require_positions
from ridgewalk.ravel import leaf_names

STATS_NOTE = (
    "of the step that led to each draw: lp is minus the potential on the step's batch, at the point it left from; "
    "an estimate where gradients use minibatches"
)


def _variables(names: list[str], arrays: list[np.ndarray]) -> dict[str, np.ndarray]:
    """Leaves by name; a bare number (an item of a tuple) gets a name that xarray's attributes can have."""
    return {f"data_{name}" if name.isdigit() else name: array for name, array in zip(names, arrays, strict=True)}


def to_arviz(result: Draws, *, log_likelihood: bool = False, observed_data: bool = False) -> Any:
    """Draws, what their steps showed and, on request, data and pointwise log likelihood, as an InferenceData.

    Variables are named by their path in the position (`position` for a bare array). Chains that diverged are left
    out; the coordinate `chain` keeps the others' numbers.
    """
    positions: PyTree = require_positions(result, "InferenceData")
    leaves = [load_leaf(result, leaf) for leaf in jax.tree.leaves(positions)]
    posterior = dict(zip(leaf_names(positions), leaves, strict=True))
    potential = living_info(result, "potential")
    stats = {
        "lp": -potential,
        **{name: living_info(result, name) for name in ("gradient_norm", "noise_norm", "temperature", "damping")},
        "rejected": living_info(result, "rejected").astype(bool),
        "step_size": np.broadcast_to(np.asarray(result.step_sizes, float), potential.shape).copy(),
        "diverging": ~np.isfinite(potential),
    }
    groups: dict[str, Any] = {"posterior": posterior, "sample_stats": stats}
    coords: dict[str, Any] = {"chain": np.flatnonzero(result.alive), "draw": np.arange(result.draws)}
    dims: dict[str, Any] = {}
    if log_likelihood:
        groups["log_likelihood"] = {"log_likelihood": pointwise(result)}
        dims["log_likelihood"] = ["example"]
    if observed_data:
        data = observed(result)
        groups["observed_data"] = _variables(leaf_names(data), jax.tree.leaves(data))
        for name, array in groups["observed_data"].items():
            dims[name] = ["example", *(f"{name}_dim_{i}" for i in range(1, array.ndim))]
    attributes = {"inference_library": "ridgewalk", "sampler": repr(type(result.sampler.dynamics).__name__)}
    return arviz().from_dict(
        **groups, coords=coords, dims=dims, posterior_attrs=attributes, sample_stats_attrs={"note": STATS_NOTE}
    )
