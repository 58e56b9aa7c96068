"""Arrays by name from .npz, .zarr and netCDF files of the user's, with errors that say what is there.

No format can run code: there is no pickle, zarr codecs are on a list, and HDF5 links to other files are refused. Shapes
are compared with the bytes present before memory is allocated.
"""

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from ridgewalk._io import DamagedFileError, check_regular, unfinished_folders
from ridgewalk._optional import requires_extra
from ridgewalk.neural.regressor import check_finite_rows

NETCDF = (".nc", ".nc4", ".netcdf")

SMALL = 2**28
"""Bytes of an array that is read whatever its compression."""

MOST_COMPRESSED = 200
"""A larger array must not be more compressed than this: few bytes could else fill the memory."""


def read_arrays(path: Path, names: list[str]) -> list[np.ndarray]:
    """The arrays of these names."""
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
        check_finite_rows(name, array)
    return [np.asarray(array, np.float64) for array in arrays]


def _missing(path: Path, name: str, there: list[str]) -> ValueError:
    return ValueError(f"data = {path}: there is no array {name!r}; it holds {', '.join(sorted(there)) or 'none'}")


def _check_size(path: Path, name: str, wanted: int, present: int) -> None:
    """Raise where an array is far larger than the bytes it is stored in."""
    if wanted > max(SMALL, MOST_COMPRESSED * present):
        raise ValueError(
            f"{name}: {path} says that it has {wanted:,} bytes, but stores {present:,} for it; the file is damaged, or "
            "compressed so much that it is not read: save the array without compression"
        )


def _from_npz(path: Path, names: list[str]) -> list[np.ndarray]:
    check_regular(path)
    try:
        with zipfile.ZipFile(path) as archive:
            there = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            for name in names:
                if name not in there:
                    raise _missing(path, name, list(there))
            return [_member(path, name, archive, there[name]) for name in names]
    except zipfile.BadZipFile as error:
        with path.open("rb") as file:
            begun = file.read(4) == b"PK\3\4"
        if begun:
            raise ValueError(f"data = {path}: it is truncated ({error}); copy or save it again") from error
        raise ValueError(
            f"data = {path}: it cannot be read as .npz, because it is no zip file; write it with np.savez"
        ) from error


def _member(path: Path, name: str, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    """One array; its header is compared with the member's size first."""
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 1:
        raise ValueError(f"{name}: {path} is packed in another way than np.savez does; save it with np.savez")
    _check_size(path, name, info.file_size, info.compress_size)
    try:
        with archive.open(info) as file:
            shape, dtype = _npy_header(file)
            if dtype.hasobject:
                raise ValueError("it holds Python objects")
            wanted = int(np.prod(shape, dtype=object)) * dtype.itemsize
            if wanted != info.file_size - file.tell():
                raise ValueError(f"its header says {wanted:,} bytes, {info.file_size - file.tell():,} follow")
        with archive.open(info) as file:
            return np.asarray(np.lib.format.read_array(file, allow_pickle=False))
    except (ValueError, TypeError, EOFError, OSError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"{name}: {path} holds Python objects or is damaged ({error}); save plain arrays of numbers"
        ) from error


def _npy_header(file: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return shape, dtype


def _from_zarr(path: Path, names: list[str]) -> list[np.ndarray]:
    from ridgewalk import _zarr  # noqa: PLC0415  (slow to import)

    try:
        info = _zarr.inspect_group(path)
    except ValueError as error:
        raise ValueError(f"data = {path}: it cannot be read as a zarr group ({error})") from error
    for name in names:
        if name not in info.arrays:
            raise _missing(path, name, list(info.arrays))
        array = info.arrays[name]
        present = sum(file.lstat().st_size for file in array.folder.rglob("*") if not file.is_dir())
        _check_size(path, name, int(np.prod(array.shape, dtype=object)) * array.dtype.itemsize, present)
    files = _zarr.sealed_files(path)
    if files is not None:
        _zarr.check_files(path, files, names)
    group = _zarr.open_group(path, complete=files is not None)
    return [_zarr.read_array(group[name]) for name in names]


def _from_netcdf(path: Path, names: list[str]) -> list[np.ndarray]:
    with requires_extra("store"):
        import xarray as xr  # noqa: PLC0415

    check_regular(path)
    there, found = [], []
    try:
        _check_hdf5(path)
        with xr.open_dataset(path) as file:
            there = [str(name) for name in file.variables]
            found = [np.asarray(file[name].values) for name in names if name in there]
    except DamagedFileError:
        raise
    except Exception as error:  # HDF5 and xarray raise many kinds
        raise ValueError(f"data = {path}: it cannot be read as netCDF ({error})") from error
    for name in names:
        if name not in there:
            raise _missing(path, name, there)
    return found


def _check_hdf5(path: Path) -> None:
    """Raise where a netCDF 4 file, which is HDF5, leads to other files, or says it is far larger than it is."""
    with path.open("rb") as start:
        if start.read(8) != b"\x89HDF\r\n\x1a\n":
            return  # netCDF 3, which knows no links
    with requires_extra("store"):
        import h5py  # noqa: PLC0415

    with h5py.File(path, "r") as file:
        links: list[tuple[str, Any]] = []
        items: list[tuple[str, Any]] = []
        file.visititems_links(lambda name, link: links.append((name, link)))
        file.visititems(lambda name, item: items.append((name, item)))
        elsewhere = [name for name, link in links if isinstance(link, h5py.ExternalLink)]
        arrays = [(name, item) for name, item in items if isinstance(item, h5py.Dataset)]
        elsewhere += [name for name, item in arrays if item.external or item.is_virtual]
        if elsewhere:
            raise DamagedFileError(path, f"{elsewhere[0]!r} is in another file, which is not read; copy the array in")
        for name, item in arrays:
            _check_size(path, name, int(item.size or 0) * item.dtype.itemsize, item.id.get_storage_size())
