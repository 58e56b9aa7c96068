"""`_zarr`: what is opened, what is refused, and that errors name the file."""

import json
import os

import numpy as np
import pytest
import zarr

from ridgewalk import _zarr
from ridgewalk._io import DamagedFileError


@pytest.fixture
def folder(tmp_path):
    group = zarr.create_group(store=tmp_path / "g", zarr_format=3, attributes={"kind": "test"})
    config = {"write_empty_chunks": True}
    for name, dtype in (("inner/x", "float32"), ("n", "int64")):
        array = group.create_array(
            name, shape=(4, 3), chunks=(2, 3), dtype=dtype, compressors=_zarr.COMPRESSORS, config=config
        )
        array[...] = np.arange(12).reshape(4, 3)
    return tmp_path / "g"


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_group_is_opened_and_read(folder):
    group = _zarr.open_group(folder)
    assert dict(group.attrs) == {"kind": "test"}
    np.testing.assert_array_equal(_zarr.read_array(group["inner/x"]), np.arange(12, dtype="float32").reshape(4, 3))
    np.testing.assert_array_equal(_zarr.read_array(group["n"], np.s_[1:3]), np.arange(3, 9).reshape(2, 3))
    info = _zarr.inspect_group(folder)
    assert set(info.arrays) == {"inner/x", "n"}
    assert info.arrays["n"].codecs == ("bytes", "zstd", "crc32c")


def test_format_2_is_refused_before_zarr_reads_it(tmp_path):
    group = zarr.create_group(store=tmp_path / "g", zarr_format=2)
    group.create_array("x", shape=(3,), chunks=(3,), dtype="float64")[...] = 1
    metadata = tmp_path / "g" / "x" / ".zarray"
    edit(metadata, filters=[{"id": "pickle"}], dtype="|O")
    with pytest.raises(DamagedFileError, match="zarr format 2, which is not read; rewrite it"):
        _zarr.open_group(tmp_path / "g")


PICKLE = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "numcodecs.pickle"}]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"codecs": PICKLE}, r"its codecs \(bytes, numcodecs.pickle\) are not read"),
        ({"codecs": "zstd"}, "its codecs"),
        ({"codecs": [1]}, "its codecs"),
        ({"codecs": [{"name": "bytes", "configuration": 3}]}, "its codecs"),
        ({"data_type": "string"}, "its data type 'string' is not read"),
        ({"data_type": {"name": "numpy.datetime64"}}, "its data type"),
        ({"zarr_format": 2}, "its zarr_format is 2"),
        ({"node_type": "table"}, "neither an array nor a group"),
        ({"shape": [-1, 3]}, "metadata are damaged"),
        ({"shape": "many"}, "metadata are damaged"),
        ({"shape": [4, 3, 1]}, "not laid out"),
        ({"chunk_grid": {"name": "rectangular"}}, "metadata are damaged"),
        ({"storage_transformers": [{"name": "x"}]}, "storage transformers"),
        ({"attributes": 3}, "its attributes are not an object"),
        ({"fill_value": "three"}, "zarr cannot open it"),
    ],
)
def test_other_metadata_are_refused_with_the_file(folder, changes, message):
    edit(folder / "n" / "zarr.json", **changes)
    with pytest.raises(DamagedFileError, match=message) as caught:
        _zarr.open_group(folder)
    assert str(folder) in str(caught.value)


def test_deep_metadata_are_damage(folder):
    (folder / "n" / "zarr.json").write_text("[" * 100_000)
    with pytest.raises(DamagedFileError, match=r"n/zarr\.json.*nested too deeply"):
        _zarr.open_group(folder)


def test_large_shapes_need_large_files(folder):
    """Metadata of 1.3 kB cannot allocate gigabytes."""
    path = folder / "n" / "zarr.json"
    edit(path, shape=[40_000, 20_000])
    with pytest.raises(DamagedFileError, match=r"c/.*this chunk of the array is missing"):
        _zarr.open_group(folder)
    grid = {"name": "regular", "configuration": {"chunk_shape": [40_000, 20_000]}}
    edit(path, chunk_grid=grid)
    with pytest.raises(DamagedFileError, match=r"n/c/0/0: it has .* bytes, too few for the 6,400,000,000"):
        _zarr.open_group(folder)


@pytest.mark.parametrize("name", ["n", "inner/x"])
def test_every_flipped_byte_of_a_chunk_is_an_error(folder, name):
    path = folder / name / "c" / "1" / "0"
    content = path.read_bytes()
    group = _zarr.open_group(folder)
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 16]) + content[place + 1 :])
        with pytest.raises(DamagedFileError, match=r"c/1/0: its checksum does not match"):
            _zarr.read_array(group[name])


def test_other_things_in_place_of_a_chunk(folder):
    path = folder / "n" / "c" / "1" / "0"
    content = path.read_bytes()
    group = _zarr.open_group(folder)

    def fails(message):
        for act in (lambda: _zarr.read_array(group["n"]), lambda: _zarr.open_group(folder)):
            with pytest.raises(DamagedFileError, match=message) as caught:
                act()
            assert str(path) in str(caught.value)

    path.unlink()
    fails("is missing")
    path.mkdir()
    fails("folder|regular")
    path.rmdir()
    os.mkfifo(path)
    fails("regular")
    path.unlink()
    path.symlink_to("/dev/zero")
    fails("symbolic link|regular")
    path.unlink()
    path.write_bytes(b"")
    with pytest.raises(DamagedFileError, match="c/1/0"):
        _zarr.read_array(group["n"])
    path.write_bytes(content)
    np.testing.assert_array_equal(_zarr.read_array(group["n"]), np.arange(12).reshape(4, 3))


def test_a_frame_that_declares_gigabytes_is_not_decoded(folder):
    """The size in a Zstandard frame's header is compared before memory is allocated."""
    path = folder / "n" / "c" / "0" / "0"
    frame = (0xFD2FB528).to_bytes(4, "little") + bytes([0b11100000]) + (2**33).to_bytes(8, "little") + bytes(20)
    path.write_bytes(frame + _zarr.checksum(frame).to_bytes(4, "little"))
    with pytest.raises(DamagedFileError, match=r"c/0/0: it decodes to 8589934592 bytes; a chunk has 48"):
        _zarr.read_array(_zarr.open_group(folder)["n"])


def test_links_and_fifos_in_place_of_metadata(folder):
    path = folder / "n" / "zarr.json"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DamagedFileError, match="not a regular file"):
        _zarr.open_group(folder)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(DamagedFileError, match="symbolic link"):
        _zarr.open_group(folder)


def test_chunks_left_out_are_fill_values_where_the_caller_says_so(tmp_path):
    group = zarr.create_group(store=tmp_path / "g", zarr_format=3)
    group.create_array("x", shape=(4,), chunks=(2,), dtype="float64", fill_value=0.0)[...] = 0
    with pytest.raises(DamagedFileError, match="is missing"):
        _zarr.open_group(tmp_path / "g")
    found = _zarr.open_group(tmp_path / "g", complete=False)["x"]
    np.testing.assert_array_equal(_zarr.read_array(found), np.zeros(4))


def test_a_replaced_chunk_of_the_same_array_is_noticed_by_its_digest(folder):
    group = _zarr.open_group(folder)
    store = group.store
    store.digests["n/c/0/0"] = _zarr.digest((folder / "n/c/0/0").read_bytes())
    (folder / "n/c/0/0").write_bytes((folder / "n/c/1/0").read_bytes())
    with pytest.raises(DamagedFileError, match=r"c/0/0: it is not the chunk that the run wrote"):
        _zarr.read_array(group["n"])
