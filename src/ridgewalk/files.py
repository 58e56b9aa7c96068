"""Files are written whole or not at all, and none that exists is replaced unasked."""

import fcntl
import os
import re
import shutil
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
    try:
        temporary.write_bytes(content)
        force_to_disk([temporary])
        os.replace(temporary, out)
    except BaseException:
        temporary.unlink(missing_ok=True)  # of a full disk, say
        raise


def put_in_place(fresh: Path, path: Path) -> None:
    """Rename a complete new folder; one that it replaces is removed only afterwards."""
    former = path.with_name(f".{path.name}.{os.getpid()}.former")
    if path.exists():
        os.rename(path, former)
    os.rename(fresh, path)
    force_to_disk([path.parent])
    shutil.rmtree(former, ignore_errors=True)


def recover_former(path: Path) -> None:
    """Give a folder its name back if its replacement was killed between the two renames, or remove what is left."""
    for former in path.parent.glob(".*.former"):
        of_this = re.fullmatch(rf"\.{re.escape(path.name)}\.(\d+)\.former", former.name)
        if of_this is None or _is_running(int(of_this[1])):
            continue
        if path.exists():
            shutil.rmtree(former, ignore_errors=True)
        else:
            os.rename(former, path)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


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
