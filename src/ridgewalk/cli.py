"""The command line: parses, then calls the library."""

import typer

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Bayesian deep learning that mixes.")


@app.callback()
def ridgewalk() -> None:
    """Bayesian deep learning that mixes."""


def main() -> None:
    """Entry point of the `ridgewalk` command."""
    app()
