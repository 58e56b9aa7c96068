"""The command line on the user's own arrays: from a file to a model to predictions to scores, and errors in words."""

import json

import numpy as np
import pytest
import xarray as xr
import zarr
from tests.neural.fits import waves
from typer.testing import CliRunner

import ridgewalk as rw
from ridgewalk.cli import app
from ridgewalk.surrogates.files_of_arrays import read_examples

TINY = [
    "--chains",
    "2",
    "--optimiser-steps",
    "200",
    "--learning-rate",
    "0.02",
    "--steps",
    "24",
    "--burn-in",
    "8",
    "--draws",
    "8",
]


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("commands")
    x, y = waves()
    np.savez(folder / "data.npz", X=x, Y=y, labels=np.array(["a"] * 60), objects=np.array([None] * 60))
    np.savez(folder / "test.npz", X=waves(seed=1)[0], Y=waves(seed=1)[1])
    bad = x.copy()
    bad[[2, 5]] = np.nan
    np.savez(folder / "bad.npz", X=bad, Y=y, short=y[:5], wide=np.ones((60, 4)))
    xr.Dataset({"X": (("n", "i"), x), "Y": (("n", "o"), y)}).to_netcdf(folder / "data.nc", engine="h5netcdf")
    group = zarr.create_group(store=folder / "data.zarr", zarr_format=3)
    for name, values in (("X", x), ("Y", y)):
        group.create_array(name, data=values)
    (folder / "data.csv").write_text("1,2\n")
    (folder / "broken.npz").write_bytes(b"PK no zip")
    return folder


@pytest.fixture(scope="module")
def model(folder):
    done = run("fit", "--data", folder / "data.npz", "--out", folder / "model", "--sampler", "sgld", *TINY)
    assert done.exit_code == 0, done.output
    assert "effective draws" in done.output
    assert not list(folder.glob(".*.partial"))
    return folder / "model"


def test_from_data_to_scores(folder, model):
    out = folder / "predictions.npz"
    done = run("predict", model, "--data", folder / "test.npz", "--out", out, "--level", 0.8)
    assert done.exit_code == 0, done.output
    with np.load(out) as found:
        assert found["mean"].shape == found["std"].shape == (60, 3)
        inside = (found["lower"] <= waves(seed=1)[1]) & (waves(seed=1)[1] <= found["upper"])
    done = run("evaluate", model, "--data", folder / "test.npz", "--level", 0.8, "--json")
    assert done.exit_code == 0, done.output
    scores = json.loads(done.stdout)
    assert scores["coverage"] == [pytest.approx(inside[:, :2].mean())]
    assert scores["relative_error"] < 5
    assert scores["nll"] is not None
    assert scores["r2"] == pytest.approx(rw.SurrogateRegressor.load(model).score(*waves(seed=1)))
    table = run("evaluate", model, "--data", folder / "test.npz")
    assert "relative error" in table.output
    assert "R²" in table.output
    assert "coverage at 0.95" in table.output


def test_version():
    assert run("--version").output == f"ridgewalk {rw.__version__}\n"


def test_nothing_is_overwritten_unasked(folder, model):
    for arguments in (
        ("fit", "--data", folder / "data.npz", "--out", model),
        ("predict", model, "--data", folder / "data.npz", "--out", folder / "data.npz"),
    ):
        done = run(*arguments)
        assert done.exit_code == 2
        assert "exists; choose another name" in done.output
    done = run("fit", "--data", folder / "data.npz", "--out", folder / "data.zarr", "--overwrite")
    assert done.exit_code == 2
    assert "never overwritten" in done.output


def test_every_file_type_gives_the_same_arrays(folder):
    expected = waves()
    for name in ("data.npz", "data.nc", "data.zarr"):
        for found, wanted in zip(read_examples(folder / name, ["X", "Y"]), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_darcy_data_sets_go_straight_in(tmp_path):
    out = tmp_path / "set.zarr"
    made = run(
        "darcy", "generate", "permeability", "--out", out, "--samples", 4, "--size", 6, "--terms", 4,
        "--processes", 1,
    )  # fmt: skip
    assert made.exit_code == 0, made.output
    x, y = read_examples(out, ["permeability", "flux"])
    assert x.shape == (4, 6, 6)
    assert y.shape == (4, 84)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "--data", "data.npz", "--targets", "Z"], "no array 'Z'; it holds X, Y, labels, objects"),
        (["fit", "--data", "data.zarr", "--targets", "Z"], "no array 'Z'; it holds X, Y"),
        (["fit", "--data", "data.nc", "--inputs", "Z"], "no array 'Z'; it holds X, Y"),
        (["fit", "--data", "nothing.npz"], "there is no such file"),
        (["fit", "--data", "data.csv"], "the type .csv is unknown; give .npz, .zarr or .nc"),
        (["fit", "--data", "broken.npz"], "cannot be read as .npz"),
        (["fit", "--data", "bad.npz"], "X: contains NaN or infinity in 2 of 60 rows (2, 5; the first is 0)"),
        (["fit", "--data", "bad.npz", "--inputs", "Y", "--targets", "short"], "Y has 60, short has 5"),
        (["fit", "--data", "data.npz", "--targets", "labels"], "labels"),
        (["fit", "--data", "data.npz", "--targets", "objects"], "objects"),
        (["fit", "--data", "data.npz", "--step-size", "-1"], "step_size: -1.0 is not a positive"),
        (
            ["fit", "--data", "data.npz", "--network", "source"],
            "(3,) is no field; this network takes inputs of shape (ex",
        ),
        (["fit", "--data", "data.npz", "--steps", "100"], "steps: 100 include burn_in = 200"),
        (["predict", "nothing", "--data", "data.npz"], "nothing does not exist"),
    ],
)
def test_errors_in_plain_words(folder, monkeypatch, arguments, message):
    monkeypatch.chdir(folder)
    out = "new.npz" if arguments[0] == "predict" else "new"
    done = run(*arguments, "--out", out)
    assert done.exit_code == 2, done.output
    assert message in done.output


def test_inputs_of_another_shape(folder, model):
    done = run("predict", model, "--data", folder / "bad.npz", "--inputs", "wide", "--out", folder / "w.npz")
    assert done.exit_code == 2
    assert "X has 4 features, but SurrogateRegressor is expecting 3 features" in done.output
    done = run("evaluate", model, "--data", folder / "bad.npz", "--inputs", "Y", "--targets", "wide")
    assert done.exit_code == 2
    assert "targets: shape (60, 4) does not fit" in done.output
