"""The command line: parses, then calls the library."""

import typer

from ridgewalk.darcy.commands import app as darcy_app

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Bayesian deep learning that mixes.")
app.add_typer(darcy_app, name="darcy")


@app.callback()
def ridgewalk() -> None:
    """Bayesian deep learning that mixes."""


def main() -> None:
    """Entry point of the `ridgewalk` command."""
    app()
