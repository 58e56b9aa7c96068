"""NaN and infinity in the data: found before a run where the data are in memory, after a divergence where they are not.

Without this a chain that meets such a row diverges, and its step size would be blamed. A likelihood may also be made
for them (infinity for a bound that is open, NaN for what is missing), so data in memory are refused only where it, or
its gradient, is not finite.
"""

from dataclasses import replace
from functools import reduce
from itertools import islice
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._types import Key, PyTree, Scalar
from ridgewalk.data import Batches, on_host, read_rows
from ridgewalk.run.rows import Rows, rows_of_steps
from ridgewalk.target import Posterior

NUMBERS_AT_ONCE = 2**22
"""How many numbers are looked at together, so that the look takes little memory."""

SHOWN = 5
"""How many rows a message names."""

TRIED = 8
"""In how many rows of an array with NaN, and in how many with infinity, the likelihood is tried."""

MOST_BATCHES = 1_000
"""How many batches of an iterable are gone through to find the one that is not finite."""

FIX = "leave these rows out, or put a number in their place and tell log_likelihood by an array of its own"


def _bad_rows(leaf: np.ndarray) -> np.ndarray:
    """The rows of an array that hold NaN or infinity; none where it is not of floats."""
    if not jnp.issubdtype(leaf.dtype, jnp.inexact):
        return np.zeros(0, int)
    size = len(leaf)
    at_once = max(1, NUMBERS_AT_ONCE * size // max(leaf.size, 1))
    parts = []
    for start in range(0, size, at_once):
        part = leaf[start : start + at_once]
        finite = np.isfinite(part)
        if not finite.all():
            parts.append(start + np.flatnonzero(~finite.reshape(len(part), -1).all(axis=1)))
    return np.concatenate(parts) if parts else np.zeros(0, int)


def _told(rows: np.ndarray) -> str:
    more = f" and {len(rows) - SHOWN:,} more" if len(rows) > SHOWN else ""
    return f"row{'s' if len(rows) > 1 else ''} {', '.join(map(str, rows[:SHOWN]))}{more}"


def _leaves(data: PyTree) -> list[tuple[str, Any]]:
    return [(f"data{jax.tree_util.keystr(path)}", leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(data)[0]]


def suspects(data: PyTree) -> dict[str, np.ndarray]:
    """The rows with NaN or infinity of each array in memory that has any; what stays on the host is not read for this.

    Keys are the arrays' names, such as `data['x']`.
    """
    if on_host(data):
        return {}
    found = {name: _bad_rows(np.asarray(leaf)) for name, leaf in _leaves(data)}
    return {name: rows for name, rows in found.items() if rows.size}


@jax.jit
def _likelihood_is_finite(target: Posterior, position: PyTree) -> Scalar:
    """Whether log p(d_i | θ) and its gradient are, over all data of the target."""

    def total(position: PyTree) -> tuple[Scalar, Scalar]:
        values = target.likelihood_values(position, target.data)
        return jnp.sum(values), jnp.all(jnp.isfinite(values))

    gradient, finite = jax.grad(total, has_aux=True)(position)
    return jnp.all(jnp.stack([finite, *(jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))]))


def check_finite(target: Posterior, position: PyTree, suspected: dict[str, np.ndarray]) -> None:
    """Raise where the likelihood or its gradient is not finite at a position in some of the rows suspected."""
    leaves = dict(_leaves(target.data))
    for name, rows in suspected.items():
        part = np.asarray(leaves[name])[rows]
        missing = np.isnan(part.reshape(len(part), -1)).any(axis=1)
        for row in (*rows[missing][:TRIED], *rows[~missing][:TRIED]):
            # The row twice, as likelihoods may squeeze axes of length one.
            alone = replace(
                target, data=jax.tree.map(lambda x, row=row: jnp.asarray(x[np.array([row, row])]), target.data)
            )
            if not _likelihood_is_finite(alone, position):
                shared = {other: bad for other, bad in suspected.items() if row in bad}
                raise ValueError(
                    f"{' and '.join(shared)}: NaN or infinity in {_told(reduce(np.intersect1d, shared.values()))}, and "
                    f"log_likelihood or its gradient at the start is not finite for row {row}; {FIX}"
                )


def has_bad_rows(data: PyTree) -> bool:
    """Whether any array holds NaN or infinity."""
    return any(_bad_rows(np.asarray(leaf)).size for leaf in jax.tree.leaves(data))


def blame(data: PyTree, rows: Rows, keys: Key, chain: int, step: int) -> str:
    """What is not finite in the batch from the host that chain `chain` of `keys` saw in a step; "" where all is."""
    if isinstance(data, Batches):
        return _blame_batches(data, step)
    chosen = np.unique(np.asarray(rows_of_steps(rows, keys, step, 1))[0, chain])
    for name, leaf in _leaves(data):
        bad = _bad_rows(read_rows(leaf, chosen))
        if bad.size:
            return f"{name} in {_told(chosen[bad])}"
    return ""


def _blame_batches(batches: Batches, step: int) -> str:
    """The first batch that is not finite of those read up to a step; later ones cannot have done it."""
    for number, item in enumerate(islice(batches.batches, min(step + 1, MOST_BATCHES))):
        for name, leaf in _leaves(jax.tree.map(np.asarray, item)):
            bad = _bad_rows(leaf)
            if bad.size:
                return f"{name} in {_told(bad)} of batch {number}"
    return ""
