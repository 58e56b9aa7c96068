"""Fluxes that balance the source, and pressures that balance the fluxes, by running sums over the grid.

Both are sweeps from one side. A flux with `div u = f` and the prescribed boundary fluxes is not unique: any
one will do, because the stream function supplies the rest. The pressure is: on an inner edge `(A_h u)_e` is
the pressure drop across it, so a walk over the cells gives `p`, from a side where it is known or, in a closed
box, up to its mean.
"""

import numpy as np

from ridgewalk.darcy.boundary import OpenSides, SideValues
from ridgewalk.darcy.grid import Array


def check_compatible(source: Array, sides: OpenSides, values: SideValues) -> Array:
    """In a closed box, insist on `∫f = ∮ u·n` and spread what rounding leaves; `source` is `∫_cell f`."""
    if any(sides):
        return source
    total_source = source.sum(axis=(-2, -1))
    prescribed = np.concatenate(values)
    outflow = prescribed.sum()
    size = np.abs(source).sum(axis=(-2, -1)) + np.abs(prescribed).sum()
    mismatch = total_source - outflow
    wrong = np.abs(mismatch) > 1e-12 * size
    if np.any(wrong):
        first = np.broadcast_to(total_source, wrong.shape)[wrong][0]
        raise ValueError(
            f"source and boundary fluxes are incompatible: ∫f = {first:.10g} but ∮u·n = {outflow:.10g}; "
            "with the flux prescribed on all four sides they must be equal (or prescribe a pressure on one)"
        )
    balanced: Array = source - (mismatch / (source.shape[-1] * source.shape[-2]))[..., None, None]
    return balanced


def balancing_flux(source: Array, sides: OpenSides, values: SideValues) -> tuple[Array, Array]:
    """Some flux with the given net outflow `source` of every cell and the prescribed boundary fluxes."""
    *leading, ny, nx = source.shape
    flux_x, flux_y = np.zeros((*leading, ny, nx + 1)), np.zeros((*leading, ny + 1, nx))
    flux_x[..., :, 0] = 0.0 if sides.left else -values.left
    flux_x[..., :, -1] = 0.0 if sides.right else values.right
    flux_y[..., 0, :] = 0.0 if sides.bottom else -values.bottom
    flux_y[..., -1, :] = 0.0 if sides.top else values.top
    if sides.left or sides.right:
        _sweep(flux_x, source - (flux_y[..., 1:, :] - flux_y[..., :-1, :]), forward=sides.right)
    elif sides.bottom or sides.top:
        excess = source - (flux_x[..., :, 1:] - flux_x[..., :, :-1])
        _sweep(flux_y.swapaxes(-1, -2), excess.swapaxes(-1, -2), forward=sides.top)
    else:
        excess = source - (flux_y[..., 1:, :] - flux_y[..., :-1, :])
        flux_x[..., :, 1:-1] = flux_x[..., :, :1] + np.cumsum(excess, axis=-1)[..., :, :-1]
        # What a row cannot place is handed up along the last column; compatibility closes the last cell.
        surplus = source[..., :, -1] - (flux_x[..., :, -1] - flux_x[..., :, -2])
        flux_y[..., 1:-1, -1] = flux_y[..., :1, -1] + np.cumsum(surplus, axis=-1)[..., :-1]
    return flux_x, flux_y


def _sweep(flux: Array, excess: Array, forward: bool) -> None:
    """Fill `flux` along its last axis so that each cell sends on what it receives and produces."""
    if forward:
        flux[..., 1:] = flux[..., :1] + np.cumsum(excess, axis=-1)
    else:
        flux[..., :-1] = flux[..., -1:] - np.cumsum(excess[..., ::-1], axis=-1)[..., ::-1]


def walk_pressure(drop_x: Array, drop_y: Array, sides: OpenSides, values: SideValues) -> Array:
    """Cell pressures from the pressure drops `A_h u` over the edges."""
    if sides.left:
        return values.left[:, None] - np.cumsum(drop_x[..., :, :-1], axis=-1)
    if sides.right:
        return values.right[:, None] + np.cumsum(drop_x[..., :, :0:-1], axis=-1)[..., :, ::-1]
    if sides.bottom:
        return values.bottom - np.cumsum(drop_y[..., :-1, :], axis=-2)
    if sides.top:
        return values.top + np.cumsum(drop_y[..., :0:-1, :], axis=-2)[..., ::-1, :]
    pressure = np.zeros((*drop_x.shape[:-1], drop_y.shape[-1]))
    pressure[..., 1:, 0] = -np.cumsum(drop_y[..., 1:-1, 0], axis=-1)
    pressure[..., :, 1:] = pressure[..., :, :1] - np.cumsum(drop_x[..., :, 1:-1], axis=-1)
    pressure -= pressure.mean(axis=(-2, -1), keepdims=True)
    return pressure
