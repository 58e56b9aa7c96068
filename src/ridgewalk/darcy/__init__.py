"""Darcy flow on a rectangle: mixed finite elements, multiscale basis, random fields, SPE10, data sets.

`κ⁻¹ u + ∇p = 0`, `div u = f`: the ground truth of the paper's section "Solutions of Elliptic PDE". Start with
`solve(permeability, source, boundary)`; `factorise` once for many sources. The ordering of the edge fluxes is
documented in `ridgewalk.darcy.grid`. Data sets and figures live in `ridgewalk.darcy.dataset` and
`ridgewalk.darcy.plots`, which load zarr and matplotlib only when imported.
"""

from ridgewalk.darcy.boundary import Boundary, Condition, Flux, Pressure, boundary_from_mapping
from ridgewalk.darcy.grid import Grid, cell_velocity, join_flux, split_flux
from ridgewalk.darcy.solver import Factorisation, Solution, factorise, solve

__all__ = [
    "Boundary",
    "Condition",
    "Factorisation",
    "Flux",
    "Grid",
    "Pressure",
    "Solution",
    "boundary_from_mapping",
    "cell_velocity",
    "factorise",
    "join_flux",
    "solve",
    "split_flux",
]
