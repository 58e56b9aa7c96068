"""Products of batches with a sparse matrix on the CPU, and when they beat dense ones."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

EXAMPLE, BLOCK = 0.42, 1.8
"""Nanoseconds that a number that is not zero takes in a sparse product: of one example, of eight together."""

READ, MULTIPLY = 0.20, 0.045
"""Nanoseconds of a number in a dense product: to read it, and for each example. Measured on one core (AMD EPYC, L3 of
32 MB) as in `benchmarks/pruning.py`. Fixed, so that predictions do not depend on timings."""

FEWEST_IN_BLOCK = 5
"""From so many examples on, eight together take less time than one by one."""


def _blocks(examples: int) -> tuple[int, int]:
    """How many examples go in blocks of eight, the last of which may be filled up, and how many one by one."""
    rest = examples % 8
    return (examples, 0) if rest >= FEWEST_IN_BLOCK else (examples - rest, rest)


def wins(density: float, examples: int) -> bool:
    """Whether a sparse product of so many examples takes less time than a dense one."""
    together, alone = _blocks(examples)
    return density * (BLOCK * -(-together // 8) + EXAMPLE * alone) < READ + MULTIPLY * examples


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
        one, eight = _kernels()
        together, alone = _blocks(len(x))
        for n in range(0, together, 8):
            part = x[n : n + 8]
            filled = np.zeros((self.before, 8), x.dtype)
            filled[:, : len(part)] = part.T
            made = np.empty((8, y.shape[1]), y.dtype)
            eight(self.starts, self.inputs, self.values, filled, made)
            y[n : n + 8] = made[: len(part)]
        if alone:
            one(self.starts, self.inputs, self.values, x[together:], y[together:])
        return y


class Pattern(NamedTuple):
    """Where a matrix W (before, after) is not zero: what matrices with zeros in common share."""

    starts: np.ndarray
    inputs: np.ndarray
    order: np.ndarray
    """The place that each number, output after output, has among the numbers as they are stored."""
    before: int

    def matrix(self, values: np.ndarray) -> SparseMatrix:
        """W from its numbers as they are stored."""
        return SparseMatrix(self.starts, self.inputs, values[self.order], self.before)


def pattern(mask: np.ndarray, summed: int = 0) -> Pattern:
    """The pattern of an array of two axes of which `summed` is summed over, its numbers stored row after row."""
    places = np.zeros(mask.shape, np.uint32)
    places[mask] = np.arange(np.count_nonzero(mask), dtype=np.uint32)
    by_output, places = (mask.T, places.T) if summed == 0 else (mask, places)
    before = by_output.shape[1]
    kind = np.uint16 if before <= 2**16 else np.uint32
    inputs = np.broadcast_to(np.arange(before, dtype=kind), by_output.shape)[by_output]
    starts = np.concatenate([[0], np.cumsum(by_output.sum(1))]).astype(np.uint64)
    return Pattern(starts, inputs, places[by_output], before)


@cache
def _kernels() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Products of examples one by one, and of eight together, x then being (before, 8), as machine code."""
    import numba  # noqa: PLC0415 - slow to import, and needed by few

    compiled = numba.njit(error_model="numpy", nogil=True)
    return compiled(_one_by_one), compiled(_eight_together)


# Both keep eight sums at a time: one would wait for itself in every addition. Numbers of type uint64 spare the check
# for negative indices.


def _one_by_one(starts: Any, inputs: Any, values: Any, x: Any, y: Any) -> None:
    unit, eight = np.uint64(1), np.uint64(8)
    for n in range(y.shape[0]):
        row = x[n]
        for i in range(y.shape[1]):
            k, stop = starts[i], starts[i + 1]
            even = stop - (stop - k) % eight
            a = b = c = d = e = f = g = h = values.dtype.type(0)
            while k < even:
                a += values[k] * row[inputs[k]]
                b += values[k + unit] * row[inputs[k + unit]]
                c += values[k + np.uint64(2)] * row[inputs[k + np.uint64(2)]]
                d += values[k + np.uint64(3)] * row[inputs[k + np.uint64(3)]]
                e += values[k + np.uint64(4)] * row[inputs[k + np.uint64(4)]]
                f += values[k + np.uint64(5)] * row[inputs[k + np.uint64(5)]]
                g += values[k + np.uint64(6)] * row[inputs[k + np.uint64(6)]]
                h += values[k + np.uint64(7)] * row[inputs[k + np.uint64(7)]]
                k += eight
            while k < stop:
                a += values[k] * row[inputs[k]]
                k += unit
            y[n, i] = ((a + b) + (c + d)) + ((e + f) + (g + h))


def _eight_together(starts: Any, inputs: Any, values: Any, x: Any, y: Any) -> None:
    for i in range(y.shape[1]):
        k, stop = starts[i], starts[i + 1]
        a = b = c = d = e = f = g = h = values.dtype.type(0)
        while k < stop:
            weight, j = values[k], inputs[k]
            a += weight * x[j, 0]
            b += weight * x[j, 1]
            c += weight * x[j, 2]
            d += weight * x[j, 3]
            e += weight * x[j, 4]
            f += weight * x[j, 5]
            g += weight * x[j, 6]
            h += weight * x[j, 7]
            k += np.uint64(1)
        y[0, i], y[1, i], y[2, i], y[3, i] = a, b, c, d
        y[4, i], y[5, i], y[6, i], y[7, i] = e, f, g, h
