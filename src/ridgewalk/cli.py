"""The command line: parses, then calls the library."""

import os
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import ridgewalk as rw
from ridgewalk._cli_errors import errors_as_messages, write_any_text
from ridgewalk._validation import requires_extra
from ridgewalk.darcy.cli import app as darcy_app
from ridgewalk.neural.cli import register
from ridgewalk.studies.framework.study import NAMES, Preset, load_study

with requires_extra("cli"):
    import typer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Bayesian deep learning that mixes.",
)
app.add_typer(darcy_app, name="darcy")
register(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ridgewalk {rw.__version__}")
        raise typer.Exit


@app.callback()
def ridgewalk(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Bayesian deep learning that mixes."""


def _has_screen() -> bool:
    """Whether a browser would open in a window beside this terminal, not in it or on another machine."""
    remote = "SSH_CONNECTION" in os.environ
    windows = sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return windows and not remote


@app.command()
def reproduce(
    studies: Annotated[
        list[str] | None, typer.Argument(help=f"all, or one or more of {', '.join(NAMES)}. Default: all.")
    ] = None,
    preset: Annotated[Preset, typer.Option(help="quick: all studies at reduced scale; paper: full scale.")] = (
        Preset.quick
    ),
    out: Annotated[Path, typer.Option(help="Output folder: index.html, and metrics and figures per study.")] = Path(
        "results"
    ),
    workers: Annotated[
        int | None, typer.Option(min=1, help="Number of worker processes. Default: one per core, as memory allows.")
    ] = None,
    show: Annotated[
        bool | None,
        typer.Option("--open/--no-open", help="Open the page. Default: if there is a browser and a terminal."),
    ] = None,
) -> None:
    """Run studies and write one self-contained page, index.html. If interrupted, rerun the same command to resume."""
    from ridgewalk._compilation import use_persistent_cache  # noqa: PLC0415  (loads JAX)
    from ridgewalk.studies.framework.runner import run_studies  # noqa: PLC0415

    with errors_as_messages():
        use_persistent_cache()
        names = NAMES if not studies or "all" in studies else tuple(dict.fromkeys(studies))
        page = run_studies([load_study(name) for name in names], preset, out, workers)
        typer.echo(f"written to {page}")
        if show or (show is None and sys.stdout.isatty() and _has_screen()):
            webbrowser.open(page.resolve().as_uri())


@app.command(context_settings={"allow_interspersed_args": False})
def launch(
    script: Annotated[list[str], typer.Argument(help="A Python file, and its arguments.")],
    processes: Annotated[int, typer.Option("-n", "--processes", min=1, help="Number of processes.")] = 2,
) -> None:
    """Run a script in several processes of this machine, which `ridgewalk.distributed.initialize()` connects."""
    from ridgewalk.distributed.launch import launch as run  # noqa: PLC0415

    with errors_as_messages():
        code = run(script, processes)
    raise typer.Exit(code)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="The output folder of `reproduce`.")] = Path("results"),
) -> None:
    """Rebuild the page, index.html, from the records in a folder."""
    from ridgewalk.studies.framework.page import write_page  # noqa: PLC0415

    with errors_as_messages():
        typer.echo(f"written to {write_page(folder)}")


def main() -> None:
    """Entry point of the `ridgewalk` command."""
    write_any_text()
    try:
        with errors_as_messages():  # what a command did not expect itself
            app()
    except typer.Exit as end:
        sys.exit(end.exit_code)
