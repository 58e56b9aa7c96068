"""Paths, the shared SPE10 files, and a hypothesis profile that draws the same cases every time."""

import sys
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "data"
for folder in (ROOT / "benchmarks", Path(__file__).parent):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))  # the scikit-fem reference is shared with the benchmark

settings.register_profile("darcy", derandomize=True, deadline=None, database=None)
settings.load_profile("darcy")


def shared_file(name: str) -> Path:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"{path} is absent: SPE10 data is not part of the project")
    return path


@pytest.fixture(scope="session")
def spe10_npz() -> Path:
    return shared_file("spe10_model2_kx.npz")


@pytest.fixture(scope="session")
def layer_53() -> Path:
    return shared_file("spe10_layer53_50x50.npy")
