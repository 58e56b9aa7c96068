"""When a chain is pruned, by how much, and which of its weights can be."""

import math
from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk.layout import Layout, leaf_names
from ridgewalk.pruning.threshold import Span, without_smallest
from ridgewalk.settings import settings
from ridgewalk.types import Scalar, Vector

Scope = Literal["global", "layer"]
Schedule: TypeAlias = Literal["cubic", "linear"] | Callable[[float], float]
"""How much of the target is reached at a share t of the events, from (0, 1] to [0, 1], 1 at t = 1."""

Leaves: TypeAlias = tuple[str, ...] | Callable[[str, jax.ShapeDtypeStruct], bool] | None
"""Names of leaves, a function of a leaf's name and shape, or None for those with two axes or more."""

SCHEDULES: dict[str, Callable[[float], float]] = {"cubic": lambda t: 1 - (1 - t) ** 3, "linear": lambda t: t}


@settings
class Pruning:
    """At step `start`, and every `every` steps up to `stop`, the weights of least magnitude go to zero and stay there.

    After event j of n, round(p_j × number of chosen weights) of them are zero, p_j = sparsity × schedule(j / n):
    cubic (Zhu and Gupta 2018) prunes most at first, while there is much to spare. Build one with `pruned(sampler, …)`.
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
        if not 0 < self.sparsity < 1:
            raise ValueError(f"sparsity: {self.sparsity} is not between 0 and 1; 0.7 prunes 70 % of the weights")
        for name, value, least in (("start", self.start, 1), ("stop", self.stop, self.start), ("every", self.every, 1)):
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                raise ValueError(f"{name}: {value!r} is not a whole number of steps of at least {least}")
        if self.scope not in get_args(Scope):
            raise ValueError(f"scope: {self.scope!r} is unknown; use 'global' or 'layer'")
        if not callable(self.schedule) and self.schedule not in SCHEDULES:
            raise ValueError(
                f"schedule: {self.schedule!r} is unknown; use 'cubic', 'linear' or a function from (0, 1] to [0, 1]"
            )
        shares = self.shares()
        if not np.all(np.diff(shares) >= 0) or shares.min() < 0 or not math.isclose(shares[-1], 1, rel_tol=1e-9):
            raise ValueError(
                f"schedule: its values at the {self.events} events are {np.array2string(shares[1:], threshold=8)}; "
                "they must grow, from 0 or more, to 1"
            )

    @property
    def events(self) -> int:
        """How many times weights are pruned."""
        return (self.stop - self.start) // self.every + 1

    def shares(self) -> np.ndarray:
        """Which share of the target is reached after 0, 1, … events."""
        schedule = self.schedule if callable(self.schedule) else SCHEDULES[self.schedule]
        return np.array([0.0, *(float(schedule(j / self.events)) for j in range(1, self.events + 1))])

    def groups(self, form: Layout) -> list[list[Span]]:
        """The chosen leaves: each alone, or all together."""
        leaves = jax.tree.leaves(form.position)
        names = leaf_names(form.position)
        stops = np.cumsum([leaf.size for leaf in leaves])
        spans = [Span(int(stop - leaf.size), int(stop)) for leaf, stop in zip(leaves, stops, strict=True)]
        if isinstance(self.leaves, tuple) and (unknown := sorted(set(self.leaves) - set(names))):
            raise ValueError(f"leaves: {unknown[0]!r} is not one of {', '.join(names)}")
        wanted = [
            span for name, leaf, span in zip(names, leaves, spans, strict=True) if leaf.size and self._wants(name, leaf)
        ]
        if not wanted:
            raise ValueError(
                f"leaves: none of {', '.join(names)} is chosen"
                + ("" if self.leaves else ", as none has two axes; name those that may be pruned")
            )
        return [[span] for span in wanted] if self.scope == "layer" else [wanted]

    def _wants(self, name: str, leaf: jax.ShapeDtypeStruct) -> bool:
        if self.leaves is None:
            return len(leaf.shape) >= 2
        return bool(self.leaves(name, leaf)) if callable(self.leaves) else name in self.leaves

    def counts(self, form: Layout) -> np.ndarray:
        """How many weights of each group are zero after 0, 1, … events, (event, group)."""
        sizes = [sum(span.stop - span.start for span in group) for group in self.groups(form)]
        return np.array([[round(self.sparsity * share * size) for size in sizes] for share in self.shares()], np.int32)

    def _events_by(self, step: Scalar) -> Scalar:
        return jnp.clip((step - self.start) // self.every + 1, 0, self.events)

    def kept(self, form: Layout, step: Scalar) -> Scalar:
        """How many parameters are free after `step` steps."""
        return jnp.asarray(form.size - self.counts(form).sum(1), jnp.int32)[self._events_by(step)]

    def last_kept(self, form: Layout) -> int:
        """How many parameters are free in the end."""
        return form.size - int(self.counts(form)[-1].sum())

    def due(self, step: Scalar) -> Scalar:
        """Whether weights are pruned at the end of step number `step`, counted from 1."""
        return (step >= self.start) & (step <= self.stop) & ((step - self.start) % self.every == 0)

    def prune(self, form: Layout, flat: Vector, mask: Vector, step: Scalar) -> Vector:
        """The mask after the event at the end of step number `step`."""
        counts = jnp.asarray(self.counts(form))[self._events_by(step)]
        for i, spans in enumerate(self.groups(form)):
            mask = without_smallest(flat, mask, spans, counts[i])
        return mask
