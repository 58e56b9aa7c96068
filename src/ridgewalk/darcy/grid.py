"""The rectangular grid, its edges and their ordering, and the boundary conditions on its four sides.

Arrays over cells have shape `(ny, nx)`: row `j` runs upwards in y, column `i` to the right in x, so that
`array[j, i]` belongs to the cell `[i hx, (i+1) hx] × [j hy, (j+1) hy]`.

The velocity's degrees of freedom are the fluxes integrated over an edge, positive in the direction +x or +y
whatever the side of the domain. They are ordered

1. edges normal to x, row by row: index `j (nx+1) + i`, `0 ≤ i ≤ nx`, `0 ≤ j < ny`;
2. edges normal to y, row by row: index `(nx+1) ny + j nx + i`, `0 ≤ i < nx`, `0 ≤ j ≤ ny`.

A grid of 50×50 cells has 2,550 + 2,550 = 5,100 edges.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

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


SIDES = ("left", "right", "bottom", "top")


@dataclass(frozen=True, eq=False)
class Flux:
    """Outward normal flux density `u·n`: one number, or one per edge of the side."""

    value: ArrayLike = 0.0


@dataclass(frozen=True, eq=False)
class Pressure:
    """Pressure `p`: one number, or one per edge of the side."""

    value: ArrayLike = 0.0


Condition = Flux | Pressure


@dataclass(frozen=True, eq=False)
class Boundary:
    """One condition a side; the default is a closed box, `u·n = 0` everywhere.

    Values per edge run with x on `bottom` and `top`, with y on `left` and `right`.
    """

    left: Condition = Flux(0.0)
    right: Condition = Flux(0.0)
    bottom: Condition = Flux(0.0)
    top: Condition = Flux(0.0)

    def __post_init__(self) -> None:
        for side in SIDES:
            condition = getattr(self, side)
            if not isinstance(condition, Flux | Pressure):
                raise ValueError(f"{side} = {condition!r}: give Flux(value) or Pressure(value)")


def boundary_from_mapping(conditions: Mapping[str, Condition]) -> Boundary:
    """Build a boundary from names of sides; a side left out is closed, an unknown one an error."""
    unknown = sorted(set(conditions) - set(SIDES))
    if unknown:
        raise ValueError(f"unknown side {unknown[0]!r}: the sides are {', '.join(SIDES)}")
    return Boundary(**conditions)


class OpenSides(NamedTuple):
    """Which sides have a prescribed pressure, so that flow through them is unknown."""

    left: bool
    right: bool
    bottom: bool
    top: bool


class SideValues(NamedTuple):
    """Per side, one value per edge: outward flux integrated over the edge, or pressure."""

    left: Array
    right: Array
    bottom: Array
    top: Array


def open_sides(boundary: Boundary) -> OpenSides:
    """Tell the sides with a prescribed pressure from those with a prescribed flux."""
    return OpenSides(*(isinstance(getattr(boundary, side), Pressure) for side in SIDES))


def side_values(boundary: Boundary, grid: Grid) -> SideValues:
    """Spread each side's value over its edges, and turn flux densities into integrated fluxes."""
    return SideValues(*(_values_of_side(getattr(boundary, side), side, grid) for side in SIDES))


def _values_of_side(condition: Condition, side: str, grid: Grid) -> Array:
    vertical = side in ("left", "right")
    count, length = (grid.ny, grid.hy) if vertical else (grid.nx, grid.hx)
    scale = length if isinstance(condition, Flux) else 1.0
    if isinstance(condition.value, float) and math.isfinite(condition.value):
        return np.full(count, condition.value * scale)
    value = np.asarray(condition.value, dtype=np.float64)
    if value.shape not in ((), (count,)):
        raise ValueError(
            f"{side} has values of shape {value.shape}: give one number or one for each of its {count} edges"
        )
    if not np.isfinite(value).all():
        raise ValueError(f"{side} holds a value that is not finite: {value[~np.isfinite(value)][:1]}")
    return np.full(count, value * scale)
