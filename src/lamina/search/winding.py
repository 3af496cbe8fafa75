"""Generalised winding numbers of triangle soups and oriented point clouds.

The winding number of a surface S with normals n about a point q is

    w(q) = 1 / (4 pi)  int_S  n . (y - q) / |y - q|^3  dA(y):

1 inside and 0 outside a closed surface whose normals look outwards, and a harmonic function off S that passes smoothly
through holes where there are any. So w > 1/2 is an inside for surfaces that are nearly closed (Jacobson, Kavan
and Sorkine-Hornung 2013, "Robust inside-outside segmentation using generalized winding numbers"). A far group of
triangles or points is replaced by the first two terms of its expansion about its centroid (Barill, Dickson, Schmidt,
Levin and Jacobson 2018, "Fast winding numbers for soups and clouds"); a near triangle counts with its solid angle.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lamina.geometry.triangles import Rows, dot, dot_rows, minus, rows, take
from lamina.linear.graph import expand
from lamina.search.nearest import morton_order
from lamina.shapes import Float, Int, shaped

GROUPS_PER_GROUP = 4  # children of a group
PRIMITIVES_PER_GROUP = 8  # in a group of the lowest level
QUERIES_PER_BLOCK = 32  # queries that go through the tree together
# A group is replaced by its expansion if its distance from the queries is more than this many of its radii. Half as
# many are faster and less accurate; Barill et al. use 2.
MIN_FAR_RADII = 2.0
MAX_TERMS = {"cpu": 2**18, "cuda": 2**23}  # pairs of a query and a group evaluated at a time


@shaped
@dataclass(frozen=True)
class Groups:
    """One level of the tree: n groups, and the moments of their primitives.

    With area vectors a_j at y_j and the middle c: a = sum_j a_j, and M = sum_j (y_j - c) a_j', of which only the
    symmetric part counts.
    """

    centres: Float[Tensor, "n 3"]  # c
    radii: Float[Tensor, " n"]  # of a ball about c around the primitives
    vectors: Float[Tensor, "n 3"]  # a
    moments: Float[Tensor, "n 6"]  # M_xx, M_yy, M_zz, and M_xy + M_yx, M_yz + M_zy, M_zx + M_xz
    first: Int[Tensor, " n"]  # first child in the level below, or first primitive
    counts: Int[Tensor, " n"]  # how many


class WindingTree:
    """A surface prepared for winding numbers: triangles, or points with normals and areas."""

    def __init__(self, centres: Tensor, vectors: Tensor, weights: Tensor, corners: Tensor | None) -> None:
        """centres (m, 3), area vectors (m, 3) and areas (m,); corners (m, 3, 3) if they are of triangles."""
        order = morton_order(centres, torch.zeros(len(centres), dtype=torch.int64, device=centres.device))
        centres, vectors, weights = centres[order], vectors[order], weights[order]
        self.points, self.vectors = rows(centres), rows(vectors)
        self.corners = None if corners is None else [rows(c) for c in corners[order].unbind(1)]
        reach = torch.zeros_like(weights)
        if corners is not None:
            offset = corners[order] - centres[:, None]
            reach = dot(offset, offset).amax(1).sqrt()
        moments = torch.zeros(len(centres), 6).to(centres)
        level = _grouped(centres, reach, vectors, moments, weights, PRIMITIVES_PER_GROUP)
        self.levels = [level[0]]
        while len(level[1]) > 1:
            groups = level[0]
            level = _grouped(groups.centres, groups.radii, groups.vectors, groups.moments, level[1], GROUPS_PER_GROUP)
            self.levels.append(level[0])

    @classmethod
    def of_triangles(cls, corners: Tensor) -> WindingTree:
        """Of triangles (m, 3, 3), counter-clockwise as seen from outside."""
        a, b, c = corners.unbind(1)
        vectors = 0.5 * torch.linalg.cross(b - a, c - a)
        return cls(corners.mean(1), vectors, dot(vectors, vectors).sqrt(), corners)

    @classmethod
    def of_points(cls, points: Tensor, normals: Tensor, areas: Tensor) -> WindingTree:
        """Of points (m, 3) with unit normals (m, 3) and their shares (m,) of the area.

        A sum over points stands for the integral: good at a few spacings from the surface, not nearer.
        """
        return cls(points, areas[:, None] * normals, areas, None)

    def __call__(self, x: Tensor) -> Tensor:
        """Winding numbers (n,) about the points x (n, 3)."""
        if len(x) == 0:
            return x.new_zeros(0)
        order = morton_order(x, torch.zeros(len(x), dtype=torch.int64, device=x.device))
        fill = order[-1:].expand(-len(x) % QUERIES_PER_BLOCK)
        blocks = x[torch.cat([order, fill])].reshape(-1, QUERIES_PER_BLOCK, 3)
        size = max(1, MAX_TERMS[x.device.type] // (4 * QUERIES_PER_BLOCK))
        total = torch.cat([self._descend(part) for part in blocks.split(size)]).reshape(-1)[: len(x)]
        return torch.empty_like(total).index_copy_(0, order, total / (4 * math.pi))

    def _descend(self, x: Tensor) -> Tensor:
        """Solid angles (b, q) of the surface from blocks of queries x (b, q, 3)."""
        centre = 0.5 * (x.amin(1) + x.amax(1))
        offset = x - centre[:, None]
        radius = dot(offset, offset).amax(1).sqrt()
        queries, total = rows(x), torch.zeros_like(x[..., 0])
        block = torch.arange(len(x), device=x.device)
        group = torch.zeros_like(block)
        for groups in reversed(self.levels):
            gap = centre[block] - groups.centres[group]
            far = dot(gap, gap).sqrt() - radius[block] > MIN_FAR_RADII * groups.radii[group]
            _add(total, queries, block[far], group[far], lambda q, t, groups=groups: _expansion(q, groups, t))
            block, group = block[~far], group[~far]
            group, source = expand(groups.first[group], groups.counts[group])
            block = block[source]
        _add(total, queries, block, group, self._primitive)
        return total

    def _primitive(self, x: Rows, which: Tensor) -> Tensor:
        """Solid angles (p, q) of single primitives `which` (p,) from x, three (p, q).

        For a triangle, with a, b, c its corners seen from the query (van Oosterom and Strackee 1983),
        tan(angle / 2) = det(a, b, c) / (|a||b||c| + (a.b)|c| + (b.c)|a| + (c.a)|b|).
        """
        if self.corners is None:
            r = minus(_column(take(self.points, which)), x)
            square = dot_rows(r, r).clamp_min(torch.finfo(x[0].dtype).tiny ** 0.5)
            return dot_rows(r, _column(take(self.vectors, which))) / (square * square.sqrt())
        a, b, c = (minus(_column(take(corner, which)), x) for corner in self.corners)
        la, lb, lc = (dot_rows(v, v).sqrt() for v in (a, b, c))
        cross = (a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0])
        below = la * lb * lc + dot_rows(a, b) * lc + dot_rows(b, c) * la + dot_rows(c, a) * lb
        return 2 * torch.atan2(dot_rows(cross, c), below)


def _add(total: Tensor, x: Rows, block: Tensor, which: Tensor, term) -> None:
    """Add term(queries of block[i], which[i]) to the rows block[i] of total, a batch at a time."""
    size = max(1, MAX_TERMS[total.device.type] // QUERIES_PER_BLOCK)
    for b, t in zip(block.split(size), which.split(size), strict=True):
        total.index_add_(0, b, term(take(x, b), t))


def _expansion(x: Rows, groups: Groups, which: Tensor) -> Tensor:
    """a.r / |r|^3 + tr M / |r|^3 - 3 r'M r / |r|^5 with r = c - x, three (p, q), for groups which (p,)."""
    r = minus(_column(rows(groups.centres[which])), x)
    a = _column(rows(groups.vectors[which]))
    xx, yy, zz, xy, yz, zx = (m[:, None] for m in groups.moments[which].unbind(1))
    inverse = 1 / dot_rows(r, r)
    bent = r[0] * (xx * r[0] + xy * r[1]) + r[1] * (yy * r[1] + yz * r[2]) + r[2] * (zz * r[2] + zx * r[0])
    return (dot_rows(a, r) + (xx + yy + zz) - 3 * bent * inverse) * inverse * inverse.sqrt()


