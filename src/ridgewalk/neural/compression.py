"""Pruned networks in a form that is smaller on disk and, for few examples at a time, faster to evaluate.

On disk an array with many zeros is a bit for every number, and the numbers that are not zero: at 70 % zeros a float32
array takes 30 % + 1/32 of its size. For evaluation the model's jaxpr is split at its products with the pruned matrices,
so that these can be computed outside JAX (`sparse_matmul`). Inner calls are inlined; what lies between two of the
products is compiled as one program.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var

from ridgewalk._io import NewerFormatError, read_tensors, write_tensors
from ridgewalk._pytree import leaf_names
from ridgewalk._types import PyTree
from ridgewalk.neural.networks import Model
from ridgewalk.neural.posterior import PosteriorSpec
from ridgewalk.neural.predictive import Mixture, Predictive
from ridgewalk.neural.sparse_matmul import Pattern, SparseMatrix, pattern, wins

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


INNER = ("jaxpr", "call_jaxpr", "fun_jaxpr")
CALLS = ("pjit", "jit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "remat", "checkpoint")


def _evaluate(jaxpr: Jaxpr, consts: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    """What a jaxpr computes, inner calls inlined."""
    values: dict[Var, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    values.update(zip(jaxpr.invars, arguments, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else values[atom]

    for equation in jaxpr.eqns:
        given = [read(atom) for atom in equation.invars]
        inner = next((equation.params[name] for name in INNER if name in equation.params), None)
        if equation.primitive.name in CALLS and inner is not None:
            closed = isinstance(inner, ClosedJaxpr)
            made = _evaluate(inner.jaxpr if closed else inner, inner.consts if closed else [], given)
        else:
            result = equation.primitive.bind(*given, **equation.params)
            made = list(result) if equation.primitive.multiple_results else [result]
        values.update(zip(equation.outvars, made, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


class Product(NamedTuple):
    """`dot_general` of a batch with leaf number `leaf`: which axes are summed over, and which operand is the leaf."""

    leaf: int
    batch: Any
    output: Any
    leaf_first: bool
    leaf_axis: int
    batch_axis: int

    def run(self, values: dict[Any, Any], multiply: Callable[[int, int, np.ndarray], np.ndarray]) -> None:
        """Compute the product; `multiply(leaf, axis, x)` sums over the leaf's `axis` and the last of x."""
        x = np.asarray(values[self.batch])
        y = multiply(self.leaf, self.leaf_axis, x if self.batch_axis == 1 else x.T)
        values[self.output] = y.T if self.leaf_first else y


class Segment(NamedTuple):
    """What lies between two products, compiled."""

    compiled: Callable[..., Any]
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]

    def run(self, values: dict[Any, Any], multiply: Callable[[int, int, np.ndarray], np.ndarray]) -> None:
        """Compute it."""
        values.update(zip(self.outputs, self.compiled(*(values[var] for var in self.inputs)), strict=True))


class SplitProgram(NamedTuple):
    """The computation for inputs of one shape."""

    steps: tuple[Product | Segment, ...]
    parameters: tuple[Any, ...]
    x: Any
    output: Any

    @property
    def products(self) -> list[int]:
        """The leaves whose products are computed outside."""
        return [step.leaf for step in self.steps if isinstance(step, Product)]

    def run(self, leaves: dict[int, Any], x: Any, multiply: Callable[[int, int, np.ndarray], np.ndarray]) -> np.ndarray:
        """The model's output; `leaves` holds those that are not multiplied outside."""
        values = {self.parameters[i]: leaf for i, leaf in leaves.items()} | {self.x: x}
        for step in self.steps:
            step.run(values, multiply)
        return np.asarray(values[self.output])


def _product(equation: Any, leaves: dict[Any, int]) -> Product | None:
    """The product that an equation is, if it is one of a batch (two axes) with one of the leaves."""
    if equation.primitive.name != "dot_general":
        return None
    (summed, batched) = equation.params["dimension_numbers"]
    left, right = equation.invars
    first = left in leaves if isinstance(left, Var) else False
    leaf, batch = (left, right) if first else (right, left)
    if isinstance(leaf, Literal) or leaf not in leaves or batched != ((), ()) or len(batch.aval.shape) != 2:
        return None
    axes = [axis[0] for axis in summed]
    leaf_axis, batch_axis = (axes[0], axes[1]) if first else (axes[1], axes[0])
    return Product(leaves[leaf], batch, equation.outvars[0], first, leaf_axis, batch_axis)


