"""Files and folders: atomic writes, checked reads, and removal only of what this library made.

Folders that the library makes on the way to a result carry a marker file, which names the result they are for. A
folder without the marker is never removed and never written to. Nothing here imports JAX.
"""

import errno
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from safetensors.numpy import save

MARKER = ".ridgewalk"
"""The file inside a folder that says that this library made the folder, and for which result."""

JSON_LIMIT = 2**26
"""Bytes of the largest JSON file that is read."""

SEALED_LIMIT = 2**30
"""The same of files of a store, which lists every chunk."""

HEADER_LIMIT = 10**8
"""Bytes of the largest header of a safetensors file, as in the safetensors library."""

_DTYPES: dict[str, Any] = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "U16": np.uint16,
    "I16": np.int16,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "U32": np.uint32,
    "I32": np.int32,
    "F32": np.float32,
    "U64": np.uint64,
    "I64": np.int64,
    "F64": np.float64,
    "C64": np.complex64,
}


class DamagedFileError(ValueError):
    """A file that is not as it was written; the message names it."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path, self.why = path, why


class NewerFormatError(ValueError):
    """A file that a later version of the library wrote."""


def refuse_existing(out: Path, overwrite: bool) -> None:
    """Raise where the output exists and is not to be replaced."""
    if os.path.lexists(out) and not overwrite:
        raise ValueError(f"out = {out}: it exists; choose another name, or overwrite it explicitly (--overwrite)")


def force_to_disk(paths: Iterable[Path]) -> None:
    """`fsync` files and folders."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# Writing files


def write_atomically(out: Path, content: bytes) -> None:
    """Write a temporary file beside `out`, `fsync` it, rename it, and `fsync` the folder.

    The temporary name is random and must not exist, so that no link planted there is followed.
    """
    temporary = _beside(out, "tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o666)  # the umask applies
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, out)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    force_to_disk([out.parent])


def _beside(path: Path, kind: str) -> Path:
    """A hidden name in the same folder that cannot be guessed."""
    name = os.fsdecode(os.fsencode(path.name)[:150])  # a name has at most 255 bytes
    return path.with_name(f".{name}.{secrets.token_hex(8)}.{kind}")


# Reading files


@contextmanager
def _opened(path: Path, limit: int | None, follow: bool) -> Iterator[tuple[Any, int]]:
    """An open regular file and its size. Nothing blocks: a FIFO is opened without waiting and refused."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise DamagedFileError(path, "it is a symbolic link; a regular file is expected") from error
        if error.errno == errno.ENXIO:  # a socket
            raise DamagedFileError(path, "it is not a regular file") from error
        raise
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode):
        os.close(descriptor)
        raise DamagedFileError(path, "it is not a regular file")
    with open(descriptor, "rb") as file:
        if limit is not None and about.st_size > limit:
            raise DamagedFileError(path, f"it has {about.st_size:,} bytes; at most {limit:,} are expected")
        yield file, about.st_size


def read_regular(path: Path, limit: int | None = None, *, follow: bool = False) -> bytes:
    """The content of a regular file of at most `limit` bytes; `follow` allows a symbolic link to one."""
    with _opened(path, limit, follow) as (file, size):
        content: bytes = file.read(size)
    return content


def read_json(path: Path, limit: int = JSON_LIMIT, *, follow: bool = False) -> Any:
    """A JSON file's content; damage of any kind is a `DamagedFileError`."""
    content = read_regular(path, limit, follow=follow)
    return _parsed(path, content, "it is not JSON, or it is damaged")


def read_json_object(path: Path, limit: int = JSON_LIMIT, *, follow: bool = False) -> dict[str, Any]:
    """The same, where the file holds an object."""
    content = read_json(path, limit, follow=follow)
    if not isinstance(content, dict):
        raise DamagedFileError(path, f"it holds {type(content).__name__} in place of an object")
    return content


def seal(content: Mapping[str, Any]) -> dict[str, Any]:
    """An object for a JSON file with a SHA-256 of all of it."""
    return {**content, "sha256": _text_digest(content)}


