"""The multilayer perceptron: dense layers with a smooth activation between them."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import jax
import numpy as np

from ridgewalk._optional import requires_extra
from ridgewalk._types import Key
from ridgewalk.neural.networks.adapters import EquinoxNetwork
from ridgewalk.neural.networks.encoder_decoder import Dense

with requires_extra("neural"):
    import equinox as eqx

LECUN = jax.nn.initializers.lecun_uniform()
"""Weights of variance 1 / (fan in), which keeps the variance from layer to layer."""


class MultilayerPerceptron(eqx.Module):
    """From inputs (example, …), flattened, to outputs (example, output)."""

    layers: tuple[Dense, ...]
    activation: Callable[[jax.Array], jax.Array] = eqx.field(static=True)

    def __init__(
        self,
        input_shape: tuple[int, ...],
        output_size: int,
        *,
        key: Key,
        hidden: tuple[int, ...],
        activation: Callable[[jax.Array], jax.Array],
    ) -> None:
        if min((output_size, *hidden)) < 1:
            raise ValueError(f"hidden: {hidden} and {output_size} outputs have an empty layer; give positive numbers")
        widths = (int(np.prod(input_shape)), *hidden, output_size)
        keys = jax.random.split(key, len(widths) - 1)
        self.layers = tuple(
            Dense(a, b, key=one, start=LECUN) for (a, b), one in zip(pairwise(widths), keys, strict=True)
        )
        self.activation = activation

    def __call__(self, x: jax.Array) -> jax.Array:
        """(example, …) to (example, output)."""
        x = x.reshape(x.shape[0], -1)
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        return self.layers[-1](x)


def mlp(
    *, hidden: tuple[int, ...] = (64, 64), activation: Callable[[jax.Array], jax.Array] = jax.nn.silu
) -> EquinoxNetwork:
    """Dense layers of the sizes given; inputs of any shape."""
    return EquinoxNetwork(partial(MultilayerPerceptron, hidden=hidden, activation=activation), batched=True)
