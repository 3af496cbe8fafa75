"""The triangles on which a solution is drawn and written.

A picture shows values at the corners of triangles and interpolates between them. The faces of a surface may be much
larger than the cells of the grid: a cube has twelve faces. Their edges are halved until no cell is skipped. Then an
edge is halved wherever its middle differs from the mean of its ends by more than colours can show. A surface without
faces (a network, a cloud, splats) is drawn by the pieces that the cells cut it into.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lamina.geometry.lattice import cell_keys
from lamina.geometry.triangles import dot, unit
from lamina.linear.graph import first_of_each
from lamina.shapes import Float, Int, shaped
from lamina.surfaces.base import ClosestPoints, Surface
from lamina.surfaces.mesh import Mesh
from lamina.view.normals import corner_normals

if TYPE_CHECKING:
    from lamina.domain import Domain

# An edge is halved if its middle differs from the mean of its ends by more than this share of the range: half a step
# of 256 colours. With twice the share there are about half as many triangles, and errors that can just be seen.
MAX_DEVIATION = 1 / 512
# Edges longer than this many distances between nodes are halved without looking: the field bends where an edge passes
# from cell to cell, and the middle of a longer edge may lie on the line between its ends by chance. With twice the
# length a smooth field has a third as many triangles, and the largest error of a rough one is two to four times as
# large (up to 3.8% of the range on five shapes, instead of 0.95%).
MAX_UNCHECKED_EDGE = 1.0
# Edges shorter than this many distances between nodes are never halved: within them the field is a smooth polynomial.
MIN_HALVED_EDGE = 1 / 16
# Halvings that lead from MAX_UNCHECKED_EDGE to MIN_HALVED_EDGE, and one for the edges that halving makes inside a
# triangle. Where two sheets meet within one cell at a crease, the field may jump, and straight edges cannot draw that
# however many there are.
MAX_DISPLAY_HALVINGS = 5
# Splitting by deviation stops at this number, because viewers do not open larger files and pages.
MAX_TRIANGLES = 1_500_000


@shaped
@dataclass(frozen=True)
class Display:
    """Triangles with the states of a field at their corners.

    note: how they were made; None if they are the points and faces of the surface.
    """

    points: Float[Tensor, "n 3"]
    normals: Float[Tensor, "n 3"]
    component: Int[Tensor, " n"]
    values: Float[Tensor, "s n"]
    faces: Int[Tensor, "m 3"] | None  # ; None: points, drawn as discs
    note: str | None = None


def own_points(domain: Domain, unknowns: Tensor) -> Display:
    """The surface's own points and faces with the states of unknowns (s, n) at them."""
    surface = domain.surface
    values = torch.stack([domain.readout @ u for u in unknowns]).detach()
    return Display(surface.points, surface.normals, surface.component, values, surface.faces)


@shaped
@dataclass(frozen=True)
class _Triangles:
    """Triangles on a surface with the field at their corners."""

    feet: ClosestPoints  # n corners
    values: Float[Tensor, "n s"]
    faces: Int[Tensor, "m 3"]
    source: Int[Tensor, " m"]  # the face or the piece of the surface that each lies in
    below: Float[Tensor, "n 3"] | None = None  # the corners on the flat pieces that functions of order 3 live on


# Points on the surface, and the points below them on the flat pieces, if there are any.
_Corners = tuple[ClosestPoints, Tensor | None]
# Finds the middles of edges, which are given by their ends (e, 2) and sources (e,), and the field there.
Middles = Callable[[_Triangles, Tensor, Tensor], tuple[_Corners, Tensor]]


@torch.no_grad()
def display(domain: Domain, unknowns: Tensor) -> Display:
    """Triangles fine enough to show the states of unknowns (s, n) as they were solved for."""
    unknowns = unknowns.detach()
    faces = domain.geometry.faces
    first, middles = (_pieces if faces is None else _faces)(domain, unknowns)
    shown = first
    while faces is not None and (finer := _halved(shown, MAX_UNCHECKED_EDGE * domain.resolution, middles)) is not shown:
        shown = finer
    incomplete = False
    for _ in range(MAX_DISPLAY_HALVINGS):
        finer = _halved(shown, MIN_HALVED_EDGE * domain.resolution, middles, by_deviation=True)
        incomplete = len(finer.faces) > MAX_TRIANGLES
        if finer is shown or incomplete:
            break
        shown = finer
    if domain.geometry is domain.surface and shown is first and faces is not None:
        return own_points(domain, unknowns)
    if faces is None:
        note = f"Drawn by {len(shown.faces)} triangles, the pieces that the cells cut the surface into"
    else:
        note = f"Drawn by {len(shown.faces)} triangles: the field varies within the {len(faces)} faces of the surface"
    note += f"; u.values has the values at its own {len(domain.points)} points."
    if incomplete:
        note += f" More than {MAX_TRIANGLES} triangles would be needed to show all of it."
    feet = shown.feet
    normals = _shaded(domain.geometry, shown) if isinstance(domain.geometry, Mesh) else feet.normals
    return Display(feet.points, normals, feet.component, shown.values.T, shown.faces, note)


