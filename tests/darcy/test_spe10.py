"""SPE10 readers, sampling and fetch; the original text is made here, from random numbers."""

import zipfile

import numpy as np
import pytest

from ridgewalk.darcy import spe10


@pytest.fixture(scope="module")
def random_k_x():
    return np.random.default_rng(0).uniform(0.1, 9.0, spe10.SHAPE).astype(np.float32)


def original_text(k_x, components=3):
    """k_x, k_y, k_z with x fastest, then y, then the layer, six numbers a line as in the original."""
    ordered = np.concatenate([k_x.transpose().ravel()] * components)
    words = np.char.mod("%.9g", ordered)
    usable = words.size // 6 * 6
    lines = [" ".join(line) for line in words[:usable].reshape(-1, 6)]
    return "\n".join([*lines, " ".join(words[usable:])]) + "\n"


@pytest.fixture
def small_k_x(monkeypatch):
    """A model of the same layout with few cells, so that its text is quick to write and read."""
    monkeypatch.setattr(spe10, "SHAPE", (6, 22, 5))
    return np.random.default_rng(1).uniform(0.1, 9.0, spe10.SHAPE).astype(np.float32)


@pytest.fixture
def text_file(small_k_x, tmp_path):
    path = tmp_path / "spe_perm.dat"
    path.write_text(original_text(small_k_x))
    return path


def test_text_and_npz_give_the_same_array(small_k_x, text_file, tmp_path):
    np.savez_compressed(tmp_path / "kx.npz", kx_millidarcy=small_k_x)
    np.testing.assert_array_equal(spe10.read_spe10(text_file), small_k_x)
    np.testing.assert_array_equal(spe10.read_spe10(tmp_path / "kx.npz"), small_k_x)


@pytest.mark.slow
def test_text_of_the_full_size(random_k_x, tmp_path):
    path = tmp_path / "spe_perm.dat"
    path.write_text(original_text(random_k_x))
    np.testing.assert_array_equal(spe10.read_spe10(path), random_k_x)


def test_text_has_x_fastest_then_y_then_layers(small_k_x, text_file):
    numbers = np.array(text_file.read_text().split(), dtype=np.float32)
    found = spe10.read_spe10(text_file)
    assert found[4, 0, 0] == numbers[4]
    assert found[0, 3, 0] == numbers[3 * 6]
    assert found[1, 2, 4] == numbers[4 * 6 * 22 + 2 * 6 + 1]


def test_truncated_text_says_what_it_has_and_needs(tmp_path):
    truncated = tmp_path / "spe_perm.dat"
    truncated.write_text("1.0 2.0 " * 500)
    with pytest.raises(ValueError, match=r"has 1,000 numbers, needs 3,366,000"):
        spe10.read_spe10(truncated)


def test_truncated_npz(random_k_x, tmp_path):
    path = tmp_path / "kx.npz"
    np.savez(path, kx_millidarcy=random_k_x[:, :, :5])
    with pytest.raises(ValueError, match=r"66000 numbers\), needs .*1122000 numbers"):
        spe10.read_spe10(path)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ValueError, match=r"not a readable \.npz"):
        spe10.read_spe10(path)


def test_other_bad_files(random_k_x, tmp_path):
    with pytest.raises(ValueError, match="there is no such file"):
        spe10.read_spe10(tmp_path / "absent.dat")
    np.savez(tmp_path / "other.npz", porosity=random_k_x[:2])
    with pytest.raises(ValueError, match="not the array 'kx_millidarcy'"):
        spe10.read_spe10(tmp_path / "other.npz")
    (tmp_path / "words.dat").write_text("1.0 2.0 lorem")
    with pytest.raises(ValueError, match="not a text of numbers"):
        spe10.read_spe10(tmp_path / "words.dat")
    negative = random_k_x.copy()
    negative[3, 4, 5] = -1
    np.savez(tmp_path / "negative.npz", kx_millidarcy=negative)
    with pytest.raises(ValueError, match="1 permeabilities are not positive"):
        spe10.read_spe10(tmp_path / "negative.npz")
    with zipfile.ZipFile(tmp_path / "empty.zip", "w") as archive:
        archive.writestr("readme.txt", "nothing")
    with pytest.raises(ValueError, match=r"no spe_perm\.dat"):
        spe10.read_spe10(tmp_path / "empty.zip")
    (tmp_path / "broken.zip").write_bytes(b"not a zip")
    with pytest.raises(ValueError, match="not a readable archive"):
        spe10.read_spe10(tmp_path / "broken.zip")


