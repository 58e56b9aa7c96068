"""The paper's two families of Darcy problems, one drawn sample at a time.

Sample `i` of a data set with seed `s` uses its own generator, `SeedSequence(s, spawn_key=(i,))`: it does not
depend on how many samples are drawn, in which order, or by how many processes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from ridgewalk.darcy.fields import Form, KarhunenLoeve, draw_permeability
from ridgewalk.darcy.grid import Array, Boundary, Grid, Pressure
from ridgewalk.darcy.solver import factorise, permeability_tensor, solve

Value = str | int | float | list[float]


class Variable(NamedTuple):
    """What a stored array means; `per_sample` arrays have a leading axis over samples."""

    dimensions: tuple[str, ...]
    meaning: str
    units: str = "1"
    per_sample: bool = True


FLUX = Variable(("edge",), "flux through every edge, positive in +x or +y; ordering as in ridgewalk.darcy.grid")
PRESSURE = Variable(("y", "x"), "pressure of every cell")
SOURCE = "source density of every cell"
PERMEABILITY = "permeability of every cell"


class Problem(Protocol):
    """A family of problems that can be drawn, solved and described."""

    @property
    def grid(self) -> Grid:
        """Grid of all samples."""

    @property
    def variables(self) -> dict[str, Variable]:
        """Meaning of every array."""

    @property
    def description(self) -> dict[str, Value]:
        """Everything that determines the samples, besides the seed and the arrays of `constants`."""

    @property
    def constants(self) -> dict[str, Array]:
        """Arrays that all samples share."""

    def draw(self, seed: int, samples: Sequence[int]) -> dict[str, Array]:
        """Draw and solve the samples with these numbers; arrays with a leading axis."""


def sample_generator(seed: int, sample: int) -> np.random.Generator:
    """The random numbers of one sample."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(sample,)))


def three_spot_source(grid: Grid, upper_right: Array, lower_left: Array, block: int) -> Array:
    """`f₁` in the upper right block, `f₂` in the lower left, `−(f₁+f₂)` in the centre; equal areas."""
    largest = min(grid.nx, grid.ny) // 3
    if not 1 <= block <= largest:
        raise ValueError(f"block = {block}: three blocks need between 1 and {largest} cells a side on this grid")
    source = np.zeros((*np.shape(upper_right), *grid.shape))
    row, column = (grid.ny - block) // 2, (grid.nx - block) // 2
    source[..., -block:, -block:] = np.asarray(upper_right)[..., None, None]
    source[..., :block, :block] = np.asarray(lower_left)[..., None, None]
    source[..., row : row + block, column : column + block] = -np.asarray(upper_right + lower_left)[..., None, None]
    return source


