"""Data of the Darcy studies: sources or permeabilities and the resulting fluxes, split and standardised."""

import os
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ridgewalk.darcy import (
    Boundary,
    Grid,
    VaryingPermeability,
    VaryingSource,
    channelised,
    join_flux,
    karhunen_loeve,
    multiscale_basis,
    read_spe10,
    sample_layer,
    solve_multiscale,
    split_flux,
)
from ridgewalk.darcy.boundary import Pressure
from ridgewalk.darcy.grid import Array
from ridgewalk.neural.calibration.scores import mean_relative_error
from ridgewalk.neural.scaling import InputScaling, OutputScales, fit_inputs, fit_outputs
from ridgewalk.studies.darcy.settings import Kind, Settings

SPE10 = "RIDGEWALK_SPE10"
"""Environment variable that names a file with SPE10's permeability: spe_perm.dat, its archive, or an .npz of k_x."""
LAYER = 53
DATA_SEED = 0


class Part(NamedTuple):
    """Fields (sample, row, column) and the fluxes through all edges (sample, edge)."""

    fields: Array
    fluxes: Array


class FlowData(NamedTuple):
    """Training, held-out and test samples of a study."""

    grid: Grid
    label: str
    """Which permeability the samples have."""
    train: Part
    held: Part
    test: Part
    permeability: Array | None
    """The permeability of all samples, if it does not vary."""


class Scaled(NamedTuple):
    """Standardised training data, float32."""

    inputs: InputScaling
    outputs: OutputScales
    x: np.ndarray
    y: np.ndarray

    def standardise(self, fields: Array) -> np.ndarray:
        """Inputs of other samples, standardised alike."""
        return self.inputs.forward(fields).astype(np.float32)


def spe10_path() -> str | None:
    """The file named by the environment variable, or None."""
    return os.environ.get(SPE10)


def data_source(kind: Kind, spe10: str | None) -> str:
    """Which permeability the data of a study have, without generating them."""
    if kind == "permeability":
        return "Karhunen–Loève"
    if spe10 is None:
        return f"synthetic channels (set {SPE10} to a file for SPE10's layer {LAYER})"
    return f"SPE10 model 2, layer {LAYER}"


def darcy_problem(kind: Kind, size: int, spe10: str | None) -> VaryingSource | VaryingPermeability:
    """The paper's family of problems on a grid; with sources, layer 53 of SPE10 or a synthetic channelised field."""
    grid = Grid(nx=size, ny=size)
    if kind == "permeability":
        return VaryingPermeability(karhunen_loeve(grid))
    field = channelised(grid) if spe10 is None else sample_layer(read_spe10(spe10), LAYER, size, size)
    return VaryingSource(field, data_source(kind, spe10))


def flow_data(settings: Settings, spe10: str | None = None) -> FlowData:
    """Data of a study, with the SPE10 file if given. Sample i depends on kind and size; training samples come first."""
    return _flow_data(settings.kind, settings.size, settings.samples, settings.train, settings.held, spe10)


@lru_cache(maxsize=2)
def _flow_data(kind: Kind, size: int, samples: int, train: int, held: int, spe10: str | None) -> FlowData:
    problem = darcy_problem(kind, size, spe10)
    drawn = problem.draw(DATA_SEED, range(samples))
    fields, fluxes = drawn[kind], drawn["flux"]

    def part(start: int, stop: int) -> Part:
        return Part(fields[start:stop], fluxes[start:stop])

    constant = problem.permeability if isinstance(problem, VaryingSource) else None
    label = str(problem.description["permeability_label"])
    fitted = train - held
    return FlowData(problem.grid, label, part(0, fitted), part(fitted, train), part(train, samples), constant)


def mirrored(grid: Grid, part: Part) -> Part:
    """Mirror images of samples, y → 1 − y: rows are reversed, and flux along y changes sign."""
    return Part(part.fields[:, ::-1], mirrored_flux(grid, part.fluxes))


def mirrored_flux(grid: Grid, fluxes: Array) -> Array:
    """Mirror images of fluxes (…, edge)."""
    along_x, along_y = split_flux(grid, fluxes)
    return join_flux(along_x[..., ::-1, :], -along_y[..., ::-1, :])


def standardised(data: FlowData, mirror: bool) -> Scaled:
    """Standardise training data, with their mirror images if `mirror`."""
    train = data.train
    if mirror:
        image = mirrored(data.grid, train)
        train = Part(*(np.concatenate(pair) for pair in zip(train, image, strict=True)))
    inputs, outputs = fit_inputs(train.fields), fit_outputs(train.fluxes, "together")
    x, y = inputs.forward(train.fields), outputs.forward(train.fluxes)
    return Scaled(inputs, outputs, x.astype(np.float32), y.astype(np.float32))


def multiscale_error(settings: Settings, blocks: int, per_edge: int) -> float:
    """Mean relative error in % of the mixed multiscale solver on the first test samples."""
    data = flow_data(settings, spe10_path())
    test = Part(*(part[: settings.multiscale_samples] for part in data.test))
    varying = settings.kind == "permeability"
    boundary = Boundary(left=Pressure(1.0), right=Pressure(0.0)) if varying else Boundary()
    size, fixed = (blocks, blocks), data.permeability
    shared = None if fixed is None else multiscale_basis(fixed, boundary, size, per_edge)
    found = []
    for field in test.fields:
        basis = shared or multiscale_basis(field, boundary, size, per_edge)
        found.append(solve_multiscale(basis, 1.0 if varying else field, boundary).flux)
    return mean_relative_error(np.array(found), test.fluxes)
