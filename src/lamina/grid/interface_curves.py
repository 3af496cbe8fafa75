"""Curves along which a cut surface is split, or ends: each side of a curve has unknowns of its own.

The pieces of a cut surface are triangles, flat or curved, given by a map from barycentric coordinates. A curve is the
zero set of a function there. Triangles that it crosses are split in those coordinates, along the chord between its
crossings with their edges; every part carries a label, the side of each curve that it lies on. A polyline has sides
near itself only: cells farther away belong to both, so that one with ends is a slit.
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

Function = Callable[[Tensor], Tensor]
Place = Callable[[Tensor, Tensor], Tensor]  # triangles (n,), barycentric coordinates (n, 3) -> positions (n, 3)
BOTH, ABOVE, BELOW = 0, 1, 2  # sides: of a place too far from a polyline to tell, and of the others
ROOT_STEPS = 4
ON_CURVE = 1e-9  # of the largest height in a triangle: a corner that is no higher lies on the curve
AROUND = torch.tensor([[i, j, k] for i in (-1, 0, 1) for j in (-1, 0, 1) for k in (-1, 0, 1)])


@dataclass(frozen=True)
class LevelCurve:
    """The curve on a surface where a function of space vanishes; what is below may be cut off."""

    function: Function
    cut_off: bool = False

    def height(self, x: Tensor) -> Tensor:
        return self.function(x)

    def near(self, x: Tensor, cell: Tensor, normal: Tensor, lattice: Lattice) -> Tensor:
        """Whether places x (n, 3) in cells (n, 3), with normals (n, 3), lie on one of the sides."""
        return torch.ones_like(cell[:, 0], dtype=torch.bool)


@dataclass(frozen=True)
class PolylineCurve:
    """A polyline on a surface, closed if its last point is its first."""

    points: Tensor  # (k, 3)
    normals: Tensor  # (k, 3) of the surface
    cut_off = False

    @property
    def closed(self) -> bool:
        return len(self.points) > 3 and bool((self.points[0] == self.points[-1]).all())

    @cached_property
    def _across(self) -> tuple[Tensor, Tensor]:
        """Unit vectors across the segments (k - 1, 3), and across the points (k, 3), to the same side."""
        along = unit(self.points[1:] - self.points[:-1])
        across = unit(torch.linalg.cross(along, unit(self.normals[1:] + self.normals[:-1])))
        first, last = (across[-1], across[0]) if self.closed else (across[0], across[-1])
        both = torch.cat([first[None], across]) + torch.cat([across, last[None]])
        return across, unit(both)

    def nearest(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Nearest segment (n,) of x (n, 3), and the fraction (n,) of the way along it."""
        a, d = self.points[:-1], self.points[1:] - self.points[:-1]
        length = dot(d, d)
        segment, fraction = [], []
        for part in x.split(max(1, 2**22 // len(a))):
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
        """Cells that the polyline passes through, and those around them; not those beyond its ends, and not a sheet
        that looks the other way."""
        passed = torch.unique((self._cells(lattice)[:, None] + AROUND.to(cell.device)).reshape(-1, 3), dim=0)
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
        """Cells (c, 3) int64 that the polyline passes through."""
        parts = []
        for a, b in pairwise(self.points):
            count = 2 + int(4 * float((b - a).norm()) / lattice.spacing)
            t = torch.linspace(0, 1, count, dtype=a.dtype, device=a.device)[:, None]
            parts.append(torch.floor((torch.lerp(a, b, t) - lattice.origin) / lattice.spacing).long())
        return torch.unique(torch.cat(parts), dim=0)


InterfaceCurve = LevelCurve | PolylineCurve


@dataclass(frozen=True)
class Parts:
    """Triangles within the triangles of a cut surface."""

    source: Tensor  # (s,) int64
    corners: Tensor  # (s, 3, 3) barycentric
    label: Tensor  # (s,) int64

    @classmethod
    def whole(cls, count: int, like: Tensor) -> Parts:
        every = torch.arange(count, device=like.device)
        corners = torch.eye(3, dtype=like.dtype, device=like.device).expand(count, 3, 3)
        return cls(every, corners, torch.zeros_like(every))

    def take(self, rows: Tensor) -> Parts:
        return Parts(self.source[rows], self.corners[rows], self.label[rows])

    def __add__(self, other: Parts) -> Parts:
        return Parts(*(torch.cat([a, b]) for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))


@dataclass(frozen=True)
class Sides:
    """Edges of parts: where the surface ends, or a curve runs."""

    source: Tensor  # (r,) int64, the triangle
    ends: Tensor  # (r, 3, 3) barycentric: both ends, and a place on the side whose edge it is
    curve: Tensor  # (r,) int64, number of the curve; -1: a rim of the surface itself

    @classmethod
    def join(cls, parts: Sequence[Sides], like: Tensor) -> Sides:
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
        """Number of labels: three sides for each curve."""
        return 3 ** len(self.each)

    def side_of(self, label: Tensor, curve: int) -> Tensor:
        return torch.div(label, 3**curve, rounding_mode="floor") % 3

    def label(self, x: Tensor, cell: Tensor, normal: Tensor, lattice: Lattice) -> Tensor:
        """Label (n,) of places x (n, 3) on the surface."""
        label = torch.zeros_like(cell[:, 0])
        for number, curve in enumerate(self.each):
            if curve.cut_off:
                label += 3**number * ABOVE
                continue
            near = curve.near(x, cell, normal, lattice).nonzero()[:, 0]
            above = curve.height(x[near]) >= 0
            label[near] += 3**number * torch.where(above, ABOVE, BELOW)
        return label

    def compatible(self, a: Tensor, b: Tensor) -> Tensor:
        """Whether no curve lies between places with labels a and b, in neighbouring cells."""
        fine = torch.ones(torch.broadcast_shapes(a.shape, b.shape), dtype=torch.bool, device=a.device)
        for number in range(len(self.each)):
            p, q = self.side_of(a, number), self.side_of(b, number)
            fine &= (p == q) | (p == BOTH) | (q == BOTH)
        return fine

    def pairs(self) -> list[tuple[int, int]]:
        """All pairs of compatible labels."""
        every = torch.arange(self.labels)
        a, b = self.compatible(every[:, None], every[None]).nonzero().unbind(1)
        return list(zip(a.tolist(), b.tolist(), strict=True))

    def split(self, place: Place, cell: Tensor, normal: Tensor, lattice: Lattice) -> tuple[Parts, Sides]:
        """Parts of the triangles with cells (t, 3) and normals (t, 3), and the sides along the curves.

        What is cut off has no parts; nor has the side of a curve there.
        """
        parts, sides = Parts.whole(len(cell), normal), []
        for number, curve in enumerate(self.each):
            middle = place(parts.source, parts.corners.mean(1))
            near = curve.near(middle, cell[parts.source], normal[parts.source], lattice)
            rows = parts.take(near)
            # Chords of quarters follow the curve more closely.
            crossed = _crossed(_heights(rows, curve, place))
            rows = rows.take(~crossed) + _quartered(rows.take(crossed))
            height = _heights(rows, curve, place)
            crossed = _crossed(height)
            whole, split = rows.take(~crossed), rows.take(crossed)
            along, along_above = _along(whole, height[~crossed], number)
            whole = _labelled(whole, height[~crossed].sum(1) >= 0, number)
            split, edges, above = _split(split, height[crossed], curve, place, number)
            done = whole + split
            edges, above = Sides.join([edges, along], normal), torch.cat([above, along_above])
            if curve.cut_off:
                done = done.take(self.side_of(done.label, number) == ABOVE)
                edges = Sides(edges.source[above], edges.ends[above], torch.full_like(edges.curve[above], -1))
                sides = [_trimmed(before, curve, place) for before in sides]
            parts = parts.take(~near) + done
            sides.append(edges)
        return parts, Sides.join(sides, normal)

    def trimmed(self, sides: Sides, place: Place) -> Sides:
        """Sides without what the curves cut off."""
        for curve in self.each:
            if curve.cut_off:
                sides = _trimmed(sides, curve, place)
        return sides


def _trimmed(sides: Sides, curve: InterfaceCurve, place: Place) -> Sides:
    """The part of sides above a curve."""
    a, b = sides.ends[:, 0], sides.ends[:, 1]
    fa, fb = (curve.height(place(sides.source, end)) for end in (a, b))
    rows = ((fa > 0) | (fb > 0)).nonzero()[:, 0]
    cut = ((fa < 0) | (fb < 0))[rows].nonzero()[:, 0]
    ends = sides.ends[rows].clone()
    if len(cut):
        at = rows[cut]
        root = _root(sides.source[at], a[at], b[at], fa[at], fb[at], curve, place)
        below = (fb[at] < 0).long()  # the end that is cut off
        ends[cut, below] = root
    return Sides(sides.source[rows], ends, sides.curve[rows])


def _heights(parts: Parts, curve: InterfaceCurve, place: Place) -> Tensor:
    """Heights (s, 3) at the corners; zero at those that all but lie on the curve."""
    x = place(parts.source.repeat_interleave(3), parts.corners.reshape(-1, 3))
    height = curve.height(x).reshape(-1, 3)
    return torch.where(height.abs() <= ON_CURVE * height.abs().amax(1, keepdim=True), 0.0, height)


def _crossed(height: Tensor) -> Tensor:
    return (height > 0).any(1) & (height < 0).any(1)


def _along(parts: Parts, height: Tensor, number: int) -> tuple[Sides, Tensor]:
    """The edges of parts, not crossed, that lie on a curve; and which (r,) of them have their part above."""
    on = height == 0
    row, edge = (on & on.roll(-1, 1) & (on.sum(1) == 2)[:, None]).nonzero().unbind(1)
    corners = parts.corners[row]
    every = torch.arange(len(row), device=row.device)
    ends = torch.stack([corners[every, (edge + i) % 3] for i in range(3)], 1)
    return Sides(parts.source[row], ends, torch.full_like(row, number)), height[row].sum(1) > 0


def _labelled(parts: Parts, above: Tensor, number: int) -> Parts:
    side = torch.where(above, ABOVE, BELOW)
    return Parts(parts.source, parts.corners, parts.label + 3**number * side)


def _quartered(parts: Parts) -> Parts:
    a, b, c = parts.corners.unbind(1)
    d, e, f = 0.5 * (a + b), 0.5 * (b + c), 0.5 * (c + a)
    corners = torch.cat([torch.stack(t, 1) for t in ((a, d, f), (d, b, e), (f, e, c), (d, e, f))])
    return Parts(parts.source.repeat(4), corners, parts.label.repeat(4))


def _split(
    parts: Parts, height: Tensor, curve: InterfaceCurve, place: Place, number: int
) -> tuple[Parts, Sides, Tensor]:
    """Parts with corners at heights (s, 3) of both signs, in three each; the sides along the curve, above and below,
    and which (r,) are above."""
    # The corner alone on its side comes first: a; b and c follow in order. One on the curve goes with the rest.
    above, below = height > 0, height < 0
    alone = torch.where(above.sum(1) == 1, above.long().argmax(1), below.long().argmax(1))
    turn = (alone[:, None] + torch.arange(3, device=alone.device)) % 3
    height = height.gather(1, turn)
    a, b, c = parts.corners.gather(1, turn[..., None].expand(-1, -1, 3)).unbind(1)
    p, q = (_root(parts.source, a, end, height[:, 0], height[:, i], curve, place) for i, end in ((1, b), (2, c)))
    one = Parts(parts.source, torch.stack([a, p, q], 1), parts.label)
    rest = torch.cat([torch.stack([p, b, c], 1), torch.stack([p, c, q], 1)])
    two = Parts(parts.source.repeat(2), rest, parts.label.repeat(2))
    first = height[:, 0] > 0
    # With a corner on the curve one of the two is empty.
    real = torch.cat([height[:, 1] != 0, height[:, 2] != 0])
    split = _labelled(one, first, number) + _labelled(two.take(real), ~first.repeat(2)[real], number)
    ends = torch.cat([torch.stack([p, q, a], 1), torch.stack([p, q, 0.5 * (b + c)], 1)])
    sides = Sides(parts.source.repeat(2), ends, torch.full_like(alone.repeat(2), number))
    return split, sides, torch.cat([first, ~first])


def _root(source: Tensor, a: Tensor, b: Tensor, fa: Tensor, fb: Tensor, curve: InterfaceCurve, place: Place) -> Tensor:
    """Barycentric place (n, 3) between a and b where the height, of other signs there, vanishes: false position."""
    low, high = torch.zeros_like(fa), torch.ones_like(fa)
    t = fa / (fa - fb)
    for _ in range(ROOT_STEPS):
        f = curve.height(place(source, torch.lerp(a, b, t[:, None])))
        same = (f >= 0) == (fa >= 0)
        low, fa = torch.where(same, t, low), torch.where(same, f, fa)
        high, fb = torch.where(same, high, t), torch.where(same, fb, f)
        t = low + (high - low) * fa / torch.where(fa == fb, 1.0, fa - fb)
    return torch.lerp(a, b, t[:, None])


NO_CURVES = InterfaceCurves()


@dataclass(frozen=True)
class Units:
    """The parts of a triangle on one side of every curve, taken together: u of them."""

    key: Tensor  # (u,) int64, increasing: triangle and label
    of_part: Tensor  # (s,) the unit of each part
    labels: int
    compatible: list[tuple[int, int]]

    @classmethod
    def of(cls, triangle: Tensor, label: Tensor, curves: InterfaceCurves) -> Units:
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
        """Unit (n,) of triangles and labels, -1 where there is none."""
        key = triangle * self.labels + label
        at = torch.searchsorted(self.key, key).clamp_(max=len(self.key) - 1)
        return torch.where(self.key[at] == key, at, -1)

    def pairs(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """The units of triangles a (n,) and b (n,), next to each other, that no curve keeps apart."""
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
        """From triangles (n,) and places (n, 3) in them to elements; -1 where there is none."""

        def find(triangle: Tensor, x: Tensor) -> Tensor:
            unit = self.find(triangle, curves.label(x, cell[triangle], normal[triangle], lattice) if curves else 0)
            return torch.where(unit < 0, unit, element[unit.clamp_min(0)])

        return find
