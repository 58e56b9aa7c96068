"""Mixed finite elements (RT0–P0) for Darcy flow on a rectangle.

`κ⁻¹ u + ∇p = 0`, `div u = f`; on each side of the domain `u·n` or `p` is prescribed. In matrices, with `A_h`
the mass matrix, `D` the net outflow of cells, `F = ∫f` and `d` the boundary pressures with the outward sign,

`A_h u − Dᵀ p = −d`,  `D u = F`.

The production path writes `u = u_F + C ψ`: `u_F` any flux that balances the source, `C ψ` divergence-free.
Then `Cᵀ A_h C ψ = −Cᵀ (A_h u_F + d)` is small, banded and positive definite, and `p` follows from `A_h u` by
summation. It is the same discrete solution as the saddle-point system's, in at most an eighth of the time that
scikit-fem takes for it (`benchmarks/darcy.py`).

**Mass matrix** `∫ κ⁻¹ u·v`, cell by cell and as a sparse matrix. In a cell the velocity's x-component runs linearly
from `F_w/hy` to `F_e/hy`, hence

`∫_cell κ_x⁻¹ u_x² = a_x (2 F_w² + 2 F_w F_e + 2 F_e²)`, `a_x = hx / (6 hy κ_x)`,

so the cell's matrix on `(F_w, F_e)` is `a_x [[2, 1], [1, 2]]`, and likewise in y. Nothing is lumped.

**Balance.** Fluxes that balance the source, and pressures that balance the fluxes, are running sums over the grid. A
flux with `div u = f` and the prescribed boundary fluxes is not unique: any one will do, because the stream function
supplies the rest. The pressure is: on an inner edge `(A_h u)_e` is the pressure drop across it, so a walk over the
cells gives `p`, from a side where it is known or, in a closed box, up to its mean.

**Stream function.** On a rectangle every divergence-free RT0 field is `curl ψ` with `ψ` one number per vertex:

`F_x[j, i] = ψ[j+1, i] − ψ[j, i]`,  `F_y[j, i] = ψ[j, i] − ψ[j, i+1]`.

Hence `K = Cᵀ A_h C`, the matrix of the saddle-point problem reduced to that space, is symmetric positive
definite, has half as many unknowns as there are edges, and couples a vertex with its 8 neighbours only. Mass
balance holds by construction, whatever the contrast. `K` is factored in band form along the shorter direction
for small grids, by sparse LU without pivoting for large ones.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.linalg.lapack import dpbtrf, dpbtrs
from scipy.sparse.linalg import splu

from ridgewalk.darcy.grid import (
    Array,
    Boundary,
    Grid,
    OpenSides,
    SideValues,
    cell_velocity,
    join_flux,
    net_outflow,
    open_sides,
    side_values,
    split_flux,
)


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


def check_compatible(source: Array, sides: OpenSides, values: SideValues) -> Array:
    """In a closed box, insist on `∫f = ∮ u·n` and spread what rounding leaves; `source` is `∫_cell f`."""
    if any(sides):
        return source
    total_source = source.sum(axis=(-2, -1))
    prescribed = np.concatenate(values)
    outflow = prescribed.sum()
    size = np.abs(source).sum(axis=(-2, -1)) + np.abs(prescribed).sum()
    mismatch = total_source - outflow
    wrong = np.abs(mismatch) > 1e-12 * size
    if np.any(wrong):
        first = np.broadcast_to(total_source, wrong.shape)[wrong][0]
        raise ValueError(
            f"source and boundary fluxes are incompatible: ∫f = {first:.10g} but ∮u·n = {outflow:.10g}; "
            "with the flux prescribed on all four sides they must be equal (or prescribe a pressure on one)"
        )
    balanced: Array = source - (mismatch / (source.shape[-1] * source.shape[-2]))[..., None, None]
    return balanced


def balancing_flux(source: Array, sides: OpenSides, values: SideValues) -> tuple[Array, Array]:
    """Some flux with the given net outflow `source` of every cell and the prescribed boundary fluxes."""
    *leading, ny, nx = source.shape
    flux_x, flux_y = np.zeros((*leading, ny, nx + 1)), np.zeros((*leading, ny + 1, nx))
    flux_x[..., :, 0] = 0.0 if sides.left else -values.left
    flux_x[..., :, -1] = 0.0 if sides.right else values.right
    flux_y[..., 0, :] = 0.0 if sides.bottom else -values.bottom
    flux_y[..., -1, :] = 0.0 if sides.top else values.top
    if sides.left or sides.right:
        _sweep(flux_x, source - (flux_y[..., 1:, :] - flux_y[..., :-1, :]), forward=sides.right)
    elif sides.bottom or sides.top:
        excess = source - (flux_x[..., :, 1:] - flux_x[..., :, :-1])
        _sweep(flux_y.swapaxes(-1, -2), excess.swapaxes(-1, -2), forward=sides.top)
    else:
        excess = source - (flux_y[..., 1:, :] - flux_y[..., :-1, :])
        flux_x[..., :, 1:-1] = flux_x[..., :, :1] + np.cumsum(excess, axis=-1)[..., :, :-1]
        # What a row cannot place is handed up along the last column; compatibility closes the last cell.
        surplus = source[..., :, -1] - (flux_x[..., :, -1] - flux_x[..., :, -2])
        flux_y[..., 1:-1, -1] = flux_y[..., :1, -1] + np.cumsum(surplus, axis=-1)[..., :-1]
    return flux_x, flux_y


def _sweep(flux: Array, excess: Array, forward: bool) -> None:
    """Fill `flux` along its last axis so that each cell sends on what it receives and produces."""
    if forward:
        flux[..., 1:] = flux[..., :1] + np.cumsum(excess, axis=-1)
    else:
        flux[..., :-1] = flux[..., -1:] - np.cumsum(excess[..., ::-1], axis=-1)[..., ::-1]


def walk_pressure(drop_x: Array, drop_y: Array, sides: OpenSides, values: SideValues) -> Array:
    """Cell pressures from the pressure drops `A_h u` over the edges."""
    if sides.left:
        return values.left[:, None] - np.cumsum(drop_x[..., :, :-1], axis=-1)
    if sides.right:
        return values.right[:, None] + np.cumsum(drop_x[..., :, :0:-1], axis=-1)[..., :, ::-1]
    if sides.bottom:
        return values.bottom - np.cumsum(drop_y[..., :-1, :], axis=-2)
    if sides.top:
        return values.top + np.cumsum(drop_y[..., :0:-1, :], axis=-2)[..., ::-1, :]
    pressure = np.zeros((*drop_x.shape[:-1], drop_y.shape[-1]))
    pressure[..., 1:, 0] = -np.cumsum(drop_y[..., 1:-1, 0], axis=-1)
    pressure[..., :, 1:] = pressure[..., :, :1] - np.cumsum(drop_x[..., :, 1:-1], axis=-1)
    pressure -= pressure.mean(axis=(-2, -1), keepdims=True)
    return pressure


LARGEST_BAND = 160  # beyond this many unknowns a line, sparse LU is faster (benchmarks/darcy.py)

Solve = Callable[[Array], Array]


def curl(stream: Array) -> tuple[Array, Array]:
    """Fluxes `C ψ` of a stream function `(..., ny+1, nx+1)`."""
    return stream[..., 1:, :] - stream[..., :-1, :], stream[..., :, :-1] - stream[..., :, 1:]


def curl_transpose(edge_x: Array, edge_y: Array) -> Array:
    """`Cᵀ g`: the circulation of `g` around every vertex."""
    out = np.zeros((*edge_x.shape[:-2], edge_y.shape[-2], edge_x.shape[-1]))
    out[..., 1:, :] = edge_x
    out[..., :-1, :] -= edge_x
    out[..., :, :-1] += edge_y
    out[..., :, 1:] -= edge_y
    return out


def free_vertices(sides: OpenSides, ny: int, nx: int) -> tuple[slice, slice]:
    """The rectangle of vertices where `ψ` is unknown: those on no side with a prescribed flux."""
    return (
        slice(0 if sides.bottom else 1, ny + 1 if sides.top else ny),
        slice(0 if sides.left else 1, nx + 1 if sides.right else nx),
    )


class Stencil(NamedTuple):
    """Entries of `K` on a rectangle of vertices: the diagonal and the couplings to four neighbours."""

    centre: Array
    east: Array  # (j, i) with (j, i+1)
    north: Array  # (j, i) with (j+1, i)
    north_east: Array  # (j, i) with (j+1, i+1)
    north_west: Array  # (j, i+1) with (j+1, i)


def assemble(mass: CellMass, free: tuple[slice, slice]) -> Stencil:
    """Sum the cells' matrices `a_x [[2,1],[1,2]] ⊗ [[1,−1],[−1,1]]` (and the same in y) into stencils."""
    ny, nx = mass.x.shape
    centre = np.zeros((ny + 1, nx + 1))
    corner = 2.0 * (mass.x + mass.y)
    for j in (slice(None, -1), slice(1, None)):
        for i in (slice(None, -1), slice(1, None)):
            centre[j, i] += corner
    east = np.zeros((ny + 1, nx))
    along_x = mass.x - 2.0 * mass.y
    east[:-1] = along_x
    east[1:] += along_x
    north = np.zeros((ny, nx + 1))
    along_y = mass.y - 2.0 * mass.x
    north[:, :-1] = along_y
    north[:, 1:] += along_y
    diagonal = -(mass.x + mass.y)
    rows, columns = free
    inner_rows, inner_columns = slice(rows.start, rows.stop - 1), slice(columns.start, columns.stop - 1)
    inner = diagonal[inner_rows, inner_columns]
    return Stencil(centre[rows, columns], east[rows, inner_columns], north[inner_rows, columns], inner, inner)


