"""Zarr groups, opened safely: format 3 only, known codecs and dtypes, regular files, and checksums that name the file.

Metadata are read as plain JSON and checked before zarr sees them, so that neither a codec that runs code nor a shape
that fills the memory is ever reached. Chunks are read through `CheckedStore`, which refuses what is missing or damaged
and names the file. Nothing here imports JAX.
"""

import asyncio
import itertools
import json
import math
import os
import re
import stat
import unicodedata
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from ridgewalk._io import (
    DamagedFileError,
    file_digest,
    read_json_object,
    read_regular,
    seal,
    unseal,
    write_atomically,
)
from ridgewalk._validation import requires_extra

with requires_extra("store"):
    import google_crc32c  # a dependency of zarr
    import zarr
    from zarr.codecs import Crc32cCodec, ZstdCodec
    from zarr.storage import LocalStore

METADATA = "zarr.json"

METADATA_LIMIT = 2**24
"""Bytes of the largest metadata file that is read."""

COMPRESSORS: Any = (ZstdCodec(level=0), Crc32cCodec())
"""What every chunk is written with; the checksum comes last, so that it covers the file."""

CODECS = {("bytes",), ("bytes", "crc32c"), ("bytes", "zstd"), ("bytes", "zstd", "crc32c")}
"""The codecs that are read. None of them can run code, and each says how many bytes it decodes to."""

NUMBERS = frozenset(
    [
        "bool",
        *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
        "float16",
        "float32",
        "float64",
    ]
)
"""The dtypes that are read: numbers of a fixed size."""

DEEPEST = 8
"""How deep groups may be nested."""

MOST_COMPRESSED = 2**15
"""Zstandard's largest ratio: a block of 128 KiB that repeats one byte takes 4 bytes."""

CHECKSUM_BYTES = 4


@dataclass(frozen=True)
class ArrayInfo:
    """An array's metadata, checked."""

    folder: Path
    metadata: dict[str, Any]
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: np.dtype[Any]
    codecs: tuple[str, ...]

    @property
    def attributes(self) -> dict[str, Any]:
        """The user's attributes."""
        found: dict[str, Any] = self.metadata.get("attributes", {})
        return found

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a decoded chunk."""
        return math.prod(self.chunks) * self.dtype.itemsize

    @cached_property
    def _separator(self) -> str:
        separator: str = self.metadata["chunk_key_encoding"].get("configuration", {}).get("separator", "/")
        return separator

    def chunk_indices(self) -> Iterator[tuple[int, ...]]:
        """The index of every chunk."""
        counts = [-(-length // chunk) for length, chunk in zip(self.shape, self.chunks, strict=True)]
        return itertools.product(*map(range, counts))

    def chunk_file(self, index: tuple[int, ...]) -> Path:
        """Where a chunk is stored."""
        return self.folder / self._separator.join(["c", *map(str, index)])

    def parse_chunk(self, key: str) -> tuple[int, ...]:
        """The index of a chunk's key, relative to the array."""
        return tuple(int(number) for number in key.split(self._separator)[1:])

    def check_chunks(self) -> None:
        """Raise where a chunk is missing or is too small for what it is said to hold."""
        if math.prod(self.shape) == 0:
            return
        for index in self.chunk_indices():
            path = self.chunk_file(index)
            try:
                about = os.lstat(path)
            except (FileNotFoundError, NotADirectoryError):
                raise missing_chunk(path) from None
            if not stat.S_ISREG(about.st_mode):
                raise DamagedFileError(path, "it is not a regular file")
            if about.st_size * MOST_COMPRESSED < self.chunk_bytes:
                raise DamagedFileError(
                    path, f"it has {about.st_size:,} bytes, too few for the {self.chunk_bytes:,} it is said to hold"
                )

    def check_content(self, path: Path, content: bytes) -> None:
        """Raise where a chunk's checksum fails, or where it would decode to another size than a chunk's."""
        payload = memoryview(content)
        if "crc32c" in self.codecs:
            payload = payload[:-CHECKSUM_BYTES]
            if checksum(payload) != int.from_bytes(content[-CHECKSUM_BYTES:], "little"):
                raise DamagedFileError(path, "its checksum does not match, so it is damaged")
        size = _zstd_size(payload) if "zstd" in self.codecs else len(payload)
        if size != self.chunk_bytes:
            raise DamagedFileError(path, f"it decodes to {size} bytes; a chunk has {self.chunk_bytes}: it is damaged")


class GroupInfo(NamedTuple):
    """A group's attributes and all arrays below it, by path (`posterior/position`)."""

    attributes: dict[str, Any]
    arrays: dict[str, ArrayInfo]


