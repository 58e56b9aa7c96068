"""The command line: parses, then calls the library."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ridgewalk.darcy.commands import app as darcy_app
from ridgewalk.surrogates.commands import register

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Bayesian deep learning that mixes.")
app.add_typer(darcy_app, name="darcy")
register(app)


@app.callback()
def ridgewalk() -> None:
    """Bayesian deep learning that mixes."""


class Study(StrEnum):
    """What can be reproduced."""

    gaussian = "gaussian"
    logistic = "logistic"
    outliers = "outliers"
    everything = "all"


@app.command()
def reproduce(
    study: Annotated[Study, typer.Argument(help="Which study to run.")] = Study.everything,
    out: Annotated[Path, typer.Option(help="Where metrics and figures go, a folder per study.")] = Path("results"),
) -> None:
    """Run the studies: tables on the screen, metrics.json and figures in a folder."""
    from ridgewalk.studies import gaussian, logistic, outliers  # noqa: PLC0415  (JAX loads only when needed)

    runs = {Study.gaussian: gaussian.run, Study.logistic: logistic.run, Study.outliers: outliers.run}
    for name, run in runs.items():
        if study in (name, Study.everything):
            run(out / name.value)
            typer.echo(f"written to {out / name.value}")


def main() -> None:
    """Entry point of the `ridgewalk` command."""
    app()
