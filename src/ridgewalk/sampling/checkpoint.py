"""Checkpoints: one safetensors file each, written atomically, checked when read, and never able to run code.

The header holds the settings of the run, what its store of draws held at that step, and a SHA-256 of everything.

`config_snapshot` turns settings into JSON values, so that a resumed run can be compared with the one that was begun.
Functions count by what they compute: their code, the constants in it, default arguments, closure cells and the globals
that they name; neither by their place in a file nor by an address in memory. Functions of `PACKAGES` count by their
names. Arrays count by a SHA-256 of all their bytes.
"""

import dataclasses
import dis
import functools
import hashlib
import os
import re
import sys
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from ridgewalk._io import DamagedFileError, NewerFormatError, peek_description, read_tensors, write_tensors
from ridgewalk.data import Batches
from ridgewalk.distributed.shards import Sharded

FORMAT = "ridgewalk-checkpoint"
FORMAT_VERSION = 3
"""2 added what the store of draws held, 3 segments of draws. 1 is read too: checkpoints of optimisers have no store."""

PARTS_VERSION = 4
"""Arrays are in files of their own, one for each range of chains, as several processes write them."""

PART_FORMAT = "ridgewalk-checkpoint-part"

KEPT = 2
"""How many checkpoints stay: the newest, and one more in case the newest cannot be read."""

_NAME = re.compile(r"step-(\d{1,19})\.safetensors")
_PART_NAME = re.compile(r"step-(\d{1,19})\.chains-\d+-\d+\.safetensors")


class CheckpointError(ValueError):
    """A checkpoint that cannot be used, and why."""


class FutureVersionError(CheckpointError):
    """Written by a later version of the library: no older checkpoint is used in its place."""


@dataclass(frozen=True)
class Checkpoint:
    """A run's state after `step` steps: its arrays, in order, and the settings it was made with."""

    step: int
    arrays: list[np.ndarray]
    settings: dict[str, Any]
    store: dict[str, Any] | None = None
    """What the store of draws held (`DrawStore.manifest`)."""
    data: dict[str, Any] | None = None
    """Where the data were read up to (`Reader.state`)."""


def pack_arrays(arrays: Iterable[np.ndarray]) -> tuple[dict[str, np.ndarray], list[str]]:
    """Arrays by number as safetensors holds them, and their dtypes: raw bits of bfloat16, pairs for complex128."""
    listed = [np.asarray(array, order="C") for array in arrays]
    return {f"{i:04d}": _packed(array) for i, array in enumerate(listed)}, [str(array.dtype) for array in listed]


def _packed(array: np.ndarray) -> np.ndarray:
    if array.dtype == ml_dtypes.bfloat16:
        return array.view(np.uint16)
    return array[..., None].view(np.float64) if array.dtype == np.complex128 else array


def unpack_arrays(tensors: Mapping[str, np.ndarray], dtypes: list[str]) -> list[np.ndarray]:
    """The arrays that `pack_arrays` was given."""
    return [_unpacked(tensors[f"{i:04d}"], dtype) for i, dtype in enumerate(dtypes)]


