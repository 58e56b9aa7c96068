"""The reference: the same RT0–P0 problem assembled by scikit-fem and solved by a sparse direct solver."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import spsolve
from skfem import Basis, BilinearForm, ElementQuad0, ElementQuadRT0, LinearForm, MeshQuad
from skfem.helpers import div

from ridgewalk.darcy.grid import Array, Boundary, Grid, OpenSides, SideValues, open_sides, side_values
from ridgewalk.darcy.solver import Solution, edge_numbers, permeability_tensor


@dataclass(frozen=True, eq=False)
class Reference:
    """Mesh, bases, and for each edge and cell of the grid the number and sign of scikit-fem's unknown."""

    grid: Grid
    velocity: Any
    pressure: Any
    edge_dof: Any
    edge_sign: Array
    cell_dof: Any
    cell_of_element: Any


@BilinearForm  # type: ignore[untyped-decorator]
def weighted_mass(u: Any, v: Any, w: Any) -> Any:
    return w.inverse_x * u[0] * v[0] + w.inverse_y * u[1] * v[1]


@BilinearForm  # type: ignore[untyped-decorator]
def outflow(u: Any, q: Any, w: Any) -> Any:
    return div(u) * q


@LinearForm  # type: ignore[untyped-decorator]
def sum_of_components(v: Any, w: Any) -> Any:
    return v[0] + v[1]


def prepare(grid: Grid) -> Reference:
    """Match scikit-fem's numbering and orientation with the grid's."""
    x, y = np.linspace(0, grid.width, grid.nx + 1), np.linspace(0, grid.height, grid.ny + 1)
    mesh = MeshQuad.init_tensor(x, y)
    velocity = Basis(mesh, ElementQuadRT0(), intorder=2)
    pressure = velocity.with_element(ElementQuad0())
    middle = mesh.p[:, mesh.facets].mean(axis=1)
    vertical = np.ptp(mesh.p[0][mesh.facets], axis=0) < 1e-9 * grid.hx
    column = np.floor(middle[0] / grid.hx + 1e-6).astype(int)
    row = np.floor(middle[1] / grid.hy + 1e-6).astype(int)
    edge = np.where(vertical, row * (grid.nx + 1) + column, grid.edges_x + row * grid.nx + column)
    edge_dof = velocity.facet_dofs[0][np.argsort(edge)]
    centre = mesh.p[:, mesh.t].mean(axis=1)
    cell = np.floor(centre[1] / grid.hy).astype(int) * grid.nx + np.floor(centre[0] / grid.hx).astype(int)
    # A basis function points along its edge's normal: the sign of its integral is its orientation.
    edge_sign = np.sign(sum_of_components.assemble(velocity))[edge_dof]
    cell_dof = pressure.interior_dofs[0][np.argsort(cell)]
    return Reference(grid, velocity, pressure, edge_dof, edge_sign, cell_dof, cell)


def assemble_and_solve(
    reference: Reference, permeability: Array, source: Array, boundary: Boundary, refinements: int = 0
) -> Solution:
    """Assemble the saddle-point system `A u − Dᵀp = −d`, `D u = F` and solve it with `spsolve`.

    At a contrast of 5e6 `spsolve` loses digits (3e-10 of the largest flux); `refinements` gets some back.
    """
    grid, sides = reference.grid, open_sides(boundary)
    values = side_values(boundary, grid)
    inverse_x, inverse_y = (
        (1.0 / kappa.ravel()[reference.cell_of_element])[:, None] for kappa in permeability_tensor(permeability, grid)
    )
    mass = weighted_mass.assemble(reference.velocity, inverse_x=inverse_x, inverse_y=inverse_y)
    divergence = outflow.assemble(reference.velocity, reference.pressure)
    matrix = sparse.bmat([[mass, -divergence.T], [divergence, None]], format="csr")
    flux, force, known = _boundary_data(grid, sides, values)
    right = np.zeros(matrix.shape[0])
    solution = np.zeros(matrix.shape[0])
    right[reference.edge_dof] = -force * reference.edge_sign
    right[grid.edges + reference.cell_dof] = source.ravel() * grid.cell_area
    solution[reference.edge_dof] = flux * reference.edge_sign
    unknown = np.ones(matrix.shape[0], dtype=bool)
    unknown[reference.edge_dof[known]] = False
    if not any(sides):
        unknown[-1] = False  # the pressure is known only up to a constant
    right -= matrix @ solution
    reduced = matrix[unknown][:, unknown].tocsc()
    found = spsolve(reduced, right[unknown])
    for _ in range(refinements):
        found += spsolve(reduced, right[unknown] - reduced @ found)
    solution[unknown] = found
    pressure = solution[grid.edges + reference.cell_dof].reshape(grid.shape)
    if not any(sides):
        pressure = pressure - pressure.mean()
    return Solution(grid, solution[reference.edge_dof] * reference.edge_sign, pressure)


def _boundary_data(grid: Grid, sides: OpenSides, values: SideValues) -> tuple[Array, Array, Any]:
    """Prescribed fluxes, the force of prescribed pressures, and the edges whose flux is known."""
    flux, force, known = np.zeros(grid.edges), np.zeros(grid.edges), np.zeros(grid.edges, dtype=bool)
    number_x, number_y = edge_numbers(grid)
    edges = (number_x[:, 0], number_x[:, -1], number_y[0], number_y[-1])
    for edge, is_open, value, outward in zip(edges, sides, values, (-1.0, 1.0, -1.0, 1.0), strict=True):
        if is_open:
            force[edge] = outward * value
        else:
            flux[edge], known[edge] = outward * value, True
    return flux, force, known
