"""Layers of the encoder–decoders. All take a batch: fields (example, row, column, channel), codes (example, size)."""

from collections.abc import Callable
from typing import Protocol

import jax
import jax.numpy as jnp

from ridgewalk._optional import requires_extra
from ridgewalk._types import Key
from ridgewalk.surrogates.convolution import convolve, patches

with requires_extra("neural"):
    import equinox as eqx

START = jax.nn.initializers.glorot_uniform()
"""Weights uniform in ±√(6 / (fan in + fan out)); biases start at zero."""


class FieldLayer(Protocol):
    """A layer from fields to fields."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """(example, row, column, channel) with other channels."""


class Dense(eqx.Module):
    """y = x W + b."""

    weight: jax.Array
    bias: jax.Array

    def __init__(self, before: int, after: int, *, key: Key, start: Callable[..., jax.Array] = START) -> None:
        self.weight = start(key, (before, after))
        self.bias = jnp.zeros(after, self.weight.dtype)

    def __call__(self, x: jax.Array) -> jax.Array:
        """(example, before) to (example, after)."""
        return x @ self.weight + self.bias[None, :]


class Convolution(eqx.Module):
    """The same odd kernel at every place, zero outside the field, and a bias per channel."""

    weight: jax.Array
    bias: jax.Array

    def __init__(self, before: int, after: int, kernel: int, *, key: Key) -> None:
        self.weight = START(key, (kernel, kernel, before, after))
        self.bias = jnp.zeros(after, self.weight.dtype)

    def __call__(self, x: jax.Array) -> jax.Array:
        """(example, row, column, before) to (example, row, column, after)."""
        return convolve(x, self.weight) + self.bias[None, None, None, :]


class LocallyConnected(eqx.Module):
    """A convolution whose kernel and bias differ from place to place."""

    weight: jax.Array
    bias: jax.Array
    kernel: int = eqx.field(static=True)

    def __init__(self, shape: tuple[int, int], before: int, after: int, kernel: int, *, key: Key) -> None:
        keys = jax.random.split(key, shape[0] * shape[1])
        kernels = jax.vmap(lambda one: START(one, (kernel, kernel, before, after)))(keys)
        self.weight = kernels.reshape(len(keys), -1, after)
        self.bias = jnp.zeros((*shape, after), self.weight.dtype)
        self.kernel = kernel

    def __call__(self, x: jax.Array) -> jax.Array:
        """(example, row, column, before) to (example, row, column, after)."""
        seen = patches(x, self.kernel).reshape(x.shape[0], self.weight.shape[0], -1)
        y = jnp.einsum("npk,pka->npa", seen, self.weight)
        return y.reshape(*x.shape[:3], -1) + self.bias[None]


def average_pool(x: jax.Array, width: int) -> jax.Array:
    """Means over squares of `width`×`width` places; rows and columns that fill no square are left out."""
    examples, rows, columns, channels = x.shape
    squares = rows // width, columns // width
    whole = x[:, : squares[0] * width, : squares[1] * width]
    return whole.reshape(examples, squares[0], width, squares[1], width, channels).mean((2, 4))
