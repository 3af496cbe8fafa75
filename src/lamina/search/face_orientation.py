"""Orientation of a triangle mesh: faces are turned so that neighbours agree and closed pieces look outwards."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lamina.geometry.triangles import dot, triangle_areas
from lamina.linear.graph import components, numbered
from lamina.search.winding import WindingTree
from lamina.shapes import Bool, Int, shaped

# A piece lies inside the others if the median of their winding number is above a half just outside this many of its
# largest faces, at the second number times the root of the face's area.
INSIDE_PROBES, INSIDE_PROBE_DISTANCE = 16, 0.01


@shaped
@dataclass(frozen=True)
class Sides:
    """How the faces of a mesh are to be turned so that neighbours agree."""

    sign: Int[Tensor, " m"]  # -1 for faces to be turned over
    piece: Int[Tensor, " m"]  # the same for faces that are joined through edges of exactly two faces
    one_sided: Bool[Tensor, " pieces"]  # whether the piece has one side only, as a Moebius strip


def agreeing_sides(faces: Tensor) -> Sides:
    """Signs with which the two faces at an edge run along it in opposite directions, for faces (m, 3).

    Every face is two nodes of a graph: as it is, and turned over. Two faces that agree are linked as they are, and
    turned over; of two faces that do not agree each is linked with the other turned over. A two-sided piece then has
    two components, its two sides; the side that contains its first face unturned is taken. A piece with a single
    component is one-sided. Edges of more than two faces link nothing.
    """
    count, vertices = len(faces), int(faces.max()) + 1
    start, end = faces.reshape(-1), faces.roll(-1, 1).reshape(-1)
    key = torch.minimum(start, end) * vertices + torch.maximum(start, end)
    _, edge, uses = torch.unique(key, return_inverse=True, return_counts=True)
    paired = (uses[edge] == 2).nonzero()[:, 0]
    a, b = paired[torch.argsort(edge[paired], stable=True)].reshape(-1, 2).unbind(1)
    turned = (start[a] == start[b]).long()  # both run the same way
    a, b = a // 3, b // 3
    side = components(2 * count, torch.cat([a, a + count]), torch.cat([b + count * turned, b + count * (1 - turned)]))
    as_is, over = side[:count], side[count:]
    piece = numbered(2 * count, torch.minimum(as_is, over))
    pieces = int(piece.max()) + 1
    one_sided = torch.zeros(pieces, dtype=torch.bool).index_fill_(0, piece[as_is == over], True)
    return Sides(torch.where(as_is <= over, 1, -1), piece, one_sided)


def outward_signs(points: Tensor, faces: Tensor) -> tuple[Tensor, Tensor]:
    """Signs (m,) with which faces (m, 3) over points (n, 3) agree and look outwards; which pieces are one-sided.

    A piece whose faces agreed already and that lies inside others is left as it is: cavities look inwards. All other
    pieces are turned to have a positive volume, the sum of det(a, b, c) / 6 about their centroid. A mesh whose total
    volume is negative is turned over first.
    """
    sides = agreeing_sides(faces)
    corners = points[faces]
    areas = triangle_areas(corners)
    pieces = len(sides.one_sided)

    def summed(v: Tensor) -> Tensor:
        return v.new_zeros(pieces, *v.shape[1:]).index_add_(0, sides.piece, v)

    middle = summed(areas[:, None] * corners.mean(1)) / summed(areas)[:, None]
    a, b, c = (corners - middle[sides.piece, None]).unbind(1)
    volume = summed(sides.sign * dot(torch.linalg.cross(a, b), c))
    outward = sides.sign * torch.where(volume < 0, -1, 1)[sides.piece]
    agreed = summed((sides.sign < 0).long()) == 0  # the first face of a piece has sign 1
    a, b, c = (corners - corners.mean((0, 1))).unbind(1)
    given = -1 if float(dot(torch.linalg.cross(a, b), c).sum()) < 0 else 1
    inwards = agreed & (summed((outward != given).long()) > 0)
    if pieces > 1 and bool(inwards.any()):
        inwards &= ~_inside_others(corners, areas, outward, sides.piece, inwards)
    kept = agreed & ~inwards
    return torch.where(kept[sides.piece], given, outward), sides.one_sided


def _inside_others(corners: Tensor, areas: Tensor, sign: Tensor, piece: Tensor, asked: Tensor) -> Tensor:
    """Whether each of the pieces marked in asked (pieces,) lies inside the rest; all are turned outwards by sign (m,).

    Just outside a piece its own winding number is 0, so the total is that of the others.
    """
    outwards = torch.where((sign < 0)[:, None, None], corners.flip(1), corners)
    tree = WindingTree.of_triangles(outwards)
    a, b, c = outwards.unbind(1)
    normal = torch.linalg.cross(b - a, c - a) / (2 * areas)[:, None]
    result = torch.zeros_like(asked)
    for index in asked.nonzero()[:, 0].tolist():
        mine = (piece == index).nonzero()[:, 0]
        mine = mine[torch.topk(areas[mine], min(INSIDE_PROBES, len(mine))).indices]
        probe = corners[mine].mean(1) + INSIDE_PROBE_DISTANCE * areas[mine].sqrt()[:, None] * normal[mine]
        result[index] = tree(probe).median() > 0.5
    return result
