"""Arrays by name from .npz, .zarr and netCDF files, with errors that say what is there."""

import zipfile
from pathlib import Path

import numpy as np

from ridgewalk._io import unfinished_folders
from ridgewalk._optional import requires_extra
from ridgewalk.surrogates.checked import finite_rows

NETCDF = (".nc", ".nc4", ".netcdf")


def read_arrays(path: Path, names: list[str]) -> list[np.ndarray]:
    """The arrays of these names; none of the formats can run code."""
    if not path.exists():
        hint = ""
        if unfinished_folders(path):
            hint = "; it was begun but not finished: run the command that makes it again"
        raise ValueError(f"data = {path}: there is no such file{hint}")
    if path.suffix == ".npz":
        return _from_npz(path, names)
    if path.suffix == ".zarr":
        return _from_zarr(path, names)
    if path.suffix in NETCDF:
        return _from_netcdf(path, names)
    raise ValueError(f"data = {path}: the type {path.suffix or '(none)'} is unknown; give .npz, .zarr or .nc")


def read_examples(path: Path, names: list[str]) -> list[np.ndarray]:
    """Numeric arrays with one row per example each, all finite and of the same length."""
    arrays = read_arrays(path, names)
    for name, array in zip(names, arrays, strict=True):
        if not (np.issubdtype(array.dtype, np.floating) or np.issubdtype(array.dtype, np.integer)):
            raise ValueError(f"{name}: {path} holds it as {array.dtype}; give real numbers")
        if array.ndim < 1 or len(array) == 0:
            raise ValueError(f"{name}: its shape in {path} is {array.shape}; the first axis must count the examples")
    lengths = {name: len(array) for name, array in zip(names, arrays, strict=True)}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} has {count}" for name, count in lengths.items())
        raise ValueError(f"data = {path}: arrays differ in their number of examples ({listed}); give one row for each")
    for name, array in zip(names, arrays, strict=True):
        finite_rows(name, array)
    return [np.asarray(array, np.float64) for array in arrays]


def _missing(path: Path, name: str, there: list[str]) -> ValueError:
    return ValueError(f"data = {path}: there is no array {name!r}; it holds {', '.join(sorted(there)) or 'none'}")


def _from_npz(path: Path, names: list[str]) -> list[np.ndarray]:
    if not zipfile.is_zipfile(path):
        raise ValueError(f"data = {path}: it cannot be read as .npz, because it is no zip file; write it with np.savez")
    with np.load(path, allow_pickle=False) as file:
        there = list(file.files)
        for name in names:
            if name not in there:
                raise _missing(path, name, there)
        return [_whole(path, name, file) for name in names]


def _whole(path: Path, name: str, file: np.lib.npyio.NpzFile) -> np.ndarray:
    try:
        return np.asarray(file[name])
    except (ValueError, zipfile.BadZipFile, EOFError) as error:
        raise ValueError(
            f"{name}: {path} holds Python objects or is damaged ({error}); save plain arrays of numbers"
        ) from error


def _from_zarr(path: Path, names: list[str]) -> list[np.ndarray]:
    with requires_extra("store"):
        import zarr  # noqa: PLC0415  (slow to import)

    try:
        group = zarr.open_group(path, mode="r")
    except (OSError, ValueError) as error:
        raise ValueError(f"data = {path}: it cannot be read as a zarr group ({error})") from error
    there = [name for name, _ in group.arrays()]
    for name in names:
        if name not in there:
            raise _missing(path, name, there)
    found = []
    for name in names:
        array = group[name]
        assert isinstance(array, zarr.Array)
        found.append(np.asarray(array[...]))
    return found


def _from_netcdf(path: Path, names: list[str]) -> list[np.ndarray]:
    with requires_extra("store"):
        import xarray as xr  # noqa: PLC0415

    try:
        with xr.open_dataset(path) as file:
            there = [str(name) for name in file.variables]
            for name in names:
                if name not in there:
                    raise _missing(path, name, there)
            return [np.asarray(file[name].values) for name in names]
    except (OSError, TypeError) as error:
        raise ValueError(f"data = {path}: it cannot be read as netCDF ({error})") from error
