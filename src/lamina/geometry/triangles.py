"""Points and triangles."""

from __future__ import annotations

import torch
from torch import Tensor

# A triangle's closest point is looked for on its edges alone if its Gram determinant, relative to that of a right
# angle, is not above this many roundings: the determinant of a sliver is nothing but rounding.
MIN_GRAM_ROUNDINGS = 64


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner products (...,) of vectors (..., 3); three fused products are faster than a reduction over 3."""
    return torch.addcmul(torch.addcmul(a[..., 0] * b[..., 0], a[..., 1], b[..., 1]), a[..., 2], b[..., 2])


def unit(v: Tensor) -> Tensor:
    """Rows of v (n, 3) scaled to length 1; zero rows stay zero."""
    return v / dot(v, v).clamp_min(torch.finfo(v.dtype).tiny).sqrt()[..., None]


def safe_sqrt(x: Tensor, floor: float | Tensor) -> Tensor:
    """The square root of x, 0 where x is negative. Where x <= floor, where its gradient would be huge, it has none."""
    return torch.where(x > floor, torch.where(x > floor, x, 1).sqrt(), x.detach().clamp_min(0).sqrt())


def triangle_normals(corners: Tensor) -> Tensor:
    """Unit normals (m, 3) of triangles (m, 3, 3); zero where a triangle has no area."""
    a, b, c = corners.unbind(1)
    return unit(torch.linalg.cross(b - a, c - a))


def triangle_areas(corners: Tensor) -> Tensor:
    """Areas (m,) of triangles (m, 3, 3)."""
    a, b, c = corners.unbind(1)
    n = torch.linalg.cross(b - a, c - a)
    return 0.5 * dot(n, n).sqrt()


def corner_angles(corners: Tensor) -> Tensor:
    """Angles (m, 3) at the corners of triangles (m, 3, 3)."""
    u, v = corners.roll(-1, 1) - corners, corners.roll(1, 1) - corners
    across = torch.linalg.cross(u, v)
    return torch.atan2(dot(across, across).sqrt(), dot(u, v))


Rows = tuple[Tensor, Tensor, Tensor]  # n vectors as three contiguous (n,) tensors x, y, z


def rows(v: Tensor) -> Rows:
    """The columns of v (n, 3), each contiguous: gathers and products on them are several times faster."""
    x, y, z = v.unbind(-1)
    return x.contiguous(), y.contiguous(), z.contiguous()


def take(v: Rows, index: Tensor) -> Rows:
    """The vectors with the given numbers."""
    return v[0].index_select(0, index), v[1].index_select(0, index), v[2].index_select(0, index)


def minus(a: Rows, b: Rows) -> Rows:
    """a - b."""
    return a[0] - b[0], a[1] - b[1], a[2] - b[2]


def along(a: Rows, t: Tensor, d: Rows) -> Rows:
    """a + t d."""
    return torch.addcmul(a[0], t, d[0]), torch.addcmul(a[1], t, d[1]), torch.addcmul(a[2], t, d[2])


def dot_rows(a: Rows | Tensor, b: Rows | Tensor) -> Tensor:
    """Inner products of vectors whose x, y, z come first: rows, or tensors (3, ...)."""
    return torch.addcmul(torch.addcmul(a[0] * b[0], a[1], b[1]), a[2], b[2])


def closest_on_segment(ax: Rows, edge: Rows) -> Tensor:
    """Parameter t in [0, 1] of the closest point a + t edge, given ax = x - a; an edge may have length 0."""
    return (dot_rows(ax, edge) / dot_rows(edge, edge).clamp_min(torch.finfo(ax[0].dtype).tiny)).clamp(0, 1)


def closest_on_triangle(x: Rows, a: Rows, b: Rows, c: Rows) -> Rows:
    """Closest point to x on the triangles abc, degenerate ones included.

    It is the foot of the perpendicular where that falls inside, otherwise the nearest point of the three edges.
    """
    ab, ac, ax = minus(b, a), minus(c, a), minus(x, a)
    aa, ab_ac, cc = dot_rows(ab, ab), dot_rows(ab, ac), dot_rows(ac, ac)
    d1, d2 = dot_rows(ax, ab), dot_rows(ax, ac)
    gram = aa * cc - ab_ac * ab_ac
    v = cc * d1 - ab_ac * d2
    w = aa * d2 - ab_ac * d1
    inside = (v >= 0) & (w >= 0) & (v + w <= gram) & (gram > MIN_GRAM_ROUNDINGS * torch.finfo(gram.dtype).eps * aa * cc)
    scale = 1 / torch.where(inside, gram, torch.ones_like(gram))
    # Position of the closest point as a + s ab + t ac.
    s, t = v * scale, w * scale
    outside = (~inside).nonzero()[:, 0]
    if len(outside):
        edge_s, edge_t = _closest_on_edges(*(take(r, outside) for r in (ax, ab, ac)))
        s[outside], t[outside] = edge_s, edge_t
    return along(along(a, s, ab), t, ac)


def _closest_on_edges(ax: Rows, ab: Rows, ac: Rows) -> tuple[Tensor, Tensor]:
    """(s, t) of the point a + s ab + t ac of the triangle's boundary closest to x."""
    zero = torch.zeros_like(ax[0])
    r = closest_on_segment(ax, ab)
    best_s, best_t = r, zero
    miss = along(ax, -r, ab)
    distance = dot_rows(miss, miss)
    r = closest_on_segment(ax, ac)
    bc = minus(ac, ab)
    q = closest_on_segment(minus(ax, ab), bc)
    for s, t in ((zero, r), (1 - q, q)):
        miss = along(along(ax, -s, ab), -t, ac)
        d = dot_rows(miss, miss)
        nearer = d < distance
        best_s, best_t = torch.where(nearer, s, best_s), torch.where(nearer, t, best_t)
        distance = torch.minimum(d, distance)
    return best_s, best_t


def vertex_areas(points: Tensor, faces: Tensor) -> Tensor:
    """A third of the area of its triangles for each vertex (m,)."""
    third = triangle_areas(points[faces]) / 3
    areas = torch.zeros_like(points[:, 0])
    return areas.index_add_(0, faces.reshape(-1), third.repeat_interleave(3))


def points_in(corners: Tensor, r: Tensor) -> Tensor:
    """Points (n, 3) of triangles (n, 3, 3), uniform by area if r (n, 2) is uniform in the unit square."""
    root, share = r[:, :1].sqrt(), r[:, 1:]
    a, b, c = corners.unbind(1)
    return (1 - root) * a + root * (1 - share) * b + root * share * c
