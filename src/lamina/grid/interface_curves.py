"""Curves along which a cut surface is split, or where it ends: each side of a curve has unknowns of its own.

The pieces of a cut surface are triangles, flat or curved, given by a map from barycentric coordinates. A curve is the
zero set of a function on them. A triangle that a curve crosses is split in barycentric coordinates, along the chord
between the points where the curve crosses its edges. Every part gets a label that says on which side of each curve it
lies. A polyline has sides only near itself. Cells farther away belong to both, so that an open polyline is a slit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from lamina.geometry.lattice import Lattice, cell_keys
from lamina.geometry.triangles import dot, unit
from lamina.shapes import Float, Int, shaped

Function = Callable[[Tensor], Tensor]
PositionMap = Callable[[Tensor, Tensor], Tensor]  # triangles (n,), barycentric coordinates (n, 3) -> positions (n, 3)
# The side of a curve that a point lies on. Points far from a polyline are on both sides.
BOTH_SIDES, ABOVE_CURVE, BELOW_CURVE = 0, 1, 2
# Steps of false position to the point where a curve crosses an edge. Within a cell the height is nearly linear, so that
# the error after four steps is small against that of the chord. Chosen by trial.
FALSE_POSITION_STEPS = 4
# A corner lies on a curve if its height is at most this times the largest height in its triangle. It is far more than
# rounding; with a larger value corners near the curve would be moved onto it noticeably.
MAX_RELATIVE_HEIGHT_ON_CURVE = 1e-9
HEIGHTS_PER_BATCH = 2**22  # batch size: pairs of a point and a segment compared at a time
CELL_AND_NEIGHBOURS = torch.tensor([[i, j, k] for i in (-1, 0, 1) for j in (-1, 0, 1) for k in (-1, 0, 1)])


@dataclass(frozen=True)
class LevelCurve:
    """The curve on a surface where a function of space vanishes. cut_off: the side below it is removed."""

    function: Function
    cut_off: bool = False

    def height(self, x: Tensor) -> Tensor:
        return self.function(x)

    def near(self, x: Tensor, cell: Tensor, normal: Tensor, lattice: Lattice) -> Tensor:
        """Whether points x (n, 3) in cells (n, 3), with normals (n, 3), lie on one side only."""
        return torch.ones_like(cell[:, 0], dtype=torch.bool)


@shaped
@dataclass(frozen=True)
class PolylineCurve:
    """A polyline on a surface, closed if its last point is its first."""

    points: Float[Tensor, "k 3"]
    normals: Float[Tensor, "k 3"]  # of the surface
    cut_off = False

    @property
    def closed(self) -> bool:
        return len(self.points) > 3 and bool((self.points[0] == self.points[-1]).all())

    @cached_property
    def _across(self) -> tuple[Tensor, Tensor]:
        """Unit tangents at right angles to the segments (k - 1, 3), and their means at the points (k, 3)."""
        along = unit(self.points[1:] - self.points[:-1])
        across = unit(torch.linalg.cross(along, unit(self.normals[1:] + self.normals[:-1])))
        first, last = (across[-1], across[0]) if self.closed else (across[0], across[-1])
        both = torch.cat([first[None], across]) + torch.cat([across, last[None]])
        return across, unit(both)

    def nearest(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The segment (n,) nearest to x (n, 3), and the fraction (n,) of its length where the nearest point lies."""
        a, d = self.points[:-1], self.points[1:] - self.points[:-1]
        length = dot(d, d)
        segment, fraction = [], []
        for part in x.split(max(1, HEIGHTS_PER_BATCH // len(a))):
            offset = part[:, None] - a
            t = (dot(offset, d) / length).clamp(0, 1)
            away = offset - t[..., None] * d
            which = dot(away, away).argmin(1)
            segment.append(which)
            fraction.append(t.gather(1, which[:, None])[:, 0])
        return torch.cat(segment), torch.cat(fraction)

    def height(self, x: Tensor) -> Tensor:
        segment, t = self.nearest(x)
        flat, corner = self._across
        across = torch.where(
            (t == 0)[:, None], corner[segment], torch.where((t == 1)[:, None], corner[segment + 1], flat[segment])
        )
        foot = torch.lerp(self.points[segment], self.points[segment + 1], t[:, None])
        return dot(x - foot, across)

    def near(self, x: Tensor, cell: Tensor, normal: Tensor, lattice: Lattice) -> Tensor:
        """Whether points lie in a cell that the polyline passes through or in one around it. Points beyond its ends do
        not count, nor do points on a sheet that faces the other way."""
        around = CELL_AND_NEIGHBOURS.to(cell.device)
        passed = torch.unique((self._cells(lattice)[:, None] + around).reshape(-1, 3), dim=0)
        low = passed.amin(0) - 1
        shape = passed.amax(0) + 2 - low
        inside = ((cell >= low) & (cell < low + shape)).all(1)
        key = torch.sort(cell_keys((passed - low).unbind(1), shape)).values
        own = torch.where(inside, cell_keys((cell - low).unbind(1), shape), -1)
        found = key[torch.searchsorted(key, own).clamp_(max=len(key) - 1)] == own
        rows = found.nonzero()[:, 0]
        if not len(rows):
            return found
        centre = lattice.position(cell[rows]) + 0.5 * lattice.spacing
        segment, t = self.nearest(centre)
        if not self.closed:
            beyond = ((segment == 0) & (t == 0)) | ((segment == len(self.points) - 2) & (t == 1))
            found[rows[beyond]] = False
        facing = dot(normal[rows], self.normals[segment]) > 0
        found[rows[~facing]] = False
        return found

    def _cells(self, lattice: Lattice) -> Tensor:
        """The cells (c, 3) int64 that the polyline passes through."""
        parts = []
        for a, b in pairwise(self.points):
            count = 2 + int(4 * float((b - a).norm()) / lattice.spacing)
            t = torch.linspace(0, 1, count, dtype=a.dtype, device=a.device)[:, None]
            parts.append(torch.floor((torch.lerp(a, b, t) - lattice.origin) / lattice.spacing).long())
        return torch.unique(torch.cat(parts), dim=0)


InterfaceCurve = LevelCurve | PolylineCurve


@shaped
@dataclass(frozen=True)
class SubTriangles:
    """Triangles that are parts of the triangles of a cut surface."""

    source: Int[Tensor, " s"]  # the triangle that each is a part of
    corners: Float[Tensor, "s 3 3"]  # barycentric coordinates in that triangle
    label: Int[Tensor, " s"]  # its side of every curve

    @classmethod
    def whole(cls, count: int, like: Tensor) -> SubTriangles:
        every = torch.arange(count, device=like.device)
        corners = torch.eye(3, dtype=like.dtype, device=like.device).expand(count, 3, 3)
        return cls(every, corners, torch.zeros_like(every))

    def take(self, rows: Tensor) -> SubTriangles:
        return SubTriangles(self.source[rows], self.corners[rows], self.label[rows])

    def __add__(self, other: SubTriangles) -> SubTriangles:
        return SubTriangles(
            *(torch.cat([a, b]) for a, b in zip(vars(self).values(), vars(other).values(), strict=True))
        )


@shaped
@dataclass(frozen=True)
class BoundaryEdges:
    """Edges of parts of the surface: along its rim, or along one side of a curve."""

    source: Int[Tensor, " r"]  # the triangle
    ends: Float[Tensor, "r 3 3"]  # barycentric coordinates of both ends, and of a point inside the part
    curve: Int[Tensor, " r"]  # number of the curve; -1: a rim of the surface itself

    @classmethod
    def join(cls, parts: Sequence[BoundaryEdges], like: Tensor) -> BoundaryEdges:
        if not parts:
            none = torch.zeros(0, dtype=torch.int64, device=like.device)
            return cls(none, like.new_zeros(0, 3, 3), none)
        return cls(*(torch.cat(columns) for columns in zip(*(vars(p).values() for p in parts), strict=True)))


@dataclass(frozen=True)
class InterfaceCurves:
    """All curves of a surface."""

    each: tuple[InterfaceCurve, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.each)

    @property
    def labels(self) -> int:
        """Number of labels: 3^c for c curves, because each has the sides BOTH_SIDES, ABOVE_CURVE and BELOW_CURVE."""
        return 3 ** len(self.each)

    def side_of(self, label: Tensor, curve: int) -> Tensor:
        return torch.div(label, 3**curve, rounding_mode="floor") % 3

    def label(self, x: Tensor, cell: Tensor, normal: Tensor, lattice: Lattice) -> Tensor:
        """Label (n,) of points x (n, 3) on the surface, in cells (n, 3) and with normals (n, 3)."""
        label = torch.zeros_like(cell[:, 0])
        for number, curve in enumerate(self.each):
            if curve.cut_off:
                label += 3**number * ABOVE_CURVE
                continue
            near = curve.near(x, cell, normal, lattice).nonzero()[:, 0]
            above = curve.height(x[near]) >= 0
            label[near] += 3**number * torch.where(above, ABOVE_CURVE, BELOW_CURVE)
        return label

    def compatible(self, a: Tensor, b: Tensor) -> Tensor:
        """Whether no curve separates two points with labels a and b, in one cell or in neighbouring cells."""
        together = torch.ones(torch.broadcast_shapes(a.shape, b.shape), dtype=torch.bool, device=a.device)
        for number in range(len(self.each)):
            p, q = self.side_of(a, number), self.side_of(b, number)
            together &= (p == q) | (p == BOTH_SIDES) | (q == BOTH_SIDES)
        return together

    def pairs(self) -> list[tuple[int, int]]:
        """All ordered pairs of compatible labels."""
        every = torch.arange(self.labels)
        a, b = self.compatible(every[:, None], every[None]).nonzero().unbind(1)
        return list(zip(a.tolist(), b.tolist(), strict=True))

    def split(
        self, position: PositionMap, cell: Tensor, normal: Tensor, lattice: Lattice
    ) -> tuple[SubTriangles, BoundaryEdges]:
        """The parts of triangles with cells (t, 3) and normals (t, 3), and their edges along the curves.

        Where the surface is cut off there are neither parts nor edges.
        """
        parts, boundary = SubTriangles.whole(len(cell), normal), []
        for number, curve in enumerate(self.each):
            middle = position(parts.source, parts.corners.mean(1))
            near = curve.near(middle, cell[parts.source], normal[parts.source], lattice)
            rows = parts.take(near)
            # Triangles that the curve crosses are quartered first, because shorter chords follow it more closely.
            crossed = _crossed(_heights(rows, curve, position))
            rows = rows.take(~crossed) + _quartered(rows.take(crossed))
            height = _heights(rows, curve, position)
            crossed = _crossed(height)
            whole, split = rows.take(~crossed), rows.take(crossed)
            along, along_above = _along(whole, height[~crossed], number)
            whole = _labelled(whole, height[~crossed].sum(1) >= 0, number)
            split, edges, above = _split(split, height[crossed], curve, position, number)
            done = whole + split
            edges, above = BoundaryEdges.join([edges, along], normal), torch.cat([above, along_above])
            if curve.cut_off:
                done = done.take(self.side_of(done.label, number) == ABOVE_CURVE)
                edges = BoundaryEdges(edges.source[above], edges.ends[above], torch.full_like(edges.curve[above], -1))
                boundary = [_trimmed(before, curve, position) for before in boundary]
            parts = parts.take(~near) + done
            boundary.append(edges)
        return parts, BoundaryEdges.join(boundary, normal)

    def trimmed(self, edges: BoundaryEdges, position: PositionMap) -> BoundaryEdges:
        """The edges without what the curves cut off."""
        for curve in self.each:
            if curve.cut_off:
                edges = _trimmed(edges, curve, position)
        return edges


def _trimmed(edges: BoundaryEdges, curve: InterfaceCurve, position: PositionMap) -> BoundaryEdges:
    """The edges as far as they lie above a curve."""
    a, b = edges.ends[:, 0], edges.ends[:, 1]
    fa, fb = (curve.height(position(edges.source, end)) for end in (a, b))
    rows = ((fa > 0) | (fb > 0)).nonzero()[:, 0]
    cut = ((fa < 0) | (fb < 0))[rows].nonzero()[:, 0]
    ends = edges.ends[rows].clone()
    if len(cut):
        at = rows[cut]
        root = _root(edges.source[at], a[at], b[at], fa[at], fb[at], curve, position)
        below = (fb[at] < 0).long()  # the end that is cut off
        ends[cut, below] = root
    return BoundaryEdges(edges.source[rows], ends, edges.curve[rows])


def _heights(parts: SubTriangles, curve: InterfaceCurve, position: PositionMap) -> Tensor:
    """Heights (s, 3) of the corners above the curve; exactly zero at corners that lie on it but for rounding."""
    x = position(parts.source.repeat_interleave(3), parts.corners.reshape(-1, 3))
    height = curve.height(x).reshape(-1, 3)
    return torch.where(height.abs() <= MAX_RELATIVE_HEIGHT_ON_CURVE * height.abs().amax(1, keepdim=True), 0.0, height)


def _crossed(height: Tensor) -> Tensor:
    return (height > 0).any(1) & (height < 0).any(1)


def _along(parts: SubTriangles, height: Tensor, number: int) -> tuple[BoundaryEdges, Tensor]:
    """The edges of parts, not crossed by the curve, that lie on it; and which (r,) of them belong to a part above."""
    on = height == 0
    row, edge = (on & on.roll(-1, 1) & (on.sum(1) == 2)[:, None]).nonzero().unbind(1)
    corners = parts.corners[row]
    every = torch.arange(len(row), device=row.device)
    ends = torch.stack([corners[every, (edge + i) % 3] for i in range(3)], 1)
    return BoundaryEdges(parts.source[row], ends, torch.full_like(row, number)), height[row].sum(1) > 0


def _labelled(parts: SubTriangles, above: Tensor, number: int) -> SubTriangles:
    side = torch.where(above, ABOVE_CURVE, BELOW_CURVE)
    return SubTriangles(parts.source, parts.corners, parts.label + 3**number * side)


def _quartered(parts: SubTriangles) -> SubTriangles:
    a, b, c = parts.corners.unbind(1)
    d, e, f = 0.5 * (a + b), 0.5 * (b + c), 0.5 * (c + a)
    corners = torch.cat([torch.stack(t, 1) for t in ((a, d, f), (d, b, e), (f, e, c), (d, e, f))])
    return SubTriangles(parts.source.repeat(4), corners, parts.label.repeat(4))


def _split(
    parts: SubTriangles, height: Tensor, curve: InterfaceCurve, position: PositionMap, number: int
) -> tuple[SubTriangles, BoundaryEdges, Tensor]:
    """Parts with corner heights (s, 3) of both signs, split into three each; their edges along the curve, one on each
    side; and which (r,) of the edges belong to a part above."""
    # a is the corner that is alone on its side; b and c follow in order. A corner on the curve is never alone.
    above, below = height > 0, height < 0
    alone = torch.where(above.sum(1) == 1, above.long().argmax(1), below.long().argmax(1))
    turn = (alone[:, None] + torch.arange(3, device=alone.device)) % 3
    height = height.gather(1, turn)
    a, b, c = parts.corners.gather(1, turn[..., None].expand(-1, -1, 3)).unbind(1)
    p, q = (_root(parts.source, a, end, height[:, 0], height[:, i], curve, position) for i, end in ((1, b), (2, c)))
    one = SubTriangles(parts.source, torch.stack([a, p, q], 1), parts.label)
    rest = torch.cat([torch.stack([p, b, c], 1), torch.stack([p, c, q], 1)])
    two = SubTriangles(parts.source.repeat(2), rest, parts.label.repeat(2))
    first = height[:, 0] > 0
    # If a corner lies on the curve, one of the two has no area and is dropped.
    real = torch.cat([height[:, 1] != 0, height[:, 2] != 0])
    split = _labelled(one, first, number) + _labelled(two.take(real), ~first.repeat(2)[real], number)
    ends = torch.cat([torch.stack([p, q, a], 1), torch.stack([p, q, 0.5 * (b + c)], 1)])
    edges = BoundaryEdges(parts.source.repeat(2), ends, torch.full_like(alone.repeat(2), number))
    return split, edges, torch.cat([first, ~first])


def _root(
    source: Tensor, a: Tensor, b: Tensor, fa: Tensor, fb: Tensor, curve: InterfaceCurve, position: PositionMap
) -> Tensor:
    """Barycentric coordinates (n, 3) of the point between a and b where the height vanishes, by false position.

    fa, fb (n,): the heights at a and b, which have opposite signs.
    """
    low, high = torch.zeros_like(fa), torch.ones_like(fa)
    t = fa / (fa - fb)
    for _ in range(FALSE_POSITION_STEPS):
        f = curve.height(position(source, torch.lerp(a, b, t[:, None])))
        same = (f >= 0) == (fa >= 0)
        low, fa = torch.where(same, t, low), torch.where(same, f, fa)
        high, fb = torch.where(same, high, t), torch.where(same, fb, f)
        t = low + (high - low) * fa / torch.where(fa == fb, 1.0, fa - fb)
    return torch.lerp(a, b, t[:, None])


NO_CURVES = InterfaceCurves()


@shaped
@dataclass(frozen=True)
class LabelledTriangles:
    """The u pairs (triangle, label) that occur. Each stands for the parts of a triangle on one side of every curve."""

    key: Int[Tensor, " u"]  # increasing: triangle * labels + label
    of_part: Int[Tensor, " s"]  # the number of the pair that each part belongs to
    labels: int  # number of labels
    compatible: list[tuple[int, int]]  # pairs of labels that no curve separates

    @classmethod
    def of(cls, triangle: Tensor, label: Tensor, curves: InterfaceCurves) -> LabelledTriangles:
        if curves:
            key, of_part = torch.unique(triangle * curves.labels + label, return_inverse=True)
        else:
            key, of_part = triangle, torch.arange(len(triangle), device=triangle.device)
        return cls(key, of_part, curves.labels, curves.pairs())

    @property
    def triangle(self) -> Tensor:
        return torch.div(self.key, self.labels, rounding_mode="floor")

    @property
    def label(self) -> Tensor:
        return self.key % self.labels

    def find(self, triangle: Tensor, label: Tensor | int) -> Tensor:
        """The number (n,) of each pair of a triangle and a label; -1 if the pair does not occur."""
        key = triangle * self.labels + label
        at = torch.searchsorted(self.key, key).clamp_(max=len(self.key) - 1)
        return torch.where(self.key[at] == key, at, -1)

    def pairs(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """The pairs of labelled triangles, on adjacent triangles a (n,) and b (n,), that no curve separates."""
        left, right = [], []
        for one, other in self.compatible:
            i, j = self.find(a, one), self.find(b, other)
            both = (i >= 0) & (j >= 0)
            left.append(i[both])
            right.append(j[both])
        return torch.cat(left), torch.cat(right)

    def finder(
        self, curves: InterfaceCurves, cell: Tensor, normal: Tensor, lattice: Lattice, element: Tensor
    ) -> Callable[[Tensor, Tensor], Tensor]:
        """The function from triangles (n,) and points (n, 3) in them to elements; its value is -1 where there is none.

        element (u,): of each labelled triangle.
        """

        def find(triangle: Tensor, x: Tensor) -> Tensor:
            number = self.find(triangle, curves.label(x, cell[triangle], normal[triangle], lattice) if curves else 0)
            return torch.where(number < 0, number, element[number.clamp_min(0)])

        return find
