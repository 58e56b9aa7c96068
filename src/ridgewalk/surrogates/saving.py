"""A fitted model on disk: a folder with arrays (safetensors), what they mean (JSON), and the report of the fit.

Nothing in it can run code. The JSON holds a SHA-256 of the arrays and one of itself; a model with a bit changed, cut
short, for another network or from a later version of the library is refused. `report.json` holds wall times and is
for reading only: the other two files are the same, bit for bit, for the same fit.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import save

from ridgewalk._io import (
    DamagedFileError,
    others_files,
    read_json_object,
    read_plain_tensors,
    recover_folder,
    replace_folder,
    seal,
    temporary_folder,
    unseal,
    write_atomically,
)
from ridgewalk.neural.calibration.conformal import Correction
from ridgewalk.neural.networks.model import Network
from ridgewalk.neural.posterior import build
from ridgewalk.neural.regressor import NETWORKS, Fitted, SurrogateRegressor
from ridgewalk.neural.report import report_from_json
from ridgewalk.neural.scaling import InputScaling, OutputScales
from ridgewalk.neural.sparse.model import PrunedNetworks, pack_draws, unpack_draws
from ridgewalk.ravel import leaf_names
from ridgewalk.run.fingerprint import describe
from ridgewalk.surrogates.packed import Packed
from ridgewalk.surrogates.packed import packed as packed_array

FORMAT = "ridgewalk-surrogate"
FORMAT_VERSION = 1
ARRAYS, ABOUT, REPORT = "model.safetensors", "model.json", "report.json"
NOT_SAVED = "not saved: "
"""How a setting begins that was an object: it comes back as its description."""

UNSAVED = {"checkpoint", "every", "progress"}
"""Settings of the process, not of the model."""


class ModelError(ValueError):
    """A saved model that cannot be used, and why."""


def save_model(model: SurrogateRegressor, path: Path, overwrite: bool) -> None:
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
        "settings": _settings(model),
        "network_named": isinstance(model.network, str),
        "features": int(model.n_features_in_),
        "feature_names": [str(name) for name in getattr(model, "feature_names_in_", ())],
        "input_shape": list(fitted.input_shape),
        "output_shape": list(fitted.output_shape),
        "examples": fitted.examples,
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
        raise ValueError(f"path: {path} is no saved model, so it is never overwritten; move it away")
    others = others_files(path, (ARRAYS, ABOUT, REPORT))
    if others:
        raise ValueError(f"path: {path} holds files that are not the model's ({', '.join(others)}); move them away")


def is_model(path: Path) -> bool:
    """Whether a folder is a saved model, of whatever version and state."""
    return (path / ABOUT).is_file() and (path / ARRAYS).is_file()


def load_model(kind: type[SurrogateRegressor], path: Path, network: Network | None) -> SurrogateRegressor:
    """Read a model, if every bit of it is as it was written and it fits the network."""
    try:
        return _loaded(kind, path, network)
    except ModelError:
        raise
    except DamagedFileError as error:
        raise ModelError(str(error)) from error
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise ModelError(f"{path}: {ABOUT} or {ARRAYS} is damaged ({error!r})") from error


def _loaded(kind: type[SurrogateRegressor], path: Path, network: Network | None) -> SurrogateRegressor:
    about, arrays = _read(path)
    settings = dict(about["settings"])
    if about["network_named"]:
        if network is not None:
            raise ModelError(f"network: the model in {path} uses {settings['network']!r}; leave the argument out")
        if settings["network"] not in NETWORKS:
            raise ModelError(f"{path}: its network {settings['network']!r} is unknown to this version of ridgewalk")
    elif network is None:
        raise ModelError(f"network: the model in {path} was fitted with a network of your own; pass it again")
    model = kind(**{**settings, **({} if network is None else {"network": network})})
    fitted = Fitted(
        draws=_unpacked(about, arrays),
        inputs=InputScaling(arrays["inputs.centre"], arrays["inputs.scale"]),
        outputs=OutputScales(arrays["outputs.centre"], arrays["outputs.scale"]),
        correction=Correction(**about["correction"], scores=arrays["correction.scores"]),
        input_shape=tuple(about["input_shape"]),
        output_shape=tuple(about["output_shape"]),
        examples=about["examples"],
    )
    _check_leaves(model, fitted, about, path)
    model._fitted, model._pruned = fitted, PrunedNetworks()
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


def _settings(model: SurrogateRegressor) -> dict[str, Any]:
    """Settings as plain values; an object is described."""
    settings = model.get_params(deep=False)
    return {name: _plain(value) for name, value in settings.items() if name not in UNSAVED}


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return NOT_SAVED + json.dumps(describe(value), sort_keys=True)


def _leaves(model: SurrogateRegressor, fitted: Fitted) -> list[dict[str, Any]]:
    """Name, shape and dtype of every array that a position has, in order."""
    like = jax.eval_shape(build(model._spec(fitted)).start, jax.random.key(0))
    names = leaf_names(like)
    return [
        {"name": name, "shape": list(leaf.shape), "dtype": str(leaf.dtype)}
        for name, leaf in zip(names, jax.tree.leaves(like), strict=True)
    ]


def _check_leaves(model: SurrogateRegressor, fitted: Fitted, about: dict[str, Any], path: Path) -> None:
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
