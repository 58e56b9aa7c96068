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

The coarse grid has blocks of fine cells and coarse edges between them; the velocity basis has one or several functions
per coarse edge.

Snapshots. For a coarse edge `E` and each of its fine edges `e`, the local problem in the (at most two) blocks
next to `E` has unit flux through `e`, none through the rest of their boundary, and constant divergence
`±1/|block|`:

`κ⁻¹ ψ + ∇q = 0`, `div ψ = ±1/|block|`, `ψ·n = δ_e / |e|` on `E`.

Chen–Hou. One function per coarse edge: the mean of its snapshots, a uniform unit flux through `E`.

Mixed GMsFEM (Chung, Efendiev and Lee, 2015). Further functions are eigenfunctions, in the span of the
snapshots, of

`∫_E κ⁻¹ (ψ·n)(φ·n) = λ (∫ κ⁻¹ ψ·φ + ∫ div ψ div φ)`,

smallest `λ` first: what is left out of a flux with bounded left-hand norm is at most `1/λ` of it in the
right-hand one. Each is stored less its net flux times Chen–Hou's function. That leaves the span as it is, and
makes Chen–Hou's the only functions that carry net flux and enter mass balance. The spaces are nested; all
functions together span the snapshots.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.linalg import eigh
from scipy.sparse.linalg import splu

from ridgewalk.darcy.grid import SIDES, Array, Boundary, Flux, Grid, OpenSides, SideValues, open_sides, side_values
from ridgewalk.darcy.solver import (
    Factorisation,
    cell_mass,
    check_compatible,
    divergence_matrix,
    edge_numbers,
    factorise,
    grid_of,
    mass_matrix,
    permeability_tensor,
    source_per_cell,
)

Numbers = NDArray[np.int64]


class CoarseEdge(NamedTuple):
    """A coarse edge with unknown flux: the blocks before and after it, and its fine edges.

    `before` is the block on its left or below, `after` the one on its right or above, `None` outside the
    domain; blocks are numbered row by row.
    """

    before: int | None
    after: int | None
    vertical: bool
    fine_edges: Numbers


@dataclass(frozen=True)
class CoarseGrid:
    """`blocks_x × blocks_y` blocks of equally many fine cells."""

    fine: Grid
    blocks_x: int
    blocks_y: int

    def __post_init__(self) -> None:
        for name, cells in (("blocks_x", self.fine.nx), ("blocks_y", self.fine.ny)):
            count = getattr(self, name)
            if count < 1 or cells % count:
                divisors = [number for number in range(1, cells + 1) if cells % number == 0]
                raise ValueError(f"{name} = {count}: must divide the {cells} fine cells, choose from {divisors}")

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return self.blocks_x * self.blocks_y

    @property
    def block_grid(self) -> Grid:
        """The fine grid of one block."""
        return Grid(
            self.fine.nx // self.blocks_x,
            self.fine.ny // self.blocks_y,
            self.fine.width / self.blocks_x,
            self.fine.height / self.blocks_y,
        )

    def cells_of(self, block: int) -> tuple[slice, slice]:
        """Rows and columns of a block's cells."""
        row, column = divmod(block, self.blocks_x)
        local = self.block_grid
        return (
            slice(row * local.ny, (row + 1) * local.ny),
            slice(column * local.nx, (column + 1) * local.nx),
        )

    def edges_of(self, block: int) -> Numbers:
        """Fine-grid numbers of a block's edges, in the order of the block's own grid."""
        number_x, number_y = edge_numbers(self.fine)
        rows, columns = self.cells_of(block)
        return np.concatenate(
            [
                number_x[rows, columns.start : columns.stop + 1].ravel(),
                number_y[rows.start : rows.stop + 1, columns].ravel(),
            ]
        )

    def aggregation(self) -> sparse.csr_array:
        """`R_p`: row `b` sums the cells of block `b`."""
        block_of = np.empty(self.fine.shape, dtype=np.int64)
        for block in range(self.blocks):
            block_of[self.cells_of(block)] = block
        cells = np.arange(self.fine.cells)
        entries = (np.ones(cells.size), (block_of.ravel(), cells))
        return sparse.coo_array(entries, shape=(self.blocks, self.fine.cells)).tocsr()

    def unknown_edges(self, sides: OpenSides) -> list[CoarseEdge]:
        """Coarse edges inside the domain and on sides with a prescribed pressure."""
        number_x, number_y = edge_numbers(self.fine)
        local = self.block_grid
        edges = []
        for row in range(self.blocks_y):
            rows = slice(row * local.ny, (row + 1) * local.ny)
            for column in range(self.blocks_x + 1):
                before = row * self.blocks_x + column - 1 if column > 0 else None
                after = row * self.blocks_x + column if column < self.blocks_x else None
                if (before is not None or sides.left) and (after is not None or sides.right):
                    edges.append(CoarseEdge(before, after, True, number_x[rows, column * local.nx]))
        for row in range(self.blocks_y + 1):
            for column in range(self.blocks_x):
                columns = slice(column * local.nx, (column + 1) * local.nx)
                before = (row - 1) * self.blocks_x + column if row > 0 else None
                after = row * self.blocks_x + column if row < self.blocks_y else None
                if (before is not None or sides.bottom) and (after is not None or sides.top):
                    edges.append(CoarseEdge(before, after, False, number_y[row * local.ny, columns]))
        return edges


