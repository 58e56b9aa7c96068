"""Access to parts of the draws: subsets of draws and of coordinates, one leaf in memory at a time."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._types import PyTree
from ridgewalk.ravel import leaf_names
from ridgewalk.result import Result

MIN_DRAWS = 4
"""Draws of each chain that R-hat and ESS need."""


def require_positions(result: Result, purpose: str) -> PyTree:
    """The positions; an error that names the purpose if they were not kept or are too few."""
    if result.positions is None:
        raise ValueError(
            f"positions: {purpose} needs the draws, and this run kept only moments or collected values; "
            "run it with keep='draws' or store=path"
        )
    if result.draws < MIN_DRAWS:
        raise ValueError(
            f"draws: {purpose} needs at least {MIN_DRAWS} draws of each chain, this run has {result.draws}; "
            "make more steps, or lower burn_in or thin"
        )
    return result.positions


def weighted_step_size(result: Result) -> float:
    """Σ ε² / Σ ε: the mean step size under the weights of the draws."""
    sizes = np.asarray(result.step_sizes, float)
    return float((sizes**2).sum() / sizes.sum()) if sizes.size else float("nan")


def alive_info(result: Result, name: str) -> np.ndarray:
    """One field of `result.info` (chain, draw), of the chains that did not diverge."""
    return np.asarray(getattr(result.info, name), float)[result.alive]


def pruning_masks(result: Result) -> dict[str, np.ndarray] | None:
    """Leaf name → mask (chain, parameter) of the parameters that each chain kept; None without pruning."""
    states = result.alive_states
    if not states or states[0].mask is None:
        return None
    masks = np.stack([np.asarray(state.mask) for state in states])
    leaves = jax.tree.leaves(states[0].position)
    parts = np.split(masks, np.cumsum([leaf.size for leaf in leaves])[:-1], axis=1)
    return dict(zip(leaf_names(states[0].position), parts, strict=True))


def coordinate_labels(name: str, shape: tuple[int, ...], indices: np.ndarray) -> list[str]:
    """`name[i,j]` of coordinates given by flat indices."""
    if not shape:
        return [name]
    places = np.stack(np.unravel_index(indices, shape), axis=1)
    return [f"{name}[{','.join(map(str, place))}]" for place in places]


class Coordinates(NamedTuple):
    """Some coordinates of one leaf: their flat indices, and their draws (chain, draw, coordinate)."""

    name: str
    shape: tuple[int, ...]
    indices: np.ndarray
    values: np.ndarray

    @property
    def labels(self) -> list[str]:
        """`name[i,j]` of every coordinate."""
        return coordinate_labels(self.name, self.shape, self.indices)


def _take(result: Result, name: str, leaf: Any, indices: np.ndarray) -> Coordinates:
    values = result.load_leaf(leaf).reshape(int(result.alive.sum()), result.draws, -1)[:, :, indices]
    return Coordinates(name, tuple(leaf.shape[2:]), indices, values.astype(float))


def select_coordinates(result: Result, max_parameters: int, seed: int = 0) -> list[Coordinates]:
    """All coordinates of every leaf, or a random subset of about `max_parameters`, at least one of each leaf."""
    positions = require_positions(result, "a diagnostic of single parameters")
    d, rng = result.dimension, np.random.default_rng(seed)
    selected = []
    for name, leaf in zip(leaf_names(positions), jax.tree.leaves(positions), strict=True):
        size = int(np.prod(leaf.shape[2:]))
        count = size if d <= max_parameters else min(size, max(1, round(max_parameters * size / d)))
        indices = np.arange(size) if count == size else np.sort(rng.choice(size, count, replace=False))
        if size:
            selected.append(_take(result, name, leaf, indices))
    return selected


def named_coordinates(result: Result, names: Sequence[str]) -> list[Coordinates]:
    """The coordinates with these labels: whole leaves (`bias`) or single entries (`kernel[0,2]`)."""
    positions = require_positions(result, "a diagnostic of single parameters")
    leaves = dict(zip(leaf_names(positions), jax.tree.leaves(positions), strict=True))
    selected = []
    for label in [names] if isinstance(names, str) else names:
        name, _, index = label.rpartition("[")
        leaf = leaves.get(label, leaves.get(name))
        if leaf is None:
            raise ValueError(f"parameters: there is no {label!r}; the leaves are {', '.join(leaves)}")
        shape = tuple(leaf.shape[2:])
        if label in leaves:
            selected.append(_take(result, label, leaf, np.arange(int(np.prod(shape)))))
            continue
        try:
            flat = np.ravel_multi_index(tuple(int(i) for i in index.rstrip("]").split(",")), shape)
        except ValueError as error:
            raise ValueError(f"parameters: {label!r} is out of range; the shape of {name!r} is {shape}") from error
        selected.append(_take(result, name, leaf, np.array([flat])))
    return selected


def thinning(result: Result, max_draws: int) -> int:
    """The stride that leaves about `max_draws` draws over all chains."""
    wanted = -(-int(result.alive.sum()) * result.draws // max_draws)
    return max(1, min(wanted, result.draws // MIN_DRAWS))


def thinned_positions(result: Result, max_draws: int, purpose: str) -> PyTree:
    """About `max_draws` draws, evenly spaced, as (chain, draw, …)."""
    positions, stride = require_positions(result, purpose), thinning(result, max_draws)
    return jax.tree.map(lambda leaf: jnp.asarray(result.load_leaf(leaf, stride)), positions)
