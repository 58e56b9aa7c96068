"""Divergence-free RT0 fluxes as curls of a stream function on the vertices.

On a rectangle every divergence-free RT0 field is `curl ψ` with `ψ` one number per vertex:

`F_x[j, i] = ψ[j+1, i] − ψ[j, i]`,  `F_y[j, i] = ψ[j, i] − ψ[j, i+1]`.

Hence `K = Cᵀ A_h C`, the matrix of the saddle-point problem reduced to that space, is symmetric positive
definite, has half as many unknowns as there are edges, and couples a vertex with its 8 neighbours only. Mass
balance holds by construction, whatever the contrast. `K` is factored in band form along the shorter direction
for small grids, by sparse LU without pivoting for large ones.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided
from scipy import sparse
from scipy.linalg.lapack import dpbtrf, dpbtrs
from scipy.sparse.linalg import splu

from ridgewalk.darcy.boundary import OpenSides
from ridgewalk.darcy.grid import Array
from ridgewalk.darcy.mass import CellMass

LARGEST_BAND = 160  # beyond this many unknowns a line, sparse LU is faster (benchmarks/darcy.py)

Solve = Callable[[Array], Array]


def curl(stream: Array) -> tuple[Array, Array]:
    """Fluxes `C ψ` of a stream function `(..., ny+1, nx+1)`."""
    return stream[..., 1:, :] - stream[..., :-1, :], stream[..., :, :-1] - stream[..., :, 1:]


def curl_transpose(edge_x: Array, edge_y: Array) -> Array:
    """`Cᵀ g`: the circulation of `g` around every vertex."""
    out = np.zeros((*edge_x.shape[:-2], edge_y.shape[-2], edge_x.shape[-1]))
    out[..., 1:, :] = edge_x
    out[..., :-1, :] -= edge_x
    out[..., :, :-1] += edge_y
    out[..., :, 1:] -= edge_y
    return out


def free_vertices(sides: OpenSides, ny: int, nx: int) -> tuple[slice, slice]:
    """The rectangle of vertices where `ψ` is unknown: those on no side with a prescribed flux."""
    return (
        slice(0 if sides.bottom else 1, ny + 1 if sides.top else ny),
        slice(0 if sides.left else 1, nx + 1 if sides.right else nx),
    )


class Stencil(NamedTuple):
    """Entries of `K` on a rectangle of vertices: the diagonal and the couplings to four neighbours."""

    centre: Array
    east: Array  # (j, i) with (j, i+1)
    north: Array  # (j, i) with (j+1, i)
    north_east: Array  # (j, i) with (j+1, i+1)
    north_west: Array  # (j, i+1) with (j+1, i)


def assemble(mass: CellMass, free: tuple[slice, slice]) -> Stencil:
    """Sum the cells' matrices `a_x [[2,1],[1,2]] ⊗ [[1,−1],[−1,1]]` (and the same in y) into stencils."""
    ny, nx = mass.x.shape
    centre = np.zeros((ny + 1, nx + 1))
    corner = 2.0 * (mass.x + mass.y)
    for j in (slice(None, -1), slice(1, None)):
        for i in (slice(None, -1), slice(1, None)):
            centre[j, i] += corner
    east = np.zeros((ny + 1, nx))
    along_x = mass.x - 2.0 * mass.y
    east[:-1] = along_x
    east[1:] += along_x
    north = np.zeros((ny, nx + 1))
    along_y = mass.y - 2.0 * mass.x
    north[:, :-1] = along_y
    north[:, 1:] += along_y
    diagonal = -(mass.x + mass.y)
    rows, columns = free
    inner_rows, inner_columns = slice(rows.start, rows.stop - 1), slice(columns.start, columns.stop - 1)
    inner = diagonal[inner_rows, inner_columns]
    return Stencil(centre[rows, columns], east[rows, inner_columns], north[inner_rows, columns], inner, inner)


