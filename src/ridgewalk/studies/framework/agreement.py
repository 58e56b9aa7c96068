"""Whether a run agrees with the committed record of the same settings: number by number, within the noise of both.

A run on the same machine repeats the record bit by bit. Elsewhere rounding differs, chains amplify it, and numbers move
like those of another seed. Numbers with a standard error are compared by it. For the others a record may have
`repeats.json`: the same numbers from runs compiled with other optimisations, whose spread is the noise.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from ridgewalk._io import read_json_object, write_atomically
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