def _unpacked(array: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return array.view(ml_dtypes.bfloat16)
    return array.view(np.complex128)[..., 0] if dtype == "complex128" else array


def _step_of(path: Path) -> int | None:
    """The step in a checkpoint's name; None for other files."""
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else None


def files(folder: Path) -> list[Path]:
    """The checkpoints of a folder, oldest first."""
    if not folder.is_dir():
        return []
    found = [(step, path) for path in folder.iterdir() if (step := _step_of(path)) is not None]
    return [path for _, path in sorted(found)]


def write_part(folder: Path, step: int, chains: slice, arrays: list[np.ndarray]) -> dict[str, Any]:
    """Write the arrays of a range of chains; returns how the checkpoint, written later, lists the file."""
    tensors, dtypes = pack_arrays(arrays)
    name = f"step-{step:012d}.chains-{chains.start}-{chains.stop}.safetensors"
    sha256 = write_tensors(folder / name, tensors, kind=PART_FORMAT, version=1, about={"step": step, "dtypes": dtypes})
    return {"name": name, "chains": [chains.start, chains.stop], "sha256": sha256}


def _read_parts(path: Path, listed: list[dict[str, Any]]) -> list[np.ndarray]:
    """The arrays of all parts, in the order of their chains."""
    arrays = []
    for part in sorted(listed, key=lambda part: int(part["chains"][0])):
        if not _PART_NAME.fullmatch(part["name"]):
            raise DamagedFileError(path, "its list of parts is damaged")
        found = read_tensors(path.with_name(part["name"]), kind=PART_FORMAT, newest=1)
        if found.sha256 != part["sha256"]:
            raise DamagedFileError(path.with_name(part["name"]), "it is not the part that the checkpoint lists")
        arrays += unpack_arrays(found.tensors, found.about["dtypes"])
    return arrays


def write(folder: Path, checkpoint: Checkpoint, parts: list[dict[str, Any]] | None = None) -> Path:
    """Add a checkpoint; once it is on the disk, those before the last `KEPT` are removed.

    With `parts`, files that `write_part` wrote, these hold its arrays.
    """
    tensors, dtypes = pack_arrays(checkpoint.arrays)
    about = {
        "step": checkpoint.step,
        "dtypes": dtypes,
        "settings": checkpoint.settings,
        "store": checkpoint.store,
        "data": checkpoint.data,
        **({} if parts is None else {"parts": parts}),
    }
    version = FORMAT_VERSION if parts is None else PARTS_VERSION
    path = folder / f"step-{checkpoint.step:012d}.safetensors"
    try:
        write_tensors(path, tensors, kind=FORMAT, version=version, about=about)
    except OSError as error:
        left = [earlier for earlier in files(folder) if _is_checkpoint(earlier)]
        rest = f"the run can be resumed from {left[-1].name}" if left else "no earlier checkpoint exists"
        raise CheckpointError(
            f"checkpoint: step {checkpoint.step} could not be written to {path} ({error.strerror}); {rest}: free "
            "space or make it writable, then make the same call with resume=True"
        ) from error
    _remove_before(folder, checkpoint.step)
    return path


def _remove_before(folder: Path, step: int) -> None:
    """Remove old checkpoints: only files that are checkpoints, and only of steps before this one."""
    older = [path for path in files(folder) if (found := _step_of(path)) is not None and found < step]
    for path in [path for path in older if _is_checkpoint(path)][: -(KEPT - 1)]:
        path.unlink(missing_ok=True)
    kept = {_step_of(path) for path in files(folder)}
    for path in folder.iterdir():
        match = _PART_NAME.fullmatch(path.name)
        old = match is not None and int(match[1]) < step and int(match[1]) not in kept
        if old and peek_description(path, kind=PART_FORMAT) is not None:
            path.unlink(missing_ok=True)


def _is_checkpoint(path: Path) -> bool:
    """Whether a file's header says that this library wrote it."""
    return peek_description(path, kind=FORMAT) is not None


def stores(folder: Path) -> list[dict[str, Any]]:
    """What the stores of draws held, as the headers of all checkpoints in a folder say."""
    found = [(peek_description(path, kind=FORMAT) or {}).get("store") for path in files(folder)]
    return [store for store in found if isinstance(store, dict)]


def read(path: Path) -> Checkpoint:
    """A checkpoint, if every bit of it is as it was written."""
    try:
        found = read_tensors(path, kind=FORMAT, newest=PARTS_VERSION)
        about = found.about
        parts = about.get("parts")
        arrays = unpack_arrays(found.tensors, about["dtypes"]) if parts is None else _read_parts(path, parts)
        return Checkpoint(int(about["step"]), arrays, dict(about["settings"]), about.get("store"), about.get("data"))
    except NewerFormatError as error:
        raise FutureVersionError(f"checkpoint: {error}, or choose another checkpoint folder") from error
    except DamagedFileError as error:
        raise CheckpointError(str(error)) from error
    except (KeyError, TypeError, ValueError, AttributeError, MemoryError) as error:
        raise CheckpointError(f"{path}: it is not a ridgewalk checkpoint, or damaged ({error!r})") from error


def latest(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that can be read, or None where there is none; a damaged one is skipped with a warning."""
    found = files(folder)
    for path in reversed(found):
        try:
            return read(path)
        except FutureVersionError:
            raise
        except (CheckpointError, OSError) as error:
            warnings.warn(f"checkpoint: {error}; an older one is used", RuntimeWarning, stacklevel=2)
    if found:
        raise CheckpointError(
            f"checkpoint: none of the {len(found)} checkpoints in {folder} can be read; move them away to start afresh"
        )
    return None


# Snapshots of settings

PACKAGES = ("jax", "jaxlib", "numpy", "scipy", "optax", "equinox", "flax", "numpyro", "pymc", "pytensor", "ridgewalk")
"""Packages whose functions count by their names, and whose versions are compared in their place."""

CONFIG = ("jax_threefry_partitionable", "jax_default_matmul_precision")
"""Settings of JAX on which the bits of a run depend."""

DEVICES_FLAG = "--xla_force_host_platform_device_count"
"""The flag of XLA on which they do not."""

ENVIRONMENT = "environment"
"""The setting that holds versions and flags; where it differs, `warn_of_environment` says so, not `differences`."""

DIGEST = 16
"""Hexadecimal digits of a digest: 64 bits, against accidents."""

BYTES_AT_ONCE = 2**26


def config_snapshot(value: Any) -> Any:
    """A JSON value that is equal for equal settings, in this process and in another one."""
    return _Snapshot().of(value)


class _Snapshot:
    """One snapshot. Cycles end at the object that holds itself; a function or class is described once."""

    def __init__(self) -> None:
        self._inside: list[Any] = []
        self._seen: list[Any] = []

    def of(self, value: Any) -> Any:
        """The description of any value."""
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return value if np.isfinite(value) else repr(value)  # JSON has no NaN, and NaN would not equal itself
        if isinstance(value, complex | np.dtype | range | slice | PurePath) or value is Ellipsis:
            return str(value)
        if isinstance(value, bytes | bytearray):
            return f"bytes {_short(hashlib.sha256(value))}"
        if hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, ModuleType):  # jax.numpy has
            return self.of(value.item()) if isinstance(value, np.generic) else self._array(value)
        return self._nested(value)

    def _nested(self, value: Any) -> Any:
        """What can hold itself."""
        if any(value is other for other in self._inside):
            return f"itself, {len(self._inside)} levels up"
        self._inside.append(value)
        try:
            if isinstance(value, Mapping):
                return {str(key): self.of(item) for key, item in value.items()}
            if isinstance(value, list | tuple):
                return [self.of(item) for item in value]
            if isinstance(value, set | frozenset):
                return sorted((self.of(item) for item in value), key=repr)
            return self._callable(value) if callable(value) else self._object(value)
        finally:
            self._inside.pop()

    def _array(self, value: Any) -> Any:
        """Shape, dtype and a digest of all bytes, read in parts: it may be larger than memory."""
        if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            return f"key {np.asarray(jax.random.key_data(value)).tolist()}"
        if value.dtype == object:
            return [str(tuple(value.shape)), *(self.of(item) for item in np.asarray(value).ravel())]
        digest = hashlib.sha256()
        for part in _parts(value):
            digest.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
        return f"{value.dtype}{list(value.shape)} {_short(digest)}"

    def _callable(self, value: Any) -> Any:
        """A function, a class, or an object that can be called."""
        if isinstance(value, functools.partial):
            parts = {"function": self.of(value.func), "arguments": self.of([value.args, value.keywords])}
            return {"type": "partial", **parts}
        if isinstance(value, MethodType):
            return {"method": self.of(value.__func__), "of": self.of(value.__self__)}
        if isinstance(value, FunctionType | type):
            if any(value is other for other in self._seen):
                return value.__qualname__
            self._seen.append(value)
            return self._function(value) if isinstance(value, FunctionType) else self._class(value)
        return self._other_callable(value)

    def _other_callable(self, value: Any) -> Any:
        """A wrapped function, one that is not written in Python, or an object."""
        wrapped = getattr(value, "__wrapped__", None)  # jax.jit, jax.custom_jvp, functools.lru_cache
        if wrapped is not None and not dataclasses.is_dataclass(value):
            return {"type": type(value).__name__, "function": self.of(wrapped)}
        if isinstance(value, BuiltinFunctionType) or hasattr(value, "__qualname__"):
            return f"{value.__module__}.{value.__qualname__}"
        return self._object(value)

    def _function(self, function: FunctionType) -> dict[str, Any]:
        name = function.__qualname__
        found: dict[str, Any] = {"function": name}
        if _counts_by_name(function.__module__):
            found["function"] = f"{function.__module__}.{name}"
        else:
            found["code"] = code_digest(function.__code__)
            found["globals"] = self._globals(function)
        found["defaults"] = self.of([function.__defaults__, function.__kwdefaults__])
        found["closure"] = {
            name: self._cell(cell)
            for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        }
        return {key: item for key, item in found.items() if item not in ({}, [None, None])}

    def _cell(self, cell: Any) -> Any:
        try:
            return self.of(cell.cell_contents)
        except ValueError:  # nothing was assigned yet
            return "empty"

    def _globals(self, function: FunctionType) -> dict[str, Any]:
        """The values of the globals that the function and those inside it name; modules aside."""
        values = {name: function.__globals__.get(name) for name in sorted(_global_names(function.__code__))}
        return {
            name: self.of(value)
            for name, value in values.items()
            if value is not None and not isinstance(value, ModuleType)
        }

    def _class(self, value: type) -> Any:
        if _counts_by_name(value.__module__):
            return f"{value.__module__}.{value.__qualname__}"
        return {"class": value.__qualname__, **self._methods(value)}

    def _methods(self, value: type) -> dict[str, Any]:
        """The code of a class, its bases' included."""
        bases = [base for base in reversed(value.__mro__) if not _counts_by_name(base.__module__)]
        found = {
            name: code_digest(function.__code__)
            for base in bases
            for name, function in ((name, _unwrapped(item)) for name, item in vars(base).items())
            if isinstance(function, FunctionType) and function.__module__ == base.__module__
            if not (name in GENERATED and dataclasses.is_dataclass(base))
        }
        return {"methods": found} if found else {}

    def _object(self, value: Any) -> Any:
        """Anything else by its type and its parts."""
        if isinstance(value, ModuleType):
            return f"module {value.__name__}"
        kind = {"type": type(value).__name__, **self._methods(type(value))}
        if isinstance(value, Batches):
            return {**kind, "size": value.size}
        if isinstance(value, Sharded):
            return {**kind, "size": value.size, "shards": value.shards, "fingerprint": value.fingerprint}
        if dataclasses.is_dataclass(value):
            fields = [field.name for field in dataclasses.fields(value)]
            return {**kind, **{name: self.of(getattr(value, name)) for name in fields}}
        leaves, structure = jax.tree.flatten(value)
        if not jax.tree_util.treedef_is_leaf(structure):
            return {**kind, "leaves": self.of(leaves)}
        known = _counts_by_name(type(value).__module__) or not hasattr(value, "__dict__")
        return kind if known else {**kind, "attributes": self.of(vars(value))}


GENERATED = ("__init__", "__repr__", "__eq__", "__hash__", "__setattr__", "__delattr__", "__replace__", "__lt__")
"""Methods that `dataclass` writes, differently in every version of Python."""


def _counts_by_name(module: str | None) -> bool:
    package = (module or "builtins").split(".")[0]
    return package in PACKAGES or (package in sys.stdlib_module_names and package != "__main__")


def _unwrapped(item: Any) -> Any:
    """The function of a method as a class holds it: a property, a class method, a method of equinox."""
    for name in ("__func__", "fget", "method", "__wrapped__"):
        item = getattr(item, name, None) or item
    return item


def _short(digest: Any) -> str:
    return str(digest.hexdigest()[:DIGEST])


def _parts(value: Any) -> Iterable[np.ndarray]:
    """The rows of an array, as many at a time as take about 64 MB, in whole chunks of a chunked file."""
    if not value.shape or isinstance(value, jax.Array):
        return [np.asarray(value)]
    try:
        row = int(np.prod(value.shape[1:])) * np.dtype(value.dtype).itemsize
    except TypeError:  # a tensor of another library
        return [np.asarray(value)]
    rows = max(1, BYTES_AT_ONCE // max(row, 1))
    chunk = (getattr(value, "chunks", None) or (1,))[0]
    rows = max(rows - rows % chunk, chunk)
    return (np.asarray(value[start : start + rows]) for start in range(0, value.shape[0], rows))


def _global_names(code: CodeType) -> set[str]:
    inner = [_global_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    here = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return here.union(*inner)


def code_digest(code: CodeType) -> str:
    """Bytecode, names and constants of a function and those inside it, without places in files and docstrings.

    Bytecode differs between versions of Python, so the digest begins with that.
    """
    return f"{sys.implementation.cache_tag} {_short(hashlib.sha256(_code(code).encode()))}"


def _code(code: CodeType) -> str:
    documented = bool(code.co_consts) and isinstance(code.co_consts[0], str)
    constants = (None, *code.co_consts[1:]) if documented and not _uses_first_constant(code) else code.co_consts
    return repr((code.co_code, code.co_names, code.co_freevars, code.co_argcount, [_constant(c) for c in constants]))


def _uses_first_constant(code: CodeType) -> bool:
    """Whether the first constant, a string, is more than a docstring."""
    return any(step.arg == 0 and step.opname in ("LOAD_CONST", "RETURN_CONST") for step in dis.get_instructions(code))


def _constant(constant: Any) -> str:
    if isinstance(constant, CodeType):
        return _code(constant)
    if isinstance(constant, tuple):
        return f"({', '.join(map(_constant, constant))})"
    if isinstance(constant, frozenset):
        return f"{{{', '.join(sorted(map(_constant, constant)))}}}"
    return f"{type(constant).__name__} {constant!r}"


def environment() -> dict[str, Any]:
    """What the bits of a run depend on beside its settings: versions, XLA's flags, JAX's configuration, the device."""
    device, flags = jax.devices()[0], os.environ.get("XLA_FLAGS", "").split()
    return {
        "versions": {"python": sys.implementation.cache_tag, **{name: _version(name) for name in PACKAGES}},
        "XLA_FLAGS": sorted(flag for flag in set(flags) if not flag.startswith(DEVICES_FLAG)),
        "config": {name: repr(getattr(jax.config, name)) for name in CONFIG},
        "device": f"{device.platform} {device.device_kind}",
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def differences(then: Any, now: Any, where: str = "", words: tuple[str, str] = ("then", "now")) -> list[str]:
    """Every setting that differs, with both values, each followed by its word; the environment aside."""
    if isinstance(then, dict) and isinstance(now, dict):
        keys = [*then, *(key for key in now if key not in then)]
        return [
            line
            for key in keys
            if where or key != ENVIRONMENT
            for line in differences(then.get(key), now.get(key), f"{where}.{key}" if where else str(key), words)
        ]
    if isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        pairs = enumerate(zip(then, now, strict=True))
        return [line for i, (a, b) in pairs for line in differences(a, b, f"{where}[{i}]", words)]
    same = then == now or (then != then and now != now) or _other_bytecode(then, now)  # noqa: PLR0124  (NaN)
    return [] if same else [f"{where}: {then!r} {words[0]}, {now!r} {words[1]}"]


def _other_bytecode(then: Any, now: Any) -> bool:
    """Whether both are digests of code for different versions of Python, which cannot be compared."""
    tags = [str(value).split(" ")[0] for value in (then, now)]
    return tags[0] != tags[1] and all(tag.startswith(f"{sys.implementation.name}-") for tag in tags)


def warn_of_environment(then: Any, now: Any) -> None:
    """Warn where a run goes on with other versions, flags or devices: it is then not promised to be bit-identical."""
    before, after = (value.get(ENVIRONMENT) if isinstance(value, dict) else None for value in (then, now))
    changed = differences(before, after, ENVIRONMENT)
    if changed:
        warnings.warn(
            "resume: the run was begun in another environment, so it may not continue bit for bit as it would have "
            "there:\n  " + "\n  ".join(changed),
            RuntimeWarning,
            stacklevel=2,
        )
