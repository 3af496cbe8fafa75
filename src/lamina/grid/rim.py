"""Quadrature along the rims and interface curves of a cut surface."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import torch
from scipy.spatial import KDTree
from torch import Tensor

from lamina.geometry.triangles import dot, unit
from lamina.grid.interface_curves import BoundaryEdges
from lamina.grid.quadrature import Frames
from lamina.linear.graph import components
from lamina.shapes import Float, Int, shaped

TWO_GAUSS_POINTS = 0.5 - 0.5 / math.sqrt(3), 0.5 + 0.5 / math.sqrt(3)  # on the unit interval
# Share of the way from a point on a rim to the opposite corner of its triangle, where its element is looked up. The
# point there is inside the triangle but for rounding, and so near the rim that no curve lies between.
STEP_INTO_TRIANGLE = 1e-6
# Ends of two rim edges are one point if their distance is at most this times the mean edge length: far more than
# rounding and far less than an edge.
MAX_GAP_BETWEEN_RIM_ENDS = 1e-4


class TriangleMap(Protocol):
    """Triangles, flat or curved, given by their maps from barycentric coordinates bary (n, 3).

    source (n,): the number of the triangle.
    """

    def position(self, source: Tensor, bary: Tensor) -> Tensor:
        """Positions (n, 3)."""
        ...

    def derivative(self, source: Tensor, bary: Tensor, direction: Tensor) -> Tensor:
        """Derivatives (n, 3) of the position along barycentric directions (n, 3), whose entries add up to zero."""
        ...

    def flat_position(self, source: Tensor, bary: Tensor) -> Tensor:
        """Positions (n, 3) on the flat triangles within cells that the triangles are lifted from.

        The map is linear, so that it takes barycentric directions to directions.
        """
        ...


@shaped
@dataclass(frozen=True)
class FlatTriangles:
    """Plane triangles."""

    corners: Float[Tensor, "t 3 3"]

    def position(self, source: Tensor, bary: Tensor) -> Tensor:
        return torch.einsum("ns,nsd->nd", bary, self.corners.index_select(0, source))

    def derivative(self, source: Tensor, bary: Tensor, direction: Tensor) -> Tensor:
        return torch.einsum("ns,nsd->nd", direction, self.corners.index_select(0, source))

    def flat_position(self, source: Tensor, bary: Tensor) -> Tensor:
        return self.position(source, bary)


@shaped
@dataclass(frozen=True)
class CurvedTriangles:
    """Triangles through six points: corners, then the middles of edges 01, 12, 20."""

    six_nodes: Float[Tensor, "t 6 3"]
    flat: Float[Tensor, "t 3 3"]  # corners of the flat triangles that these are lifted from

    def position(self, source: Tensor, bary: Tensor) -> Tensor:
        following = bary.roll(-1, 1)
        shares = torch.cat([bary * (2 * bary - 1), 4 * bary * following], 1)
        return torch.einsum("ns,nsd->nd", shares, self.six_nodes.index_select(0, source))

    def derivative(self, source: Tensor, bary: Tensor, direction: Tensor) -> Tensor:
        mixed = bary * direction.roll(-1, 1) + direction * bary.roll(-1, 1)
        shares = torch.cat([direction * (4 * bary - 1), 4 * mixed], 1)
        return torch.einsum("ns,nsd->nd", shares, self.six_nodes.index_select(0, source))

    def flat_position(self, source: Tensor, bary: Tensor) -> Tensor:
        return torch.einsum("ns,nsd->nd", bary, self.flat.index_select(0, source))


@shaped
@dataclass(frozen=True)
class Rim:
    """Quadrature points along rims and curves, two on each edge. A curve has an edge, and so points, on each side."""

    points: Float[Tensor, "r 3"]
    outward: Float[Tensor, "r 3"]  # unit tangents of the surface, normal to the edge, that lead off this side
    weights: Float[Tensor, " r"]
    element: Int[Tensor, " r"]
    local: Float[Tensor, "r 3"]  # coordinates in the element's cell
    curve: Int[Tensor, " r"]  # number of the curve; -1: a rim of the surface itself
    ends: Tensor  # (r / 2, 2, 3) of the edges
    flat_points: Float[Tensor, "r 3"]  # on the flat pieces that the points are lifted from
    frames: Frames  # directions outward and along the rim

    @classmethod
    def of(cls, boundary: BoundaryEdges, shape: TriangleMap, find: Callable[[Tensor, Tensor], Tensor]) -> Rim:
        """The points on edges of the triangles in `shape`. find(triangle, point) gives elements, -1 for none."""
        points, outward, weights, inside, ends, flat_points, frames = _points(boundary, shape)
        element = find(boundary.source.repeat_interleave(2), inside)
        edges = ((element >= 0) & (weights > 0)).reshape(-1, 2).all(1).nonzero()[:, 0]
        curve = boundary.curve.repeat_interleave(2)
        rim = cls(points, outward, weights, element, points, curve, ends, flat_points, frames)
        return rim.take(edges)

    def take(self, edges: Tensor) -> Rim:
        points = torch.stack([2 * edges, 2 * edges + 1], 1).reshape(-1)
        return Rim(
            self.points[points], self.outward[points], self.weights[points], self.element[points], self.local[points],
            self.curve[points], self.ends[edges], self.flat_points[points], self.frames.take(points),
        )  # fmt: skip

    def directed(self, outward: Tensor) -> Rim:
        """With other outward tangents (r, 3) on the surface's own rim.

        Each edge counts with its length at right angles to its tangent. This corrects the length of a ragged rim.
        """
        own = self.curve < 0
        along = unit(self.ends[:, 1] - self.ends[:, 0]).repeat_interleave(2, 0)
        across = (1 - dot(along, outward).square()).clamp_min(0).sqrt()
        weights = torch.where(own, self.weights * across, self.weights)
        return replace(self, outward=torch.where(own[:, None], outward, self.outward), weights=weights)

    @cached_property
    def loop(self) -> Tensor:
        """The loop (r,) of the surface's own rim that each point lies on, numbered from the longest; -1 on curves."""
        own = (self.curve[::2] < 0).nonzero()[:, 0]
        loop = torch.full_like(self.curve, -1)
        if not len(own):
            return loop
        ends = self.ends[own].reshape(-1, 3).cpu()
        size = float((ends[0::2] - ends[1::2]).norm(dim=1).mean())
        pairs = KDTree(ends.numpy()).query_pairs(MAX_GAP_BETWEEN_RIM_ENDS * size, output_type="ndarray")
        pairs = torch.from_numpy(pairs).long()
        number = components(len(own), *torch.div(pairs, 2, rounding_mode="floor").unbind(1)).to(loop.device)
        length = self.weights.reshape(-1, 2).sum(1)[own]
        total = length.new_zeros(int(number.max()) + 1).index_add_(0, number, length)
        rank = torch.argsort(torch.argsort(total, descending=True, stable=True))
        loop.reshape(-1, 2)[own] = rank[number][:, None]
        return loop


