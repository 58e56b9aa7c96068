"""The command line: parses, then calls the library."""

from importlib.metadata import version
from pathlib import Path
from typing import Annotated

from ridgewalk._optional import requires_extra
from ridgewalk.darcy.commands import app as darcy_app
from ridgewalk.plain_errors import errors_in_plain_words
from ridgewalk.studies.registry import NAMES, study_named
from ridgewalk.studies.study import Preset
from ridgewalk.surrogates.commands import register

with requires_extra("cli"):
    import typer

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Bayesian deep learning that mixes.")
app.add_typer(darcy_app, name="darcy")
register(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ridgewalk {version('ridgewalk')}")
        raise typer.Exit


@app.callback()
def ridgewalk(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Bayesian deep learning that mixes."""


@app.command()
def reproduce(
    study: Annotated[str, typer.Argument(help=f"One of {', '.join(NAMES)}; or all of them.")] = "all",
    preset: Annotated[Preset, typer.Option(help="quick: everything, smaller; paper: full scale.")] = Preset.quick,
    out: Annotated[Path, typer.Option(help="Where metrics and figures go, a folder per study.")] = Path("results"),
) -> None:
    """Run the studies; stopped at any moment, the same command goes on where it was."""
    from ridgewalk.studies.runner import run_study  # noqa: PLC0415  (matplotlib loads only when needed)

    with errors_in_plain_words():
        for name in NAMES if study == "all" else (study,):
            path = run_study(study_named(name), preset, out)
            typer.echo(f"written to {path.parent}")


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="The folder that `reproduce` wrote.")] = Path("results"),
) -> None:
    """Make one self-contained page, index.html, of the studies in a folder."""
    from ridgewalk.report.page import write_page  # noqa: PLC0415

    with errors_in_plain_words():
        typer.echo(f"written to {write_page(folder)}")


def main() -> None:
    """Entry point of the `ridgewalk` command."""
    app()
