"""Products of batches with a sparse matrix on the CPU, and when they beat dense ones."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

SAMPLES_BREAK_EVEN = 0.46
ALWAYS_BREAK_EVEN = 0.13
"""Densities below which sparse products win are 0.13 + 0.46 / examples, as measured by `benchmarks/pruning.py`: a dense
product of one example waits for the memory, one of many shares what it has read."""


def wins(density: float, examples: int) -> bool:
    """Whether a sparse product of so many examples takes less time than a dense one; the same on every machine, so
    that predictions do not depend on timings.
    """
    return density < ALWAYS_BREAK_EVEN + SAMPLES_BREAK_EVEN / examples


class SparseMatrix(NamedTuple):
    """A matrix W (before, after) by its columns: the numbers of output i are `values[starts[i]:starts[i + 1]]`, of the
    inputs `inputs[…]`, which take two bytes where there are few enough of them.
    """

    starts: np.ndarray
    inputs: np.ndarray
    values: np.ndarray
    before: int

    @property
    def density(self) -> float:
        """The share of numbers that are not zero."""
        return len(self.inputs) / max(1, self.before * (len(self.starts) - 1))

    def product(self, x: np.ndarray) -> np.ndarray:
        """x W of (example, before)."""
        x = np.ascontiguousarray(x, self.values.dtype)
        y = np.empty((len(x), len(self.starts) - 1), self.values.dtype)
        _kernel()(self.starts, self.inputs, self.values, x, y)
        return y


def sparse_matrix(mask: np.ndarray, values: np.ndarray) -> SparseMatrix:
    """W from where it is not zero (before, after) and its numbers there, row after row."""
    before = mask.shape[0]
    whole = np.zeros(mask.shape, values.dtype)
    whole[mask] = values
    columns = mask.T
    kind = np.uint16 if before <= 2**16 else np.uint32
    inputs = np.broadcast_to(np.arange(before, dtype=kind), columns.shape)[columns]
    starts = np.concatenate([[0], np.cumsum(columns.sum(1))]).astype(np.uint64)
    return SparseMatrix(starts, inputs, whole.T[columns], before)


@cache
def _kernel() -> Callable[..., Any]:
    """The product as machine code. Eight sums at a time: one would wait for itself in every addition."""
    import numba  # noqa: PLC0415 - slow to import, and needed by few

    one, eight = np.uint64(1), np.uint64(8)

    @numba.njit(error_model="numpy", nogil=True)
    def product(starts: Any, inputs: Any, values: Any, x: Any, y: Any) -> None:
        for i in range(y.shape[1]):
            for n in range(y.shape[0]):
                row = x[n]
                k, stop = starts[i], starts[i + 1]
                even = stop - (stop - k) % eight
                a = b = c = d = e = f = g = h = values.dtype.type(0)
                while k < even:
                    a += values[k] * row[inputs[k]]
                    b += values[k + one] * row[inputs[k + one]]
                    c += values[k + np.uint64(2)] * row[inputs[k + np.uint64(2)]]
                    d += values[k + np.uint64(3)] * row[inputs[k + np.uint64(3)]]
                    e += values[k + np.uint64(4)] * row[inputs[k + np.uint64(4)]]
                    f += values[k + np.uint64(5)] * row[inputs[k + np.uint64(5)]]
                    g += values[k + np.uint64(6)] * row[inputs[k + np.uint64(6)]]
                    h += values[k + np.uint64(7)] * row[inputs[k + np.uint64(7)]]
                    k += eight
                while k < stop:
                    a += values[k] * row[inputs[k]]
                    k += one
                y[n, i] = ((a + b) + (c + d)) + ((e + f) + (g + h))

    return product
