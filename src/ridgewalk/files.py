"""Files are written whole or not at all, and none that exists is replaced unasked."""

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


def refuse_existing(out: Path, overwrite: bool) -> None:
    """Stop before work begins if its result has no place to go."""
    if out.exists() and not overwrite:
        raise ValueError(f"out = {out}: it exists; choose another name, or overwrite it explicitly (--overwrite)")


def write_atomically(out: Path, content: bytes) -> None:
    """Write under a temporary name, force it to the disk, and rename it in one step."""
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    temporary.write_bytes(content)
    force_to_disk([temporary])
    os.replace(temporary, out)


@contextmanager
def sole_writer(folder: Path, argument: str = "out") -> Iterator[None]:
    """Hold a lock on a folder; the system drops it when the process ends, however it ends."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(
                f"{argument}: another run is writing {folder}; wait for it, or choose another name"
            ) from error
        yield
    finally:
        os.close(descriptor)


def force_to_disk(paths: Iterable[Path]) -> None:
    """`fsync` files and folders."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
