"""What the runner costs: its loop against a bare scan, the memory of a run streamed to disk, and its checksums.

python benchmarks/run.py [overhead|memory|checksums]   (overhead: with all threads of XLA, and with one)
"""

import contextlib
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import ridgewalk as rw
from ridgewalk import _zarr
from ridgewalk._random import uniform_integers
from ridgewalk.sampling import zarr_store

STEPS = 100_000 // 256 * 256
ROUNDS = 7
BATCH = 1_500
"""Large enough that a step of the 50-d regression takes about 50 µs."""


Run = Callable[[], Any]
Draw = Callable[..., jax.Array]


def regression() -> tuple[rw.Posterior, jax.Array]:
    features = jax.random.normal(jax.random.key(0), (20_000, 50))
    outcome = features @ jnp.ones(50) + jax.random.normal(jax.random.key(1), (20_000,))

    def log_likelihood(theta: jax.Array, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
        return -0.5 * (batch[1] - batch[0] @ theta) ** 2

    return rw.Posterior(lambda theta: -0.5 * jnp.sum(theta**2), log_likelihood, (features, outcome)), jnp.zeros(50)


def bare_scan(target: rw.Posterior, start: jax.Array, thin: int, randint: Draw = jax.random.randint) -> Run:
    """The same steps by hand: one `lax.scan` over all of them, that keeps every `thin`-th position on the device."""
    kernel = rw.build_kernel(rw.sgld(), target, start)
    block = 256

    @partial(jax.jit, donate_argnums=1)
    def run(key: jax.Array, state: rw.State) -> tuple[rw.State, jax.Array]:
        def numbers(k: jax.Array) -> tuple[jax.Array, jax.Array]:
            noise_key, batch_key = jax.random.split(jax.random.fold_in(key, k))
            return kernel.draw(noise_key), randint(batch_key, (BATCH,), 0, target.size)

        def one(state: rw.State, xs: tuple[jax.Array, jax.Array]) -> tuple[rw.State, None]:
            noise, rows = xs
            batch = jax.tree.map(lambda x: x.at[rows].get(mode="promise_in_bounds"), target.data)
            return kernel.advance(noise, state, batch, 1e-6)[0], None

        def draw(state: rw.State, xs: tuple[jax.Array, jax.Array]) -> tuple[rw.State, jax.Array]:
            state, _ = jax.lax.scan(one, state, xs)
            return state, state.position

        def blocks(state: rw.State, first: jax.Array) -> tuple[rw.State, jax.Array]:
            noise, rows = jax.vmap(numbers)(first + jnp.arange(block))
            shaped = jax.tree.map(lambda x: x.reshape(block // thin, thin, *x.shape[1:]), (noise, rows))
            return jax.lax.scan(draw, state, shaped)

        return jax.lax.scan(blocks, state, block * jnp.arange(STEPS // block))

    return lambda: run(jax.random.key(0), jax.jit(kernel.init)(start))


def ours(target: rw.Posterior, start: jax.Array, thin: int, folder: Path | None) -> Run:
    def run() -> Any:
        options: dict[str, Any] = {}
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
            options = {"checkpoint": folder, "every": "2 s"}
        return rw.sample(
            jax.random.key(0),
            rw.sgld(),
            target,
            start,
            steps=STEPS,
            step_size=1e-6,
            batch_size=BATCH,
            thin=thin,
            progress=folder is not None,
            **options,
        ).positions

    return run


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """The bar draws itself as on a terminal, into nothing."""
    os.environ["FORCE_COLOR"] = "1"  # what makes rich believe in a terminal
    with open(os.devnull, "w") as nothing, contextlib.redirect_stderr(nothing):
        yield


def rows_of_the_runner(key: jax.Array, shape: tuple[int], low: int, size: int) -> jax.Array:
    """The numbers of `jax.random.randint`, as the runner draws them."""
    return uniform_integers(key, *shape, size)


def overhead() -> None:
    """In processes of their own: how many threads XLA has is settled when it starts."""
    for threads in ("all", "1"):
        environment = os.environ | ({} if threads == "all" else {"NPROC": threads})
        print(f"XLA's threads: {threads}", flush=True)
        subprocess.run([sys.executable, __file__, "compare"], check=True, env=environment)


def compare() -> None:
    """Interleaved, each compared with the scan of its own round: the machine is not alone."""
    target, start = regression()
    thin = 8
    with tempfile.TemporaryDirectory() as folder:
        runs = {
            "bare scan, by hand": bare_scan(target, start, thin),
            "bare scan, rows drawn as the runner does": bare_scan(target, start, thin, rows_of_the_runner),
            "rw.sample, silent": ours(target, start, thin, None),
            "rw.sample, bar, a checkpoint every 2 s": ours(target, start, thin, Path(folder) / "run"),
        }
        times: dict[str, list[float]] = {name: [] for name in runs}
        with watched():
            for _ in range(ROUNDS + 1):
                for name, run in runs.items():
                    begun = time.perf_counter()
                    jax.block_until_ready(run())
                    times[name].append(time.perf_counter() - begun)
    seconds = {name: np.array(found[1:]) for name, found in times.items()}  # the first round compiles
    base = seconds["bare scan, by hand"]
    print(f"{STEPS:,} steps of SGLD, 50-d regression, batch {BATCH}, every {thin}th position kept, start-up included")
    for name, found in seconds.items():
        over = np.sort(found / base - 1)
        spread = f"(rounds: {over[0]:+.1%} to {over[-1]:+.1%})"
        print(f"  {name:40s}{np.median(found) / STEPS * 1e6:8.1f} µs a step   {np.median(over):+7.1%}  {spread}")


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def stream_to(path: Path, count: int) -> int:
    """Stream draws of a network of 10⁶ weights; the number of weights."""
    shapes = {"w0": (100, 1_000), "w1": (1_000, 800), "w2": (800, 125), "b0": (1_000,), "b1": (800,), "b2": (125,)}
    start = {name: jnp.zeros(shape) for name, shape in shapes.items()}
    rw.sample(jax.random.key(0), rw.sgld(), STREAMED, start, steps=count, step_size=0.1, store=path, progress=False)
    return sum(leaf.size for leaf in jax.tree.leaves(start))


STREAMED = rw.Density(lambda p: -0.5 * sum((jnp.sum(leaf**2) for leaf in jax.tree.leaves(p)), start=jnp.zeros(())))


def stream(draws: int, folder: str) -> None:
    """Stream draws, and print by how much the resident memory grew."""
    stream_to(Path(folder) / "warm.zarr", 8)
    before = peak_megabytes()
    begun = time.perf_counter()
    weights = stream_to(Path(folder) / "draws.zarr", draws)
    seconds = time.perf_counter() - begun
    size = sum(file.stat().st_size for file in (Path(folder) / "draws.zarr").rglob("*") if file.is_file()) / 1e6
    print(
        f"{draws:,} draws of {weights:,} weights streamed in {seconds:.0f} s: {size:,.0f} MB on disk; "
        f"peak resident memory {before:.0f} MB before, {peak_megabytes():.0f} MB after, "
        f"{peak_megabytes() - before:+.0f} MB"
    )


def memory() -> None:
    """In a process of its own, so that the peak is this run's."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, __file__, "stream", "2000", folder], check=True)


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    """Chunks without checksums, digests, and comparisons of files."""
    with contextlib.ExitStack() as stack:
        for place, name, value in (
            (_zarr, "COMPRESSORS", _zarr.COMPRESSORS[:1]),
            (_zarr, "digest", lambda content: ""),
            (zarr_store, "signature", lambda path: (0, 0, 0)),
            (zarr_store.ColumnSpec, "check", lambda *arguments: None),
            (zarr_store.ZarrStore, "_check_folder", lambda store: None),
        ):
            stack.enter_context(mock.patch.object(place, name, value))
        yield


def checksums(draws: int = 2_000, rounds: int = 3) -> None:
    """The same streamed run with checksums and digests and without, in turns."""
    times: dict[bool, list[float]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as folder:
        for count in (8, *[draws] * rounds):  # the first one compiles
            for checked in (True, False) if len(times[True]) % 2 else (False, True):
                path = Path(folder) / "draws.zarr"
                with contextlib.nullcontext() if checked else unchecked():
                    begun = time.perf_counter()
                    stream_to(path, count)
                    times[checked].append(time.perf_counter() - begun)
                shutil.rmtree(path)
    with_, without = np.array(times[True][1:]), np.array(times[False][1:])
    print(
        f"{draws:,} draws of 10⁶ weights: {np.median(with_):.1f} s with checksums, {np.median(without):.1f} s without, "
        f"{np.median(with_ / without) - 1:+.1%} (rounds: {', '.join(f'{r:+.1%}' for r in with_ / without - 1)})"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["stream"]:
        stream(int(sys.argv[2]), sys.argv[3])
    if sys.argv[1:2] == ["compare"]:
        compare()
    if sys.argv[1:2] in ([], ["overhead"]):
        overhead()
    if sys.argv[1:2] in ([], ["memory"]):
        memory()
    if sys.argv[1:2] == ["checksums"]:
        checksums(*map(int, sys.argv[2:]))
