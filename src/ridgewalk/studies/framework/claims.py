"""What the page says first: one claim per study, as a sentence, a number and a figure, from the committed record.

Whether a run agrees with the committed record of the same settings: number by number, within the noise of both.

A run on the same machine repeats the record bit by bit. Elsewhere rounding differs, chains amplify it, and numbers move
like those of another seed. Numbers with a standard error are compared by it. For the others a record may have
`repeats.json`: the same numbers from runs compiled with other optimisations, whose spread is the noise.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ridgewalk._io import read_json_object, write_atomically
from ridgewalk.studies.framework.charts import Bar, Field, Walk, bar_chart, field_figure, walk_figure
from ridgewalk.studies.framework.study import Number, Record, Report

REPEATS_FILE = "repeats.json"
ERRORS = 3.0
"""Standard errors of the difference that count as noise."""
SPREADS = 4.0
"""The same for standard deviations that few repeats estimate."""
LEAST_SPREAD = 0.02
"""Relative standard deviation of a number without standard error, at least: few repeats may find too little."""
ROUNDING = 1e-3
"""Relative difference that counts as noise for any number: rounding in single precision."""
BY_CHANCE = 0.02
"""Share of the numbers that may be outside the noise in a run that agrees."""

Place = tuple[str, ...]
"""Section, caption of the table, name of the row, name of the column, and a count where these are not unique."""


class Difference(NamedTuple):
    """A number outside the noise."""

    place: Place
    run: Number
    record: Number


class Agreement(NamedTuple):
    """A run and the record of the same study and settings."""

    study: str
    compared: int
    as_printed: int
    """Numbers that are equal in all digits that the tables show."""
    different: tuple[Difference, ...]

    @property
    def agrees(self) -> bool:
        """Whether no more numbers than chance explains are outside the noise."""
        return len(self.different) <= max(1.0, BY_CHANCE * self.compared)


def numbers_by_place(report: Report) -> dict[Place, Number]:
    """All numbers of a report's tables without durations, which say nothing about the results."""
    found: dict[Place, Number] = {}
    for section in report.sections:
        for table in section.tables:
            for row in table.rows:
                for column, cell in zip(table.columns, row, strict=True):
                    if not isinstance(cell, Number) or cell.value is None:
                        continue
                    if is_duration(f"{table.caption} / {row[0]} / {column}"):
                        continue
                    place = (section.heading, table.caption, str(row[0]), column)
                    again = sum(known[:4] == place for known in found)
                    found[(*place, str(again)) if again else place] = cell
    return found


def is_duration(name: str) -> bool:
    """Whether a table, row or column holds times of this machine."""
    return _DURATION.search(name.lower()) is not None


_DURATION = re.compile(r"seconds|per second|\(s\)|µs|compil|where the time| m?s$")


def compare_with_record(run: Record, record: Record) -> Agreement:
    """Compare all numbers that both have."""
    ours, theirs, noise = numbers_by_place(run.report), numbers_by_place(record.report), spreads(record)
    common = [place for place in ours if place in theirs]
    printed = [place for place in common if _printed(ours[place]) == _printed(theirs[place])]
    different = [
        Difference(place, ours[place], theirs[place])
        for place in common
        if _printed(ours[place]) != _printed(theirs[place])
        and not within_noise(ours[place], theirs[place], noise.get(_column(place), 0.0))
    ]
    return Agreement(run.name, len(common), len(printed), tuple(different))


def _printed(number: Number) -> str:
    return format(number.value, number.style)


def within_noise(run: Number, record: Number, relative_spread: float) -> bool:
    """Whether two numbers differ by no more than noise; `relative_spread` is that of the record's column."""
    assert run.value is not None
    assert record.value is not None
    error = math.hypot(run.se or 0.0, record.se or 0.0)
    relative = relative_spread if error else max(relative_spread, LEAST_SPREAD)
    spread = relative * math.sqrt(2) * abs(record.value)
    return abs(run.value - record.value) <= max(ERRORS * error, SPREADS * spread, ROUNDING * abs(record.value))


def _column(place: Place) -> Place:
    """What numbers that share a noise have in common: table and column."""
    return place[1], place[3]