def missing_chunk(path: Path) -> DamagedFileError:
    """The error for a chunk that was written and is not there."""
    return DamagedFileError(path, "this chunk of the array is missing; restore it from a copy")


def checksum(content: Any) -> int:
    """CRC-32C of a buffer."""
    return int(google_crc32c.value(np.frombuffer(content, np.uint8)))


def _zstd_size(frame: memoryview) -> int:
    """The size a Zstandard frame declares that it decodes to; −1 where it declares none."""
    if len(frame) < 6 or int.from_bytes(frame[:4], "little") != 0xFD2FB528:
        return -1
    descriptor = frame[4]
    single = descriptor >> 5 & 1
    width = (single, 2, 4, 8)[descriptor >> 6]
    start = 5 + (1 - single) + (0, 1, 2, 4)[descriptor & 3]
    field = frame[start : start + width]
    if width == 0 or len(field) < width:
        return -1
    return int.from_bytes(field, "little") + (256 if width == 2 else 0)


# Metadata


def inspect_group(folder: Path, dtypes: Collection[str] = NUMBERS) -> GroupInfo:
    """Read and check the metadata of a group and of everything below it, without zarr.

    Raises
    ------
    DamagedFileError
        With the file, where anything is not as this library's zarr groups are: another format, codec or dtype, a link
        in place of a folder, metadata that are damaged.
    """
    root = _metadata(folder)
    if root.get("node_type") != "group":
        raise DamagedFileError(folder / METADATA, f"it describes {root.get('node_type')!r}; a group is expected")
    arrays: dict[str, ArrayInfo] = {}
    _collect(folder, "", dtypes, arrays, 0)
    return GroupInfo(_attributes(folder, root), arrays)


def _collect(folder: Path, prefix: str, dtypes: Collection[str], arrays: dict[str, ArrayInfo], depth: int) -> None:
    if depth > DEEPEST:
        raise DamagedFileError(folder, f"its groups are nested more than {DEEPEST} deep")
    with os.scandir(folder) as entries:
        inner = sorted(entries, key=lambda entry: entry.name)
    for entry in inner:
        place = folder / entry.name
        if not os.path.lexists(place / METADATA):
            continue
        if entry.is_symlink():
            raise DamagedFileError(place, "it is a symbolic link; a folder is expected")
        metadata = _metadata(place)
        if metadata.get("node_type") == "array":
            arrays[prefix + entry.name] = _array(place, metadata, dtypes)
        elif metadata.get("node_type") == "group":
            _attributes(place, metadata)
            _collect(place, f"{prefix}{entry.name}/", dtypes, arrays, depth + 1)
        else:
            raise DamagedFileError(place / METADATA, "it describes neither an array nor a group")


def _metadata(folder: Path) -> dict[str, Any]:
    path = folder / METADATA
    try:
        found = read_json_object(path, METADATA_LIMIT)
    except (FileNotFoundError, NotADirectoryError):
        if any(os.path.lexists(folder / name) for name in (".zgroup", ".zarray", ".zmetadata")):
            raise DamagedFileError(
                folder, "it is in zarr format 2, which is not read; rewrite it with zarr_format=3"
            ) from None
        raise DamagedFileError(folder, f"it is not a zarr group (it has no {METADATA})") from None
    if found.get("zarr_format") != 3:
        raise DamagedFileError(path, f"its zarr_format is {found.get('zarr_format')!r}; only 3 is read")
    return found


def _attributes(folder: Path, metadata: dict[str, Any]) -> dict[str, Any]:
    attributes = metadata.get("attributes", {})
    if not isinstance(attributes, dict):
        raise DamagedFileError(folder / METADATA, "its attributes are not an object")
    return attributes


def _array(folder: Path, metadata: dict[str, Any], dtypes: Collection[str]) -> ArrayInfo:
    path = folder / METADATA
    dtype = metadata.get("data_type")
    if not isinstance(dtype, str) or dtype not in dtypes:
        raise DamagedFileError(path, f"its data type {str(dtype)[:80]!r} is not read; numbers are: {_listed(dtypes)}")
    codecs = _codecs(path, metadata.get("codecs"))
    if metadata.get("storage_transformers"):
        raise DamagedFileError(path, "it has storage transformers, which are not read")
    try:
        grid, keys = metadata["chunk_grid"], metadata["chunk_key_encoding"]
        shape, chunks = _lengths(metadata["shape"], 0), _lengths(grid["configuration"]["chunk_shape"], 1)
        regular = grid["name"] == "regular" and len(shape) == len(chunks) <= 32
        plain = keys["name"] == "default" and keys.get("configuration", {}).get("separator", "/") in ("/", ".")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DamagedFileError(path, f"its metadata are damaged ({error!r})") from error
    if not (regular and plain):
        raise DamagedFileError(path, "its chunks are not laid out as zarr does by default (a regular grid)")
    _attributes(folder, metadata)
    endian = metadata["codecs"][0].get("configuration", {}).get("endian", "little")
    order = np.dtype(dtype).newbyteorder("<" if endian == "little" else ">")
    return ArrayInfo(folder, metadata, shape, chunks, order, codecs)


