"""Data and settings of a surrogate, checked before any work: the argument, its value and the fix."""

from pathlib import Path
from typing import Any, get_args

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ridgewalk.run.plan import parse_every
from ridgewalk.surrogates.correction import KINDS
from ridgewalk.surrogates.fitting import Settings
from ridgewalk.surrogates.problem import LikelihoodName, NoiseKind
from ridgewalk.surrogates.scaling import OutputScaling

Array = NDArray[np.float64]

DTYPES = ("float32", "float64")
MOST_LISTED = 10


def finite_rows(name: str, values: ArrayLike) -> None:
    """Raise where examples hold NaN or infinity, with their numbers (from 0)."""
    array = np.asarray(values, float)
    good = np.isfinite(array).reshape(len(array), -1).all(axis=1)
    bad = np.flatnonzero(~good)
    if bad.size:
        listed = ", ".join(map(str, bad[:MOST_LISTED])) + (", …" if bad.size > MOST_LISTED else "")
        raise ValueError(
            f"{name}: contains NaN or infinity in {bad.size} of {len(array)} rows ({listed}; the first is 0); "
            "leave these examples out, or fill the gaps"
        )


def check_likeness(name: str, shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """Raise where examples have another shape than those of the fit."""
    if shape != wanted:
        raise ValueError(f"{name}: examples have shape {shape}; the model was fitted to examples of shape {wanted}")


def check_relative(y: Array) -> None:
    """Raise where a target is zero everywhere and so has no relative error."""
    bad = np.flatnonzero(np.linalg.norm(y, axis=1) == 0)
    if bad.size:
        raise ValueError(
            f"y: row {bad[0]} is zero everywhere and has no relative error; leave it out, or use likelihood='gaussian'"
        )


def check_choices(parameters: dict[str, Any]) -> None:
    """Raise for names and numbers that no fit can use."""
    choices: dict[str, tuple[str, ...]] = {
        "likelihood": get_args(LikelihoodName),
        "noise": get_args(NoiseKind),
        "output_scaling": get_args(OutputScaling),
        "recalibration": KINDS,
        "dtype": DTYPES,
    }
    for name, known in choices.items():
        if parameters[name] not in known:
            raise ValueError(f"{name}: {parameters[name]!r} is unknown; use one of {', '.join(map(repr, known))}")
    if parameters["dtype"] == "float64" and not jax.config.read("jax_enable_x64"):
        raise ValueError(
            "dtype: 'float64' needs JAX in 64-bit mode; call jax.config.update('jax_enable_x64', True) first, "
            "or use 'float32'"
        )
    for name, least in (("steps", 2), ("burn_in", 0), ("draws", 2), ("batch_size", 1), ("optimiser_steps", 0)):
        _whole(name, parameters[name], least)
    if parameters["chains"] is not None:
        _whole("chains", parameters["chains"], 1)
    for name in ("learning_rate", "relative_error"):
        _positive(name, parameters[name])
    _check_prior(parameters["prior"])
    for name in ("step_size", "data_weight"):
        if parameters[name] != "auto":
            _positive(name, parameters[name])
    if not (isinstance(parameters["holdout"], int | float) and 0 <= parameters["holdout"] < 1):
        raise ValueError(f"holdout: {parameters['holdout']!r} is no share of the examples; use 0.2, or 0 for none")
    left = parameters["steps"] - parameters["burn_in"]
    if left < 1:
        raise ValueError(
            f"steps: {parameters['steps']} include burn_in = {parameters['burn_in']}, so that none is left to keep; "
            f"make more steps than {parameters['burn_in']} (three times as many is the default), or lower burn_in"
        )
    if left * (parameters["chains"] or 2) < parameters["draws"]:
        raise ValueError(
            f"draws: {parameters['draws']} do not fit into steps = {parameters['steps']} with burn_in = "
            f"{parameters['burn_in']}; make more steps, or keep fewer draws"
        )
    parse_every(parameters["every"])


def settings_from(parameters: dict[str, Any], seed: int) -> Settings:
    """The settings of the exploration."""
    names = [name for name in Settings._fields if name not in ("seed", "checkpoint", "step_size")]
    folder, step = parameters["checkpoint"], parameters["step_size"]
    return Settings(
        **{name: parameters[name] for name in names},
        seed=seed,
        checkpoint=None if folder is None else Path(folder),
        step_size=step if step == "auto" else float(step),
    )


def seed_of(random_state: Any, resumable: bool) -> int:
    """A seed from an int, from NumPy's generator, or afresh from None."""
    if isinstance(random_state, bool) or not isinstance(random_state, int | np.integer | np.random.RandomState | None):
        raise ValueError(f"random_state: {random_state!r} is no seed; give a whole number such as 0, or None")
    if isinstance(random_state, int | np.integer):
        if not 0 <= random_state < 2**63:
            raise ValueError(f"random_state: {random_state} is not between 0 and 2^63; give a small whole number")
        return int(random_state)
    if resumable:
        raise ValueError("random_state: a fit with a checkpoint needs a whole number, so that it can be resumed")
    source = np.random.mtrand._rand if random_state is None else random_state
    return int(source.randint(2**31 - 1))


def _whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name}: {value!r} is not a whole number of at least {least}")


def _positive(name: str, value: Any) -> None:
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not (number and np.isfinite(value) and value > 0):
        also = ", or 'auto'" if name in ("step_size", "data_weight") else ""
        raise ValueError(f"{name}: {value!r} is not a positive finite number{also}")


def _check_prior(prior: Any) -> None:
    if isinstance(prior, int | float | np.number):
        _positive("prior", prior)
    elif prior is None or isinstance(prior, str):
        raise ValueError(f"prior: {prior!r} is neither a scale such as 1.0 nor a log prior of the weights")
