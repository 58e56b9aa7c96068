"""Wrong input is refused with a message that names the argument, the value and the fix."""

import numpy as np
import pytest

from ridgewalk.darcy import (
    Boundary,
    Flux,
    Grid,
    Pressure,
    boundary_from_mapping,
    factorise,
    solve,
    split_flux,
)

GOOD = np.ones((3, 4))
FLOW = Boundary(left=Pressure(1.0))


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_permeability_must_be_positive_and_finite(bad):
    kappa = GOOD.copy()
    kappa[1, 2] = bad
    with pytest.raises(ValueError, match=r"permeability\[1, 2\] = .*positive, finite"):
        solve(kappa, 1.0, FLOW)


@pytest.mark.parametrize("shape", [(4, 3), (3, 3, 4), (12,), (1, 3, 4)])
def test_permeability_must_fit_the_grid(shape):
    with pytest.raises(ValueError, match=r"permeability has shape .*\(3, 4\)"):
        solve(np.ones(shape), 1.0, FLOW, Grid(nx=4, ny=3))


def test_permeability_needs_two_axes():
    with pytest.raises(ValueError, match=r"permeability has shape \(5,\)"):
        solve(np.ones(5), 1.0, FLOW)


def test_incompatible_fluxes_are_named_with_both_numbers():
    with pytest.raises(ValueError, match=r"∫f = 2 but ∮u·n = 0\.75"):
        solve(GOOD, 2.0, Boundary(top=Flux(0.75)))


def test_one_incompatible_sample_among_many():
    sources = np.zeros((3, 3, 4))
    sources[1] = 5.0
    with pytest.raises(ValueError, match="∫f = 5 but"):
        factorise(GOOD, Boundary()).solve(sources, Boundary())


@pytest.mark.parametrize("counts", [(0, 3), (3, 0), (-1, 2)])
def test_a_grid_needs_cells(counts):
    with pytest.raises(ValueError, match="at least one cell"):
        Grid(*counts)


def test_an_array_without_cells():
    with pytest.raises(ValueError, match="at least one cell"):
        solve(np.ones((0, 4)), 1.0, FLOW)


@pytest.mark.parametrize("length", [0.0, -1.0, np.nan])
def test_a_grid_needs_a_size(length):
    with pytest.raises(ValueError, match="positive, finite length"):
        Grid(2, 2, width=length)


def test_unknown_side():
    with pytest.raises(ValueError, match="unknown side 'north': the sides are left, right, bottom, top"):
        boundary_from_mapping({"north": Flux(0.0)})


def test_known_sides():
    boundary = boundary_from_mapping({"left": Pressure(2.0)})
    assert isinstance(boundary.left, Pressure)
    assert isinstance(boundary.top, Flux)


def test_condition_must_say_what_it_prescribes():
    with pytest.raises(ValueError, match=r"left = 1\.0: give Flux\(value\) or Pressure\(value\)"):
        Boundary(left=1.0)


def test_values_per_edge_must_fit_the_side():
    with pytest.raises(ValueError, match=r"left has values of shape \(4,\).*3 edges"):
        solve(GOOD, 1.0, Boundary(left=Pressure(np.ones(4))))


def test_boundary_values_must_be_finite():
    with pytest.raises(ValueError, match="left holds a value that is not finite"):
        solve(GOOD, 1.0, Boundary(left=Pressure(np.nan)))


def test_source_must_fit_and_be_finite():
    with pytest.raises(ValueError, match="source has shape"):
        solve(GOOD, np.ones((4, 3)), FLOW)
    with pytest.raises(ValueError, match="source holds values that are not finite"):
        solve(GOOD, np.full((3, 4), np.nan), FLOW)


def test_a_factorisation_belongs_to_its_kind_of_boundary():
    with pytest.raises(ValueError, match="factorise again"):
        factorise(GOOD, FLOW).solve(0.0, Boundary())


def test_flux_vector_must_fit_the_grid():
    with pytest.raises(ValueError, match="31 edges"):
        split_flux(Grid(4, 3), np.ones(30))
