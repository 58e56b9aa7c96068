"""The problem of a Darcy study: its settings and the paper's numbers, data, the posterior of a network's weights, and
the start of the chains.
"""

import math
import os
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk._pytree import layout_of
from ridgewalk._types import PyTree, Scalar, Vector
from ridgewalk.darcy import (
    Grid,
    VaryingPermeability,
    VaryingSource,
    channelised,
    join_flux,
    karhunen_loeve,
    read_spe10,
    sample_layer,
    split_flux,
)
from ridgewalk.darcy.grid import Array
from ridgewalk.neural.likelihoods import Noisy
from ridgewalk.neural.networks import Model, Network, mlp, permeability_network, source_network
from ridgewalk.neural.optimiser import Checkpointing, Schedule, optimise
from ridgewalk.neural.posterior import InputScaling, OutputScales, fit_inputs, fit_outputs
from ridgewalk.preconditioners.base import largest_curvature
from ridgewalk.preconditioners.rescaled import gradient_scale, rescaled
from ridgewalk.preconditioners.static import Identity
from ridgewalk.priors.base import gaussian_prior
from ridgewalk.sampling.runner import progress_bar, stop_on_signal
from ridgewalk.studies.framework.tasks import Arrays, cached_arrays
from ridgewalk.target import Posterior

Kind = Literal["source", "permeability"]

ADAM = "Adam"
SGLD = "SGLD"
PSGLD = "pSGLD"
DIAGONAL = "SGHMC, fixed diagonal"
"""The base matrix and momentum of HASGLD-SA without curvature pairs: an ablation."""
OURS = "HASGLD-SA, M={}"
PRINTED = "HASGLD-SA, M={}, as printed"
MEMORIES = (1, 2)
BEST = OURS.format(2)
"""The form that is compared with the paper's best number, chosen beforehand."""

METHOD_NAMES = (SGLD, PSGLD, *map(PRINTED.format, MEMORIES), DIAGONAL, *map(OURS.format, MEMORIES), ADAM)
"""In the order of the tables."""

LIMITED = "limited-memory Langevin, M=2"
LOW_RANK = "low-rank Langevin"
RANDOM_METHOD_NAMES = (SGLD, PSGLD, PRINTED.format(2), LOW_RANK, LIMITED, BEST, ADAM)
"""Methods that are run from random weights."""

PAPER: dict[Kind, dict[float, dict[str, float]]] = {
    "source": {
        0.0: {"SGLD": 2.03, "M=1": 0.45, "M=2": 0.42},
        0.3: {"SGLD": 1.38, "M=1": 0.37, "M=2": 0.34},
        0.5: {"SGLD": 1.25, "M=1": 0.29, "M=2": 0.27},
        0.7: {"SGLD": 1.26, "M=1": 0.30, "M=2": 0.27},
    },
    "permeability": {
        0.0: {"SGLD": 3.07, "M=1": 2.72, "M=2": 1.68},
        0.3: {"SGLD": 3.04, "M=1": 0.85, "M=2": 0.78},
        0.5: {"SGLD": 3.06, "M=1": 1.42, "M=2": 1.21},
    },
}
"""Mean relative errors in per cent, by sparsity and sampler; for permeabilities the paper prunes at most 50 %."""


PAPER_SIZE = 50
"""Cells per side in the paper."""

PLAN_ONLY = ("seeds", "sparsities", "methods", "mirrors", "secondary_methods", "secondary_sparsities", "random")
"""Settings that determine which tasks there are, and not the result of any."""

CHAIN_ONLY = (*PLAN_ONLY, "chain_gradients", "draws", "temperature", "tuned", "tuning_sparsity", "multiscale_samples")
"""Settings on which the optimiser phase does not depend."""


SHARED_START_ONLY = ("optimiser_steps", "learning_rate", "adam_epsilon")
"""Settings on which only the shared start depends."""


@dataclass(frozen=True)
class RandomPart:
    """Runs from random weights, without the optimiser phase: every method has the same number of gradients."""

    gradients: int
    methods: tuple[str, ...] = RANDOM_METHOD_NAMES
    seeds: int = 3
    sparsities: tuple[float, ...] = (0.0, 0.3, 0.5, 0.7)
    mirror: bool = False
    tuned: bool = True
    """Whether the four step sizes of a method are tried, at the first seed and `tuning_sparsity`."""
    mlp_widths: tuple[int, ...] = ()
    """As in `Settings`, for this part only."""

    def tuned_at(self, wanted: float) -> float:
        """The sparsity at which step sizes are tried: the one that is wanted, or the first where it is not run."""
        return wanted if wanted in self.sparsities else self.sparsities[0]


