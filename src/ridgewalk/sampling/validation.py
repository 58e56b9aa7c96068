"""Checks before the first step; errors name the argument, its value and the fix.

NaN and infinity in the data would make chains diverge, and the step size would be blamed. Data in memory are searched
before a run, data on the host after a divergence. A likelihood may be written for them (infinity for an open bound, NaN
for a missing value), so data in memory are refused only where it, or its gradient, is not finite.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import reduce
from itertools import islice
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._compilation import jit
from ridgewalk._pytree import leaf_names
from ridgewalk._types import Key, PyTree, Scalar
from ridgewalk._validation import check_whole
from ridgewalk.data import Batches, DataPlaceholder, on_host, read_rows
from ridgewalk.gradients import GradientEstimator
from ridgewalk.kernel import Sampler, build_kernel
from ridgewalk.sampling.batching import BatchIndexer, Source, rows_of_steps
from ridgewalk.target import Density, Posterior, Target


def check_counts(steps: int, burn_in: int, thin: int, chains: int) -> None:
    """Steps, burn-in, thinning and chains that leave at least one draw."""
    check_whole("steps", steps, 1, "say how many steps each chain makes")
    check_whole("burn_in", burn_in, 0, "use 0 to keep all steps")
    check_whole("thin", thin, 1, "use 1 to keep every step")
    check_whole("chains", chains, 1, "use at least one chain, four to compute R-hat")
    if burn_in >= steps:
        raise ValueError(f"burn_in: {burn_in} is not below steps = {steps}, so no draw would be left; lower it")
    if thin > steps - burn_in:
        raise ValueError(
            f"thin: {thin} is more than the {steps - burn_in} steps after burn-in, so no draw would be left; "
            "lower it, or make more steps"
        )


def check_key(key: Any) -> None:
    """One random key, of the new kind or two words of the old."""
    dtype, shape = getattr(key, "dtype", None), getattr(key, "shape", None)
    new = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key) and shape == ()
    old = dtype == np.uint32 and shape is not None and len(shape) == 1
    if not (new or old):
        said = f"{type(key).__name__} of shape {shape}" if shape else repr(key)
        raise ValueError(f"key: {said} is not one random key of JAX; use jax.random.key(0)")


def check_position(position: PyTree, name: str = "position") -> PyTree:
    """The position as arrays, all of them floating and finite."""
    try:
        leaves, _ = jax.tree_util.tree_flatten_with_path(position)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name}: it is not a valid pytree ({error}); dictionary keys must be sortable, for example all strings"
        ) from error
    if not leaves:
        raise ValueError(f"{name}: it holds no arrays; pass a pytree with at least one float array")
    for path, leaf in leaves:
        where = f"{name}{jax.tree_util.keystr(path)}"
        dtype = getattr(leaf, "dtype", None) or (np.asarray(leaf).dtype if isinstance(leaf, int | float) else None)
        if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
            raise ValueError(
                f"{where}: {type(leaf).__name__} of dtype {dtype} is not a float array; convert it with "
                ".astype(float), or keep it out of the position (equinox.partition, flax's params)"
            )
        if not np.isfinite(np.asarray(leaf)).all():
            raise ValueError(f"{where}: it contains NaN or infinity; start from finite numbers")
    if not sum(np.size(leaf) for _, leaf in leaves):
        shapes = ", ".join(str(np.shape(leaf)) for _, leaf in leaves)
        raise ValueError(f"{name}: its arrays have no elements (shapes {shapes}); pass at least one parameter")
    return jax.tree.map(lambda leaf: leaf if isinstance(leaf, jax.Array) else jnp.array(leaf), position)


def check_precision(sampler: Sampler, estimator: GradientEstimator, position: PyTree) -> None:
    """Raise where a sampler needs linear algebra that JAX does not have in half precision."""
    dtype = jnp.result_type(*jax.tree.leaves(position))
    if dtype.itemsize >= 4:
        return
    kernel = build_kernel(sampler, estimator, position)

    def first_step(position: PyTree) -> Any:
        return kernel.step(jax.random.key(0), kernel.init(position), estimator.target.subsample(), 1.0)

    try:
        jax.jit(first_step).lower(position)
    except NotImplementedError as error:
        raise ValueError(
            f"position: its dtype is {dtype}, in which JAX has no linear algebra for this sampler's preconditioner; "
            "convert it to float32 (jax.tree.map(lambda x: x.astype('float32'), position)), or use a sampler without "
            "matrices, such as sgld, psgld or sghmc"
        ) from error


def check_data(target: Target, batch_size: int | None, replacement: bool) -> BatchIndexer:
    """Data whose leading axes agree and can fill a batch; which rows of them a step uses."""
    if isinstance(target, Density):
        if batch_size is not None:
            raise ValueError(f"batch_size: {batch_size} was given, but a Density has no data; leave it out")
        return BatchIndexer("none")
    if isinstance(target.data, Batches):
        return _check_batches(target.data, batch_size)
    leaves, _ = jax.tree_util.tree_flatten_with_path(target.data)
    if not leaves:
        raise ValueError("data: it holds no arrays; pass a pytree of arrays, or use ridgewalk.Density")
    for path, leaf in leaves:
        if hasattr(leaf, "iloc"):
            raise ValueError(
                f"data{jax.tree_util.keystr(path)}: pandas objects such as this {type(leaf).__name__} are indexed by "
                "label; pass .to_numpy()"
            )
    sizes = {f"data{jax.tree_util.keystr(path)}": np.shape(leaf)[:1] for path, leaf in leaves}
    if () in sizes.values():
        scalar = next(name for name, size in sizes.items() if size == ())
        raise ValueError(f"{scalar}: it is a scalar; the leading axis of every array must count the examples")
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name} has {size[0]}" for name, size in sizes.items())
        raise ValueError(f"data: leading axes disagree ({listed}); every array needs one row per example")
    if target.size < 1:
        raise ValueError("data: there are 0 examples; use ridgewalk.Density for a target without data")
    if batch_size is None:
        if on_host(target.data):
            raise ValueError(
                "batch_size: None would read all data from disk in every step; give a number of examples, or load the "
                "data into memory with np.asarray"
            )
        return BatchIndexer("full", target.size, target.size)
    check_whole("batch_size", batch_size, 1, "use None for the full data")
    if batch_size > target.size:
        raise ValueError(
            f"batch_size: {batch_size} is larger than the {target.size} examples; "
            f"use at most {target.size}, or None for the full data"
        )
    source: Source = "replacement" if replacement else "epochs"
    return BatchIndexer(source, target.size, int(batch_size), prefetched=on_host(target.data))


def _check_batches(batches: Batches, batch_size: int | None) -> BatchIndexer:
    counts = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(batches.first())}
    if len(counts) != 1 or () in counts:
        raise ValueError(
            f"data: the first batch has leading axes {sorted(counts)}; every array needs one row per example"
        )
    (count,) = counts.pop()
    if batch_size not in (None, count):
        raise ValueError(f"batch_size: {batch_size} was given, but the iterable's batches have {count}; leave it out")
    return BatchIndexer("iterable", batches.size, count, prefetched=True)


_potential = jit(Posterior.potential)


def check_functions(target: Target, position: PyTree, indexer: BatchIndexer, suspected: dict[str, np.ndarray]) -> float:
    """Functions of the right shape, finite in rows `suspected`, and the potential to start from, which is finite."""
    if isinstance(target, Density):
        _scalar("log_density", target.log_density, position)
        value = float(jax.jit(Density.potential)(target, position))
    else:
        target = target.frozen(target.first_prior(position)) if target.adaptive else target
        _scalar("log_prior", target.prior_value, position)
        count = indexer.batch_size
        examples = target.data.examples if isinstance(target.data, DataPlaceholder) else target.data
        batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct((count, *x.shape[1:]), x.dtype), examples)
        shape = _shape("log_likelihood", target.likelihood_values, position, batch)
        if shape != (count,):
            raise ValueError(
                f"log_likelihood: for a batch of {count} examples it returned shape {shape}; return one value per "
                f"example, shape ({count},), without summing or averaging over the batch"
            )
        check_finite(target, position, suspected)
        value = float(_potential(target, position, target.subsample()))
    if not math.isfinite(value):
        if not isinstance(target, Density) and has_nonfinite_rows(target.subsample()):
            raise ValueError(f"data: some of the first examples looked at hold NaN or infinity; {FIX}")
        raise ValueError(
            f"position: the log density there is {-value}; start where prior and likelihood are finite and positive"
        )
    return value


def check_keep(keep: str | None, collect: Any, store: Any) -> None:
    """What is kept of a draw."""
    if keep not in (None, "draws", "moments"):
        raise ValueError(f"keep: {keep!r} is unknown; use 'draws' or 'moments'")
    if collect is not None and not callable(collect):
        raise ValueError(f"collect: {collect!r} is not a function of the position")
    if store is not None and keep == "moments" and collect is None:
        raise ValueError("store: with keep='moments' there are no draws to stream; leave out one of the two")


def check_pruning(sampler: Sampler, steps: int) -> None:
    """Pruning that ends within the run."""
    pruning = sampler.pruning
    if pruning is not None and pruning.stop > steps:
        raise ValueError(
            f"sampler: pruning goes on until step {pruning.stop}, after the last of {steps} steps, and would not reach "
            f"its sparsity of {pruning.sparsity:g}; lower stop of pruned(…), best to burn_in, or make more steps"
        )


def check_resume(checkpoint: Any, resume: bool) -> None:
    """Where a run is resumed from."""
    if resume and checkpoint is None:
        raise ValueError("resume: True needs a folder to resume from; pass checkpoint=path")


def _scalar(name: str, function: Callable[..., Any], position: PyTree) -> None:
    shape = _shape(name, function, position)
    if shape != ():
        raise ValueError(f"{name}: it returned shape {shape}; return a scalar (sum over the parameters)")


def _shape(name: str, function: Callable[..., Any], *arguments: PyTree) -> tuple[int, ...]:
    try:
        result = jax.eval_shape(function, *arguments)
    except KeyError as error:
        listed = ", ".join(leaf_names(arguments[0]))
        raise ValueError(
            f"{name}: it asks for the key {error}, which is neither in the position nor in the data; the position's "
            f"arrays are {listed}. Name them alike"
        ) from error
    if not hasattr(result, "shape"):
        raise ValueError(f"{name}: it returned {type(result).__name__}; return an array")
    return tuple(result.shape)


def check_kinds(key: Any, sampler: Any, target: Any) -> None:
    """The first three arguments are what they should be."""
    check_key(key)
    if not isinstance(sampler, Sampler):
        hint = "; call it: ridgewalk.sgld()" if callable(sampler) else ""
        raise ValueError(f"sampler: {sampler!r} is not a ridgewalk.Sampler{hint}")
    if isinstance(target, Posterior | Density):
        return
    wanted = [name for name in dir(GradientEstimator) if not name.startswith("_")]
    if not all(hasattr(target, name) for name in wanted):
        raise ValueError(
            f"target: {type(target).__name__} is neither a ridgewalk.Posterior, a ridgewalk.Density nor an "
            "estimator such as ridgewalk.control_variates(target, centre)"
        )
    if not dataclasses.is_dataclass(target):
        raise ValueError(
            f"target: the estimator {type(target).__name__} is a plain class, which JAX cannot look into; put "
            "@ridgewalk.pytree_dataclass over it"
        )


# NaN and infinity in the data

NUMBERS_AT_ONCE = 2**22
"""How many numbers are looked at together, so that the look takes little memory."""

SHOWN = 5
"""How many rows a message names."""

TRIED = 8
"""In how many rows of an array with NaN, and in how many with infinity, the likelihood is tried."""

MOST_BATCHES = 1_000
"""How many batches of an iterable are gone through to find the one that is not finite."""

FIX = "remove these rows, or impute them and pass a mask as another data array"


def _nonfinite_rows(leaf: np.ndarray) -> np.ndarray:
    """The rows of an array that hold NaN or infinity; none where it is not of floats."""
    if not jnp.issubdtype(leaf.dtype, jnp.inexact):
        return np.zeros(0, int)
    size = len(leaf)
    at_once = max(1, NUMBERS_AT_ONCE * size // max(leaf.size, 1))
    parts = []
    for start in range(0, size, at_once):
        part = leaf[start : start + at_once]
        finite = np.isfinite(part)
        if not finite.all():
            parts.append(start + np.flatnonzero(~finite.reshape(len(part), -1).all(axis=1)))
    return np.concatenate(parts) if parts else np.zeros(0, int)


def _listed(rows: np.ndarray) -> str:
    more = f" and {len(rows) - SHOWN:,} more" if len(rows) > SHOWN else ""
    return f"row{'s' if len(rows) > 1 else ''} {', '.join(map(str, rows[:SHOWN]))}{more}"


def _leaves(data: PyTree) -> list[tuple[str, Any]]:
    return [(f"data{jax.tree_util.keystr(path)}", leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(data)[0]]


def find_nonfinite_rows(data: PyTree) -> dict[str, np.ndarray]:
    """The rows with NaN or infinity of each array in memory that has any; what stays on the host is not read for this.

    Keys are the arrays' names, such as `data['x']`.
    """
    if on_host(data):
        return {}
    found = {name: _nonfinite_rows(np.asarray(leaf)) for name, leaf in _leaves(data)}
    return {name: rows for name, rows in found.items() if rows.size}


@jax.jit
def _likelihood_is_finite(target: Posterior, position: PyTree) -> Scalar:
    """Whether log p(d_i | θ) and its gradient are, over all data of the target."""

    def total(position: PyTree) -> tuple[Scalar, Scalar]:
        values = target.likelihood_values(position, target.data)
        return jnp.sum(values), jnp.all(jnp.isfinite(values))

    gradient, finite = jax.grad(total, has_aux=True)(position)
    return jnp.all(jnp.stack([finite, *(jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))]))


def check_finite(target: Posterior, position: PyTree, suspected: dict[str, np.ndarray]) -> None:
    """Raise where the likelihood or its gradient is not finite at a position in some of the rows suspected."""
    leaves = dict(_leaves(target.data))
    for name, rows in suspected.items():
        part = np.asarray(leaves[name])[rows]
        missing = np.isnan(part.reshape(len(part), -1)).any(axis=1)
        for row in (*rows[missing][:TRIED], *rows[~missing][:TRIED]):
            # The row twice, as likelihoods may squeeze axes of length one.
            alone = dataclasses.replace(
                target, data=jax.tree.map(lambda x, row=row: jnp.asarray(x[np.array([row, row])]), target.data)
            )
            if not _likelihood_is_finite(alone, position):
                shared = {other: bad for other, bad in suspected.items() if row in bad}
                common = _listed(reduce(np.intersect1d, shared.values()))
                raise ValueError(
                    f"{' and '.join(shared)}: NaN or infinity in {common}, and "
                    f"log_likelihood or its gradient at the start is not finite for row {row}; {FIX}"
                )


def has_nonfinite_rows(data: PyTree) -> bool:
    """Whether any array holds NaN or infinity."""
    return any(_nonfinite_rows(np.asarray(leaf)).size for leaf in jax.tree.leaves(data))


def locate_nonfinite_batch(data: PyTree, indexer: BatchIndexer, keys: Key, chain: int, step: int) -> str:
    """What is not finite in the batch from the host that chain `chain` of `keys` saw in a step; "" where all is."""
    if isinstance(data, Batches):
        return _locate_in_iterable(data, step)
    chosen = np.unique(np.asarray(rows_of_steps(indexer, keys, step, 1))[0, chain])
    for name, leaf in _leaves(data):
        bad = _nonfinite_rows(read_rows(leaf, chosen))
        if bad.size:
            return f"{name} in {_listed(chosen[bad])}"
    return ""


def _locate_in_iterable(batches: Batches, step: int) -> str:
    """The first batch that is not finite of those read up to a step; later ones cannot have done it."""
    for number, item in enumerate(islice(batches.batches, min(step + 1, MOST_BATCHES))):
        for name, leaf in _leaves(jax.tree.map(np.asarray, item)):
            bad = _nonfinite_rows(leaf)
            if bad.size:
                return f"{name} in {_listed(bad)} of batch {number}"
    return ""
