"""Darcy solver against scikit-fem, side by side in one run: `OMP_NUM_THREADS=1 python benchmarks/darcy.py`.

Prints solves per second with a new permeability each time and with a fixed one, the cost against the grid's
size, and the time of both data sets on two processes. `--data-sets` runs scikit-fem's 1,500 samples of each
too; without it a sixth of them is timed and scaled.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from ridgewalk.darcy import Boundary, Grid, Pressure, factorise, solve
from ridgewalk.darcy.datasets import Plan, generate
from ridgewalk.darcy.grid import Array
from ridgewalk.darcy.problems import (
    SYNTHETIC,
    Problem,
    VaryingPermeability,
    VaryingSource,
    channelised,
    draw_permeability,
    karhunen_loeve,
    three_spot_source,
)
from scikit_fem_darcy import Reference, assemble_and_solve, prepare

FLOW = Boundary(left=Pressure(1.0), right=Pressure(0.0))
CLOSED = Boundary()
SAMPLES = 1500


def seconds(action: Callable[[], object], repetitions: int) -> float:
    """Median time of an action, after one call to warm up."""
    action()
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def row(name: str, time_per_solve: float, reference: float) -> None:
    ratio = reference / time_per_solve
    print(f"  {name:<58}{1e3 * time_per_solve:9.3f} ms{1 / time_per_solve:10.0f} /s{ratio:8.1f}×")


def difference(found: Array, expected: Array) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def new_permeabilities(reference: Reference) -> None:
    """A new κ every time: Karhunen–Loève fields, the permeability problem's boundary, f = 1."""
    grid = reference.grid
    generator = np.random.default_rng(0)
    expansion = karhunen_loeve(grid)
    fields = [draw_permeability(expansion, generator).permeability for _ in range(40)]
    ones = np.ones(grid.shape)

    def theirs(kappa: Array) -> Array:
        return assemble_and_solve(reference, kappa, ones, FLOW).flux

    def ours(kappa: Array) -> Array:
        return solve(kappa, ones, FLOW).flux

    worst = max(difference(ours(kappa), theirs(kappa)) for kappa in fields[:5])
    reference_time = seconds(lambda: [theirs(kappa) for kappa in fields[:8]], 5) / 8
    print(f"New κ each time (fluxes agree to {worst:.1e}); at least 8× wanted")
    row("scikit-fem assembly + spsolve", reference_time, reference_time)
    row("ridgewalk solve", seconds(lambda: [ours(kappa) for kappa in fields], 15) / 40, reference_time)


def new_sources(reference: Reference) -> None:
    """Fixed κ of high contrast, new sources: three spots in a closed box."""
    grid = reference.grid
    kappa = channelised(grid)
    strength = np.random.default_rng(0).normal(10.0, 5.0**0.5, (100, 2))
    sources = three_spot_source(grid, strength[:, 0], strength[:, 1], 6)
    factored = factorise(kappa, CLOSED)

    def theirs(source: Array) -> Array:
        return assemble_and_solve(reference, kappa, source, CLOSED).flux

    def ours(source: Array, refinements: int) -> Array:
        return factored.solve(source, CLOSED, refinements).flux

    worst = max(difference(ours(source, 1), theirs(source)) for source in sources[:5])
    reference_time = seconds(lambda: [theirs(source) for source in sources[:8]], 5) / 8
    print(f"Fixed κ, new sources, factored once (fluxes agree to {worst:.1e}); at least 100× wanted")
    row("scikit-fem assembly + spsolve", reference_time, reference_time)
    for name, refinements in (("", 1), (", without refinement", 0)):
        together = partial(ours, sources, refinements)
        row(f"ridgewalk, 100 sources at once{name}", seconds(together, 15) / 100, reference_time)
        alone = partial(lambda count: [ours(source, count) for source in sources], refinements)
        row(f"ridgewalk, one source at a time{name}", seconds(alone, 15) / 100, reference_time)


def grid_sizes() -> None:
    """Cost against the number of cells n in each direction."""
    print("Cost against grid size n×n (new κ: factor and solve; fixed κ: solve only)")
    sizes, new, fixed = (25, 50, 100, 200, 400), [], []
    for size in sizes:
        kappa = np.exp(np.random.default_rng(0).standard_normal((size, size)))
        repetitions = 9 if size <= 100 else 3
        new.append(seconds(partial(solve, kappa, 1.0, FLOW), repetitions))
        fixed.append(seconds(partial(factorise(kappa, FLOW).solve, 1.0, FLOW), repetitions))
        print(f"  {size:4d}{1e3 * new[-1]:12.2f} ms{1e3 * fixed[-1]:12.2f} ms")
    for name, times in (("new κ", new), ("fixed κ", fixed)):
        slope = np.polyfit(np.log(sizes), np.log(times), 1)[0]
        print(f"  {name}: time ~ n^{slope:.2f}, that is (number of cells)^{slope / 2:.2f}")


def reference_samples(problem: Problem, boundary: Boundary, samples: range) -> int:
    """The scikit-fem path of a worker: the same draws, solved by assembly and `spsolve`."""
    drawn = problem.draw(0, samples) | problem.constants
    reference = prepare(problem.grid)
    shape = (len(samples), *problem.grid.shape)
    fields, sources = np.broadcast_to(drawn["permeability"], shape), np.broadcast_to(drawn["source"], shape)
    for kappa, source in zip(fields, sources, strict=True):
        assemble_and_solve(reference, kappa, source, boundary)
    return len(samples)


def data_sets(whole: bool) -> None:
    """Both data sets on two processes, from the start of the workers to the file in its place."""
    grid = Grid(50, 50)
    count = SAMPLES if whole else SAMPLES // 6
    problems: list[tuple[str, Problem, Boundary]] = [
        ("source", VaryingSource(channelised(grid), SYNTHETIC), CLOSED),
        ("permeability", VaryingPermeability(karhunen_loeve(grid)), FLOW),
    ]
    print(f"Data sets of {SAMPLES} samples on 2 processes; at most 1/8 of scikit-fem's time wanted")
    for name, problem, boundary in problems:
        blocks = [range(start, min(start + 25, count)) for start in range(0, count, 25)]
        start = time.perf_counter()
        with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
            list(pool.map(partial(reference_samples, problem, boundary), blocks))
        theirs = (time.perf_counter() - start) * SAMPLES / count
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            generate(Path(folder) / "data.zarr", problem, Plan(SAMPLES), processes=2)
            ours = time.perf_counter() - start
        how = "measured" if whole else f"{count} samples, scaled"
        ratio = theirs / ours
        print(f"  {name:<14} scikit-fem {theirs:6.1f} s ({how}), ridgewalk {ours:5.2f} s: 1/{ratio:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-sets", action="store_true", help="time all of scikit-fem's samples")
    options = parser.parse_args()
    threads = os.environ.get("OMP_NUM_THREADS", "unset")
    print(f"OMP_NUM_THREADS={threads}, 50×50 cells, {os.cpu_count()} cores")
    reference = prepare(Grid(50, 50))
    new_permeabilities(reference)
    new_sources(reference)
    grid_sizes()
    data_sets(options.data_sets)


if __name__ == "__main__":
    main()