@dataclass(frozen=True)
class Settings:
    """One Darcy study. Every run: the shared optimiser phase, then `chain_gradients` gradients of a method."""

    kind: Kind
    size: int = 50
    """Cells per side of the grid."""
    samples: int = 1500
    train: int = 1200
    """Training samples; the others are the test data."""
    held: int = 100
    """Training samples held out for the choice of step sizes and the recalibration of intervals."""
    seeds: int = 3
    sparsities: tuple[float, ...] = (0.0, 0.3, 0.5, 0.7)
    methods: tuple[str, ...] = METHOD_NAMES
    mirrors: tuple[bool, ...] = (False,)
    """Whether the mirror symmetry y → 1 − y is used: training data augmented, predictions averaged over both."""
    secondary_methods: tuple[str, ...] = ()
    """Methods for all but the first of `mirrors`; all methods if empty."""
    secondary_sparsities: tuple[float, ...] = ()
    """Sparsities for all but the first of `mirrors`; all sparsities if empty."""
    batch_size: int = 50
    optimiser_steps: int = 2_400
    learning_rate: float = 2e-3
    chain_gradients: int = 1_000
    draws: int = 20
    relative_noise: float = 0.003
    """σ of the Gaussian likelihood relative to the root mean square of the fluxes."""
    temperature: float = 1e-3
    """Temperature of the injected noise; at 1, the posterior spread of so many weights dominates the predictions."""
    prior_scale: float = 0.012
    """Standard deviation of the weights' Gaussian prior: small enough that unused weights decay."""
    tuned: bool = True
    """Whether step sizes are chosen on held-out samples; otherwise they are close to those of the full study."""
    tuning_sparsity: float = 0.5
    multiscale_samples: int = 20
    mlp_widths: tuple[int, ...] = ()
    """Hidden widths of a multilayer perceptron in place of the paper's network, for small tests."""
    random: RandomPart | None = None

    @property
    def paper(self) -> dict[float, dict[str, float]]:
        """The paper's numbers for the full scale; none for reduced settings, which are not comparable with them."""
        return PAPER[self.kind] if self.size == PAPER_SIZE else {}

    def methods_for(self, mirror: bool) -> tuple[str, ...]:
        """Methods compared with or without the symmetry."""
        return self.methods if mirror == self.mirrors[0] else self.secondary_methods or self.methods

    def sparsities_for(self, mirror: bool) -> tuple[float, ...]:
        """Sparsities compared with or without the symmetry."""
        return self.sparsities if mirror == self.mirrors[0] else self.secondary_sparsities or self.sparsities


SOURCE_PAPER = Settings("source", optimiser_steps=1_200, chain_gradients=500, random=RandomPart(gradients=4_000))

SOURCE_QUICK = Settings(
    "source",
    size=20,
    samples=300,
    train=240,
    held=40,
    seeds=1,
    sparsities=(0.0, 0.5, 0.7),
    methods=(SGLD, PSGLD, BEST, ADAM),
    optimiser_steps=150,
    chain_gradients=300,
    draws=10,
    tuned=False,
)

PERMEABILITY_PAPER = Settings(
    "permeability",
    train=1300,
    methods=(SGLD, PSGLD, *map(PRINTED.format, MEMORIES), BEST, ADAM),
    mirrors=(True, False),
    secondary_methods=(SGLD, BEST, ADAM),
    secondary_sparsities=(0.0, 0.3, 0.5),
    batch_size=20,
    optimiser_steps=5_000,
    learning_rate=1e-3,
    chain_gradients=250,
    draws=10,
    relative_noise=0.01,
    prior_scale=0.03,
    random=RandomPart(
        gradients=3_000, methods=(SGLD, PSGLD, PRINTED.format(2), BEST, ADAM), sparsities=(0.0, 0.3, 0.5), mirror=True
    ),
)

PERMEABILITY_QUICK = Settings(
    "permeability",
    size=20,
    samples=300,
    train=240,
    held=40,
    seeds=1,
    sparsities=(0.0, 0.5),
    methods=(SGLD, PSGLD, BEST, ADAM),
    mirrors=(True,),
    batch_size=20,
    optimiser_steps=400,
    learning_rate=1e-3,
    chain_gradients=300,
    draws=10,
    relative_noise=0.01,
    prior_scale=0.03,
    tuned=False,
    multiscale_samples=5,
)


class MultiscaleRow(NamedTuple):
    """Errors of the mixed multiscale solver, in per cent."""

    blocks: int
    """Coarse blocks per side."""
    functions: list[int]
    """Basis functions per coarse edge."""
    errors: list[float]


class StartRow(NamedTuple):
    """The optimiser phase of one seed: where all chains of the seed start."""

    seed: int
    mirror: bool
    error: float
    """Mean relative test error in per cent."""
    held_error: float
    """The same on held-out training samples."""
    weights: int
    """Number of weights of the network."""
    data_label: str
    """Which permeability the data have."""


