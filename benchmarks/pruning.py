"""What pruning pays: size on disk and time of predictions of the permeability network at 30 to 90 % zeros.

    python benchmarks/pruning.py      (all cores; `taskset -c 1 env OMP_NUM_THREADS=1` before it: one)

8.2 million weights, float32. "Dense part" are the three dense layers (20,000 to 100, 2,600 to 800, 800 to 5,100), which
have 99.6 % of the weights; the convolutions have too few to gain, and take a third of the time of the whole network for
one example and nine tenths for 100. Dense products are XLA's, compiled, and NumPy's (OpenBLAS) beside them; "CSR" are
SciPy's sparse products, "sparse" those that a `CompressedModel` takes. All use the same cores, but CSR, which uses one.
Times are medians of calls in a row, as a program makes them that predicts one example after another, and the least of
five such rows of each kind in turn. The last line is the cost of one pruning event inside a chain.
"""

import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._pytree import apply_mask, layout_of, leaf_names
from ridgewalk.neural.compression import CompressedModel, compress
from ridgewalk.neural.networks import Model, count_weights, permeability_network
from ridgewalk.neural.sparse_matmul import Form, pattern
from ridgewalk.pruning import Pruning
from timing import seconds

GRID, EDGES = (50, 50), 5_100
SPARSITIES = (0.3, 0.5, 0.7, 0.9)
BATCHES = (1, 100)
ROUNDS = {1: 40, 100: 2}
LAYERS = ("encode", "hidden", "decode")


def pruned(parameters: Any, sparsity: float) -> Any:
    """The parameters after one event that prunes every layer alike."""
    form = layout_of(parameters)
    plan = Pruning(sparsity, 1, 1, 1, scope="layer")
    flat = form.ravel(parameters)
    mask = plan.update_mask(form, flat, jnp.ones(form.size, bool), jnp.asarray(1))
    return form.unravel(apply_mask(flat, mask))


def dense_layers(parameters: Any) -> list[tuple[jax.Array, jax.Array]]:
    """Weight and bias of the three dense layers."""
    return [(getattr(parameters, name).weight, getattr(parameters, name).bias) for name in LAYERS]


@jax.jit
def dense_part(inputs: Any, layers: Any) -> Any:
    """All three layers, each on its own input."""
    return [jax.nn.relu(x @ w + b[None, :]) for x, (w, b) in zip(inputs, layers, strict=True)]


def numpy_part(inputs: list[np.ndarray], layers: list[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
    """The same with NumPy's products."""
    return [np.maximum(x @ w + b[None, :], 0) for x, (w, b) in zip(inputs, layers, strict=True)]


def sparse_part(compressed: CompressedModel, parameters: Any, form: Form | None) -> Callable[[list[np.ndarray]], Any]:
    """The same with sparse products of one form, or of the one that `CompressedModel` takes."""
    names = leaf_names(parameters)
    arrays = [compressed.arrays[names.index(f"{name}.weight")] for name in LAYERS]
    matrices = [pattern(array.mask(), 0, array.values.dtype, form).matrix(array.values[0]) for array in arrays]
    biases = [np.asarray(bias)[None, :] for _, bias in dense_layers(parameters)]
    return lambda inputs: [
        np.maximum(matrix.product(x) + bias, 0) for x, matrix, bias in zip(inputs, matrices, biases, strict=True)
    ]


def least(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """The milliseconds of each call: the median of `rounds` in a row, the least of five rows."""
    for call in calls.values():
        seconds(call), seconds(call)
    rows = [{name: [seconds(call) for _ in range(rounds)] for name, call in calls.items()} for _ in range(5)]
    return {name: 1e3 * min(float(np.median(row[name])) for row in rows) for name in calls}


def saved_share(compressed: CompressedModel) -> float:
    """The file against the parameters with their zeros."""
    with tempfile.TemporaryDirectory() as folder:
        compressed.save(Path(folder) / "model.safetensors")
        return (Path(folder) / "model.safetensors").stat().st_size / compressed.dense_nbytes


def rows(model: Model, parameters: Any, sparsity: float) -> None:
    """One sparsity."""
    rng = np.random.default_rng(0)
    compressed = compress(model, parameters)
    layers = dense_layers(parameters)
    sparse, csr = (sparse_part(compressed, parameters, form) for form in (None, "csr"))
    apply = jax.jit(model.apply)
    calls: dict[str, Callable[[], Any]]
    for batch in BATCHES:
        fields = rng.standard_normal((batch, *GRID)).astype(np.float32)
        inputs = [rng.standard_normal((batch, w.shape[0])).astype(np.float32) for w, _ in layers]
        on_device = jax.tree.map(jnp.asarray, inputs)
        arrays = [(np.asarray(w), np.asarray(b)) for w, b in layers]
        calls = {
            "dense": partial(dense_part, on_device, layers),
            "numpy": partial(numpy_part, inputs, arrays),
            "csr": partial(csr, inputs),
            "sparse": partial(sparse, inputs),
        }
        part = least(calls, ROUNDS[batch])
        calls = {
            "dense": partial(apply, parameters, fields),
            "predict": partial(compressed.predict, fields),
        }
        whole = least(calls, max(1, ROUNDS[batch] // 5))
        chosen = "sparse" if compressed.sparse_layers(batch) else "dense"
        print(
            f"{sparsity:6.0%} {saved_share(compressed):7.1%} {batch:6d}   "
            f"{part['dense']:8.2f} {part['numpy']:6.2f} {part['csr']:6.2f} {part['sparse']:7.2f} "
            f"{part['dense'] / part['sparse']:6.2f}x   "
            f"{whole['dense']:8.1f} {whole['predict']:8.1f} ({chosen:6s}) {whole['dense'] / whole['predict']:5.2f}x",
            flush=True,
        )


def event_cost(parameters: Any) -> None:
    """One event over all weights together, and what sorting them would take."""
    form = layout_of(parameters)
    plan = Pruning(0.7, 1, 1, 1)
    flat, mask = form.ravel(parameters), jnp.ones(form.size, bool)
    choose = jax.jit(lambda flat, mask: plan.update_mask(form, flat, mask, jnp.asarray(1)))
    sort = jax.jit(lambda flat: jnp.sort(jnp.abs(flat)))
    times = least({"event": lambda: choose(flat, mask), "sort": lambda: sort(flat)}, 1)
    print(f"choosing the weights of one event: {times['event']:.0f} ms; sorting them would take {times['sort']:.0f} ms")


def main() -> None:
    model = permeability_network().build(GRID, EDGES)
    start = jax.jit(model.init)(jax.random.key(0))
    cores = len(os.sched_getaffinity(0))
    print(
        f"permeability network, {count_weights(start):,} weights, float32, {cores} core{'s' * (cores > 1)}, "
        f"load {os.getloadavg()[0]:.1f}, {time.strftime('%Y-%m-%d')}; times in ms"
    )
    print(" zeros   saved  batch   dense part: XLA, NumPy, CSR, sparse, gain   whole: dense, predict (choice), gain")
    for sparsity in SPARSITIES:
        rows(model, pruned(start, sparsity), sparsity)
    event_cost(start)


if __name__ == "__main__":
    main()
