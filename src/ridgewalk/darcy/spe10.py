"""Permeability of SPE10 model 2, the tenth SPE comparative solution project (Christie and Blunt, 2001).

The model has 60×220×85 cells. Its text file `spe_perm.dat` lists k_x, then k_y, then k_z in millidarcy, x
fastest, then y, then the layer from the top. Arrays here have axes `(x, y, layer)`; `sample_layer` turns a
layer, numbered from 1 at the top as in the literature, into an array `(ny, nx)` for the solver.

`LabelledPermeability` is a permeability with its origin: a file, SPE10, or the synthetic field.
"""

import hashlib
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgewalk._io import DamagedFileError, check_regular, file_digest, read_regular, write_atomically
from ridgewalk._validation import requires_extra
from ridgewalk.darcy.grid import Array, Grid
from ridgewalk.darcy.problems import SYNTHETIC, channelised

SHAPE = (60, 220, 85)
COMPONENTS = 3
ARRAY_NAME = "kx_millidarcy"
URL = "https://www.spe.org/web/csp/datasets/por_perm_case2a.zip"
MEMBER = "spe_perm.dat"
ARCHIVE_LIMIT = 2**26
"""Bytes of the largest archive that is unpacked; SPE's has about 20 million."""

TEXT_LIMIT = 2**27
"""Bytes of the largest text that is unpacked: 3,366,000 numbers of at most 40 letters each."""

KX_SHA256 = "e83be3e7c247450b4987be3b8a879a6dc4b41e3f39d13f832379317c681052e2"


def read_spe10(path: str | Path) -> NDArray[np.float32]:
    """Read k_x, axes `(x, y, layer)`, from `spe_perm.dat`, the archive that holds it, or an `.npz` file."""
    path = Path(path)
    if not path.exists():
        raise ValueError(f"path = {path}: there is no such file; give spe_perm.dat, its .zip, or an .npz of k_x")
    check_regular(path)
    if path.suffix == ".npz":
        return _read_npz(path)
    if path.suffix == ".zip":
        return _parse_text(_extract(path), path)
    return _parse_text(read_regular(path, TEXT_LIMIT, follow=True).decode("ascii", errors="replace"), path)


def _read_npz(path: Path) -> NDArray[np.float32]:
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            if ARRAY_NAME not in arrays.files:
                raise ValueError(f"path = {path}: it holds {arrays.files}, not the array {ARRAY_NAME!r}")
            values = np.asarray(arrays[ARRAY_NAME])
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        raise ValueError(f"path = {path}: not a readable .npz file ({error}); copy it again") from error
    if values.shape != SHAPE:
        raise ValueError(
            f"path = {path}: {ARRAY_NAME} has shape {values.shape} ({values.size} numbers), needs {SHAPE} "
            f"({np.prod(SHAPE)} numbers)"
        )
    return _checked(values.astype(np.float32), path)


