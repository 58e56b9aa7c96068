"""The multiscale method: mass on blocks, monotone errors, and the fine solution from a complete basis."""

import itertools

import numpy as np
import pytest
from darcy_cases import random_problem, relative
from scipy.linalg import eigh

from ridgewalk.darcy import Boundary, Flux, Grid, Pressure, solve
from ridgewalk.darcy.multiscale import CoarseGrid, energy_error, multiscale_basis, solve_multiscale
from ridgewalk.darcy.plots import draw_multiscale, error_curve
from ridgewalk.darcy.problems import channelised, three_spot_source
from ridgewalk.darcy.solver import divergence_matrix, mass_matrix

FLOW = Boundary(Pressure(1.0), Pressure(0.0))


def unit_square_problem(seed, nx, ny, open_sides):
    return random_problem(seed, nx, ny, open_sides, log_contrast=3.0, unit_square=True)


def block_imbalance(coarse, flux, source):
    """Largest mass defect of a block, relative to the largest flux."""
    sums = coarse.aggregation()
    defect = sums @ (divergence_matrix(coarse.fine) @ flux - source.ravel() * coarse.fine.cell_area)
    return np.abs(defect).max() / np.abs(flux).max()


@pytest.mark.parametrize("open_sides", list(itertools.product((False, True), repeat=4)))
def test_complete_basis_is_the_fine_solution(open_sides):
    grid, kappa, source, boundary = unit_square_problem(8, 9, 8, open_sides)
    fine = solve(kappa, source, boundary, grid)
    basis = multiscale_basis(kappa, boundary, (3, 2), per_edge=4)
    found = solve_multiscale(basis, source, boundary)
    assert relative(found.flux, fine.flux) < 1e-10


@pytest.mark.parametrize("open_sides", [(False,) * 4, (True, True, False, False), (True,) * 4])
@pytest.mark.parametrize("per_edge", [1, 2])
def test_blocks_conserve_mass(open_sides, per_edge):
    _, kappa, source, boundary = unit_square_problem(9, 12, 12, open_sides)
    basis = multiscale_basis(kappa, boundary, (4, 3), per_edge)
    for local_source in (False, True):
        flux = solve_multiscale(basis, source, boundary, local_source).flux
        assert block_imbalance(basis.coarse, flux, source) <= 1e-10
    cells = divergence_matrix(basis.coarse.fine) @ flux
    np.testing.assert_allclose(cells, source.ravel() / 144, atol=1e-11 * np.abs(flux).max())


def test_chen_hou_functions_carry_a_uniform_unit_flux():
    kappa = channelised(Grid(12, 12))
    basis = multiscale_basis(kappa, FLOW, (3, 3))
    assert basis.functions.shape == (len(basis.edges), basis.coarse.fine.edges)
    assert len(basis.edges) == 6 + 6 + 6  # inner vertical, inner horizontal, and two open sides
    divergence = (basis.functions @ divergence_matrix(basis.coarse.fine).T).toarray()
    for edge, function, outflow in zip(basis.edges, basis.functions.toarray(), divergence, strict=True):
        np.testing.assert_allclose(function[edge.fine_edges], 1 / 4, rtol=1e-12)
        blocks = basis.coarse.aggregation() @ outflow
        expected = np.zeros(9)
        expected[[block for block in (edge.before,) if block is not None]] = 1.0
        expected[[block for block in (edge.after,) if block is not None]] = -1.0
        np.testing.assert_allclose(blocks, expected, atol=1e-13)
        inside = outflow.reshape(12, 12)[basis.coarse.cells_of(edge.after if edge.before is None else edge.before)]
        np.testing.assert_allclose(inside, inside[0, 0], rtol=1e-9)


def test_further_functions_are_nested_and_carry_no_net_flux():
    kappa = channelised(Grid(20, 20))
    small, large = (multiscale_basis(kappa, Boundary(), (4, 4), count) for count in (2, 3))
    first, second = small.functions.toarray(), large.functions.toarray()
    for number, edge in enumerate(small.edges):
        np.testing.assert_allclose(second[3 * number : 3 * number + 2], first[2 * number : 2 * number + 2])
        np.testing.assert_allclose(
            second[3 * number + 1 : 3 * number + 3][:, edge.fine_edges].sum(axis=1), 0, atol=1e-12
        )


def test_further_functions_solve_the_spectral_problem():
    """The span of an edge's first functions, found again from the complete basis and fine matrices."""
    grid = Grid(12, 12)
    kappa = np.exp(np.random.default_rng(0).standard_normal(grid.shape))
    small, complete = (multiscale_basis(kappa, FLOW, (3, 3), count) for count in (3, 4))
    outflow = divergence_matrix(grid)
    inverse = 1.0 / kappa
    for number, edge in enumerate(complete.edges):
        functions = complete.functions[4 * number : 4 * number + 4]
        divergence = (outflow @ functions.T).toarray()
        energy = (functions @ complete.mass @ functions.T).toarray()
        energy += divergence.T @ divergence / grid.cell_area
        through = functions[:, edge.fine_edges].toarray()
        cells = np.argwhere(abs(outflow[:, edge.fine_edges]).toarray().T)
        weight = [inverse.ravel()[cells[cells[:, 0] == place, 1]].mean() for place in range(4)]
        on_edge = through @ (np.array(weight)[:, None] * through.T)
        vectors = eigh(on_edge, energy)[1][:, :2]
        expected = np.concatenate([functions.toarray()[:1], vectors.T @ functions.toarray()])
        found = small.functions[3 * number : 3 * number + 3].toarray()
        assert np.linalg.matrix_rank(np.concatenate([expected, found]), rtol=1e-9) == 3


