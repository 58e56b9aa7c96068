"""What diagnostics read from a run: subsets of its draws and coordinates, and gradients of the potential at draws."""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._pytree import layout_of, leaf_names
from ridgewalk._types import PyTree, Vector
from ridgewalk.data import Batches, read_rows
from ridgewalk.gradients import full_gradient_from_host
from ridgewalk.result import Result
from ridgewalk.target import Density, Posterior, Target, on_device, on_host

MIN_DRAWS = 4
"""Draws of each chain that R-hat and ESS need."""

MAX_BLOCK_NUMBERS = 2**24
"""About how many numbers of gradients, or of examples, are on the device at a time."""


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


def targets_by_chain(result: Result) -> list[Target]:
    """One target for all chains; with an adaptive prior one for each that did not diverge, with its final state."""
    target, states = result.estimator.target, result.alive_states
    return [target] if states[0].prior is None else [target.frozen(state.prior) for state in states]


class IndependentBatches:
    """Batches of examples drawn at random with replacement; those of a `Batches` in its own order."""

    def __init__(self, target: Posterior, examples: int, seed: int) -> None:
        self.data, self.size, self.examples = target.data, target.size, examples
        self.rng = np.random.default_rng(seed)
        self.stream = target.data.forever() if isinstance(target.data, Batches) else None

    @property
    def numbers(self) -> int:
        """Numbers that one batch holds."""
        if isinstance(self.data, Batches):
            return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(self.data.first()))
        return sum(self.examples * int(np.prod(leaf.shape[1:])) for leaf in jax.tree.leaves(self.data))

    def take(self, count: int) -> PyTree:
        """The next batches, with a leading axis."""
        if self.stream is not None:
            return jax.tree.map(lambda *leaves: jnp.stack(leaves), *islice(self.stream, count))
        rows = self.rng.integers(0, self.size, (count, self.examples))
        host = on_host(self.data)
        return jax.tree.map(lambda leaf: jnp.asarray(read_rows(leaf, rows) if host else leaf[rows]), self.data)


@jax.jit
def _full_gradients(target: Target, positions: PyTree) -> PyTree:
    gradient = target.full_gradient if isinstance(target, Posterior) else jax.grad(target.potential)
    return jax.lax.map(gradient, positions)


@jax.jit
def _batch_gradients(target: Target, positions: PyTree, batches: PyTree) -> PyTree:
    return jax.lax.map(lambda pair: jax.grad(target.potential)(*pair), (positions, batches))


def _gradients(target: Target, positions: PyTree, batches: IndependentBatches | None, count: int) -> PyTree:
    if batches is not None:
        return _batch_gradients(on_device(target), positions, batches.take(count))
    if isinstance(target, Density) or not on_host(target.data):
        return _full_gradients(target, positions)
    each = [full_gradient_from_host(target, jax.tree.map(lambda x, i=i: x[i], positions)) for i in range(count)]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)


def map_gradients(
    result: Result,
    positions: PyTree,
    function: Callable[[Vector, Vector], Any],
    examples: int | None = None,
    seed: int = 0,
) -> np.ndarray:
    """`function(θ, ∇U(θ))` of flat vectors, for positions (chain, draw, …); the values have axes (chain, draw, …).

    `examples` None uses all data; a number draws an independent batch of that size for each draw, whose gradient is
    unbiased.
    """
    targets = targets_by_chain(result)
    if len(targets) > 1:
        chains = [jax.tree.map(lambda x, c=chain: x[c : c + 1], positions) for chain in range(len(targets))]
        parts = zip(targets, chains, range(seed, seed + len(targets)), strict=True)
        return np.concatenate([_map_one_target(t, p, function, examples, s) for t, p, s in parts])
    return _map_one_target(targets[0], positions, function, examples, seed)


def _map_one_target(
    target: Target,
    positions: PyTree,
    function: Callable[[Vector, Vector], Any],
    examples: int | None,
    seed: int,
) -> np.ndarray:
    if isinstance(target, Posterior) and isinstance(target.data, Batches) and examples is None:
        raise ValueError(
            "examples: gradients over all data need every example once, which Batches does not guarantee; pass a number"
        )
    batches = None
    if examples is not None and isinstance(target, Posterior):
        batches = IndependentBatches(target, examples, seed)
    first = jax.tree.leaves(positions)[0]
    chains, length = first.shape[:2]
    form = layout_of(jax.tree.map(lambda x: x[0, 0], positions))
    flat = jax.tree.map(lambda x: jnp.reshape(x, (chains * length, *x.shape[2:])), positions)
    block = max(1, MAX_BLOCK_NUMBERS // max(form.size, batches.numbers if batches else 1))
    apply = jax.jit(jax.vmap(lambda p, g: function(form.ravel(p), form.ravel(g))))
    values = []
    for start in range(0, chains * length, block):
        part = jax.tree.map(lambda x, start=start: x[start : start + block], flat)
        count = min(block, chains * length - start)
        values.append(np.asarray(apply(part, _gradients(target, part, batches, count)), float))
    joined = np.concatenate(values)
    return joined.reshape(chains, length, *joined.shape[1:])
