"""How large the two Darcy studies are, and the paper's numbers for them."""

from dataclasses import dataclass
from typing import Literal

from ridgewalk.studies.darcy_names import NAMES

Kind = Literal["source", "permeability"]

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
"""Mean relative errors in per cent, by sparsity and sampler; with permeabilities the paper prunes 50 % at most."""


PLANNED = ("seeds", "sparsities", "methods", "mirrors", "methods_aside", "sparsities_aside")
"""Settings that say which pieces there are, and not how one is made."""


@dataclass(frozen=True)
class Settings:
    """One Darcy study. Every run: the shared optimiser phase, then `chain_gradients` gradients of a method."""

    kind: Kind
    size: int = 50
    samples: int = 1500
    train: int = 1200
    """Samples to learn from; the others are the test data."""
    held: int = 100
    """Training samples that no gradient sees: they choose step sizes and correct the intervals."""
    seeds: int = 3
    sparsities: tuple[float, ...] = (0.0, 0.3, 0.5, 0.7)
    methods: tuple[str, ...] = NAMES
    mirrors: tuple[bool, ...] = (False,)
    """Whether the mirror symmetry y → 1 − y is used: images of training samples too, predictions averaged over both."""
    methods_aside: tuple[str, ...] = ()
    """Methods of the sides after the first of `mirrors`; all of them where empty."""
    sparsities_aside: tuple[float, ...] = ()
    """The same of sparsities."""
    batch_size: int = 50
    optimiser_steps: int = 2_400
    learning_rate: float = 2e-3
    chain_gradients: int = 1_000
    draws: int = 20
    relative_noise: float = 0.003
    """σ of the Gaussian likelihood, in units of a field's root mean square."""
    temperature: float = 1e-3
    """T of the noise that samplers add: at 1 the warmth of so many weights drowns what was learnt."""
    prior_scale: float = 0.012
    """Standard deviation of the weights' Gaussian prior: small enough that weights which do nothing die out."""
    tuned: bool = True
    """Whether step sizes are chosen on held-out samples; else they are near those the full study chose."""
    tuning_sparsity: float = 0.5
    multiscale_samples: int = 20

    def methods_of(self, mirror: bool) -> tuple[str, ...]:
        """Those compared with or without the symmetry."""
        return self.methods if mirror == self.mirrors[0] else self.methods_aside or self.methods

    def sparsities_of(self, mirror: bool) -> tuple[float, ...]:
        """Those tried with or without the symmetry."""
        return self.sparsities if mirror == self.mirrors[0] else self.sparsities_aside or self.sparsities
