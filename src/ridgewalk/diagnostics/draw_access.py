"""What is read from a run: subsets of its draws and coordinates, and functions and gradients at its draws."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._compilation import jit
from ridgewalk._pytree import layout_of, leaf_names
from ridgewalk._types import PyTree, Vector
from ridgewalk._validation import check_whole
from ridgewalk.data import Batches, read_rows
from ridgewalk.gradients import full_gradient_from_host
from ridgewalk.result import Result
from ridgewalk.target import Density, Posterior, Target, on_device, on_host

MIN_DRAWS = 4
"""Draws of each chain that R-hat and ESS need."""

MAX_BLOCK_NUMBERS = 2**24
"""About how many numbers of draws, gradients, or of examples, are on the device at a time."""


def require_positions(result: Result, purpose: str, least: int = MIN_DRAWS) -> PyTree:
    """The positions; an error that names the purpose if they were not kept or are too few."""
    if result.positions is None:
        raise ValueError(
            f"positions: {purpose} needs the draws, and this run kept only moments or collected values; "
            "run it with keep='draws' or store=path"
        )
    if result.draws < least:
        raise ValueError(
            f"draws: {purpose} needs at least {least} draws of each chain, this run has {result.draws}; "
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


class Draws(NamedTuple):
    """The draws of one leaf, which may be on disk."""

    result: Result
    name: str
    leaf: Any
    """(chain, draw, …), of all chains if it is a leaf of the position, else of those that did not diverge."""
    of_position: bool = True

    @property
    def shape(self) -> tuple[int, ...]:
        """Without chain and draw."""
        return tuple(self.leaf.shape[2:])

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return int(np.prod(self.shape))

    def load(self) -> np.ndarray:
        """(chain, draw, …), in memory, of the chains that did not diverge."""
        return self.result.load_leaf(self.leaf) if self.of_position else np.asarray(self.leaf)

    def take(self, indices: np.ndarray) -> Coordinates:
        """The coordinates with these flat indices."""
        values = self.load().reshape(int(self.result.alive.sum()), self.result.draws, -1)[:, :, indices]
        return Coordinates(self.name, self.shape, indices, values.astype(float))


def leaf_draws(result: Result, *, constrained: bool = False, tree: PyTree = None) -> dict[str, Draws]:
    """The leaves of the draws by name; if `constrained`, the variables of `result.posterior`; or those of `tree`."""
    if tree is None:
        tree = require_positions(result, "a diagnostic of single parameters")
        if constrained and not result.shows_positions:
            return {name: Draws(result, name, values, False) for name, values in result.posterior.items()}
    leaves = zip(leaf_names(tree), jax.tree.leaves(tree), strict=True)
    return {name: Draws(result, name, leaf) for name, leaf in leaves}


def select_coordinates(
    result: Result, max_parameters: int, seed: int = 0, *, constrained: bool = False, tree: PyTree = None
) -> list[Coordinates]:
    """All coordinates of every leaf, or a random subset of about `max_parameters`, at least one of each leaf.

    Of the positions, or of `tree`, another pytree of draws such as `result.collected`.
    """
    leaves = leaf_draws(result, constrained=constrained, tree=tree)
    d, rng = sum(draws.size for draws in leaves.values()), np.random.default_rng(seed)
    selected = []
    for draws in leaves.values():
        size = draws.size
        count = size if d <= max_parameters else min(size, max(1, round(max_parameters * size / d)))
        indices = np.arange(size) if count == size else np.sort(rng.choice(size, count, replace=False))
        if size:
            selected.append(draws.take(indices))
    return selected


def named_coordinates(result: Result, names: Sequence[str]) -> list[Coordinates]:
    """The coordinates with these labels, as in the summary: whole leaves (`bias`) or single entries (`kernel[0,2]`)."""
    leaves = leaf_draws(result, constrained=True)
    selected = []
    for label in [names] if isinstance(names, str) else names:
        name, _, index = label.rpartition("[")
        draws = leaves.get(label, leaves.get(name))
        if draws is None:
            raise ValueError(f"parameters: there is no {label!r}; the leaves are {', '.join(leaves)}")
        if label in leaves:
            selected.append(draws.take(np.arange(draws.size)))
            continue
        try:
            flat = np.ravel_multi_index(tuple(int(i) for i in index.rstrip("]").split(",")), draws.shape)
        except ValueError as error:
            raise ValueError(
                f"parameters: {label!r} is out of range; the shape of {name!r} is {draws.shape}"
            ) from error
        selected.append(draws.take(np.array([flat])))
    return selected


def thinning(result: Result, max_draws: int) -> int:
    """The stride that leaves about `max_draws` draws over all chains."""
    wanted = -(-int(result.alive.sum()) * result.draws // max_draws)
    return max(1, min(wanted, result.draws // MIN_DRAWS))


def thinned_positions(result: Result, max_draws: int, purpose: str) -> PyTree:
    """About `max_draws` draws, evenly spaced, as host arrays (chain, draw, …)."""
    positions, stride = require_positions(result, purpose), thinning(result, max_draws)
    return jax.tree.map(lambda leaf: result.load_leaf(leaf, stride), positions)


def targets_by_chain(result: Result) -> list[Target]:
    """One target for all chains; with an adaptive prior one for each that did not diverge, with its final state."""
    target, states = result.estimator.target, result.alive_states
    return [target] if states[0].prior is None else [target.frozen(state.prior) for state in states]


# Functions at draws


@jax.jit
def _evaluate(function: Callable[..., Any], positions: PyTree, rows: PyTree) -> PyTree:
    """One draw after the other, in the memory of one."""
    return jax.lax.map(lambda position: function(position, rows), positions)


def _draw_blocks(result: Result, chain: int, numbers: int) -> Iterator[tuple[int, int, PyTree]]:
    """The draws of a chain in blocks, each with the numbers of its first draw and of the one after its last.

    A draw and what is computed from it take `numbers` numbers. All blocks have one length, so that nothing is compiled
    twice: the last one repeats its last draw.
    """
    length = max(1, min(MAX_BLOCK_NUMBERS // numbers, result.draws))
    for first in range(0, result.draws, length):
        stop = min(first + length, result.draws)
        rows = np.minimum(np.arange(length), stop - first - 1)
        yield (
            first,
            stop,
            jax.tree.map(lambda leaf, a=first, b=stop, r=rows: jnp.asarray(leaf[chain, a:b][r]), result.positions),
        )


def _rows(data: PyTree, rows: slice | None) -> PyTree:
    """Some rows of arrays in memory or on disk; None for the arrays as they are."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf if rows is None or not np.ndim(leaf) else leaf[rows]), data)