def _extract(path: Path) -> str:
    """The text inside the archive, if the archive says that it is of the right size."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = [info for info in archive.infolist() if info.filename.rsplit("/", 1)[-1] == MEMBER]
            if not members:
                raise ValueError(f"path = {path}: the archive has no {MEMBER}, only {archive.namelist()}")
            if members[0].file_size > TEXT_LIMIT:
                raise ValueError(
                    f"path = {path}: its {MEMBER} has {members[0].file_size:,} bytes, at most {TEXT_LIMIT:,} are "
                    "expected; the archive is damaged or was changed: delete it and fetch again"
                )
            return archive.read(members[0]).decode("ascii", errors="replace")
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"path = {path}: not a readable archive ({error}); fetch it again") from error


def _parse_text(text: str, path: Path) -> NDArray[np.float32]:
    words = text.split()
    try:
        numbers = np.array(words, dtype=np.float64)
    except ValueError as error:
        raise ValueError(f"path = {path}: not a text of numbers ({error}); give the original {MEMBER}") from error
    needed = COMPONENTS * int(np.prod(SHAPE))
    if numbers.size != needed:
        raise ValueError(
            f"path = {path}: has {numbers.size:,} numbers, needs {needed:,} "
            f"({COMPONENTS} components of {'×'.join(map(str, SHAPE))} cells); "
            f"the file is truncated or not {MEMBER}"
        )
    k_x = numbers[: needed // COMPONENTS].reshape(SHAPE[::-1])
    return _checked(np.ascontiguousarray(k_x.transpose()).astype(np.float32), path)


def _checked(values: NDArray[np.float32], path: Path) -> NDArray[np.float32]:
    bad = ~(np.isfinite(values) & (values > 0))
    if bad.any():
        raise ValueError(f"path = {path}: {int(bad.sum())} permeabilities are not positive and finite")
    return values


def digest(k_x: NDArray[np.float32]) -> str:
    """SHA-256 of the parsed array, in single precision and C order: independent of the file it came from."""
    return hashlib.sha256(np.ascontiguousarray(k_x, dtype="<f4").tobytes()).hexdigest()


def fetch_spe10(folder: str | Path | None = None, url: str = URL, sha256: str = KX_SHA256) -> NDArray[np.float32]:
    """Download the archive once (into pooch's cache unless `folder` is given), read it and verify k_x.

    `sha256` is of the permeability, not of the archive: SPE may pack the same numbers anew. The archive's size is
    checked before it is unpacked; its own SHA-256 is noted beside it once its numbers have been verified, and compared
    before it is unpacked again.
    """
    with requires_extra("darcy"):
        import pooch  # noqa: PLC0415 — only this function needs it

    name, place = url.rsplit("/", 1)[-1], folder or pooch.os_cache("ridgewalk")
    try:
        archive = pooch.retrieve(url=url, known_hash=None, fname=name, path=place)
    except OSError as error:  # all of requests' errors are
        raise ValueError(
            f"url = {url}: could not be fetched ({error}); where there is no network give a file, or use the "
            "synthetic field"
        ) from error
    note = Path(archive).with_name(name + ".sha256")
    packed = _check_archive(Path(archive), note)
    k_x = read_spe10(archive)
    found = digest(k_x)
    if found != sha256:
        raise ValueError(
            f"{archive}: k_x has checksum {found}, expected {sha256}; the download is damaged "
            "or was changed: delete the file and fetch again"
        )
    if not note.exists():
        write_atomically(note, f"{packed}\n".encode())
    return k_x


def _check_archive(archive: Path, note: Path) -> str:
    """The archive's SHA-256; ValueError where its size, or the digest noted beside it, is not as expected."""
    again = "the download is damaged or was changed: delete the file and fetch again"
    try:
        found = file_digest(archive, ARCHIVE_LIMIT)
    except DamagedFileError as error:
        raise ValueError(f"{error}; {again}") from error
    if note.exists() and read_regular(note, 1000).decode("ascii", errors="replace").strip() != found:
        raise ValueError(f"{archive}: its checksum is not the one in {note.name}; {again}")
    return found


def sample_layer(k_x: NDArray[np.float32], layer: int = 53, nx: int = 50, ny: int = 50, divisor: float = 10.0) -> Array:
    """Point-sample a layer (1 is the top) to `(ny, nx)` and divide it by `divisor`.

    Column `i` takes the cell `max(⌈i·60/nx⌉ − 1, 0)` in x, row `j` the cell `max(⌈j·220/ny⌉ − 1, 0)` in y.
    Layer 53 on 50×50 cells divided by 10 is the field of Wang and Lin's flow networks (J. Comput. Phys. 401,
    2020).
    """
    cells_x, cells_y, layers = k_x.shape
    if not 1 <= layer <= layers:
        raise ValueError(f"layer = {layer}: the layers are numbered from 1 (top) to {layers}")
    for name, count, most in (("nx", nx, cells_x), ("ny", ny, cells_y)):
        if not 1 <= count <= most:
            raise ValueError(f"{name} = {count}: sample between 1 and {most} cells")
    if not divisor > 0:
        raise ValueError(f"divisor = {divisor}: give a positive number")
    columns = _sampled(nx, cells_x)
    rows = _sampled(ny, cells_y)
    return k_x[:, :, layer - 1].T[np.ix_(rows, columns)].astype(np.float64) / divisor


def _sampled(count: int, cells: int) -> NDArray[np.int64]:
    """`max(⌈i·cells/count⌉ − 1, 0)` in whole numbers, so that no rounding moves an index."""
    return np.maximum(-(-np.arange(count, dtype=np.int64) * cells // count) - 1, 0)


class LabelledPermeability(NamedTuple):
    """A permeability `(ny, nx)` and what it is, in words for titles and attributes."""

    values: Array
    label: str


def synthetic_permeability(size: int, seed: int = 0) -> LabelledPermeability:
    """The synthetic field on `size × size` cells."""
    return LabelledPermeability(channelised(Grid(size, size), seed), SYNTHETIC)


def spe10_permeability(path: Path | None, layer: int, size: int) -> LabelledPermeability:
    """A layer of SPE10 on `size × size` cells, from a file or, with `path=None`, fetched once from SPE."""
    k_x = fetch_spe10() if path is None else read_spe10(path)
    return LabelledPermeability(
        sample_layer(k_x, layer, size, size), f"SPE10 model 2, k_x of layer {layer}, millidarcy / 10"
    )


def permeability_from_file(path: Path, layer: int, size: int) -> LabelledPermeability:
    """A field from `.npy`, taken as it is, or a layer of SPE10 from its text, archive or `.npz`."""
    if path.suffix != ".npy":
        return spe10_permeability(path, layer, size)
    if not path.exists():
        raise ValueError(f"permeability = {path}: there is no such file")
    try:
        values = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"permeability = {path}: not a readable .npy file of numbers ({error})") from error
    if values.ndim != 2 or values.dtype.kind not in "fiu":
        raise ValueError(
            f"permeability = {path}: has shape {values.shape} and type {values.dtype}; give a field (ny, nx) of numbers"
        )
    return LabelledPermeability(values.astype(np.float64), f"permeability of {path.name}")
