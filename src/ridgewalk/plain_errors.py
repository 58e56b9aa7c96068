"""Errors that a command's user can mend end in one line, not in a traceback."""

from collections.abc import Iterator
from contextlib import contextmanager

from ridgewalk._optional import requires_extra

with requires_extra("cli"):
    import typer


@contextmanager
def errors_in_plain_words() -> Iterator[None]:
    """Print what went wrong and leave with code 2, or with 130 where the user stopped the command."""
    try:
        yield
    except (ValueError, RuntimeError, OSError) as error:  # a run whose chains all diverged is a RuntimeError
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    except KeyboardInterrupt as stop:
        typer.echo(str(stop) or "stopped; the same command goes on where it was", err=True)
        raise typer.Exit(130) from stop