def map_draws(
    result: Result, functions: Sequence[Callable[..., Any]], data: PyTree, size: int, batch: int | None
) -> PyTree:
    """`function(position, data)` of every draw, with one function for each chain that did not diverge.

    The functions are pytrees (`jax.tree_util.Partial`). With `batch` the `size` rows of the data are given so many at a
    time, and the values, one for each row, are joined. Leading axes: (chain, draw), and then the rows.
    """
    slices = [None] if batch is None else [slice(i, min(i + batch, size)) for i in range(0, size, batch)]
    position = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype), result.positions)
    one = jax.eval_shape(functions[0], position, _rows(data, slices[0]))
    if slices[0] is not None and any(leaf.shape[:1] != (slices[0].stop,) for leaf in jax.tree.leaves(one)):
        shapes = ", ".join(str(leaf.shape) for leaf in jax.tree.leaves(one))
        raise ValueError(
            f"batch: for {slices[0].stop} rows the function returned shape {shapes}, so values of batches cannot "
            "be joined; return one value per row, or use batch=None"
        )
    axes = (len(functions), result.draws) if batch is None else (len(functions), result.draws, size)
    made = jax.tree.map(lambda leaf: np.empty((*axes, *leaf.shape[len(axes) - 2 :]), leaf.dtype), one)
    numbers = result.dimension + sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(one))
    for number, (chain, function) in enumerate(zip(np.flatnonzero(result.alive), functions, strict=True)):
        for first, stop, positions in _draw_blocks(result, int(chain), numbers):
            for rows in slices:
                place = (number, slice(first, stop), *([] if rows is None else [rows]))

                def put(kept: np.ndarray, new: jax.Array, place: Any = place, count: int = stop - first) -> None:
                    kept[place] = np.asarray(new)[:count]

                jax.tree.map(put, made, _evaluate(function, positions, _rows(data, rows)))
    return made


def predict(result: Result, function: Callable[..., Any], new_data: PyTree, batch: int | None = None) -> PyTree:
    """`function(position, new_data)` of every draw of the chains that did not diverge (see `Result.predict`)."""
    require_positions(result, "predict", least=1)
    if not callable(function):
        raise ValueError(f"function: {function!r} is not a function of a position and data")
    size = 0
    if batch is not None:
        check_whole("batch", batch, 1, "use None to give all rows at once")
        sizes = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(new_data)}
        if len(sizes) != 1 or () in sizes:
            raise ValueError(
                f"new_data: leading axes {sorted(sizes)} cannot be split into batches; give every array one row per "
                "example, or use batch=None"
            )
        (size,) = sizes.pop()
        if not size:
            raise ValueError("new_data: it has 0 rows; give at least one, or use batch=None")
    plain = jax.tree_util.treedef_is_leaf(jax.tree.structure(function))
    argument = jax.tree_util.Partial(function) if plain else function  # modules and partial functions are pytrees
    return map_draws(result, [argument] * int(result.alive.sum()), new_data, size, batch)


# Gradients at draws


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


@jit
def _full_gradients(target: Target, positions: PyTree) -> PyTree:
    gradient = target.full_gradient if isinstance(target, Posterior) else jax.grad(target.potential)
    return jax.lax.map(gradient, positions)


@jit
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
    flat = jax.tree.map(lambda x: x.reshape(chains * length, *x.shape[2:]), positions)
    block = max(1, MAX_BLOCK_NUMBERS // max(form.size, batches.numbers if batches else 1))
    apply = jit(jax.vmap(lambda p, g: function(form.ravel(p), form.ravel(g))))
    values = []
    for start in range(0, chains * length, block):
        part = jax.tree.map(lambda x, start=start: x[start : start + block], flat)
        count = min(block, chains * length - start)
        values.append(np.asarray(apply(part, _gradients(target, part, batches, count)), float))
    joined = np.concatenate(values)
    return joined.reshape(chains, length, *joined.shape[1:])