def _codecs(path: Path, found: Any) -> tuple[str, ...]:
    entries = found if isinstance(found, list) else [found]
    names = tuple(str(entry.get("name") if isinstance(entry, dict) else entry) for entry in entries[:20])
    settings = [entry.get("configuration", {}) if isinstance(entry, dict) else None for entry in entries]
    if names not in CODECS or not all(isinstance(each, dict) for each in settings):
        raise DamagedFileError(
            path,
            f"its codecs ({', '.join(names)[:200]}) are not read; write the array with Zstandard (zarr's default), "
            "with or without crc32c, and no filters",
        )
    return names


def _lengths(found: Any, least: int) -> tuple[int, ...]:
    if not isinstance(found, list) or not all(type(length) is int and least <= length < 2**62 for length in found):
        raise ValueError("a shape is not a list of whole numbers")
    return tuple(found)


def _listed(dtypes: Collection[str]) -> str:
    return ", ".join(sorted(dtypes))


# Data


class CheckedStore(LocalStore):
    """A folder whose chunks are checked when read: regular files, of the right size, with the right checksum.

    `arrays` are the arrays that may be read. `digests` holds, by key, the digest that a chunk must have where that is
    known: those of the chunks that this store has written, and those that the caller puts there. Where `complete`, all
    chunks have to exist; else those of the first entries along axis 1 that `counts` has for an array.
    """

    def __init__(self, root: Path | str, *, read_only: bool = False) -> None:
        super().__init__(root, read_only=read_only)
        self.arrays: dict[str, ArrayInfo] = {}
        self.complete = True
        self.digests: dict[str, str] = {}
        self.counts: dict[str, int] = {}

    def with_read_only(self, read_only: bool = False) -> "CheckedStore":
        """The same store, for reading only or not."""
        other = type(self)(self.root, read_only=read_only)
        other.arrays, other.complete = self.arrays, self.complete
        other.digests, other.counts = self.digests, self.counts
        return other

    def must_exist(self, name: str, index: tuple[int, ...]) -> bool:
        """Whether a chunk was written, so that it is an error if it is missing."""
        return self.complete or (name in self.counts and index[1] * self.arrays[name].chunks[1] < self.counts[name])

    def _read(self, key: str) -> bytes | None:
        path = self.root / key
        name, chunk = _split(key)
        info = self.arrays.get(name) if chunk else None
        limit = METADATA_LIMIT if info is None else 2 * info.chunk_bytes + 2**16
        try:
            content = read_regular(path, limit)
        except (FileNotFoundError, NotADirectoryError):
            if info is not None and self.must_exist(name, info.parse_chunk(chunk)):
                raise missing_chunk(path) from None
            return None
        except IsADirectoryError:
            raise DamagedFileError(path, "it is a folder; a file is expected") from None
        if info is not None:
            info.check_content(path, content)
            if self.digests.get(key) not in (None, digest(content)):
                raise DamagedFileError(path, "it is not the chunk that the run wrote there; restore it from a copy")
        return content

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        """The content of a file; None for a chunk that was never written."""
        if byte_range is not None:  # no codec that is allowed reads parts of a file
            raise DamagedFileError(self.root / key, "its codecs read parts of files, which is not supported")
        buffer = zarr.core.buffer.default_buffer_prototype().buffer if prototype is None else prototype.buffer
        content = await asyncio.to_thread(self._read, key)
        return None if content is None else buffer.from_bytes(content)

    def get_sync(self, key: str, *, prototype: Any = None, byte_range: Any = None) -> Any:
        """The same, without an event loop."""
        buffer = zarr.core.buffer.default_buffer_prototype().buffer if prototype is None else prototype.buffer
        content = self._read(key)
        return None if content is None else buffer.from_bytes(content)

    async def set(self, key: str, value: Any) -> None:
        """Write a file in one step; one that exists is replaced only after the new one is on the disk."""
        path = self.root / key
        if path.exists():
            self._check_writable()
            await asyncio.to_thread(write_atomically, path, value.to_bytes())
        else:
            await super().set(key, value)
        if _split(key)[1]:
            self.digests[key] = digest(value.as_numpy_array())