def test_uniform_rock_needs_one_function():
    basis = multiscale_basis(np.ones((12, 12)), FLOW, (3, 3))
    found = solve_multiscale(basis, 0.0, FLOW)
    assert relative(found.flux, solve(np.ones((12, 12)), 0.0, FLOW).flux) < 1e-12
    np.testing.assert_allclose(found.pressure, np.broadcast_to([5 / 6, 1 / 2, 1 / 6], (3, 3)), rtol=1e-12)


@pytest.mark.parametrize("per_edge", [2, 3, None])
def test_symmetric_rock_has_no_dependent_functions(per_edge):
    """In uniform rock some eigenfunctions repeat the uniform flux; they must not enter twice."""
    _, _, source, boundary = unit_square_problem(2, 12, 12, (True, False, True, False))
    basis = multiscale_basis(np.ones((12, 12)), boundary, (3, 3), per_edge)
    assert basis.functions.shape[0] == len(basis.edges) * (per_edge or 4)
    found = solve_multiscale(basis, source, boundary)
    assert block_imbalance(basis.coarse, found.flux, source) <= 1e-10
    exact = solve(np.ones((12, 12)), source, boundary).flux
    one_function = solve_multiscale(basis.truncated(1), source, boundary).flux
    most = 0.95 * energy_error(basis, one_function, exact) if per_edge else 1e-10
    assert energy_error(basis, found.flux, exact) < most


def test_coarse_system_is_the_papers():
    """`A_H u_H + B_Hᵀ p_H = −R_u d` and `B_H u_H = −F_H` hold for what is returned."""
    kappa = channelised(Grid(12, 12))
    basis = multiscale_basis(kappa, Boundary(), (3, 3), 2)
    source = three_spot_source(Grid(12, 12), np.array(3.0), np.array(2.0), 4)  # constant on blocks
    found = solve_multiscale(basis, source, Boundary(), local_source=False)
    r_u, r_p = basis.functions, basis.coarse.aggregation()
    a_h, b_h = mass_matrix(kappa, Grid(12, 12)), -divergence_matrix(Grid(12, 12))
    a_coarse, b_coarse = r_u @ a_h @ r_u.T, r_p @ b_h @ r_u.T
    balance = a_coarse @ found.coefficients
    np.testing.assert_allclose(balance, -b_coarse.T @ found.pressure.ravel(), atol=1e-9 * np.abs(balance).max())
    np.testing.assert_allclose(b_coarse @ found.coefficients, -(r_p @ source.ravel()) / 144, atol=1e-12)
    np.testing.assert_allclose(found.flux, r_u.T @ found.coefficients, atol=1e-14)


@pytest.mark.parametrize("blocks", [5, 10])
def test_error_falls_monotonically_on_layer_53(layer_53, blocks):
    kappa = np.load(layer_53).astype(float)
    grid = Grid(50, 50)
    source = three_spot_source(grid, np.array(10.0), np.array(8.0), 6)
    curve = error_curve(kappa, source, Boundary(), blocks)
    assert np.all(np.diff(curve.errors) < 0), curve.errors
    assert curve.errors[-1] < 1e-10
    assert curve.errors[2] < 0.25 * curve.errors[0]  # three functions are worth having
    exact = solve(kappa, source, Boundary()).flux
    assert relative(curve.fluxes[-1], exact) < 1e-10
    coarse = CoarseGrid(grid, blocks, blocks)
    assert max(block_imbalance(coarse, flux, source) for flux in curve.fluxes) <= 1e-10


def test_figure_names_the_field():
    kappa = channelised(Grid(12, 12))
    source = three_spot_source(Grid(12, 12), np.array(3.0), np.array(2.0), 2)
    curves = [error_curve(kappa, source, Boundary(), blocks) for blocks in (3, 4)]
    figure = draw_multiscale(kappa, source, Boundary(), "synthetic field", curves)
    assert "synthetic field" in figure.get_suptitle()
    assert figure.axes[0].get_yscale() == "log"


def test_bad_input():
    kappa = np.ones((12, 12))
    with pytest.raises(ValueError, match=r"blocks_x = 5: .* \[1, 2, 3, 4, 6, 12\]"):
        multiscale_basis(kappa, FLOW, (5, 3))
    with pytest.raises(ValueError, match="per_edge = 0"):
        multiscale_basis(kappa, FLOW, (3, 3), 0)
    basis = multiscale_basis(kappa, FLOW, (3, 3))
    with pytest.raises(ValueError, match="build it again with this boundary"):
        solve_multiscale(basis, 0.0, Boundary())
    closed = multiscale_basis(kappa, Boundary(), (3, 3))
    with pytest.raises(ValueError, match="incompatible"):
        solve_multiscale(closed, 1.0, Boundary())


def test_one_block_is_the_closed_problem():
    _, kappa, source, _ = unit_square_problem(1, 6, 6, (True, False, False, False))
    source -= source.mean()
    basis = multiscale_basis(kappa, Boundary(), (1, 1))
    assert basis.functions.shape[0] == 0
    exact = solve(kappa, source, Boundary(top=Flux(0.0))).flux
    assert relative(solve_multiscale(basis, source, Boundary()).flux, exact) < 1e-12
    assert energy_error(basis, exact, exact) == 0.0
