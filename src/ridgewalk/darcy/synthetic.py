"""A synthetic channelised permeability of high contrast, for use where SPE10 is not at hand.

It is our own and only resembles a fluvial layer: sinuous sand channels (log-normal about 1,000) that run
across a shale background (log-normal about 0.01, smoothly varying). Whoever draws or stores it must call it
`SYNTHETIC`.
"""

import numpy as np
from numpy.typing import NDArray

from ridgewalk.darcy.fields import karhunen_loeve
from ridgewalk.darcy.grid import Array, Grid

SYNTHETIC = "synthetic channelised field (not SPE10)"
SAND, SHALE = 1000.0, 0.01
RANGE = (4e-4, 2e3)


def channelised(grid: Grid, seed: int = 0, channels: int = 4) -> Array:
    """Permeability `(ny, nx)` with values in `[4e-4, 2e3]`, a contrast of up to 5e6 as in SPE10 layer 53."""
    if channels < 0:
        raise ValueError(f"channels = {channels}: give zero or more")
    generator = np.random.default_rng(seed)
    terms = min(64, grid.cells)
    unit = Grid(grid.nx, grid.ny)
    texture = karhunen_loeve(unit, terms, correlation=(0.15, 0.15), variance=1.0)
    fine = generator.standard_normal(grid.shape)
    shale = 1.6 * texture.field(generator.standard_normal(terms)) + 0.4 * fine
    sand = 0.5 * texture.field(generator.standard_normal(terms)) + 0.1 * fine
    log_kappa = np.log(SHALE) + shale
    inside = np.zeros(grid.shape, dtype=bool)
    for number in range(channels):
        inside |= _channel(unit, generator, (number + 0.5) / channels)
    log_kappa[inside] = (np.log(SAND) + sand)[inside]
    kappa: Array = np.clip(np.exp(log_kappa), *RANGE)
    return kappa


def _channel(unit: Grid, generator: np.random.Generator, middle: float) -> NDArray[np.bool_]:
    """Cells of one channel that meanders upwards about `x = middle` and leans to one side."""
    along, across = unit.y_centres[:, None], unit.x_centres[None, :]
    phase = generator.uniform(0, 2 * np.pi, 2)
    size = generator.uniform((0.05, 0.01), (0.10, 0.04))
    waves = generator.uniform((0.8, 2.0), (1.6, 4.0))
    lean = generator.uniform(-0.15, 0.15)
    width = generator.uniform(0.035, 0.055)
    centre = middle + lean * (along - 0.5)
    for amount, count, start in zip(size, waves, phase, strict=True):
        centre = centre + amount * np.sin(2 * np.pi * count * along + start)
    inside: NDArray[np.bool_] = np.abs(across - centre) < width
    return inside
