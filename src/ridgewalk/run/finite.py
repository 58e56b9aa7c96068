"""NaN and infinity in the data: found before a run where the data are in memory, after a divergence where they are not.

Without this a chain that meets such a row diverges, and its step size would be blamed.
"""

from itertools import islice
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk.data import Batches, on_host, read_rows
from ridgewalk.run.rows import Rows, rows_of_steps
from ridgewalk.types import Key, PyTree

NUMBERS_AT_ONCE = 2**22
"""How many numbers are looked at together, so that the look takes little memory."""

SHOWN = 5
"""How many rows a message names."""

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


def check_finite(data: PyTree) -> None:
    """Raise where arrays in memory hold NaN or infinity; what stays on the host or on disk is not read for this."""
    if on_host(data):
        return
    for name, leaf in _leaves(data):
        rows = _bad_rows(np.asarray(leaf))
        if rows.size:
            raise ValueError(f"{name}: NaN or infinity in {_told(rows)}, with which no potential is finite; {FIX}")


def has_bad_rows(data: PyTree) -> bool:
    """Whether any array holds NaN or infinity."""
    return any(_bad_rows(np.asarray(leaf)).size for leaf in jax.tree.leaves(data))


def blame(data: PyTree, rows: Rows, keys: Key, chain: int, step: int) -> str:
    """What is not finite in the batch from the host that chain `chain` of `keys` saw in a step; "" where all is."""
    if isinstance(data, Batches):
        return _blame_batches(data)
    chosen = np.unique(np.asarray(rows_of_steps(rows, keys, jnp.asarray(step), 1))[0, chain])
    for name, leaf in _leaves(data):
        bad = _bad_rows(read_rows(leaf, chosen))
        if bad.size:
            return f"{name} in {_told(chosen[bad])}"
    return ""


def _blame_batches(batches: Batches) -> str:
    for number, item in enumerate(islice(batches.batches, MOST_BATCHES)):
        for name, leaf in _leaves(jax.tree.map(np.asarray, item)):
            bad = _bad_rows(leaf)
            if bad.size:
                return f"{name} in {_told(bad)} of batch {number}"
    return ""
