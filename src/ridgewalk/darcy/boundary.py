"""What is prescribed on each side of the domain: the outward flux or the pressure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ridgewalk.darcy.grid import Array, Grid

SIDES = ("left", "right", "bottom", "top")


@dataclass(frozen=True, eq=False)
class Flux:
    """Outward normal flux density `u·n`: one number, or one per edge of the side."""

    value: ArrayLike = 0.0


@dataclass(frozen=True, eq=False)
class Pressure:
    """Pressure `p`: one number, or one per edge of the side."""

    value: ArrayLike = 0.0


Condition = Flux | Pressure


@dataclass(frozen=True, eq=False)
class Boundary:
    """One condition a side; the default is a closed box, `u·n = 0` everywhere.

    Values per edge run with x on `bottom` and `top`, with y on `left` and `right`.
    """

    left: Condition = Flux(0.0)
    right: Condition = Flux(0.0)
    bottom: Condition = Flux(0.0)
    top: Condition = Flux(0.0)

    def __post_init__(self) -> None:
        for side in SIDES:
            condition = getattr(self, side)
            if not isinstance(condition, Flux | Pressure):
                raise ValueError(f"{side} = {condition!r}: give Flux(value) or Pressure(value)")


def boundary_from_mapping(conditions: Mapping[str, Condition]) -> Boundary:
    """Build a boundary from names of sides; a side left out is closed, an unknown one an error."""
    unknown = sorted(set(conditions) - set(SIDES))
    if unknown:
        raise ValueError(f"unknown side {unknown[0]!r}: the sides are {', '.join(SIDES)}")
    return Boundary(**conditions)


class OpenSides(NamedTuple):
    """Which sides have a prescribed pressure, so that flow through them is unknown."""

    left: bool
    right: bool
    bottom: bool
    top: bool


class SideValues(NamedTuple):
    """Per side, one value per edge: outward flux integrated over the edge, or pressure."""

    left: Array
    right: Array
    bottom: Array
    top: Array


def open_sides(boundary: Boundary) -> OpenSides:
    """Tell the sides with a prescribed pressure from those with a prescribed flux."""
    return OpenSides(*(isinstance(getattr(boundary, side), Pressure) for side in SIDES))


def side_values(boundary: Boundary, grid: Grid) -> SideValues:
    """Spread each side's value over its edges, and turn flux densities into integrated fluxes."""
    return SideValues(*(_values_of_side(getattr(boundary, side), side, grid) for side in SIDES))


def _values_of_side(condition: Condition, side: str, grid: Grid) -> Array:
    vertical = side in ("left", "right")
    count, length = (grid.ny, grid.hy) if vertical else (grid.nx, grid.hx)
    scale = length if isinstance(condition, Flux) else 1.0
    if isinstance(condition.value, float) and math.isfinite(condition.value):
        return np.full(count, condition.value * scale)
    value = np.asarray(condition.value, dtype=np.float64)
    if value.shape not in ((), (count,)):
        raise ValueError(
            f"{side} has values of shape {value.shape}: give one number or one for each of its {count} edges"
        )
    if not np.isfinite(value).all():
        raise ValueError(f"{side} holds a value that is not finite: {value[~np.isfinite(value)][:1]}")
    return np.full(count, value * scale)
