"""Errors of the command line: one line that names the option to change, never a traceback.

Exit codes: 2 for input that has to be changed, 1 for work that failed, 130 where the user stopped the command. With the
environment variable RIDGEWALK_TRACEBACK set, the traceback is shown as well.
"""

import codecs
import importlib
import os
import re
import sys
import traceback
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ridgewalk._validation import requires_extra

with requires_extra("cli"):
    import typer

TRACEBACK = "RIDGEWALK_TRACEBACK"

ALIASES = {"path": "out", "random_state": "seed", "nx": "size", "ny": "size", "url": "fetch", "folder": "out"}
"""Arguments of the library and the parameter of the command that sets them, where the names differ."""

ASCII = {
    "×": "x", "–": "-", "—": "-", "−": "-", "…": "...", "±": "+/-", "‖": "||", "·": "*", "≤": "<=", "≥": ">=",
    "κ": "kappa", "σ": "sigma", "μ": "mu", "ε": "epsilon", "λ": "lambda", "θ": "theta", "✓": "+", "✗": "x", "→": "->",
}  # fmt: skip
"""How characters are written where the output takes ASCII only."""


@contextmanager
def errors_as_messages() -> Iterator[None]:
    """Print what went wrong in one line and leave with an exit code."""
    try:
        yield
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except (ValueError, OSError) as error:
        _leave(2, with_flags(str(error)), error)
    except MemoryError as error:
        _leave(1, f"there is not enough memory ({error}); use less data or a smaller network", error)
    except (RuntimeError, ImportError) as error:  # chains that diverged, an extra that is not installed
        if isinstance(error, RecursionError | NotImplementedError):
            _leave(1, _unexpected(error), error)
        _leave(1, with_flags(str(error)), error)
    except KeyboardInterrupt as stop:
        _leave(130, str(stop) or "stopped; the same command continues the work", stop, "")
    except Exception as error:  # a defect of ours
        _leave(1, _unexpected(error), error)


def _unexpected(error: Exception) -> str:
    found = f"{type(error).__name__}: {error}"[:300]
    return f"unexpected {found}; please report it with the command. {TRACEBACK}=1 shows where it happened"


def _leave(code: int, message: str, error: BaseException, start: str = "error: ") -> None:
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error)
    typer.echo(start + message, err=True)
    raise typer.Exit(code) from error


def with_flags(message: str) -> str:
    """A message of the library with its arguments as the options of the command that is running."""
    package = typer.Context.__mro__[1].__module__.rpartition(".")[0]  # click, or typer's own copy of it
    context: Any = importlib.import_module(f"{package}.globals").get_current_context(silent=True)
    if context is None:
        return message
    options = {
        parameter.name: max(parameter.opts, key=len)
        for parameter in context.command.params
        if parameter.param_type_name == "option"
    }
    options |= {name: options[other] for name, other in ALIASES.items() if other in options and name not in options}
    for name, flag in options.items():
        word = rf"(?<![\w\-./'\"]){name}"
        message = re.sub(rf"{word}='([^']*)'", rf"{flag} \1", message)
        message = re.sub(rf"{word}=True\b", flag, message)
        message = re.sub(rf"{word}=(?=[\w.])", f"{flag} ", message)
        message = re.sub(rf"{word} = ", f"{flag} ", message)
        message = re.sub(rf"^{word}: ", f"{flag}: ", message)
        if "_" in name:
            message = re.sub(rf"{word}(?!\w)", flag, message)
    return message


def write_any_text() -> None:
    """Let standard output and error take every character, spelt in ASCII where the locale has no more."""
    codecs.register_error("ridgewalk", _spelt)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="ridgewalk")


def _spelt(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = "".join(_ascii(letter) for letter in error.object[error.start : error.end])
    return text, error.end


def _ascii(letter: str) -> str:
    known = ASCII.get(letter)
    return known or unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode() or "?"
