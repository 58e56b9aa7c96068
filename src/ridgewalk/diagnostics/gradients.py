"""Gradients of the potential at draws: over all data, or over batches that are independent of the chain."""

from collections.abc import Callable
from itertools import islice
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._types import Mask, PyTree, Vector
from ridgewalk.data import Batches, on_host, read_rows
from ridgewalk.gradients import GradientEstimator, full_gradient_from_host
from ridgewalk.pruning import apply_mask
from ridgewalk.ravel import layout_of
from ridgewalk.result import Result
from ridgewalk.target import Density, Posterior, Target, on_device

MAX_BLOCK_NUMBERS = 2**24
"""About how many numbers of gradients, or of examples, are on the device at a time."""


def targets_by_chain(result: Result) -> list[Target]:
    """One target for all chains; with an adaptive prior one for each that did not diverge, with its final state."""
    target, states = result.estimator.target, result.alive_states
    return [target] if states[0].prior is None else [target.frozen(state.prior) for state in states]


def whitened_gradient(
    estimator: GradientEstimator, memory: Any, operator: Any, position: PyTree, batch: PyTree, mask: Mask = None
) -> Vector:
    """Sᵀ times the gradient estimate at a position, as a flat vector; zero in pruned parameters."""
    form = layout_of(position)
    gradient = form.ravel(jax.grad(estimator.target.potential)(position, batch))
    correction = estimator.correction(memory, batch)
    if correction is not None:
        gradient = gradient + form.ravel(correction)
    return apply_mask(operator.factor_transpose(apply_mask(gradient, mask)), mask)


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
