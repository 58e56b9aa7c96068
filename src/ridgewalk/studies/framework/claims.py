"""What the page says first: one claim per study, as a sentence, a number and a figure, from the committed record."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ridgewalk._io import read_json_object
from ridgewalk.studies.framework.charts import Field, Walk, field_figure, walk_figure
from ridgewalk.studies.framework.study import Number, Record

RECORDS_IN_PACKAGE = Path(__file__).parents[1] / "records"
RECORDS_IN_REPOSITORY = Path(__file__).parents[4] / "docs" / "results"
REDUCED = "quick"
"""Folder of the records of the quick preset, inside that of the full-scale records."""


class Claim(NamedTuple):
    """A statement about the full-scale record of a study."""

    study: str
    heading: str
    number: Number
    unit: str
    """What the number counts: it follows the number."""
    sentence: str
    figure: str
    """HTML of the figure."""


def records_folder() -> Path | None:
    """The committed records: in an installed package, or in the repository; None if there are neither."""
    return next((folder for folder in (RECORDS_IN_PACKAGE, RECORDS_IN_REPOSITORY) if folder.is_dir()), None)


def claims(records: list[Record]) -> list[Claim]:
    """The claims of all records of which there is one, in the order of `CLAIMS`."""
    by_name = {record.name: record for record in records}
    found = [claim(by_name[name]) for name, claim in CLAIMS.items() if name in by_name]
    return [claim for claim in found if claim is not None]


def _numbers(record: Record) -> Any:
    return read_json_object(record.folder / "metrics.json")["numbers"]


def _gaussian(record: Record) -> Claim | None:
    path = record.folder / "walk.json"
    if not path.exists():
        return None
    known = _numbers(record)["faster_at_no_more_error"]
    walks = [Walk(**walk) for walk in read_json_object(path)["walks"]]
    covariance = np.array([[0.12**2, -0.95 * 0.12], [-0.95 * 0.12, 1.0]])
    return Claim(
        record.name,
        "Chains that mix on an ill-conditioned posterior",
        Number(known["ratio"], style=".0f"),
        "times fewer steps per independent draw than plain Langevin dynamics (SGLD)",
        f"On the paper’s Gaussian the autocorrelation time of HASGLD-SA is {known['hasgld_time']:.0f} steps where SGLD "
        f"needs {known['sgld_time']:.0f}, at no larger error. A step takes two gradients instead of one.",
        walk_figure(walks, covariance),
    )


def _fields(record: Record) -> Claim | None:
    path = record.folder / "field.json"
    if not path.exists():
        return None
    method, sparsity = "HASGLD-SA, M=2", record.settings["tuning_sparsity"]
    mirror = record.settings["mirrors"][0]
    runs = [
        run
        for run in _numbers(record)["runs"]
        if (run["method"], run["sparsity"], run["mirror"], run["diverged"]) == (method, sparsity, mirror, 0)
    ]
    coverage, error = (float(np.mean([run[name] for run in runs])) for name in ("coverage", "error"))
    content = read_json_object(path)
    field = Field(*(np.asarray(content[name], float) for name in Field._fields))
    return Claim(
        record.name,
        "Calibrated fields from a network",
        Number(100 * coverage, style=".0f"),
        "% of true fluxes lie in the 90 % intervals",
        f"A network with {100 * sparsity:.0f} % of its weights pruned replaces a flow solver: its mean relative error "
        f"on unseen inputs is {error:.2f} %. The figure shows a test sample of median error: "
        f"{100 * field.inside:.0f} % of its fluxes lie inside.",
        field_figure(field, "flux along x", "90 %"),
    )


CLAIMS: Mapping[str, Callable[[Record], Claim | None]] = {"gaussian": _gaussian, "permeability": _fields}
"""By study, in the order of the page."""
