"""The solver against scikit-fem, and what must hold whatever the problem."""

import itertools

import numpy as np
import pytest
from darcy_cases import largest_imbalance, problems, random_problem, relative
from hypothesis import given, settings

from ridgewalk.darcy import Boundary, Flux, Grid, Pressure, factorise, solve
from ridgewalk.darcy.problems import channelised, three_spot_source
from ridgewalk.darcy.solver import cell_mass, divergence_matrix, mass_matrix, multiply_mass
from scikit_fem_darcy import assemble_and_solve, prepare

ALL_KINDS = list(itertools.product((False, True), repeat=4))


@pytest.mark.parametrize("open_sides", ALL_KINDS)
@pytest.mark.parametrize("size", [(7, 5), (4, 9)])
def test_agrees_with_scikit_fem(size, open_sides):
    grid, kappa, source, boundary = random_problem(7, *size, open_sides)
    reference = assemble_and_solve(prepare(grid), kappa, source, boundary)
    found = solve(kappa, source, boundary, grid)
    assert relative(found.flux, reference.flux) < 1e-10
    assert relative(found.pressure, reference.pressure) < 1e-10


@pytest.mark.parametrize(
    "open_sides", [(True, True, False, False), (False,) * 4, (True,) * 4, (False, True, True, False)]
)
def test_agrees_with_scikit_fem_on_fifty_by_fifty(open_sides):
    grid, kappa, source, boundary = random_problem(3, 50, 50, open_sides, log_contrast=4.0)
    reference = assemble_and_solve(prepare(grid), kappa, source, boundary)
    found = solve(kappa, source, boundary, grid)
    assert found.flux.shape == (5100,)
    assert relative(found.flux, reference.flux) < 1e-10
    assert relative(found.pressure, reference.pressure) < 1e-10


@settings(max_examples=60)
@given(problems.filter(lambda problem: problem[1].max() < 100 * problem[1].min()))
def test_agrees_with_scikit_fem_on_random_problems(problem):
    grid, kappa, source, boundary = problem
    reference = assemble_and_solve(prepare(grid), kappa, source, boundary)
    found = solve(kappa, source, boundary, grid)
    assert relative(found.flux, reference.flux) < 1e-10
    assert np.abs(found.pressure - reference.pressure).max() < 1e-10 * max(np.abs(reference.pressure).max(), 1e-3)


def test_agrees_with_scikit_fem_at_high_contrast():
    """At contrast 5e6 `spsolve` alone is 3e-10 off; refined it keeps 2e-11, because pressures cancel."""
    grid = Grid(50, 50)
    kappa = channelised(grid)
    assert kappa.max() / kappa.min() > 1e6
    source = three_spot_source(grid, np.array(10.0), np.array(8.0), 6)
    reference = assemble_and_solve(prepare(grid), kappa, source, Boundary(), refinements=2)
    found = solve(kappa, source, Boundary())
    assert relative(found.flux, reference.flux) < 1e-10
    assert relative(found.pressure, reference.pressure) < 1e-10


@pytest.mark.parametrize("size", [(1, 1), (1, 4), (4, 1), (2, 2), (1, 2)])
@pytest.mark.parametrize("open_sides", ALL_KINDS)
def test_smallest_grids_satisfy_both_equations(size, open_sides):
    grid, kappa, source, boundary = random_problem(11, *size, open_sides)
    solution = solve(kappa, source, boundary, grid)
    reference = assemble_and_solve(prepare(grid), kappa, source, boundary)
    np.testing.assert_allclose(solution.flux, reference.flux, atol=1e-12 * np.abs(reference.flux).max())
    np.testing.assert_allclose(solution.pressure, reference.pressure, rtol=1e-10, atol=1e-12)


@settings(max_examples=200)
@given(problems)
def test_mass_balances_in_every_cell(problem):
    grid, kappa, source, boundary = problem
    assert largest_imbalance(solve(kappa, source, boundary, grid), source) <= 1e-10


@settings(max_examples=60)
@given(problems)
def test_sparse_and_band_factorisations_agree(problem):
    grid, kappa, source, boundary = problem
    band = factorise(kappa, boundary, grid, largest_band=1000).solve(source, boundary)
    lu = factorise(kappa, boundary, grid, largest_band=0).solve(source, boundary)
    assert relative(lu.flux, band.flux) < 1e-9
    assert np.abs(lu.pressure - band.pressure).max() < 1e-9 * (np.abs(band.pressure).max() + 1e-9)