class RandomStartRow(NamedTuple):
    """Random weights: λ_max of the Hessian there, in the original and in the rescaled coordinates."""

    seed: int
    curvature: float
    rescaled_curvature: float


class RandomRow(NamedTuple):
    """One run from random weights; NaN if it diverged."""

    method: str
    sparsity: float
    seed: int
    mirror: bool
    relative_step_size: float
    """As in `RunRow`."""
    diverged: int
    error: float = math.nan
    """Mean relative test error in per cent at the end."""
    held_error: float = math.nan
    """The same on held-out training samples, by which the step size is chosen."""
    zeros: float = math.nan
    """Fraction of the weights (without biases) that are pruned."""
    seconds: float = math.nan
    """CPU seconds, compilation included."""
    gradients: list[int] | None = None
    """Gradients used up to each of `errors`."""
    errors: list[float] | None = None
    """Test error of the mean over the last fifth of the draws so far."""


class TuningRow(NamedTuple):
    """The choice of a method's step size."""

    method: str
    mirror: bool
    relative_step_size: float
    errors: list[float | None]
    """Held-out error at each step size, None where the method diverged."""


class RunRow(NamedTuple):
    """One run of a method; NaN if it diverged."""

    method: str
    sparsity: float
    seed: int
    mirror: bool
    relative_step_size: float
    """The step size in units of the method's own (`Method.unit`); for Adam the learning rate."""
    diverged: int
    error: float = math.nan
    """Mean relative test error in per cent."""
    coverage_before: float = math.nan
    """Test coverage of 90 % intervals before recalibration."""
    coverage: float = math.nan
    width: float = math.nan
    zeros: float = math.nan
    """Fraction of the weights (without biases) that are pruned."""
    seconds: float = math.nan
    first_potential: float | None = None
    """Potential on a batch, averaged over the first twentieth of the draws; None for Adam."""
    last_potential: float | None = None
    fields: dict[str, list[float]] | None = None
    """For figures: `truth`, `mean`, `std` (of the draws) and `noise` (of the likelihood) of a test sample's fluxes."""
    typical: dict[str, list[float]] | None = None
    """For the page: `truth`, `mean`, and `lower` and `upper` ends of the recalibrated intervals, of another one's."""


SPE10 = "RIDGEWALK_SPE10"
"""Environment variable that names a file with SPE10's permeability: spe_perm.dat, its archive, or an .npz of k_x."""
LAYER = 53
DATA_SEED = 0

SCALE_GRADIENTS = 50
"""Gradients from which scales are estimated; methods that use scales are charged for them."""
LEAST = 0.01
"""Lower bound of the curvatures, as a fraction of their 99 % quantile: inactive units may become active later."""
CURVATURE_EXAMPLES = 200
"""Training samples in each Hessian-vector product of the power iterations."""


ADAM_EPSILON = 1e-8
"""Adam's ε in the optimiser phase, as in the records. Half of the weights have gradients below 1e-7, as the loss is a
mean over thousands of outputs: a smaller ε gives a better start (docs/results/README.md), and other records."""


class Part(NamedTuple):
    """Fields (sample, row, column) and the fluxes through all edges (sample, edge)."""

    fields: Array
    fluxes: Array


class FlowData(NamedTuple):
    """Training, held-out and test samples of a study."""

    grid: Grid
    label: str
    """Which permeability the samples have."""
    train: Part
    held: Part
    test: Part
    permeability: Array | None
    """The permeability of all samples, if it does not vary."""


class Scaled(NamedTuple):
    """Standardised training data, float32."""

    inputs: InputScaling
    outputs: OutputScales
    x: np.ndarray
    y: np.ndarray

    def standardise(self, fields: Array) -> np.ndarray:
        """Inputs of other samples, standardised alike."""
        return self.inputs.forward(fields).astype(np.float32)


def spe10_path() -> str | None:
    """The file named by the environment variable, or None."""
    return os.environ.get(SPE10)


def data_source(kind: Kind, spe10: str | None) -> str:
    """Which permeability the data of a study have, without generating them."""
    if kind == "permeability":
        return "Karhunen–Loève"
    if spe10 is None:
        return f"synthetic channels (set {SPE10} to a file for SPE10's layer {LAYER})"
    return f"SPE10 model 2, layer {LAYER}"


def darcy_problem(kind: Kind, size: int, spe10: str | None) -> VaryingSource | VaryingPermeability:
    """The paper's family of problems on a grid; with sources, layer 53 of SPE10 or a synthetic channelised field."""
    grid = Grid(nx=size, ny=size)
    if kind == "permeability":
        return VaryingPermeability(karhunen_loeve(grid))
    field = channelised(grid) if spe10 is None else sample_layer(read_spe10(spe10), LAYER, size, size)
    return VaryingSource(field, data_source(kind, spe10))


