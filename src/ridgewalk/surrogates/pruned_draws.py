"""Draws of pruned networks: which of them share their zeros, and predictions of few examples by sparse products."""

from itertools import pairwise

import jax
import numpy as np

from ridgewalk._types import PyTree
from ridgewalk.surrogates.compressed import CompressedModel, compress
from ridgewalk.surrogates.packed import Packed, pack
from ridgewalk.surrogates.predictive import Predictive, with_least_spread
from ridgewalk.surrogates.problem import Spec, define


def share_zeros(draws: list[np.ndarray]) -> list[slice]:
    """Runs of draws with zeros in the same places: those of a chain, as each chain prunes weights of its own."""
    number = len(draws[0])
    matrices = [leaf for leaf in draws if leaf.ndim > 2]
    ends = [i for i in range(1, number) if any(np.any((leaf[i] == 0) != (leaf[i - 1] == 0)) for leaf in matrices)]
    return [slice(start, stop) for start, stop in pairwise([0, *ends, number])]


def pack_draws(draws: list[np.ndarray]) -> list[list[Packed]]:
    """Every array of every run of draws, zeros that a run shares stored as bits."""
    return [[pack(str(i), leaf[run]) for i, leaf in enumerate(draws)] for run in share_zeros(draws)]


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

    def predict(self, spec: Spec, draws: PyTree, x: np.ndarray) -> Predictive | None:
        """μ and σ in scaled units, as `predict_scaled`; None where dense products take less time."""
        if self._models is None:
            self._models = _compressed(spec, draws)
        if not any(model.sparse_layers(len(x)) for model in self._models):
            return None
        values = np.concatenate([model.predict(x) for model in self._models]).astype(float)
        noise = np.asarray(jax.vmap(define(spec).noise)(draws), float)
        variance = values.var(axis=0, ddof=1) + np.mean(noise**2, axis=0)
        return with_least_spread(values.mean(axis=0), variance)


def _compressed(spec: Spec, draws: PyTree) -> list[CompressedModel]:
    model = spec.network.build(spec.input_shape, spec.outputs)
    weights = draws["network"] if spec.likelihood == "gaussian" else draws
    runs = share_zeros([np.asarray(leaf) for leaf in jax.tree.leaves(weights)])
    return [compress(model, jax.tree.map(lambda leaf, run=run: leaf[run], weights)) for run in runs]
