"""The mixed multiscale method: a coarse system whose solution is downscaled by the basis.

With the fine matrices of `κ⁻¹u + ∇p = 0`, `div u = f` and the rows of `R_u` the basis, `R_p` the sums over
blocks,

`A_H = R_u A_h R_uᵀ`,  `B_H = R_p B_h R_uᵀ`,  `A_H u_H + B_Hᵀ p_H = −R_u d`,  `B_H u_H = −F_H`,

and `u_ms = R_uᵀ u_H`, as in the paper. (`B_h` is minus the net outflow of cells; `d` holds boundary
pressures.)

The basis has constant divergence in a block, so the source's variation inside blocks is lost. With
`local_source` the blocks' own closed solutions for `f − mean(f)` are added; then `div u_ms = f` in every fine
cell, the error falls with every added function, and with all of them `u_ms` is the fine solution. Prescribed
boundary fluxes enter the same way.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.sparse.linalg import splu

from ridgewalk.darcy.balance import check_compatible
from ridgewalk.darcy.boundary import SIDES, Boundary, Flux, SideValues, open_sides, side_values
from ridgewalk.darcy.coarse import CoarseGrid
from ridgewalk.darcy.grid import Array, Grid
from ridgewalk.darcy.mass import divergence_matrix, edge_numbers
from ridgewalk.darcy.multiscale_basis import MultiscaleBasis
from ridgewalk.darcy.solver import source_per_cell


@dataclass(frozen=True, eq=False)
class MultiscaleSolution:
    """Downscaled flux on the fine edges, pressure per block, and the coefficients of the basis."""

    coarse: CoarseGrid
    flux: Array
    pressure: Array
    coefficients: Array


def solve_multiscale(
    basis: MultiscaleBasis, source: ArrayLike, boundary: Boundary, local_source: bool = True
) -> MultiscaleSolution:
    """Solve the coarse system for a source density per fine cell and downscale the velocity."""
    if open_sides(boundary) != basis.sides:
        raise ValueError(
            f"boundary has pressure on {open_sides(boundary)}, but the basis was built for {basis.sides}: "
            "build it again with this boundary"
        )
    coarse = basis.coarse
    grid = coarse.fine
    values = side_values(boundary, grid)
    outflow = check_compatible(source_per_cell(source, grid) * grid.cell_area, basis.sides, values)
    lift = _block_solutions(basis, outflow / grid.cell_area, values, local_source)
    net = coarse.aggregation() @ divergence_matrix(grid)
    to_blocks = coarse.aggregation() @ outflow.ravel()
    force = basis.functions @ (basis.mass @ lift + _pressure_force(basis, values))
    coefficients, pressure = _solve_saddle(
        (basis.functions @ basis.mass @ basis.functions.T).tocsr(),
        (net @ basis.functions.T).tocsr(),
        -force,
        to_blocks - net @ lift,
        closed=not any(basis.sides),
    )
    flux = lift + basis.functions.T @ coefficients
    return MultiscaleSolution(coarse, flux, pressure.reshape(coarse.blocks_y, coarse.blocks_x), coefficients)


def energy_error(basis: MultiscaleBasis, flux: Array, exact: Array) -> float:
    """Relative error in the energy norm, `‖u − u_h‖_A / ‖u_h‖_A` with `A = A_h`."""
    difference = flux - exact
    return float(np.sqrt((difference @ (basis.mass @ difference)) / (exact @ (basis.mass @ exact))))


def _block_solutions(basis: MultiscaleBasis, density: Array, values: SideValues, local_source: bool) -> Array:
    """Flux of the blocks' closed problems: prescribed boundary fluxes, and the source less its mean."""
    coarse = basis.coarse
    flux = np.zeros(coarse.fine.edges)
    for block, problem in enumerate(basis.block_problems):
        boundary, outflow = _block_boundary(basis, block, values)
        inside = density[coarse.cells_of(block)]
        area = problem.grid.width * problem.grid.height
        varying = inside - inside.mean() if local_source else np.zeros_like(inside)
        flux[coarse.edges_of(block)] += problem.solve(varying + outflow / area, boundary).flux
    return flux


def _block_boundary(basis: MultiscaleBasis, block: int, values: SideValues) -> tuple[Boundary, float]:
    """A block's share of the prescribed fluxes, as a boundary, and their sum."""
    coarse = basis.coarse
    rows, columns = coarse.cells_of(block)
    touches = (
        columns.start == 0,
        columns.stop == coarse.fine.nx,
        rows.start == 0,
        rows.stop == coarse.fine.ny,
    )
    local, conditions, total = coarse.block_grid, {}, 0.0
    for side, at_side, is_open, of_side in zip(SIDES, touches, basis.sides, values, strict=True):
        if at_side and not is_open:
            vertical = side in ("left", "right")
            share = of_side[rows if vertical else columns]
            conditions[side] = Flux(share / (local.hy if vertical else local.hx))
            total += float(share.sum())
    return Boundary(**conditions), total


def _pressure_force(basis: MultiscaleBasis, values: SideValues) -> Array:
    """`d`: prescribed pressures on their edges, with the sign of the outward normal."""
    grid: Grid = basis.coarse.fine
    number_x, number_y = edge_numbers(grid)
    force = np.zeros(grid.edges)
    of_sides = (number_x[:, 0], number_x[:, -1], number_y[0], number_y[-1])
    for numbers, sign, is_open, of_side in zip(of_sides, (-1, 1, -1, 1), basis.sides, values, strict=True):
        if is_open:
            force[numbers] = sign * of_side
    return force


def _solve_saddle(
    energy: sparse.csr_array, net: sparse.csr_array, force: Array, outflow: Array, *, closed: bool
) -> tuple[Array, Array]:
    """Solve `A_H u − Nᵀ p = force`, `N u = outflow` (`N = −B_H`), functions scaled to unit energy.

    In a closed box one block's pressure is set to zero and its balance, the sum of the others, left out; the
    mean is removed afterwards. One step of iterative refinement repairs what scaling does not.
    """
    functions, blocks = energy.shape[0], net.shape[0]
    if functions == 0:
        return np.zeros(0), np.zeros(blocks)
    kept = blocks - 1 if closed else blocks
    scale = 1.0 / np.sqrt(energy.diagonal())
    scaled = sparse.diags_array(scale)
    scaled_net = (net @ scaled)[:kept]
    matrix = sparse.block_array([[scaled @ energy @ scaled, -scaled_net.T], [scaled_net, None]], format="csc")
    right = np.concatenate([scale * force, outflow[:kept]])
    factor = splu(matrix)
    solution = factor.solve(right)
    solution += factor.solve(right - matrix @ solution)
    pressure = np.zeros(blocks)
    pressure[:kept] = solution[functions:]
    return scale * solution[:functions], pressure - pressure.mean() if closed else pressure