def pin_first(stencil: Stencil) -> Stencil:
    """Fix `ψ = 0` at the first vertex: with four open sides `ψ` is known only up to a constant."""
    pinned = Stencil(*(part.copy() for part in stencil))
    pinned.centre[0, 0] = 1.0
    pinned.east[0, 0] = pinned.north[0, 0] = pinned.north_east[0, 0] = 0.0
    return pinned


def factorise_stencil(stencil: Stencil, largest_band: int = LARGEST_BAND) -> Solve:
    """Factor `K` once; the result maps right-hand sides `(..., rows, columns)` to stream functions."""
    rows, columns = stencil.centre.shape
    if rows < columns:
        flipped = Stencil(stencil.centre.T, stencil.north.T, stencil.east.T, stencil.north_east.T, stencil.north_west.T)
        solve_flipped = factorise_stencil(flipped, largest_band)
        return lambda right: solve_flipped(right.swapaxes(-1, -2)).swapaxes(-1, -2)
    if columns == 0:
        return np.zeros_like
    solve_lines = _factorise_band(stencil) if columns <= largest_band else _factorise_sparse(stencil)

    def solve(right: Array) -> Array:
        leading = right.shape[:-2]
        flat = right.reshape(-1, rows * columns)
        return np.ascontiguousarray(solve_lines(flat.T).T).reshape(*leading, rows, columns)

    return solve


