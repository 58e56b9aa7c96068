"""Convolutions as matrix products on CPU, differentiable to any order in both modes; XLA's own on other platforms.

XLA's convolution is slow on CPU inside a loop: its gradient, for 64 channels to 32 on 50 fields of 50×50, took 13 s on
2 cores, and 0.135 s with the lowering here (`benchmarks/networks.py`). It is registered for the platform "cpu" only;
any other lowers to `jax.lax.conv_general_dilated`. Each convolution is one matrix product, for a few examples at a
time, so that what surrounds the product stays in the cache and its memory is used again. With few channels in, the
matrix holds patches (k² numbers for each in a field, k the kernel's width). With more, the work is split between the
sides: the matrix holds the k neighbours within a row, the product gives the k parts that a place adds to the rows
around it, and these are added up (patches alone: 0.170 s).

Left to itself, JAX would differentiate the products into sums of padded arrays (0.174 s). But a convolution is
bilinear, and its two transposes are a convolution and a correlation again:

- `y = convolve(x, w)`:   `x̄ = convolve(ȳ, w transposed)`,   `w̄ = correlate(x, ȳ)`;
- `w = correlate(x, y)`:  `x̄ = convolve(y, w̄ transposed)`,   `ȳ = convolve(x, w̄)`,

where `transposed` reverses both axes of the kernel and swaps the channels. The two are therefore primitives of JAX.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

NUMBERS_AT_ONCE = 2**20
"""About how many numbers the matrices of a slice of examples may hold."""


def convolve(x: jax.Array, weights: jax.Array) -> jax.Array:
    """y[n, i, j, b] = Σ_{p, q, a} x[n, i + p − r, j + q − r, a] w[p, q, a, b], zero outside; the kernel is 2r + 1 wide.

    `x` is (example, row, column, channel), `weights` (2r + 1, 2r + 1, channel in, channel out).
    """
    if x.ndim != 4 or weights.ndim != 4 or x.shape[3] != weights.shape[2]:
        raise ValueError(
            f"weights: shape {weights.shape} does not fit x of shape {x.shape}; x is (example, row, column, channel), "
            "weights are (kernel, kernel, channel in, channel out)"
        )
    if weights.shape[0] != weights.shape[1] or weights.shape[0] % 2 == 0:
        raise ValueError(f"weights: the kernel is {weights.shape[:2]}; use a square one of odd width, such as 3×3")
    dtype = jnp.result_type(x, weights)
    return convolve_p.bind(x.astype(dtype), weights.astype(dtype), kernel=weights.shape[0])


def patches(x: jax.Array, kernel: int) -> jax.Array:
    """(example, row, column, kernel·kernel·channel): what each output of a convolution sees, zero outside."""
    rows, columns = x.shape[1:3]
    r = kernel // 2
    padded = jnp.pad(x, ((0, 0), (r, r), (r, r), (0, 0)))
    shifts = [padded[:, p : p + rows, q : q + columns] for p in range(kernel) for q in range(kernel)]
    return jnp.concatenate(shifts, axis=-1)


def transposed(weights: jax.Array) -> jax.Array:
    """The kernel that carries cotangents back: both axes reversed, channels swapped."""
    return jnp.swapaxes(weights[::-1, ::-1], 2, 3)


def row_neighbours(x: jax.Array, kernel: int) -> jax.Array:
    """(example, row, column, kernel·channel): each place and its neighbours within the row, left to right."""
    r = kernel // 2
    padded = jnp.pad(x, ((0, 0), (0, 0), (r, r), (0, 0)))
    return jnp.concatenate([padded[:, :, q : q + x.shape[2]] for q in range(kernel)], axis=-1)


def column_neighbours(x: jax.Array, kernel: int) -> jax.Array:
    """(example, row, column, kernel·channel): each place and its neighbours within the column, highest row first."""
    r = kernel // 2
    padded = jnp.pad(x, ((0, 0), (r, r), (0, 0), (0, 0)))
    starts = [2 * r - p for p in range(kernel)]
    return jnp.concatenate([padded[:, start : start + x.shape[1]] for start in starts], axis=-1)


def _patches_move_less(kernel: int, few: int, many: int) -> bool:
    """Whether patches of `few` channels move fewer numbers than neighbours on both sides."""
    return kernel**2 * few + many <= kernel * (few + many)


def _rows(x: jax.Array) -> jax.Array:
    return x.reshape(-1, x.shape[-1])


def _sliced(x: jax.Array, *arrays: jax.Array, channels: int) -> list[jax.Array]:
    """The arrays with their examples in slices, of as many as fit with `channels` numbers for each place."""
    most = max(1, NUMBERS_AT_ONCE // (x.shape[1] * x.shape[2] * channels))
    size = max(size for size in range(1, x.shape[0] + 1) if x.shape[0] % size == 0 and size <= most)
    return [a.reshape(a.shape[0] // size, size, *a.shape[1:]) for a in (x, *arrays)]


def _convolve(x: jax.Array, weights: jax.Array, *, kernel: int) -> jax.Array:
    before, after = weights.shape[2:]
    rows = x.shape[1]

    def by_patches(part: jax.Array) -> jax.Array:
        return (_rows(patches(part, kernel)) @ weights.reshape(-1, after)).reshape(*part.shape[:3], after)

    def by_sides(part: jax.Array) -> jax.Array:
        matrix = jnp.moveaxis(weights, 0, 2).reshape(kernel * before, kernel * after)
        made = (_rows(row_neighbours(part, kernel)) @ matrix).reshape(*part.shape[:3], kernel * after)
        padded = jnp.pad(made, ((0, 0), (kernel // 2, kernel // 2), (0, 0), (0, 0)))
        parts = [padded[:, p : p + rows, :, p * after : (p + 1) * after] for p in range(kernel)]
        return sum(parts[1:], start=parts[0])

    few = _patches_move_less(kernel, before, after)
    channels = kernel**2 * before + after if few else kernel * (before + after)
    (parts,) = _sliced(x, channels=channels)
    return jax.lax.map(by_patches if few else by_sides, parts).reshape(*x.shape[:3], after)


def _correlate(x: jax.Array, y: jax.Array, *, kernel: int) -> jax.Array:
    """w[p, q, a, b] = Σ_{n, i, j} x[n, i + p − r, j + q − r, a] y[n, i, j, b]."""
    before, after = x.shape[3], y.shape[3]
    if after < before:  # the same sum, counted from the places of x
        return transposed(_correlate(y, x, kernel=kernel))

    def by_patches(x: jax.Array, y: jax.Array) -> jax.Array:
        return _rows(patches(x, kernel)).T @ _rows(y)

    def by_sides(x: jax.Array, y: jax.Array) -> jax.Array:
        return _rows(row_neighbours(x, kernel)).T @ _rows(column_neighbours(y, kernel))

    few = _patches_move_less(kernel, before, after)
    product = by_patches if few else by_sides
    channels = kernel**2 * before + after if few else kernel * (before + after)
    shape = (kernel * kernel * before, after) if few else (kernel * before, kernel * after)
    total, _ = jax.lax.scan(
        lambda total, parts: (total + product(*parts), None),
        jnp.zeros(shape, x.dtype),
        tuple(_sliced(x, y, channels=channels)),
    )
    if few:
        return total.reshape(kernel, kernel, before, after)
    return jnp.moveaxis(total.reshape(kernel, before, kernel, after), 2, 0)


def _xla_convolve(x: jax.Array, weights: jax.Array, *, kernel: int) -> jax.Array:
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, weights, (1, 1), [(kernel // 2, kernel // 2)] * 2, dimension_numbers=numbers)


def _xla_correlate(x: jax.Array, y: jax.Array, *, kernel: int) -> jax.Array:
    """`_correlate` as a convolution: channels of x are its batch, examples its channels, and y is its kernel."""
    numbers = ("CHWN", "IHWO", "HWNC")
    return jax.lax.conv_general_dilated(x, y, (1, 1), [(kernel // 2, kernel // 2)] * 2, dimension_numbers=numbers)


def _primitive(
    name: str,
    on_cpu: Callable[..., jax.Array],
    elsewhere: Callable[..., jax.Array],
    shape: Callable[..., tuple[int, ...]],
) -> Primitive:
    primitive = Primitive(name)
    primitive.def_impl(jax.jit(lambda a, b, kernel: primitive.bind(a, b, kernel=kernel), static_argnames="kernel"))
    primitive.def_abstract_eval(lambda a, b, **options: ShapedArray(shape(a, b, **options), a.dtype))
    mlir.register_lowering(primitive, mlir.lower_fun(elsewhere, multiple_results=False))
    mlir.register_lowering(primitive, mlir.lower_fun(on_cpu, multiple_results=False), platform="cpu")

    def batch(operands: Sequence[Any], axes: Sequence[Any], **options: Any) -> tuple[jax.Array, int]:
        """On CPU one call after the other: each is large enough to keep the processor busy."""
        if jax.default_backend() != "cpu":
            return jax.vmap(partial(elsewhere, **options), in_axes=tuple(axes))(*operands), 0
        mapped = [jnp.moveaxis(x, axis, 0) for x, axis in zip(operands, axes, strict=True) if axis is not None]

        def one(parts: list[jax.Array]) -> jax.Array:
            rest = iter(parts)
            return primitive.bind(
                *(x if axis is None else next(rest) for x, axis in zip(operands, axes, strict=True)), **options
            )

        return jax.lax.map(one, mapped), 0

    batching.primitive_batchers[primitive] = batch
    return primitive


convolve_p = _primitive("ridgewalk_convolve", _convolve, _xla_convolve, lambda x, w, kernel: (*x.shape[:3], w.shape[3]))
correlate_p = _primitive(
    "ridgewalk_correlate", _correlate, _xla_correlate, lambda x, y, kernel: (kernel, kernel, x.shape[3], y.shape[3])
)


# The operand that a rule differentiates is a placeholder; the kernel's width is therefore a parameter of both.
ad.defbilinear(
    convolve_p,
    lambda cotangent, _, weights, kernel: convolve_p.bind(cotangent, transposed(weights), kernel=kernel),
    lambda cotangent, x, _, kernel: correlate_p.bind(x, cotangent, kernel=kernel),
)
ad.defbilinear(
    correlate_p,
    lambda cotangent, _, y, kernel: convolve_p.bind(y, transposed(cotangent), kernel=kernel),
    lambda cotangent, x, _, kernel: convolve_p.bind(x, cotangent, kernel=kernel),
)
