"""Where a function on the nodes of a lattice vanishes: cells cut as six tetrahedra each, by the signs at their corners.

The tetrahedra are Kuhn's, the same in every cell, so that neighbours agree on their common faces and the pieces fit
together without gaps (Kuhn 1960; marching tetrahedra, Doi and Koide 1991).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lamina.geometry.triangles import dot, unit

# Corners of a cell, as bits (i, j, k) = (4, 2, 1), along the six monotone paths from 000 to 111.
TETRAHEDRA = torch.tensor([[0, a, a | b, 7] for a in (4, 2, 1) for b in (4, 2, 1) if a != b])  # (6, 4)

# The pieces of a tetrahedron with so many negative corners, these first: each corner of a piece on the edge of a pair.
_CASES = {
    1: [((0, 1), (0, 2), (0, 3))],
    3: [((0, 3), (1, 3), (2, 3))],
    2: [((0, 2), (0, 3), (1, 3)), ((0, 2), (1, 3), (1, 2))],
}


@dataclass(frozen=True)
class Pieces:
    """Triangles over vertices that lie on edges of the lattice's tetrahedra."""

    triangles: Tensor  # (t, 3) int64
    owner: Tensor  # (t,) int64, the cell of each
    ends: Tensor  # (v, 2) int64, nodes at the ends of each vertex's edge
    fraction: Tensor  # (v,) where the function, linear along the edge, vanishes

    def take(self, rows: Tensor) -> Pieces:
        """Some of the triangles, by number or mask, over the same vertices."""
        return Pieces(self.triangles[rows], self.owner[rows], self.ends, self.fraction)


def cut_tetrahedra(corner: Tensor, value: Tensor) -> Pieces:
    """The pieces in cells with corners (c, 8), nodes in the order of OCTANTS, where value (n,) changes sign."""
    nodes = corner[:, TETRAHEDRA.to(corner.device)].reshape(-1, 4)
    owner = torch.arange(len(corner), device=corner.device).repeat_interleave(6)
    negative = value[nodes] < 0
    count = negative.sum(1)
    # Negative corners first, in their order: then every case looks alike.
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
    """Those with a corner that is not beyond (v,) the rim of the surface, which others would be folded onto."""
    if beyond is None:
        return pieces
    return pieces.take(~beyond[pieces.triangles].all(1))


def distinct_pairs(pairs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The distinct ones (p, 2) of sorted pairs (..., 2) of numbers below count, and which of them (...) each is."""
    key, which = torch.unique(pairs[..., 0] * count + pairs[..., 1], return_inverse=True)
    return torch.stack([torch.div(key, count, rounding_mode="floor"), key % count], 1), which


def triangle_edges(triangles: Tensor, vertices: int) -> tuple[Tensor, Tensor]:
    """Ends (e, 2) of the edges, and the edges (t, 3) of the triangles (t, 3): edge i joins corners i and i + 1."""
    return distinct_pairs(torch.stack([triangles, triangles.roll(-1, 1)], -1).sort(-1).values, vertices)


@dataclass(frozen=True)
class Clipped:
    """What is left of triangles on one side: v old vertices, then those on the edges that were cut."""

    triangles: Tensor  # (t, 3)
    source: Tensor  # (t,) the triangle each came from
    ends: Tensor  # (w, 2) old vertices at the ends of the edge of each new one
    fraction: Tensor  # (w,) where on it


def clip(triangles: Tensor, height: Tensor) -> Clipped:
    """The part of triangles (t, 3) where height (v,), linear in each, is positive."""
    above = height[triangles] > 0
    count = above.sum(1)
    rows = torch.arange(len(triangles), device=triangles.device)
    whole, one, two = ((count == n).nonzero()[:, 0] for n in (3, 1, 2))
    # The corner alone on its side comes first, the others follow in their order round the triangle.
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
    return Clipped(torch.cat(parts), torch.cat([rows[whole], rows[one], rows[two], rows[two]]), ends, f / (f - g))


@dataclass(frozen=True)
class Boxed:
    """Triangles within a box: v old vertices, then those on its sides."""

    triangles: Tensor  # (t, 3)
    source: Tensor  # (t,) the triangle each came from
    vertices: Tensor  # (v + w, 3)
    held: Tensor  # (v + w, 3) bool, along which axes a new vertex lies on a side of the box


def clip_to_box(triangles: Tensor, vertices: Tensor, box: Tensor, margin: float = 0.0) -> Boxed:
    """The part of triangles (t, 3) over vertices (v, 3) within the box (2, 3), or up to margin beyond it."""
    held = torch.zeros_like(vertices, dtype=torch.bool)
    source = torch.arange(len(triangles), device=triangles.device)
    for axis in range(3):
        for side, sign in ((0, 1.0), (1, -1.0)):
            height = sign * (vertices[:, axis] - box[side, axis]) + margin
            if not bool((height[triangles] <= 0).any()):
                continue
            cut = clip(triangles, height)
            a, b = vertices[cut.ends].unbind(1)
            new, on = torch.lerp(a, b, cut.fraction[:, None]), held[cut.ends].all(1)
            new[:, axis], on[:, axis] = box[side, axis], True
            triangles, source = cut.triangles, source[cut.source]
            vertices, held = torch.cat([vertices, new]), torch.cat([held, on])
    return Boxed(triangles, source, vertices, held)


def arched_middle(p: Tensor, q: Tensor, n: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    """Middle (e, 3) of the arcs from p to q over surfaces with unit normals n at p and m at q; and their mean.

    The cubic with the tangents at its ends that d = q - p has when moved along the mean normal c into the planes
    there: (p + q) / 2 + (t_p - t_q) / 8, t_p = d - (d.n / c.n) c. Exact to fourth order on a smooth surface.
    """
    d, mean = q - p, unit(n + m)
    slope = dot(d, m) / dot(mean, m).clamp_min(0.2) - dot(d, n) / dot(mean, n).clamp_min(0.2)
    # Normals that have little to do with the edge, as beside a crease, say nothing about its arc.
    length = dot(d, d).sqrt()
    slope = torch.minimum(slope.abs(), 0.5 * length) * slope.sign()
    return 0.5 * (p + q) + (slope / 8)[:, None] * mean, mean
