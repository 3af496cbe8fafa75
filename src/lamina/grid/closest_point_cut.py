"""Cut cells of any surface that has closest points: signed offsets, tetrahedra, curved pieces.

At the corners of the cells near the surface the signed offset is (x - cp(x)).n. Each cell is divided into six
tetrahedra, and each of these is cut where the offset, linear in it, vanishes. The corners and mid-edges of the flat
pieces are then moved to the surface, and integrals are taken over the curved six-node triangles through them. The
offset also changes its sign between two sheets, where closest points jump from one to the other. Pieces that are cut
there lie on neither sheet and are left out. Where parts are thinner than the cells, the cells are cut on a lattice 2 or
4 times finer.
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
from lamina.grid.pieces import (
    MAX_TURNING_AREA_SHARE,
    MIN_CELL_PER_SAMPLE_DISTANCE,
    CurvedPieces,
    cut_resolving_thin_parts,
    cut_surface_of_pieces,
    turning_area_share,
)
from lamina.surfaces.base import ClosestPoints, Surface

# A piece is left out if a corner or mid-edge has to move by more than this, in cells, to reach the surface. It moves by
# a small part of a cell where cells resolve the surface, and by one or more where the offset jumps. With half of this,
# rough splats get holes at which they come apart.
MAX_MOVE_CELLS = 0.5
# The same for a corner beyond a rim, which may come back to the rim from anywhere in its cell: the diagonal of a cell.
MAX_MOVE_TO_RIM_CELLS = 3**0.5
# Nodes within this distance of the surface, in cells, have offsets: the diagonal of a cell, so that every cell that the
# surface enters has all its corners, and a little more.
BAND_RADIUS_CELLS = 1.75
# Offsets smaller than this, in cells, are set to it. An offset of zero would put a corner of a piece on a node, where
# the corners on all its edges would coincide.
MIN_OFFSET_CELLS = 1e-6


def cut_closest_points(
    surface: Surface,
    lattice: Lattice,
    sheets: bool = True,
    curves: InterfaceCurves = NO_CURVES,
    part: Surface | None = None,
    degree: int = 1,
) -> CutSurface:
    """Cut a surface known by its closest points and oriented normals.

    part: the part of the surface that curves leave, if they cut something off.
    """

    def cut_on(refinement: int) -> CutSurface | None:
        return _cut(surface, lattice, refinement, sheets, curves, degree)

    cut = cut_resolving_thin_parts(part or surface, lattice, cut_on)
    if cut.rim is None:
        return cut
    outward = surface.rim_tangents(cut.rim.points)
    return cut if outward is None or part is not surface else replace(cut, rim=cut.rim.directed(outward))


def _cut(
    surface: Surface, lattice: Lattice, refinement: int, sheets: bool, curves: InterfaceCurves, degree: int
) -> CutSurface | None:
    """The surface cut on a lattice `refinement` times finer, in the cells of the given one; None if nothing is cut."""
    fine = Lattice(lattice.origin, lattice.spacing / refinement)
    band = Band.build(surface, fine, BAND_RADIUS_CELLS * fine.spacing)
    x = fine.position(band.ijk)
    offset = surface.offsets(x, band.feet)
    smallest = MIN_OFFSET_CELLS * fine.spacing
    offset = torch.where(offset.abs() < smallest, smallest, offset)
    cell_node, corner = _whole_cells(band, offset.detach())
    if not len(cell_node):
        return None
    pieces = cut_tetrahedra(corner, offset)
    a, b = x[pieces.ends[:, 0]], x[pieces.ends[:, 1]]
    flat = a + pieces.fraction[:, None] * (b - a)
    feet = surface.closest_points(flat)
    pieces, vertex = without_pieces_beyond(pieces, feet.beyond), feet.points
    pieces = pieces.take(~_too_far_from_feet(flat, feet, fine.spacing)[pieces.triangles].any(1))
    ends, edge = triangle_edges(pieces.triangles, len(vertex))
    straight = 0.5 * (vertex[ends[:, 0]] + vertex[ends[:, 1]])
    bent = surface.closest_points(straight)
    middle, kept = bent.points, ~_too_far_from_feet(straight, bent, fine.spacing)[edge].any(1)
    pieces, edge = pieces.take(kept), edge[kept]
    if not len(edge):
        return None
    turned = turning_area_share(vertex[pieces.triangles], feet.normals[pieces.triangles])
    most = MAX_TURNING_AREA_SHARE[degree].get(refinement, 1.0)
    if degree > 1 and turned > most and _known_at(surface, fine.spacing / 2):
        return _cut(surface, lattice, 2 * refinement, sheets, curves, degree)
    six = torch.cat([vertex[pieces.triangles], middle[edge]], 1)
    node = cell_node[pieces.owner]
    cell = torch.div(band.ijk[node].long(), refinement, rounding_mode="floor")
    beyond = torch.zeros_like(vertex[:, 0], dtype=torch.bool) if feet.beyond is None else feet.beyond
    alone = torch.bincount(edge.reshape(-1))[edge] == 1
    rim = alone & beyond[pieces.triangles] & beyond[pieces.triangles.roll(-1, 1)]
    curved = CurvedPieces(six, edge, cell, band.feet.normals[node].detach(), rim, flat[pieces.triangles], refinement)
    return cut_surface_of_pieces(curved, lattice, surface, sheets, curves, degree)


def _known_at(surface: Surface, spacing: float) -> bool:
    """Whether the surface is known at this spacing. Samples say nothing about what lies between them."""
    return surface.exact or spacing >= MIN_CELL_PER_SAMPLE_DISTANCE * math.sqrt(
        float(surface.areas.sum()) / len(surface.points)
    )


def _too_far_from_feet(x: Tensor, feet: ClosestPoints, spacing: float) -> Tensor:
    """Which of the points x (n, 3) are too far from their feet to lie on a piece of the surface."""
    move = (feet.points - x).detach()
    farthest = torch.full_like(move[:, 0], MAX_MOVE_CELLS)
    if feet.beyond is not None:
        farthest[feet.beyond] = MAX_MOVE_TO_RIM_CELLS
    return dot(move, move) > (farthest * spacing) ** 2


def _whole_cells(band: Band, offset: Tensor) -> tuple[Tensor, Tensor]:
    """The cells with all corners in the band and offsets of both signs: lowest corners (c,) and all corners (c, 8)."""
    rows = OCTANTS[::2].to(band.key.device)  # the corners with k = 0; k = 1 follows in memory
    first = band.find(band.ijk.long(), band.component, rows, run=2)
    whole = (first >= 0).all(1).nonzero()[:, 0]
    corner = torch.stack([first[whole], first[whole] + 1], -1).reshape(-1, 8)
    inside = offset[corner] < 0
    # Far from the surface closest points may jump between sheets, and the sign of the offset with them. Only cells that
    # the surface can enter are cut: those with a corner no farther than the diagonal of a cell.
    near = (offset[corner].abs() <= 3**0.5 * band.spacing).any(1)
    cut = (inside.any(1) & ~inside.all(1) & near).nonzero()[:, 0]
    return whole[cut], corner[cut]
