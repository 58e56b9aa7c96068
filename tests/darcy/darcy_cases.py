"""Random Darcy problems and comparisons that several tests share."""

import numpy as np
from hypothesis import strategies as st

from ridgewalk.darcy.grid import SIDES, Boundary, Flux, Grid, Pressure, side_values


def random_problem(seed, nx, ny, open_sides, *, log_contrast=2.0, tensor=True, unit_square=False):
    """κ, f and a boundary with random values per edge; f is made compatible in a closed box."""
    rng = np.random.default_rng(seed)
    width, height = rng.uniform(0.5, 2.0, 2)
    grid = Grid(nx, ny) if unit_square else Grid(nx, ny, width, height)
    shape = (2, ny, nx) if tensor else (ny, nx)
    kappa = np.exp(rng.uniform(-0.5, 0.5, shape) * log_contrast * np.log(10.0))
    source = rng.standard_normal((ny, nx))
    counts = (ny, ny, nx, nx)
    boundary = Boundary(
        **{
            side: (Pressure if is_open else Flux)(rng.standard_normal(count))
            for side, is_open, count in zip(SIDES, open_sides, counts, strict=True)
        }
    )
    if not any(open_sides):
        outflow = sum(side.sum() for side in side_values(boundary, grid))
        source += (outflow / grid.cell_area - source.sum()) / source.size
    return grid, kappa, source, boundary


problems = st.builds(
    random_problem,
    seed=st.integers(0, 2**32 - 1),
    nx=st.integers(1, 12),
    ny=st.integers(1, 12),
    open_sides=st.tuples(*[st.booleans()] * 4),
    log_contrast=st.floats(0.0, 7.0),
    tensor=st.booleans(),
)


def largest_imbalance(solution, source):
    """Largest cell-wise mass defect, relative to the largest flux."""
    defect = solution.net_outflow - source * solution.grid.cell_area
    return np.abs(defect).max() / np.abs(solution.flux).max()


def relative(found, expected):
    """Largest difference relative to the largest expected value."""
    return np.abs(found - expected).max() / np.abs(expected).max()