def default_block(grid: Grid) -> int:
    """About a tenth of the shorter side, and of the same parity so that the centre block is centred."""
    side = min(grid.nx, grid.ny)
    block = max(side // 10, 1)
    return block + (block - side) % 2 if block + 1 <= side // 3 else block


@dataclass(frozen=True, eq=False)
class VaryingSource:
    """Fixed `κ`, closed box, three-spot source with `f₁, f₂ ~ N(mean, deviation²)`.

    The paper writes `N(10, 5)`. Elsewhere it always puts a covariance second (`N(0, 3 I_n)`, `N(0, 2ε/τ)`),
    so 5 is the variance; read as the standard deviation, one source in 44 would be a sink. `deviation` is
    `√5` by default.
    """

    permeability: Array
    permeability_label: str
    mean: float = 10.0
    deviation: float = 5.0**0.5
    block: int | None = None

    def __post_init__(self) -> None:
        if not self.deviation >= 0:
            raise ValueError(f"deviation = {self.deviation}: give a standard deviation of at least 0")
        permeability_tensor(self.permeability, self.grid)
        three_spot_source(self.grid, np.zeros(1), np.zeros(1), self.block_cells)

    @property
    def grid(self) -> Grid:
        """The unit square, with the permeability's cells."""
        return Grid(nx=self.permeability.shape[-1], ny=self.permeability.shape[-2])

    @property
    def block_cells(self) -> int:
        """Side of the three blocks, in cells."""
        return default_block(self.grid) if self.block is None else self.block

    @property
    def variables(self) -> dict[str, Variable]:
        """Meaning of every array."""
        return {
            "permeability": Variable(("y", "x"), PERMEABILITY, per_sample=False),
            "source": Variable(("y", "x"), SOURCE),
            "strength": Variable(("spot",), "f₁ (upper right) and f₂ (lower left)"),
            "flux": FLUX,
            "pressure": PRESSURE,
        }

    @property
    def description(self) -> dict[str, Value]:
        """Everything that determines the samples."""
        return {
            "kind": "source",
            "permeability_label": self.permeability_label,
            "boundary": "no flow through any side; mean pressure 0",
            "source": "three spots: f1 upper right, f2 lower left, -(f1+f2) centre; f1, f2 normal",
            "source_mean": self.mean,
            "source_variance": self.deviation**2,
            "source_block_cells": self.block_cells,
        }

    @property
    def constants(self) -> dict[str, Array]:
        """The fixed permeability."""
        return {"permeability": self.permeability}

    def draw(self, seed: int, samples: Sequence[int]) -> dict[str, Array]:
        """Draw `f₁, f₂` of each sample and solve them all with one factorisation."""
        normal = np.array([sample_generator(seed, sample).standard_normal(2) for sample in samples])
        strength = self.mean + self.deviation * normal
        source = three_spot_source(self.grid, strength[:, 0], strength[:, 1], self.block_cells)
        solution = factorise(self.permeability, Boundary()).solve(source, Boundary())
        return {
            "source": source,
            "strength": strength,
            "flux": solution.flux,
            "pressure": solution.pressure,
        }


@dataclass(frozen=True, eq=False)
class VaryingPermeability:
    """Random `κ`; pressure 1 on the left and 0 on the right, no flow through bottom and top, `f = 1`."""

    expansion: KarhunenLoeve
    form: Form = "linear"
    kappa_0: float = 10.0

    @property
    def grid(self) -> Grid:
        """Grid of the expansion."""
        return self.expansion.grid

    @property
    def variables(self) -> dict[str, Variable]:
        """Meaning of every array."""
        return {
            "permeability": Variable(("y", "x"), PERMEABILITY),
            "coefficients": Variable(("term",), "coefficients μ of the Karhunen–Loève expansion"),
            "redraws": Variable((), "fields drawn before this one that were not positive"),
            "source": Variable(("y", "x"), SOURCE, per_sample=False),
            "flux": FLUX,
            "pressure": PRESSURE,
        }

    @property
    def description(self) -> dict[str, Value]:
        """Everything that determines the samples."""
        terms = int(self.expansion.eigenvalues.size)
        return {
            "kind": "permeability",
            "permeability_label": f"Karhunen–Loève field, {self.form}, {terms} terms",
            "boundary": "pressure 1 left, 0 right; no flow through bottom and top",
            "source": "1 everywhere",
            "form": self.form,
            "kappa_0": self.kappa_0,
            "variance": self.expansion.variance,
            "correlation_lengths": list(self.expansion.correlation),
            "terms": terms,
            "energy_captured": self.expansion.energy,
        }

    @property
    def constants(self) -> dict[str, Array]:
        """The fixed source."""
        return {"source": np.ones(self.grid.shape)}

    def draw(self, seed: int, samples: Sequence[int]) -> dict[str, Array]:
        """Draw the permeability of each sample and solve it."""
        boundary = Boundary(left=Pressure(1.0), right=Pressure(0.0))
        drawn = [
            draw_permeability(self.expansion, sample_generator(seed, sample), self.form, self.kappa_0)
            for sample in samples
        ]
        solved = [solve(draw.permeability, 1.0, boundary, self.grid) for draw in drawn]
        return {
            "permeability": np.array([draw.permeability for draw in drawn]),
            "coefficients": np.array([draw.coefficients for draw in drawn]),
            "redraws": np.array([draw.redraws for draw in drawn], dtype=np.float64),
            "flux": np.array([solution.flux for solution in solved]),
            "pressure": np.array([solution.pressure for solution in solved]),
        }
