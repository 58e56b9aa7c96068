"""From the pieces of a Darcy study to its report and figures."""

from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np

from ridgewalk.studies.darcy_data import FlowData, flow_data
from ridgewalk.studies.darcy_names import BEST
from ridgewalk.studies.darcy_plots import draw_error_bars, draw_fields
from ridgewalk.studies.darcy_posterior import task_of
from ridgewalk.studies.darcy_report import (
    WITH,
    WITHOUT,
    cost_table,
    coverage_table,
    error_table,
    errors_of,
    in_words,
    runs_of,
    starts_of,
    tuning_table,
)
from ridgewalk.studies.darcy_settings import PAPER, Settings
from ridgewalk.studies.darcy_study import SHOWN, hardest
from ridgewalk.studies.darcy_verdict import verdict_table
from ridgewalk.studies.darcy_words import method_section
from ridgewalk.studies.record import save_figure
from ridgewalk.studies.schema import Picture, Report, Section
from ridgewalk.studies.study import Outcome, Values
from ridgewalk.surrogates.model import count_weights

TITLES = {
    "source": "Darcy flow: varying sources",
    "permeability": "Darcy flow: varying permeabilities",
}


def assemble(settings: Settings, results: Mapping[str, Values], folder: Path) -> Outcome:
    """Tables without and with the symmetry, calibration, cost, figures."""
    rows, data = list(results.values()), flow_data(settings)
    multiscale = results["multiscale"]
    sections = []
    # Calibration, fields and cost are of the first; the others are there for their errors.
    for mirror in settings.mirrors:
        runs = runs_of(rows, mirror)
        suffix = "-mirror" if mirror else ""
        said = (WITH if mirror else WITHOUT) if len(settings.mirrors) > 1 else ""
        bars = f"errors{suffix}.png"
        save_figure(folder, bars, draw_error_bars(errors_of(runs), PAPER[settings.kind]))
        seeds = "1 seed" if settings.seeds == 1 else f"{settings.seeds} seeds"
        caption = f"Mean relative error (%), {seeds}" + (f", {said}" if said else "")
        picture = Picture(bars, caption, "Bars: the error of every method at every sparsity; dashed: the paper's best.")
        start = starts_of(rows, mirror)
        tables = (
            error_table(settings, mirror, runs, start, caption, multiscale),
            verdict_table(settings, mirror, runs, start[0]),
        )
        left_out = [name for name in settings.methods if name not in settings.methods_of(mirror)]
        left_out += [in_words(s) for s in settings.sparsities if s not in settings.sparsities_of(mirror)]
        text = (f"Not run here, to save time: {'; '.join(left_out)}.",) if left_out else ()
        sections.append(Section("Errors" + (f" {said}" if said else ""), text, tables, (picture,)))
    mirror = settings.mirrors[0]
    runs = runs_of(rows, mirror)
    tuning = tuning_table(rows, mirror)
    sections.append(Section("Calibration", (), (coverage_table(settings, runs),), _fields(settings, runs, folder)))
    sections.append(Section("Cost and step sizes", (), (cost_table(settings, runs), *([tuning] if tuning else []))))
    sections.append(method_section(settings))
    report = Report(TITLES[settings.kind], (_about(settings, data),), tuple(sections))
    plain = [{key: value for key, value in row.items() if key not in ("flux", "spread")} for row in rows]
    return Outcome(report, {"data": data.label, "runs": plain})


def _about(settings: Settings, data: FlowData) -> str:
    task = task_of(settings, settings.mirrors[0])
    weights = count_weights(jax.eval_shape(task.model.init, jax.random.key(0)))
    learnt = "three-spot sources" if settings.kind == "source" else "random permeabilities"
    return (
        f"A network learns the map from {learnt} to the fluxes through all edges of a {settings.size}×{settings.size} "
        f"grid, from {settings.train - settings.held:,} samples ({settings.held} more are held out), and is tested on "
        f"{settings.samples - settings.train}. Permeability: {data.label}. The network has {weights:,} weights."
    )


def _fields(settings: Settings, runs: list[Mapping[str, object]], folder: Path) -> tuple[Picture, ...]:
    task = task_of(settings, settings.mirrors[0])
    outputs = task.scaled.outputs
    noise = outputs.spread(np.full((1, task.scaled.y.shape[1]), task.noise))[0]
    shown = {}
    for row in (row for row in runs if "flux" in row):
        spread = np.asarray(row["spread"], float)
        shown[str(row["method"])] = np.asarray(row["flux"]), np.sqrt(np.maximum(spread**2 - noise**2, 0))
    if not shown:
        return ()
    number = hardest(task)
    save_figure(folder, "fields.png", draw_fields(task.data.grid, task.data.test.fluxes[number], shown))
    caption = (
        f"The test sample farthest from the training mean, {in_words(settings.tuning_sparsity)}: true and predicted "
        "velocity along x, the error, and the standard deviation of the draws, to which the likelihood's noise "
        f"({noise.max():.2g}) and the recalibration are still to be added."
    )
    return (Picture("fields.png", caption, f"Fields of {' and '.join(SHOWN)}; {BEST} is below."),)
