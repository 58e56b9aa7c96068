"""The pieces of a Darcy study: shared starts, step sizes, runs, and the multiscale solver for comparison."""

from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ridgewalk.studies.darcy_chain import error_of, held_error, judge_draws, predictions, predictive_of, run_method
from ridgewalk.studies.darcy_data import Part, data_label, multiscale_error
from ridgewalk.studies.darcy_methods import about as about_method
from ridgewalk.studies.darcy_methods import shares_of, usual_share
from ridgewalk.studies.darcy_names import BEST, SGLD
from ridgewalk.studies.darcy_posterior import Task, task_of, warm_start
from ridgewalk.studies.darcy_settings import PLANNED, Settings
from ridgewalk.studies.kept import Arrays, kept
from ridgewalk.studies.study import Piece, Values

SHOWN = (SGLD, BEST)
"""Methods whose predicted fields are drawn."""
BASES = (1, 2, 4)
"""Basis functions an edge, of the multiscale solver."""


@lru_cache(maxsize=8)
def known_as(settings: Settings, mirror: bool) -> dict[str, Any]:
    """What all pieces depend on."""
    everything = asdict(settings) | {"mirror": mirror, "data": data_label(settings)}
    return {key: value for key, value in everything.items() if key not in PLANNED}


def chosen_share(task: Task, name: str, folder: Path) -> tuple[float, Arrays | None]:
    """The step size of least held-out error, by runs of half the length at one sparsity and the first seed."""
    settings = task.settings
    if not settings.tuned:
        return usual_share(name), None
    about = known_as(settings, task.mirror) | about_method(name)

    def make(_: Path) -> Arrays:
        errors = []
        for share in shares_of(name):
            ended = run_method(task, name, settings.tuning_sparsity, 0, share, settings.chain_gradients // 2, folder)
            errors.append(np.inf if ended is None else held_error(task, ended.draws))
        return {"shares": np.array(shares_of(name)), "errors": np.array(errors)}

    found = kept(folder, f"tuned-{_plainly(name)}", about, make)
    return float(found["shares"][np.argmin(found["errors"])]), found


def _plainly(name: str) -> str:
    return name.replace(" ", "").replace(",", "-").replace("=", "").lower()


def hardest(task: Task) -> int:
    """The test sample whose flux is farthest from the mean of the training samples."""
    centre = task.data.train.fluxes.mean(0)
    return int(np.argmax(np.linalg.norm(task.data.test.fluxes - centre, axis=1)))


def _run(settings: Settings, mirror: bool, name: str, sparsity: float, seed: int) -> Callable[[Path], Values]:
    def make(folder: Path) -> Values:
        task = task_of(settings, mirror)
        share, _ = chosen_share(task, name, folder)
        ended = run_method(task, name, sparsity, seed, share, settings.chain_gradients, folder)
        about = {"method": name, "sparsity": sparsity, "seed": seed, "mirror": int(mirror), "share": share}
        if ended is None:
            return about | {"diverged": 1}
        values = about | {"diverged": 0} | judge_draws(task, ended)
        if seed == 0 and name in SHOWN and sparsity == settings.tuning_sparsity:
            number = hardest(task)
            one = Part(*(part[number : number + 1] for part in task.data.test))
            seen = predictive_of(task, ended.draws, one)
            outputs = task.scaled.outputs
            values["flux"] = np.round(outputs.mean(seen.mean)[0], 7).tolist()
            values["spread"] = np.round(outputs.spread(seen.spread)[0], 8).tolist()
        return values

    return make


def _start(settings: Settings, mirror: bool, seed: int) -> Callable[[Path], Values]:
    def make(folder: Path) -> Values:
        task = task_of(settings, mirror)
        draws = jax.tree.map(lambda leaf: np.asarray(leaf)[None], warm_start(task, seed, folder))
        test = task.data.test
        error = error_of(task, predictions(task, draws, test)[0].astype(float), test)
        return {"start": 1, "seed": seed, "mirror": int(mirror), "error": error, "held_error": held_error(task, draws)}

    return make


def _tuning(settings: Settings, mirror: bool, name: str) -> Callable[[Path], Values]:
    def make(folder: Path) -> Values:
        share, found = chosen_share(task_of(settings, mirror), name, folder)
        tried = [] if found is None else found["errors"].tolist()
        errors = [None if np.isinf(error) else error for error in tried]
        return {"tuned": 1, "method": name, "mirror": int(mirror), "share": share, "errors": errors}

    return make


def _multiscale(settings: Settings) -> Callable[[Path], Values]:
    def make(_: Path) -> Values:
        blocks = settings.size // 10 if settings.size >= 40 else 5
        errors = [multiscale_error(settings, blocks, count) for count in BASES]
        return {"multiscale": 1, "blocks": blocks, "functions": list(BASES), "errors": errors}

    return make


def plan(settings: Settings) -> list[Piece]:
    """Starts first, because every run of their seed needs them."""
    pieces = [Piece("multiscale", known_as(settings, False), _multiscale(settings), cost=1)]
    for mirror in settings.mirrors:
        known, side = known_as(settings, mirror), "mirror-" if mirror else ""
        long, short = settings.optimiser_steps / 100, settings.chain_gradients / 100
        for seed in range(settings.seeds):
            make = _start(settings, mirror, seed)
            pieces.append(Piece(f"{side}start-seed{seed}", known | {"seed": seed}, make, cost=long))
        for name in settings.methods_of(mirror):
            if settings.tuned:
                about = known | about_method(name)
                cost = len(shares_of(name)) * short / 2
                pieces.append(Piece(f"{side}tuned-{_plainly(name)}", about, _tuning(settings, mirror, name), cost))
        for seed in range(settings.seeds):
            for sparsity in settings.sparsities_of(mirror):
                for name in settings.methods_of(mirror):
                    about = known | about_method(name) | {"sparsity": sparsity, "seed": seed}
                    about |= {} if settings.tuned else {"usual": usual_share(name)}
                    called = f"{side}{_plainly(name)}-{round(100 * sparsity)}-seed{seed}"
                    pieces.append(Piece(called, about, _run(settings, mirror, name, sparsity, seed), cost=short))
    return pieces
