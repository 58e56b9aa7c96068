"""The next call that a finding names, as text that runs: the run's own arguments, and what changes.

`key`, `target` and `position` are the user's variables, and so are `sampler`, `step_size` and `collect` where the run
was given an object that cannot be written down; `result` is the run that was checked.
"""

import dataclasses
import inspect
import math
from pathlib import Path
from typing import Any, get_args

from ridgewalk import samplers
from ridgewalk.diagnostics.curvature import resolved_preconditioner
from ridgewalk.dynamics import MomentumDynamics
from ridgewalk.kernel import Sampler
from ridgewalk.preconditioners.base import DENSE_UP_TO, AdaptivePreconditioner, ByDimension
from ridgewalk.result import Result
from ridgewalk.sampling.warmup import SHORTEST
from ridgewalk.schedules import PowerDecay

AFTER = "-next"
"""Added to the folders of a run for the next one."""


def next_call(result: Result, **changes: Any) -> str:
    """`rw.sample(…)` with the arguments of the run and these changes; None leaves an argument out.

    `sampler` and `position` are expressions; `resume=True` keeps the folders, otherwise they get another name. Empty
    for a result that was opened from a store, which does not say how the run was called.
    """
    if not result.final_states:
        return ""
    given = dict(result.arguments) or _arguments_of(result)
    first = [changes.pop("sampler", None) or sampler_text(given.pop("sampler", result.sampler))]
    first.append(changes.pop("position", None) or "position")
    given.pop("sampler", None)
    if not changes.get("resume"):
        given = {name: _renamed(name, value) for name, value in given.items() if name != "resume"}
    options = {name: value for name, value in {**given, **changes}.items() if value is not None}
    if "step_size" in changes and "step_size" in options and result.warmup:
        options |= {"burn_in": result.burn_in, "warmup": result.warmup}  # a given step size has none by itself
    if "step_size" not in options and options.get("burn_in", SHORTEST) < SHORTEST:
        options = {name: value for name, value in options.items() if name not in ("burn_in", "warmup")}
    if "step_size" not in options and "burn_in" not in options:
        options["steps"] = max(options["steps"], 5 * SHORTEST)
    if options.get("chains") == 1:
        del options["chains"]
    shown = [f"{name}={value_text(name, value)}" for name, value in options.items()]
    return f"rw.sample({', '.join(['key', first[0], 'target', first[1], *shown])})"


def _arguments_of(result: Result) -> dict[str, Any]:
    """The arguments as far as a result without them tells."""
    made = {"steps": result.steps, "batch_size": result.batch_size, "chains": result.chains}
    sizes = result.step_sizes
    return {
        **made,
        "step_size": float(sizes[0]) if sizes.size and (sizes == sizes[0]).all() else None,
        "burn_in": result.burn_in or None,
        "thin": None if result.thin == 1 else result.thin,
    }


def _renamed(name: str, value: Any) -> Any:
    return str(value) + AFTER if name in ("store", "checkpoint") and isinstance(value, str | Path) else value


def value_text(name: str, value: Any) -> str:
    """A value as source text; the argument's own name for functions, schedules and arrays."""
    if isinstance(value, bool | str | Path):
        return repr(str(value) if isinstance(value, Path) else value)
    if isinstance(value, int):
        return f"{value:_}"
    if isinstance(value, float):
        return repr(float(value))
    if type(value) is PowerDecay:
        return f"rw.{value!r}"
    if getattr(value, "ndim", None) == 0:
        return repr(value.item())
    return name


def sampler_text(sampler: Sampler) -> str:
    """`rw.sgld()` and the like if a named sampler with plain settings equals this one; else `sampler`."""
    if sampler.pruning is not None:
        return _pruned_text(sampler)
    for name, make in inspect.getmembers(samplers, inspect.isfunction):
        defaults = {n: p.default for n, p in inspect.signature(make).parameters.items()}
        if make.__module__ != samplers.__name__ or inspect.Parameter.empty in defaults.values():
            continue
        found = _settings(sampler)
        for form in get_args(samplers.Form) if "form" in defaults else ("",):
            settings = {n: found.get(n, default) for n, default in defaults.items()} | ({"form": form} if form else {})
            if name == "hamcmc":
                settings["memory"] = found.get("delay", 0)
            if _equal(make, settings, sampler):
                changed = {n: value for n, value in settings.items() if value != defaults[n]}
                shown = {n: value_text("", value) for n, value in changed.items()}
                if all(shown.values()):
                    return f"rw.{name}({', '.join(f'{n}={text}' for n, text in shown.items())})"
    return "sampler"


def _settings(sampler: Sampler) -> dict[str, Any]:
    """The fields of dynamics and preconditioner by name."""
    rule = sampler.preconditioner
    parts = [rule.large, rule.small] if isinstance(rule, ByDimension) else [rule]
    fields = {f.name: getattr(part, f.name) for part in parts if dataclasses.is_dataclass(part) for f in _fields(part)}
    return {**fields, **{f.name: getattr(sampler.dynamics, f.name) for f in _fields(sampler.dynamics)}}


def _fields(value: Any) -> tuple[Any, ...]:
    return dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()


def _equal(make: Any, settings: dict[str, Any], sampler: Sampler) -> bool:
    try:
        return bool(make(**settings) == sampler)
    except (TypeError, ValueError):  # settings of another sampler, or arrays that cannot be compared
        return False


def _pruned_text(sampler: Sampler) -> str:
    inner, pruning = sampler_text(dataclasses.replace(sampler, pruning=None)), sampler.pruning
    assert pruning is not None
    fields = {f.name: getattr(pruning, f.name) for f in _fields(pruning) if f.name != "sparsity"}
    default = {"schedule": "cubic", "scope": "global", "leaves": None}
    shown = {n: value for n, value in fields.items() if n not in default or value != default[n]}
    if inner == "sampler" or not all(isinstance(value, int | str) for value in shown.values()):
        return "sampler"
    options = ", ".join(f"{n}={value_text(n, value)}" for n, value in shown.items())
    return f"rw.pruned({inner}, {pruning.sparsity!r}, {options})"


def rounded_up(number: float) -> int:
    """A whole number of at least this, of one or two digits and zeros."""
    unit = 10 ** max(0, math.floor(math.log10(max(number, 1))) - 1)
    return math.ceil(number / unit) * unit


def learns_preconditioner(result: Result) -> bool:
    """Whether the run's sampler adapts G to the curvature."""
    return isinstance(resolved_preconditioner(result).unwrapped, AdaptivePreconditioner)


def preconditioned(result: Result) -> dict[str, Any]:
    """Changes that give the sampler a preconditioner that adapts.

    None if it has one, prunes, or is not known, nor if warm-up tried one and left it.
    """
    if not result.final_states or learns_preconditioner(result) or result.sampler.pruning is not None:
        return {}
    if result.fell_back:
        return {}
    if not isinstance(result.sampler.dynamics, MomentumDynamics):
        return {"sampler": "rw.hasgld_sa()", "step_size": None}
    if result.dimension > DENSE_UP_TO:
        return {}
    return {"sampler": "rw.sghmc(preconditioner=rw.Dense())", "step_size": None}


def continued(result: Result) -> dict[str, Any]:
    """Changes that start a run where the chains of this one ended."""
    alive = int(result.alive.sum())
    return {"position": "result.final_positions", "chains": alive, "start_per_chain": True}