def pin_first(stencil: Stencil) -> Stencil:
    """Fix `ψ = 0` at the first vertex: with four open sides `ψ` is known only up to a constant."""
    pinned = Stencil(*(part.copy() for part in stencil))
    pinned.centre[0, 0] = 1.0
    pinned.east[0, 0] = pinned.north[0, 0] = pinned.north_east[0, 0] = 0.0
    return pinned


def factorise(stencil: Stencil, largest_band: int = LARGEST_BAND) -> Solve:
    """Factor `K` once; the result maps right-hand sides `(..., rows, columns)` to stream functions."""
    rows, columns = stencil.centre.shape
    if rows < columns:
        flipped = Stencil(stencil.centre.T, stencil.north.T, stencil.east.T, stencil.north_east.T, stencil.north_west.T)
        solve_flipped = factorise(flipped, largest_band)
        return lambda right: solve_flipped(right.swapaxes(-1, -2)).swapaxes(-1, -2)
    if columns == 0:
        return np.zeros_like
    solve_lines = _factorise_band(stencil) if columns <= largest_band else _factorise_sparse(stencil)

    def solve(right: Array) -> Array:
        leading = right.shape[:-2]
        flat = right.reshape(-1, rows * columns)
        return np.ascontiguousarray(solve_lines(flat.T).T).reshape(*leading, rows, columns)

    return solve


def _factorise_band(stencil: Stencil) -> Solve:
    rows, columns = stencil.centre.shape
    width = columns + 1  # the farthest neighbour is one line and one vertex away
    band = np.zeros((rows, columns, width + 1))  # [j, i, k] couples the vertex with the one k later
    band[:, :, 0] = stencil.centre
    band[:, :-1, 1] += stencil.east
    band[:-1, :, columns] += stencil.north
    band[:-1, :-1, columns + 1] += stencil.north_east
    band[:-1, 1:, columns - 1] += stencil.north_west
    lower, failed = dpbtrf(band.reshape(-1, width + 1).T, lower=1, overwrite_ab=1)
    if failed:
        raise ValueError(
            f"permeability: the system is not positive definite in double precision (pivot {failed}); "
            "its contrast is too large, clip it"
        )
    upper = _as_upper_band(lower)

    def solve(right: Array) -> Array:
        solution: Array = dpbtrs(upper, right, lower=0)[0]
        return solution

    return solve


def _as_upper_band(lower: Array) -> Array:
    """The transposed factor in upper band form.

    LAPACK factors the lower form faster and, up to a width of 64, without BLAS threads, which on a busy
    machine can make one factorisation take seconds; it solves with the upper form faster. Entry `[k, c]`
    moves to `[width − k, c + k]`, in memory from `c (width+1) + k` to `c (width+1) + k width + width`: one
    copy with other strides, and some room beyond the last column.
    """
    width, count = lower.shape[0] - 1, lower.shape[1]
    room = np.zeros((count + width) * (width + 1))
    size = room.itemsize
    places = as_strided(room[width:], (count, width + 1), (size * (width + 1), size * width))
    places[:] = lower.T
    return room[: count * (width + 1)].reshape(count, width + 1).T


def _factorise_sparse(stencil: Stencil) -> Solve:
    rows, columns = stencil.centre.shape
    number = np.arange(rows * columns).reshape(rows, columns)
    couplings = (
        (number[:, :-1], number[:, 1:], stencil.east),
        (number[:-1, :], number[1:, :], stencil.north),
        (number[:-1, :-1], number[1:, 1:], stencil.north_east),
        (number[:-1, 1:], number[1:, :-1], stencil.north_west),
    )
    first = np.concatenate([pair[0].ravel() for pair in couplings])
    second = np.concatenate([pair[1].ravel() for pair in couplings])
    value = np.concatenate([pair[2].ravel() for pair in couplings])
    diagonal = number.ravel()
    matrix = sparse.coo_array(
        (
            np.concatenate([stencil.centre.ravel(), value, value]),
            (np.concatenate([diagonal, first, second]), np.concatenate([diagonal, second, first])),
        )
    ).tocsc()
    factor = splu(matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
    return lambda right: factor.solve(np.ascontiguousarray(right))
