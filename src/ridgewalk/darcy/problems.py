"""The paper's two families of Darcy problems, one drawn sample at a time, and the random fields in them.

Sample `i` of a data set with seed `s` uses its own generator, `SeedSequence(s, spawn_key=(i,))`: it does not
depend on how many samples are drawn, in which order, or by how many processes.

Gaussian random fields on cell centres are Karhunen–Loève expansions,
`Y(x; μ) = Σ_{j≤p} μ_j √ξ_j Φ_j(x)`, `μ_j ~ N(0, 1)`, with the eigenpairs of the covariance

`C = σ exp(−dx²/l_x² − dy²/l_y²)`.

(The paper prints `exp(+dx²/l_x² …)`, which is no covariance.) The kernel is a product, so its eigenpairs are
products of one-dimensional ones, computed by the midpoint rule on the cell centres: `ξ = σ λ_x λ_y`. As
printed, `σ` multiplies the kernel: it is the field's variance.

The permeability is linear, `κ = κ₀ + Y`, or log-normal, `κ = κ₀ exp(Y)`.

`channelised` is a synthetic permeability of high contrast, for use where SPE10 is not available. It resembles a fluvial
layer: sinuous sand channels (log-normal about 1,000) across a shale background (log-normal about 0.01, smoothly
varying). Figures and files of it are labelled `SYNTHETIC`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from ridgewalk.darcy.grid import Array, Boundary, Grid, Pressure
from ridgewalk.darcy.solver import factorise, permeability_tensor, solve

Form = Literal["linear", "log-normal"]
MOST_REDRAWS = 1000


@dataclass(frozen=True, eq=False)
class KarhunenLoeve:
    """The `p` leading eigenpairs: `modes[j] = √ξ_j Φ_j` on the cells, `∫Φ_j² = 1`, `ξ` descending."""

    grid: Grid
    eigenvalues: Array
    modes: Array
    variance: float
    correlation: tuple[float, float]

    @property
    def energy(self) -> float:
        """Fraction of the variance captured, `Σ_{j≤p} ξ_j / ∫C(x, x) dx`."""
        return float(self.eigenvalues.sum() / (self.variance * self.grid.width * self.grid.height))

    def field(self, coefficients: Array) -> Array:
        """`Y` for coefficients `μ` of shape `(..., p)`."""
        values: Array = np.tensordot(coefficients, self.modes, axes=1)
        return values


def karhunen_loeve(
    grid: Grid,
    terms: int = 64,
    correlation: tuple[float, float] = (0.2, 0.3),
    variance: float = 2.0,
) -> KarhunenLoeve:
    """The `terms` leading eigenpairs; `correlation` is `(l_x, l_y)`, `variance` is `σ`."""
    if not 1 <= terms <= grid.cells:
        raise ValueError(f"terms = {terms}: give between 1 and the number of cells, {grid.cells}")
    for name, value in (
        ("correlation[0]", correlation[0]),
        ("correlation[1]", correlation[1]),
        ("variance", variance),
    ):
        if not (np.isfinite(value) and value > 0):
            raise ValueError(f"{name} = {value}: give a positive, finite number")
    values_x, modes_x = _eigenpairs(grid.x_centres, grid.hx, correlation[0])
    values_y, modes_y = _eigenpairs(grid.y_centres, grid.hy, correlation[1])
    products = np.outer(values_y, values_x)
    order = np.argsort(-products, axis=None, kind="stable")[:terms]
    of_y, of_x = np.unravel_index(order, products.shape)
    eigenvalues = variance * products[of_y, of_x]
    shapes = modes_y[:, of_y].T[:, :, None] * modes_x[:, of_x].T[:, None, :]
    return KarhunenLoeve(grid, eigenvalues, np.sqrt(eigenvalues)[:, None, None] * shapes, variance, correlation)


def _eigenpairs(centres: Array, spacing: float, correlation: float) -> tuple[Array, Array]:
    """One-dimensional eigenpairs, largest first, of `exp(−d²/l²)`; each mode starts with a positive value."""
    kernel = np.exp(-(((centres[:, None] - centres[None, :]) / correlation) ** 2))
    values, vectors = np.linalg.eigh(kernel * spacing)
    values, vectors = np.maximum(values[::-1], 0.0), vectors[:, ::-1]
    signs = np.where(vectors[0] < 0, -1.0, 1.0)
    return values, vectors * signs / np.sqrt(spacing)


class RandomPermeability(NamedTuple):
    """A drawn permeability, its coefficients, and how many draws before it were not positive."""

    permeability: Array
    coefficients: Array
    redraws: int


def draw_permeability(
    expansion: KarhunenLoeve,
    generator: np.random.Generator,
    form: Form = "linear",
    kappa_0: float = 10.0,
) -> RandomPermeability:
    """Draw `κ₀ + Y`, again and again until it is positive everywhere, or `κ₀ exp(Y)`, which always is.

    The paper does not give `κ₀`. At the default 10 (and `σ = 2`) redraws are rare; at 4 there is one in eight
    fields, at 3 more than one a field.
    """
    if form not in get_args(Form):
        raise ValueError(f"form = {form!r}: choose one of {', '.join(get_args(Form))}")
    if not (np.isfinite(kappa_0) and kappa_0 > 0):
        raise ValueError(f"kappa_0 = {kappa_0}: give a positive, finite number")
    for redraws in range(MOST_REDRAWS + 1):
        coefficients = generator.standard_normal(expansion.eigenvalues.size)
        field = expansion.field(coefficients)
        if form == "log-normal":
            return RandomPermeability(kappa_0 * np.exp(field), coefficients, redraws)
        if np.all(kappa_0 + field > 0):
            return RandomPermeability(kappa_0 + field, coefficients, redraws)
    raise ValueError(
        f"kappa_0 = {kappa_0}: no positive field in {MOST_REDRAWS + 1} draws with variance "
        f"{expansion.variance}; raise kappa_0, or take form='log-normal'"
    )


SYNTHETIC = "synthetic channelised field (not SPE10)"
SAND, SHALE = 1000.0, 0.01
RANGE = (4e-4, 2e3)


def channelised(grid: Grid, seed: int = 0, channels: int = 4) -> Array:
    """Permeability `(ny, nx)` with values in `[4e-4, 2e3]`, a contrast of up to 5e6 as in SPE10 layer 53."""
    if channels < 0:
        raise ValueError(f"channels = {channels}: give zero or more")
    generator = np.random.default_rng(seed)
    terms = min(64, grid.cells)
    unit = Grid(grid.nx, grid.ny)
    texture = karhunen_loeve(unit, terms, correlation=(0.15, 0.15), variance=1.0)
    fine = generator.standard_normal(grid.shape)
    shale = 1.6 * texture.field(generator.standard_normal(terms)) + 0.4 * fine
    sand = 0.5 * texture.field(generator.standard_normal(terms)) + 0.1 * fine
    log_kappa = np.log(SHALE) + shale
    inside = np.zeros(grid.shape, dtype=bool)
    for number in range(channels):
        inside |= _channel(unit, generator, (number + 0.5) / channels)
    log_kappa[inside] = (np.log(SAND) + sand)[inside]
    kappa: Array = np.clip(np.exp(log_kappa), *RANGE)
    return kappa


def _channel(unit: Grid, generator: np.random.Generator, middle: float) -> NDArray[np.bool_]:
    """Cells of one channel that meanders upwards about `x = middle` and leans to one side."""
    along, across = unit.y_centres[:, None], unit.x_centres[None, :]
    phase = generator.uniform(0, 2 * np.pi, 2)
    size = generator.uniform((0.05, 0.01), (0.10, 0.04))
    waves = generator.uniform((0.8, 2.0), (1.6, 4.0))
    lean = generator.uniform(-0.15, 0.15)
    width = generator.uniform(0.035, 0.055)
    centre = middle + lean * (along - 0.5)
    for amount, count, start in zip(size, waves, phase, strict=True):
        centre = centre + amount * np.sin(2 * np.pi * count * along + start)
    inside: NDArray[np.bool_] = np.abs(across - centre) < width
    return inside


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
