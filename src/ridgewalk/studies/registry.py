"""The studies, in the order in which they are run and reported."""

from importlib import import_module

from ridgewalk.studies.study import Study

NAMES = ("gaussian", "regression", "source", "permeability", "convergence", "logistic", "outliers")
"""Each is a module of this package with a `STUDY`; a new study is a new module and a name here."""


def study_named(name: str) -> Study:
    """A study, whose module is loaded only now."""
    if name not in NAMES:
        raise ValueError(f"study: {name!r} is unknown; use one of {', '.join(NAMES)}, or all")
    study: Study = import_module(f"ridgewalk.studies.{name}").STUDY
    return study
