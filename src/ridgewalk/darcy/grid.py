"""The rectangular grid, its edges, and their ordering.

Arrays over cells have shape `(ny, nx)`: row `j` runs upwards in y, column `i` to the right in x, so that
`array[j, i]` belongs to the cell `[i hx, (i+1) hx] × [j hy, (j+1) hy]`.

The velocity's degrees of freedom are the fluxes integrated over an edge, positive in the direction +x or +y
whatever the side of the domain. They are ordered

1. edges normal to x, row by row: index `j (nx+1) + i`, `0 ≤ i ≤ nx`, `0 ≤ j < ny`;
2. edges normal to y, row by row: index `(nx+1) ny + j nx + i`, `0 ≤ i < nx`, `0 ≤ j ≤ ny`.

A grid of 50×50 cells has 2,550 + 2,550 = 5,100 edges.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Grid:
    """`nx × ny` equal rectangles that cover `[0, width] × [0, height]`."""

    nx: int
    ny: int
    width: float = 1.0
    height: float = 1.0

    def __post_init__(self) -> None:
        for name in ("nx", "ny"):
            count = getattr(self, name)
            if count < 1:
                raise ValueError(f"{name} = {count}: a grid needs at least one cell in each direction")
        for name in ("width", "height"):
            length = getattr(self, name)
            if not (np.isfinite(length) and length > 0):
                raise ValueError(f"{name} = {length}: give a positive, finite length")

    @property
    def hx(self) -> float:
        """Width of a cell."""
        return self.width / self.nx

    @property
    def hy(self) -> float:
        """Height of a cell."""
        return self.height / self.ny

    @property
    def cell_area(self) -> float:
        """Area of a cell."""
        return self.hx * self.hy

    @property
    def shape(self) -> tuple[int, int]:
        """Shape `(ny, nx)` of an array over cells."""
        return self.ny, self.nx

    @property
    def shape_x(self) -> tuple[int, int]:
        """Shape of an array over the edges normal to x."""
        return self.ny, self.nx + 1

    @property
    def shape_y(self) -> tuple[int, int]:
        """Shape of an array over the edges normal to y."""
        return self.ny + 1, self.nx

    @property
    def cells(self) -> int:
        """Number of cells."""
        return self.nx * self.ny

    @property
    def edges_x(self) -> int:
        """Number of edges normal to x."""
        return (self.nx + 1) * self.ny

    @property
    def edges(self) -> int:
        """Number of edges, that is of velocity unknowns."""
        return self.edges_x + self.nx * (self.ny + 1)

    @property
    def x_centres(self) -> Array:
        """Abscissae of the cell centres."""
        return _centres(self.nx, self.hx)

    @property
    def y_centres(self) -> Array:
        """Ordinates of the cell centres."""
        return _centres(self.ny, self.hy)


def _centres(count: int, spacing: float) -> Array:
    centres: Array = (np.arange(count, dtype=np.float64) + 0.5) * spacing
    return centres


def join_flux(flux_x: Array, flux_y: Array) -> Array:
    """Put the two families of edge fluxes into one vector `(..., edges)`, in the documented order."""
    leading = flux_x.shape[:-2]
    return np.concatenate([flux_x.reshape(*leading, -1), flux_y.reshape(*leading, -1)], axis=-1)


def split_flux(grid: Grid, flux: Array) -> tuple[Array, Array]:
    """Inverse of `join_flux`: views of shapes `(..., ny, nx+1)` and `(..., ny+1, nx)`."""
    if flux.shape[-1:] != (grid.edges,):
        raise ValueError(
            f"flux has shape {flux.shape}: its last axis must hold the {grid.edges} edges of the "
            f"{grid.nx}×{grid.ny} grid"
        )
    leading = flux.shape[:-1]
    return (
        flux[..., : grid.edges_x].reshape(*leading, *grid.shape_x),
        flux[..., grid.edges_x :].reshape(*leading, *grid.shape_y),
    )


def cell_velocity(grid: Grid, flux: Array) -> tuple[Array, Array]:
    """Velocity `(u_x, u_y)` at the cell centres: there RT0 is the mean of the two opposite edges."""
    flux_x, flux_y = split_flux(grid, flux)
    return (
        0.5 * (flux_x[..., :, 1:] + flux_x[..., :, :-1]) / grid.hy,
        0.5 * (flux_y[..., 1:, :] + flux_y[..., :-1, :]) / grid.hx,
    )


def net_outflow(flux_x: Array, flux_y: Array) -> Array:
    """Net flux out of each cell, `∫_cell div u`."""
    return flux_x[..., :, 1:] - flux_x[..., :, :-1] + flux_y[..., 1:, :] - flux_y[..., :-1, :]