def _split(key: str) -> tuple[str, str]:
    """The array and the chunk of a key; no chunk for metadata."""
    name, slash, rest = key.rpartition("/c/")
    if slash:
        return name, f"c/{rest}"
    name, slash, rest = key.rpartition("/")
    return (name, rest) if slash and (rest == "c" or rest.startswith("c.")) else (key, "")


def digest(content: Any) -> str:
    """Size and checksum of a chunk's file. The checksum is the one that the crc32c codec wrote, already verified."""
    return f"{len(content)}-{bytes(content[-CHECKSUM_BYTES:]).hex()}"


def open_group(
    folder: Path,
    *,
    mode: Literal["r", "r+"] = "r",
    dtypes: Collection[str] = NUMBERS,
    complete: bool = True,
) -> zarr.Group:
    """Open a zarr group of format 3 after its metadata have been checked.

    Parameters
    ----------
    folder
        The group.
    mode
        "r" to read, "r+" to write as well.
    dtypes
        The data types that are read.
    complete
        Whether every chunk of every array has been written (arrays with `write_empty_chunks=True`): a missing one is
        then an error, before memory for the array is allocated. False takes a missing chunk for fill values.

    Raises
    ------
    DamagedFileError
        A ValueError that names the file; the same for chunks that are read later.
    """
    info = inspect_group(folder, dtypes)
    if complete:
        for array in info.arrays.values():
            array.check_chunks()
    checked = CheckedStore(folder, read_only=mode == "r")
    checked.arrays, checked.complete = info.arrays, complete
    place = folder
    try:
        group = zarr.open_group(checked, mode=mode, zarr_format=3, use_consolidated=False)
        for name in info.arrays:
            place = folder / name
            group[name]
    except OSError:
        raise
    except Exception as error:  # zarr's own checks raise many kinds
        raise DamagedFileError(place / METADATA, f"zarr cannot open it ({error})") from error
    return group


def create_group(folder: Path, attributes: Mapping[str, Any]) -> Any:
    """A new group in zarr format 3, the only one that is read."""
    return zarr.create_group(store=folder, zarr_format=3, attributes=dict(attributes))


_UNFINISHED = re.compile(r"\d+\.[0-9a-f]{32}\.partial|\.\d+\.[0-9a-f]{16}\.tmp")


def remove_unfinished(info: ArrayInfo) -> None:
    """Remove what a killed process left of the chunks it was writing: zarr's temporary files, and those of `set`."""
    for folder, _, names in os.walk(info.folder / "c"):
        for path in [Path(folder, name) for name in names if _UNFINISHED.fullmatch(name)]:
            if stat.S_ISREG(path.lstat().st_mode):
                path.unlink()


def read_array(array: Any, selection: Any = ...) -> np.ndarray:
    """Read from an array of a group that `open_group` opened; damage is an error that names the array's folder."""
    try:
        return np.asarray(array[selection])
    except (OSError, DamagedFileError, IndexError):
        raise
    except Exception as error:  # codecs raise many kinds, MemoryError among them
        folder = array.store.root / array.path
        raise DamagedFileError(folder, f"its chunks cannot be decoded ({error!r})") from error


# Arrays that grow


def with_length(array: Any, info: ArrayInfo, length: int, axis: int = 1) -> Any:
    """An open array as if one of its axes had another length; nothing on disk changes."""
    return zarr.Array.from_dict(array.store_path, _resized(info, length, axis))


def _resized(info: ArrayInfo, length: int, axis: int) -> dict[str, Any]:
    shape = [*info.shape[:axis], length, *info.shape[axis + 1 :]]
    return {**info.metadata, "shape": shape}


def set_length(info: ArrayInfo, length: int, axis: int = 1) -> Path:
    """Write another length of an axis into the metadata of an array, in one step; returns their file."""
    path = info.folder / METADATA
    write_atomically(path, json.dumps(_resized(info, length, axis), indent=1).encode())
    return path


def consolidate(folder: Path) -> Path:
    """Copy the metadata of all groups and arrays below into those of the root, in one step, for xarray; their file."""
    found = {
        path.parent.relative_to(folder).as_posix(): _metadata(path.parent)
        for path in sorted([*folder.glob(f"*/{METADATA}"), *folder.glob(f"*/*/{METADATA}")])
    }
    inline = {"kind": "inline", "must_understand": False, "metadata": found}
    write_atomically(
        folder / METADATA, json.dumps({**_metadata(folder), "consolidated_metadata": inline}, indent=1).encode()
    )
    return folder / METADATA