def _factorise_band(stencil: Stencil) -> Solve:
    rows, columns = stencil.centre.shape
    width = columns + 1  # the farthest neighbour is one line and one vertex away
    band = np.zeros((rows, columns, width + 1))  # [j, i, k] couples the vertex with the one k later
    band[:, :, 0] = stencil.centre
    band[:, :-1, 1] += stencil.east
    band[:-1, :, columns] += stencil.north
    band[:-1, :-1, columns + 1] += stencil.north_east
    band[:-1, 1:, columns - 1] += stencil.north_west
    lower, failed = dpbtrf(band.reshape(-1, width + 1).T, lower=1, overwrite_ab=1)
    if failed:
        raise ValueError(
            f"permeability: the system is not positive definite in double precision (pivot {failed}); "
            "its contrast is too large, clip it"
        )
    upper = _as_upper_band(lower)

    def solve(right: Array) -> Array:
        solution: Array = dpbtrs(upper, right, lower=0)[0]
        return solution

    return solve


def _as_upper_band(lower: Array) -> Array:
    """The transposed factor in upper band form.

    LAPACK factors the lower form faster and, up to a width of 64, without BLAS threads, which on a busy
    machine can make one factorisation take seconds; it solves with the upper form faster. Entry `[k, c]`
    moves to `[width − k, c + k]`, in memory from `c (width+1) + k` to `c (width+1) + k width + width`: one
    copy with other strides, and some room beyond the last column.
    """
    width, count = lower.shape[0] - 1, lower.shape[1]
    room = np.zeros((count + width) * (width + 1))
    size = room.itemsize
    places = as_strided(room[width:], (count, width + 1), (size * (width + 1), size * width))
    places[:] = lower.T
    return room[: count * (width + 1)].reshape(count, width + 1).T