def split_at_matmuls(apply: Callable[[PyTree, Any], Any], parameters: PyTree, x: Any, chosen: set[int]) -> SplitProgram:
    """Split `apply(parameters, x)`, of the given shapes, at products with the chosen leaves (of two axes).

    A leaf that is used in any other way stays inside.
    """
    closed = jax.make_jaxpr(apply)(parameters, x)
    arguments = [*jax.tree.leaves(parameters), x]
    flat = jax.make_jaxpr(lambda *given: _evaluate(closed.jaxpr, closed.consts, given))(*arguments)
    jaxpr = flat.jaxpr
    *variables, given = jaxpr.invars
    leaves = {variables[i]: i for i in chosen}
    made = {id(equation): _product(equation, leaves) for equation in jaxpr.eqns}
    for equation in jaxpr.eqns:
        if made[id(equation)] is None:
            leaves = {var: i for var, i in leaves.items() if var not in equation.invars}
    parts: list[list[Any]] = [[]]
    for equation in jaxpr.eqns:
        outside = made[id(equation)]
        if outside is not None and outside.leaf in leaves.values():
            parts += [[outside], []]
        else:
            parts[-1].append(equation)
    constants = dict(zip(jaxpr.constvars, flat.consts, strict=True))
    steps: list[Product | Segment] = []
    for i, part in enumerate(parts):
        if part and isinstance(part[0], Product):
            steps.append(part[0])
        elif part:
            steps.append(_segment(part, _read_by(parts[i + 1 :]) | set(jaxpr.outvars), constants))
    return SplitProgram(tuple(steps), tuple(variables), given, jaxpr.outvars[0])


def _read_by(parts: list[list[Any]]) -> set[Any]:
    """All variables that some parts read."""
    read: set[Any] = set()
    for step in (step for part in parts for step in part):
        atoms = [step.batch] if isinstance(step, Product) else step.invars
        read |= {atom for atom in atoms if isinstance(atom, Var)}
    return read


def _segment(equations: list[Any], wanted: set[Any], constants: dict[Any, Any]) -> Segment:
    written = [var for equation in equations for var in equation.outvars]
    read = [atom for equation in equations for atom in equation.invars if isinstance(atom, Var)]
    inputs = tuple(dict.fromkeys(var for var in read if var not in set(written) and var not in constants))
    outputs = tuple(var for var in written if var in wanted)

    def compute(*given: Any) -> tuple[Any, ...]:
        values = dict(zip(inputs, given, strict=True)) | constants
        for equation in equations:
            arguments = [atom.val if isinstance(atom, Literal) else values[atom] for atom in equation.invars]
            result = equation.primitive.bind(*arguments, **equation.params)
            made = result if equation.primitive.multiple_results else [result]
            values.update(zip(equation.outvars, made, strict=True))
        return tuple(values[var] for var in outputs)

    return Segment(jax.jit(compute), inputs, outputs)


KEPT_BYTES = 2**29
"""An array of all draws that takes no more than this with its zeros is kept so once it was needed."""


