"""A study: settings for each preset, tasks that are run and cached one by one, and a report built from their rows."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ridgewalk.studies.framework.schema import Report


class Preset(StrEnum):
    """The scale at which a study is run."""

    quick = "quick"
    paper = "paper"


class Row(Protocol):
    """The result of a task: a NamedTuple of numbers, strings and (nested) lists of numbers, stored as JSON."""

    def _asdict(self) -> dict[str, Any]: ...


class Task(NamedTuple):
    """A unit of work of a study: it is completed and recorded as a whole, or not at all.

    `settings` must contain everything that the result depends on: a recorded result is reused only for equal settings.
    """

    name: str
    settings: Mapping[str, Any]
    run: Callable[[Path], Row]
    """Called with the study's folder, where arrays that several tasks need are cached."""
    row: Callable[..., Row]
    """The NamedTuple that `run` returns; called with its fields when a result is read from the cache."""
    cost: float = 1.0
    """Expected duration relative to the other tasks, in seconds of the quick preset."""
    group: str = ""
    """Tasks of one group share compiled code, so one worker process runs them all."""
    after: tuple[str, ...] = ()
    """Names of the study's tasks that must be complete before this one starts."""


class Outcome(NamedTuple):
    """The result of a complete study: its report and every number behind it."""

    report: Report
    numbers: Mapping[str, Any]


class Study(NamedTuple):
    """A registered study.

    `plan(settings)` lists its tasks; `assemble(settings, rows, folder)` saves the figures in the folder and returns
    the report, where `rows` are the tasks' results by name. `settings` is a frozen dataclass.
    """

    name: str
    location: str
    """Where it is defined, "module:variable": worker processes import it from there."""
    presets: Mapping[Preset, Any]
    reduced: str
    """What the quick preset reduces, in words."""
    plan: Callable[[Any], list[Task]]
    assemble: Callable[[Any, Mapping[str, Any], Path], Outcome]


LOCATIONS = {
    "gaussian": "ridgewalk.studies.gaussian.study:STUDY",
    "regression": "ridgewalk.studies.regression.study:STUDY",
    "source": "ridgewalk.studies.darcy.study:SOURCE",
    "permeability": "ridgewalk.studies.darcy.study:PERMEABILITY",
    "convergence": "ridgewalk.studies.convergence.study:STUDY",
    "logistic": "ridgewalk.studies.logistic.study:STUDY",
    "outliers": "ridgewalk.studies.outliers.study:STUDY",
}
"""The registry, in the order in which studies are reported. To add a study, add its location."""

NAMES = tuple(LOCATIONS)


def load_study(name: str) -> Study:
    """Return a registered study; its module is imported now."""
    if name not in LOCATIONS:
        raise ValueError(f"study = {name!r}: unknown; use all, or one or more of {', '.join(NAMES)}")
    return study_at(LOCATIONS[name])


def study_at(location: str) -> Study:
    """Import the study at "module:variable"."""
    module, variable = location.split(":")
    study: Study = getattr(import_module(module), variable)
    return study