def test_layer_and_sampling(random_k_x):
    native = spe10.sample_layer(random_k_x, layer=85, nx=60, ny=220, divisor=1.0)
    assert native.shape == (220, 60)
    assert native[7, 3] == random_k_x[2, 6, 84]  # the published sampling is one cell behind, save at zero
    sampled = spe10.sample_layer(random_k_x, layer=1)
    assert sampled[10, 5] == pytest.approx(random_k_x[5, 43, 0] / 10)
    assert sampled[0, 0] == pytest.approx(random_k_x[0, 0, 0] / 10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layer": 0}, r"layer = 0: .* 1 \(top\) to 85"),
        ({"layer": 86}, "layer = 86"),
        ({"nx": 61}, "nx = 61"),
        ({"ny": 0}, "ny = 0"),
        ({"divisor": 0.0}, "divisor"),
    ],
)
def test_bad_sampling(random_k_x, arguments, message):
    with pytest.raises(ValueError, match=message):
        spe10.sample_layer(random_k_x, **arguments)


@pytest.fixture
def download(monkeypatch, tmp_path, text_file):
    """pooch with the network replaced by a local archive; counts the downloads."""
    import pooch

    archive = tmp_path / "por_perm_case2a.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.write(text_file, "por_perm_case2a/spe_perm.dat")
    seen = []

    def downloader(url, output_file, _pooch):
        seen.append(url)
        with open(output_file, "wb") as target:
            target.write(archive.read_bytes())

    monkeypatch.setattr(pooch.core, "choose_downloader", lambda *_, **__: downloader)
    return seen


def test_fetch_downloads_once_and_verifies(download, small_k_x, tmp_path):
    checksum = spe10.digest(small_k_x)
    for _ in range(2):
        np.testing.assert_array_equal(spe10.fetch_spe10(tmp_path / "cache", sha256=checksum), small_k_x)
    assert download == ["https://www.spe.org/web/csp/datasets/por_perm_case2a.zip"]


def test_fetch_without_a_network(monkeypatch, tmp_path):
    import pooch

    def no_network(*_):
        raise OSError("no route to host")

    monkeypatch.setattr(pooch.core, "choose_downloader", lambda *_, **__: no_network)
    with pytest.raises(ValueError, match=r"could not be fetched \(no route to host\); .* give a file"):
        spe10.fetch_spe10(tmp_path / "cache")


def test_fetch_refuses_other_numbers(download, tmp_path):
    with pytest.raises(ValueError, match="delete the file and fetch again"):
        spe10.fetch_spe10(tmp_path / "cache")


def test_shared_file_has_the_published_checksum_and_sample(spe10_npz, layer_53):
    k_x = spe10.read_spe10(spe10_npz)
    assert spe10.digest(k_x) == spe10.KX_SHA256
    np.testing.assert_allclose(spe10.sample_layer(k_x), np.load(layer_53), rtol=1e-7)


def test_a_fetched_archive_is_checked_before_it_is_unpacked_again(download, small_k_x, tmp_path, monkeypatch):
    checksum = spe10.digest(small_k_x)
    spe10.fetch_spe10(tmp_path / "cache", sha256=checksum)
    archive = tmp_path / "cache" / "por_perm_case2a.zip"
    with zipfile.ZipFile(archive, "a") as packed:
        packed.writestr("more", "x")

    def unpacked(path):
        raise AssertionError("it was unpacked")

    monkeypatch.setattr(spe10, "read_spe10", unpacked)
    with pytest.raises(ValueError, match=r"its checksum is not the one in por_perm_case2a.zip.sha256"):
        spe10.fetch_spe10(tmp_path / "cache", sha256=checksum)
    with archive.open("r+b") as file:
        file.truncate(spe10.ARCHIVE_LIMIT + 1)
    with pytest.raises(ValueError, match="67,108,865 bytes; at most"):
        spe10.fetch_spe10(tmp_path / "cache", sha256=checksum)


def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(spe10, "TEXT_LIMIT", 1000)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("spe_perm.dat", "1 " * 1000)
    with pytest.raises(ValueError, match="2,000 bytes, at most 1,000 are expected"):
        spe10.read_spe10(tmp_path / "a.zip")
