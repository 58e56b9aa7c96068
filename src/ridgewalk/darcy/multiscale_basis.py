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

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.linalg import eigh, null_space

from ridgewalk.darcy.boundary import Boundary, Flux, OpenSides, open_sides
from ridgewalk.darcy.coarse import CoarseEdge, CoarseGrid
from ridgewalk.darcy.grid import Array
from ridgewalk.darcy.mass import cell_mass, mass_matrix, permeability_tensor
from ridgewalk.darcy.solver import Factorisation, factorise, grid_of

CLOSED = Boundary()


@dataclass(frozen=True, eq=False)
class MultiscaleBasis:
    """Rows of `functions` (`R_u`) are velocity functions on the fine edges, `per_edge` of them a coarse edge.

    `mass` is the fine `A_h`; `block_problems` are the blocks' closed local problems, factored.
    """

    coarse: CoarseGrid
    sides: OpenSides
    edges: list[CoarseEdge]
    per_edge: int
    functions: sparse.csr_array
    mass: sparse.csr_array
    block_problems: list[Factorisation]


def multiscale_basis(
    permeability: ArrayLike, boundary: Boundary, blocks: tuple[int, int], per_edge: int = 1
) -> MultiscaleBasis:
    """Build `per_edge` functions per coarse edge on `(blocks_x, blocks_y)` blocks of the unit square.

    An edge has at most as many functions as fine edges; then the basis is complete.
    """
    if per_edge < 1:
        raise ValueError(f"per_edge = {per_edge}: give at least one function per coarse edge")
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
    block_area = coarse.block_grid.width * coarse.block_grid.height
    functions = []
    for edge in edges:
        snapshots = _snapshots(edge, coarse, problems)
        divergence = sum(block is not None for block in (edge.before, edge.after)) / block_area
        chosen = _select(snapshots, mass, density[edge.fine_edges], divergence, per_edge)
        functions.append(sparse.csr_array(chosen @ snapshots))
    rows = sparse.vstack(functions, format="csr") if functions else sparse.csr_array((0, grid.edges))
    return MultiscaleBasis(coarse, sides, edges, per_edge, rows, mass, problems)


def _snapshots(edge: CoarseEdge, coarse: CoarseGrid, problems: list[Factorisation]) -> sparse.csr_array:
    """One row per fine edge of the coarse edge: its local solution in both blocks."""
    local = coarse.block_grid
    area = local.width * local.height
    length = local.hy if edge.vertical else local.hx
    count = edge.fine_edges.size
    rows = np.zeros((count, coarse.fine.edges))
    for block, outward in ((edge.before, 1.0), (edge.after, -1.0)):
        if block is None:
            continue
        side = ("right" if outward > 0 else "left") if edge.vertical else ("top" if outward > 0 else "bottom")
        numbers = coarse.edges_of(block)
        for number, unit in enumerate(np.eye(count)):
            boundary = Boundary(**{side: Flux(outward * unit / length)})
            rows[number, numbers] = problems[block].solve(outward / area, boundary).flux
    return sparse.csr_array(rows)


def _select(
    snapshots: sparse.csr_array, mass: sparse.csr_array, density: Array, divergence: float, per_edge: int
) -> Array:
    """Coefficients of the chosen functions: the uniform flux first, then the spectral ones of zero net flux.

    `divergence` is `∫ (div ψ)²` of a function with unit net flux.
    """
    count = snapshots.shape[0]
    uniform = np.full((1, count), 1.0 / count)
    if per_edge >= count:
        further = null_space(uniform)
    else:
        energy = (snapshots @ mass @ snapshots.T).toarray() + divergence
        further = eigh(np.diag(density), energy)[1][:, : per_edge - 1]
    further = further - further.mean(axis=0)
    return np.concatenate([uniform, further.T])


def _inverse_permeability_of_edges(kappa: Array, coarse: CoarseGrid) -> Array:
    """`κ⁻¹` on every fine edge, normal to it, as the mean of the cells beside it."""
    mass = cell_mass(kappa, coarse.fine)
    across_x = np.pad(mass.x, ((0, 0), (1, 1)), mode="edge")
    across_y = np.pad(mass.y, ((1, 1), (0, 0)), mode="edge")
    return np.concatenate(
        [(across_x[:, 1:] + across_x[:, :-1]).ravel(), (across_y[1:] + across_y[:-1]).ravel()]
    )
