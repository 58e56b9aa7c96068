"""What the page says first: one claim per study, as a sentence, a number and a figure, from the committed record."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ridgewalk._io import read_json_object
from ridgewalk.studies.framework.charts import Bar, Field, Walk, bar_chart, field_figure, walk_figure
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


def _tall(record: Record) -> Claim | None:
    """Time to a given covariance error at the most rows at which ours and NUTS are known."""
    known = _numbers(record)[record.settings["kinds"][0]]
    seconds = {tuple(place.rsplit(", ", 1)): value for place, value in known["seconds"].items() if value is not None}
    sizes = [int(size) for name, size in seconds if name == "ridgewalk" and ("NUTS", size) in seconds]
    if not sizes:
        return None
    size = f"{max(sizes)}"
    shown = {name: value for (name, rows), value in seconds.items() if rows == size}
    bars = []
    for name, value in shown.items():
        extrapolated = " (extrapolated)" if f"{name}, {size}" in known["extrapolated"] else ""
        bars.append(Bar(f"{name}{extrapolated}", value, f"{value:,.3g} s", ours=name == "ridgewalk"))
    error = record.settings["target_error"]
    return Claim(
        record.name,
        "Tall data without reading all of it at every step",
        Number(shown["NUTS"] / shown["ridgewalk"], style=".2g"),
        "times less time than NUTS",
        f"With {int(size):,} rows, the time to a covariance error of {error:g}, warm-up included, without compilation. "
        f"From the fewest to the most rows, a step takes {known['growth_of_a_step']:.2g} times as long.",
        bar_chart(bars, f"seconds with {int(size):,} rows"),
    )


def _networks(record: Record) -> Claim | None:
    """What draws gain over the modes at which they start, in test log likelihood per row."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for row in _numbers(record)["rows"]:
        by_method = found.setdefault(row["data"], {})
        by_method.setdefault(row["method"], {})[row["split"]] = row["log_likelihood"]
    gains = {}
    for name, methods in found.items():
        draws, modes = methods.get("sample", {}), methods.get("modes", {})
        common = draws.keys() & modes.keys()
        if common:
            gains[name] = float(np.mean([draws[split] - modes[split] for split in common]))
    if not gains:
        return None
    better = sum(gain > 0 for gain in gains.values())
    bars = [Bar(name, max(gain, 0.0), f"{gain:+.2f}", ours=gain > 0) for name, gain in gains.items()]
    return Claim(
        record.name,
        "Networks that know what they do not know",
        Number(better, style="d"),
        f"of {len(gains)} UCI data sets: draws predict better than the modes they start from",
        "Mean test log likelihood of Bayesian networks of one hidden layer, sampled at temperature 1, against the same "
        "networks at their maximum-a-posteriori weights. Nothing is recalibrated.",
        bar_chart(bars, "gain in test log likelihood per row"),
    )


CLAIMS: Mapping[str, Callable[[Record], Claim | None]] = {
    "gaussian": _gaussian,
    "tall": _tall,
    "uci": _networks,
    "permeability": _fields,
}
"""By study, in the order of the page."""
