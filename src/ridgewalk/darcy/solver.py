"""Mixed finite elements (RT0–P0) for Darcy flow on a rectangle.

`κ⁻¹ u + ∇p = 0`, `div u = f`; on each side of the domain `u·n` or `p` is prescribed. In matrices, with `A_h`
the mass matrix, `D` the net outflow of cells, `F = ∫f` and `d` the boundary pressures with the outward sign,

`A_h u − Dᵀ p = −d`,  `D u = F`.

The production path writes `u = u_F + C ψ`: `u_F` any flux that balances the source, `C ψ` divergence-free.
Then `Cᵀ A_h C ψ = −Cᵀ (A_h u_F + d)` is small, banded and positive definite, and `p` follows from `A_h u` by
summation. It is the same discrete solution as the saddle-point system's.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ridgewalk.darcy import stream
from ridgewalk.darcy.balance import balancing_flux, check_compatible, walk_pressure
from ridgewalk.darcy.boundary import Boundary, OpenSides, SideValues, open_sides, side_values
from ridgewalk.darcy.grid import Array, Grid, cell_velocity, join_flux, net_outflow, split_flux
from ridgewalk.darcy.mass import CellMass, cell_mass, multiply_mass

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
    solve_stream: stream.Solve
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
        circulation = stream.curl_transpose(force_x, force_y)
        psi = np.zeros_like(circulation)
        rows, columns = self.free
        right = -circulation[..., rows, columns]
        if all(self.sides):
            right[..., 0, 0] = 0.0
        psi[..., rows, columns] = self.solve_stream(right)
        flux_x, flux_y = stream.curl(psi)
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
    largest_band: int = stream.LARGEST_BAND,
) -> Factorisation:
    """Factor the problem of a permeability `(ny, nx)`, or `(2, ny, nx)` for a diagonal tensor.

    Without a `grid` the domain is the unit square, with as many cells as `permeability` has.
    """
    grid = grid_of(permeability) if grid is None else grid
    mass, sides = cell_mass(permeability, grid), open_sides(boundary)
    free = stream.free_vertices(sides, grid.ny, grid.nx)
    stencil = stream.assemble(mass, free)
    solve_stream = stream.factorise(stream.pin_first(stencil) if all(sides) else stencil, largest_band)
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
    grid: Grid, mass: CellMass, sides: OpenSides, free: tuple[slice, slice], solve_stream: stream.Solve
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
    psi[rows, columns] = -solve_stream(stream.curl_transpose(*multiply_mass(mass, *stream.curl(psi)))[rows, columns])
    flux_x, flux_y = stream.curl(psi)
    drop_x, drop_y = multiply_mass(mass, flux_x, flux_y)
    return ThroughFlow(flux_x, flux_y, float((flux_x * drop_x).sum() + (flux_y * drop_y).sum()))
