"""Compile time: XLA options for short programs, and JAX's persistent compilation cache for the command line.

XLA's default options optimise for long runs. A fit of a small network runs for half a second and compiles for seven;
within `quick_compilation` the functions decorated with `jit` of this module compile with less optimisation, which
takes about half the time and makes the program about 10 % slower (`benchmarks/compile.py` measures both). Outside of it
they compile as `jax.jit` does. Results differ by rounding.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from pathlib import Path
from typing import Any, TypeVar

import jax

from ridgewalk._pytree import Placement, current_placement

Function = TypeVar("Function", bound=Callable[..., Any])
Options = tuple[tuple[str, Any], ...]

CPU_OPTIONS: Options = (("xla_cpu_use_fusion_emitters", False), ("xla_backend_optimization_level", 1))
"""Code generation by LLVM directly, at optimisation level 1."""

CACHE_VARIABLE = "RIDGEWALK_COMPILATION_CACHE"
"""Environment variable: a folder for the persistent cache of the command line, or "off"."""

_current: ContextVar[Options] = ContextVar("compiler_options", default=())


@cache
def _quick_options() -> Options:
    """The options for short programs; none where this version of XLA, or its backend, does not know them."""
    if jax.default_backend() != "cpu":
        return ()
    try:
        jax.jit(lambda x: x + 1, compiler_options=dict(CPU_OPTIONS)).lower(0.0).compile()
    except (RuntimeError, ValueError):
        return ()
    return CPU_OPTIONS


@contextmanager
def quick_compilation(wanted: bool = True) -> Iterator[None]:
    """Compile with less optimisation inside the context, where `wanted`."""
    token = _current.set(_quick_options() if wanted else ())
    try:
        yield
    finally:
        _current.reset(token)


def jit(function: Function, **settings: Any) -> Function:
    """`jax.jit(function, **settings)` with the compiler options and the placement of the context it is called in."""

    @cache
    def compiled(options: Options, placement: Placement | None) -> Any:
        traced: Any = function
        if placement is not None:

            @wraps(function)
            def traced(*arguments: Any, **keywords: Any) -> Any:
                return placement.constrain(function(*arguments, **keywords))

        return jax.jit(traced, compiler_options=dict(options) or None, **settings)

    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        options = _current.get()
        if options and any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((arguments, keywords))):
            options = ()  # within another function that is traced, whose options count
        return compiled(options, current_placement())(*arguments, **keywords)

    return call  # type: ignore[return-value]


def cache_folder() -> Path | None:
    """Where the command line keeps compiled programs; None where the user switched it off or chose JAX's own way."""
    asked = os.environ.get(CACHE_VARIABLE, "")
    if asked.lower() in {"off", "0", "no", "false"} or "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return None
    if asked:
        return Path(asked).expanduser()
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        given = os.environ.get("XDG_CACHE_HOME", "")
        base = Path(given) if given and Path(given).is_absolute() else Path.home() / ".cache"
    return base / "ridgewalk" / "jax"


def use_persistent_cache() -> Path | None:
    """Let JAX keep compiled programs in the user's cache folder; returns the folder, or None where there is none.

    Compiled programs are executed as they are read, so a folder that belongs to another user, or that others can write
    to, is not used. A folder that cannot be created is no error: the cache only saves time.
    """
    folder = cache_folder()
    if folder is None:
        return None
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_private(folder):
            return None
    except OSError:
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    return folder


def _is_private(folder: Path) -> bool:
    """Whether only this user can write to a folder, which is no symbolic link; always so on Windows."""
    if sys.platform == "win32":
        return True
    found = folder.lstat()
    return not folder.is_symlink() and found.st_uid == os.getuid() and not found.st_mode & 0o022
