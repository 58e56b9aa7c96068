"""`ridgewalk darcy`: generate data sets and draw figures of them."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from ridgewalk._cli_errors import errors_as_messages
from ridgewalk._validation import requires_extra

with requires_extra("cli"):
    import typer

if TYPE_CHECKING:
    from ridgewalk.darcy.problems import Problem
    from ridgewalk.darcy.spe10 import LabelledPermeability

app = typer.Typer(no_args_is_help=True, help="Darcy flow: data sets and figures.")
generate_app = typer.Typer(
    no_args_is_help=True, help="Generate a data set. If interrupted, rerun the same command to resume."
)
app.add_typer(generate_app, name="generate")

Out = Annotated[Path, typer.Option(help="Zarr folder to write.")]
Samples = Annotated[int, typer.Option(help="Number of samples.")]
Seed = Annotated[int, typer.Option(help="Random seed; sample i depends on the seed and i only.")]
Processes = Annotated[int, typer.Option(help="Worker processes; does not change the samples.")]
Size = Annotated[int, typer.Option(help="Cells in each direction.")]
PermeabilityFile = Annotated[
    Path | None,
    typer.Option(help="A field (.npy), or SPE10 (spe_perm.dat, its .zip, or .npz). Default: a synthetic field."),
]
Layer = Annotated[int, typer.Option(help="SPE10 layer, 1 (top) to 85.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the output if it exists.")]


@generate_app.command("source")
def generate_source(
    *,
    out: Out,
    samples: Samples = 1500,
    seed: Seed = 0,
    processes: Processes = 2,
    permeability: PermeabilityFile = None,
    fetch: Annotated[
        bool, typer.Option("--fetch", help="Download SPE10 from spe.org, once, and verify its checksum.")
    ] = False,
    layer: Layer = 53,
    size: Size = 50,
    mean: Annotated[float, typer.Option(help="Mean of f1 and f2.")] = 10.0,
    spread: Annotated[float, typer.Option(help="Second parameter of their normal distribution.")] = 5.0,
    spread_is: Annotated[
        Literal["variance", "standard-deviation"], typer.Option(help="What --spread is.")
    ] = "variance",
    block: Annotated[int | None, typer.Option(help="Side of a source block in cells; default about size/10.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Three-spot sources in a fixed permeability: f1, f2 ~ N(10, 5), no flow through the boundary."""
    from ridgewalk.darcy.problems import VaryingSource  # noqa: PLC0415

    with errors_as_messages():
        if spread < 0:
            raise ValueError(f"spread = {spread}: must be at least 0")
        field = _fixed_permeability(permeability, layer, size, fetch)
        deviation = spread**0.5 if spread_is == "variance" else spread
        problem = VaryingSource(field.values, field.label, mean, deviation, block)
        _generate(out, problem, samples=samples, seed=seed, processes=processes, overwrite=overwrite)


@generate_app.command("permeability")
def generate_permeability(
    *,
    out: Out,
    terms: Annotated[int, typer.Option(help="Terms of the Karhunen–Loève expansion (32, 64, 128 in the paper).")] = 64,
    samples: Samples = 1500,
    seed: Seed = 0,
    processes: Processes = 2,
    form: Annotated[Literal["linear", "log-normal"], typer.Option(help="κ₀ + Y, or κ₀ exp(Y).")] = "linear",
    kappa_0: Annotated[float, typer.Option("--kappa-0", help="κ₀: mean, or median if log-normal.")] = 10.0,
    length_x: Annotated[float, typer.Option(help="Correlation length in x.")] = 0.2,
    length_y: Annotated[float, typer.Option(help="Correlation length in y.")] = 0.3,
    variance: Annotated[float, typer.Option(help="σ, the variance of the field.")] = 2.0,
    size: Size = 50,
    overwrite: Overwrite = False,
) -> None:
    """Random permeabilities: pressure 1 left, 0 right, no flow elsewhere, f = 1."""
    from ridgewalk.darcy.grid import Grid  # noqa: PLC0415
    from ridgewalk.darcy.problems import VaryingPermeability, karhunen_loeve  # noqa: PLC0415

    with errors_as_messages():
        expansion = karhunen_loeve(Grid(size, size), terms, (length_x, length_y), variance)
        lost = 1 - expansion.energy
        typer.echo(f"{terms} terms capture all but {lost:.2g} of the field's variance")
        problem = VaryingPermeability(expansion, form, kappa_0)
        _generate(out, problem, samples=samples, seed=seed, processes=processes, overwrite=overwrite)
        _report_redraws(out)


