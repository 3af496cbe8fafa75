"""The Cartesian lattice, keys of its cells, and its nodes near a surface that is known by its distance."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lamina.shapes import Float, Int, shaped


@shaped
@dataclass(frozen=True)
class Lattice:
    """Nodes x_ijk = origin + spacing * (i, j, k) for all integers i, j, k.

    Lattices of spacing h, 2h, 4h, ... with the same origin are nested: every coarse node is a fine node.
    """

    origin: Float[Tensor, " 3"]
    spacing: float

    def position(self, ijk: Tensor) -> Tensor:
        """Coordinates (n, 3) of the nodes ijk (n, 3)."""
        return self.origin + self.spacing * ijk.to(self.origin.dtype)

    def coarsened(self) -> Lattice:
        """The lattice of twice the spacing."""
        return Lattice(self.origin, 2 * self.spacing)


def cell_keys(ijk: tuple[Tensor, ...], shape: Tensor | tuple[int, int, int]) -> Tensor:
    """One integer (i shape[1] + j) shape[2] + k for each cell or node (i, j, k), given as three tensors.

    Within a box of shape (3,) cells the integers are distinct and increase in the order of (i, j, k). They are linear
    in (i, j, k), so the same function gives the difference of keys for a difference of cells.
    """
    i, j, k = ijk
    return (i * shape[1] + j) * shape[2] + k


def cells_of_keys(key: Tensor, shape: Tensor) -> Tensor:
    """The cells (..., 3) within the box whose keys (...,) are given."""
    row, k = torch.div(key, shape[2], rounding_mode="floor"), key % shape[2]
    return torch.stack([torch.div(row, shape[1], rounding_mode="floor"), row % shape[1], k], -1)


# The eight children of a block, and the eight corners of a cell, in the order of the node keys.
OCTANTS = torch.tensor([[i, j, k] for i in (0, 1) for j in (0, 1) for k in (0, 1)])


@shaped
@dataclass(frozen=True)
class Blocks:
    """Cubes of 2^level nodes a side: block b holds the nodes b 2^level ... (b + 1) 2^level - 1.

    `component` is the connected component of the surface for which the block is searched.
    """

    lattice: Lattice
    level: int
    ijk: Int[Tensor, "n 3"]
    component: Int[Tensor, " n"]

    @classmethod
    def covering(cls, lattice: Lattice, boxes: Tensor) -> Blocks:
        """A few large blocks that cover each of the boxes (c, 2, 3), one box for each component."""
        extent = float((boxes[:, 1] - boxes[:, 0]).max())
        level = max(0, math.ceil(math.log2(max(extent / lattice.spacing, 1.0))))
        size = lattice.spacing * 2**level
        low = torch.floor((boxes[:, 0] - lattice.origin) / size - 1e-9).long()
        count = torch.floor((boxes[:, 1] - lattice.origin) / size + 1e-9).long() - low + 1
        corners = OCTANTS.to(low.device)  # a box no longer than a block meets at most two blocks along each axis
        ijk = low[:, None] + corners[None]
        wanted = (corners[None] < count[:, None]).all(-1)
        component = torch.arange(len(boxes), device=low.device)[:, None].expand_as(wanted)
        return cls(lattice, level, ijk[wanted], component[wanted])

    def __len__(self) -> int:
        return len(self.ijk)

    @property
    def finest(self) -> bool:
        return self.level == 0

    @property
    def centres(self) -> Tensor:
        side = 2**self.level
        return self.lattice.origin + self.lattice.spacing * (
            self.ijk.to(self.lattice.origin.dtype) * side + (side - 1) / 2
        )

    @property
    def radii(self) -> Tensor:
        """Distance (n,) from the centre to the corner nodes."""
        radius = 0.5 * math.sqrt(3.0) * (2**self.level - 1) * self.lattice.spacing
        return self.lattice.origin.new_full((len(self),), radius)

    def split(self) -> tuple[Blocks, Tensor]:
        """The children of all blocks, in the order of their parents, and the number (n,) of children of each."""
        ijk = (2 * self.ijk[:, None] + OCTANTS.to(self.ijk.device)).reshape(-1, 3)
        counts = torch.full_like(self.component, 8)
        return Blocks(self.lattice, self.level - 1, ijk, self.component.repeat_interleave(8)), counts

    def take(self, which: Tensor) -> Blocks:
        return Blocks(self.lattice, self.level, self.ijk[which], self.component[which])


def nodes_within(lattice: Lattice, bounds: Tensor, radius: float, distance: Callable[[Tensor], Tensor]) -> Tensor:
    """All lattice nodes ijk (n, 3) with distance(x) <= radius.

    `distance` is the unsigned distance to a surface inside bounds (2, 3). Blocks of nodes are split from coarse to
    fine. A distance is 1-Lipschitz, so a block whose centre is farther from the surface than radius plus its own
    radius contains none of these nodes. The work is proportional to the number of nodes found.
    """
    box = torch.stack([bounds[0] - radius, bounds[1] + radius])
    return nodes_in_blocks(Blocks.covering(lattice, box[None]), radius, lambda x: (distance(x), x))[0]


def nodes_in_blocks(
    blocks: Blocks, radius: float, nearest: Callable[[Tensor], tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """The nodes in blocks within radius, and the second result of `nearest` for them; the first is their distance."""
    while True:
        distance, which = nearest(blocks.centres)
        near = distance <= (radius + blocks.radii) * (1 + 1e-12)
        blocks = blocks.take(near)
        if blocks.finest:
            return blocks.ijk, which[near]
        blocks, _ = blocks.split()


def blocks_around(lattice: Lattice, points: Tensor, radius: float, level: int) -> Blocks:
    """Blocks of 2^level nodes a side that hold all nodes within radius of points (m, 3), and not many more."""
    side = lattice.spacing * 2**level
    home = torch.floor((points - lattice.origin) / side).long()
    low = home.amin(0)
    shape = home.amax(0) - low + 1
    reach = math.ceil(radius / side)
    step = torch.arange(-reach, reach + 1)  # on the CPU: the table is small, and its length must be known
    # The nodes of a block that is some steps away along each axis are no nearer than the gap between the two blocks.
    gap = (torch.cartesian_prod(step, step, step).abs() - 1).clamp_min(0)
    offset = torch.cartesian_prod(step, step, step)[(gap**2).sum(1) * side**2 <= (radius * (1 + 1e-9)) ** 2]
    offset = offset.to(points.device)
    used = cells_of_keys(torch.unique(cell_keys((home - low).unbind(1), shape)), shape)
    wide = shape + 2 * reach
    around = tuple(u[:, None] + o + reach for u, o in zip(used.unbind(1), offset.unbind(1), strict=True))
    key = torch.unique(cell_keys(around, wide))
    return Blocks(lattice, level, cells_of_keys(key, wide) + low - reach, torch.zeros_like(key))
