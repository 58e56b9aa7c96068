"""The posterior of a network's weights in a Darcy study, and where its chains start."""

from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._types import PyTree
from ridgewalk.run.progress import progress_bar
from ridgewalk.run.stopping import stop_request
from ridgewalk.studies.darcy_data import FlowData, Scaled, flow_data, scaled
from ridgewalk.studies.darcy_settings import PLANNED, Settings
from ridgewalk.studies.kept import Arrays, kept
from ridgewalk.surrogates.likelihoods import gaussian
from ridgewalk.surrogates.model import Model
from ridgewalk.surrogates.networks import permeability_network, source_network
from ridgewalk.surrogates.optimise import Keeping, Schedule, optimise
from ridgewalk.target import Posterior

NETWORKS = {"source": source_network, "permeability": permeability_network}


class Task(NamedTuple):
    """A study's data and the posterior they give, without or with the mirror symmetry."""

    settings: Settings
    mirror: bool
    data: FlowData
    scaled: Scaled
    model: Model
    target: Posterior
    noise: float
    """σ of the likelihood, in scaled units."""


def task_of(settings: Settings, mirror: bool) -> Task:
    """y ~ N(F(x), σ²) with σ = `relative_noise` × the root mean square of a flux, weights ~ N(0, prior_scale²)."""
    return _task(settings, mirror, flow_data(settings).label)


@lru_cache(maxsize=2)
def _task(settings: Settings, mirror: bool, _label: str) -> Task:
    data = flow_data(settings)
    parts = scaled(data, mirror)
    model = NETWORKS[settings.kind]().build(parts.x.shape[1:], parts.y.shape[1])
    unit = float(parts.outputs.scale.max())
    noise = settings.relative_noise * float(np.sqrt(np.mean(data.train.fluxes**2))) / unit
    known = gaussian(model.apply, prior_scale=settings.prior_scale, noise=noise, noise_width=0.0)
    target = Posterior(known.log_prior, known.log_likelihood, (jnp.asarray(parts.x), jnp.asarray(parts.y)))
    return Task(settings, mirror, data, parts, model, target, noise)


CHAIN_ONLY = (
    *PLANNED,
    "chain_gradients",
    "draws",
    "temperature",
    "tuned",
    "tuning_sparsity",
    "multiscale_samples",
)
"""Settings that the optimiser phase does not depend on."""


def warm_settings(settings: Settings) -> dict[str, Any]:
    """What the optimiser phase depends on."""
    return {name: value for name, value in asdict(settings).items() if name not in CHAIN_ONLY}


def weights_of(task: Task, arrays: Arrays) -> PyTree:
    """The network's parameters from their leaves."""
    structure = jax.tree.structure(jax.eval_shape(task.model.init, jax.random.key(0)))
    return jax.tree.unflatten(structure, [jnp.asarray(arrays[f"{i}"]) for i in range(len(arrays))])


def warm_start(task: Task, seed: int, folder: Path) -> PyTree:
    """Where all chains of a seed start: Adam on the potential, from random weights."""
    settings = task.settings
    outputs = task.scaled.y.shape[1]
    # The loss is the potential in units of the mean square: gradients are cut at 1 in these units.
    in_squares = 1 / task.noise**2
    schedule = Schedule(
        settings.optimiser_steps, settings.learning_rate, settings.batch_size, outputs, data_weight=in_squares
    )
    about = warm_settings(settings) | {"mirror": task.mirror, "seed": seed, "data": task.data.label}

    def make(unfinished: Path) -> Arrays:
        first, order = jax.random.split(jax.random.key(seed))
        keeping = Keeping(unfinished, "60 s", about)
        with stop_request() as request, progress_bar(schedule.steps, 0, False) as report:
            done = optimise(order, task.target, task.model.init(first), schedule, keeping, report, request)
        if not done.finished:
            raise KeyboardInterrupt
        return {f"{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(done.position))}

    return weights_of(task, kept(folder, f"optimised-seed{seed}", about, make))
