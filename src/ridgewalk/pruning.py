"""Magnitude pruning inside a chain: masks, the pruning schedule, and the choice of the smallest weights."""

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._pytree import Layout, leaf_names, pytree_dataclass
from ridgewalk._types import Mask, Scalar, Vector
from ridgewalk._validation import check_between, check_choice, check_whole

Scope = Literal["global", "layer"]
Schedule: TypeAlias = Literal["cubic", "linear"] | Callable[[float], float]
"""Fraction of the target sparsity as a function of the fraction t of events, from (0, 1] to [0, 1], 1 at t = 1."""

Leaves: TypeAlias = tuple[str, ...] | Callable[[str, jax.ShapeDtypeStruct], bool] | None
"""Names of leaves, a predicate of a leaf's name and shape, or None for those with two or more axes."""

SCHEDULES: dict[str, Callable[[float], float]] = {"cubic": lambda t: 1 - (1 - t) ** 3, "linear": lambda t: t}


def degrees_of_freedom(mask: Mask, size: int) -> jax.Array | int:
    """The number of parameters that are not pruned, of `size`."""
    return size if mask is None else jnp.sum(mask)


class Span(NamedTuple):
    """A slice of the flat vector: one leaf of the position."""

    start: int
    stop: int

    def of(self, vector: Vector) -> Vector:
        """The slice of a vector."""
        return jax.lax.slice_in_dim(vector, self.start, self.stop)


def _ranks(weights: Vector, mask: Vector) -> jax.Array:
    """Unsigned integers that are ordered as |w|, and 0 for weights that are already pruned."""
    bits = jax.lax.bitcast_convert_type(jnp.abs(weights), f"uint{8 * weights.dtype.itemsize}")
    return jnp.where(mask, bits + 1, 0)


def _count(parts: Sequence[jax.Array]) -> Scalar:
    return sum((jnp.sum(part, dtype=jnp.int32) for part in parts), start=jnp.zeros((), jnp.int32))


def nth_smallest(parts: Sequence[jax.Array], n: Scalar) -> Scalar:
    """The n-th smallest (from 1) of all unsigned integers in `parts`; 0 for n = 0.

    Found bit by bit, from the highest, with one counting pass per bit: `benchmarks/pruning.py` compares with sorting.
    """
    dtype, width = parts[0].dtype, 8 * parts[0].dtype.itemsize

    def decide(i: Scalar, found: Scalar) -> Scalar:
        candidate = found | (jnp.ones((), dtype) << (width - 1 - i).astype(dtype))
        return jnp.where(_count([part < candidate for part in parts]) < n, candidate, found)

    return jax.lax.fori_loop(0, width, decide, jnp.zeros((), dtype))


def without_smallest(weights: Vector, mask: Vector, spans: Sequence[Span], n: Scalar) -> Vector:
    """The mask without the n weights of least magnitude in all spans together, exactly n.

    Weights that are already pruned count and remain pruned; ties are broken by index, the lower one first.
    The bit pattern of a non-negative float, read as an unsigned integer, is monotone in the float.
    """
    ranks = [_ranks(span.of(weights), span.of(mask)) for span in spans]
    last = nth_smallest(ranks, n)
    remaining = n - _count([rank < last for rank in ranks])
    indices = [jnp.arange(span.start, span.stop, dtype=jnp.uint32) for span in spans]
    beyond = np.uint32(2**32 - 1)
    ties = [jnp.where(rank == last, index, beyond) for rank, index in zip(ranks, indices, strict=True)]
    last_index = nth_smallest(ties, remaining)
    for span, rank, index in zip(spans, ranks, indices, strict=True):
        kept = (rank > last) | ((rank == last) & (index > last_index))
        mask = jax.lax.dynamic_update_slice_in_dim(mask, kept & span.of(mask), span.start, 0)
    return mask


