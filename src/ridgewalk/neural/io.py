"""A fitted model on disk: a folder with arrays (safetensors), what they mean (JSON), and the report of the fit.

Nothing in it can run code. The JSON holds a SHA-256 of the arrays and one of itself; a model with a bit changed, cut
short, for another network or from a later version of the library is refused. `report.json` holds wall times and is
for reading only: the other two files are the same, bit for bit, for the same fit.

Arrays of the user's are read from .npz, .zarr and netCDF files: there is no pickle, zarr codecs are on a list, and HDF5
links to other files are refused. Shapes are compared with the bytes present before memory is allocated.
"""

import hashlib
import json
import os
import zipfile
import zlib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from safetensors.numpy import save

from ridgewalk._io import (
    DamagedFileError,
    check_regular,
    others_files,
    read_json_object,
    read_plain_tensors,
    recover_folder,
    replace_folder,
    seal,
    temporary_folder,
    unfinished_folders,
    unseal,
    write_atomically,
)
from ridgewalk._pytree import leaf_names
from ridgewalk._validation import requires_extra
from ridgewalk.neural.compression import Packed, PrunedNetworks, pack_draws, unpack_draws
from ridgewalk.neural.compression import packed as packed_array
from ridgewalk.neural.conformal import Correction
from ridgewalk.neural.estimator import Fitted, NeuralEstimator, check_finite_rows, network_of
from ridgewalk.neural.networks import Network
from ridgewalk.neural.posterior import InputScaling, OutputScales
from ridgewalk.neural.report import report_from_json
from ridgewalk.sampling.checkpoint import config_snapshot

FORMAT = "ridgewalk-neural"
FORMAT_VERSION = 1
ARRAYS, ABOUT, REPORT = "model.safetensors", "model.json", "report.json"
NOT_SAVED = "not saved: "
"""How a setting begins that was an object: it comes back as its description."""

Model = TypeVar("Model", bound=NeuralEstimator)

UNSAVED = {"checkpoint", "checkpoint_every", "progress"}
"""Settings of the process, not of the model."""


class ModelError(ValueError):
    """A saved model that cannot be used, and why."""


def save_model(model: NeuralEstimator, path: Path, overwrite: bool) -> None:
    """Write beside the final name, force to the disk, then rename."""
    refuse_to_replace(path, overwrite)
    fitted = model._fitted
    runs = pack_draws(fitted.draws)
    arrays = {_name(run, array, part): getattr(array, part) for run, array, part in _parts(runs)}
    arrays |= {
        "inputs.centre": fitted.inputs.centre,
        "inputs.scale": fitted.inputs.scale,
        "outputs.centre": fitted.outputs.centre,
        "outputs.scale": fitted.outputs.scale,
        "correction.scores": fitted.correction.scores,
    }
    content = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    about = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "ridgewalk_version": version("ridgewalk"),
        "estimator": type(model).__name__,
        "settings": _settings(model),
        "network_named": isinstance(model.network, str),
        "features": int(model.n_features_in_),
        "feature_names": [str(name) for name in getattr(model, "feature_names_in_", ())],
        "input_shape": list(fitted.input_shape),
        "output_shape": list(fitted.output_shape),
        "examples": fitted.examples,
        "mixture": fitted.mixture,
        "classes": list(fitted.classes),
        "classes_dtype": str(model.classes_.dtype) if fitted.classes else "",
        "correction": {"kind": fitted.correction.kind, "scale": fitted.correction.scale},
        "leaves": _leaves(model, fitted),
        "draws": len(fitted.draws[0]),
        "runs": len(runs),
        "arrays_sha256": hashlib.sha256(content).hexdigest(),
    }
    with temporary_folder(path) as fresh:
        write_atomically(fresh / ARRAYS, content)
        write_atomically(fresh / ABOUT, _json(seal(about)))
        write_atomically(fresh / REPORT, _json(seal(model.report_.to_json())))
        replace_folder(fresh, path)


def _parts(runs: list[list[Packed]]) -> Iterator[tuple[int, Packed, str]]:
    return ((number, array, part) for number, run in enumerate(runs) for array in run for part in ("bits", "values"))