def unseal(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """What was sealed, if nothing of it changed; `path` is for the error."""
    rest = {name: value for name, value in content.items() if name != "sha256"}
    if content.get("sha256") != _text_digest(rest):
        raise DamagedFileError(path, f"the checksum of {path.name} does not match, so it was changed or is damaged")
    return rest


def read_sealed(path: Path) -> dict[str, Any]:
    """What was sealed in a JSON file, if its checksum matches."""
    return unseal(path, read_json_object(path, SEALED_LIMIT))


def signature(path: Path) -> tuple[int, int, int]:
    """Which file this is: it changes where the file is written or replaced."""
    try:
        about = os.lstat(path)
    except OSError as error:
        raise DamagedFileError(path, "it was removed while the run was writing to the store") from error
    return about.st_ino, about.st_size, about.st_mtime_ns


def _text_digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def file_digest(path: Path, limit: int | None = None) -> str:
    """SHA-256 of a regular file, read in pieces."""
    found = hashlib.sha256()
    with _opened(path, limit, follow=False) as (file, _):
        while piece := file.read(2**20):
            found.update(piece)
    return found.hexdigest()


def check_regular(path: Path) -> int:
    """The size of a file of the user's; raise where it is not a regular file, or a link to none."""
    with _opened(path, None, follow=True) as (_, size):
        return int(size)


def _parsed(path: Path, content: bytes | str, otherwise: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError, MemoryError) as error:  # ValueError: not JSON, not UTF-8, a number too long
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise DamagedFileError(path, f"{otherwise} ({why})") from error


# Tensors: safetensors files with a checksum


class TensorFile(NamedTuple):
    """What `read_tensors` finds."""

    tensors: dict[str, np.ndarray]
    about: dict[str, Any]
    version: int
    sha256: str


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray], *, kind: str, version: int, about: Any) -> str:
    """Write arrays to one safetensors file, atomically, with a description in JSON; returns a SHA-256 of both.

    bfloat16 arrays have to be viewed as uint16 first.
    """
    contiguous = {name: np.asarray(tensor, order="C") for name, tensor in tensors.items()}
    text = json.dumps(about, sort_keys=True)
    sha256 = digest(contiguous, text)
    header = {"format": kind, "format_version": str(version), "about": text, "sha256": sha256}
    write_atomically(path, save(contiguous, metadata=header))
    return sha256


def read_tensors(path: Path, *, kind: str, newest: int, limit: int | None = None) -> TensorFile:
    """Read what `write_tensors` wrote, if every bit of it is as it was written.

    The header is checked against the file's size before memory is allocated. `newest` is the latest version of the
    format that the caller reads.
    """
    with _opened(path, limit, follow=False) as (file, size):
        text, header = _header(path, file, size)
        metadata = header.pop("__metadata__", None)
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise DamagedFileError(path, f"it is not a {kind} file, or it is damaged (its header has no description)")
        if metadata.get("format") != kind:
            raise DamagedFileError(path, f"it is not a {kind} file, or it is damaged (its format is not named so)")
        version = metadata.get("format_version", "1")
        if not (version.isascii() and version.isdigit() and len(version) < 10):
            raise DamagedFileError(path, f"its format version {version[:20]!r} is not a number, so it is damaged")
        if int(version) > newest:
            raise NewerFormatError(
                f"{path}: it has format version {version}, this ridgewalk reads up to {newest}; upgrade ridgewalk"
            )
        tensors, _ = _data(path, file, header, size - 8 - len(text))
    about = metadata.get("about", "")
    if digest(tensors, about) != metadata.get("sha256"):
        raise DamagedFileError(path, "its checksum does not match, so it is damaged")
    return TensorFile(tensors, _parsed(path, about, "its description is damaged"), int(version), metadata["sha256"])


def peek_description(path: Path, *, kind: str) -> dict[str, Any] | None:
    """The description in the header of a file that `write_tensors` wrote, without its arrays and not verified.

    None where the file is not of this kind or cannot be read; empty where the description is damaged.
    """
    try:
        with _opened(path, None, follow=False) as (file, size):
            metadata = _header(path, file, size)[1].get("__metadata__")
    except (OSError, ValueError):
        return None
    if not isinstance(metadata, dict) or metadata.get("format") != kind:
        return None
    try:
        about = _parsed(path, metadata.get("about", ""), "its description is damaged")
    except (DamagedFileError, TypeError):
        return {}
    return about if isinstance(about, dict) else {}


def read_plain_tensors(path: Path) -> tuple[dict[str, np.ndarray], str]:
    """The arrays of a safetensors file, whose header is checked against its size, and the SHA-256 of the file."""
    with _opened(path, None, follow=False) as (file, size):
        text, header = _header(path, file, size)
        header.pop("__metadata__", None)
        tensors, data = _data(path, file, header, size - 8 - len(text))
    found = hashlib.sha256(len(text).to_bytes(8, "little") + text)
    found.update(data.data)
    return tensors, found.hexdigest()


