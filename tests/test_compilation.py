"""Compiler options of a context, and the persistent cache of the command line."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.compilations import compilations

from ridgewalk import _compilation
from ridgewalk._compilation import cache_folder, count_numbers, jit, quick_compilation


def test_a_context_compiles_with_options_of_its_own():
    double = jit(lambda x: 2 * jnp.sin(x))
    x = np.arange(5.0)
    options = _compilation._quick_options()  # which compiles a trial the first time
    with compilations() as made:
        plain = double(x)
        with quick_compilation():
            quick = double(x)
            again = double(x)
        assert len(made) == (2 if options else 1)
    np.testing.assert_allclose(quick, plain, rtol=1e-12)
    np.testing.assert_array_equal(again, quick)


def test_within_a_traced_function_its_options_count():
    double = jit(lambda x: 2 * x)
    with quick_compilation():
        assert jax.jit(lambda x: double(x) + 1)(3.0) == 7
        assert jax.vmap(double)(jnp.ones(2)).tolist() == [2, 2]


def test_numbers_of_loops_and_inner_functions_are_counted():
    x = np.zeros(5)
    assert count_numbers(lambda x: jnp.exp(x) + 1, x) == 10
    assert count_numbers(jax.jit(lambda x: jnp.exp(x) + 1), x) == 10
    assert count_numbers(lambda x: jax.lax.scan(lambda y, _: (2 * y, None), x, None, length=7)[0], x) == 35
    branches = [jnp.sin, lambda x: jnp.cos(jnp.sin(x))]
    assert count_numbers(lambda x: jax.lax.switch(1, branches, x), x) >= 15


def test_options_that_xla_does_not_know_are_left_out(monkeypatch):
    monkeypatch.setattr(_compilation, "CPU_OPTIONS", (("xla_no_such_option", True),))
    _compilation._quick_options.cache_clear()
    try:
        assert _compilation._quick_options() == ()
    finally:
        _compilation._quick_options.cache_clear()


@pytest.fixture
def environment(monkeypatch, tmp_path):
    """No settings of the user's, and a home of its own."""
    for name in (_compilation.CACHE_VARIABLE, "JAX_COMPILATION_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return monkeypatch


@pytest.mark.skipif(sys.platform != "linux", reason="the folder of Linux")
def test_the_cache_is_in_the_users_cache_folder(environment, tmp_path):
    assert cache_folder() == tmp_path / ".cache" / "ridgewalk" / "jax"
    environment.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache_folder() == tmp_path / "x" / "ridgewalk" / "jax"
    environment.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, by the XDG specification
    assert cache_folder() == tmp_path / ".cache" / "ridgewalk" / "jax"
    environment.setenv(_compilation.CACHE_VARIABLE, str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    environment.setenv(_compilation.CACHE_VARIABLE, "off")
    assert cache_folder() is None
    environment.delenv(_compilation.CACHE_VARIABLE)
    environment.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    assert cache_folder() is None


def run(folder):
    """The folder that a process of its own uses, as printed."""
    code = "from ridgewalk._compilation import use_persistent_cache; print(use_persistent_cache())"
    environment = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    environment |= {_compilation.CACHE_VARIABLE: str(folder), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="permissions of POSIX")
def test_only_a_private_folder_is_used(tmp_path):
    """Programs in the cache are executed: nobody else may be able to write to it."""
    folder = tmp_path / "deep" / "cache"
    assert run(folder) == str(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o770)
    assert run(folder) == "None"
    folder.chmod(0o700)
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert run(link) == "None"
    blocked = Path(tmp_path / "file")
    blocked.write_text("")
    assert run(blocked / "cache") == "None"
