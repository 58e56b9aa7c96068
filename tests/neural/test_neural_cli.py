"""The command line on the user's own arrays: from a file to a model to predictions to scores, and errors in words."""

import contextlib
import dataclasses
import io
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import typer
import xarray as xr
import zarr
from tests.neural.fits import blobs, waves
from typer.testing import CliRunner

import ridgewalk as rw
from ridgewalk._cli_errors import errors_as_messages
from ridgewalk.cli import app
from ridgewalk.neural import fit as fitting
from ridgewalk.neural.io import read_examples

TINY = [
    "--chains",
    "2",
    "--optimiser-steps",
    "200",
    "--learning-rate",
    "0.05",
    "--steps",
    "24",
    "--burn-in",
    "8",
    "--draws",
    "8",
    "--step-size",
    "1e-7",
    "--holdout",
    "0.2",
    "--recalibration",
    "conformal",
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
    (folder / "truncated.npz").write_bytes((folder / "data.npz").read_bytes()[:1000])
    (folder / "data.csv").write_text("1,2\n")
    (folder / "broken.npz").write_bytes(b"PK no zip")
    return folder


@pytest.fixture(scope="module")
def model(folder):
    done = run("fit", "--data", folder / "data.npz", "--out", folder / "model", "--sampler", "sgld", *TINY)
    assert done.exit_code == 0, done.output
    assert "effective sample size" in done.output
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
    assert scores["r2"] == pytest.approx(rw.NeuralRegressor.load(model).score(*waves(seed=1)))
    table = run("evaluate", model, "--data", folder / "test.npz")
    assert "relative error" in table.output
    assert "R²" in table.output
    assert "coverage at 0.95" in table.output


def test_classes_from_data_to_scores(tmp_path):
    for name, seed in (("train", 0), ("test", 1)):
        x, y = blobs(seed=seed)
        np.savez(tmp_path / f"{name}.npz", X=x, Y=y)
    options = [*TINY[:-4], "--network", "mlp:4", "--step-size", "1e-3", "--sampler", "sgld"]
    fitted = run(
        "fit", "--task", "classification", "--data", tmp_path / "train.npz", "--out", tmp_path / "model", *options
    )
    assert fitted.exit_code == 0, fitted.output
    done = run("predict", tmp_path / "model", "--data", tmp_path / "test.npz", "--out", tmp_path / "p.npz")
    assert done.exit_code == 0, done.output
    with np.load(tmp_path / "p.npz") as found:
        assert found["probability"].shape == (80, 3)
        share = np.mean(found["label"] == blobs(seed=1)[1])
    done = run("evaluate", tmp_path / "model", "--data", tmp_path / "test.npz", "--json")
    assert json.loads(done.stdout)["accuracy"] == pytest.approx(share)
    assert "ECE" in run("evaluate", tmp_path / "model", "--data", tmp_path / "test.npz").output


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
    assert "not overwritten" in done.output


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
        (["fit", "--data", "data.npz", "--step-size", "-1"], "--step-size: -1.0 is not a positive"),
        (
            ["fit", "--data", "data.npz", "--network", "source"],
            "(3,) is not a field; this network takes inputs of shape (ex",
        ),
        (["fit", "--data", "data.npz", "--steps", "100", "--burn-in", "200"], "--steps: 100 include --burn-in 200"),
        (["fit", "--data", "data.npz", "--task", "classification"], "Y: its shape in data.npz is (60, 3)"),
        (["fit", "--data", "data.npz", "--network", "resnet"], "--network: 'resnet' is unknown"),
        (["predict", "nothing", "--data", "data.npz"], "nothing does not exist"),
        (["fit", "--data", "data.npz", "--batch-size", "1000000"], "--batch-size 1000000: the data have 60 examples"),
        (
            ["fit", "--data", "data.npz", "--optimiser-steps", "0"],
            "--optimiser-steps 0: sampling would start",
        ),
        (["fit", "--data", "truncated.npz"], "truncated.npz: it is truncated"),
    ],
)
def test_errors_in_plain_words(folder, monkeypatch, arguments, message):
    monkeypatch.chdir(folder)
    out = "new.npz" if arguments[0] == "predict" else "new"
    done = run(*arguments, "--out", out)
    assert done.exit_code == 2, done.output
    assert message in done.output
    assert not list(folder.glob("new*"))
    assert not list(folder.glob(".*"))


def test_a_fit_that_diverges_is_an_error_and_leaves_nothing(folder):
    bad = [*TINY, "--step-size", 1e6]
    done = run("fit", "--data", folder / "data.npz", "--out", folder / "gone", "--sampler", "sgld", *bad)
    assert done.exit_code == 1, done.output
    assert "diverged" in done.output
    assert not (folder / "gone").exists()
    assert not list(folder.glob(".*"))


