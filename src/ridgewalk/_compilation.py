"""Compiled code: conditional updates and a counter of steps inside of it, XLA options for short programs, and JAX's
persistent compilation cache for the command line.

Without x64 JAX has no 64-bit integers, and 2³¹ steps of 6 µs take 3.6 hours: `StepCount` has 62 bits.

XLA's default options optimise for long runs. A fit of a small network runs for half a second and compiles for seven;
within `quick_compilation` the functions decorated with `jit` of this module compile with less optimisation, which
takes a quarter to half of the time. It makes the program of a network about 10 % slower (`benchmarks/compile.py`
measures both), and elementary functions of many rows up to 2.6 times. Outside of it they compile as `jax.jit` does.
Results differ by rounding.
"""

import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._pytree import Placement, current_placement
from ridgewalk._types import Scalar

T = TypeVar("T")
Operands = TypeVar("Operands")
Function = TypeVar("Function", bound=Callable[..., Any])
Options = tuple[tuple[str, Any], ...]

# Control flow

WORD = 2**31
"""A step count is `high` × WORD + `low`. The runner ends a device call wherever `high` changes."""


def words(number: int) -> tuple[int, int]:
    """`low` and `high` of a whole number."""
    return number % WORD, number // WORD


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class StepCount:
    """A number of steps, as two int32 words.

    It adds, subtracts, divides by and compares with Python integers as an integer array does; `astype` gives an array.
    """

    low: Scalar
    high: Scalar

    @classmethod
    def of(cls, number: int) -> "StepCount":
        """The count that equals a Python integer."""
        low, high = words(number)
        return cls(jnp.asarray(low, jnp.int32), jnp.asarray(high, jnp.int32))

    def __int__(self) -> int:
        """The count as a Python integer, outside compiled code."""
        return int(self.high) * WORD + int(self.low)

    def __add__(self, number: int) -> "StepCount":
        """The count `number` steps on."""
        low, high = words(number)
        total = self.low + jnp.int32(low)  # wraps to a negative number at 2³¹
        return StepCount(total & jnp.int32(WORD - 1), self.high + jnp.int32(high) + (total < 0).astype(jnp.int32))

    def __sub__(self, number: int) -> "StepCount":
        """The count `number` steps before; 0 where there are fewer."""
        low, high = words(number)
        rest = self.low - jnp.int32(low)
        above = self.high - jnp.int32(high) - (rest < 0).astype(jnp.int32)
        return StepCount(jnp.where(above < 0, 0, rest & jnp.int32(WORD - 1)), jnp.maximum(above, 0))

    def __divmod__(self, divisor: int) -> tuple["StepCount", Scalar]:
        """Quotient and remainder, by long division in digits so small that a partial remainder fits 32 bits."""
        if not 0 < divisor < WORD:
            raise ValueError(f"every: {divisor} steps is not an interval from 1 to 2³¹ − 1")
        if divisor & (divisor - 1) == 0:  # a power of two, as most intervals: no division in every step
            shift, mask = divisor.bit_length() - 1, jnp.int32(divisor - 1)
            low, high = self.low >> jnp.int32(shift), self.high >> jnp.int32(shift)
            return StepCount(low | ((self.high & mask) << jnp.int32(31 - shift)), high), self.low & mask
        by, digit = np.uint32(divisor), 32 - divisor.bit_length()
        above = self.high.astype(jnp.uint32)
        rest, low, quotient = above % by, self.low.astype(jnp.uint32), jnp.zeros_like(above)
        left = 31
        while left:
            bits = min(digit, left)
            left -= bits
            partial = (rest << np.uint32(bits)) | ((low >> np.uint32(left)) & np.uint32(2**bits - 1))
            quotient, rest = (quotient << np.uint32(bits)) | (partial // by), partial % by
        return StepCount(quotient.astype(jnp.int32), (above // by).astype(jnp.int32)), rest.astype(jnp.int32)

    def __floordiv__(self, divisor: int) -> "StepCount":
        """How many whole intervals of `divisor` steps were made."""
        return divmod(self, divisor)[0]

    def __mod__(self, divisor: int) -> Scalar:
        """Steps since the last multiple of `divisor`, int32."""
        return divmod(self, divisor)[1]

    def __lt__(self, number: int) -> Scalar:
        """Whether fewer than `number` steps were made."""
        low, high = words(number)
        return (self.high < high) | ((self.high == high) & (self.low < low))

    def __eq__(self, number: Any) -> Scalar:  # type: ignore[override]
        """Whether exactly `number` steps were made."""
        low, high = words(number)
        return (self.high == high) & (self.low == low)

    __hash__ = None  # type: ignore[assignment]

    def __ge__(self, number: int) -> Scalar:
        """Whether at least `number` steps were made."""
        return ~(self < number)

    def __gt__(self, number: int) -> Scalar:
        """Whether more than `number` steps were made."""
        return self >= number + 1

    def __le__(self, number: int) -> Scalar:
        """Whether at most `number` steps were made."""
        return self < number + 1

    def astype(self, dtype: Any) -> jax.Array:
        """The count as a float array; as an integer array it ends at 2³¹ − 1."""
        if jnp.issubdtype(dtype, jnp.integer):
            return jnp.where(self.high > 0, WORD - 1, self.low).astype(dtype)
        above = self.high.astype(jnp.promote_types(dtype, jnp.float32)) * float(WORD)
        return self.low.astype(dtype) + above.astype(dtype)

    def __jax_array__(self) -> jax.Array:
        """For functions of JAX: an int32 array, at most 2³¹ − 1."""
        return self.astype(jnp.int32)


def when(due: Scalar, update: Callable[[T, Operands], T], state: T, operands: Operands) -> T:
    """`update(state, operands)` if `due`, else `state`; like `lax.cond`, but updates `state` in place.

    Implemented as a loop of zero or one iterations: XLA copies what a conditional returns, but updates what a loop
    carries in place. XLA also hoists computations that do not depend on the loop out of it, and they would run in
    every step. The optimization barrier ties `operands` to the iteration: pass all arrays that `update` reads there.
    """

    def once(iteration: Scalar, carry: T) -> T:
        return update(carry, jax.lax.optimization_barrier((iteration, operands))[1])

    return jax.lax.fori_loop(0, due.astype(jnp.int32), once, state)


def every(interval: int, step: Scalar, update: Callable[[T, Operands], T], state: T, operands: Operands) -> T:
    """`update(state, operands)` in every `interval`-th step, else `state`.

    `step` must be common to all chains of a vectorised run: under `vmap` over the step the update would run always.
    """
    return update(state, operands) if interval == 1 else when(step % interval == 0, update, state, operands)


# Options of the compiler

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


def count_numbers(function: Callable[..., Any], *arguments: Any) -> int:
    """How many numbers the operations of a function write for arguments of these shapes; loops of unknown length count
    once.
    """
    return _numbers_of(jax.make_jaxpr(function)(*arguments).jaxpr)


def _numbers_of(jaxpr: Any) -> int:
    total = 0
    for equation in jaxpr.eqns:
        inner = [
            getattr(part, "jaxpr", part)
            for value in equation.params.values()
            for part in (value if isinstance(value, tuple | list) else (value,))
            if hasattr(getattr(part, "jaxpr", part), "eqns")
        ]
        if inner:
            total += equation.params.get("length", 1) * sum(map(_numbers_of, inner))
        else:
            total += sum(math.prod(getattr(out.aval, "shape", ())) for out in equation.outvars)
    return total


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


# The persistent cache


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
