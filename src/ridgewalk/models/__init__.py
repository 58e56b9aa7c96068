"""Targets from models that were written in NumPyro or PyMC; here what both need to find the rows of a model.

A model is tried on two batches of a few rows, which share some. An argument is ambiguous if the model works with it
both as data and as a constant. The prior must be the same on both batches, and so must the shared rows.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

import numpy as np

TRIAL_ROWS = (7, 11, 13, 17, 19, 23)
"""Sizes of the batch that a model is tried with: the first that is no axis of an argument."""
SHARED_ROWS = 3
"""Rows that two batches of the trial have in common."""
TOLERANCE = 1e-3
"""Relative difference from which two values of the trial count as different."""

FULL_DATA = "pass data=() to use all data in every step, without minibatches"

Terms = Mapping[str, np.ndarray]
"""Log densities by site: one value per row, or one value."""


def trial_rows(size: int, taken: Iterable[int]) -> tuple[np.ndarray, np.ndarray]:
    """Indices of two batches whose first `SHARED_ROWS` rows are the same, of a size that is not `taken`."""
    axes = set(taken)
    count = next((n for n in TRIAL_ROWS if n not in axes), max(axes, default=0) + 1)
    rng = np.random.default_rng(0)
    first = rng.integers(0, size, count)
    return first, np.concatenate([first[:SHARED_ROWS], rng.integers(0, size, count - SHARED_ROWS)])


def close(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays are equal but for rounding."""
    return a.shape == b.shape and np.allclose(a, b, rtol=TOLERANCE, atol=1e-5, equal_nan=True)


def all_close(a: Terms, b: Terms) -> bool:
    """Whether all terms are equal but for rounding."""
    return all(close(a[name], b[name]) for name in a)


def refuse_ambiguous(
    names: tuple[str, ...],
    doubtful: Iterable[str],
    size: int,
    batched: Terms | None,
    try_terms: Callable[[tuple[str, ...]], Terms | None],
) -> None:
    """Raise if the model works with a doubtful argument as data and as a constant, with different values.

    `batched` are the terms with all of `names` as data, `try_terms(names)` those with some; None if the model fails.
    """
    for name in doubtful if len(names) > 1 else ():
        rest = tuple(other for other in names if other != name)
        without = try_terms(rest)
        if without is not None and (batched is None or not all_close(batched, without)):
            raise ValueError(
                f"data: {', '.join(names)} have {size} rows, as the observed values do, but {name} may also be a "
                f"constant; say which are data, for example data={rest!r} or data={names!r}"
            )


def check_independent(one: Terms, two: Terms, with_rows: Collection[str]) -> None:
    """Raise if terms without rows depend on the batch, or shared rows on the others."""
    for name, value in one.items():
        if name not in with_rows:
            if not close(value, two[name]):
                site = name.removeprefix("_").removesuffix("_log_det")
                raise ValueError(
                    f"model: the log density of {site!r} depends on the rows of the data but has no rows itself, so "
                    "that a batch would change it; keep its rows apart (no sum, no to_event), or compute what it needs "
                    f"of the data before and pass it as an argument, or {FULL_DATA}"
                )
        elif not close(value[:SHARED_ROWS], two[name][:SHARED_ROWS]):
            raise ValueError(
                f"model: the log density of a row of {name!r} depends on the other rows of its batch (as when the data "
                f"are standardised in the model); compute that before and pass it as an argument, or {FULL_DATA}"
            )
