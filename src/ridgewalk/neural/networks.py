"""Neural networks as pure functions of a pytree of weights: the interface, adapters, and architectures.

A `Network` becomes a `Model` when the sizes of inputs and outputs are known: an initial pytree of float arrays and a
pure function. equinox and flax are imported when a network of theirs is built.

Architectures are the multilayer perceptron and the two encoder–decoders of Wang, Deng and Lin for Darcy flow.
The encoder–decoders map a field on a grid to the fluxes over its edges: [convolutions of the field,] average pool 2,
dense to a code, the code as a small square field, two convolutions, dense, dense to the output; an activation after
every layer but the last.

|                     | source network | permeability network |
|---------------------|----------------|----------------------|
| first convolutions  | none           | 64 and 32 channels   |
| code                | 10×10          | 10×10                |
| later convolutions  | 32 and 72      | 32 and 26            |
| hidden dense        | 200            | 800                  |
| weights, 50×50 grid | 2,549,028      | 8,192,938            |
| weights, paper      | 2,566,828      | 8,252,320            |

The paper gives neither the channels nor the kernels of the later convolutions. With 3×3 kernels as in its first ones,
and fields that keep their size, all other layers are known, and the second convolution's channels c follow roughly
from the total, because the dense layer behind it has 100·c·(200 or 800) weights. Within 5 % are c = 67 to 79 and
c = 22 to 31; 72 and 26 lie 0.7 % below the totals (73 and 27 lie 0.1 % and 0.3 % above). The first's channels hardly
count (each brings under 0.03 %); 32 is that of the last known convolution. No pair of channels meets either total
exactly, so something in the paper's layers must differ from these.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._types import Key, PyTree
from ridgewalk._validation import requires_extra
from ridgewalk.neural.convolution import convolve, patches

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
        parts = jax.tree.leaves(shapes, is_leaf=lambda x: isinstance(x, eqx.nn.StateIndex | eqx.nn.State))
        stateful = {type(x).__name__ for x in parts if isinstance(x, eqx.nn.StateIndex | eqx.nn.State)}
        _refuse_state(sorted(stateful), "equinox state, as batch norm keeps it,")
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
            "so leave out batch norm and dropout (LayerNorm or GroupNorm keep no state)"
        )


with requires_extra("neural"):
    import equinox as eqx

GLOROT = jax.nn.initializers.glorot_uniform()
"""Weights uniform in ±√(6 / (fan in + fan out)); biases start at zero."""

LECUN = jax.nn.initializers.lecun_uniform()
"""Weights of variance 1 / (fan in), which keeps the variance from layer to layer."""


Activation = Callable[[jax.Array], jax.Array]


class FieldLayer(Protocol):
    """A layer from fields to fields."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """(example, row, column, channel) with other channels."""


class Dense(eqx.Module):
    """y = x W + b."""

    weight: jax.Array
    bias: jax.Array

    def __init__(self, before: int, after: int, *, key: Key, start: Callable[..., jax.Array] = GLOROT) -> None:
        self.weight = start(key, (before, after))
        self.bias = jnp.zeros(after, self.weight.dtype)

    def __call__(self, x: jax.Array) -> jax.Array:
        """(example, before) to (example, after)."""
        return x @ self.weight + self.bias[None, :]


class MultilayerPerceptron(eqx.Module):
    """From inputs (example, …), flattened, to outputs (example, output)."""

    layers: tuple[Dense, ...]
    activation: Activation = eqx.field(static=True)

    def __init__(
        self,
        input_shape: tuple[int, ...],
        output_size: int,
        *,
        hidden: tuple[int, ...],
        activation: Activation,
        key: Key,
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


def mlp(*, hidden: tuple[int, ...] = (50,), activation: Activation = jnp.tanh) -> EquinoxNetwork:
    """Dense layers of the sizes given; inputs of any shape."""
    return EquinoxNetwork(partial(MultilayerPerceptron, hidden=hidden, activation=activation), batched=True)


class Convolution(eqx.Module):
    """The same odd kernel at every place, zero outside the field, and a bias per channel."""

    weight: jax.Array
    bias: jax.Array

    def __init__(self, before: int, after: int, kernel: int, *, key: Key) -> None:
        self.weight = GLOROT(key, (kernel, kernel, before, after))
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
        kernels = jax.vmap(lambda one: GLOROT(one, (kernel, kernel, before, after)))(keys)
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


class EncoderDecoder(eqx.Module):
    """From fields (example, row, column[, channel]) to outputs (example, output)."""

    first: tuple[FieldLayer, ...]
    encode: Dense
    later: tuple[FieldLayer, ...]
    hidden: Dense
    decode: Dense
    pool: int = eqx.field(static=True)
    coarse: tuple[int, int] = eqx.field(static=True)
    activation: Activation = eqx.field(static=True)

    def __init__(
        self,
        input_shape: tuple[int, ...],
        output_size: int,
        *,
        key: Key,
        first_channels: tuple[int, ...],
        later_channels: tuple[int, ...],
        hidden: int,
        pool: int = 2,
        coarse: tuple[int, int] = (10, 10),
        kernel: int = 3,
        locally_connected: bool = False,
        activation: Activation = jax.nn.relu,
    ) -> None:
        rows, columns, channels = _field_shape(input_shape, pool)
        _check_sizes(output_size, kernel, hidden, coarse, (*first_channels, *later_channels))
        keys = iter(jax.random.split(key, len(first_channels) + len(later_channels) + 3))

        def later(before: int, after: int) -> FieldLayer:
            if locally_connected:
                return LocallyConnected(coarse, before, after, kernel, key=next(keys))
            return Convolution(before, after, kernel, key=next(keys))

        widths = (channels, *first_channels)
        places = coarse[0] * coarse[1]
        self.first = tuple(Convolution(a, b, kernel, key=next(keys)) for a, b in pairwise(widths))
        self.encode = Dense((rows // pool) * (columns // pool) * widths[-1], places, key=next(keys))
        self.later = tuple(later(a, b) for a, b in pairwise((1, *later_channels)))
        self.hidden = Dense(places * (1, *later_channels)[-1], hidden, key=next(keys))
        self.decode = Dense(hidden, output_size, key=next(keys))
        self.pool, self.coarse, self.activation = pool, coarse, activation

    def __call__(self, x: jax.Array) -> jax.Array:
        """(example, row, column[, channel]) to (example, output)."""
        x = x[..., None] if x.ndim == 3 else x
        for layer in self.first:
            x = self.activation(layer(x))
        x = average_pool(x, self.pool).reshape(x.shape[0], -1)
        x = self.activation(self.encode(x)).reshape(-1, *self.coarse, 1)
        for layer in self.later:
            x = self.activation(layer(x))
        return self.decode(self.activation(self.hidden(x.reshape(x.shape[0], -1))))


def _field_shape(input_shape: tuple[int, ...], pool: int) -> tuple[int, int, int]:
    if len(input_shape) not in (2, 3):
        raise ValueError(
            f"input_shape: {tuple(input_shape)} is not a field; this network takes inputs of shape (examples, rows, "
            "columns) or (examples, rows, columns, channels): reshape them, or use network='mlp' for vectors"
        )
    rows, columns, channels = (*input_shape, 1)[:3]
    if pool < 1 or min(rows, columns) < pool or channels < 1:
        raise ValueError(f"input_shape: {tuple(input_shape)} is smaller than one pool of {pool}×{pool} cells")
    return rows, columns, channels


def _check_sizes(
    output_size: int, kernel: int, hidden: int, coarse: tuple[int, int], channels: tuple[int, ...]
) -> None:
    if output_size < 1:
        raise ValueError(f"output_size: {output_size} outputs; give at least 1")
    if kernel < 1 or kernel % 2 == 0:
        raise ValueError(f"kernel: {kernel} is even; give an odd width such as 3")
    for name, sizes in (("hidden", (hidden,)), ("coarse", coarse), ("channels", channels)):
        if min(sizes, default=1) < 1:
            raise ValueError(f"{name}: {sizes} has an empty layer; give positive numbers")


def encoder_decoder(**sizes: Any) -> EquinoxNetwork:
    """A network of `EncoderDecoder` with the sizes given; see the arguments of its constructor."""
    return EquinoxNetwork(partial(EncoderDecoder, **sizes), batched=True)


def source_network(**sizes: Any) -> EquinoxNetwork:
    """The paper's network for varying sources; keyword arguments replace its sizes.

    With `locally_connected=True` the later convolutions have a kernel per place, 100 times as many weights: give fewer
    `later_channels` with it.
    """
    return encoder_decoder(**{"first_channels": (), "later_channels": (32, 72), "hidden": 200, **sizes})


def permeability_network(**sizes: Any) -> EquinoxNetwork:
    """The paper's network for varying permeabilities, which begins with convolutions of the field."""
    return encoder_decoder(**{"first_channels": (64, 32), "later_channels": (32, 26), "hidden": 800, **sizes})


