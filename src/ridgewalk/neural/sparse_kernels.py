"""Sparse products compiled by numba when they are first called, and cached on disk.

`benchmarks/pruning.py` times them against dense products and SciPy's CSR, and is the reason for them.

Every kernel makes outputs `first` to `last` of y = x W. What output i sums is `values[starts[i]:starts[i + 1]]`, of
inputs given by their indices (`indexed`), or by a bit for every input (`masked`). Outputs are independent of
each other, so that several cores give the same bits as one.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ridgewalk._validation import requires_extra

with requires_extra("sparse"):
    import numba
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic

UNROLLED = 4
"""Sums that a masked product keeps at a time: one would wait for itself in every addition."""


AHEAD = 512
"""How many numbers before they are needed they are fetched: hardware prefetch stops at page boundaries."""


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    try:
        return numba.njit(cache=True, error_model="numpy", nogil=True)(function)
    except RuntimeError:  # no folder to keep it in
        return numba.njit(error_model="numpy", nogil=True)(function)


# Eight sums at a time, for the reason above. Numbers of type uint64 spare the check for negative indices.


@_compiled
def indexed_one(starts: Any, inputs: Any, values: Any, x: Any, y: Any, first: int, last: int) -> None:
    """Examples one by one, x being (example, before)."""
    unit, eight = np.uint64(1), np.uint64(8)
    for n in range(y.shape[0]):
        row = x[n]
        for i in range(first, last):
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


@_compiled
def indexed_eight(starts: Any, inputs: Any, values: Any, x: Any, y: Any, first: int, last: int) -> None:
    """Eight examples together, x being (before, 8)."""
    for i in range(first, last):
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


@intrinsic  # type: ignore[untyped-decorator, unused-ignore]
def _masked_sum(
    _context: Any, values: Any, k: Any, masks: Any, first: Any, count: Any, x: Any, at: Any
) -> tuple[Any, Callable[..., Any]]:
    """Σ over `count` words of `masks` from `first` on: as many numbers as a word has ones, from `values[k]` on, are put
    where the ones are (AVX-512's `vexpand`) and multiplied with as many inputs as a word has bits, from `x[at]` on.
    """
    place = types.uint64
    signature = values.dtype(values, place, masks, place, place, x, place)

    def generate(context: Any, build: Any, kinds: Any, arguments: Any) -> Any:
        numbers, k, masks, first, count, inputs, at = arguments
        bits = kinds.args[0].dtype.bitwidth
        lanes = 512 // bits
        number, word, whole = context.get_data_type(kinds.args[0].dtype), ir.IntType(lanes), ir.IntType(64)
        vector, marks = ir.VectorType(number, lanes), ir.VectorType(ir.IntType(1), lanes)
        zero = ir.Constant(vector, None)
        numbers, masks, inputs = (
            context.make_array(kind)(context, build, array).data
            for kind, array in ((kinds.args[0], numbers), (kinds.args[2], masks), (kinds.args[5], inputs))
        )

        def function(name: str, result: Any, given: list[Any]) -> Any:
            return cgutils.get_or_insert_function(build.module, ir.FunctionType(result, given), name)

        expand = function(f"llvm.x86.avx512.mask.expand.v{lanes}f{bits}", vector, [vector, vector, marks])
        multiply_add = function(f"llvm.fma.v{lanes}f{bits}", vector, [vector] * 3)
        ones = function(f"llvm.ctpop.i{lanes}", word, [word])
        pointer, short = ir.IntType(8).as_pointer(), ir.IntType(32)
        fetch = function("llvm.prefetch.p0", ir.VoidType(), [pointer, short, short, short])

        def read(array: Any, place: Any) -> Any:
            loaded = build.load(build.bitcast(build.gep(array, [place]), vector.as_pointer()))
            loaded.align = bits // 8
            return loaded

        now = cgutils.alloca_once_value(build, k)
        sums = [cgutils.alloca_once_value(build, zero) for _ in range(UNROLLED)]

        def add(group: Any, total: Any) -> None:
            mask, here = build.load(build.gep(masks, [build.add(first, group)])), build.load(now)
            if total in sums[::2]:
                soon = build.bitcast(build.gep(numbers, [build.add(here, whole(AHEAD))]), pointer)
                build.call(fetch, [soon, short(0), short(3), short(1)])
            weights = build.call(expand, [read(numbers, here), zero, build.bitcast(mask, marks)])
            build.store(build.add(here, build.zext(build.call(ones, [mask]), whole)), now)
            some = read(inputs, build.add(at, build.mul(group, whole(lanes))))
            build.store(build.call(multiply_add, [weights, some, build.load(total)]), total)

        rounds = build.udiv(count, whole(UNROLLED))
        with cgutils.for_range(build, rounds, intp=whole) as loop:
            base = build.mul(loop.index, whole(UNROLLED))
            for turn, total in enumerate(sums):
                add(build.add(base, whole(turn)), total)
        with cgutils.for_range(build, count, start=build.mul(rounds, whole(UNROLLED)), intp=whole) as loop:
            add(loop.index, sums[0])
        a, b, c, d = (build.load(total) for total in sums)
        together = build.fadd(build.fadd(a, b), build.fadd(c, d))
        parts = [build.extract_element(together, ir.IntType(32)(lane)) for lane in range(lanes)]
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [build.fadd(parts[lane], parts[lane + half]) for lane in range(half)]
        return parts[0]

    return signature, generate


@_compiled
def masked_one(starts: Any, masks: Any, values: Any, x: Any, y: Any, first: int, last: int) -> None:
    """Examples one by one; x is flat, every example filled up with zeros to whole words of the masks."""
    outputs = starts.size - 1
    words, inputs = np.uint64(masks.size // outputs), np.uint64(x.size // y.shape[0])
    for n in range(y.shape[0]):
        for i in range(first, last):
            place, at = np.uint64(i) * words, np.uint64(n) * inputs
            y[n, i] = _masked_sum(values, starts[i], masks, place, words, x, at)  # type: ignore[call-arg, unused-ignore]
