"""Settings, presets and rows of the two Darcy studies, and the paper's numbers for them."""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

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


PLAN_ONLY = ("seeds", "sparsities", "methods", "mirrors", "secondary_methods", "secondary_sparsities")
"""Settings that determine which tasks there are, and not the result of any."""

CHAIN_ONLY = (*PLAN_ONLY, "chain_gradients", "draws", "temperature", "tuned", "tuning_sparsity", "multiscale_samples")
"""Settings on which the optimiser phase does not depend."""


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

    def methods_for(self, mirror: bool) -> tuple[str, ...]:
        """Methods compared with or without the symmetry."""
        return self.methods if mirror == self.mirrors[0] else self.secondary_methods or self.methods

    def sparsities_for(self, mirror: bool) -> tuple[float, ...]:
        """Sparsities compared with or without the symmetry."""
        return self.sparsities if mirror == self.mirrors[0] else self.secondary_sparsities or self.sparsities


SOURCE_PAPER = Settings("source", optimiser_steps=1_200, chain_gradients=500)

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
