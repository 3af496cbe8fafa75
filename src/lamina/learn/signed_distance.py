"""Signed distances to a surface, for a network to learn: negative inside.

The distance is that to the closest point of the surface. The inside is where the generalised winding number w exceeds
1/2 (`lamina.search.winding`), after the faces have been oriented consistently. Where a surface has holes, the inside
ends at the level w = 1/2 in mid-air. Points are put there, and distances to them count as well. Faces inside the shape,
and faces with the outside on both sides, bound nothing and are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import numpy as np
import torch
from scipy.spatial import KDTree
from torch import Tensor

from lamina.errors import InputError
from lamina.geometry.triangles import dot, triangle_areas, triangle_normals, unit
from lamina.search.face_orientation import outward_signs
from lamina.search.triangles_by_samples import TrianglesBySamples
from lamina.search.winding import WindingTree
from lamina.surfaces.base import Surface
from lamina.surfaces.mesh import Mesh
from lamina.surfaces.point_cloud import PointCloud

# Lengths in units of the longest half-extent of the shape. The limits were chosen by trial.
BOX_MARGIN = 0.1  # between the shape and the box in which a field is learnt
SIDE_OFFSET = 1e-4  # distance from a face at which the winding number of its side is measured
# A part of a surface is an open sheet if the mean of the winding numbers on its two sides is below this. That mean is
# 1/2 on a closed surface and 0 on a flat sheet.
MAX_SHEET_WINDING = 0.15
MAX_SHEET_AREA = 0.1  # a surface is refused if open sheets have more than this share of its area
# A mesh has holes if a winding number in front of its faces differs by this or more from a whole number.
MAX_WINDING_ROUNDING = 0.02
HOLE_PROBES = 20_000  # random points; a hole is found between one inside and one outside
HOLE_BISECTIONS = 12  # of the segment between two such points: their distance is divided by 4096
# The gap between two such points must be smaller than this part of the distance to the surface.
MAX_GAP_OVER_DISTANCE = 0.95
# Nearer than this many spacings to a sample the normal at the foot tells the side, because there a sum over samples
# is no winding number yet.
MIN_SPACINGS_FOR_WINDING = 3.0
# The foot of a sampled surface is replaced by the nearest sample if it is farther than this multiple of the distance
# from that sample. Beyond the reach of the surface a foot may be anywhere.
MAX_FOOT_OVER_SAMPLE_DISTANCE = 1.01
DIFFERENCE_STEP = 1e-3  # of difference quotients of the winding number
MIN_DISTANCE_WITH_DIRECTION = 1e-6  # nearer points take the normal as gradient: their offset has no direction

Feet = Callable[[Tensor], tuple[Tensor, Tensor]]
Draw = Callable[[int, torch.Generator], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Closure:
    """Points with normals where the inside ends in a hole of the surface."""

    points: Tensor  # (k, 3)
    normals: Tensor  # (k, 3) outwards

    @cached_property
    def tree(self) -> KDTree:
        return KDTree(self.points.numpy())

    @cached_property
    def spacing(self) -> float:
        """The distance that 90 % of the points are from their third neighbour: about the largest gap."""
        near = self.tree.query(self.points.numpy(), min(4, len(self.points)))[0]
        return float(np.quantile(np.asarray(near)[..., -1], 0.9))


@dataclass(frozen=True)
class SignedDistanceTarget:
    """Signed distances to a surface in a box, in coordinates y = (x - centre) / scale.

    In these coordinates the longest half-extent of the box is 1.
    """

    name: str
    centre: Tensor  # (3,)
    scale: float
    half: Tensor  # (3,) half-extents of the box in y
    feet: Feet  # y (n, 3) -> closest points and outward normals there
    inside: Callable[[Tensor, Tensor, Tensor], Tensor]  # y, its foot and normal -> whether y is inside (n,)
    draw: Draw  # (count, generator) -> random points by area and outward normals
    closure: Closure | None = None
    notes: tuple[str, ...] = ()

    @property
    def bounds(self) -> Tensor:
        """Corners (2, 3) of the box in x, a little larger than the shape."""
        reach = self.scale * (self.half + BOX_MARGIN)
        return torch.stack([self.centre - reach, self.centre + reach])

    def __call__(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Signed distances (n,) and their gradients (n, 3), unit vectors, at y (n, 3) on the CPU in float64."""
        foot, normal = self.feet(y)
        sign = 1 - 2 * self.inside(y, foot, normal).to(y)
        offset = y - foot
        distance = dot(offset, offset).sqrt()
        gradient = torch.where((distance < MIN_DISTANCE_WITH_DIRECTION)[:, None], normal, unit(offset) * sign[:, None])
        if self.closure is not None:
            distance, gradient = _closed(self.closure, y, distance, gradient, sign)
        return sign * distance, gradient


