"""Where a fixed permeability comes from: a file, SPE10 fetched, or the synthetic field; always labelled."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from ridgewalk.darcy.fields import SYNTHETIC, channelised
from ridgewalk.darcy.grid import Array, Grid
from ridgewalk.darcy.spe10 import fetch_spe10, read_spe10, sample_layer


class LabelledPermeability(NamedTuple):
    """A permeability `(ny, nx)` and what it is, in words for titles and attributes."""

    values: Array
    label: str


def synthetic_permeability(size: int, seed: int = 0) -> LabelledPermeability:
    """The synthetic field on `size × size` cells."""
    return LabelledPermeability(channelised(Grid(size, size), seed), SYNTHETIC)


def spe10_permeability(path: Path | None, layer: int, size: int) -> LabelledPermeability:
    """A layer of SPE10 on `size × size` cells, from a file or, with `path=None`, fetched once from SPE."""
    k_x = fetch_spe10() if path is None else read_spe10(path)
    return LabelledPermeability(
        sample_layer(k_x, layer, size, size), f"SPE10 model 2, k_x of layer {layer}, millidarcy / 10"
    )


def permeability_from_file(path: Path, layer: int, size: int) -> LabelledPermeability:
    """A field from `.npy`, taken as it is, or a layer of SPE10 from its text, archive or `.npz`."""
    if path.suffix != ".npy":
        return spe10_permeability(path, layer, size)
    if not path.exists():
        raise ValueError(f"permeability = {path}: there is no such file")
    try:
        values = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"permeability = {path}: not a readable .npy file of numbers ({error})") from error
    if values.ndim != 2 or values.dtype.kind not in "fiu":
        raise ValueError(
            f"permeability = {path}: has shape {values.shape} and type {values.dtype}; give a field (ny, nx) of numbers"
        )
    return LabelledPermeability(values.astype(np.float64), f"permeability of {path.name}")