def _factorise_sparse(stencil: Stencil) -> Solve:
    rows, columns = stencil.centre.shape
    number = np.arange(rows * columns).reshape(rows, columns)
    couplings = (
        (number[:, :-1], number[:, 1:], stencil.east),
        (number[:-1, :], number[1:, :], stencil.north),
        (number[:-1, :-1], number[1:, 1:], stencil.north_east),
        (number[:-1, 1:], number[1:, :-1], stencil.north_west),
    )
    first = np.concatenate([pair[0].ravel() for pair in couplings])
    second = np.concatenate([pair[1].ravel() for pair in couplings])
    value = np.concatenate([pair[2].ravel() for pair in couplings])
    diagonal = number.ravel()
    matrix = sparse.coo_array(
        (
            np.concatenate([stencil.centre.ravel(), value, value]),
            (np.concatenate([diagonal, first, second]), np.concatenate([diagonal, second, first])),
        )
    ).tocsc()
    factor = splu(matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
    return lambda right: factor.solve(np.ascontiguousarray(right))


SAMPLES_AT_ONCE = 8  # sources solved together: enough to share overheads, few enough to stay in the cache


@dataclass(frozen=True, eq=False)
class Solution:
    """Edge fluxes (ordering: `ridgewalk.darcy.grid`) and cell pressures; leading axes are samples."""

    grid: Grid
    flux: Array
    pressure: Array

    @property
    def velocity(self) -> tuple[Array, Array]:
        """Velocity `(u_x, u_y)` at the cell centres, for plots."""
        return cell_velocity(self.grid, self.flux)

    @property
    def net_outflow(self) -> Array:
        """Net flux out of every cell, equal to `∫f` over it."""
        return net_outflow(*split_flux(self.grid, self.flux))


@dataclass(frozen=True, eq=False)
class ThroughFlow:
    """A flux `w` from one open side to the other, when closed sides separate them; `energy = wᵀ A_h w`."""

    flux_x: Array
    flux_y: Array
    energy: float


@dataclass(frozen=True, eq=False)
class Factorisation:
    """A permeability and the kind of its boundary conditions, factored: cheap to solve for new sources."""

    grid: Grid
    mass: CellMass
    sides: OpenSides
    free: tuple[slice, slice]
    solve_stream: Solve
    through_flow: ThroughFlow | None

    def solve(self, source: ArrayLike, boundary: Boundary, refinements: int = 1) -> Solution:
        """Solve for source densities `(ny, nx)` or `(samples, ny, nx)` and the boundary's values.

        `refinements` is the number of steps of iterative refinement, which remove most of the rounding that
        a high contrast leaves in `ψ`.
        """
        if open_sides(boundary) != self.sides:
            raise ValueError(
                f"boundary has pressure on {open_sides(boundary)}, but the factorisation was made for "
                f"{self.sides}: factorise again with this boundary"
            )
        values = side_values(boundary, self.grid)
        outflow = source_per_cell(source, self.grid) * self.grid.cell_area
        outflow = check_compatible(outflow, self.sides, values)
        if outflow.ndim == 2:
            return Solution(self.grid, *self.solve_integrated(outflow, values, refinements))
        leading = outflow.shape[:-2]
        outflow = outflow.reshape(-1, *self.grid.shape)
        flux, pressure = np.empty((len(outflow), self.grid.edges)), np.empty_like(outflow)
        for start in range(0, len(outflow), SAMPLES_AT_ONCE):
            some = slice(start, start + SAMPLES_AT_ONCE)
            flux[some], pressure[some] = self.solve_integrated(outflow[some], values, refinements)
        return Solution(self.grid, flux.reshape(*leading, -1), pressure.reshape(*leading, *self.grid.shape))

    def solve_integrated(self, outflow: Array, values: SideValues, refinements: int = 1) -> tuple[Array, Array]:
        """Edge fluxes and cell pressures, without checks, for the net outflow of cells and values of edges.

        Both may have a leading axis over samples; here each sample may have its own boundary values.
        """
        flux_x, flux_y = balancing_flux(outflow, self.sides, values)
        for _ in range(1 + refinements):
            force_x, force_y = self._force(flux_x, flux_y, values)
            correction_x, correction_y = self._divergence_free(force_x, force_y)
            flux_x += correction_x
            flux_y += correction_y
        drops = multiply_mass(self.mass, flux_x, flux_y)
        return join_flux(flux_x, flux_y), walk_pressure(*drops, self.sides, values)

    def _force(self, flux_x: Array, flux_y: Array, values: SideValues) -> tuple[Array, Array]:
        """`A_h u + d`, the derivative of the energy that the flux minimises."""
        force_x, force_y = multiply_mass(self.mass, flux_x, flux_y)
        if self.sides.left:
            force_x[..., :, 0] -= values.left
        if self.sides.right:
            force_x[..., :, -1] += values.right
        if self.sides.bottom:
            force_y[..., 0, :] -= values.bottom
        if self.sides.top:
            force_y[..., -1, :] += values.top
        return force_x, force_y

    def _divergence_free(self, force_x: Array, force_y: Array) -> tuple[Array, Array]:
        """The divergence-free flux `C ψ`, closed where it has to be, with `Cᵀ(A_h C ψ + force) = 0`."""
        circulation = curl_transpose(force_x, force_y)
        psi = np.zeros_like(circulation)
        rows, columns = self.free
        right = -circulation[..., rows, columns]
        if all(self.sides):
            right[..., 0, 0] = 0.0
        psi[..., rows, columns] = self.solve_stream(right)
        flux_x, flux_y = curl(psi)
        if self.through_flow is not None:
            mode = self.through_flow
            work = (force_x * mode.flux_x).sum(axis=(-2, -1)) + (force_y * mode.flux_y).sum(axis=(-2, -1))
            amount = (-work / mode.energy)[..., None, None]
            flux_x += amount * mode.flux_x
            flux_y += amount * mode.flux_y
        return flux_x, flux_y


def factorise(
    permeability: ArrayLike,
    boundary: Boundary,
    grid: Grid | None = None,
    largest_band: int = LARGEST_BAND,
) -> Factorisation:
    """Factor the problem of a permeability `(ny, nx)`, or `(2, ny, nx)` for a diagonal tensor.

    Without a `grid` the domain is the unit square, with as many cells as `permeability` has.
    """
    grid = grid_of(permeability) if grid is None else grid
    mass, sides = cell_mass(permeability, grid), open_sides(boundary)
    free = free_vertices(sides, grid.ny, grid.nx)
    stencil = assemble(mass, free)
    solve_stream = factorise_stencil(pin_first(stencil) if all(sides) else stencil, largest_band)
    return Factorisation(grid, mass, sides, free, solve_stream, _through_flow(grid, mass, sides, free, solve_stream))


def solve(permeability: ArrayLike, source: ArrayLike, boundary: Boundary, grid: Grid | None = None) -> Solution:
    """Solve one Darcy problem; for many sources with one permeability keep `factorise`'s result."""
    return factorise(permeability, boundary, grid).solve(source, boundary)


def grid_of(permeability: ArrayLike) -> Grid:
    """The grid of the unit square that fits a permeability array."""
    shape = np.shape(permeability)
    if len(shape) not in (2, 3):
        raise ValueError(
            f"permeability has shape {shape}: give (ny, nx), or (2, ny, nx) for a diagonal tensor (κ_x, κ_y)"
        )
    return Grid(nx=shape[-1], ny=shape[-2])


def source_per_cell(source: ArrayLike, grid: Grid) -> Array:
    """Check a source density, one number or one per cell, with any leading axes for samples."""
    density = np.asarray(source, dtype=np.float64)
    if density.ndim == 0:
        density = np.full(grid.shape, float(density))
    if density.shape[-2:] != grid.shape:
        raise ValueError(f"source has shape {density.shape}: its last axes must be (ny, nx) = {grid.shape}")
    if not np.all(np.isfinite(density)):
        raise ValueError("source holds values that are not finite: give a finite density for every cell")
    return density


def _through_flow(
    grid: Grid, mass: CellMass, sides: OpenSides, free: tuple[slice, slice], solve_stream: Solve
) -> ThroughFlow | None:
    """With two opposite sides open and two closed, `ψ` on one closed side is unknown: the mode it adds.

    The mode is `A_h`-orthogonal to the curls of the free vertices, so its amount follows independently.
    """
    psi = np.zeros((grid.ny + 1, grid.nx + 1))
    if sides == (True, True, False, False):
        psi[-1, :] = 1.0
    elif sides == (False, False, True, True):
        psi[:, -1] = 1.0
    else:
        return None
    rows, columns = free
    psi[rows, columns] = -solve_stream(curl_transpose(*multiply_mass(mass, *curl(psi)))[rows, columns])
    flux_x, flux_y = curl(psi)
    drop_x, drop_y = multiply_mass(mass, flux_x, flux_y)
    return ThroughFlow(flux_x, flux_y, float((flux_x * drop_x).sum() + (flux_y * drop_y).sum()))