def signed_distance_target(surface: Surface, box: Tensor | None = None) -> SignedDistanceTarget:
    """Signed distances to any surface that has an inside.

    box (2, 3): the box that sets the coordinates, where the surface is one of several; by default its own bounds.
    Raises InputError for one-sided surfaces, and for surfaces of which more than a tenth of the area is an open sheet.
    """
    box = (surface.bounds if box is None else box).detach().cpu().double()
    centre, extent = box.mean(0), box[1] - box[0]
    scale = float(extent.max()) / 2
    parts = (_mesh_parts if isinstance(surface, Mesh) else _sample_parts)(surface, centre, scale)
    half = extent / (2 * scale)
    target = SignedDistanceTarget(surface.name, centre, scale, half, *parts.functions, notes=parts.notes)
    return target if parts.closed else _with_closure(target, parts.winding, parts.spacing)


@dataclass(frozen=True)
class _Parts:
    """What a target is made of; the functions are those of `SignedDistanceTarget`."""

    winding: WindingTree  # in single precision
    feet: Feet
    inside: Callable[[Tensor, Tensor, Tensor], Tensor]
    draw: Draw
    spacing: float  # distance from the surface below which the winding number is not reliable
    closed: bool  # whether the winding numbers show that there are no holes
    notes: tuple[str, ...]

    @property
    def functions(self) -> tuple[Feet, Callable[[Tensor, Tensor, Tensor], Tensor], Draw]:
        return self.feet, self.inside, self.draw