def spreads(record: Record) -> dict[Place, float]:
    """Relative standard deviation over the record and its repeats, pooled over the rows of each column."""
    path = record.folder / REPEATS_FILE
    if not path.exists():
        return {}
    repeats = [_read_repeat(repeat) for repeat in read_json_object(path)["repeats"]]
    squares: dict[Place, list[float]] = {}
    for place, number in numbers_by_place(record.report).items():
        values = [number.value, *(repeat[place] for repeat in repeats if place in repeat)]
        mean = math.fsum(map(float, values)) / len(values)  # type: ignore[arg-type]
        if len(values) > 1 and mean:
            deviations = (((float(v) - mean) / mean) ** 2 for v in values)  # type: ignore[arg-type]
            squares.setdefault(_column(place), []).append(math.fsum(deviations) / (len(values) - 1))
    return {column: math.sqrt(math.fsum(found) / len(found)) for column, found in squares.items()}


def _read_repeat(content: Iterable[Mapping[str, object]]) -> dict[Place, float]:
    return {tuple(item["place"]): float(item["value"]) for item in content}  # type: ignore[arg-type]


def write_repeats(folder: Path, reports: Iterable[Report]) -> None:
    """Store the numbers of repeated runs beside a record."""
    repeats = [
        [{"place": place, "value": number.value} for place, number in numbers_by_place(report).items()]
        for report in reports
    ]
    write_atomically(folder / REPEATS_FILE, (json.dumps({"repeats": repeats}, ensure_ascii=False) + "\n").encode())


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


class Missing(NamedTuple):
    """A claim without a record, and the command that makes one."""

    what: str
    command: str


def claims(records: list[Record]) -> list[Claim]:
    """The claims of all records of which there is one, in the order of `CLAIMS`."""
    by_name = {record.name: record for record in records}
    found = [claim(by_name[name]) for name, claim in CLAIMS.items() if name in by_name]
    return [claim for claim in found if claim is not None]


def missing(records: list[Record], *, benchmark: bool) -> list[Missing]:
    """What has no record: claims, parts of studies that were added after their record, and other libraries."""
    claimed = {claim.study for claim in claims(records)}
    found = [Missing(what, _command(name)) for name, what in HEADINGS.items() if name not in claimed]
    late = [record.name for record in records if record.name in RANDOM and not record.settings.get("random")]
    found += [Missing(f"{RANDOM[name]}, every method from random weights", _command(name)) for name in late]
    return found if benchmark else [*found, Missing("Other libraries, measured beside this one", "make benchmark")]


def _command(study: str) -> str:
    return f"ridgewalk reproduce {study} --preset paper"


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
        HEADINGS[record.name],
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
    known = (float(np.mean([run[name] for run in runs])) for name in ("coverage", "coverage_before", "error"))
    coverage, before, error = known
    content = read_json_object(path)
    field = Field(*(np.asarray(content[name], float) for name in Field._fields))
    return Claim(
        record.name,
        HEADINGS[record.name],
        Number(100 * coverage, style=".0f"),
        "% of true fluxes lie in the 90 % intervals",
        f"A network with {100 * sparsity:.0f} % of its weights pruned replaces a flow solver: its mean relative error "
        f"on unseen inputs is {error:.2f} %. Its intervals are recalibrated on held-out samples; before, "
        f"{100 * before:.0f} % were inside. The figure shows a test sample of median error: {100 * field.inside:.0f} % "
        "of its fluxes lie inside.",
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
        HEADINGS[record.name],
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
        HEADINGS[record.name],
        Number(better, style="d"),
        f"of {len(gains)} UCI data sets: draws predict better than the modes they start from",
        "Mean test log likelihood of Bayesian networks of one hidden layer, sampled at temperature 1, against the same "
        "networks at their maximum-a-posteriori weights. Nothing is recalibrated.",
        bar_chart(bars, "gain in test log likelihood per row"),
    )


HEADINGS: Mapping[str, str] = {
    "gaussian": "Chains that mix on an ill-conditioned posterior",
    "tall": "Tall data without reading all of it at every step",
    "uci": "Networks sampled, against the modes they start from",
    "permeability": "Intervals for the output of a network",
}
"""Of the claims, by study."""

RANDOM: Mapping[str, str] = {
    "source": "Darcy flow, varying sources",
    "permeability": "Darcy flow, varying permeabilities",
}
"""Studies with a part from random weights."""

CLAIMS: Mapping[str, Callable[[Record], Claim | None]] = {
    "gaussian": _gaussian,
    "tall": _tall,
    "uci": _networks,
    "permeability": _fields,
}
"""By study, in the order of the page."""
