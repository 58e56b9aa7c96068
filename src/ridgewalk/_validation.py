"""Checks of arguments and of optional dependencies. This module imports the standard library only.

An argument check raises `ValueError` with the argument's name, its value and what to pass instead. `hint` ends the
message; it says what to pass.

The error of `requires_extra` names the extra to install. An import of a module that is not a core dependency stands
inside it, in a function or at the top of a module that is itself optional::

    with requires_extra("store"):
        import zarr

Type checkers and editors see a plain import. `tests/test_optional.py` checks that every optional import of the package
is written this way, and that the extra it names lists the module.
"""

import math
import numbers
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

Bounds = Literal["()", "(]", "[)", "[]"]
"""Which ends an interval includes."""


def _message(name: str, problem: str, hint: str) -> str:
    return f"{name}: {problem}; {hint}" if hint else f"{name}: {problem}"


def is_whole(value: Any, minimum: int = 0) -> bool:
    """Whether `value` is an integer (of Python or NumPy, not a bool) of at least `minimum`."""
    return not isinstance(value, bool) and isinstance(value, numbers.Integral) and int(value) >= minimum


def is_real(value: Any) -> bool:
    """Whether `value` is a finite real number, not a bool."""
    return not isinstance(value, bool) and isinstance(value, numbers.Real) and math.isfinite(value)


def check_whole(name: str, value: Any, minimum: int = 1, hint: str = "") -> int:
    """`value` as an int; raises unless it is an integer of at least `minimum`."""
    if not is_whole(value, minimum):
        raise ValueError(_message(name, f"{value!r} is not an integer of at least {minimum}", hint))
    return int(value)


def check_positive(name: str, value: Any, hint: str = "") -> float:
    """`value`; raises unless it is a positive finite number."""
    if not (is_real(value) and value > 0):
        raise ValueError(_message(name, f"{value!r} is not a positive finite number", hint))
    return float(value)


def check_between(name: str, value: Any, low: float, high: float, bounds: Bounds = "()", hint: str = "") -> float:
    """`value`; raises unless it is a number in the interval from `low` to `high`."""
    number = not isinstance(value, bool) and isinstance(value, numbers.Real)
    above = number and (value >= low if bounds[0] == "[" else value > low)
    below = number and (value <= high if bounds[1] == "]" else value < high)
    if not (above and below):
        raise ValueError(_message(name, f"{value!r} is not in {bounds[0]}{low:g}, {high:g}{bounds[1]}", hint))
    return float(value)


def check_choice(name: str, value: Any, choices: Iterable[str], otherwise: str = "") -> None:
    """Raise unless `value` is one of `choices`; `otherwise` names what else is accepted, such as "a Network"."""
    known = list(choices)
    if value not in known:
        listed = ", ".join(map(repr, known))
        raise ValueError(
            f"{name}: {value!r} is unknown; use one of {listed}" + (f", or {otherwise}" if otherwise else "")
        )


@contextmanager
def requires_extra(extra: str) -> Iterator[None]:
    """Turn the ModuleNotFoundError of an import into an ImportError with the command that installs it.

    An error within an installed module (a broken installation, a missing shared library) is not changed.

    Parameters
    ----------
    extra
        Name of the extra in `pyproject.toml` that lists the module.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module in {"", "ridgewalk"}:
            raise
        install = f"pip install 'ridgewalk[{extra}]'"
        message = f"{module} is not installed; it comes with the extra {extra!r}: {install}"
        raise ImportError(message, name=module) from error
