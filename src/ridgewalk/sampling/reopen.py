"""`open_result`: the draws of a finished or running run, from its store or its checkpoint folder alone.

Positions are rebuilt from the paths of their leaves. Functions are not stored, so what needs the target is refused.
"""

import ast
import json
import os
import re
from collections import namedtuple
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ridgewalk._io import DamagedFileError, read_sealed, read_tensors
from ridgewalk._types import PyTree
from ridgewalk.kernel import Info
from ridgewalk.result import ChainStatus, Result
from ridgewalk.sampling import checkpoint, segments
from ridgewalk.sampling.storage import is_floating

if TYPE_CHECKING:
    from ridgewalk._zarr import ArrayInfo, StoredArray

METADATA = "zarr.json"


def open_result(path: str | Path, *, position: PyTree = None) -> Result:
    """Open the draws of a run without repeating the call that made them; the run may have ended or still go on.

    Draws of a store stay on disk until they are indexed. Averages, `summary()`, `predict`, `to_arviz()` and plots work
    as for the result of `sample`; `check()` reports what the draws alone show. What needs the target or the states of
    the chains says so: the run's own call with `resume=True` has them.

    Args:
        path: the folder given to `sample` as `store=`, or as `checkpoint=` of a run without a store.
        position: a position with the structure of the run's, such as its start. Without it, dictionaries, tuples
            (also for lists) and named tuples (also for other classes) are built from the names of the leaves.
            Variables of a model are shown as they were sampled, unconstrained.
    """
    folder = Path(path)
    if os.path.lexists(folder / METADATA):
        return _from_store(folder, position)
    if checkpoint.files(folder):
        return _from_checkpoint(folder, position)
    raise ValueError(f"path: {folder} is neither a store of draws nor a checkpoint folder with draws")


# Stores