def test_a_loss_that_is_not_finite_is_an_error(folder, monkeypatch):
    def nothing_learnt(*arguments):
        starts, phase = optimised(*arguments)
        return starts, dataclasses.replace(phase, last_loss=float("nan"))

    optimised = fitting._optimised
    monkeypatch.setattr(fitting, "_optimised", nothing_learnt)
    done = run("fit", "--data", folder / "data.npz", "--out", folder / "gone", "--sampler", "sgld", *TINY)
    assert done.exit_code == 1, done.output
    assert "the loss of the optimiser is nan; lower --learning-rate" in done.output
    assert not (folder / "gone").exists()
    assert not list(folder.glob(".*"))


def test_folders_of_others_are_left_alone(folder):
    """`model.partial` was once removed unseen."""
    for name in ("mine.partial", ".mine.0123456789abcdef.partial", ".mine.7.tmp", f".mine.{10**30}.former"):
        (folder / name).mkdir()
        (folder / name / "thesis.txt").write_text("years of work")
    done = run("fit", "--data", folder / "data.npz", "--out", folder / "mine", "--sampler", "sgld", *TINY)
    assert done.exit_code == 0, done.output
    kept = list(folder.rglob("thesis.txt"))
    assert len(kept) == 4
    for file in kept:
        file.unlink()
        file.parent.rmdir()
    (folder / "mine" / "notes.txt").write_text("years of work")
    done = run("fit", "--data", folder / "data.npz", "--out", folder / "mine", "--overwrite", *TINY)
    assert done.exit_code == 2
    assert "files that are not the model's (notes.txt)" in done.output
    assert (folder / "mine" / "notes.txt").exists()


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyError("x"), 1, "unexpected KeyError: 'x'; please report"),
        (TypeError("x"), 1, "unexpected TypeError: x"),
        (AttributeError("x"), 1, "unexpected AttributeError: x"),
        (RecursionError("x"), 1, "unexpected RecursionError: x"),
        (MemoryError("8 GB"), 1, "not enough memory (8 GB)"),
        (ImportError("x is not installed"), 1, "error: x is not installed"),
        (RuntimeError("all diverged"), 1, "error: all diverged"),
        (OSError(28, "No space left", "f"), 2, "No space left"),
        (ValueError("random_state: 3 and batch_size=4, dtype='x'"), 2, "--seed: 3 and --batch-size 4, dtype='x'"),
        (KeyboardInterrupt(), 130, "the same command continues"),
    ],
)
def test_no_error_reaches_a_user_raw(folder, monkeypatch, error, code, said):
    def fails(*_):
        raise error

    monkeypatch.setattr("ridgewalk.neural.io.read_examples", fails)
    done = run("fit", "--data", folder / "data.npz", "--out", folder / "gone")
    assert done.exit_code == code
    assert said in done.output
    assert "Traceback" not in done.output
    monkeypatch.setenv("RIDGEWALK_TRACEBACK", "1")
    run("fit", "--data", folder / "data.npz", "--out", folder / "gone")
    assert "Traceback" in capture_stderr(fails)


def capture_stderr(fails):
    with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.suppress(typer.Exit), errors_as_messages():
        fails()
    return said.getvalue()


ASCII_ONLY = {
    "LC_ALL": "C",
    "PYTHONIOENCODING": "ascii",
    "PYTHONUTF8": "0",
    "PYTHONCOERCECLOCALE": "0",
    "JAX_PLATFORMS": "cpu",
}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["darcy", "generate", "permeability", "--help"],
        ["darcy", "multiscale", "--size", "10", "--blocks", "5", "--out", "é.png"],
        pytest.param(
            ["darcy", "generate", "permeability", "--size", "6", "--terms", "4", "--samples", "2", "--out", "é.zarr"],
            marks=pytest.mark.slow,  # writes to the terminal as `multiscale` does
        ),
        pytest.param(["evaluate", "MODEL", "--data", "test.npz"], marks=pytest.mark.slow),
        pytest.param(["fit", "--data", "é.npz", "--out", "new"], marks=pytest.mark.slow),
    ],
)
def test_every_command_works_where_the_terminal_takes_ascii_only(folder, model, arguments):
    arguments = [str(model) if word == "MODEL" else word for word in arguments]
    done = subprocess.run(
        [sys.executable, "-c", "from ridgewalk.cli import main; main()", *arguments],
        env=os.environ | ASCII_ONLY,
        cwd=folder,
        capture_output=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == (2 if arguments[0] == "fit" else 0), done.stderr
    text = (done.stdout + done.stderr).decode()  # click writes UTF-8 where it finds ASCII, rich what we spell
    assert "Traceback" not in text
    assert "codec" not in text


def test_inputs_of_another_shape(folder, model):
    done = run("predict", model, "--data", folder / "bad.npz", "--inputs", "wide", "--out", folder / "w.npz")
    assert done.exit_code == 2
    assert "X has 4 features, but NeuralRegressor is expecting 3 features" in done.output
    done = run("evaluate", model, "--data", folder / "bad.npz", "--inputs", "Y", "--targets", "wide")
    assert done.exit_code == 2
    assert "targets: shape (60, 4) does not fit" in done.output
