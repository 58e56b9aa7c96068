"""The posterior of a network's weights in a Darcy study, and the start of its chains: weights and their statistics."""

from dataclasses import asdict
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._types import PyTree, Scalar, Vector
from ridgewalk.neural.fit import Keeping, Schedule, optimise
from ridgewalk.neural.networks.encoder_decoder import permeability_network, source_network
from ridgewalk.neural.networks.mlp import mlp
from ridgewalk.neural.networks.model import Model, Network
from ridgewalk.neural.posterior import gaussian
from ridgewalk.preconditioners._curvature import largest_curvature
from ridgewalk.preconditioners.rescaled import gradient_scale, rescaled
from ridgewalk.preconditioners.static import Identity
from ridgewalk.ravel import layout_of
from ridgewalk.run.progress import progress_bar
from ridgewalk.run.stopping import stop_request
from ridgewalk.studies.darcy.data import FlowData, Scaled, flow_data, spe10_path, standardised
from ridgewalk.studies.darcy.settings import CHAIN_ONLY, Settings
from ridgewalk.studies.framework.task_cache import Arrays, cached_arrays
from ridgewalk.target import Posterior

SCALE_GRADIENTS = 50
"""Gradients from which scales are estimated; methods that use scales are charged for them."""
LEAST = 0.01
"""Lower bound of the curvatures, as a fraction of their 99 % quantile: inactive units may become active later."""
CURVATURE_EXAMPLES = 200
"""Training samples in each Hessian-vector product of the power iterations."""


class DarcyPosterior(NamedTuple):
    """The data of a study, the network, and the posterior of its weights, with or without the mirror symmetry."""

    settings: Settings
    mirror: bool
    data: FlowData
    scaled: Scaled
    model: Model
    target: Posterior
    noise: float
    """σ of the likelihood, in standardised units."""


class StartStatistics(NamedTuple):
    """Scales of the weights, and λ_max of the Hessian in the original and in the rescaled coordinates."""

    scale: PyTree
    second_moment: PyTree
    """E g² of a minibatch gradient implied by the scales: with the prior's curvature times N/n, and the lower bound."""
    curvature: float
    rescaled_curvature: float


class Start(NamedTuple):
    """Where all chains of a seed start."""

    position: PyTree
    statistics: StartStatistics


def darcy_posterior(settings: Settings, mirror: bool) -> DarcyPosterior:
    """y ~ N(F(x), σ²) with σ = `relative_noise` × the root mean square of a flux, weights ~ N(0, prior_scale²)."""
    return _darcy_posterior(settings, mirror, spe10_path())


@lru_cache(maxsize=2)
def _darcy_posterior(settings: Settings, mirror: bool, spe10: str | None) -> DarcyPosterior:
    data = flow_data(settings, spe10)
    scaled = standardised(data, mirror)
    model = _network(settings).build(scaled.x.shape[1:], scaled.y.shape[1])
    unit = float(scaled.outputs.scale.max())
    noise = settings.relative_noise * float(np.sqrt(np.mean(data.train.fluxes**2))) / unit
    known = gaussian(model.apply, prior_scale=settings.prior_scale, noise=noise, noise_width=0.0)
    target = Posterior(known.log_prior, known.log_likelihood, (jnp.asarray(scaled.x), jnp.asarray(scaled.y)))
    return DarcyPosterior(settings, mirror, data, scaled, model, target, noise)


def _network(settings: Settings) -> Network:
    if settings.mlp_widths:
        return mlp(hidden=settings.mlp_widths)
    return source_network() if settings.kind == "source" else permeability_network()


def start_settings(settings: Settings) -> dict[str, Any]:
    """The settings on which the optimiser phase depends."""
    return {name: value for name, value in asdict(settings).items() if name not in CHAIN_ONLY}


def load_start(problem: DarcyPosterior, seed: int, folder: Path) -> Start:
    """The start of a seed's chains: from the cache, or computed and cached."""
    known = start_settings(problem.settings) | {"mirror": problem.mirror, "seed": seed, "data": problem.data.label}
    position = _optimised(problem, seed, folder, known)
    return Start(position, _statistics(problem, position, seed, folder, known))


def _weights(problem: DarcyPosterior, arrays: Arrays) -> PyTree:
    """The network's parameters from their leaves."""
    structure = jax.tree.structure(jax.eval_shape(problem.model.init, jax.random.key(0)))
    return jax.tree.unflatten(structure, [jnp.asarray(arrays[f"{i}"]) for i in range(len(arrays))])


def _optimised(problem: DarcyPosterior, seed: int, folder: Path, known: dict[str, Any]) -> PyTree:
    """Minimise the potential with Adam, from random weights."""
    settings = problem.settings
    # The loss is the potential in units of the mean square: gradients are clipped at 1 in these units.
    schedule = Schedule(
        settings.optimiser_steps,
        settings.learning_rate,
        settings.batch_size,
        problem.scaled.y.shape[1],
        data_weight=1 / problem.noise**2,
    )

    def make(unfinished: Path) -> Arrays:
        first, order = jax.random.split(jax.random.key(seed))
        keeping = Keeping(unfinished, "60 s", known)
        with stop_request() as request, progress_bar(schedule.steps, 0, False) as report:
            done = optimise(order, problem.target, problem.model.init(first), schedule, keeping, report, request)
        if not done.finished:
            raise KeyboardInterrupt
        return {f"{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(done.position))}

    return _weights(problem, cached_arrays(folder, f"optimised-seed{seed}", known, make))


def _statistics(
    problem: DarcyPosterior, position: PyTree, seed: int, folder: Path, known: dict[str, Any]
) -> StartStatistics:
    size, target = problem.settings.batch_size, problem.target
    about = known | {"gradients": SCALE_GRADIENTS, "examples": CURVATURE_EXAMPLES, "least": LEAST}

    def make(_: Path) -> Arrays:
        key = jax.random.key(2_000 + seed)
        scale = gradient_scale(key, target, position, batch_size=size, batches=SCALE_GRADIENTS, least=LEAST)
        flat = rescaled(Identity(), scale).scale
        stride = -(-target.size // CURVATURE_EXAMPLES)
        arrays = {f"{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(scale))}
        arrays["curvature"] = np.asarray(curvature_at(target, position, jnp.ones_like(flat), stride=stride))
        arrays["rescaled_curvature"] = np.asarray(curvature_at(target, position, flat, stride=stride))
        return arrays

    found = cached_arrays(folder, f"start-statistics-seed{seed}", about, make)
    curvature, rescaled_curvature = (found.pop(name).item() for name in ("curvature", "rescaled_curvature"))
    scale = _weights(problem, found)
    second_moment = jax.tree.map(lambda s: target.size / size * s**-4, scale)
    return StartStatistics(scale, second_moment, curvature, rescaled_curvature)


@partial(jax.jit, static_argnames="stride")
def curvature_at(target: Posterior, position: PyTree, scale: Vector, *, stride: int) -> Scalar:
    """λ_max of the Hessian in coordinates divided by `scale`, from every `stride`-th example."""
    form = layout_of(position)
    examples = jax.tree.map(lambda x: x[::stride], target.data)

    def gradient_at(vector: Vector) -> Vector:
        return scale * form.ravel(jax.grad(target.potential)(form.unravel(scale * vector), examples))

    return largest_curvature(gradient_at, form.ravel(position) / scale)