@app.command()
def multiscale(
    *,
    out: Annotated[Path, typer.Option(help="PNG file to write.")],
    permeability: PermeabilityFile = None,
    layer: Layer = 53,
    size: Size = 50,
    blocks: Annotated[list[int] | None, typer.Option(help="Coarse blocks in each direction; default 5 and 10.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Draw the multiscale method's error against the number of basis functions, for a three-spot source."""
    import numpy as np  # noqa: PLC0415

    from ridgewalk.darcy.grid import Boundary  # noqa: PLC0415
    from ridgewalk.darcy.plots import (  # noqa: PLC0415
        draw_multiscale,
        error_curve,
        save_figure,
    )
    from ridgewalk.darcy.problems import default_block, three_spot_source  # noqa: PLC0415
    from ridgewalk.darcy.solver import grid_of  # noqa: PLC0415

    with errors_as_messages():
        field = _fixed_permeability(permeability, layer, size)
        grid = grid_of(field.values)
        source = three_spot_source(grid, np.array(10.0), np.array(10.0), default_block(grid))
        curves = [error_curve(field.values, source, Boundary(), count) for count in blocks or (5, 10)]
        for curve in curves:
            errors = ", ".join(f"{error:.2g}" for error in curve.errors)
            typer.echo(f"{curve.blocks}×{curve.blocks} blocks, relative energy errors: {errors}")
        figure = draw_multiscale(field.values, source, Boundary(), field.label, curves)
        typer.echo(f"wrote {save_figure(figure, out, overwrite)}")


@app.command()
def show(
    file: Annotated[Path, typer.Argument(help="A data set made by `darcy generate`.")],
    out: Annotated[Path, typer.Option(help="PNG file to write.")],
    sample: Annotated[int, typer.Option(help="Index of the sample, from 0.")] = 0,
    overwrite: Overwrite = False,
) -> None:
    """Draw permeability, source, pressure and velocity of one sample."""
    from ridgewalk.darcy.plots import show_sample  # noqa: PLC0415

    with errors_as_messages():
        typer.echo(f"wrote {show_sample(file, sample, out, overwrite)}")


def _fixed_permeability(path: Path | None, layer: int, size: int, fetch: bool = False) -> "LabelledPermeability":
    from ridgewalk.darcy.spe10 import (  # noqa: PLC0415
        permeability_from_file,
        spe10_permeability,
        synthetic_permeability,
    )

    if path is not None and fetch:
        raise ValueError("--permeability and --fetch exclude each other; pass one of them")
    if path is not None:
        return permeability_from_file(path, layer, size)
    return spe10_permeability(None, layer, size) if fetch else synthetic_permeability(size)


def _generate(out: Path, problem: "Problem", *, samples: int, seed: int, processes: int, overwrite: bool) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn  # noqa: PLC0415

    from ridgewalk.darcy.datasets import Plan, generate  # noqa: PLC0415

    plan = Plan(samples, seed)
    label = problem.description["permeability_label"]
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=sys.stderr)) as bar:
        task = bar.add_task("samples", total=samples)
        generate(
            out,
            problem,
            plan,
            processes=processes,
            overwrite=overwrite,
            progress=lambda count: bar.advance(task, count),
        )
    typer.echo(f"wrote {samples} samples to {out} ({label})")


def _report_redraws(out: Path) -> None:
    from ridgewalk.darcy.datasets import load  # noqa: PLC0415

    redraws = load(out, names=("redraws",)).arrays["redraws"]
    again, samples = int(redraws.sum()), int((redraws > 0).sum())
    typer.echo(f"{again} fields were not positive and were redrawn, in {samples} samples")
