"""Where a function on the nodes of a lattice vanishes: cells cut as six tetrahedra each, by the signs at their corners.

The tetrahedra are Kuhn's, the same in every cell. Neighbouring cells therefore agree on their common faces, and the
pieces fit together without gaps (Kuhn 1960; marching tetrahedra, Doi and Koide 1991).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lamina.geometry.triangles import dot, unit
from lamina.shapes import Float, Int, shaped

# Corners of a cell, as bits (i, j, k) = (4, 2, 1), along the six monotone paths from 000 to 111.
TETRAHEDRA = torch.tensor([[0, a, a | b, 7] for a in (4, 2, 1) for b in (4, 2, 1) if a != b])  # (6, 4)

# The pieces of a tetrahedron by its number of negative corners, which come first in the order of its corners. Each
# corner of a piece lies on an edge, given by the two corners of the tetrahedron at its ends.
_CASES = {
    1: [((0, 1), (0, 2), (0, 3))],
    3: [((0, 3), (1, 3), (2, 3))],
    2: [((0, 2), (0, 3), (1, 3)), ((0, 2), (1, 3), (1, 2))],
}

# arched_middle divides slopes by the cosine between an end's normal and the mean normal, but by at least this number:
# normals nearly at a right angle would give huge slopes.
MIN_ARC_COSINE = 0.2
# The difference of the slopes at the two ends of an arc counts up to this share of the length of its edge. Larger ones,
# as beside a crease, come from normals that say nothing about the arc.
MAX_ARC_SLOPE = 0.5


@shaped
@dataclass(frozen=True)
class Pieces:
    """Triangles over vertices that lie on edges of the lattice's tetrahedra."""

    triangles: Int[Tensor, "t 3"]
    owner: Int[Tensor, " t"]  # the cell of each
    ends: Int[Tensor, "v 2"]  # nodes at the ends of each vertex's edge
    fraction: Float[Tensor, " v"]  # where the function, linear along the edge, vanishes

    def take(self, rows: Tensor) -> Pieces:
        """Some of the triangles, by number or mask, over the same vertices."""
        return Pieces(self.triangles[rows], self.owner[rows], self.ends, self.fraction)


def cut_tetrahedra(corner: Tensor, value: Tensor) -> Pieces:
    """The pieces of the zero set of value (n,) in cells whose corners (c, 8) are nodes in the order of OCTANTS."""
    nodes = corner[:, TETRAHEDRA.to(corner.device)].reshape(-1, 4)
    owner = torch.arange(len(corner), device=corner.device).repeat_interleave(6)
    negative = value[nodes] < 0
    count = negative.sum(1)
    # Negative corners come first, in their order: then all tetrahedra of a case are alike.
    order = torch.argsort((~negative).to(torch.int8), dim=1, stable=True)
    nodes = torch.gather(nodes, 1, order)
    edge_nodes, owners = [], []
    for number, pieces in _CASES.items():
        here = (count == number).nonzero()[:, 0]
        for piece in pieces:
            edge_nodes.append(torch.stack([nodes[here][:, list(pair)] for pair in piece], 1))  # (t, 3, 2)
            owners.append(owner[here])
    pairs = torch.cat(edge_nodes).sort(-1).values
    ends, triangles = distinct_pairs(pairs, len(value))
    a, b = value[ends[:, 0]], value[ends[:, 1]]
    return Pieces(triangles, torch.cat(owners), ends, a / (a - b))


def without_pieces_beyond(pieces: Pieces, beyond: Tensor | None) -> Pieces:
    """The pieces without those whose corners all lie beyond (v,) the rim of the surface, onto which they would fold."""
    if beyond is None:
        return pieces
    return pieces.take(~beyond[pieces.triangles].all(1))


