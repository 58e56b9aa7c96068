"""Parts of the draws: some of them, some of their coordinates, a leaf at a time, so that runs on disk fit."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._types import PyTree
from ridgewalk.diagnostics.draws import Draws
from ridgewalk.ravel import leaf_names

FEWEST_DRAWS = 4
"""What ArviZ needs of each chain."""


def require_positions(draws: Draws, purpose: str) -> PyTree:
    """The positions, or an error that says what needs them."""
    if draws.positions is None:
        raise ValueError(
            f"positions: {purpose} needs the draws, and this run kept only moments or collected values; "
            "run it with keep='draws' or store=path"
        )
    if draws.draws < FEWEST_DRAWS:
        raise ValueError(
            f"draws: {purpose} needs at least {FEWEST_DRAWS} draws of each chain, this run has {draws.draws}; "
            "make more steps, or lower burn_in or thin"
        )
    return draws.positions


def load_leaf(draws: Draws, leaf: Any, every: int = 1) -> np.ndarray:
    """One leaf's draws (chain, draw, …) of the chains that did not diverge, in memory."""
    return np.asarray(leaf[:, : draws.draws : every])[draws.alive]


def dimension(draws: Draws) -> int:
    """d."""
    return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(draws.final_states[0].position))


def weights(draws: Draws) -> np.ndarray:
    """ε_k / Σ ε of every draw, as posterior averages weight them."""
    sizes = np.asarray(draws.step_sizes, float)
    return sizes / sizes.sum()


def typical_step_size(draws: Draws) -> float:
    """Σ ε² / Σ ε: the step size an average over draws has seen."""
    sizes = np.asarray(draws.step_sizes, float)
    return float((sizes**2).sum() / sizes.sum()) if sizes.size else float("nan")


def living_states(draws: Draws) -> list[Any]:
    """Final states of the chains that did not diverge."""
    return [state for state, alive in zip(draws.final_states, draws.alive, strict=True) if alive]


def living_info(draws: Draws, name: str) -> np.ndarray:
    """One number of every step that gave a draw, (chain, draw), of the chains that did not diverge."""
    return np.asarray(getattr(draws.info, name), float)[draws.alive]


def kept_by_chains(draws: Draws) -> dict[str, np.ndarray] | None:
    """Which parameters the chains that did not diverge have kept, (chain, parameter) for every leaf; None for all."""
    states = living_states(draws)
    if not states or states[0].mask is None:
        return None
    masks = np.stack([np.asarray(state.mask) for state in states])
    leaves = jax.tree.leaves(states[0].position)
    parts = np.split(masks, np.cumsum([leaf.size for leaf in leaves])[:-1], axis=1)
    return dict(zip(leaf_names(states[0].position), parts, strict=True))


class Coordinates(NamedTuple):
    """Some coordinates of one leaf: where they are, and their draws (chain, draw, coordinate)."""

    name: str
    shape: tuple[int, ...]
    where: np.ndarray
    values: np.ndarray

    @property
    def labels(self) -> list[str]:
        """`name[i,j]` of every coordinate."""
        if not self.shape:
            return [self.name]
        places = np.stack(np.unravel_index(self.where, self.shape), axis=1)
        return [f"{self.name}[{','.join(map(str, place))}]" for place in places]


def _part(draws: Draws, name: str, leaf: Any, where: np.ndarray) -> Coordinates:
    shape = tuple(leaf.shape[2:])
    values = load_leaf(draws, leaf).reshape(int(draws.alive.sum()), draws.draws, -1)[:, :, where]
    return Coordinates(name, shape, where, values.astype(float))


def coordinates(draws: Draws, most: int, seed: int = 0) -> list[Coordinates]:
    """All coordinates of every leaf, or about `most` in all, at random but at least one of each leaf."""
    positions = require_positions(draws, "a look at single parameters")
    d, rng = dimension(draws), np.random.default_rng(seed)
    result = []
    for name, leaf in zip(leaf_names(positions), jax.tree.leaves(positions), strict=True):
        size = int(np.prod(leaf.shape[2:]))
        count = size if d <= most else min(size, max(1, round(most * size / d)))
        where = np.arange(size) if count == size else np.sort(rng.choice(size, count, replace=False))
        if size:
            result.append(_part(draws, name, leaf, where))
    return result


def named_coordinates(draws: Draws, names: Sequence[str]) -> list[Coordinates]:
    """The coordinates with these labels: whole leaves (`bias`) or single places (`kernel[0,2]`)."""
    positions = require_positions(draws, "a look at single parameters")
    leaves = dict(zip(leaf_names(positions), jax.tree.leaves(positions), strict=True))
    result = []
    for label in [names] if isinstance(names, str) else names:
        name, _, place = label.rpartition("[")
        leaf = leaves.get(label, leaves.get(name))
        if leaf is None:
            raise ValueError(f"parameters: {label!r} is not one of them; the leaves are {', '.join(leaves)}")
        shape = tuple(leaf.shape[2:])
        if label in leaves:
            result.append(_part(draws, label, leaf, np.arange(int(np.prod(shape)))))
            continue
        try:
            flat = np.ravel_multi_index(tuple(int(i) for i in place.rstrip("]").split(",")), shape)
        except ValueError as error:
            raise ValueError(f"parameters: {label!r} is no place in {name!r}, whose shape is {shape}") from error
        result.append(_part(draws, name, leaf, np.array([flat])))
    return result


def thinning(draws: Draws, most: int) -> int:
    """Of how many draws one is taken so that there are about `most`, over all chains."""
    wanted = -(-int(draws.alive.sum()) * draws.draws // most)
    return max(1, min(wanted, draws.draws // FEWEST_DRAWS))


def thinned_positions(draws: Draws, most: int, purpose: str) -> PyTree:
    """About `most` draws, evenly spaced, as (chain, draw, …)."""
    positions, stride = require_positions(draws, purpose), thinning(draws, most)
    return jax.tree.map(lambda leaf: jnp.asarray(load_leaf(draws, leaf, stride)), positions)


def mean_position(draws: Draws) -> PyTree:
    """E[θ], draws weighted by their step size, a leaf in memory at a time."""
    if draws.moments is not None:
        return jax.tree.map(lambda means: jnp.mean(jnp.asarray(means)[draws.alive], axis=0), draws.moments.mean)
    share = weights(draws)

    def mean(leaf: Any) -> jax.Array:
        values = load_leaf(draws, leaf)
        return jnp.asarray(np.tensordot(share.astype(values.dtype), values.mean(0), axes=(0, 0)))

    return jax.tree.map(mean, require_positions(draws, "the mean"))
