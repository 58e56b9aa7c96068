"""The two families of problems: what is drawn, and that sample i depends on the seed and i alone;
Karhunen–Loève fields: eigenpairs, statistics, positivity.
"""

import numpy as np
import pytest
from darcy_cases import relative

from ridgewalk.darcy import Boundary, Grid, Pressure, solve
from ridgewalk.darcy.problems import (
    RANGE,
    SYNTHETIC,
    VaryingPermeability,
    VaryingSource,
    channelised,
    default_block,
    draw_permeability,
    karhunen_loeve,
    three_spot_source,
)

GRID = Grid(12, 10)
SOURCES = VaryingSource(channelised(GRID), SYNTHETIC)
PERMEABILITIES = VaryingPermeability(karhunen_loeve(GRID, 16), kappa_0=4.0)


@pytest.mark.parametrize("problem", [SOURCES, PERMEABILITIES])
def test_a_sample_does_not_depend_on_its_company(problem):
    together = problem.draw(5, range(20))
    alone = problem.draw(5, [13])
    for name, values in alone.items():
        np.testing.assert_array_equal(values[0], together[name][13], err_msg=name)
    other_seed = problem.draw(6, [13])
    assert not np.array_equal(other_seed["flux"], alone["flux"])
    assert len({sample.tobytes() for sample in together["flux"]}) == 20


def test_source_samples_solve_their_problem():
    drawn = SOURCES.draw(0, range(3))
    for source, flux, pressure in zip(drawn["source"], drawn["flux"], drawn["pressure"], strict=True):
        expected = solve(SOURCES.permeability, source, Boundary())
        assert relative(flux, expected.flux) < 1e-14
        assert relative(pressure, expected.pressure) < 1e-14
        assert abs(source.sum()) < 1e-12


def test_permeability_samples_solve_their_problem():
    drawn = PERMEABILITIES.draw(0, range(3))
    for number in range(3):
        expected = solve(drawn["permeability"][number], 1.0, Boundary(Pressure(1.0), Pressure(0.0)))
        np.testing.assert_array_equal(drawn["flux"][number], expected.flux)
        field = PERMEABILITIES.expansion.field(drawn["coefficients"][number])
        np.testing.assert_allclose(drawn["permeability"][number], 4.0 + field, rtol=1e-12)


def test_strengths_are_normal_with_variance_five():
    strength = SOURCES.draw(1, range(3000))["strength"]
    assert strength.mean() == pytest.approx(10.0, abs=4 * np.sqrt(5 / 6000))
    assert strength.var() == pytest.approx(5.0, rel=0.1)
    assert abs(np.corrcoef(strength.T)[0, 1]) < 0.07


def test_three_spots_are_where_they_should_be():
    source = three_spot_source(Grid(50, 50), np.array(3.0), np.array(2.0), 6)
    assert np.all(source[44:, 44:] == 3.0)
    assert np.all(source[:6, :6] == 2.0)
    assert np.all(source[22:28, 22:28] == -5.0)
    assert np.count_nonzero(source) == 3 * 36
    with pytest.raises(ValueError, match=r"block = 17: .* between 1 and 16"):
        three_spot_source(Grid(50, 50), np.array(3.0), np.array(2.0), 17)


@pytest.mark.parametrize(("size", "block"), [(50, 6), (100, 10), (51, 5), (3, 1), (10, 2)])
def test_default_block_is_centred(size, block):
    assert default_block(Grid(size, size)) == block
    assert size < 6 or (size - block) % 2 == 0


def test_negative_deviation():
    with pytest.raises(ValueError, match="deviation = -1"):
        VaryingSource(channelised(GRID), SYNTHETIC, deviation=-1.0)


def full_covariance(grid, correlation, variance):
    x, y = np.meshgrid(grid.x_centres, grid.y_centres)
    x, y = x.ravel(), y.ravel()
    distance_x, distance_y = x[:, None] - x, y[:, None] - y
    return variance * np.exp(-((distance_x / correlation[0]) ** 2) - (distance_y / correlation[1]) ** 2)


def test_eigenpairs_are_those_of_the_full_covariance():
    grid = Grid(12, 9, 1.0, 0.8)
    expansion = karhunen_loeve(grid, 20, (0.2, 0.3), 2.0)
    dense = np.linalg.eigvalsh(full_covariance(grid, (0.2, 0.3), 2.0) * grid.cell_area)[::-1][:20]
    np.testing.assert_allclose(expansion.eigenvalues, dense, rtol=1e-10)
    assert np.all(np.diff(expansion.eigenvalues) <= 0)
    shapes = expansion.modes.reshape(20, -1) / np.sqrt(expansion.eigenvalues)[:, None]
    np.testing.assert_allclose(shapes @ shapes.T * grid.cell_area, np.eye(20), atol=1e-12)


