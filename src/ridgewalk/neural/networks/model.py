"""The interface of networks: from sizes to an initial pytree of float arrays and a pure function."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._types import Key, PyTree

Shape = tuple[int, ...]


class Model(NamedTuple):
    """A network of known sizes."""

    init: Callable[[Key], PyTree]
    """Parameters to start from: a pytree of float arrays, and so a position for `ridgewalk.sample`."""
    apply: Callable[[PyTree, jax.Array], jax.Array]
    """`apply(parameters, x)`: inputs (example, *input_shape) to outputs (example, output_size); pure."""


class Network(Protocol):
    """A network before its sizes are known. Parameters saved to disk fit what `build` gives for the same sizes."""

    def build(self, input_shape: Shape, output_size: int) -> Model:
        """The network for inputs of `input_shape` and `output_size` numbers out."""


def count_weights(parameters: PyTree) -> int:
    """How many numbers a pytree of parameters holds."""
    return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(parameters))


def check_model(model: Model, input_shape: Shape, output_size: int) -> None:
    """Raise where a model's parameters or outputs do not fit the interface; nothing is computed."""
    parameters = jax.eval_shape(model.init, jax.random.key(0))
    for path, leaf in jax.tree_util.tree_flatten_with_path(parameters)[0]:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise ValueError(
                f"network: parameter {jax.tree_util.keystr(path)} is {leaf.dtype}; only float arrays can be sampled, "
                "keep the others outside the parameters"
            )
    dtype = jnp.result_type(float)
    outputs = jax.eval_shape(model.apply, parameters, jax.ShapeDtypeStruct((2, *input_shape), dtype))
    if outputs.shape != (2, output_size):
        raise ValueError(
            f"network: it makes outputs of shape {outputs.shape} of 2 inputs of shape {tuple(input_shape)}; "
            f"they must be {(2, output_size)}"
        )
