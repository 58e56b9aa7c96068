"""Files of the user's: nothing runs code, nothing leads elsewhere, and small files do not fill the memory."""

import io
import json
import os
import zipfile

import h5py
import numpy as np
import pytest
import zarr

from ridgewalk.neural.io import read_arrays

X = np.arange(12.0).reshape(4, 3)


def npy(shape=None, dtype=None):
    """An .npy file's content, whose header may say something else."""
    memory = io.BytesIO()
    header = {"descr": dtype or "<f8", "fortran_order": False, "shape": shape or X.shape}
    np.lib.format.write_array_header_1_0(memory, header)
    return memory.getvalue() + X.tobytes()


def zipped(path, content, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("X.npy", content)
    return path


def test_npz_of_all_kinds(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", X=X, F=np.asfortranarray(X), empty=np.zeros((0, 3)), scalar=2.5)
    found = read_arrays(tmp_path / "a.npz", ["X", "F", "empty", "scalar"])
    for array, wanted in zip(found, (X, X, np.zeros((0, 3)), np.array(2.5)), strict=True):
        np.testing.assert_array_equal(array, wanted)
    (tmp_path / "link.npz").symlink_to(tmp_path / "a.npz")
    np.testing.assert_array_equal(read_arrays(tmp_path / "link.npz", ["X"])[0], X)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.99])
def test_a_truncated_npz_is_called_so(tmp_path, share):
    np.savez(tmp_path / "a.npz", X=np.zeros(1000), Y=X)
    content = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match=r"a\.npz: it is truncated"):
        read_arrays(tmp_path / "a.npz", ["X"])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (npy(shape=(10**12,)), "its header says 8,000,000,000,000 bytes, 96 follow"),
        (npy(shape=(2**62, 2**62)), "its header says"),
        (npy(shape=(3, 3)), "its header says 72 bytes, 96 follow"),
        (npy(dtype="|O"), "holds Python objects"),
        (b"\x93NUMPY", "damaged"),
        (b"nothing", "damaged"),
    ],
)
def test_headers_are_compared_with_what_follows(tmp_path, content, said):
    with pytest.raises(ValueError, match=f"X: .*a.npz.*{said}"):
        read_arrays(zipped(tmp_path / "a.npz", content), ["X"])


def test_a_zip_bomb_and_other_packing_are_refused(tmp_path):
    bomb = zipped(tmp_path / "a.npz", bytes(2**28 + 1), zipfile.ZIP_DEFLATED)
    with pytest.raises(ValueError, match=r"X: .*compressed so much that it is not read"):
        read_arrays(bomb, ["X"])
    with pytest.raises(ValueError, match="packed in another way"):
        read_arrays(zipped(tmp_path / "b.npz", npy(), zipfile.ZIP_BZIP2), ["X"])


def test_a_flipped_byte_of_an_npz_is_damage(tmp_path):
    path = zipped(tmp_path / "a.npz", npy())
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"X: .*a\.npz.*damaged"):
        read_arrays(path, ["X"])


@pytest.mark.parametrize("suffix", [".npz", ".nc"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, suffix):
    os.mkfifo(tmp_path / f"fifo{suffix}")
    (tmp_path / f"zero{suffix}").symlink_to("/dev/zero")
    (tmp_path / f"folder{suffix}").mkdir()
    for name in ("fifo", "zero", "folder"):
        with pytest.raises(ValueError, match=f"{name}{suffix}: it is not a regular file"):
            read_arrays(tmp_path / f"{name}{suffix}", ["X"])


def test_zarr_arrays_say_no_more_than_they_hold(tmp_path):
    group = zarr.create_group(store=tmp_path / "a.zarr", zarr_format=3)
    group.create_array("X", data=X)
    group.create_array("zeros", shape=(5, 2), chunks=(5, 2), dtype="float64")  # zarr writes no chunk
    np.testing.assert_array_equal(read_arrays(tmp_path / "a.zarr", ["X"])[0], X)
    np.testing.assert_array_equal(read_arrays(tmp_path / "a.zarr", ["zeros"])[0], np.zeros((5, 2)))
    path = tmp_path / "a.zarr" / "X" / "zarr.json"
    metadata = json.loads(path.read_text())
    metadata["shape"] = [10**6, 10**6]
    path.write_text(json.dumps(metadata))
    with pytest.raises(ValueError, match=r"X: .*a\.zarr says that it has 8,000,000,000,000 bytes"):
        read_arrays(tmp_path / "a.zarr", ["X"])


def test_zarr_format_2_and_pickle_are_refused_before_anything_is_read(tmp_path):
    group = zarr.create_group(store=tmp_path / "a.zarr", zarr_format=2)
    group.create_array("X", data=X)
    with pytest.raises(ValueError, match="zarr format 2"):
        read_arrays(tmp_path / "a.zarr", ["X"])


def test_netcdf_that_leads_to_other_files_is_refused(tmp_path):
    with h5py.File(tmp_path / "secret.nc", "w") as file:
        file["X"] = X
    (tmp_path / "raw").write_bytes(X.tobytes())
    with h5py.File(tmp_path / "link.nc", "w") as file:
        file["X"] = h5py.ExternalLink(str(tmp_path / "secret.nc"), "X")
    with h5py.File(tmp_path / "stored.nc", "w") as file:
        file.create_dataset("X", (4, 3), "f8", external=[(str(tmp_path / "raw"), 0, 96)])
    layout = h5py.VirtualLayout((4, 3), "f8")
    layout[:] = h5py.VirtualSource(str(tmp_path / "secret.nc"), "X", (4, 3))
    with h5py.File(tmp_path / "virtual.nc", "w") as file:
        file.create_virtual_dataset("X", layout)
    for name in ("link", "stored", "virtual"):
        with pytest.raises(ValueError, match=rf"{name}\.nc: 'X' .*another file, which is not read"):
            read_arrays(tmp_path / f"{name}.nc", ["X"])


def test_netcdf_says_no_more_than_it_holds(tmp_path):
    with h5py.File(tmp_path / "a.nc", "w") as file:
        file.create_dataset("X", (10**6, 10**6), "f8", chunks=(1000, 1000))
    with pytest.raises(ValueError, match=r"X: .*says that it has 8,000,000,000,000 bytes"):
        read_arrays(tmp_path / "a.nc", ["X"])


def test_damaged_netcdf_is_named(tmp_path):
    with h5py.File(tmp_path / "a.nc", "w") as file:
        file["X"] = X
    content = (tmp_path / "a.nc").read_bytes()
    for length in (0, 4, 8, 100, 600, len(content) - 1):
        (tmp_path / "a.nc").write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"a\.nc"):
            read_arrays(tmp_path / "a.nc", ["X"])