def flow_data(settings: Settings, spe10: str | None = None) -> FlowData:
    """Data of a study, with the SPE10 file if given. Sample i depends on kind and size; training samples come first."""
    return _flow_data(settings.kind, settings.size, settings.samples, settings.train, settings.held, spe10)


@lru_cache(maxsize=2)
def _flow_data(kind: Kind, size: int, samples: int, train: int, held: int, spe10: str | None) -> FlowData:
    problem = darcy_problem(kind, size, spe10)
    drawn = problem.draw(DATA_SEED, range(samples))
    fields, fluxes = drawn[kind], drawn["flux"]

    def part(start: int, stop: int) -> Part:
        return Part(fields[start:stop], fluxes[start:stop])

    constant = problem.permeability if isinstance(problem, VaryingSource) else None
    label = str(problem.description["permeability_label"])
    fitted = train - held
    return FlowData(problem.grid, label, part(0, fitted), part(fitted, train), part(train, samples), constant)


def mirrored(grid: Grid, part: Part) -> Part:
    """Mirror images of samples, y → 1 − y: rows are reversed, and flux along y changes sign."""
    return Part(part.fields[:, ::-1], mirrored_flux(grid, part.fluxes))


def mirrored_flux(grid: Grid, fluxes: Array) -> Array:
    """Mirror images of fluxes (…, edge)."""
    along_x, along_y = split_flux(grid, fluxes)
    return join_flux(along_x[..., ::-1, :], -along_y[..., ::-1, :])


def standardised(data: FlowData, mirror: bool) -> Scaled:
    """Standardise training data, with their mirror images if `mirror`."""
    train = data.train
    if mirror:
        image = mirrored(data.grid, train)
        train = Part(*(np.concatenate(pair) for pair in zip(train, image, strict=True)))
    inputs, outputs = fit_inputs(train.fields), fit_outputs(train.fluxes, "together")
    x, y = inputs.forward(train.fields), outputs.forward(train.fluxes)
    return Scaled(inputs, outputs, x.astype(np.float32), y.astype(np.float32))


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
    known = Noisy(scaled.y.shape[1], first_noise=noise, width=0.0)

    def log_likelihood(weights: PyTree, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
        return known.log_likelihood({}, model.apply(weights, batch[0]), batch[1])

    data_on_device = jnp.asarray(scaled.x), jnp.asarray(scaled.y)
    target = Posterior(gaussian_prior(settings.prior_scale), log_likelihood, data_on_device)
    return DarcyPosterior(settings, mirror, data, scaled, model, target, noise)


def _network(settings: Settings) -> Network:
    if settings.mlp_widths:
        return mlp(hidden=settings.mlp_widths, activation=jax.nn.silu)
    return source_network() if settings.kind == "source" else permeability_network()


def start_settings(settings: Settings) -> dict[str, Any]:
    """The settings on which the optimiser phase depends."""
    own = {name: value for name, value in asdict(settings).items() if name not in CHAIN_ONLY}
    return own | {"adam_epsilon": ADAM_EPSILON}


def load_start(problem: DarcyPosterior, seed: int, folder: Path) -> Start:
    """The start of a seed's chains: from the cache, or computed and cached."""
    known = start_settings(problem.settings) | {"mirror": problem.mirror, "seed": seed, "data": problem.data.label}
    position = _optimised(problem, seed, folder, known)
    return Start(position, _statistics(problem, position, seed, folder, known))


def random_settings(settings: Settings) -> dict[str, Any]:
    """The settings on which random weights, and their statistics, depend."""
    return {key: value for key, value in start_settings(settings).items() if key not in SHARED_START_ONLY}


def random_start(problem: DarcyPosterior, seed: int, folder: Path) -> Start:
    """The random weights from which the optimiser phase of a seed starts, with their statistics."""
    known = {"from": "random weights", "mirror": problem.mirror, "seed": seed, "data": problem.data.label}
    known |= random_settings(problem.settings)
    position = problem.model.init(jax.random.split(jax.random.key(seed))[0])
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
        epsilon=ADAM_EPSILON,
    )

    def make(unfinished: Path) -> Arrays:
        first, order = jax.random.split(jax.random.key(seed))
        checkpointing = Checkpointing(unfinished, "60 s", known)
        with stop_on_signal() as request, progress_bar(schedule.steps, 0, False) as report:
            done = optimise(order, problem.target, problem.model.init(first), schedule, checkpointing, report, request)
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
        flat = jnp.asarray(rescaled(Identity(), scale).scale)
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