def digest(tensors: Mapping[str, np.ndarray], text: str) -> str:
    """SHA-256 of a text and of arrays: names, dtypes, shapes and bytes."""
    found = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        found.update(f"{name} {tensor.dtype} {tensor.shape}".encode())
        found.update(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def _header(path: Path, file: Any, size: int) -> tuple[bytes, dict[str, Any]]:
    """A safetensors header, as written and parsed."""
    first = file.read(8)
    length = int.from_bytes(first, "little")
    if len(first) < 8 or length > min(size - 8, HEADER_LIMIT):
        raise DamagedFileError(path, f"it is truncated or damaged: {size:,} bytes, with a header of {length:,}")
    text: bytes = file.read(length)
    header = _parsed(path, text, "its header is damaged")
    if not isinstance(header, dict):
        raise DamagedFileError(path, "its header is damaged (it is not an object)")
    return text, header


def _data(path: Path, file: Any, header: dict[str, Any], size: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The arrays that a header describes, and the bytes that they are views of."""
    entries = _entries(path, header, size)
    data = np.empty(size, np.uint8)
    if file.readinto(data.data) != size:
        raise DamagedFileError(path, "it was cut short while it was read")
    return _views(entries, data), data


class _Entry(NamedTuple):
    dtype: Any
    shape: tuple[int, ...]
    start: int
    stop: int


def _entries(path: Path, header: dict[str, Any], size: int) -> dict[str, _Entry]:
    """Where every array is; together they are exactly the data present."""
    entries = {}
    for name, about in header.items():
        try:
            dtype, shape, (start, stop) = np.dtype(_DTYPES[about["dtype"]]), about["shape"], about["data_offsets"]
            if not all(type(number) is int and number >= 0 for number in (*shape, start, stop)):
                raise ValueError("a shape or offset is not a whole number")
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedFileError(path, f"its header is damaged ({name[:40]!r}: {error!r})") from error
        entries[name] = _Entry(dtype, tuple(shape), start, stop)
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].stop)):
        wanted = entry.dtype.itemsize
        for length in entry.shape:
            wanted *= length
        if entry.start != end or entry.stop - entry.start != wanted or len(entry.shape) > 64:
            raise DamagedFileError(path, f"its header is damaged ({name[:40]!r} does not fit its bytes)")
        end = entry.stop
    if end != size:
        raise DamagedFileError(
            path, f"it is truncated or damaged: {end:,} bytes of arrays are declared, {size:,} there"
        )
    return entries


def _views(entries: dict[str, _Entry], data: np.ndarray) -> dict[str, np.ndarray]:
    def view(entry: _Entry) -> np.ndarray:
        array = np.ndarray(entry.shape, entry.dtype, data.data, entry.start) if entry.stop > entry.start else None
        if array is None:
            return np.empty(entry.shape, entry.dtype)
        return array if array.flags.aligned else array.copy()

    return {name: view(entry) for name, entry in entries.items()}


# Folders of the library's own


def working_folder(path: Path) -> Path:
    """The folder in which `path` is being made: one that an interrupted process left, or a new one.

    It lies beside `path` under a random name; its marker names `path`. Anything else in the way is left alone.
    """
    found = unfinished_folders(path)
    if found:
        return found[0]
    path.parent.mkdir(parents=True, exist_ok=True)
    folder, descriptor = _make(path, "partial")
    os.close(descriptor)
    return folder


def unfinished_folders(path: Path) -> list[Path]:
    """Folders in which `path` was begun and not finished."""
    return _own_folders(path, "partial")


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """A new folder beside `path`, removed at the end unless it was renamed.

    Folders that killed processes left on the way to the same `path` are removed first.
    """
    for stale in _own_folders(path, "tmp"):
        with _locked(stale) as free:
            if free:
                remove_own(stale)
    path.parent.mkdir(parents=True, exist_ok=True)
    folder, descriptor = _make(path, "tmp")
    try:
        yield folder
    finally:
        if is_own(folder):
            remove_own(folder)
        os.close(descriptor)  # which drops the lock


def replace_folder(fresh: Path, path: Path) -> None:
    """Rename a complete folder of the library to `path`; the folder that it replaces is removed only afterwards.

    The caller has checked that the folder at `path`, if there is one, may be removed.
    """
    if path.is_symlink():
        raise ValueError(f"{path}: it is a symbolic link, which is never replaced; give the folder that it leads to")
    if path.exists():
        former = _beside(path, "former")
        descriptor = _mark(path, path.name)
        try:
            os.rename(path, former)
            try:
                _rename_unmarked(fresh, path)
            except OSError:
                _rename_unmarked(former, path)
                raise
            remove_own(former)
        finally:
            os.close(descriptor)
    else:
        _rename_unmarked(fresh, path)


def _rename_unmarked(folder: Path, path: Path) -> None:
    os.rename(folder, path)
    with suppress(FileNotFoundError):
        os.unlink(path / MARKER)
    force_to_disk([path, path.parent])


def recover_folder(path: Path) -> None:
    """Give a folder its name back if `replace_folder` was killed between its renames, or remove what is left."""
    if is_own(path):  # killed after the rename
        with _locked(path) as free:
            if free:
                os.unlink(path / MARKER)
    for former in _own_folders(path, "former"):
        with _locked(former) as free:
            if not free:
                continue
            if os.path.lexists(path):
                remove_own(former)
            else:
                _rename_unmarked(former, path)


def remove_own(folder: Path) -> None:
    """Remove a folder of the library; the marker goes last, so that removal can be taken up again."""
    clear_own(folder)
    os.unlink(folder / MARKER)
    os.rmdir(folder)


def clear_own(folder: Path) -> None:
    """Remove all but the marker from a folder of the library."""
    if not is_own(folder):
        raise ValueError(f"{folder}: it was not made by ridgewalk (it has no file {MARKER}), so it is not removed")
    for entry in os.scandir(folder):
        if entry.name == MARKER:
            continue
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)


def is_own(folder: Path) -> bool:
    """Whether a folder carries the marker."""
    return _marked_for(folder) is not None


def others_files(folder: Path, own: Collection[str]) -> list[str]:
    """Names in a folder that are neither among `own` nor the marker."""
    return sorted(set(os.listdir(folder)) - set(own) - {MARKER})


def _make(path: Path, kind: str) -> tuple[Path, int]:
    folder = _beside(path, kind)
    os.mkdir(folder)
    return folder, _mark(folder, path.name)


def _mark(folder: Path, name: str) -> int:
    """Write the marker, and return its descriptor, whose lock says that a process is at work.

    The lock is taken before the marker says anything: a folder with a marker and no lock is of a process that ended.
    """
    with suppress(FileNotFoundError):
        os.unlink(folder / MARKER)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(folder / MARKER, flags, 0o666)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.write(descriptor, json.dumps({"made_by": "ridgewalk", "for": name}).encode())
    os.fsync(descriptor)
    return descriptor


def _marked_for(folder: Path) -> str | None:
    """The name of the result that a folder of the library is for; None for others' folders."""
    if folder.is_symlink() or not folder.is_dir():
        return None
    try:
        about = read_json_object(folder / MARKER, 2**16)
    except (OSError, ValueError):
        return None
    name = about.get("for")
    return name if about.get("made_by") == "ridgewalk" and isinstance(name, str) else None


def _own_folders(path: Path, kind: str) -> list[Path]:
    """Folders of the library beside `path` that are for it, in the order of their names."""
    try:
        names = os.listdir(path.parent)
    except OSError:
        return []
    hidden = [path.with_name(name) for name in sorted(names) if name.startswith(".") and name.endswith(f".{kind}")]
    return [folder for folder in hidden if _marked_for(folder) == path.name]


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Whether no process is at work in a folder of the library; none begins while this lasts."""
    try:
        descriptor = os.open(folder / MARKER, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


@contextmanager
def sole_writer(folder: Path, argument: str = "out") -> Iterator[None]:
    """Hold a lock on a folder; the system drops it when the process ends, however it ends.

    A forked child does not share it: else the folder would stay locked for as long as a child lives.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    _held.add(descriptor)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(
                f"{argument}: another run is writing {folder}; wait for it, or choose another name"
            ) from error
        yield
    finally:
        if descriptor in _held:  # not in a child, which may have given the number to another file
            _held.discard(descriptor)
            os.close(descriptor)


_held: set[int] = set()
"""Descriptors of the locks that this process holds."""


def _drop_locks_of_parent() -> None:
    while _held:
        os.close(_held.pop())  # the parent's own descriptor keeps the lock


os.register_at_fork(after_in_child=_drop_locks_of_parent)