class StoredArray:
    """Draws on disk, read when they are indexed. A chunk that is missing or damaged is an error that names its file."""

    def __init__(self, array: Any, dtype: np.dtype[Any]) -> None:
        self.array, self.dtype = array, dtype
        self.shape: tuple[int, ...] = array.shape
        self.chunks: tuple[int, ...] = array.chunks

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape))

    def __len__(self) -> int:
        """Length of the first axis."""
        return self.shape[0]

    def __getitem__(self, selection: Any) -> np.ndarray:
        """The selected draws, in memory."""
        values = read_array(self.array, selection)
        return values if values.dtype == self.dtype else values.view(self.dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """All draws, in memory."""
        return self[...] if dtype is None else self[...].astype(dtype, copy=False)

    def __repr__(self) -> str:
        """Shape, dtype and place."""
        return f"StoredArray(shape={self.shape}, dtype={self.dtype}, path={self.array.store.root / self.array.path})"


# Sealed groups: every file is known by its digest

FILES = "files"
"""The attribute of a sealed group that holds the SHA-256 of its files, by path."""


def seal_group(folder: Path, digests: Mapping[str, str]) -> None:
    """Put the digests of a complete group's files into its metadata, with a digest of the metadata themselves."""
    metadata = _metadata(folder)
    metadata["attributes"] = {**_attributes(folder, metadata), FILES: dict(digests)}
    metadata.pop("sha256", None)
    seal_of = seal(metadata)["sha256"]
    metadata["attributes"]["sha256"] = seal_of
    write_atomically(folder / METADATA, json.dumps(metadata, indent=1).encode())


def sealed_files(folder: Path) -> dict[str, str] | None:
    """The digests of a sealed group's files; None where the group is not sealed.

    Raises
    ------
    DamagedFileError
        Where the metadata changed after the group was sealed.
    """
    metadata = _metadata(folder)
    attributes = dict(_attributes(folder, metadata))
    if FILES not in attributes:
        return None
    found = attributes.pop("sha256", None)
    unseal(folder / METADATA, {**metadata, "attributes": attributes, "sha256": found})
    files: dict[str, str] = attributes[FILES]
    return files


def digests_below(folder: Path, place: str) -> dict[str, str]:
    """Size and SHA-256 of a file, or of the files below a folder of a group, by path."""
    top = folder / place
    paths = (
        [path for path in sorted(top.rglob("*")) if path.is_symlink() or not path.is_dir()] if top.is_dir() else [top]
    )
    return {path.relative_to(folder).as_posix(): f"{path.lstat().st_size}-{file_digest(path)}" for path in paths}


def check_files(folder: Path, digests: Mapping[str, str], places: Collection[str] | None = None) -> None:
    """Raise where a file has another digest or is missing; `places` are the files, or folders of files, to look at."""
    for name, wanted in digests.items():
        if places is not None and not any(name == place or name.startswith(f"{place}/") for place in places):
            continue
        path = folder / name
        try:
            size = path.lstat().st_size
            found = f"{size}-{file_digest(path) if wanted.startswith(f'{size}-') else ''}"
        except (FileNotFoundError, NotADirectoryError):
            raise missing_chunk(path) from None
        if found != wanted:
            raise DamagedFileError(path, "its checksum does not match, so it was changed or is damaged")


# Arrays of draws


def array_names(names: list[str], taken: Collection[str] = ()) -> list[str]:
    """A folder name for every leaf: letters, digits and `._- ` are kept, others escaped as in a URL.

    Names that zarr or others have `taken`, that are too long, or that differ only by case are changed, so that all are
    valid and distinct on every file system.
    """
    found: list[str] = []
    seen = set(taken)
    for name in names:
        kept = "".join(c if c.isalnum() or c in "._- " else _escaped(c) for c in name)
        if kept.startswith((".", "__", " ")) or kept.casefold() == METADATA or not kept:
            kept = _escaped(kept[:1]) + kept[1:]
        if len(kept.encode()) > 120:
            short = sha256(name.encode("utf-8", "replace")).hexdigest()[:8]
            kept = f"{kept.encode()[:100].decode(errors='ignore')}~{short}"
        unique, count = kept, 1
        while (folded := unicodedata.normalize("NFC", unique).casefold()) in seen:
            count += 1
            unique = f"{kept}~{count}"
        seen.add(folded)
        found.append(unique)
    return found


def _escaped(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode("utf-8", "surrogatepass"))
