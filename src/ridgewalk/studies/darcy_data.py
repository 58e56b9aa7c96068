"""Sources or permeabilities and the fluxes they cause, split and scaled for a network."""

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
from ridgewalk.studies.darcy_settings import Kind, Settings
from ridgewalk.surrogates.errors import mean_relative_error
from ridgewalk.surrogates.scaling import InputScaling, OutputScales, fit_inputs, fit_outputs

SPE10 = "RIDGEWALK_SPE10"
"""Environment variable that names a file with SPE10's permeability: spe_perm.dat, its archive, or an .npz of k_x."""
LAYER = 53
DATA_SEED = 0


class Part(NamedTuple):
    """Fields (sample, row, column) and the fluxes through all edges (sample, edge)."""

    fields: Array
    fluxes: Array


class FlowData(NamedTuple):
    """What a study learns from, holds out and is tested on."""

    grid: Grid
    label: str
    """Which permeability, in words."""
    train: Part
    held: Part
    test: Part
    permeability: Array | None
    """The one of all samples, where it does not vary."""


class Scaled(NamedTuple):
    """The same numbers as a network sees them, float32."""

    inputs: InputScaling
    outputs: OutputScales
    x: np.ndarray
    y: np.ndarray

    def seen(self, fields: Array) -> np.ndarray:
        """Inputs of other samples."""
        return self.inputs.forward(fields).astype(np.float32)


def fixed_permeability(size: int) -> tuple[Array, str]:
    """Layer 53 of SPE10 where the user has it, else a channelised field made up for the purpose."""
    path = os.environ.get(SPE10)
    if path is None:
        field = channelised(Grid(nx=size, ny=size))
        return field, f"synthetic channels (set {SPE10} to a file for SPE10's layer {LAYER})"
    return sample_layer(read_spe10(path), LAYER, size, size), f"SPE10 model 2, layer {LAYER}"


def problem_of(kind: Kind, size: int) -> VaryingSource | VaryingPermeability:
    """The paper's family of problems on a grid."""
    if kind == "permeability":
        return VaryingPermeability(karhunen_loeve(Grid(nx=size, ny=size)))
    field, label = fixed_permeability(size)
    return VaryingSource(field, label)


def data_label(settings: Settings) -> str:
    """Which permeability the data of a study have, without making them."""
    return str(problem_of(settings.kind, settings.size).description["permeability_label"])


def flow_data(settings: Settings) -> FlowData:
    """Sample i is the same in every study of its kind and size; training samples come first."""
    return _flow_data(
        settings.kind, settings.size, settings.samples, settings.train, settings.held, os.environ.get(SPE10)
    )


@lru_cache(maxsize=2)
def _flow_data(kind: Kind, size: int, samples: int, train: int, held: int, _spe10: str | None) -> FlowData:
    problem = problem_of(kind, size)
    drawn = problem.draw(DATA_SEED, range(samples))
    fields, fluxes = drawn[kind], drawn["flux"]

    def part(start: int, stop: int) -> Part:
        return Part(fields[start:stop], fluxes[start:stop])

    constant = problem.permeability if isinstance(problem, VaryingSource) else None
    label = str(problem.description["permeability_label"])
    learnt = train - held
    return FlowData(problem.grid, label, part(0, learnt), part(learnt, train), part(train, samples), constant)


def mirrored(grid: Grid, part: Part) -> Part:
    """The samples seen in a mirror, y → 1 − y: all is turned over, and flux along y changes its sign."""
    return Part(part.fields[:, ::-1], mirrored_flux(grid, part.fluxes))


def mirrored_flux(grid: Grid, fluxes: Array) -> Array:
    """(…, edge)."""
    along_x, along_y = split_flux(grid, fluxes)
    return join_flux(along_x[..., ::-1, :], -along_y[..., ::-1, :])


def scaled(data: FlowData, mirror: bool) -> Scaled:
    """Training data in units of their spread, with their mirror images where these are used."""
    train = data.train
    if mirror:
        image = mirrored(data.grid, train)
        train = Part(*(np.concatenate(pair) for pair in zip(train, image, strict=True)))
    inputs, outputs = fit_inputs(train.fields), fit_outputs(train.fluxes, "together")
    x, y = inputs.forward(train.fields), outputs.forward(train.fluxes)
    return Scaled(inputs, outputs, x.astype(np.float32), y.astype(np.float32))


def multiscale_error(settings: Settings, blocks: int, per_edge: int) -> float:
    """Mean relative error in % of the mixed multiscale solver on the first test samples."""
    data = flow_data(settings)
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