def _mesh_parts(mesh: Surface, centre: Tensor, scale: float) -> _Parts:
    assert isinstance(mesh, Mesh)
    faces = cast(Tensor, mesh.faces).cpu()
    sign, one_sided = outward_signs(mesh.points.cpu().double(), mesh.same_vertex.cpu()[faces])
    if bool(one_sided.any()):
        raise InputError(f"{mesh.name} has a single side, as a Moebius strip has, and so no inside to be fitted.")
    turned = int((sign < 0).sum())
    notes = [f"{turned} of {len(sign)} faces were turned over to look outwards."] if turned else []
    whole = _facing((mesh.points.cpu().double()[faces] - centre) / scale, sign)
    winding = WindingTree.of_triangles(whole.float())
    owner = mesh.piece_face.cpu()
    corners = _facing((mesh.piece.cpu().double() - centre) / scale, sign[owner])
    normals, areas = triangle_normals(corners), triangle_areas(corners)
    # In front of a face the winding number is one less than behind it.
    in_front = winding((corners.mean(1) + SIDE_OFFSET * normals).float())
    kept = _bounding(mesh.name, areas, in_front + 0.5, notes)
    corners, normals, areas = corners[kept], normals[kept], areas[kept]
    closest = TrianglesBySamples(corners)

    def feet(y: Tensor) -> tuple[Tensor, Tensor]:
        piece, foot = closest(y)
        return foot, normals[piece]

    def inside(y: Tensor, foot: Tensor, normal: Tensor) -> Tensor:
        return winding(y.float()) > 0.5

    def draw(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        piece = torch.multinomial(areas, count, True, generator=generator)
        weight = torch.rand(count, 3, generator=generator, dtype=torch.float64).log()
        weight = weight / weight.sum(1, keepdim=True)  # uniform in the triangle: Dirichlet(1, 1, 1)
        return torch.einsum("ni,nic->nc", weight, corners[piece]), normals[piece]

    closed = bool(((in_front - in_front.round()).abs() < MAX_WINDING_ROUNDING).all())
    return _Parts(winding, feet, inside, draw, 0.0, closed, tuple(notes))


def _facing(corners: Tensor, sign: Tensor) -> Tensor:
    """Triangles (t, 3, 3), turned over where sign (t,) is negative."""
    return torch.where((sign < 0)[:, None, None], corners.flip(1), corners)


def _sample_parts(surface: Surface, centre: Tensor, scale: float) -> _Parts:
    surface = surface.to("cpu", torch.float64)
    own = surface.own_feet() if not isinstance(surface, PointCloud) else surface.closest_points(surface.points)
    points, normals, areas = (own.points - centre) / scale, own.normals, surface.areas / scale**2
    volume = (areas * dot(points - points.mean(0), normals)).sum()
    side = -1.0 if float(volume) < 0 else 1.0
    notes = ["Normals looked inwards and were turned over."] if side < 0 else []
    winding = WindingTree.of_points(points.float(), side * normals.float(), areas.float())
    # The sum over the other samples gives the mean of the two sides at a sample: 1/2 on a closed surface.
    _bounding(surface.name, areas, winding(points.float()), notes)
    spacing = areas.clamp_min(areas.mean() / 10).sqrt()
    tree = KDTree(points.numpy())

    def nearest(y: Tensor) -> tuple[Tensor, Tensor]:
        distance, index = tree.query(y.numpy(), workers=-1)
        return torch.from_numpy(np.asarray(distance)), torch.from_numpy(np.asarray(index))

    def feet(y: Tensor) -> tuple[Tensor, Tensor]:
        found = surface.closest_points(centre + scale * y)
        foot, normal = (found.points - centre) / scale, side * found.normals
        distance, index = nearest(y)
        stray = ((foot - y).norm(dim=1) > MAX_FOOT_OVER_SAMPLE_DISTANCE * distance).nonzero()[:, 0]
        foot[stray], normal[stray] = points[index[stray]], side * normals[index[stray]]
        return foot, normal

    def inside(y: Tensor, foot: Tensor, normal: Tensor) -> Tensor:
        distance, index = nearest(y)
        close = distance < MIN_SPACINGS_FOR_WINDING * spacing[index]
        return torch.where(close, dot(y - foot, normal) < 0, winding(y.float()) > 0.5)

    def draw(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        index = torch.multinomial(areas, count, True, generator=generator)
        if isinstance(surface, PointCloud):
            return points[index], side * normals[index]
        found = surface.sample(count, int(torch.randint(2**31, (1,), generator=generator)))
        return (found.points - centre) / scale, side * found.normals

    return _Parts(winding, feet, inside, draw, MIN_SPACINGS_FOR_WINDING * float(spacing.max()), False, tuple(notes))


def _bounding(name: str, areas: Tensor, mean: Tensor, notes: list[str]) -> Tensor:
    """Which parts (m,) of a surface bound the inside, from the mean (m,) of the winding numbers on their two sides.

    Adds to notes what is left out. Raises InputError if too much of the area is an open sheet, or no part bounds it.
    """
    share = float(areas[mean < MAX_SHEET_WINDING].sum() / areas.sum())
    bounds = (mean > 0) & (mean < 1)
    if share > MAX_SHEET_AREA or not bool(bounds.any()):
        raise InputError(
            f"{name} is an open sheet over {100 * share:.0f} % of its area, with hardly an inside behind it, and a "
            "field needs one; close the surface, or solve on it as it is."
        )
    for left, where in ((mean <= 0, "has the outside on both sides"), (mean >= 1, "lies inside")):
        if bool(left.any()):
            notes.append(f"{100 * float(areas[left].sum() / areas.sum()):.2g} % of the area {where} and is left out.")
    return bounds


# Holes


def _with_closure(target: SignedDistanceTarget, winding: WindingTree, spacing: float) -> SignedDistanceTarget:
    """The target with its holes closed.

    Take a point inside and a point outside that are nearer to each other than to the surface. Between them the inside
    ends in mid-air; the level w = 1/2 there is found by bisection.
    """
    generator = torch.Generator().manual_seed(0)
    y = (2 * torch.rand(HOLE_PROBES, 3, generator=generator, dtype=torch.float64) - 1) * (target.half + BOX_MARGIN)
    distance, _ = target(y)
    inner, outer = y[distance < 0], y[distance >= 0]
    if len(inner) == 0 or len(outer) == 0:
        return target
    gap, partner = (torch.from_numpy(np.asarray(v)) for v in KDTree(outer.numpy()).query(inner.numpy(), workers=-1))
    free = -distance[distance < 0]
    rows = ((gap < MAX_GAP_OVER_DISTANCE * free) & (free > spacing)).nonzero()[:, 0]
    if len(rows) == 0:
        return target
    low, high = inner[rows], outer[partner[rows]]
    for _ in range(HOLE_BISECTIONS):
        middle = 0.5 * (low + high)
        within = (winding(middle.float()) > 0.5)[:, None]
        low, high = torch.where(within, middle, low), torch.where(within, high, middle)
    points = 0.5 * (low + high)
    shifts = DIFFERENCE_STEP * torch.cat([torch.eye(3), -torch.eye(3)]).to(points)
    values = winding((points[:, None] + shifts).reshape(-1, 3).float()).reshape(-1, 2, 3).double()
    closure = Closure(points, unit(values[:, 1] - values[:, 0]))  # w falls outwards
    note = "The surface has holes, which are closed where its winding number is 1/2."
    return replace(target, closure=closure, notes=(*target.notes, note))


def _closed(closure: Closure, y: Tensor, distance: Tensor, gradient: Tensor, sign: Tensor) -> tuple[Tensor, Tensor]:
    """Distance (n,) and gradient (n, 3) of the surface together with its closure.

    The closure is known at points only. Above one of them, and no farther sideways than their spacing, the distance to
    the plane through it counts; elsewhere the distance to the point.
    """
    away, index = (torch.from_numpy(np.asarray(v)) for v in closure.tree.query(y.numpy(), workers=-1))
    normal = closure.normals[index]
    offset = y - closure.points[index]
    height = dot(offset, normal).abs()
    above = (away.square() - height.square() < closure.spacing**2)[:, None]
    reach = torch.where(above[:, 0], height, away)
    direction = torch.where(above, normal, unit(offset) * sign[:, None])
    nearer = reach < distance
    return torch.where(nearer, reach, distance), torch.where(nearer[:, None], direction, gradient)