CLOSED = Boundary()
INDEPENDENT = 1e-8  # what must remain of a function, less those before it, for it to count


@dataclass(frozen=True, eq=False)
class MultiscaleBasis:
    """Rows of `functions` (`R_u`) are velocity functions on the fine edges, those of a coarse edge together.

    `rank` counts, from 0, a row's place among the functions of its coarse edge. `mass` is the fine `A_h`;
    `block_problems` are the blocks' closed local problems, factored.
    """

    coarse: CoarseGrid
    sides: OpenSides
    edges: list[CoarseEdge]
    functions: sparse.csr_array
    rank: NDArray[np.int64]
    mass: sparse.csr_array
    block_problems: list[Factorisation]

    def truncated(self, per_edge: int) -> "MultiscaleBasis":
        """The basis of the first `per_edge` functions of every coarse edge."""
        if per_edge < 1:
            raise ValueError(f"per_edge = {per_edge}: give at least one function per coarse edge")
        kept = self.rank < per_edge
        return replace(self, functions=self.functions[kept], rank=self.rank[kept])


def multiscale_basis(
    permeability: ArrayLike, boundary: Boundary, blocks: tuple[int, int], per_edge: int | None = 1
) -> MultiscaleBasis:
    """Build `per_edge` functions per coarse edge on `(blocks_x, blocks_y)` blocks of the unit square.

    An edge has at most as many functions as fine edges; then, or with `None`, the basis is complete.
    """
    grid = grid_of(permeability)
    coarse = CoarseGrid(grid, *blocks)
    kappa = np.stack(permeability_tensor(permeability, grid))
    problems = [
        factorise(kappa[(slice(None), *coarse.cells_of(block))], CLOSED, coarse.block_grid)
        for block in range(coarse.blocks)
    ]
    mass = mass_matrix(kappa, grid)
    sides = open_sides(boundary)
    edges = coarse.unknown_edges(sides)
    density = _inverse_permeability_of_edges(kappa, coarse)
    functions, rank = [sparse.csr_array((0, grid.edges))], [np.zeros(0, dtype=np.int64)]
    for edge in edges:
        support, snapshots = _snapshots(edge, coarse, problems)
        neighbours = sum(block is not None for block in (edge.before, edge.after))
        energy = snapshots @ (mass[support][:, support] @ snapshots.T)
        energy += neighbours * coarse.blocks / (grid.width * grid.height)
        chosen = _select(energy, density[edge.fine_edges])
        functions.append(_spread(chosen @ snapshots, support, grid.edges))
        rank.append(np.arange(len(chosen)))
    rows = sparse.vstack(functions, format="csr")
    complete = MultiscaleBasis(coarse, sides, edges, rows, np.concatenate(rank), mass, problems)
    return complete if per_edge is None else complete.truncated(per_edge)


def _snapshots(edge: CoarseEdge, coarse: CoarseGrid, problems: list[Factorisation]) -> tuple[NDArray[np.int64], Array]:
    """The edges of both blocks, and one row per fine edge of the coarse edge: its local solution on them."""
    local = coarse.block_grid
    units = np.eye(edge.fine_edges.size)
    blocks = [(block, outward) for block, outward in ((edge.before, 1.0), (edge.after, -1.0)) if block is not None]
    support = np.unique(np.concatenate([coarse.edges_of(block) for block, _ in blocks]))
    rows = np.zeros((len(units), support.size))
    for block, outward in blocks:
        through = SIDES[(0 if edge.vertical else 2) + (1 if outward > 0 else 0)]
        values = side_values(CLOSED, local)._replace(**{through: outward * units})
        outflow = np.full((len(units), *local.shape), outward / local.cells)
        places = np.searchsorted(support, coarse.edges_of(block))
        rows[:, places] = problems[block].solve_integrated(outflow, values)[0]
    return support, rows


def _spread(rows: Array, support: NDArray[np.int64], edges: int) -> sparse.csr_array:
    """Rows given on a support, as sparse rows on all edges."""
    starts = np.arange(len(rows) + 1) * support.size
    return sparse.csr_array((rows.ravel(), np.tile(support, len(rows)), starts), shape=(len(rows), edges))


def _select(energy: Array, density: Array) -> Array:
    """Coefficients of all functions of an edge, in their order: uniform flux, then spectral of zero net flux.

    `energy` is the right-hand side of the spectral problem on the snapshots, `density` its diagonal left one.
    """
    count = density.size
    kept = [np.full(count, 1.0 / count)]
    for vector in eigh(np.diag(density), energy)[1].T:
        further = vector - vector.mean()
        for former in kept[1:]:
            further = further - (former @ further) * former
        length = np.linalg.norm(further)
        if length > INDEPENDENT * np.linalg.norm(vector) and len(kept) < count:
            further = further / length
            kept.append(further - further.mean())
    return np.array(kept)


def _inverse_permeability_of_edges(kappa: Array, coarse: CoarseGrid) -> Array:
    """`κ⁻¹` on every fine edge, normal to it, as the mean of the cells beside it."""
    mass = cell_mass(kappa, coarse.fine)
    across_x = np.pad(mass.x, ((0, 0), (1, 1)), mode="edge")
    across_y = np.pad(mass.y, ((1, 1), (0, 0)), mode="edge")
    return np.concatenate([(across_x[:, 1:] + across_x[:, :-1]).ravel(), (across_y[1:] + across_y[:-1]).ravel()])


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
