"""Velocity basis of the mixed multiscale method, one or several functions per coarse edge.

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

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.linalg import eigh

from ridgewalk.darcy.boundary import SIDES, Boundary, OpenSides, open_sides, side_values
from ridgewalk.darcy.coarse import CoarseEdge, CoarseGrid
from ridgewalk.darcy.grid import Array
from ridgewalk.darcy.mass import cell_mass, mass_matrix, permeability_tensor
from ridgewalk.darcy.solver import Factorisation, factorise, grid_of

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
