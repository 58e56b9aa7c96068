"""Darcy flow on a rectangle: mixed finite elements, multiscale basis, random fields, SPE10, data sets.

`κ⁻¹ u + ∇p = 0`, `div u = f`: the ground truth of the paper's section "Solutions of Elliptic PDE". Start with
`solve(permeability, source, boundary)`; `factorise` once for many sources. The ordering of the edge fluxes is
documented in `ridgewalk.darcy.grid`. Data sets (`ridgewalk.darcy.datasets`, `ridgewalk.darcy.datasets`) and
figures (`ridgewalk.darcy.plots`) are not imported here: they load zarr and matplotlib.
"""

from ridgewalk.darcy.grid import (
    Boundary,
    Condition,
    Flux,
    Grid,
    Pressure,
    boundary_from_mapping,
    cell_velocity,
    join_flux,
    split_flux,
)
from ridgewalk.darcy.multiscale import (
    MultiscaleBasis,
    MultiscaleSolution,
    energy_error,
    multiscale_basis,
    solve_multiscale,
)
from ridgewalk.darcy.problems import (
    KarhunenLoeve,
    VaryingPermeability,
    VaryingSource,
    channelised,
    draw_permeability,
    karhunen_loeve,
)
from ridgewalk.darcy.solver import Factorisation, Solution, factorise, solve
from ridgewalk.darcy.spe10 import fetch_spe10, read_spe10, sample_layer

__all__ = [
    "Boundary",
    "Condition",
    "Factorisation",
    "Flux",
    "Grid",
    "KarhunenLoeve",
    "MultiscaleBasis",
    "MultiscaleSolution",
    "Pressure",
    "Solution",
    "VaryingPermeability",
    "VaryingSource",
    "boundary_from_mapping",
    "cell_velocity",
    "channelised",
    "draw_permeability",
    "energy_error",
    "factorise",
    "fetch_spe10",
    "join_flux",
    "karhunen_loeve",
    "multiscale_basis",
    "read_spe10",
    "sample_layer",
    "solve",
    "solve_multiscale",
    "split_flux",
]
