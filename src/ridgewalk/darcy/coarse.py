"""The coarse grid of the multiscale method: blocks of fine cells and the coarse edges between them."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from ridgewalk.darcy.boundary import OpenSides
from ridgewalk.darcy.grid import Grid
from ridgewalk.darcy.mass import edge_numbers

Numbers = NDArray[np.int64]


class CoarseEdge(NamedTuple):
    """A coarse edge with unknown flux: the blocks before and after it, and its fine edges.

    `before` is the block on its left or below, `after` the one on its right or above, `None` outside the
    domain; blocks are numbered row by row.
    """

    before: int | None
    after: int | None
    vertical: bool
    fine_edges: Numbers


@dataclass(frozen=True)
class CoarseGrid:
    """`blocks_x × blocks_y` blocks of equally many fine cells."""

    fine: Grid
    blocks_x: int
    blocks_y: int

    def __post_init__(self) -> None:
        for name, cells in (("blocks_x", self.fine.nx), ("blocks_y", self.fine.ny)):
            count = getattr(self, name)
            if count < 1 or cells % count:
                divisors = [number for number in range(1, cells + 1) if cells % number == 0]
                raise ValueError(f"{name} = {count}: must divide the {cells} fine cells, choose from {divisors}")

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return self.blocks_x * self.blocks_y

    @property
    def block_grid(self) -> Grid:
        """The fine grid of one block."""
        return Grid(
            self.fine.nx // self.blocks_x,
            self.fine.ny // self.blocks_y,
            self.fine.width / self.blocks_x,
            self.fine.height / self.blocks_y,
        )

    def cells_of(self, block: int) -> tuple[slice, slice]:
        """Rows and columns of a block's cells."""
        row, column = divmod(block, self.blocks_x)
        local = self.block_grid
        return (
            slice(row * local.ny, (row + 1) * local.ny),
            slice(column * local.nx, (column + 1) * local.nx),
        )

    def edges_of(self, block: int) -> Numbers:
        """Fine-grid numbers of a block's edges, in the order of the block's own grid."""
        number_x, number_y = edge_numbers(self.fine)
        rows, columns = self.cells_of(block)
        return np.concatenate(
            [
                number_x[rows, columns.start : columns.stop + 1].ravel(),
                number_y[rows.start : rows.stop + 1, columns].ravel(),
            ]
        )

    def aggregation(self) -> sparse.csr_array:
        """`R_p`: row `b` sums the cells of block `b`."""
        block_of = np.empty(self.fine.shape, dtype=np.int64)
        for block in range(self.blocks):
            block_of[self.cells_of(block)] = block
        cells = np.arange(self.fine.cells)
        entries = (np.ones(cells.size), (block_of.ravel(), cells))
        return sparse.coo_array(entries, shape=(self.blocks, self.fine.cells)).tocsr()

    def unknown_edges(self, sides: OpenSides) -> list[CoarseEdge]:
        """Coarse edges inside the domain and on sides with a prescribed pressure."""
        number_x, number_y = edge_numbers(self.fine)
        local = self.block_grid
        edges = []
        for row in range(self.blocks_y):
            rows = slice(row * local.ny, (row + 1) * local.ny)
            for column in range(self.blocks_x + 1):
                before = row * self.blocks_x + column - 1 if column > 0 else None
                after = row * self.blocks_x + column if column < self.blocks_x else None
                if (before is not None or sides.left) and (after is not None or sides.right):
                    edges.append(CoarseEdge(before, after, True, number_x[rows, column * local.nx]))
        for row in range(self.blocks_y + 1):
            for column in range(self.blocks_x):
                columns = slice(column * local.nx, (column + 1) * local.nx)
                before = (row - 1) * self.blocks_x + column if row > 0 else None
                after = row * self.blocks_x + column if row < self.blocks_y else None
                if (before is not None or sides.bottom) and (after is not None or sides.top):
                    edges.append(CoarseEdge(before, after, False, number_y[row * local.ny, columns]))
        return edges