@pytest.mark.parametrize("open_sides", [(True, False, False, False), (False, True, True, True)])
def test_solution_satisfies_the_saddle_point_system(open_sides):
    grid, kappa, source, _ = random_problem(5, 6, 8, open_sides)
    zero_values = Boundary(*(Pressure(0.0) if is_open else Flux(0.0) for is_open in open_sides))
    solution = solve(kappa, source, zero_values, grid)
    drop = mass_matrix(kappa, grid) @ solution.flux
    pressure = divergence_matrix(grid).T @ solution.pressure.ravel()
    closed = np.zeros(grid.edges, dtype=bool)
    closed[: grid.edges_x].reshape(grid.shape_x)[:, 0] = not open_sides[0]
    closed[: grid.edges_x].reshape(grid.shape_x)[:, -1] = not open_sides[1]
    closed[grid.edges_x :].reshape(grid.shape_y)[0] = not open_sides[2]
    closed[grid.edges_x :].reshape(grid.shape_y)[-1] = not open_sides[3]
    np.testing.assert_allclose(drop[~closed], pressure[~closed], atol=1e-12 * np.abs(drop).max())
    assert np.all(solution.flux[closed] == 0.0)


def test_matrix_free_mass_is_the_matrix():
    grid = Grid(4, 3, 2.0, 0.5)
    rng = np.random.default_rng(0)
    kappa, flux = rng.uniform(1, 2, (2, 3, 4)), rng.standard_normal(grid.edges)
    flux_x, flux_y = flux[: grid.edges_x].reshape(grid.shape_x), flux[grid.edges_x :].reshape(grid.shape_y)
    product = np.concatenate([part.ravel() for part in multiply_mass(cell_mass(kappa, grid), flux_x, flux_y)])
    np.testing.assert_allclose(product, mass_matrix(kappa, grid) @ flux, rtol=1e-13)


def test_uniform_flow_along_x_is_exact():
    grid = Grid(5, 4, width=2.0, height=1.0)
    solution = solve(np.full(grid.shape, 3.0), 0.0, Boundary(Pressure(1.0), Pressure(0.0)), grid)
    velocity_x, velocity_y = solution.velocity
    np.testing.assert_allclose(velocity_x, 1.5, rtol=1e-13)
    np.testing.assert_allclose(velocity_y, 0.0, atol=1e-13)
    pressure = np.broadcast_to(1 - grid.x_centres / 2, grid.shape)
    np.testing.assert_allclose(solution.pressure, pressure, rtol=1e-13)


def test_uniform_flow_along_y_is_exact():
    grid = Grid(5, 4, width=2.0, height=0.5)
    kappa = np.stack([np.full(grid.shape, 7.0), np.full(grid.shape, 3.0)])
    solution = solve(kappa, 0.0, Boundary(bottom=Flux(-1.5), top=Pressure(2.0)), grid)
    velocity_x, velocity_y = solution.velocity
    np.testing.assert_allclose(velocity_x, 0.0, atol=1e-13)
    np.testing.assert_allclose(velocity_y, 1.5, rtol=1e-13)
    pressure = 2.0 + (0.5 - grid.y_centres[:, None]) * 1.5 / 3.0
    np.testing.assert_allclose(solution.pressure, np.broadcast_to(pressure, grid.shape), rtol=1e-13)


def test_many_sources_at_once_equal_one_at_a_time():
    grid, kappa, _, boundary = random_problem(2, 6, 5, (False, True, False, True))
    sources = np.random.default_rng(0).standard_normal((3, 2, *grid.shape))
    factored = factorise(kappa, boundary, grid)
    together = factored.solve(sources, boundary)
    for index in np.ndindex(3, 2):
        alone = factored.solve(sources[index], boundary)
        np.testing.assert_array_equal(together.flux[index], alone.flux)
        np.testing.assert_array_equal(together.pressure[index], alone.pressure)


def test_closed_box_has_zero_mean_pressure():
    grid, kappa, source, boundary = random_problem(4, 8, 8, (False,) * 4)
    pressure = solve(kappa, source, boundary, grid).pressure
    assert abs(pressure.mean()) < 1e-13 * np.abs(pressure).max()


def test_spe10_layers_balance_mass(spe10_npz):
    layers = np.load(spe10_npz)["kx_millidarcy"].astype(float)
    for layer in (0, 35, 52, 84):
        kappa = layers[:, :, layer].T
        for boundary in (Boundary(), Boundary(Pressure(1.0), Pressure(0.0)), Boundary(top=Pressure(0.0))):
            source = np.zeros(kappa.shape)
            source[:6, :6], source[-6:, -6:], source[100:106, 27:33] = 10.0, 8.0, -18.0
            assert largest_imbalance(solve(kappa, source, boundary), source) <= 1e-10


def test_layer_53_agrees_with_scikit_fem(layer_53):
    kappa = np.load(layer_53).astype(float)
    assert 1e6 < kappa.max() / kappa.min() < 1e7
    source = np.zeros(kappa.shape)
    source[:6, :6], source[-6:, -6:], source[22:28, 22:28] = 10.0, 8.0, -18.0
    reference = assemble_and_solve(prepare(Grid(50, 50)), kappa, source, Boundary())
    found = solve(kappa, source, Boundary())
    assert relative(found.flux, reference.flux) < 1e-10
    assert relative(found.pressure, reference.pressure) < 1e-10
    assert largest_imbalance(found, source) <= 1e-10
