"""The house in order: imports point one way, importing changes nothing, noise is what it says."""

import ast
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import ridgewalk as rw
from ridgewalk.noise import draw

PACKAGE = Path(rw.__file__).parent

ORDER = [
    {"_validation", "types", "settings", "files", "plain_errors", "threefry"},
    {"adaptation", "priors", "data", "target", "gradients", "noise", "layout"},
    {"pruning"},
    {"precondition"},
    {"dynamics"},
    {"kernel", "samplers"},
    {"diagnostics"},
    {"run"},
    {"surrogates"},
    {"studies"},
    {"report"},
    {"cli"},
]
"""A room may open those before it in this list, and itself; darcy opens two, and only studies and cli open it."""


def room(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def opened(path):
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            if name and name.startswith("ridgewalk."):
                yield name.split(".")[1]


def test_imports_point_one_way():
    level = {name: i for i, rooms in enumerate(ORDER) for name in rooms}
    for path in PACKAGE.rglob("*.py"):
        here = room(path)
        if here == "__init__":
            continue
        for there in opened(path):
            if here == "darcy":
                assert there in {"darcy", "files", "plain_errors"}, f"{path} opens {there}"
            elif there == "darcy":
                assert here in {"studies", "cli"}, f"{path} opens darcy"
            else:
                assert level[there] <= level[here], f"{path} opens {there}"


def test_importing_is_silent_and_changes_no_configuration():
    code = (
        "import jax; before = dict(jax.config.values); import ridgewalk; import ridgewalk.cli; "
        "assert dict(jax.config.values) == before; assert 'matplotlib.pyplot' not in __import__('sys').modules"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_public_names_exist_once():
    assert all(hasattr(rw, name) for name in rw.__all__)
    assert len(set(rw.__all__)) == len(rw.__all__)


@pytest.mark.parametrize("kind", ["gaussian", "two_point"])
def test_noise_has_mean_0_and_variance_1(kind):
    z = np.asarray(draw(jax.random.key(1), kind, 100_003, jnp.dtype("float64")))
    assert z.shape == (100_003,)
    assert abs(z.mean()) < 4 / np.sqrt(z.size)
    assert abs((z**2).mean() - 1) < 4 * np.sqrt(2 / z.size)
    assert abs((z[1:] * z[:-1]).mean()) < 4 / np.sqrt(z.size)
    fourth = {"gaussian": 3.0, "two_point": 1.0}[kind]
    assert abs((z**4).mean() - fourth) < 4 * np.sqrt(96 / z.size)


def test_noise_in_32_bits_is_normal():
    """Made of both halves of the generator's words: normal, and the halves independent."""
    z = np.asarray(draw(jax.random.key(1), "gaussian", 1_000_001, jnp.dtype("float32")))
    assert z.dtype == np.float32
    assert z.shape == (1_000_001,)
    assert stats.kstest(z, "norm").pvalue > 0.01
    assert 4.5 < np.abs(z).max() < 5.5
    half = z.size // 2
    assert abs(np.mean(z[:half] * z[half : 2 * half])) < 4 / np.sqrt(half)
    other = np.asarray(draw(jax.random.key(2), "gaussian", 1_000_001, jnp.dtype("float32")))
    assert abs(np.mean(z * other)) < 4 / np.sqrt(z.size)
    legacy = draw(jax.random.PRNGKey(1), "gaussian", 5, jnp.dtype("float32"))
    assert legacy.dtype == np.float32
