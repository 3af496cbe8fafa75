"""The narrow band: the lattice nodes near a surface with their closest points, sorted by integer keys."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lamina.geometry.lattice import Lattice, cell_keys
from lamina.shapes import Int, shaped
from lamina.surfaces.base import ClosestPoints, Surface

# Nodes that keys leave free on each side of the bounding box of the band. Stencils reach at most this far beyond the
# band; with less a node outside the box could get the key of a node in another row.
KEY_MARGIN_NODES = 8


@shaped
@dataclass(frozen=True)
class Band:
    """Nodes sorted by key, so that nodes consecutive in k are consecutive in memory.

    key = ((component * n_i + i) * n_j + j) * n_k + k. A node near two components of the surface is two nodes of the
    band, one for each component. So components are independent of each other however close they lie.
    """

    lattice: Lattice
    ijk: Int[Tensor, "n 3"]  # int32
    feet: ClosestPoints
    key: Int[Tensor, " n"]  # increasing
    low: Int[Tensor, " 3"]  # key origin
    shape: Int[Tensor, " 3"]

    @classmethod
    def build(cls, surface: Surface, lattice: Lattice, radius: float) -> Band:
        """All nodes within radius of the surface."""
        near = surface.nodes_near(lattice, radius)
        return cls.of_nodes(lattice, near.ijk, near.feet)

    @classmethod
    def of_nodes(cls, lattice: Lattice, ijk: Tensor, feet: ClosestPoints) -> Band:
        """The nodes ijk (n, 3) with their feet, in any order."""
        low = ijk.amin(0) - KEY_MARGIN_NODES
        shape = ijk.amax(0) + KEY_MARGIN_NODES + 1 - low
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
        if all nodes k, ..., k + run - 1 are in the band; -1 otherwise."""
        wanted = _key(ijk, component, self.low, self.shape)
        if offsets is not None:  # keys are linear in ijk
            wanted = wanted[:, None] + cell_keys(offsets.unbind(-1), self.shape)
        last = len(self) - run
        index = torch.searchsorted(self.key, wanted).clamp_(max=max(last, 0))
        present = (self.key[index] == wanted) & (self.key[index + run - 1] == wanted + run - 1)
        return torch.where(present, index, torch.full_like(index, -1)) if last >= 0 else torch.full_like(index, -1)


def band_radius(spacing: float, lines: int, reach: int) -> float:
    """Radius of a band that contains every stencil of the closest-point scheme.

    A node of the cubic interpolation stencil is at most 2 nodes from the foot along each axis. The Laplacian at that
    node reaches s = `reach` nodes further along one axis, so the radius is dx sqrt(2^2 + 2^2 + (2 + s)^2) (Ruuth and
    Merriman 2008). The corrected stencil adds lines of nodes (`lines`: 0 none, 1 nearest, 2 bilinear). Their ends are
    at most 3 nodes away along the line, and 1/2 or 1 along the other axes.
    """
    cubic = math.sqrt(8 + (2 + reach) ** 2)
    across = (0.0, 0.5, 1.0)[lines]
    ends = math.sqrt(2 * across**2 + (3 + reach) ** 2) if lines else 0.0
    return spacing * max(cubic, ends)


def _key(ijk: Tensor, component: Tensor, low: Tensor, shape: Tensor) -> Tensor:
    i, j, k = (ijk - low).unbind(-1)
    return cell_keys((component * shape[0] + i, j, k), shape)
