"""Cut cells of a triangle mesh: exact pieces, connected sheets, and the element of a point on the mesh."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lamina.geometry.lattice import Lattice, cell_keys
from lamina.geometry.triangles import dot, triangle_normals, unit
from lamina.grid.cut_surface import CutSurface, rule_points
from lamina.grid.cut_triangles import cut_triangles, segments_meet_unit_cell
from lamina.grid.interface_curves import NO_CURVES, BoundaryEdges, InterfaceCurves
from lamina.grid.quadrature import on_polygons, on_triangles
from lamina.grid.rim import FlatTriangles
from lamina.grid.saddle_vertices import cone_conductivity
from lamina.grid.sheets import CutElements, distinct_glue
from lamina.linear.graph import components, members
from lamina.shapes import Int, shaped
from lamina.surfaces.base import ClosestPoints, Surface
from lamina.surfaces.mesh import Mesh

# An edge of a piece lies on an edge of the mesh if the heights of its ends over that are less than this, in cells. This
# is far more than rounding and far less than any piece that matters.
MAX_HEIGHT_OVER_RIM_CELLS = 1e-7


@shaped
@dataclass(frozen=True)
class Incidence:
    """The pairs of a cell and a face of the mesh that passes through it, sorted, and the element of each pair.

    With interface curves there is a pair for each label that occurs: face stands for face * labels + label.
    """

    key: Int[Tensor, " i"]  # increasing
    element: Int[Tensor, " numbered"]  # (i,), or empty until the elements are numbered
    low: Int[Tensor, " 3"]  # lowest cell of the keys
    shape: Int[Tensor, " 3"]  # cells of the keys along each axis
    faces: int  # the number of faces times the number of labels
    lattice: Lattice | None = None
    curves: InterfaceCurves = NO_CURVES

    def make_key(self, cell: Tensor, face: Tensor) -> Tensor:
        return pair_key(cell, face, self.low, self.shape, self.faces)

    def find(self, coordinate: Tensor, feet: ClosestPoints) -> Tensor:
        """Element (n,) of points on faces, at coordinates (n, 3) in units of cells; -1 where none is found."""
        assert feet.face is not None
        cell, face, labels = torch.floor(coordinate).long(), feet.face * self.curves.labels, self.curves.labels
        if self.curves and self.lattice is not None:
            face = face + self.curves.label(feet.points, cell, feet.normals, self.lattice)
        at = self.number_of(cell, face)
        # Because of rounding, a point at the border of a cell may belong to a piece in a neighbouring cell, and a point
        # beside a curve to a piece on the other side.
        for label in range(-1, 0 if labels == 1 else labels):
            missing = (at < 0).nonzero()[:, 0]
            if not len(missing):
                break
            other = face[missing] if label < 0 else feet.face[missing] * labels + label
            near = self.number_of(cell[missing, None] + _NEIGHBOURS_FROM_NEAREST.to(cell.device), other[:, None])
            nearest = (near >= 0).int().argmax(1)  # the first neighbour that has it
            at[missing] = near.gather(1, nearest[:, None])[:, 0]
        return torch.where(at < 0, at, self.element[at.clamp_min(0)])

    def number_of(self, cell: Tensor, face: Tensor) -> Tensor:
        """The number (n,) of each pair of a cell and a face; -1 where there is none."""
        return self._find(self.make_key(cell, face))

    def _find(self, key: Tensor) -> Tensor:
        at = torch.searchsorted(self.key, key).clamp_(max=len(self.key) - 1)
        return torch.where(self.key[at] == key, at, torch.full_like(at, -1))

    def partner(self, number: Tensor, face: Tensor) -> Tensor:
        """The number of the pair of the same cell with another face; -1 where there is none."""
        key = self.key[number]
        return self._find(key - key % self.faces + face)


def pair_key(cell: Tensor, face: Tensor, low: Tensor, shape: Tensor, faces: int) -> Tensor:
    return cell_keys((cell - low).unbind(-1), shape) * faces + face


_NEIGHBOURS_FROM_NEAREST = torch.tensor([[i, j, k] for i in (-1, 0, 1) for j in (-1, 0, 1) for k in (-1, 0, 1)])
_NEIGHBOURS_FROM_NEAREST = _NEIGHBOURS_FROM_NEAREST[_NEIGHBOURS_FROM_NEAREST.abs().sum(1).argsort(stable=True)]


def cut_mesh(
    surface: Surface, lattice: Lattice, sheets: bool = True, curves: InterfaceCurves = NO_CURVES, degree: int = 1
) -> CutSurface:
    """Clip the triangles to the cells. Within a cell triangles are connected through the edges of the mesh."""
    assert isinstance(surface, Mesh)
    assert surface.faces is not None
    corners = surface.positions[surface.faces]
    pieces, face, cell = cut_triangles((corners - lattice.origin) / lattice.spacing)
    pieces = lattice.origin + lattice.spacing * pieces
    rim = _rim_edges(surface, pieces.detach(), face, lattice.spacing)
    shape, all_cells, all_faces = FlatTriangles(pieces), cell, face
    curve_edges = None
    pair_face_label = face
    if curves:
        parts, curve_edges = curves.split(shape.position, cell, surface.face_normals[face], lattice)
        pieces = torch.bmm(parts.corners, pieces[parts.source])
        cell, pair_face_label = cell[parts.source], face[parts.source] * curves.labels + parts.label
    low = cell.amin(0) - 2
    key_shape = cell.amax(0) + 3 - low
    count = len(corners) * curves.labels
    piece_key = pair_key(cell, pair_face_label, low, key_shape, count)
    key, pair_of_piece = torch.unique(piece_key, return_inverse=True)
    pair_cell = torch.empty(len(key), 3, dtype=torch.int64, device=key.device)
    pair_cell[pair_of_piece] = cell
    pair_face = key % count
    pairs = Incidence(key, torch.empty(0, dtype=torch.int64), low, key_shape, count, lattice, curves)
    element_of_pair = components(len(key), *_within_cells(surface, lattice, pairs, pair_cell, pair_face))
    elements_cell = torch.empty(int(element_of_pair.max()) + 1, 3, dtype=torch.int64, device=key.device)
    elements_cell[element_of_pair] = pair_cell
    glue = _across_cells(pairs, pair_cell, pair_face, element_of_pair)
    elements = CutElements(elements_cell, glue, len(elements_cell))
    face_normals = triangle_normals(corners) if surface.tracked else surface.face_normals
    own_face = torch.div(pair_face, curves.labels, rounding_mode="floor")
    normals = face_normals[own_face]
    per_piece = rule_points(degree)
    if degree == 1:
        quadrature, pair = on_polygons(pieces, pair_of_piece, normals), torch.arange(len(pair_cell), device=cell.device)
    else:
        quadrature, pair = on_triangles(pieces, normals[pair_of_piece], per_piece), pair_of_piece
    element = element_of_pair[pair].repeat_interleave(per_piece)
    incidence = replace(pairs, element=element_of_pair)

    def find(piece: Tensor, x: Tensor) -> Tensor:
        here, on = all_cells[piece], all_faces[piece]
        label = curves.label(x, here, surface.face_normals[on], lattice) if curves else 0
        at = pairs.number_of(here, on * curves.labels + label)
        return torch.where(at < 0, at, element_of_pair[at.clamp_min(0)])

    boundary = rim
    if curve_edges is not None:
        boundary = BoundaryEdges.join([curves.trimmed(rim, shape.position), curve_edges], pieces)
    cut = CutSurface.build(
        lattice, elements, quadrature, element, incidence, sheets, boundary, shape, find,
        degree=degree, per_piece=per_piece,
    )  # fmt: skip
    conductivity = cone_conductivity(surface, cut) if degree == 1 else None
    return replace(cut, conductivity=conductivity, face=own_face[pair].repeat_interleave(per_piece))


def _rim_edges(surface: Mesh, pieces: Tensor, face: Tensor, spacing: float) -> BoundaryEdges:
    """The edges of pieces (p, 3, 3) of faces (p,) that lie on an edge of the mesh with a single face."""
    assert surface.faces is not None
    open_ = surface.rim_edges  # (f, 3)
    rows = open_[face].any(1).nonzero()[:, 0]
    corner = surface.points[surface.faces[face[rows]]]
    found: list[BoundaryEdges] = []
    eye = torch.eye(3, dtype=pieces.dtype, device=pieces.device)
    for side in range(3):
        # Heights of the corners of pieces over this edge of their face.
        a, b = corner[:, side], corner[:, (side + 1) % 3]
        across = torch.linalg.cross(surface.face_normals[face[rows]], unit(b - a))
        height = dot(pieces[rows] - a[:, None], across[:, None]).abs()
        on = (height < MAX_HEIGHT_OVER_RIM_CELLS * spacing) & open_[face[rows], side][:, None]
        for i in range(3):
            here = rows[on[:, i] & on[:, (i + 1) % 3]]
            ends = torch.stack([eye[i], eye[(i + 1) % 3], eye[(i + 2) % 3]]).expand(len(here), 3, 3)
            found.append(BoundaryEdges(here, ends, torch.full_like(here, -1)))
    return BoundaryEdges.join(found, pieces)


def _within_cells(
    surface: Mesh, lattice: Lattice, pairs: Incidence, cell: Tensor, face: Tensor
) -> tuple[Tensor, Tensor]:
    """The pairs (cell, face) that are connected within a cell: their faces meet in an edge that passes through it."""
    ends, first, second = surface.face_adjacency
    left, right = [], []
    labels = pairs.curves.labels
    for label in range(labels):
        a, edge = members(face, pairs.faces, first * labels + label)
        b = pairs.partner(a, second[edge] * labels + label)
        both = (b >= 0).nonzero()[:, 0]
        a, b, edge = a[both], b[both], edge[both]
        start, end = ((ends[edge, i] - lattice.origin) / lattice.spacing - cell[a] for i in (0, 1))
        meets = segments_meet_unit_cell(start, end)
        left.append(a[meets])
        right.append(b[meets])
    return torch.cat(left), torch.cat(right)


def _across_cells(pairs: Incidence, cell: Tensor, face: Tensor, element: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The glue. A triangle in two neighbouring cells crosses their common face, because it is convex like the cells."""
    a, b, axes = [], [], []
    labels = pairs.curves.labels
    whole = torch.div(face, labels, rounding_mode="floor") * labels
    for one, other in pairs.curves.pairs():
        own = (face % labels == one).nonzero()[:, 0]
        for axis in range(3):
            step = torch.zeros(3, dtype=torch.int64, device=cell.device)
            step[axis] = 1
            at = pairs.number_of(cell[own] + step, whole[own] + other)
            here = (at >= 0).nonzero()[:, 0]
            a.append(element[own[here]])
            b.append(element[at[here]])
            axes.append(torch.full_like(here, axis))
    return distinct_glue(torch.cat(a), torch.cat(b), torch.cat(axes), int(element.max()) + 1)