def test_all_terms_reproduce_the_covariance():
    grid = Grid(6, 5)
    expansion = karhunen_loeve(grid, grid.cells, (0.2, 0.3), 2.0)
    modes = expansion.modes.reshape(grid.cells, -1)
    np.testing.assert_allclose(modes.T @ modes, full_covariance(grid, (0.2, 0.3), 2.0), atol=1e-7)
    assert expansion.energy == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize(("terms", "energy"), [(32, 0.98664), (64, 0.99969), (128, 0.9999996)])
def test_energy_captured_at_the_papers_settings(terms, energy):
    assert karhunen_loeve(Grid(50, 50), terms).energy == pytest.approx(energy, abs=1e-5)


def test_eigenvalues_converge_with_the_grid():
    coarse, fine = (karhunen_loeve(Grid(n, n), 10).eigenvalues for n in (50, 200))
    np.testing.assert_allclose(coarse, fine, rtol=5e-3)


def test_sampled_mean_and_variance():
    expansion = karhunen_loeve(Grid(10, 10), 64)
    fields = expansion.field(np.random.default_rng(0).standard_normal((20_000, 64)))
    np.testing.assert_allclose(fields.mean(axis=0), 0.0, atol=0.06)
    np.testing.assert_allclose(fields.var(axis=0), (expansion.modes**2).sum(axis=0), rtol=0.06)
    assert fields.var(axis=0).mean() == pytest.approx(2.0, rel=0.02)


def test_linear_fields_are_redrawn_until_positive():
    expansion = karhunen_loeve(Grid(20, 20), 64)
    drawn = [draw_permeability(expansion, np.random.default_rng(i), kappa_0=3.5) for i in range(40)]
    assert all(np.all(draw.permeability > 0) for draw in drawn)
    assert sum(draw.redraws for draw in drawn) > 0
    for draw in drawn:
        np.testing.assert_allclose(draw.permeability, 3.5 + expansion.field(draw.coefficients))
    assert draw_permeability(expansion, np.random.default_rng(0)).redraws == 0


def test_log_normal_fields_are_positive_without_redraws():
    expansion = karhunen_loeve(Grid(20, 20), 64)
    draw = draw_permeability(expansion, np.random.default_rng(0), "log-normal", kappa_0=2.0)
    assert draw.redraws == 0
    np.testing.assert_allclose(np.log(draw.permeability / 2.0), expansion.field(draw.coefficients), atol=1e-12)


def test_hopeless_mean_is_an_error():
    expansion = karhunen_loeve(Grid(8, 8), 32)
    with pytest.raises(ValueError, match=r"kappa_0 = 1e-09: no positive field in 1001 draws"):
        draw_permeability(expansion, np.random.default_rng(0), kappa_0=1e-9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"terms": 0}, "terms = 0"),
        ({"terms": 26}, "number of cells, 25"),
        ({"terms": 4, "correlation": (0.0, 0.3)}, r"correlation\[0\] = 0.0"),
        ({"terms": 4, "variance": -1.0}, "variance = -1.0"),
    ],
)
def test_bad_expansion(arguments, message):
    with pytest.raises(ValueError, match=message):
        karhunen_loeve(Grid(5, 5), **arguments)


@pytest.mark.parametrize(
    ("form", "kappa_0", "message"), [("cubic", 1.0, "form = 'cubic'"), ("linear", 0.0, "kappa_0 = 0.0")]
)
def test_bad_draw(form, kappa_0, message):
    with pytest.raises(ValueError, match=message):
        draw_permeability(karhunen_loeve(Grid(5, 5), 4), np.random.default_rng(0), form, kappa_0)


def test_synthetic_channels_have_high_contrast_and_a_label():
    kappa = channelised(Grid(50, 50))
    assert kappa.shape == (50, 50)
    assert kappa.min() >= RANGE[0]
    assert kappa.max() <= RANGE[1]
    assert kappa.max() / kappa.min() > 1e5
    channel = kappa > 10
    assert 0.1 < channel.mean() < 0.6
    assert channel[:, :].any(axis=1).all()  # every row is crossed by a channel
    np.testing.assert_array_equal(kappa, channelised(Grid(50, 50)))
    assert not np.array_equal(kappa, channelised(Grid(50, 50), seed=1))
    assert "synthetic" in SYNTHETIC
    with pytest.raises(ValueError, match="channels = -1"):
        channelised(Grid(5, 5), channels=-1)
