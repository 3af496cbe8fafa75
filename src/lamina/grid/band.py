"""The narrow band: the lattice nodes near a surface, with their closest points, as a sparse set."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lamina.geometry.lattice import Lattice, cell_keys
from lamina.surfaces.base import ClosestPoints, Surface

# Stencils reach at most this many nodes beyond the band; keys leave that much room at each side,
# so that a stencil that sticks out of the bounding box cannot wrap around into another row.
MARGIN = 8


@dataclass(frozen=True)
class Band:
    """Nodes sorted by key, so that nodes consecutive in k are consecutive in memory.

    key = ((component * n_i + i) * n_j + j) * n_k + k. A node near two components of the surface is two
    nodes of the band, one for each: components do not feel each other however close they lie.
    """

    lattice: Lattice
    ijk: Tensor  # (n, 3) int32
    feet: ClosestPoints
    key: Tensor  # (n,) int64, increasing
    low: Tensor  # (3,) int64, key origin
    shape: Tensor  # (3,) int64

    @classmethod
    def build(cls, surface: Surface, lattice: Lattice, radius: float) -> Band:
        """All nodes within radius of the surface."""
        near = surface.nodes_near(lattice, radius)
        return cls.of_nodes(lattice, near.ijk, near.feet)

    @classmethod
    def of_nodes(cls, lattice: Lattice, ijk: Tensor, feet: ClosestPoints) -> Band:
        """The nodes ijk (n, 3) with their feet, in any order."""
        low = ijk.amin(0) - MARGIN
        shape = ijk.amax(0) + MARGIN + 1 - low
        key, order = torch.sort(_key(ijk, feet.component, low, shape))
        feet = replace(feet, face=None).take(order)
        return cls(lattice, ijk[order].to(torch.int32), feet, key, low, shape)

    def __len__(self) -> int:
        return len(self.key)

    @property
    def heights(self) -> Tensor:
        """Distance (n,) of the nodes from the surface."""
        return (self.lattice.position(self.ijk) - self.feet.points).square().sum(1).sqrt()

    def take(self, rows: Tensor) -> Band:
        """The band of some of the nodes: a mask (n,), or indices that increase."""
        return replace(self, ijk=self.ijk[rows], feet=self.feet.take(rows), key=self.key[rows])

    @property
    def spacing(self) -> float:
        return self.lattice.spacing

    @property
    def component(self) -> Tensor:
        return self.feet.component

    def find(self, ijk: Tensor, component: Tensor, offsets: Tensor | None = None, run: int = 1) -> Tensor:
        """Index (n,) int64 of the nodes ijk (n, 3), or (n, m) of the nodes ijk + offsets (m, 3) or (n, m, 3),
        provided that the run of nodes k, ..., k + run - 1 is in the band; -1 otherwise."""
        wanted = _key(ijk, component, self.low, self.shape)
        if offsets is not None:  # keys are linear in ijk
            wanted = wanted[:, None] + cell_keys(offsets.unbind(-1), self.shape)
        last = len(self) - run
        index = torch.searchsorted(self.key, wanted).clamp_(max=max(last, 0))
        present = (self.key[index] == wanted) & (self.key[index + run - 1] == wanted + run - 1)
        return torch.where(present, index, torch.full_like(index, -1)) if last >= 0 else torch.full_like(index, -1)


def band_radius(spacing: float, lines: int, reach: int) -> float:
    """Radius within which every stencil of the scheme lies.

    A node of the cubic interpolation stencil is at most 2 nodes an axis from the foot, and its Laplacian
    reaches s further along one axis: dx sqrt(2^2 + 2^2 + (2 + s)^2) (Ruuth and Merriman 2008). The ends of
    the lines of the corrected stencil (`lines`: 0 none, 1 nearest, 2 bilinear) are at most 3 away along
    theirs and 1/2 or 1 along the other axes.
    """
    cubic = math.sqrt(8 + (2 + reach) ** 2)
    across = (0.0, 0.5, 1.0)[lines]
    ends = math.sqrt(2 * across**2 + (3 + reach) ** 2) if lines else 0.0
    return spacing * max(cubic, ends)


def _key(ijk: Tensor, component: Tensor, low: Tensor, shape: Tensor) -> Tensor:
    i, j, k = (ijk - low).unbind(-1)
    return cell_keys((component * shape[0] + i, j, k), shape)