@pytree_dataclass
class Pruning:
    """At step `start`, and every `every` steps up to `stop`, weights of least magnitude are set to zero permanently.

    After event j of n, round(p_j × number of eligible weights) of them are zero, p_j = sparsity × schedule(j / n). The
    cubic schedule (Zhu and Gupta 2018) prunes most at first. Build one with `pruned(sampler, …)`.
    """

    sparsity: float
    start: int
    stop: int
    every: int
    schedule: Schedule = "cubic"
    scope: Scope = "global"
    leaves: Leaves = None

    def __post_init__(self) -> None:
        """Check the settings."""
        check_between("sparsity", self.sparsity, 0, 1, "()", "0.7 prunes 70 % of the weights")
        for name, value, minimum in (
            ("start", self.start, 1),
            ("stop", self.stop, self.start),
            ("every", self.every, 1),
        ):
            check_whole(name, value, minimum, "give a number of steps")
        check_choice("scope", self.scope, get_args(Scope))
        if not callable(self.schedule):
            check_choice("schedule", self.schedule, SCHEDULES, "a function from (0, 1] to [0, 1]")
        fractions = self.fractions()
        if (
            not np.all(np.diff(fractions) >= 0)
            or fractions.min() < 0
            or not math.isclose(fractions[-1], 1, rel_tol=1e-9)
        ):
            raise ValueError(
                f"schedule: its values at the {self.events} events are {np.array2string(fractions[1:], threshold=8)}; "
                "they must be non-decreasing, from 0 or more, to 1"
            )

    @property
    def events(self) -> int:
        """The number of pruning events."""
        return (self.stop - self.start) // self.every + 1

    def fractions(self) -> np.ndarray:
        """Fraction of the target sparsity after 0, 1, … events."""
        schedule = self.schedule if callable(self.schedule) else SCHEDULES[self.schedule]
        return np.array([0.0, *(float(schedule(j / self.events)) for j in range(1, self.events + 1))])

    def groups(self, layout: Layout) -> list[list[Span]]:
        """The eligible leaves: one group each with scope "layer", one group of all with "global"."""
        leaves = jax.tree.leaves(layout.position)
        names = leaf_names(layout.position)
        stops = np.cumsum([leaf.size for leaf in leaves])
        spans = [Span(int(stop - leaf.size), int(stop)) for leaf, stop in zip(leaves, stops, strict=True)]
        if isinstance(self.leaves, tuple) and (unknown := sorted(set(self.leaves) - set(names))):
            raise ValueError(f"leaves: {unknown[0]!r} is not one of {', '.join(names)}")
        eligible = [
            span
            for name, leaf, span in zip(names, leaves, spans, strict=True)
            if leaf.size and self._is_eligible(name, leaf)
        ]
        if not eligible:
            raise ValueError(
                f"leaves: none of {', '.join(names)} is chosen"
                + ("" if self.leaves else ", as none has two axes; name those that may be pruned")
            )
        return [[span] for span in eligible] if self.scope == "layer" else [eligible]

    def _is_eligible(self, name: str, leaf: jax.ShapeDtypeStruct) -> bool:
        if self.leaves is None:
            return len(leaf.shape) >= 2
        return bool(self.leaves(name, leaf)) if callable(self.leaves) else name in self.leaves

    def counts(self, layout: Layout) -> np.ndarray:
        """The number of zero weights of each group after 0, 1, … events, (event, group)."""
        sizes = [sum(span.stop - span.start for span in group) for group in self.groups(layout)]
        fractions = self.fractions()
        return np.array([[round(self.sparsity * share * size) for size in sizes] for share in fractions], np.int32)

    def _events_by(self, step: Scalar) -> Scalar:
        made = jnp.asarray((step - self.start) // self.every + 1)
        return jnp.where(step < self.start, 0, jnp.minimum(made, self.events))

    def kept(self, layout: Layout, step: Scalar) -> Scalar:
        """The number of unpruned parameters after `step` steps."""
        return jnp.asarray(layout.size - self.counts(layout).sum(1), jnp.int32)[self._events_by(step)]

    def last_kept(self, layout: Layout) -> int:
        """The number of unpruned parameters after the last event."""
        return layout.size - int(self.counts(layout)[-1].sum())

    def due(self, step: Scalar) -> Scalar:
        """Whether weights are pruned at the end of step number `step`, counted from 1."""
        return (step >= self.start) & (step <= self.stop) & ((step - self.start) % self.every == 0)

    def update_mask(self, layout: Layout, flat: Vector, mask: Vector, step: Scalar) -> Vector:
        """The mask after the event at the end of step number `step`."""
        counts = jnp.asarray(self.counts(layout))[self._events_by(step)]
        for i, spans in enumerate(self.groups(layout)):
            mask = without_smallest(flat, mask, spans, counts[i])
        return mask
