"""What a study is: settings per preset, pieces of work that can be made one by one, and a report made of them."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from ridgewalk.studies.schema import Report


class Preset(StrEnum):
    """How large a study is run."""

    quick = "quick"
    paper = "paper"


Values: TypeAlias = dict[str, Any]
"""What a piece measured: numbers, texts and lists of them, as JSON keeps them."""


class Piece(NamedTuple):
    """A part of a study that is made whole or not at all.

    `settings` must say everything that the numbers depend on: a recorded piece is used again only under equal ones.
    """

    name: str
    settings: Mapping[str, Any]
    make: Callable[[Path], Values]
    """Given the study's folder, where arrays that pieces share can be kept."""
    cost: float = 1.0
    """How long it takes beside the study's other pieces; for the estimate of the time alone."""


class Outcome(NamedTuple):
    """What a finished study writes: its report and every number behind it."""

    report: Report
    numbers: Mapping[str, Any]


class Study(NamedTuple):
    """A study of the registry.

    `plan(settings)` lists its pieces; `assemble(settings, results, folder)` draws the figures into the folder and tells
    the story, `results` being the pieces' values by name. `settings` is a frozen dataclass.
    """

    name: str
    presets: Mapping[Preset, Any]
    reduced: str
    """What the quick preset makes smaller, for the reader."""
    plan: Callable[[Any], list[Piece]]
    assemble: Callable[[Any, Mapping[str, Values], Path], Outcome]