def settings_of(path: Path) -> Any:
    """The settings of the run that wrote a store, or None where the folder is something else."""
    if not os.path.lexists(path / METADATA):
        return None
    from ridgewalk import _zarr  # noqa: PLC0415  (zarr is optional, and slow to import)
    from ridgewalk.sampling.zarr_store import DTYPES, FORMAT, FORMAT_VERSION  # noqa: PLC0415

    about = _zarr.inspect_group(path, DTYPES).attributes
    if about.get("format") != FORMAT:
        return None
    version = about.get("format_version")
    if not isinstance(version, int) or version != FORMAT_VERSION:
        older = isinstance(version, int) and version < FORMAT_VERSION
        fix = (
            "finish the run with the version of ridgewalk that wrote it"
            if older
            else "upgrade ridgewalk, if a later version wrote it"
        )
        raise ValueError(
            f"store: {path}/{METADATA} has format version {version}, this ridgewalk writes {FORMAT_VERSION}; "
            f"{fix}, or choose another name"
        )
    try:
        return json.loads(about["settings"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise DamagedFileError(path / METADATA, f"its settings are damaged ({error!r})") from error


def open_finished(path: Path) -> dict[str, "StoredArray"]:
    """The arrays of a finished run's store, by name, after every chunk has been compared with the manifest."""
    from ridgewalk import _zarr  # noqa: PLC0415
    from ridgewalk.sampling.zarr_store import DTYPES, MANIFEST, ChunkedColumn, ColumnSpec  # noqa: PLC0415

    manifest = _manifest(path)
    if manifest is None:
        raise DamagedFileError(path, f"it has no {MANIFEST}: the run that wrote it has not ended; resume it")
    group: Any = _zarr.open_group(path, dtypes=DTYPES, complete=False)
    files: _zarr.CheckedStore = group.store
    found = {}
    for name, then in manifest["columns"].items():
        if name not in files.arrays:
            raise DamagedFileError(path / name, "this array of the store is missing")
        info = files.arrays[name]
        spec = ColumnSpec(name, str(info.attributes.get("leaf")), info.shape[2:], _dtype(info))
        ChunkedColumn(spec, group[name], files).restart(then, then["draws"], set())
        found[name] = _zarr.StoredArray(group[name], spec.dtype)
    return found


def _dtype(info: "ArrayInfo") -> np.dtype[Any]:
    return np.dtype(info.attributes.get("raw_bits_of", info.dtype.newbyteorder("=").name))


def _manifest(path: Path) -> dict[str, Any] | None:
    """The list of what a finished store holds; None where the run has not ended."""
    from ridgewalk.sampling.zarr_store import MANIFEST  # noqa: PLC0415

    if settings_of(path) is None:
        raise ValueError(f"store: {path} is not a store of draws, or its {METADATA} is lost or damaged")
    try:
        return read_sealed(path / MANIFEST)
    except FileNotFoundError:
        return None


def _from_store(path: Path, position: PyTree) -> Result:
    """The draws that a store shows; chunks are compared with the manifest, where there is one, when they are read."""
    from ridgewalk import _zarr  # noqa: PLC0415
    from ridgewalk.sampling.zarr_store import DTYPES, OUTCOME  # noqa: PLC0415

    manifest, settings = _manifest(path), settings_of(path)
    group: Any = _zarr.open_group(path, dtypes=DTYPES, complete=False)
    files: _zarr.CheckedStore = group.store
    named = group.attrs.get("columns")
    if not isinstance(named, list) or not all(name in files.arrays for name in named):
        raise DamagedFileError(path, "an array of the store is missing; restore it from a copy")
    columns = {name: files.arrays[name] for name in named}
    draws = min((info.shape[1] for info in columns.values()), default=0)
    if manifest is not None:
        listed = manifest["columns"]
        if set(listed) != set(columns) or {then["draws"] for then in listed.values()} != {draws}:
            raise DamagedFileError(path, "its arrays are not those that its manifest lists; restore it from a copy")
        for name, info in columns.items():
            files.digests |= _digests(path, info, listed[name]["chunks"])
    leaves: dict[str, dict[str, Any]] = {"posterior": {}, "collected": {}, "sample_stats": {}}
    for name, info in columns.items():
        files.counts[name] = draws
        stored = _zarr.StoredArray(_zarr.with_length(group[name], info, draws), _dtype(info))
        leaves.setdefault(name.split("/")[0], {})[str(info.attributes["leaf"])] = stored
    try:
        outcome = read_sealed(path / OUTCOME) if manifest is not None else None
    except FileNotFoundError:  # an error ended the run
        outcome = None
    status = None if outcome is None else tuple(ChainStatus(**chain) for chain in outcome["status"])
    return _result(path, leaves, settings, status, position)


def _digests(path: Path, info: "ArrayInfo", chunks: list[list[str]]) -> dict[str, str]:
    """The digests that a manifest has of an array's full chunks, by key."""
    rest = (0,) * (len(info.shape) - 2)
    return {
        info.chunk_file((block, chunk, *rest)).relative_to(path).as_posix(): digest
        for chunk, blocks in enumerate(chunks)
        for block, digest in enumerate(blocks)
    }


# Checkpoint folders


def _from_checkpoint(folder: Path, position: PyTree) -> Result:
    """The draws that the newest checkpoint lists, in memory."""
    found = checkpoint.latest(folder)
    manifest = None if found is None else found.store
    if found is None or manifest is None or not {"segments", "parts"} & set(manifest):
        raise ValueError(
            f"path: the draws of the run in {folder} are in the folder that was given as store=; open that"
        )
    parts = sorted(manifest.get("parts", [manifest]), key=lambda part: part.get("chains", (0,))[0])
    read = [_read_segments(folder, part) for part in parts]  # of several processes, each has chains of its own
    leaves: dict[str, dict[str, Any]] = {"posterior": {}, "collected": {}, "sample_stats": {}}
    for name in read[0]:
        group, rest = re.fullmatch(r"\['(\w+)'\](.*)", name, flags=re.DOTALL).groups()  # type: ignore[union-attr]
        leaves[group][rest] = np.concatenate([part[name] for part in read])
    return _result(folder, leaves, found.settings, None, position)


def _read_segments(folder: Path, manifest: dict[str, Any]) -> dict[str, np.ndarray]:
    """The draws of all chains, or of a range of them, by the path of the leaf."""
    parts: list[dict[str, np.ndarray]] = []
    for segment in map(segments.Segment.of, manifest["segments"]):
        file = folder / segment.name
        read = read_tensors(file, kind=segments.FORMAT, newest=segments.FORMAT_VERSION)
        if read.sha256 != segment.sha256:
            raise DamagedFileError(file, "these are not the draws that the checkpoint lists; restore it from a copy")
        arrays = checkpoint.unpack_arrays(read.tensors, read.about["dtypes"])
        parts.append(dict(zip(read.about["leaves"], arrays, strict=True)))
    made = {name: np.concatenate([part[name] for part in parts], axis=1) for name in (parts[0] if parts else ())}
    for array in made.values():
        for chain, draw in manifest.get("masked", []) if is_floating(array.dtype) else []:
            array[chain, draw] = np.nan
    return made


# Results


def _result(
    path: Path,
    leaves: dict[str, dict[str, Any]],
    settings: Any,
    status: tuple[ChainStatus, ...] | None,
    position: PyTree,
) -> Result:
    if not leaves["sample_stats"]:
        raise ValueError(f"path: {path} has no draws yet; open it again when the run has made some")
    stats = {name: np.asarray(leaves["sample_stats"][f"['{name}']"][...]) for name in (*Info._fields, *STEPS)}
    info = Info(*(stats[name] for name in Info._fields))  # type: ignore[arg-type]
    steps, sizes = stats["step"], stats["step_size"]
    if not steps.shape[1]:
        raise ValueError(f"path: {path} has no draws yet; open it again when the run has made some")
    made = int(steps[0, -1]) if status is None else max(chain.steps for chain in status)
    if status is None:
        status = tuple(_status(potentials, steps[0]) for potentials in info.potential)
    return Result(
        positions=_tree(leaves["posterior"], position) if leaves["posterior"] else None,
        final_states=(),
        info=info,
        step_sizes=sizes[0],
        sampler=_recorded(settings.get("sampler"), path, "sampler"),
        estimator=Absent(path, "estimator"),
        batch_size=settings.get("batch_size"),
        status=status,
        steps=made,
        collected=_tree(leaves["collected"], None) if leaves["collected"] else None,
        store=path if os.path.lexists(path / METADATA) else None,
        burn_in=settings.get("burn_in", 0),
        thin=settings.get("thin", 1),
        kept_steps=steps[0],
    )


STEPS = ("step", "step_size")
"""What is stored of every draw beside `Info`."""


def _status(potentials: np.ndarray, steps: np.ndarray) -> ChainStatus:
    """What the draws of one chain show, where the run did not say how it ended."""
    lost = np.flatnonzero(np.isnan(potentials))
    if lost.size:
        return ChainStatus("diverged", int(steps[lost[0]]), "its draws are NaN from then on", "lower step_size")
    return ChainStatus("unfinished", int(steps[-1]))


# Structures

_STEP = re.compile(r"\[(?P<key>(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\]\[]+))\]|\.(?P<name>\w+)", re.DOTALL)


def _tree(leaves: Mapping[str, Any], position: PyTree) -> PyTree:
    """Leaves by path as a pytree: in the structure of `position`, or as their paths say."""
    if position is not None:
        wanted, structure = jax.tree_util.tree_flatten_with_path(position)
        names = [jax.tree_util.keystr(path) for path, _ in wanted]
        shapes = {name: tuple(leaf.shape[2:]) for name, leaf in leaves.items()}
        if {name: np.shape(leaf) for name, (_, leaf) in zip(names, wanted, strict=True)} != shapes:
            listed = ", ".join(f"{name or 'a bare array'} of shape {shape}" for name, shape in shapes.items())
            raise ValueError(f"position: its arrays are not those of the run, which are {listed}")
        return jax.tree.unflatten(structure, [leaves[name] for name in names])
    nested: dict[Any, Any] = {}
    for path, leaf in leaves.items():
        keys = [_key(match) for match in _STEP.finditer(path)]
        if not keys:
            return leaf
        inner = nested
        for key in keys[:-1]:
            inner = inner.setdefault(key, {})
        inner[keys[-1]] = leaf
    return _built(nested)


def _key(match: re.Match[str]) -> tuple[str, Any]:
    """One step of a path: ("name", attribute) or ("key", dictionary key or place in a sequence)."""
    if match["name"] is not None:
        return "name", match["name"]
    try:
        return "key", ast.literal_eval(match["key"])
    except (ValueError, SyntaxError):  # a key of another type, as it prints
        return "key", match["key"]


def _built(node: Any) -> PyTree:
    if not isinstance(node, dict):
        return node
    kinds, keys = {kind for kind, _ in node}, [key for _, key in node]
    values = [_built(value) for value in node.values()]
    if kinds == {"name"}:
        return namedtuple("Position", keys, rename=True)(*values)
    if sorted(keys, key=repr) == sorted(range(len(keys)), key=repr):
        return tuple(dict(zip(keys, values, strict=True))[i] for i in range(len(keys)))
    return dict(zip(keys, values, strict=True))


class Absent:
    """Stands for what a store does not hold; any use of it is an error that says so."""

    def __init__(self, path: Path, what: str) -> None:
        self.__dict__.update(_path=path, _what=what)

    def __getattr__(self, name: str) -> Any:
        """Raise."""
        raise AttributeError(
            f"{self._what}: {self._path} holds draws and settings, no functions and no states, so {name!r} is not "
            "known here; for what needs them, make the call of sample that began the run again, with resume=True"
        )

    def __repr__(self) -> str:
        """What it is."""
        return f"<{self._what} is not stored>"


class Recorded(Absent):
    """The settings of an object, by name, as a run recorded them; the class is named as the object's was."""

    def __repr__(self) -> str:
        """As the object printed."""
        shown = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


def _recorded(value: Any, path: Path, what: str) -> Any:
    """Settings in JSON as objects with attributes."""
    if not isinstance(value, dict) or "type" not in value:
        return value if not isinstance(value, dict) else Absent(path, what)
    made: Callable[..., Any] = type(str(value["type"]), (Recorded,), {})
    found = made(path, what)
    inner = {name: _recorded(part, path, f"{what}.{name}") for name, part in value.items()}
    found.__dict__.update({name: part for name, part in inner.items() if name not in ("type", "methods")})
    return found
