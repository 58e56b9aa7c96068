"""The RT0 mass matrix `∫ κ⁻¹ u·v` and divergence, cell by cell and as sparse matrices.

In a cell the velocity's x-component runs linearly from `F_w/hy` to `F_e/hy`, hence

`∫_cell κ_x⁻¹ u_x² = a_x (2 F_w² + 2 F_w F_e + 2 F_e²)`, `a_x = hx / (6 hy κ_x)`,

so the cell's matrix on `(F_w, F_e)` is `a_x [[2, 1], [1, 2]]`, and likewise in y. Nothing is lumped.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from ridgewalk.darcy.grid import Array, Grid


class CellMass(NamedTuple):
    """The coefficients `a_x = hx/(6 hy κ_x)` and `a_y = hy/(6 hx κ_y)` of every cell."""

    x: Array
    y: Array


def permeability_tensor(permeability: ArrayLike, grid: Grid) -> tuple[Array, Array]:
    """Check `κ` (per cell, or two per cell: `κ_x`, `κ_y`) and return both components."""
    kappa = np.asarray(permeability, dtype=np.float64)
    if kappa.shape not in (grid.shape, (2, *grid.shape)):
        raise ValueError(
            f"permeability has shape {kappa.shape}: give (ny, nx) = {grid.shape}, "
            f"or {(2, *grid.shape)} for a diagonal tensor (κ_x, κ_y)"
        )
    bad = ~(np.isfinite(kappa) & (kappa > 0))
    if bad.any():
        where = tuple(int(index) for index in np.argwhere(bad)[0])
        raise ValueError(
            f"permeability{list(where)} = {kappa[where]} ({int(bad.sum())} such values): "
            "every cell needs a positive, finite permeability"
        )
    return (kappa, kappa) if kappa.ndim == 2 else (kappa[0], kappa[1])


def cell_mass(permeability: ArrayLike, grid: Grid) -> CellMass:
    """Mass coefficients of every cell."""
    kappa_x, kappa_y = permeability_tensor(permeability, grid)
    ratio = grid.hx / (6.0 * grid.hy)
    return CellMass(ratio / kappa_x, 1.0 / (36.0 * ratio * kappa_y))


def multiply_mass(mass: CellMass, flux_x: Array, flux_y: Array) -> tuple[Array, Array]:
    """Return `A_h u` for the two families of edges, without a matrix."""
    out_x, out_y = np.empty_like(flux_x), np.empty_like(flux_y)
    _multiply_lines(mass.x, flux_x, out_x)
    _multiply_lines(mass.y.T, flux_y.swapaxes(-1, -2), out_y.swapaxes(-1, -2))
    return out_x, out_y


def _multiply_lines(mass: Array, flux: Array, out: Array) -> None:
    """Put `a (2 F_w + F_e)` and `a (F_w + 2 F_e)` of every cell into its two edges, along the last axis."""
    low = mass * flux[..., :-1]
    high = mass * flux[..., 1:]
    both = low + high
    low += both
    high += both
    out[..., 0] = low[..., 0]
    np.add(low[..., 1:], high[..., :-1], out=out[..., 1:-1])
    out[..., -1] = high[..., -1]


def edge_numbers(grid: Grid) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Index of every edge, as arrays of the shapes of the two families."""
    numbers = np.arange(grid.edges, dtype=np.int64)
    return (
        numbers[: grid.edges_x].reshape(grid.shape_x),
        numbers[grid.edges_x :].reshape(grid.shape_y),
    )


def mass_matrix(permeability: ArrayLike, grid: Grid) -> sparse.csr_array:
    """Sparse `A_h` on all edges."""
    mass = cell_mass(permeability, grid)
    number_x, number_y = edge_numbers(grid)
    rows, columns, values = [], [], []
    pairs = (
        (number_x[:, :-1], number_x[:, 1:], mass.x),
        (number_y[:-1, :], number_y[1:, :], mass.y),
    )
    for low, high, weight in pairs:
        for row, column, factor in ((low, low, 2.0), (high, high, 2.0), (low, high, 1.0), (high, low, 1.0)):
            rows.append(row.ravel())
            columns.append(column.ravel())
            values.append(factor * weight.ravel())
    entries = (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns)))
    return sparse.coo_array(entries, shape=(grid.edges, grid.edges)).tocsr()


def divergence_matrix(grid: Grid) -> sparse.csr_array:
    """Sparse `D` with `(D u)_c = ∫_c div u`; the paper's `B_h` is `−D`."""
    number_x, number_y = edge_numbers(grid)
    cells = np.arange(grid.cells)
    ends = (
        (number_x[:, :-1], -1.0),
        (number_x[:, 1:], 1.0),
        (number_y[:-1, :], -1.0),
        (number_y[1:, :], 1.0),
    )
    rows = np.tile(cells, 4)
    columns = np.concatenate([numbers.ravel() for numbers, _ in ends])
    values = np.repeat([sign for _, sign in ends], grid.cells)
    return sparse.coo_array((values, (rows, columns)), shape=(grid.cells, grid.edges)).tocsr()
