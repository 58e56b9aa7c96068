"""Arrays with many zeros as a bit for every number and the numbers that are not zero; in files, checked when read.

At 70 % zeros a float32 array takes 30 % + 1/32 of its size.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ridgewalk._io import NewerFormatError, read_tensors, write_tensors

FORMAT = "ridgewalk-compressed-1"
FORMAT_VERSION = 1

SMALL = 2**28
"""Bytes of an array that is unpacked whatever its share of zeros."""

MOST_COMPRESSED = 1000
"""A larger array must not have fewer numbers than this share of zeros leaves: few bytes could else fill the memory."""


class Packed(NamedTuple):
    """One array of every draw: where any of them is not zero, once, and the numbers there, (draw, number)."""

    name: str
    shape: tuple[int, ...]
    bits: np.ndarray
    values: np.ndarray

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return int(self.bits.nbytes + self.values.nbytes)

    @property
    def whole(self) -> bool:
        """Whether the array is kept as it is: with few zeros, bits would take more bytes than they save."""
        return self.bits.size == 0

    @property
    def density(self) -> float:
        """The share of numbers that are stored."""
        return self.values.shape[1] / max(1, int(np.prod(self.shape)))

    def mask(self) -> np.ndarray:
        """Where numbers are not zero in all draws."""
        size = int(np.prod(self.shape))
        if self.whole:
            return np.ones(self.shape, bool)
        return np.unpackbits(self.bits, count=size).astype(bool).reshape(self.shape)

    def dense(self, draw: int) -> np.ndarray:
        """The array of one draw."""
        if self.whole:
            return self.values[draw].reshape(self.shape)
        array = np.zeros(self.shape, self.values.dtype)
        array[self.mask()] = self.values[draw]
        return array


def pack(name: str, draws: np.ndarray) -> Packed:
    """An array (draw, …) in the form that takes fewer bytes."""
    if draws.dtype not in (np.float16, np.float32, np.float64):
        raise ValueError(f"parameters: {name} is {draws.dtype}; convert it to float32, float64 or float16")
    mask = np.any(draws != 0, axis=0)
    flat = draws.reshape(len(draws), -1)
    values = np.ascontiguousarray(flat[:, mask.ravel()])
    bits = np.packbits(mask.ravel())
    if bits.nbytes + values.nbytes >= flat.nbytes:
        return Packed(name, draws.shape[1:], np.zeros(0, np.uint8), np.ascontiguousarray(flat))
    return Packed(name, draws.shape[1:], bits, values)


def packed(name: str, shape: Sequence[int], bits: np.ndarray, values: np.ndarray) -> Packed:
    """An array in its packed form, from a file; ValueError where its parts do not fit each other."""
    if not all(type(length) is int and length >= 0 for length in shape):
        raise ValueError(f"{name}: its shape {str(shape)[:80]} is not of whole numbers")
    size = math.prod(shape)
    whole = bits.size == 0
    if values.ndim != 2 or values.dtype not in (np.float16, np.float32, np.float64):
        raise ValueError(f"{name}: its numbers have shape {values.shape} and dtype {values.dtype}")
    if not whole and (bits.dtype != np.uint8 or bits.shape != (-(-size // 8),)):
        raise ValueError(f"{name}: it has {bits.size} bytes of bits for {size} numbers")
    stored = size if whole else int(np.unpackbits(bits, count=size).sum())
    if values.shape[1] != stored:
        raise ValueError(f"{name}: it has {values.shape[1]} numbers where {stored} are declared")
    if len(values) * size * values.itemsize > max(SMALL, MOST_COMPRESSED * (bits.nbytes + values.nbytes)):
        raise ValueError(f"{name}: it has {len(values)} draws of {size} numbers in {bits.nbytes + values.nbytes} bytes")
    return Packed(name, tuple(shape), bits, values)


def write(path: Path, arrays: list[Packed], several: bool) -> None:
    """Write arrays to one safetensors file, atomically; `several`: they have an axis for draws."""
    tensors = {f"{i:04d}.values": array.values for i, array in enumerate(arrays)}
    tensors |= {f"{i:04d}.bits": array.bits for i, array in enumerate(arrays)}
    about = {"arrays": [[array.name, list(array.shape)] for array in arrays], "several": several}
    write_tensors(path, tensors, kind=FORMAT, version=FORMAT_VERSION, about=about)


def read(path: Path) -> tuple[list[Packed], bool]:
    """What was written to a file, if every bit of it still is."""
    try:
        tensors, about = read_tensors(path, kind=FORMAT, newest=FORMAT_VERSION)[:2]
        arrays = [
            packed(str(name), shape, tensors[f"{i:04d}.bits"], tensors[f"{i:04d}.values"])
            for i, (name, shape) in enumerate(about["arrays"])
        ]
        several = bool(about["several"])
    except NewerFormatError:
        raise
    except (KeyError, ValueError, TypeError) as error:
        raise ValueError(f"path: {path} is not a compressed ridgewalk model, or damaged ({error})") from error
    return arrays, several
