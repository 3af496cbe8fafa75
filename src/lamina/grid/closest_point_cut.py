"""Cut cells of any surface that has closest points: signed offsets, tetrahedra, curved pieces.

At the corners of the cells near the surface the signed offset is (x - cp(x)).n. Each cell is six tetrahedra, each cut
where the offset, linear in it, vanishes. The corners and mid-edges of the flat pieces are then moved to the surface,
and integrals taken over the curved six-node triangles through them. Offsets also change their sign where closest
points jump from one sheet to another, between the two; what is cut there lies on neither, and is left out. Where parts
are thinner than the cells these are cut on a lattice 2 or 4 times finer.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from lamina.geometry.lattice import OCTANTS, Lattice
from lamina.geometry.tetrahedra import cut_tetrahedra, triangle_edges, without_pieces_beyond
from lamina.geometry.triangles import dot
from lamina.grid.band import Band
from lamina.grid.cut_surface import CutSurface
from lamina.grid.interface_curves import NO_CURVES, InterfaceCurves
from lamina.grid.pieces import FINEST, ROUGH, CurvedPieces, cut_from, cut_thin, turned_share
from lamina.surfaces.base import ClosestPoints, Surface

# Cells that a corner or mid-edge of a piece may be moved to reach the surface. It moves by a small part of a cell where
# cells resolve the surface, and by one or more where the offset jumps. With half of it, rough splats get holes at which
# they come apart. At a rim a corner beyond it comes back from wherever it was in its cell, so by up to a diagonal.
FARTHEST_MOVE, FARTHEST_TO_RIM = 0.5, 3**0.5


def cut_closest_points(
    surface: Surface,
    lattice: Lattice,
    sheets: bool = True,
    curves: InterfaceCurves = NO_CURVES,
    part: Surface | None = None,
    degree: int = 1,
) -> CutSurface:
    """Cut a surface known by its closest points and oriented normals; part: what is left of it, cut off by curves."""
    cut = cut_thin(part or surface, lattice, lambda finer: _cut(surface, lattice, finer, sheets, curves, degree))
    if cut.rim is None:
        return cut
    outward = surface.rim_tangents(cut.rim.points)
    return cut if outward is None or part is not surface else replace(cut, rim=cut.rim.directed(outward))


def _cut(
    surface: Surface, lattice: Lattice, finer: int, sheets: bool, curves: InterfaceCurves, degree: int
) -> CutSurface | None:
    """The surface cut on a lattice `finer` times finer, in the cells of the given one; None if nothing is cut."""
    fine = Lattice(lattice.origin, lattice.spacing / finer)
    band = Band.build(surface, fine, 1.75 * fine.spacing)
    x = fine.position(band.ijk)
    offset = surface.offsets(x, band.feet)
    # An offset of exactly zero would put a corner of a piece on a node, and six edges' corners together.
    tiny = 1e-6 * fine.spacing
    offset = torch.where(offset.abs() < tiny, tiny, offset)
    cell_node, corner = _whole_cells(band, offset.detach())
    if not len(cell_node):
        return None
    pieces = cut_tetrahedra(corner, offset)
    a, b = x[pieces.ends[:, 0]], x[pieces.ends[:, 1]]
    flat = a + pieces.fraction[:, None] * (b - a)
    feet = surface.closest_points(flat)
    pieces, vertex = without_pieces_beyond(pieces, feet.beyond), feet.points
    pieces = pieces.take(~_astray(flat, feet, fine.spacing)[pieces.triangles].any(1))
    ends, edge = triangle_edges(pieces.triangles, len(vertex))
    straight = 0.5 * (vertex[ends[:, 0]] + vertex[ends[:, 1]])
    bent = surface.closest_points(straight)
    middle, kept = bent.points, ~_astray(straight, bent, fine.spacing)[edge].any(1)
    pieces, edge = pieces.take(kept), edge[kept]
    if not len(edge):
        return None
    turned = turned_share(vertex[pieces.triangles], feet.normals[pieces.triangles])
    if degree > 1 and turned > ROUGH[degree].get(finer, 1.0) and _tells(surface, fine.spacing / 2):
        return _cut(surface, lattice, 2 * finer, sheets, curves, degree)
    six = torch.cat([vertex[pieces.triangles], middle[edge]], 1)
    node = cell_node[pieces.owner]
    cell = torch.div(band.ijk[node].long(), finer, rounding_mode="floor")
    beyond = torch.zeros_like(vertex[:, 0], dtype=torch.bool) if feet.beyond is None else feet.beyond
    alone = torch.bincount(edge.reshape(-1))[edge] == 1
    rim = alone & beyond[pieces.triangles] & beyond[pieces.triangles.roll(-1, 1)]
    curved = CurvedPieces(six, edge, cell, band.feet.normals[node].detach(), rim, flat[pieces.triangles], finer)
    return cut_from(curved, lattice, surface, sheets, curves, degree)


def _tells(surface: Surface, spacing: float) -> bool:
    """Whether the surface is known at this spacing: samples say nothing about what lies between them."""
    return surface.exact or spacing >= FINEST * math.sqrt(float(surface.areas.sum()) / len(surface.points))


def _astray(x: Tensor, feet: ClosestPoints, spacing: float) -> Tensor:
    """Which of the points x (n, 3) are too far from their feet to lie on a piece of the surface."""
    move = (feet.points - x).detach()
    farthest = torch.full_like(move[:, 0], FARTHEST_MOVE)
    if feet.beyond is not None:
        farthest[feet.beyond] = FARTHEST_TO_RIM
    return dot(move, move) > (farthest * spacing) ** 2


def _whole_cells(band: Band, offset: Tensor) -> tuple[Tensor, Tensor]:
    """Cells with all corners in the band and offsets of both signs: lowest corner (c,), corners (c, 8)."""
    rows = OCTANTS[::2].to(band.key.device)  # the corners with k = 0; k = 1 follows in memory
    first = band.find(band.ijk.long(), band.component, rows, run=2)
    whole = (first >= 0).all(1).nonzero()[:, 0]
    corner = torch.stack([first[whole], first[whole] + 1], -1).reshape(-1, 8)
    inside = offset[corner] < 0
    # Far from the surface closest points may jump between sheets, and the sign with them: only cells that the
    # surface can reach are cut.
    near = (offset[corner].abs() <= 3**0.5 * band.spacing).any(1)
    cut = (inside.any(1) & ~inside.all(1) & near).nonzero()[:, 0]
    return whole[cut], corner[cut]
