"""The n weights of least magnitude, exactly, without sorting: bisection over the bits of |w|.

The bit pattern of a positive float, read as a whole number, grows with the float. The n-th smallest is therefore found
bit by bit, from the highest: 32 passes that only count, where sorting 8 million weights takes several times as long.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk.types import Scalar, Vector


class Span(NamedTuple):
    """A stretch of the flat vector: one leaf of the position."""

    start: int
    stop: int

    def of(self, vector: Vector) -> Vector:
        """The stretch's part of a vector."""
        return jax.lax.slice_in_dim(vector, self.start, self.stop)


def _ranks(weights: Vector, mask: Vector) -> jax.Array:
    """Whole numbers in the order of |w|, and 0 for weights that are pruned already: they come first."""
    bits = jax.lax.bitcast_convert_type(jnp.abs(weights), f"uint{8 * weights.dtype.itemsize}")
    return jnp.where(mask, bits + 1, 0)


def _count(parts: Sequence[jax.Array]) -> Scalar:
    return sum((jnp.sum(part, dtype=jnp.int32) for part in parts), start=jnp.zeros((), jnp.int32))


def nth_smallest(parts: Sequence[jax.Array], n: Scalar) -> Scalar:
    """The n-th smallest (from 1) of all numbers in the parts, which are unsigned; 0 for n = 0."""
    dtype, width = parts[0].dtype, 8 * parts[0].dtype.itemsize

    def decide(i: Scalar, found: Scalar) -> Scalar:
        candidate = found | (jnp.ones((), dtype) << (width - 1 - i).astype(dtype))
        return jnp.where(_count([part < candidate for part in parts]) < n, candidate, found)

    return jax.lax.fori_loop(0, width, decide, jnp.zeros((), dtype))


def without_smallest(weights: Vector, mask: Vector, spans: Sequence[Span], n: Scalar) -> Vector:
    """The mask without the n weights of least magnitude in all spans together.

    Weights that are pruned already count and stay pruned; of equal ones those with the lower index go first.
    """
    ranks = [_ranks(span.of(weights), span.of(mask)) for span in spans]
    last = nth_smallest(ranks, n)
    still = n - _count([rank < last for rank in ranks])
    places = [jnp.arange(span.start, span.stop, dtype=jnp.uint32) for span in spans]
    beyond = np.uint32(2**32 - 1)
    ties = [jnp.where(rank == last, place, beyond) for rank, place in zip(ranks, places, strict=True)]
    last_place = nth_smallest(ties, still)
    for span, rank, place in zip(spans, ranks, places, strict=True):
        kept = (rank > last) | ((rank == last) & (place > last_place))
        mask = jax.lax.dynamic_update_slice_in_dim(mask, kept & span.of(mask), span.start, 0)
    return mask
