"""The two families of problems: what is drawn, and that sample i depends on the seed and i alone."""

import numpy as np
import pytest
from darcy_cases import relative

from ridgewalk.darcy import Boundary, Grid, Pressure, solve
from ridgewalk.darcy.fields import SYNTHETIC, channelised, karhunen_loeve
from ridgewalk.darcy.problems import VaryingPermeability, VaryingSource, default_block, three_spot_source

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