def _points(
    boundary: BoundaryEdges, shape: TriangleMap
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Frames]:
    """Points (r, 3), two on each edge, with unit tangents outward (r, 3) and weights (r,); points (r, 3) inside the
    part of the surface that each belongs to; ends (r / 2, 2, 3) of the edges; flat points (r, 3); and frames."""
    source = boundary.source.repeat_interleave(2)
    a, b, third = (boundary.ends[:, i].repeat_interleave(2, 0) for i in range(3))
    t = a.new_tensor(TWO_GAUSS_POINTS).repeat(len(boundary.source))[:, None]
    bary = torch.lerp(a, b, t)
    tangent = shape.derivative(source, bary, b - a)
    inward = shape.derivative(source, bary, third - bary)
    length = dot(tangent, tangent).sqrt()
    tangent = tangent / length.clamp_min(torch.finfo(length.dtype).tiny)[:, None]
    off = dot(inward, tangent)[:, None] * tangent - inward
    outward = unit(off)
    # The same two directions on the flat piece, as the same combinations of barycentric directions.
    tiny = torch.finfo(length.dtype).tiny
    along = (b - a) / length.clamp_min(tiny)[:, None]
    across = (dot(inward, tangent)[:, None] * along - (third - bary)) / dot(off, off).sqrt().clamp_min(tiny)[:, None]
    flat = torch.stack([shape.flat_position(source, across), shape.flat_position(source, along)], 1)
    frames = Frames(flat, torch.stack([outward, tangent], 1))
    # Edges along a curve are chords of it, so that only their third point certainly lies on this side.
    step = torch.where(boundary.curve.repeat_interleave(2) < 0, STEP_INTO_TRIANGLE, 1.0).to(t)[:, None]
    inside = shape.position(source, torch.lerp(bary, third, step))
    ends = torch.stack([shape.position(boundary.source, boundary.ends[:, i]) for i in (0, 1)], 1)
    flat_points = shape.flat_position(source, bary)
    return shape.position(source, bary), outward, length / 2, inside, ends, flat_points, frames