def _column(v: Rows) -> Rows:
    return v[0][:, None], v[1][:, None], v[2][:, None]


def _grouped(
    centres: Tensor, radii: Tensor, vectors: Tensor, moments: Tensor, weights: Tensor, size: int
) -> tuple[Groups, Tensor]:
    """Groups of `size` neighbours in the order of the level below, about their weighted means; their weights (n,)."""
    count = -(-len(centres) // size)
    parent = torch.arange(len(centres), device=centres.device) // size

    def summed(v: Tensor) -> Tensor:
        return v.new_zeros(count, *v.shape[1:]).index_add_(0, parent, v)

    weights = weights.clamp_min(torch.finfo(weights.dtype).tiny)
    total = summed(weights)
    middle = summed(weights[:, None] * centres) / total[:, None]
    offset = centres - middle[parent]
    radius = middle.new_zeros(count).scatter_reduce_(0, parent, dot(offset, offset).sqrt() + radii, "amax")
    x, y, z = offset.unbind(1)
    a, b, c = vectors.unbind(1)
    shift = torch.stack([x * a, y * b, z * c, x * b + y * a, y * c + z * b, z * a + x * c], 1)
    first = torch.arange(count, device=centres.device) * size
    counts = (len(centres) - first).clamp(max=size)
    return Groups(middle, radius, summed(vectors), summed(moments + shift), first, counts), total
