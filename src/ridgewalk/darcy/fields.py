"""Gaussian random fields on cell centres by a Karhunen–Loève expansion.

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

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from ridgewalk.darcy.grid import Array, Grid

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
