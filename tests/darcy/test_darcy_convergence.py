"""Manufactured solutions: first order in L2 for u and p, smooth and discontinuous permeability."""

import numpy as np
import pytest

from ridgewalk.darcy import Boundary, Flux, Grid, Pressure, solve, split_flux

REFINEMENTS = (8, 16, 32, 64, 128)  # four refinements
POINTS, WEIGHTS = np.polynomial.legendre.leggauss(4)


def l2_errors(solution, exact_pressure, exact_velocity):
    """L2 norms of the errors by 4×4 Gauss points a cell, with the RT0 field inside the cells."""
    grid = solution.grid
    flux_x, flux_y = split_flux(grid, solution.flux)
    error_p = error_u = 0.0
    for a, weight_a in zip((POINTS + 1) / 2, WEIGHTS / 2, strict=True):
        for b, weight_b in zip((POINTS + 1) / 2, WEIGHTS / 2, strict=True):
            x = (np.arange(grid.nx) + a)[None, :] * grid.hx
            y = (np.arange(grid.ny) + b)[:, None] * grid.hy
            velocity_x = ((1 - a) * flux_x[:, :-1] + a * flux_x[:, 1:]) / grid.hy
            velocity_y = ((1 - b) * flux_y[:-1] + b * flux_y[1:]) / grid.hx
            exact_x, exact_y = exact_velocity(x, y)
            weight = weight_a * weight_b * grid.cell_area
            error_p += weight * np.sum((solution.pressure - exact_pressure(x, y)) ** 2)
            error_u += weight * np.sum((velocity_x - exact_x) ** 2 + (velocity_y - exact_y) ** 2)
    return np.sqrt(error_p), np.sqrt(error_u)


def rates(run):
    errors = np.array([run(n) for n in REFINEMENTS])
    return np.log2(errors[:-1] / errors[1:])


def smooth_tensor(n):
    """κ = (1 + x/2 + y/3, 2 + cos x), p = sin πx cos πy on [0, 1]×[0, 1.5]; two sides of each kind."""
    grid = Grid(n, n, 1.0, 1.5)
    pi = np.pi
    x, y = grid.x_centres[None, :], grid.y_centres[:, None]

    def kappa_x(x, y):
        return 1 + x / 2 + y / 3

    def kappa_y(x, y):
        return 2 + np.cos(x) + 0 * y

    def pressure(x, y):
        return np.sin(pi * x) * np.cos(pi * y)

    def velocity(x, y):
        return (
            -kappa_x(x, y) * pi * np.cos(pi * x) * np.cos(pi * y),
            kappa_y(x, y) * pi * np.sin(pi * x) * np.sin(pi * y),
        )

    source = (
        -0.5 * pi * np.cos(pi * x) * np.cos(pi * y)
        + kappa_x(x, y) * pi**2 * np.sin(pi * x) * np.cos(pi * y)
        + kappa_y(x, y) * pi**2 * np.sin(pi * x) * np.cos(pi * y)
    )
    edge_x, edge_y = grid.x_centres, grid.y_centres
    boundary = Boundary(
        left=Flux(-velocity(0.0, edge_y)[0]),
        right=Pressure(pressure(1.0, edge_y)),
        bottom=Pressure(pressure(edge_x, 0.0)),
        top=Flux(velocity(edge_x, 1.5)[1]),
    )
    kappa = np.stack([kappa_x(x, y), kappa_y(x, y)])
    return l2_errors(solve(kappa, source, boundary, grid), pressure, velocity)


def two_rocks(n):
    """κ = 1 left of x = 1/2 and 1000 right of it; p continuous, flux continuous, ∂p/∂x jumps.

    With `g(x) = (x − 1/2) + (x − 1/2)²`, `p = g cos πy / κ`: p = 0 at the interface and `κ ∂p/∂x = cos πy` on
    both sides.
    """
    grid = Grid(n, n)
    pi = np.pi

    def kappa(x, y):
        return np.where(x < 0.5, 1.0, 1000.0) + 0 * y

    def profile(x):
        return (x - 0.5) + (x - 0.5) ** 2

    def pressure(x, y):
        return profile(x) * np.cos(pi * y) / kappa(x, y)

    def velocity(x, y):
        return -(2 * x) * np.cos(pi * y), pi * profile(x) * np.sin(pi * y)

    x, y = grid.x_centres[None, :], grid.y_centres[:, None]
    source = -2 * np.cos(pi * y) + pi**2 * profile(x) * np.cos(pi * y)
    edge_y = grid.y_centres
    boundary = Boundary(left=Pressure(pressure(0.0, edge_y)), right=Pressure(pressure(1.0, edge_y)))
    return l2_errors(solve(kappa(x, y), source, boundary, grid), pressure, velocity)


def closed_box(n):
    """Pure flux: p = cos πx cos πy has mean zero, κ = exp(x − y)."""
    grid = Grid(n, n)
    pi = np.pi

    def kappa(x, y):
        return np.exp(x - y)

    def pressure(x, y):
        return np.cos(pi * x) * np.cos(pi * y)

    def velocity(x, y):
        return (
            kappa(x, y) * pi * np.sin(pi * x) * np.cos(pi * y),
            kappa(x, y) * pi * np.cos(pi * x) * np.sin(pi * y),
        )

    x, y = grid.x_centres[None, :], grid.y_centres[:, None]
    velocity_x, velocity_y = velocity(x, y)
    source = velocity_x - velocity_y + 2 * pi**2 * kappa(x, y) * np.cos(pi * x) * np.cos(pi * y)
    source -= source.mean()  # the midpoint rule leaves O(h²)
    return l2_errors(solve(kappa(x, y), source, Boundary(), grid), pressure, velocity)


@pytest.mark.parametrize("problem", [smooth_tensor, two_rocks, closed_box])
def test_first_order_in_l2(problem):
    found = rates(problem)
    assert found.shape == (4, 2)
    assert np.all(found >= 0.95), found
