"""Cut cells of a triangle mesh: exact pieces, connected sheets, and the way back from a surface point."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lamina.geometry.cut import cut_triangles, segments_meet_unit_cell
from lamina.geometry.lattice import Lattice
from lamina.linear.graph import components, members
from lamina.quadrature import on_polygons
from lamina.schemes.cones import cone_conductivity
from lamina.schemes.cutsurface import CutSurface
from lamina.schemes.sheets import Elements, distinct_glue
from lamina.surfaces.base import ClosestPoints, Surface
from lamina.surfaces.mesh import Mesh


@dataclass(frozen=True)
class Incidence:
    """The pairs (cell, face) where a face of the mesh passes through a cell, sorted, and their element."""

    key: Tensor  # (i,) int64, increasing
    element: Tensor  # (i,) int64
    low: Tensor  # (3,)
    shape: Tensor  # (3,)
    faces: int

    def make_key(self, cell: Tensor, face: Tensor) -> Tensor:
        return pair_key(cell, face, self.low, self.shape, self.faces)

    def find(self, coordinate: Tensor, feet: ClosestPoints) -> Tensor:
        """Element (n,) of points on faces, -1 where none is found."""
        assert feet.face is not None
        cell = torch.floor(coordinate).long()
        at = self.position(cell, feet.face)
        # On the border of a cell the piece may have been counted to the neighbour.
        lost = (at < 0).nonzero()[:, 0]
        if len(lost):
            near = self.position(cell[lost, None] + _NEIGHBOURS.to(cell.device), feet.face[lost, None])
            nearest = (near >= 0).int().argmax(1)  # the first neighbour that has it
            at[lost] = near.gather(1, nearest[:, None])[:, 0]
        return torch.where(at < 0, at, self.element[at.clamp_min(0)])

    def position(self, cell: Tensor, face: Tensor) -> Tensor:
        """Position (n,) of the pairs, -1 where there is none."""
        return self._find(self.make_key(cell, face))

    def _find(self, key: Tensor) -> Tensor:
        at = torch.searchsorted(self.key, key).clamp_(max=len(self.key) - 1)
        return torch.where(self.key[at] == key, at, torch.full_like(at, -1))

    def partner(self, position: Tensor, face: Tensor) -> Tensor:
        """Position of the pair of the same cell with another face, -1 where there is none."""
        key = self.key[position]
        return self._find(key - key % self.faces + face)


def pair_key(cell: Tensor, face: Tensor, low: Tensor, shape: Tensor, faces: int) -> Tensor:
    i, j, k = (cell - low).unbind(-1)
    return ((i * shape[1] + j) * shape[2] + k) * faces + face


_NEIGHBOURS = torch.tensor([[i, j, k] for i in (-1, 0, 1) for j in (-1, 0, 1) for k in (-1, 0, 1) if i or j or k])
_NEIGHBOURS = _NEIGHBOURS[_NEIGHBOURS.abs().sum(1).argsort(stable=True)]


def cut_mesh(surface: Surface, lattice: Lattice, sheets: bool = True) -> CutSurface:
    """Clip the triangles to the cells; sheets are connected through mesh edges inside a cell."""
    assert isinstance(surface, Mesh)
    assert surface.faces is not None
    corners = surface.points[surface.faces]
    pieces, face, cell = cut_triangles((corners - lattice.origin) / lattice.spacing)
    low = cell.amin(0) - 2
    shape = cell.amax(0) + 3 - low
    count = len(corners)
    piece_key = pair_key(cell, face, low, shape, count)
    key, pair_of_piece = torch.unique(piece_key, return_inverse=True)
    pair_cell = torch.empty(len(key), 3, dtype=torch.int64, device=key.device)
    pair_cell[pair_of_piece] = cell
    pair_face = key % count
    pairs = Incidence(key, torch.empty(0, dtype=torch.int64), low, shape, count)
    element_of_pair = components(len(key), *_within_cells(surface, lattice, pairs, pair_cell, pair_face))
    elements_cell = torch.empty(int(element_of_pair.max()) + 1, 3, dtype=torch.int64, device=key.device)
    elements_cell[element_of_pair] = pair_cell
    glue = _across_cells(pairs, pair_cell, pair_face, element_of_pair)
    elements = Elements(elements_cell, glue, len(elements_cell))
    quadrature = on_polygons(lattice.origin + lattice.spacing * pieces, pair_of_piece, surface.face_normals[pair_face])
    element = element_of_pair.repeat_interleave(3)
    incidence = Incidence(key, element_of_pair, low, shape, count)
    cut = CutSurface.build(lattice, elements, quadrature, element, incidence, sheets)
    return replace(cut, conductivity=cone_conductivity(surface, cut))


def _within_cells(
    surface: Mesh, lattice: Lattice, pairs: Incidence, cell: Tensor, face: Tensor
) -> tuple[Tensor, Tensor]:
    """Pairs (cell, face) of one cell to be joined: their faces meet in an edge that passes through the cell."""
    ends, first, second = surface.face_adjacency
    a, edge = members(face, pairs.faces, first)
    b = pairs.partner(a, second[edge])
    both = (b >= 0).nonzero()[:, 0]
    a, b, edge = a[both], b[both], edge[both]
    start, end = ((ends[edge, i] - lattice.origin) / lattice.spacing - cell[a] for i in (0, 1))
    meets = segments_meet_unit_cell(start, end)
    return a[meets], b[meets]


def _across_cells(pairs: Incidence, cell: Tensor, face: Tensor, element: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Glue: a triangle in two neighbouring cells crosses their common face, triangles and cells being convex."""
    a, b, axes = [], [], []
    for axis in range(3):
        step = torch.zeros(3, dtype=torch.int64, device=cell.device)
        step[axis] = 1
        at = pairs.position(cell + step, face)
        here = (at >= 0).nonzero()[:, 0]
        a.append(element[here])
        b.append(element[at[here]])
        axes.append(torch.full_like(here, axis))
    return distinct_glue(torch.cat(a), torch.cat(b), torch.cat(axes), int(element.max()) + 1)