def _name(run: int, array: Packed, part: str) -> str:
    return f"draws.{run}.{int(array.name):04d}.{part}"


def _unpacked(about: dict[str, Any], arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The draws, from the bits and numbers of every run of them."""

    def packed(run: int, leaf: int, shape: list[int]) -> Packed:
        here = f"draws.{run}.{leaf:04d}"
        return packed_array(str(leaf), shape, arrays[f"{here}.bits"], arrays[f"{here}.values"])

    shapes = [leaf["shape"] for leaf in about["leaves"]]
    return unpack_draws([[packed(run, i, shape) for i, shape in enumerate(shapes)] for run in range(about["runs"])])


def refuse_to_replace(path: Path, overwrite: bool) -> None:
    """Raise where something is in the way: a model is replaced only if that is asked for, anything else never."""
    recover_folder(path)
    if not os.path.lexists(path):
        return
    if not overwrite:
        raise ValueError(f"path: {path} exists; choose another name, or pass overwrite=True")
    if not is_model(path):
        raise ValueError(f"path: {path} is not a saved model, so it is not overwritten; move it away")
    others = others_files(path, (ARRAYS, ABOUT, REPORT))
    if others:
        raise ValueError(f"path: {path} holds files that are not the model's ({', '.join(others)}); move them away")


def is_model(path: Path) -> bool:
    """Whether a folder is a saved model, of whatever version and state."""
    return (path / ABOUT).is_file() and (path / ARRAYS).is_file()


def load_model(kind: type[Model], path: Path, network: Network | None) -> Model:
    """Read a model, if every bit of it is as it was written and it fits the network."""
    try:
        return _loaded(kind, path, network)
    except ModelError:
        raise
    except DamagedFileError as error:
        raise ModelError(str(error)) from error
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise ModelError(f"{path}: {ABOUT} or {ARRAYS} is damaged ({error!r})") from error


def _loaded(kind: type[Model], path: Path, network: Network | None) -> Model:
    about, arrays = _read(path)
    if about["estimator"] != kind.__name__:
        raise ModelError(f"{path}: it holds a {about['estimator']}; load it with {about['estimator']}.load")
    settings: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in about["settings"].items()}
    if about["network_named"]:
        if network is not None:
            raise ModelError(f"network: the model in {path} uses {settings['network']!r}; leave the argument out")
        try:
            network_of(settings["network"], settings.get("hidden"))
        except ValueError as error:
            raise ModelError(f"{path}: its network is unknown to this version of ridgewalk ({error})") from error
    elif network is None:
        raise ModelError(f"network: the model in {path} was fitted with a network of your own; pass it again")
    if network is not None:
        settings["network"] = network
    model = kind(**settings)
    fitted = Fitted(
        draws=_unpacked(about, arrays),
        inputs=InputScaling(arrays["inputs.centre"], arrays["inputs.scale"]),
        outputs=OutputScales(arrays["outputs.centre"], arrays["outputs.scale"]),
        correction=Correction(**about["correction"], scores=arrays["correction.scores"]),
        input_shape=tuple(about["input_shape"]),
        output_shape=tuple(about["output_shape"]),
        examples=about["examples"],
        classes=tuple(about["classes"]),
        mixture=about["mixture"],
    )
    _check_leaves(model, fitted, about, path)
    model._fitted, model._pruned = fitted, PrunedNetworks()
    if fitted.classes:
        model.classes_ = np.array(about["classes"], dtype=about["classes_dtype"])
    model.n_features_in_ = about["features"]
    if about["feature_names"]:
        model.feature_names_in_ = np.array(about["feature_names"], dtype=object)
    model.report_ = _report(path)
    return model


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    recover_folder(path)
    if not path.exists():
        raise ModelError(f"path: {path} does not exist; give a folder written by save, or by ridgewalk fit")
    try:
        sealed = read_json_object(path / ABOUT)
        found, number = sealed["format"], int(sealed["format_version"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path}: it is not a saved model, or {ABOUT} is damaged ({error})") from error
    if found != FORMAT:
        raise ModelError(f"{path}: the format in {ABOUT} is {found!r}, not {FORMAT!r}")
    if number > FORMAT_VERSION:
        raise ModelError(
            f"{path}: it has format version {number} in {ABOUT}, this ridgewalk reads up to {FORMAT_VERSION}; upgrade "
            "ridgewalk"
        )
    about = unseal(path / ABOUT, sealed)
    try:
        arrays, found = read_plain_tensors(path / ARRAYS)
    except OSError as error:
        raise ModelError(f"{path}: {ARRAYS} cannot be read ({error.strerror})") from error
    if found != about["arrays_sha256"]:
        raise ModelError(f"{path}: the checksum of {ARRAYS} does not match, so it was changed or is damaged")
    return about, arrays


def _settings(model: NeuralEstimator) -> dict[str, Any]:
    """Settings as plain values; an object is described."""
    settings = model.get_params(deep=False)
    return {name: _plain(value) for name, value in settings.items() if name not in UNSAVED}


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple) and all(isinstance(item, int | np.integer) for item in value):
        return [int(item) for item in value]
    return NOT_SAVED + json.dumps(config_snapshot(value), sort_keys=True)


def _leaves(model: NeuralEstimator, fitted: Fitted) -> list[dict[str, Any]]:
    """Name, shape and dtype of every array that a position has, in order."""
    like = model._like(fitted)
    names = leaf_names(like)
    return [
        {"name": name, "shape": list(leaf.shape), "dtype": str(leaf.dtype)}
        for name, leaf in zip(names, jax.tree.leaves(like), strict=True)
    ]


def _check_leaves(model: NeuralEstimator, fitted: Fitted, about: dict[str, Any], path: Path) -> None:
    stored = [[about["draws"], *leaf["shape"]] for leaf in about["leaves"]]
    if [list(array.shape) for array in fitted.draws] != stored:
        raise ModelError(f"{path}: its arrays have other shapes than {ABOUT} says")
    if model.dtype == "float64" and not jax.config.read("jax_enable_x64"):
        raise ModelError(f"{path}: it is in float64; call jax.config.update('jax_enable_x64', True) before loading it")
    wanted = _leaves(model, fitted)
    for mine, theirs in zip(wanted, about["leaves"], strict=False):
        if mine != theirs:
            raise ModelError(
                f"network: it does not fit the model in {path}: the network has {mine['name']} {mine['shape']} "
                f"{mine['dtype']}, the model {theirs['name']} {theirs['shape']} {theirs['dtype']}"
            )
    if len(wanted) != len(about["leaves"]):
        raise ModelError(f"network: it has {len(wanted)} arrays, the model in {path} {len(about['leaves'])}")


def _report(path: Path) -> Any:
    try:
        record = read_json_object(path / REPORT)
        if "sha256" in record:  # models of earlier versions have none
            record = unseal(path / REPORT, record)
        return report_from_json(record)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{path}: {REPORT} is missing or damaged ({error})") from error


def _json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()


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
            f"data = {path}: it cannot be read as .npz, because it is not a zip file; write it with np.savez"
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


def read_labels(path: Path, inputs: str, targets: str) -> tuple[np.ndarray, np.ndarray]:
    """Inputs as `read_examples` gives them, and labels: whole numbers or strings."""
    (x,), (labels,) = read_examples(path, [inputs]), read_arrays(path, [targets])
    if labels.ndim != 1 or len(labels) != len(x):
        raise ValueError(
            f"{targets}: its shape in {path} is {labels.shape}; give one label for each of {len(x)} examples"
        )
    if labels.dtype.kind not in "iubUS":
        raise ValueError(f"{targets}: {path} holds it as {labels.dtype}; give labels as whole numbers or strings")
    return x, labels.astype(str) if labels.dtype.kind == "S" else labels


def estimator_of(path: Path) -> type[NeuralEstimator]:
    """The class of a saved model."""
    from ridgewalk.neural.classifier import NeuralClassifier  # noqa: PLC0415
    from ridgewalk.neural.regressor import NeuralRegressor  # noqa: PLC0415

    known = {kind.__name__: kind for kind in (NeuralClassifier, NeuralRegressor)}
    name = _read(path)[0].get("estimator")
    if name not in known:
        raise ModelError(f"{path}: it holds a {name!r}, which this version of ridgewalk does not know")
    return known[name]