class ImageNetwork(eqx.Module):
    """Convolutions, each followed by an activation and a mean over 2×2 places, then dense layers."""

    convolutions: tuple[Convolution, ...]
    dense: tuple[Dense, ...]
    activation: Activation = eqx.field(static=True)

    def __init__(
        self,
        input_shape: tuple[int, ...],
        output_size: int,
        *,
        channels: tuple[int, ...],
        hidden: tuple[int, ...],
        activation: Activation,
        kernel: int = 3,
        key: Key,
    ) -> None:
        rows, columns, depth = _field_shape(input_shape, 2 ** len(channels))
        _check_sizes(output_size, kernel, min(hidden, default=1), (1, 1), channels)
        widths = (depth, *channels)
        reduced = (rows >> len(channels)) * (columns >> len(channels)) * widths[-1]
        sizes = (reduced, *hidden, output_size)
        keys = iter(jax.random.split(key, len(widths) + len(sizes)))
        self.convolutions = tuple(Convolution(a, b, kernel, key=next(keys)) for a, b in pairwise(widths))
        self.dense = tuple(Dense(a, b, key=next(keys), start=LECUN) for a, b in pairwise(sizes))
        self.activation = activation

    def __call__(self, x: jax.Array) -> jax.Array:
        """(example, row, column[, channel]) to (example, output)."""
        x = x[..., None] if x.ndim == 3 else x
        for layer in self.convolutions:
            x = average_pool(self.activation(layer(x)), 2)
        x = x.reshape(x.shape[0], -1)
        for dense in self.dense[:-1]:
            x = self.activation(dense(x))
        return self.dense[-1](x)