def distinct_pairs(pairs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The distinct pairs (p, 2) among sorted pairs (..., 2) of numbers below count, and the number (...) of each."""
    key, which = torch.unique(pairs[..., 0] * count + pairs[..., 1], return_inverse=True)
    return torch.stack([torch.div(key, count, rounding_mode="floor"), key % count], 1), which


def triangle_edges(triangles: Tensor, vertices: int) -> tuple[Tensor, Tensor]:
    """Ends (e, 2) of the edges, and the edges (t, 3) of the triangles (t, 3): edge i joins corners i and i + 1."""
    return distinct_pairs(torch.stack([triangles, triangles.roll(-1, 1)], -1).sort(-1).values, vertices)


@shaped
@dataclass(frozen=True)
class ClippedTriangles:
    """Parts of triangles on one side, over the v old vertices and new ones on the edges that were cut."""

    triangles: Int[Tensor, "t 3"]
    source: Int[Tensor, " t"]  # the triangle each came from
    ends: Int[Tensor, "w 2"]  # old vertices at the ends of the edge of each new one
    fraction: Float[Tensor, " w"]  # where on it


def clip(triangles: Tensor, height: Tensor) -> ClippedTriangles:
    """The part of triangles (t, 3) where height (v,), linear in each, is positive."""
    above = height[triangles] > 0
    count = above.sum(1)
    rows = torch.arange(len(triangles), device=triangles.device)
    whole, one, two = ((count == n).nonzero()[:, 0] for n in (3, 1, 2))
    # The corner that is alone on its side comes first, the others follow in their order around the triangle.
    alone = torch.where(count == 1, above.long().argmax(1), (~above).long().argmax(1))
    turned = triangles.gather(1, (alone[:, None] + torch.arange(3, device=triangles.device)) % 3)
    a, b, c = turned.unbind(1)
    cut = torch.cat([one, two])
    sides = torch.stack([torch.stack([a, b], 1)[cut], torch.stack([a, c], 1)[cut]], 1).sort(-1).values
    ends, new = distinct_pairs(sides, len(height))
    new = new + len(height)
    p, q = new[: len(one)].unbind(1)
    r, s = new[len(one) :].unbind(1)
    parts = [
        triangles[whole],
        torch.stack([a[one], p, q], 1),
        torch.stack([r, b[two], c[two]], 1),
        torch.stack([r, c[two], s], 1),
    ]
    f, g = height[ends[:, 0]], height[ends[:, 1]]
    source = torch.cat([rows[whole], rows[one], rows[two], rows[two]])
    return ClippedTriangles(torch.cat(parts), source, ends, f / (f - g))


@shaped
@dataclass(frozen=True)
class BoxedTriangles:
    """Parts of triangles within a box, over the v old vertices and new ones on the sides of the box."""

    triangles: Int[Tensor, "t 3"]
    source: Int[Tensor, " t"]  # the triangle each came from
    vertices: Tensor  # (v + w, 3)
    on_side: Tensor  # (v + w, 3) bool, for each axis whether a vertex was put on a side of the box across it


def clip_to_box(triangles: Tensor, vertices: Tensor, box: Tensor, margin: float = 0.0) -> BoxedTriangles:
    """The part of triangles (t, 3) over vertices (v, 3) within the box (2, 3), or up to margin beyond it."""
    on_side = torch.zeros_like(vertices, dtype=torch.bool)
    source = torch.arange(len(triangles), device=triangles.device)
    for axis in range(3):
        for side, sign in ((0, 1.0), (1, -1.0)):
            height = sign * (vertices[:, axis] - box[side, axis]) + margin
            if not bool((height[triangles] <= 0).any()):
                continue
            cut = clip(triangles, height)
            a, b = vertices[cut.ends].unbind(1)
            new, on = torch.lerp(a, b, cut.fraction[:, None]), on_side[cut.ends].all(1)
            new[:, axis], on[:, axis] = box[side, axis], True
            triangles, source = cut.triangles, source[cut.source]
            vertices, on_side = torch.cat([vertices, new]), torch.cat([on_side, on])
    return BoxedTriangles(triangles, source, vertices, on_side)


def arched_middle(p: Tensor, q: Tensor, n: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    """Middle (e, 3) of the arcs from p to q on a surface with unit normals n at p and m at q, and the mean normal.

    The arc is a cubic. Its tangents at the ends are d = q - p, moved along the mean normal c into the tangent planes
    there: t_p = d - (d.n / c.n) c. Its middle is (p + q) / 2 + (t_p - t_q) / 8, of fourth order on a smooth surface.
    """
    d, mean = q - p, unit(n + m)
    slope = dot(d, m) / dot(mean, m).clamp_min(MIN_ARC_COSINE) - dot(d, n) / dot(mean, n).clamp_min(MIN_ARC_COSINE)
    length = dot(d, d).sqrt()
    slope = torch.minimum(slope.abs(), MAX_ARC_SLOPE * length) * slope.sign()
    return 0.5 * (p + q) + (slope / 8)[:, None] * mean, mean