def _shaded(mesh: Mesh, shown: _Triangles) -> Tensor:
    """Normals (n, 3) of the corners as the mesh itself is shaded.

    They are linear on each face between the normals of its corners. Across a crease these differ from the normals of
    the neighbouring face.
    """
    points, faces = mesh.points.detach(), mesh.faces
    assert faces is not None
    own = corner_normals(points.cpu().numpy(), faces.cpu().numpy(), mesh.normals.detach().cpu().numpy())
    x = shown.feet.points[shown.faces]  # (m, 3, 3)
    a, b, c = points[faces[shown.source]][:, None].unbind(2)
    area = torch.linalg.cross(b - a, c - a)
    size = dot(area, area).clamp_min(torch.finfo(x.dtype).tiny)
    shares = [
        dot(torch.linalg.cross(v - u, x - u, dim=-1), area.expand_as(x)) / size for u, v in ((b, c), (c, a), (a, b))
    ]
    there = torch.stack(shares, -1) @ torch.from_numpy(own).to(x)[shown.source]
    return unit(torch.zeros_like(shown.feet.points).index_add_(0, shown.faces.reshape(-1), there.reshape(-1, 3)))


def _faces(domain: Domain, unknowns: Tensor) -> tuple[_Triangles, Middles]:
    """Start from the faces of the surface."""
    geometry, scheme = domain.geometry, domain.scheme
    assert geometry.faces is not None
    feet = geometry.own_feet().detach()
    every = torch.arange(len(geometry.faces), device=geometry.faces.device)
    on_faces = isinstance(geometry, Mesh)

    def middles(shown: _Triangles, ends: Tensor, source: Tensor) -> tuple[_Corners, Tensor]:
        feet = _between(shown.feet, ends, source) if on_faces else _moved(geometry, shown.feet, ends)
        return (feet, None), scheme.readout(feet).matrix @ unknowns.T

    return _Triangles(feet, scheme.readout(feet).matrix @ unknowns.T, geometry.faces, every), middles


def _pieces(domain: Domain, unknowns: Tensor) -> tuple[_Triangles, Middles]:
    """Start from the triangles that the cells cut the surface into."""
    cut, geometry, scheme = domain.cut, domain.geometry, domain.scheme
    assert cut.corners is not None
    corners = cut.corners.reshape(-1, 3)
    vertex, faces = _merged(corners)
    count = int(vertex.max()) + 1
    element = cut.element[:: cut.per_piece]
    of_corner = element.repeat_interleave(3)
    points, normals = _mean(corners, vertex, count), unit(_mean(cut.corner_normals, vertex, count))
    below = None  # where functions are evaluated, if not on the surface
    if domain.has_weak_forms:
        component = cut.elements.component[of_corner][first_of_each(vertex, count)]
        feet = ClosestPoints(points, normals, component)
        own = corners if cut.flat_corners is None else cut.flat_corners.reshape(-1, 3)
        below = None if cut.flat_corners is None else _mean(own, vertex, count)
        values = _mean(scheme.readout_in(of_corner, own).matrix @ unknowns.T, vertex, count)
    else:
        feet = geometry.closest_points(points).detach()
        values = scheme.readout(feet).matrix @ unknowns.T
    used = (faces[:, 0] != faces[:, 1]) & (faces[:, 1] != faces[:, 2]) & (faces[:, 2] != faces[:, 0])
    faces = _outward(feet.points, feet.normals, faces[used])

    def middles(shown: _Triangles, ends: Tensor, source: Tensor) -> tuple[_Corners, Tensor]:
        if domain.has_weak_forms:
            feet = _between(shown.feet, ends)
            at = feet.points if shown.below is None else shown.below[ends].mean(1)
            values = scheme.readout_in(element[source], at).matrix @ unknowns.T
            return (feet, None if shown.below is None else at), values
        feet = _moved(geometry, shown.feet, ends)
        return (feet, None), scheme.readout(feet).matrix @ unknowns.T

    return _Triangles(feet, values, faces, used.nonzero()[:, 0], below), middles


def _merged(corners: Tensor) -> tuple[Tensor, Tensor]:
    """Vertex (3 t,) of each corner of t triangles, and the triangles (t, 3). Corners at one point share a vertex."""
    low = corners.amin(0)
    size = (corners.amax(0) - low).amax().clamp_min(torch.finfo(corners.dtype).tiny)
    place = torch.round((corners - low) * ((2**20 - 1) / size)).long()
    vertex = torch.unique(cell_keys(place.unbind(1), (2**20, 2**20, 2**20)), return_inverse=True)[1]
    return vertex, vertex.reshape(-1, 3)


def _mean(values: Tensor, vertex: Tensor, count: int) -> Tensor:
    total = values.new_zeros(count, *values.shape[1:]).index_add_(0, vertex, values)
    return total / torch.bincount(vertex, minlength=count)[:, None]


