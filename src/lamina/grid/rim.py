"""The rims and curves of a cut surface, for integrals along them."""

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
from lamina.grid.interface_curves import Sides
from lamina.grid.quadrature import Frames
from lamina.linear.graph import components

GAUSS = 0.5 - 0.5 / math.sqrt(3), 0.5 + 0.5 / math.sqrt(3)
INSIDE = 1e-6  # of the way from a rim into its triangle: on the same side of every curve
TOUCHING = 1e-4  # spacings between the ends of rim edges that are one


class Shape(Protocol):
    """Triangles by their map from barycentric coordinates."""

    def place(self, source: Tensor, bary: Tensor) -> Tensor: ...

    def along(self, source: Tensor, bary: Tensor, direction: Tensor) -> Tensor:
        """Derivative (n, 3) of the position along directions (n, 3), whose sums are zero."""
        ...

    def below(self, source: Tensor, bary: Tensor) -> Tensor:
        """Positions, or directions, on the flat triangles within cells that the triangles are lifted from."""
        ...


@dataclass(frozen=True)
class Flat:
    """Plane triangles."""

    corners: Tensor  # (t, 3, 3)

    def place(self, source: Tensor, bary: Tensor) -> Tensor:
        return torch.einsum("ns,nsd->nd", bary, self.corners.index_select(0, source))

    def along(self, source: Tensor, bary: Tensor, direction: Tensor) -> Tensor:
        return torch.einsum("ns,nsd->nd", direction, self.corners.index_select(0, source))

    def below(self, source: Tensor, bary: Tensor) -> Tensor:
        return self.place(source, bary)


@dataclass(frozen=True)
class Curved:
    """Triangles through six points: corners, then the middles of edges 01, 12, 20."""

    six: Tensor  # (t, 6, 3)
    flat: Tensor  # (t, 3, 3) corners of the flat triangles that these are lifted from

    def place(self, source: Tensor, bary: Tensor) -> Tensor:
        following = bary.roll(-1, 1)
        shares = torch.cat([bary * (2 * bary - 1), 4 * bary * following], 1)
        return torch.einsum("ns,nsd->nd", shares, self.six.index_select(0, source))

    def along(self, source: Tensor, bary: Tensor, direction: Tensor) -> Tensor:
        mixed = bary * direction.roll(-1, 1) + direction * bary.roll(-1, 1)
        shares = torch.cat([direction * (4 * bary - 1), 4 * mixed], 1)
        return torch.einsum("ns,nsd->nd", shares, self.six.index_select(0, source))

    def below(self, source: Tensor, bary: Tensor) -> Tensor:
        return torch.einsum("ns,nsd->nd", bary, self.flat.index_select(0, source))


