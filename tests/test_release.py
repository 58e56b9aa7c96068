"""The release: sdist and wheel are built, and the wheel works in an environment with nothing but what it requires."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import ridgewalk as rw

ROOT = Path(__file__).resolve().parents[1]

SMOKE = """
import importlib.util, json, sys
from importlib.metadata import requires, version
from pathlib import Path

import jax, jax.numpy as jnp, numpy as np
import ridgewalk as rw

assert Path(rw.__file__).is_relative_to(sys.prefix), rw.__file__
assert version("ridgewalk") == rw.__version__
optional = ("typer", "zarr", "matplotlib", "sklearn", "numpyro", "equinox", "pandas", "pytest")
assert not any(importlib.util.find_spec(name) for name in optional)

x = jax.random.normal(jax.random.key(1), (1_000, 3)) * jnp.array([0.01, 1.0, 10.0])
y = x @ jnp.array([50.0, 1.0, -0.2]) + jax.random.normal(jax.random.key(2), (1_000,))
target = rw.Posterior(rw.gaussian_prior(100.0), lambda w, b: -0.5 * (b[1] - b[0] @ w) ** 2, (x, y))

def run(sampler, steps, **options):
    key, options = jax.random.key(0), {"batch_size": 100, "chains": 2, "progress": False, **options}
    return rw.sample(key, sampler, target, jnp.zeros(3), steps=steps, **options)

whole = run(rw.sgld(), 400, step_size=1e-6)
run(rw.sgld(), 200, step_size=1e-6, checkpoint="run")
resumed = run(rw.sgld(), 400, step_size=1e-6, checkpoint="run", resume=True)
np.testing.assert_array_equal(whole.positions, resumed.positions)

whole = run(rw.auto(), 4_000)
mean = np.asarray(whole.positions).mean((0, 1))
exact = np.linalg.solve(np.asarray(x.T @ x) + np.eye(3) / 1e4, np.asarray(x.T @ y))
sd = np.sqrt(np.diag(np.linalg.inv(np.asarray(x.T @ x) + np.eye(3) / 1e4)))
print(whole.summary())
print(whole.check())
print(json.dumps({"z": float(np.abs((mean - exact) / sd).max())}))
"""


def run(command, cwd):
    """Without PYTHONPATH, which would put another copy of the package before the installed one."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=environ)


def environment(folder):
    """A new virtual environment; its interpreter."""
    assert run([sys.executable, "-m", "venv", folder], ROOT).returncode == 0
    return folder / "bin" / "python"


def install(python, *what):
    """Install, or skip the test where the index cannot be reached."""
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what]
    done = run(command, ROOT)
    if re.search("No matching distribution|ConnectionError|NewConnectionError|Network is unreachable", done.stderr):
        pytest.skip(f"pip finds no packages here: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_wheel_works_without_extras_in_an_empty_environment(tmp_path):
    builder = environment(tmp_path / "builder")
    install(builder, "hatchling")
    done = run([builder, "-m", "hatchling", "build", "--target", "sdist", "--directory", tmp_path / "dist"], ROOT)
    assert done.returncode == 0, done.stderr
    (sdist,) = (tmp_path / "dist").glob("*.tar.gz")
    assert sdist.name == f"ridgewalk-{rw.__version__}.tar.gz"
    with tarfile.open(sdist) as packed:
        packed.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    for name in ("README.md", "LICENSE", "CITATION.cff", "tests/test_release.py", "constraints.txt", "Makefile"):
        assert (source / name).exists(), name

    done = run([builder, "-m", "hatchling", "build", "--target", "wheel", "--directory", tmp_path / "dist"], source)
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert wheel.name == f"ridgewalk-{rw.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
    for name in ("py.typed", "__init__.pyi", "studies/framework/page.css", "studies/records/gaussian/metrics.json"):
        assert f"ridgewalk/{name}" in names, name

    user = environment(tmp_path / "user")
    install(user, "-c", ROOT / "constraints.txt", wheel)
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "smoke.py").write_text(SMOKE)
    done = run([user, "-W", "error", "smoke.py"], folder)
    assert done.returncode == 0, done.stderr
    assert "ess" in done.stdout
    assert float(re.search(r'"z": ([\d.e-]+)', done.stdout).group(1)) < 0.5
    command = run([tmp_path / "user" / "bin" / "ridgewalk", "--version"], folder)
    assert command.returncode == 1
    assert "pip install 'ridgewalk[cli]'" in command.stderr

    install(user, "-c", ROOT / "constraints.txt", f"{wheel}[cli]")
    command = run([tmp_path / "user" / "bin" / "ridgewalk", "--version"], folder)
    assert (command.returncode, command.stdout) == (0, f"ridgewalk {rw.__version__}\n")