class CompressedModel:
    """A network with one set of pruned parameters, or one per draw with zeros in common; make it with `compress`.

    Dense layers are evaluated as sparse products on the CPU where these take less time: see `sparse_layers`.
    """

    def __init__(self, model: Model, arrays: list[Packed], several: bool) -> None:
        self.model, self.arrays, self.several = model, arrays, several
        self.draws = len(arrays[0].values)
        self.template = jax.eval_shape(model.init, jax.random.key(0))
        self.dtype = np.result_type(*(array.values.dtype for array in arrays))
        self.densities = {i: array.density for i, array in enumerate(arrays) if len(array.shape) == 2}
        self._patterns: dict[tuple[int, int], Pattern] = {}
        self._sparse: dict[tuple[int, int, int], SparseMatrix] = {}
        self._dense: dict[tuple[int, int], jax.Array] = {}
        self._programs: dict[tuple[tuple[int, ...], bool | None], SplitProgram] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of the parameters as they are saved."""
        return sum(array.nbytes for array in self.arrays)

    @property
    def dense_nbytes(self) -> int:
        """Bytes of the same parameters with their zeros."""
        return sum(int(np.prod(array.shape)) * array.values.dtype.itemsize * self.draws for array in self.arrays)

    def sparse_layers(self, examples: int) -> tuple[str, ...]:
        """The layers whose products of so many examples are sparse."""
        return tuple(self.arrays[i].name for i in self.densities if self._wins(i, examples))

    def _wins(self, leaf: int, examples: int) -> bool:
        return wins(self.densities[leaf], examples, int(np.prod(self.arrays[leaf].shape)))

    def predict(self, x: Any, *, sparse: bool | None = None) -> np.ndarray:
        """Outputs (example, output), or (draw, example, output), of inputs (example, …).

        `sparse` True or False asks for sparse or dense products in all dense layers; None takes what is faster.
        """
        x = np.asarray(x, self.dtype)
        if x.ndim < 1 or not len(x):
            raise ValueError(f"x: shape {x.shape}; give at least one example, with a leading axis for them")
        program = self._program(x, sparse)
        inside = sorted(set(range(len(self.arrays))) - set(program.products))
        outputs = []
        for draw in range(self.draws):
            leaves = {i: self._dense_leaf(i, draw) for i in inside}

            def multiply(leaf: int, axis: int, batch: np.ndarray, draw: int = draw) -> np.ndarray:
                return self._sparse_leaf(leaf, axis, draw).product(batch)

            outputs.append(program.run(leaves, x, multiply))
        return np.stack(outputs) if self.several else outputs[0]

    def _program(self, x: np.ndarray, sparse: bool | None) -> SplitProgram:
        key = (x.shape, sparse)
        if key not in self._programs:
            wanted = {i: self._wins(i, len(x)) if sparse is None else sparse for i in self.densities}
            chosen = {i for i, want in wanted.items() if want}
            shapes = [jax.ShapeDtypeStruct(array.shape, array.values.dtype) for array in self.arrays]
            template = jax.tree.unflatten(jax.tree.structure(self.template), shapes)
            self._programs[key] = split_at_matmuls(
                self.model.apply, template, jax.ShapeDtypeStruct(x.shape, x.dtype), chosen
            )
        return self._programs[key]

    def _dense_leaf(self, leaf: int, draw: int) -> jax.Array:
        if (leaf, draw) in self._dense:
            return self._dense[leaf, draw]
        array = jnp.asarray(self.arrays[leaf].dense(draw))
        if self.draws * array.nbytes <= KEPT_BYTES:
            self._dense[leaf, draw] = array
        return array

    def _sparse_leaf(self, leaf: int, axis: int, draw: int) -> SparseMatrix:
        if (leaf, axis, draw) not in self._sparse:
            if (leaf, axis) not in self._patterns:
                self._patterns[leaf, axis] = pattern(self.arrays[leaf].mask(), axis, self.arrays[leaf].values.dtype)
            self._sparse[leaf, axis, draw] = self._patterns[leaf, axis].matrix(self.arrays[leaf].values[draw])
        return self._sparse[leaf, axis, draw]

    def save(self, path: str | Path) -> None:
        """Write the parameters to one safetensors file; loading it needs the same network and runs no code."""
        write(Path(path), self.arrays, self.several)

    @classmethod
    def load(cls, path: str | Path, model: Model) -> "CompressedModel":
        """Read what `save` wrote, for the network it was made of."""
        arrays, several = read(Path(path))
        template = jax.eval_shape(model.init, jax.random.key(0))
        found = [(array.name, array.shape) for array in arrays]
        wanted = [
            (name, leaf.shape) for name, leaf in zip(leaf_names(template), jax.tree.leaves(template), strict=True)
        ]
        if found != wanted:
            raise ValueError(f"path: {path} holds other parameters than the model has: {_difference(found, wanted)}")
        return cls(model, arrays, several)


def _difference(found: list[Any], wanted: list[Any]) -> str:
    pairs: Iterable[tuple[Any, Any]] = zip(found, wanted, strict=False)
    first = next(((a, b) for a, b in pairs if a != b), None)
    return f"{len(found)} arrays and {len(wanted)}" if first is None else f"{first[0]} and {first[1]}"


def _some_names(tree: PyTree) -> str:
    names = leaf_names(tree)
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def compress(model: Model, parameters: PyTree) -> CompressedModel:
    """A pruned network in sparse form: `parameters` as the model takes them, or with a leading axis for draws.

        chain = jax.tree.map(lambda leaf: leaf[0], result.positions)  # draws of the first chain
        small = rw.compress(rw.Model(init, apply), chain)

    Zeros that all draws share are stored once, as a bit for every weight; all draws of one pruned chain share theirs.
    """
    if not (callable(getattr(model, "init", None)) and callable(getattr(model, "apply", None))):
        raise ValueError(
            f"model: {type(model).__name__} is not a ridgewalk.Model; pass Model(init, apply), or what a network's "
            "build(input_shape, outputs) gives. A NeuralRegressor needs none of this: fitted with sparsity=0.7, it "
            "saves and predicts in sparse form"
        )
    template = jax.eval_shape(model.init, jax.random.key(0))
    if str(jax.tree.structure(parameters)) != str(jax.tree.structure(template)):
        raise ValueError(
            f"parameters: their arrays are {_some_names(parameters)}, those of model.init(key) are "
            f"{_some_names(template)}; pass draws of the network's weights alone, in the structure of model.init(key)"
        )
    names, arrays, several = leaf_names(template), [], set()
    for name, leaf, like in zip(names, jax.tree.leaves(parameters), jax.tree.leaves(template), strict=True):
        array = np.asarray(leaf)
        if array.ndim == len(like.shape) + 2 and array.shape[2:] == like.shape:
            raise ValueError(
                f"parameters: {name} has shape {array.shape}, with axes for chains and draws; every chain prunes "
                "weights of its own, so pass one chain: jax.tree.map(lambda leaf: leaf[0], result.positions)"
            )
        if array.shape not in (like.shape, (*array.shape[:1], *like.shape)):
            raise ValueError(
                f"parameters: {name} has shape {array.shape}; the model takes {like.shape}, or draws with one axis more"
            )
        several.add(array.shape != like.shape)
        arrays.append(pack(name, array if array.shape != like.shape else array[None]))
    if len(several) > 1 or len({len(array.values) for array in arrays}) > 1:
        raise ValueError("parameters: some arrays have an axis for draws and others none, or of another length")
    return CompressedModel(model, arrays, several.pop())


def runs_with_equal_zeros(draws: list[np.ndarray]) -> list[slice]:
    """Runs of draws with zeros in the same places: those of a chain, as each chain prunes weights of its own."""
    number = len(draws[0])
    matrices = [leaf for leaf in draws if leaf.ndim > 2]
    ends = [i for i in range(1, number) if any(np.any((leaf[i] == 0) != (leaf[i - 1] == 0)) for leaf in matrices)]
    return [slice(start, stop) for start, stop in pairwise([0, *ends, number])]


def pack_draws(draws: list[np.ndarray]) -> list[list[Packed]]:
    """Every array of every run of draws, zeros that a run shares stored as bits."""
    return [[pack(str(i), leaf[run]) for i, leaf in enumerate(draws)] for run in runs_with_equal_zeros(draws)]


def unpack_draws(runs: list[list[Packed]]) -> list[np.ndarray]:
    """The arrays (draw, …) that `pack_draws` took."""
    return [
        np.concatenate([np.stack([array.dense(draw) for draw in range(len(array.values))]) for array in leaf])
        for leaf in zip(*runs, strict=True)
    ]


class PrunedNetworks:
    """The networks of a fit in sparse form, made when they are first needed."""

    def __init__(self) -> None:
        self._models: list[CompressedModel] | None = None

    def predict(self, spec: PosteriorSpec, draws: PyTree, x: np.ndarray) -> Predictive | None:
        """μ and σ in scaled units, as `predict_scaled`; None where dense products take less time."""
        if self._models is None:
            self._models = _compressed(spec, draws)
        if not any(model.sparse_layers(len(x)) for model in self._models):
            return None
        values = np.concatenate([model.predict(x) for model in self._models]).astype(float)
        likelihood: Any = spec.likelihood
        first = {name: np.asarray(draws[name]) for name in likelihood.start(spec.dtype)}
        seen = [likelihood.observe({k: v[i] for k, v in first.items()}, value) for i, value in enumerate(values)]
        location, scale = (np.stack([np.asarray(part[i], float) for part in seen]) for i in (0, 1))
        return Mixture(location, scale, np.array([float(part.degrees) for part in seen])).predictive()


def _compressed(spec: PosteriorSpec, draws: PyTree) -> list[CompressedModel]:
    model = spec.network.build(spec.input_shape, spec.likelihood.network_outputs)
    weights = draws["network"]
    runs = runs_with_equal_zeros([np.asarray(leaf) for leaf in jax.tree.leaves(weights)])
    return [compress(model, jax.tree.map(lambda leaf, run=run: leaf[run], weights)) for run in runs]
