"""Pruned networks in a form that is smaller on disk and, for few examples at a time, faster to evaluate."""

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._pytree import leaf_names
from ridgewalk._types import PyTree
from ridgewalk.neural.calibration.predictive import Predictive, with_least_std
from ridgewalk.neural.networks.model import Model
from ridgewalk.neural.posterior import PosteriorSpec, noise_of
from ridgewalk.neural.sparse.bitmask_arrays import Packed, pack, read, write
from ridgewalk.neural.sparse.jaxpr_split import SplitProgram, split_at_matmuls
from ridgewalk.neural.sparse.matmul import Pattern, SparseMatrix, pattern, wins

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
            "build(input_shape, outputs) gives. A SurrogateRegressor needs none of this: fitted with sparsity=0.7, it "
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
        noise = noise_of(spec, draws)
        variance = values.var(axis=0, ddof=1) + np.mean(noise**2, axis=0)
        return with_least_std(values.mean(axis=0), variance)


def _compressed(spec: PosteriorSpec, draws: PyTree) -> list[CompressedModel]:
    model = spec.network.build(spec.input_shape, spec.outputs)
    weights = draws["network"] if spec.likelihood == "gaussian" else draws
    runs = runs_with_equal_zeros([np.asarray(leaf) for leaf in jax.tree.leaves(weights)])
    return [compress(model, jax.tree.map(lambda leaf, run=run: leaf[run], weights)) for run in runs]
