"""The command line, the figures, and what importing the solver loads."""

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from typer.testing import CliRunner

import ridgewalk.darcy
from ridgewalk.cli import app
from ridgewalk.darcy import Grid, karhunen_loeve
from ridgewalk.darcy.datasets import load
from ridgewalk.darcy.plots import draw_sample, sample_panels


def run(*arguments):
    return CliRunner().invoke(app, ["darcy", *map(str, arguments)])


@pytest.fixture(scope="module")
def source_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("commands") / "source.zarr"
    result = run("generate", "source", "--out", path, "--samples", 4, "--size", 20, "--processes", 1)
    assert result.exit_code == 0, result.output
    assert "synthetic channelised field (not SPE10)" in result.output
    return path


def test_permeability_command_reports_energy_and_redraws(tmp_path):
    result = run(
        *("generate", "permeability", "--out", tmp_path / "p.zarr", "--samples", 6, "--size", 16),
        *("--terms", 32, "--kappa-0", 3, "--processes", 1),
    )
    assert result.exit_code == 0, result.output
    lost = 1 - karhunen_loeve(Grid(16, 16), 32).energy
    assert f"32 terms capture all but {lost:.2g} of the field's variance" in result.output
    redraws = int(load(tmp_path / "p.zarr").arrays["redraws"].sum())
    assert redraws > 0
    assert f"{redraws} fields were not positive and were redrawn" in result.output


def test_show_draws_five_labelled_panels(source_file, tmp_path):
    out = tmp_path / "sample.png"
    result = run("show", source_file, "--sample", 2, "--out", out)
    assert result.exit_code == 0, result.output
    picture = imread(out)
    assert picture.shape[0] > 600
    assert picture[..., :3].std() > 0.05
    figure = draw_sample(load(source_file), 2)
    titles = [axes.get_title() for axes in figure.axes]
    for title in ("Permeability (log scale)", "Source", "Pressure", "Velocity magnitude in x"):
        assert title in titles
    assert "synthetic" in figure.get_suptitle()
    assert run("show", source_file, "--out", out).exit_code == 2  # it exists
    assert run("show", source_file, "--out", out, "--overwrite").exit_code == 0


def test_panels_show_the_samples_own_arrays(source_file):
    data = load(source_file)
    panels = sample_panels(data, 3)
    np.testing.assert_array_equal(panels[0].values, data.arrays["permeability"])
    np.testing.assert_array_equal(panels[1].values, data.arrays["source"][3])
    np.testing.assert_array_equal(panels[2].values, data.arrays["pressure"][3])
    flux_x = data.arrays["flux"][3][: 21 * 20].reshape(20, 21)
    np.testing.assert_allclose(panels[3].values[4, 7], abs(flux_x[4, 7] + flux_x[4, 8]) / 2 * 20)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--samples", 0), "--samples 0"),
        (("--block", 9), "--block 9"),
        (("--spread", -1), "--spread -1"),
        (("--permeability", "absent.npy"), "there is no such file"),
        (("--permeability", "absent.dat"), "there is no such file"),
        (("--permeability", "x.npy", "--fetch"), "exclude each other"),
    ],
)
def test_errors_in_plain_words(arguments, message, tmp_path):
    result = run("generate", "source", "--out", tmp_path / "s.zarr", "--size", 20, *arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


def test_existing_output_and_missing_sample(source_file, tmp_path):
    result = run("generate", "source", "--out", source_file)
    assert result.exit_code == 2
    assert "it exists" in result.output
    result = run("show", source_file, "--sample", 4, "--out", tmp_path / "x.png")
    assert result.exit_code == 2
    assert "samples 0 to 3" in result.output


def test_a_field_from_npy(tmp_path):
    np.save(tmp_path / "field.npy", np.random.default_rng(0).uniform(1, 2, (15, 18)))
    result = run(
        *("generate", "source", "--out", tmp_path / "s.zarr", "--samples", 2, "--processes", 1),
        *("--permeability", tmp_path / "field.npy", "--spread", 2, "--spread-is", "standard-deviation"),
    )
    assert result.exit_code == 0, result.output
    data = load(tmp_path / "s.zarr")
    assert (data.grid.ny, data.grid.nx) == (15, 18)
    assert data.attributes["source_variance"] == pytest.approx(4.0)
    for name, content in (("cube.npy", np.ones((2, 2, 2))), ("words.npy", np.array([["a"]]))):
        np.save(tmp_path / name, content)
        result = run("generate", "source", "--out", tmp_path / "t.zarr", "--permeability", tmp_path / name)
        assert result.exit_code == 2
        assert "give a field (ny, nx) of numbers" in result.output


def test_spe10_from_the_shared_file(spe10_npz, layer_53, tmp_path):
    result = run(
        *("generate", "source", "--out", tmp_path / "s.zarr", "--samples", 2, "--processes", 1),
        *("--permeability", spe10_npz),
    )
    assert result.exit_code == 0, result.output
    data = load(tmp_path / "s.zarr")
    assert "SPE10 model 2, k_x of layer 53" in data.attributes["permeability_label"]
    np.testing.assert_allclose(data.arrays["permeability"], np.load(layer_53), rtol=1e-7)


def test_the_solver_loads_neither_plotting_nor_storage():
    code = (
        "import sys, ridgewalk.darcy, ridgewalk.darcy.problems, ridgewalk.darcy.cli;"
        "print([name for name in ('matplotlib', 'zarr', 'pooch', 'skfem') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert result.stdout.strip() == "[]"


def test_figures_do_not_load_pyplot():
    code = "import sys, ridgewalk.darcy.plots; print('matplotlib.pyplot' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert result.stdout.strip() == "False"


def test_darcy_is_a_leaf():
    """No module of `darcy` imports JAX or another part of ridgewalk than the writing of files."""
    for file in Path(ridgewalk.darcy.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}"]
                assert node.level == 0, file
            for name in names:
                assert not name.startswith("jax"), (file, name)
                assert not name.startswith("ridgewalk") or name.startswith(
                    (
                        "ridgewalk.darcy",
                        "ridgewalk._io",
                        "ridgewalk._validation",
                        "ridgewalk._zarr",
                        "ridgewalk._cli_errors",
                    )
                ), (
                    file,
                    name,
                )
