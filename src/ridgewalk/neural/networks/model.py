"""The interface of networks, and adapters of equinox, flax (linen and nnx) and plain functions to it.

A `Network` becomes a `Model` when the sizes of inputs and outputs are known: an initial pytree of float arrays and a
pure function. equinox and flax are imported when a network of theirs is built.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._optional import requires_extra
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


def _checked(model: Model, input_shape: Shape, output_size: int) -> Model:
    """The model; raises where its parameters or outputs do not fit the interface. Nothing is computed."""
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
            f"network: its outputs for 2 inputs of shape {tuple(input_shape)} have shape {outputs.shape}; "
            f"they must have shape {(2, output_size)}"
        )
    return model


class Constant:
    """A frozen object that is its own deep copy: clones that scikit-learn makes share compiled programs."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Itself."""
        return self


@dataclass(frozen=True)
class EquinoxNetwork(Constant):
    """`make(input_shape, output_size, key=key)` is an equinox module; its float arrays are the parameters.

    As usual in equinox the module sees one example at a time, unless `batched`.
    """

    make: Callable[..., Any]
    batched: bool = False

    def build(self, input_shape: Shape, output_size: int) -> Model:
        """Partition the module once: what is not a float array is the same for all parameters."""
        with requires_extra("neural"):
            import equinox as eqx  # noqa: PLC0415 - `Model` does not need it

        def init(key: Key) -> PyTree:
            return eqx.partition(self.make(input_shape, output_size, key=key), eqx.is_inexact_array)[0]

        rest = self._rest(eqx, input_shape, output_size)

        def apply(parameters: PyTree, x: jax.Array) -> jax.Array:
            module = eqx.combine(parameters, rest)
            return module(x) if self.batched else jax.vmap(module)(x)

        return _checked(Model(init, apply), input_shape, output_size)

    def _rest(self, eqx: Any, input_shape: Shape, output_size: int) -> Any:
        """All of the module but its float arrays."""
        make = lambda key: self.make(input_shape, output_size, key=key)  # noqa: E731
        shapes = eqx.filter_eval_shape(make, jax.random.key(0))
        arrays = [x for x in jax.tree.leaves(shapes) if isinstance(x, jax.ShapeDtypeStruct)]
        if all(jnp.issubdtype(x.dtype, jnp.inexact) for x in arrays):  # no weights need to be drawn for it
            return eqx.partition(shapes, lambda x: isinstance(x, jax.ShapeDtypeStruct))[1]
        return eqx.partition(make(jax.random.key(0)), eqx.is_inexact_array)[1]


@dataclass(frozen=True)
class LinenNetwork(Constant):
    """`make(output_size)` is a `flax.linen` module that takes a batch; its collection "params" is sampled."""

    make: Callable[[int], Any]

    def build(self, input_shape: Shape, output_size: int) -> Model:
        """Initialise on a batch of one."""
        module = self.make(output_size)

        def init(key: Key) -> PyTree:
            variables = module.init(key, jnp.zeros((1, *input_shape)))
            _refuse_state(sorted(set(variables) - {"params"}), "flax.linen collections")
            return variables["params"]

        def apply(parameters: PyTree, x: jax.Array) -> jax.Array:
            return module.apply({"params": parameters}, x)

        return _checked(Model(init, apply), input_shape, output_size)


@dataclass(frozen=True)
class NnxNetwork(Constant):
    """`make(input_shape, output_size, rngs)` is a `flax.nnx` module that takes a batch; its `Param`s are sampled."""

    make: Callable[..., Any]

    def build(self, input_shape: Shape, output_size: int) -> Model:
        """Split the module: parameters become a plain dictionary of arrays."""
        from flax import nnx  # noqa: PLC0415 - flax is optional

        def split(key: Key) -> tuple[Any, Any]:
            module = self.make(input_shape, output_size, nnx.Rngs(key))
            definition, *states = nnx.split(module, nnx.Param, ...)
            parameters, rest = states
            _refuse_state(sorted({type(x).__name__ for _, x in nnx.to_flat_state(rest)}), "flax.nnx variables")
            return definition, parameters

        definition, template = nnx.eval_shape(lambda: split(jax.random.key(0)))

        def init(key: Key) -> PyTree:
            return nnx.to_pure_dict(split(key)[1])

        def apply(parameters: PyTree, x: jax.Array) -> jax.Array:
            state = jax.tree.map(lambda leaf: leaf, template)
            nnx.replace_by_pure_dict(state, parameters)
            return nnx.merge(definition, state)(x)

        return _checked(Model(init, apply), input_shape, output_size)


@dataclass(frozen=True)
class FunctionNetwork(Constant):
    """Plain functions: `init(key, input_shape, output_size)` for parameters, `apply(parameters, x)` for outputs."""

    init: Callable[[Key, Shape, int], PyTree]
    apply: Callable[[PyTree, jax.Array], jax.Array]

    def build(self, input_shape: Shape, output_size: int) -> Model:
        """The sizes go to `init`."""
        return _checked(
            Model(lambda key: self.init(key, input_shape, output_size), self.apply), input_shape, output_size
        )


def _refuse_state(names: list[str], kind: str) -> None:
    if names:
        raise ValueError(
            f"network: it has {kind} {', '.join(names)} beside its parameters; a posterior needs a pure function, "
            "so leave out batch statistics and dropout (LayerNorm or GroupNorm keep no state)"
        )
