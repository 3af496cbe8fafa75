"""Quadrature on a surface: points and weights for integrals, areas and means of fields."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations

import torch
from torch import Tensor

from lamina.geometry.frames import tangent_basis
from lamina.geometry.triangles import Rows, rows, safe_sqrt, triangle_areas, unit
from lamina.linear.graph import first_of_each
from lamina.shapes import Float, shaped


def _rule(threes: tuple[tuple[float, float], ...], six: tuple[float, float, float, float] | None = None):
    """Barycentric points and weights of a symmetric rule.

    threes: pairs (a, weight), each for the three permutations of (1 - 2a, a, a). six: three coordinates and a weight,
    for all six permutations. The points nearest to the corners 0, 1, 2 come first.
    """
    points, weights = [], []
    for a, weight in sorted(threes):
        points += [(1 - 2 * a, a, a), (a, 1 - 2 * a, a), (a, a, 1 - 2 * a)]
        weights += 3 * [weight]
    if six is not None:
        points += list(permutations(six[:3]))
        weights += 6 * [six[3]]
    return tuple(points), tuple(weights)


# Rules on the triangle of area 1 by their number of points, all of which are interior. They are exact to degree 2
# (Strang and Fix 1973), and to degrees 4 and 6 (Dunavant 1985).
TRIANGLE_RULES = {
    3: _rule(((1 / 6, 1 / 3),)),
    6: _rule(((0.445948490915965, 0.223381589678011), (0.091576213509771, 0.109951743655322))),
    12: _rule(
        ((0.249286745170910, 0.116786275726379), (0.063089014491502, 0.050844906370207)),
        (0.053145049844817, 0.310352451033784, 0.636502499121399, 0.082851075618374),
    ),
}


@shaped
@dataclass(frozen=True)
class Quadrature:
    """Points with unit normals and weights: the integral of f is sum_q w_q f(x_q)."""

    points: Float[Tensor, "q 3"]
    normals: Float[Tensor, "q 3"]
    weights: Float[Tensor, " q"]

    def take(self, which: Tensor) -> Quadrature:
        return Quadrature(self.points[which], self.normals[which], self.weights[which])

    def detach(self) -> Quadrature:
        return Quadrature(self.points.detach(), self.normals.detach(), self.weights.detach())

    @property
    def area(self) -> float:
        return float(self.weights.detach().sum())

    def integral(self, f: Callable[[Tensor], Tensor]) -> float:
        return float((self.weights * f(self.points)).sum().detach())

    def mean(self, f: Callable[[Tensor], Tensor]) -> float:
        return self.integral(f) / self.area


def on_polygons(corners: Tensor, polygon: Tensor, normals: Tensor) -> Quadrature:
    """Three points on each of the plane polygons with unit normals (n, 3), exact for quadratics.

    A polygon is the union of the triangles (m, 3, 3) that carry its number (m,). The points are c + sqrt(2) L d_k with
    equal weights, where c is the centroid of the polygon, L L^T its covariance, and d_k are three unit vectors at equal
    angles. They have the moments of the polygon up to the second.
    """
    base = corners[first_of_each(polygon, len(normals)), 0]
    # Opposite normals must give the same points, but would give mirrored frames. So all normals are turned to one side.
    largest = normals.gather(1, normals.abs().argmax(1, keepdim=True))
    across, along = _polygon_axes(torch.where(largest < 0, -normals, normals))
    arms = rows(corners - base[polygon, None])
    x, y = (_dot_columns(arms, rows(t[polygon])) for t in (across, along))  # (m, 3): in the plane, from the base
    # Over a triangle, the mean of x is sx / 3 and that of x y is (sum of x y + sx sy) / 12, sx the sum of x.
    sx, sy = x[:, 0] + x[:, 1] + x[:, 2], y[:, 0] + y[:, 1] + y[:, 2]
    area = triangle_areas(corners)
    products = [(a[:, 0] * b[:, 0] + a[:, 1] * b[:, 1] + a[:, 2] * b[:, 2]) for a, b in ((x, x), (x, y), (y, y))]
    means = [sx / 3, sy / 3, *((p + q) / 12 for p, q in zip(products, (sx * sx, sx * sy, sy * sy), strict=True))]
    moments = torch.stack([area, *(area * m for m in means)], 1)
    total, *means = moments.new_zeros(len(normals), 6).index_add_(0, polygon, moments).unbind(1)
    cx, cy, xx, xy, yy = (m / total for m in means)
    tiny = torch.finfo(area.dtype).tiny
    a = (xx - cx * cx).clamp_min(tiny).sqrt()
    b = (xy - cx * cy) / a
    c = safe_sqrt(yy - cy * cy - b * b, 1e-10 * (a * a).detach())
    points = []
    for k in range(3):
        cosine, sine = math.sqrt(2) * math.cos(2 * math.pi * k / 3), math.sqrt(2) * math.sin(2 * math.pi * k / 3)
        points.append(base + (cx + a * cosine)[:, None] * across + (cy + b * cosine + c * sine)[:, None] * along)
    return Quadrature(
        torch.stack(points, 1).reshape(-1, 3), normals.repeat_interleave(3, 0), (total / 3).repeat_interleave(3)
    )


def on_triangles(corners: Tensor, normals: Tensor, count: int) -> Quadrature:
    """`count` points on each of the plane triangles (t, 3, 3) with unit normals (t, 3)."""
    points, weights = (corners.new_tensor(part) for part in TRIANGLE_RULES[count])
    area = triangle_areas(corners)[:, None] * weights
    return Quadrature((points @ corners).reshape(-1, 3), normals.repeat_interleave(len(weights), 0), area.reshape(-1))


def _dot_columns(a: Rows, b: Rows) -> Tensor:
    """(m, 3) from vectors a, (m, 3) in each component, and b, (m,) in each."""
    return a[0] * b[0][:, None] + a[1] * b[1][:, None] + a[2] * b[2][:, None]


def _polygon_axes(normals: Tensor) -> tuple[Tensor, Tensor]:
    """Two axes (n, 3) in the plane of each polygon, along which its quadrature points are placed.

    The points turn with the axes, and solutions change a little with the points. tangent_basis jumps where the z
    component of a normal changes sign, so that rounding would turn the points on all faces parallel to the z axis.
    These axes jump only where the two smallest components are equal in size.
    """
    least = normals.abs().argmin(1, keepdim=True)
    axis = torch.zeros_like(normals).scatter_(1, least, 1.0)
    across = unit(torch.linalg.cross(normals, axis))
    return across, torch.linalg.cross(normals, across)


@shaped
@dataclass(frozen=True)
class Frames:
    """Two directions at each quadrature point: orthonormal tangents of the surface, and the directions on the flat
    piece within the cell that these are lifted from.

    The components of the gradient on the surface are the derivatives of the function on the cell along `flat`.
    """

    flat: Float[Tensor, "q 2 3"]
    lifted: Float[Tensor, "q 2 3"]

    @classmethod
    def orthonormal(cls, normals: Tensor) -> Frames:
        """The frames of pieces that lie on the surface themselves, so that both pairs of directions are the same."""
        frame = tangent_basis(normals)
        return cls(frame, frame)

    def take(self, which: Tensor) -> Frames:
        return Frames(self.flat[which], self.lifted[which])

    def flat_direction(self, direction: Tensor) -> Tensor:
        """The directions (q, 3) on the flat pieces that tangents (q, 3) of the surface are lifted from."""
        shares = torch.einsum("qkd,qd->qk", self.lifted, direction)
        return torch.einsum("qk,qkd->qd", shares, self.flat)