@dataclass(frozen=True)
class Rim:
    """Points along rims and curves, two to an edge; those of a curve on each of its sides."""

    points: Tensor  # (r, 3)
    outward: Tensor  # (r, 3) unit tangents of the surface that lead off it, or off that side of the curve
    weights: Tensor  # (r,)
    element: Tensor  # (r,) int64
    local: Tensor  # (r, 3) coordinates in the element's cell
    curve: Tensor  # (r,) int64, number of the curve; -1: a rim of the surface itself
    ends: Tensor  # (r / 2, 2, 3) of the edges
    below: Tensor  # (r, 3) the points on flat pieces that the points are lifted from
    frames: Frames  # outward and along the rim, at the points and below

    @classmethod
    def of(cls, sides: Sides, shape: Shape, find: Callable[[Tensor, Tensor], Tensor]) -> Rim:
        """The rim along sides of the triangles in `shape`; find(triangle, place) gives the element."""
        points, outward, weights, inside, ends, below, frames = _points(sides, shape)
        element = find(sides.source.repeat_interleave(2), inside)
        edges = ((element >= 0) & (weights > 0)).reshape(-1, 2).all(1).nonzero()[:, 0]
        rim = cls(points, outward, weights, element, points, sides.curve.repeat_interleave(2), ends, below, frames)
        return rim.take(edges)

    def take(self, edges: Tensor) -> Rim:
        points = torch.stack([2 * edges, 2 * edges + 1], 1).reshape(-1)
        return Rim(
            self.points[points], self.outward[points], self.weights[points], self.element[points], self.local[points],
            self.curve[points], self.ends[edges], self.below[points], self.frames.take(points),
        )  # fmt: skip

    def directed(self, outward: Tensor) -> Rim:
        """With other tangents (r, 3), and as long as it is across them, which a ragged line is not."""
        own = self.curve < 0
        along = unit(self.ends[:, 1] - self.ends[:, 0]).repeat_interleave(2, 0)
        across = (1 - dot(along, outward).square()).clamp_min(0).sqrt()
        weights = torch.where(own, self.weights * across, self.weights)
        return replace(self, outward=torch.where(own[:, None], outward, self.outward), weights=weights)

    @cached_property
    def loop(self) -> Tensor:
        """Loop (r,) that each point of the surface's own rim lies on, the longest being 0; -1 on curves."""
        own = (self.curve[::2] < 0).nonzero()[:, 0]
        loop = torch.full_like(self.curve, -1)
        if not len(own):
            return loop
        ends = self.ends[own].reshape(-1, 3).cpu()
        size = float((ends[0::2] - ends[1::2]).norm(dim=1).mean())
        pairs = torch.from_numpy(KDTree(ends.numpy()).query_pairs(TOUCHING * size, output_type="ndarray")).long()
        number = components(len(own), *torch.div(pairs, 2, rounding_mode="floor").unbind(1)).to(loop.device)
        length = self.weights.reshape(-1, 2).sum(1)[own]
        total = length.new_zeros(int(number.max()) + 1).index_add_(0, number, length)
        rank = torch.argsort(torch.argsort(total, descending=True, stable=True))
        loop.reshape(-1, 2)[own] = rank[number][:, None]
        return loop


def _points(sides: Sides, shape: Shape) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Frames]:
    """Points (r, 3), unit tangents outward (r, 3) and weights (r,), two to a side; places (r, 3) inside the part of the
    surface that each belongs to; ends (r / 2, 2, 3); the points below, and the frames of both."""
    source = sides.source.repeat_interleave(2)
    a, b, third = (sides.ends[:, i].repeat_interleave(2, 0) for i in range(3))
    t = a.new_tensor(GAUSS).repeat(len(sides.source))[:, None]
    bary = torch.lerp(a, b, t)
    tangent = shape.along(source, bary, b - a)
    inward = shape.along(source, bary, third - bary)
    length = dot(tangent, tangent).sqrt()
    tangent = tangent / length.clamp_min(torch.finfo(length.dtype).tiny)[:, None]
    off = dot(inward, tangent)[:, None] * tangent - inward
    outward = unit(off)
    # The same two directions on the flat piece, by the same combinations of barycentric steps.
    tiny = torch.finfo(length.dtype).tiny
    along = (b - a) / length.clamp_min(tiny)[:, None]
    across = (dot(inward, tangent)[:, None] * along - (third - bary)) / dot(off, off).sqrt().clamp_min(tiny)[:, None]
    flat = torch.stack([shape.below(source, across), shape.below(source, along)], 1)
    frames = Frames(flat, torch.stack([outward, tangent], 1))
    # A chord is not the curve: only the third point surely lies on this side of a curve.
    step = torch.where(sides.curve.repeat_interleave(2) < 0, INSIDE, 1.0).to(t)[:, None]
    inside = shape.place(source, torch.lerp(bary, third, step))
    ends = torch.stack([shape.place(sides.source, sides.ends[:, i]) for i in (0, 1)], 1)
    return shape.place(source, bary), outward, length / 2, inside, ends, shape.below(source, bary), frames