def conv(
    *, channels: tuple[int, ...] = (8, 16), hidden: tuple[int, ...] = (), activation: Activation = jnp.tanh
) -> EquinoxNetwork:
    """A small network for images (example, row, column[, channel])."""
    make = partial(ImageNetwork, channels=channels, hidden=hidden, activation=activation)
    return EquinoxNetwork(make, batched=True)


ACTIVATIONS: dict[str, Activation] = {
    "elu": jax.nn.elu,
    "gelu": jax.nn.gelu,
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "softplus": jax.nn.softplus,
    "tanh": jnp.tanh,
}

NAMES = ("conv", "mlp", "permeability", "source")


def named_network(name: str, hidden: tuple[int, ...] | None = None) -> EquinoxNetwork:
    """A network from its name: "mlp", "mlp:64x64", "mlp:64x64:relu", "conv", "conv:8x16", "source", "permeability".

    `hidden` are the hidden layers of "mlp", and the dense ones of "conv".
    """
    kind, *rest = name.split(":")
    if kind not in NAMES or len(rest) > 2 or (rest and kind in ("permeability", "source")):
        raise ValueError(
            f"network: {name!r} is unknown; use one of {', '.join(map(repr, NAMES))}, with sizes as in 'mlp:64x64' or "
            "'conv:8x16', or a Network"
        )
    if kind in ("permeability", "source"):
        if hidden is not None:
            raise ValueError(f"hidden: {hidden} with network={kind!r}, which has its own sizes; leave it out")
        return source_network() if kind == "source" else permeability_network()
    sizes = None
    if rest and rest[0]:
        try:
            sizes = tuple(int(size) for size in rest[0].split("x"))
        except ValueError:
            raise ValueError(f"network: {name!r}: {rest[0]!r} are not sizes; write them as 64x64") from None
    if min((*(sizes or ()), *(hidden or ())), default=1) < 1:
        raise ValueError(f"network: {name!r} with hidden = {hidden} has an empty layer; give positive numbers")
    activation: Activation = jnp.tanh
    if len(rest) == 2:
        if rest[1] not in ACTIVATIONS:
            raise ValueError(f"network: {name!r}: the activation {rest[1]!r} is unknown; use {', '.join(ACTIVATIONS)}")
        activation = ACTIVATIONS[rest[1]]
    if kind == "conv":
        return conv(channels=sizes or (8, 16), hidden=hidden or (), activation=activation)
    if sizes is not None and hidden is not None:
        raise ValueError(f"hidden: {hidden} and network={name!r} both give the hidden layers; leave one out")
    return mlp(
        hidden=(50,) if sizes is None and hidden is None else tuple(sizes or hidden or ()), activation=activation
    )