def _outward(points: Tensor, normals: Tensor, faces: Tensor) -> Tensor:
    """faces (m, 3), with corners counterclockwise as seen from the side of the normals."""
    a, b, c = points[faces].unbind(1)
    side = (torch.linalg.cross(b - a, c - a) * normals[faces].sum(1)).sum(1)
    return torch.where((side < 0)[:, None], faces.flip(1), faces)


def _halved(shown: _Triangles, longest: float, middles: Middles, by_deviation: bool = False) -> _Triangles:
    """The triangles with edges longer than `longest` halved. by_deviation: only where the field deviates."""
    points, faces = shown.feet.points, shown.faces
    ends = torch.stack([faces, faces.roll(-1, 1)], 2).reshape(-1, 2).sort(1).values
    key, edge = torch.unique(ends[:, 0] * len(points) + ends[:, 1], return_inverse=True)
    first = first_of_each(edge, len(key))
    ends, source = ends[first], shown.source[torch.div(first, 3, rounding_mode="floor")]
    chosen = ((points[ends[:, 0]] - points[ends[:, 1]]).norm(dim=1) > longest).nonzero()[:, 0]
    if not len(chosen):
        return shown
    (feet, below), values = middles(shown, ends[chosen], source[chosen])
    if by_deviation:
        extent = shown.values.amax(0) - shown.values.amin(0)
        # A field that is constant up to rounding is not refined.
        rounding = 1e-9 * shown.values.abs().amax(0)
        away = (values - shown.values[ends[chosen]].mean(1)).abs()
        rows = (away > torch.maximum(MAX_DEVIATION * extent, rounding)).any(1).nonzero()[:, 0]
        if not len(rows):
            return shown
        chosen, feet, values = chosen[rows], feet.take(rows), values[rows]
        below = None if below is None else below[rows]
    middle = torch.full((len(key),), -1, dtype=torch.int64, device=faces.device)
    middle[chosen] = torch.arange(len(chosen), device=faces.device) + len(points)
    faces, parent = _with_middles(faces, middle[edge].reshape(-1, 3))
    below = None if below is None or shown.below is None else torch.cat([shown.below, below])
    return _Triangles(_joined(shown.feet, feet), torch.cat([shown.values, values]), faces, shown.source[parent], below)


def _with_middles(faces: Tensor, middle: Tensor) -> tuple[Tensor, Tensor]:
    """Triangles (m, 3) split at the middles (m, 3) of edges 01, 12, 20 (-1: whole), and the parent of each."""
    count = (middle >= 0).sum(1)
    parts, parents = [faces[count == 0]], [(count == 0).nonzero()[:, 0]]

    def turned(rows: Tensor, by: Tensor) -> tuple[Tensor, Tensor]:
        """Corners and middles of some triangles, rotated to start at corner number `by`."""
        order = (torch.arange(3, device=by.device) + by[:, None]) % 3
        return faces[rows].gather(1, order), middle[rows].gather(1, order)

    def add(rows: Tensor, *triangles: tuple[Tensor, Tensor, Tensor]) -> None:
        for triangle in triangles:
            parts.append(torch.stack(triangle, 1))
            parents.append(rows)

    rows = (count == 1).nonzero()[:, 0]
    (a, b, c), (m, _, _) = (v.unbind(1) for v in turned(rows, (middle[rows] >= 0).int().argmax(1)))
    add(rows, (a, m, c), (m, b, c))
    rows = (count == 2).nonzero()[:, 0]
    # Started from the corner after the whole edge, the first two edges have middles.
    (a, b, c), (m, k, _) = (v.unbind(1) for v in turned(rows, ((middle[rows] < 0).int().argmax(1) + 1) % 3))
    add(rows, (m, b, k), (a, m, k), (a, k, c))
    rows = (count == 3).nonzero()[:, 0]
    (a, b, c), (m, k, o) = faces[rows].unbind(1), middle[rows].unbind(1)
    add(rows, (a, m, o), (m, b, k), (o, k, c), (m, k, o))
    return torch.cat(parts), torch.cat(parents)


def _between(feet: ClosestPoints, ends: Tensor, face: Tensor | None = None) -> ClosestPoints:
    """The middles of straight edges. face: the face of a mesh that each lies on."""
    normals = unit(feet.normals[ends].sum(1))
    return ClosestPoints(feet.points[ends].mean(1), normals, feet.component[ends[:, 0]], face)


def _moved(geometry: Surface, feet: ClosestPoints, ends: Tensor) -> ClosestPoints:
    """The middles of edges, moved to their closest points on the surface."""
    return geometry.closest_points(feet.points[ends].mean(1)).detach()


def _joined(a: ClosestPoints, b: ClosestPoints) -> ClosestPoints:
    face = None if a.face is None or b.face is None else torch.cat([a.face, b.face])
    joined = (torch.cat([getattr(a, name), getattr(b, name)]) for name in ("points", "normals", "component"))
    return replace(ClosestPoints(*joined), face=face)
