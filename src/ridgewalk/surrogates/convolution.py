"""Convolutions as matrix products, fast on CPU inside compiled loops, differentiable to any order in both modes.

XLA's own convolution is slow on CPU inside a loop, and its gradient slower. Here each convolution is a product of a
matrix of patches with the weights, for a few examples at a time, so that patches stay in the cache and their memory
is used again.

Left to itself, JAX would differentiate the patches into sums of padded arrays, at twice the cost of a convolution.
But a convolution is bilinear, and its two transposes are a convolution and a correlation again:

- `y = convolve(x, w)`:   `x̄ = convolve(ȳ, w turned)`,   `w̄ = correlate(x, ȳ)`;
- `w = correlate(x, y)`:  `x̄ = convolve(y, w̄ turned)`,   `ȳ = convolve(x, w̄)`,

where `turned` reverses both axes of the kernel and swaps the channels. So the two are primitives of JAX.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

PATCH_NUMBERS = 2**21
"""About how many numbers the patches of a slice of examples may hold."""


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


def turned(weights: jax.Array) -> jax.Array:
    """The kernel that carries cotangents back: both axes reversed, channels swapped."""
    return jnp.swapaxes(weights[::-1, ::-1], 2, 3)


def _examples_at_once(examples: int, numbers: int) -> int:
    """The largest divisor of `examples` whose patches, `numbers` each, fit."""
    most = max(1, PATCH_NUMBERS // max(1, numbers))
    return max(size for size in range(1, examples + 1) if examples % size == 0 and size <= most)


def _sliced(x: jax.Array, size: int) -> jax.Array:
    return x.reshape(x.shape[0] // size, size, *x.shape[1:])


def _convolve(x: jax.Array, weights: jax.Array, *, kernel: int) -> jax.Array:
    before, after = weights.shape[2:]
    matrix = weights.reshape(-1, after)

    def one_slice(part: jax.Array) -> jax.Array:
        seen = patches(part, kernel).reshape(-1, kernel * kernel * before)
        return (seen @ matrix).reshape(*part.shape[:3], after)

    size = _examples_at_once(x.shape[0], x.shape[1] * x.shape[2] * kernel * kernel * before)
    if size == x.shape[0]:
        return one_slice(x)
    return jax.lax.map(one_slice, _sliced(x, size)).reshape(*x.shape[:3], after)


def _correlate(x: jax.Array, y: jax.Array, *, kernel: int) -> jax.Array:
    """w[p, q, a, b] = Σ_{n, i, j} x[n, i + p − r, j + q − r, a] y[n, i, j, b]."""
    before, after = x.shape[3], y.shape[3]
    if after < before:  # patches of the side with fewer channels: Σ x[·, a] y[· − (p − r), b]
        return turned(_correlate(y, x, kernel=kernel))

    def one_slice(total: jax.Array, parts: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        seen = patches(parts[0], kernel).reshape(-1, kernel * kernel * before)
        return total + seen.T @ parts[1].reshape(-1, after), None

    size = _examples_at_once(x.shape[0], x.shape[1] * x.shape[2] * kernel * kernel * before)
    empty = jnp.zeros((kernel * kernel * before, after), x.dtype)
    total = jax.lax.scan(one_slice, empty, (_sliced(x, size), _sliced(y, size)))[0]
    return total.reshape(kernel, kernel, before, after)


def _primitive(name: str, compute: Callable[..., jax.Array], shape: Callable[..., tuple[int, ...]]) -> Primitive:
    primitive = Primitive(name)
    primitive.def_impl(jax.jit(compute, static_argnames="kernel"))
    primitive.def_abstract_eval(lambda a, b, **options: ShapedArray(shape(a, b, **options), a.dtype))
    mlir.register_lowering(primitive, mlir.lower_fun(compute, multiple_results=False))

    def batch(operands: Sequence[Any], axes: Sequence[Any], **options: Any) -> tuple[jax.Array, int]:
        """One call after the other: each is large enough to keep the processor busy."""
        mapped = [jnp.moveaxis(x, axis, 0) for x, axis in zip(operands, axes, strict=True) if axis is not None]

        def one(parts: list[jax.Array]) -> jax.Array:
            rest = iter(parts)
            return primitive.bind(
                *(x if axis is None else next(rest) for x, axis in zip(operands, axes, strict=True)), **options
            )

        return jax.lax.map(one, mapped), 0

    batching.primitive_batchers[primitive] = batch
    return primitive


convolve_p = _primitive("ridgewalk_convolve", _convolve, lambda x, w, kernel: (*x.shape[:3], w.shape[3]))
correlate_p = _primitive(
    "ridgewalk_correlate", _correlate, lambda x, y, kernel: (kernel, kernel, x.shape[3], y.shape[3])
)


# The operand that a rule differentiates is a placeholder; the kernel's width is therefore a parameter of both.
ad.defbilinear(
    convolve_p,
    lambda cotangent, _, weights, kernel: convolve_p.bind(cotangent, turned(weights), kernel=kernel),
    lambda cotangent, x, _, kernel: correlate_p.bind(x, cotangent, kernel=kernel),
)
ad.defbilinear(
    correlate_p,
    lambda cotangent, _, y, kernel: convolve_p.bind(y, turned(cotangent), kernel=kernel),
    lambda cotangent, x, _, kernel: convolve_p.bind(x, cotangent, kernel=kernel),
)
