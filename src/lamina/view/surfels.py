"""Point clouds as overlapping discs (surfels), blended so that neither their rims nor gaps are visible.

After Pfister et al. (2000), "Surfels: surface elements as rendering primitives".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import minimum_filter
from scipy.spatial import KDTree

from lamina.view.camera import Camera
from lamina.view.normals import dot, unit
from lamina.view.raster import Planes, spans
from lamina.view.shade import VisiblePixels

_SURFEL_NEIGHBOURS = 20  # neighbours by which a disc is sized. Chosen by eye.
_MIN_FOLD_SINE = np.sin(
    np.radians(20.0)
)  # Neighbours whose planes differ by less than 20 degrees are one smooth surface.
_RIM_REACH = 0.5  # At the rim of a surface a disc ends this many radii beyond its centre.
# A point is at a rim if its neighbours leave one angle open that is wider than this: 144 degrees. There are two such
# angles in a line of a scanner, which is no rim.
_MIN_RIM_ANGLE = 0.8 * np.pi
# A disc is never cut nearer to its centre than this share of its radius: normals have errors, and a hole looks worse
# than a flake.
_MIN_CLIP_DISTANCE = 0.25
# Radii lie between these multiples of the median radius: a point far from all others must not become a plate, and
# repeated points must not vanish.
_MIN_RELATIVE_RADIUS = 0.25
_MAX_RELATIVE_RADIUS = 4.0
# A disc reaches this share of the distance to its neighbour. Its rim is faint, so that it need not reach all the way.
_NEIGHBOUR_REACH = 0.9
# In an empty quadrant that is no rim a disc is sized for a neighbour at this share of the farthest distance. By eye.
_GAP_REACH = 0.75
_COARSE_PIXELS = 8  # Hidden discs are found in a picture with pixels this many times as large.


@dataclass(frozen=True)
class Surfels:
    """Discs around n points."""

    centre: NDArray  # (n, 3)
    frame: NDArray  # (n, 3, 3) rows: two tangents, normal
    radius: NDArray  # (n,)
    value: NDArray  # (n,) at the centre
    slope: NDArray  # (n, 2) of the value along the tangents, per radius
    clip: NDArray  # (n, 2) the part with (u, v) . clip > 1 is cut off; u and v are in radii


def surfels(points: NDArray, values: NDArray, normals: NDArray | None) -> Surfels:
    """Discs perpendicular to the normals (n, 3), or in planes fitted to the neighbours, just large enough to overlap.

    A disc reaches most of the way to its nearest neighbour in the emptiest of the four quadrants around it. So random
    samples and the lines of a scanner are both closed, and no disc is larger than necessary.
    """
    n = len(points)
    near = KDTree(points).query(points, k=min(_SURFEL_NEIGHBOURS, n), workers=-1)[1].reshape(n, -1)
    if normals is None:
        spread = points[near] - points[near].mean(1, keepdims=True)
        frame = np.linalg.eigh(np.einsum("nki,nkj->nij", spread, spread))[1].transpose(0, 2, 1)[:, ::-1]
    else:
        normal = unit(normals)
        first = unit(np.cross(normal, np.eye(3)[np.abs(normal).argmin(1)]))
        frame = np.stack([first, np.cross(normal, first), normal], 1)
    offset = np.einsum("nki,nji->njk", points[near] - points[:, None], frame[:, :2])  # (n, 2, k)
    distance, gap, rim = _around(offset)
    radius = _radius(offset, distance, rim)
    slope = _slope(offset, values[near] - values[:, None]) * radius[:, None]
    clip = _clip_at_folds(points, frame, near, distance, radius)
    clip[rim] = gap[rim] / _RIM_REACH
    return Surfels(points, frame, radius, values, slope, clip)


def _around(offset: NDArray) -> tuple[NDArray, NDArray, NDArray]:
    """Distances (n, k) of neighbours, direction (n, 2) of the widest angle without any, whether there is a rim (n,)."""
    distance = np.sqrt((offset**2).sum(1))
    angle = np.arctan2(offset[:, 1], offset[:, 0])
    angle = np.sort(
        np.where(distance > 0, angle, angle[:, -1:]), 1
    )  # the point itself and its repetitions do not count
    width = np.diff(angle, axis=1, append=angle[:, :1] + 2 * np.pi)
    widest = width.argmax(1)
    rows = np.arange(len(angle))
    middle = angle[rows, widest] + 0.5 * width[rows, widest]
    rim = (width > _MIN_RIM_ANGLE).sum(1) == 1
    return distance, np.stack([np.cos(middle), np.sin(middle)], 1), rim


def _clip_at_folds(points: NDArray, frame: NDArray, near: NDArray, distance: NDArray, radius: NDArray) -> NDArray:
    """clip (n, 2): cuts a disc along the line where it meets the plane of a neighbour that falls away from it.

    Beyond a fold, such as the edge of a thin ear, an uncut disc would stick out into the air.
    """
    normal = frame[:, 2]
    other = normal[near]
    other = other * np.where(dot(other, normal[:, None]) < 0, -1, 1)[..., None]
    step = points[near] - points[:, None]
    # In the plane of disc i, that of neighbour j is the line a . (u, v) = b.
    a = np.einsum("nki,nji->nkj", other, frame[:, :2])
    b = dot(other, step)
    steep = np.sqrt((a**2).sum(2))
    falls = (steep > _MIN_FOLD_SINE) & (b > 0) & (distance < 2 * radius[:, None]) & (distance > 0)
    reach = np.where(falls, b / np.where(falls, steep, 1), np.inf)
    first = reach.argmin(1)
    rows = np.arange(len(points))
    folded = np.isfinite(reach[rows, first])
    line = np.maximum(reach[rows, first] / radius, _MIN_CLIP_DISTANCE)
    away = a[rows, first] / np.where(folded, steep[rows, first], 1)[:, None]
    return np.where(folded[:, None], away / np.where(folded, line, 1)[:, None], 0.0)


def _radius(offset: NDArray, distance: NDArray, rim: NDArray) -> NDArray:
    quadrant = np.where(distance > 0, 2 * (offset[:, 0] > 0) + (offset[:, 1] > 0), -1)
    closest = np.stack([np.where(quadrant == i, distance, np.inf).min(1) for i in range(4)], 1)
    # An empty quadrant is a rim, or a gap wider than all neighbours. The disc reaches some way, to close a gap.
    empty = ~np.isfinite(closest)
    closest = np.where(empty, np.where(rim, 0.0, _GAP_REACH * distance.max(1))[:, None], closest)
    radius = _NEIGHBOUR_REACH * closest.max(1)
    typical = float(np.median(radius)) or 1.0
    return np.clip(radius, _MIN_RELATIVE_RADIUS * typical, _MAX_RELATIVE_RADIUS * typical)


def _slope(offset: NDArray, rise: NDArray) -> NDArray:
    """Least-squares gradient (n, 2) of values that differ by rise (n, k) at offset (n, 2, k)."""
    square = np.einsum("nik,njk->nij", offset, offset)
    square += (1e-9 * np.trace(square, axis1=1, axis2=2) + 1e-300)[:, None, None] * np.eye(2)
    slope = np.linalg.solve(square, np.einsum("nik,nk->ni", offset, rise)[:, :, None])[:, :, 0]
    return np.where(np.isfinite(slope), slope, 0)


def visible_discs(discs: Surfels, camera: Camera, width: int, height: int) -> VisiblePixels:
    """The visible part of the discs. Each pixel has the mean of the discs of the front sheet."""
    discs = _without_hidden(discs, camera, width, height)
    normal = camera.turn(discs.frame[:, 2])
    to_eye = np.array([0, 0, camera.distance]) - camera.turn(discs.centre - camera.centre)
    normal *= np.where(dot(normal, to_eye) < 0, -1, 1)[:, None]
    nearest = np.zeros(width * height, dtype=np.float32)
    pieces = list(_draw(discs, camera, width, height, nearest))

    # Discs less than a radius behind the front belong to the same sheet.
    thickness = (discs.radius / camera.distance).astype(np.float32)
    value, *slope = (a.astype(np.float32) for a in (discs.value, *discs.slope.T))
    axes = [a.astype(np.float32) for a in normal.T]
    total = np.zeros((5, width * height), dtype=np.float32)
    for pixel, disc, u, v, q in pieces:
        front = nearest[pixel]
        same = np.flatnonzero(front - q < thickness[disc] * front**2)
        pixel, disc, u, v = pixel[same], disc[same], u[same], v[same]
        weight = (1 - u * u - v * v) ** 2
        field = value[disc] + slope[0][disc] * u + slope[1][disc] * v
        for sums, data in zip(total, (1, field, *(a[disc] for a in axes)), strict=True):
            np.add.at(sums, pixel, weight * data)
    pixel = np.flatnonzero(nearest)
    weight, field, *axes = total[:, pixel]
    return VisiblePixels(pixel, field / weight, unit(np.stack(axes, 1)), camera.height(nearest[pixel]))


def _draw(discs: Surfels, camera: Camera, width: int, height: int, nearest: NDArray) -> Iterator[tuple]:
    """The pixels of the discs in chunks: pixel, disc, u, v, nearness, each (k,).

    nearest (height * width,) becomes the nearness of the front disc. It is complete after the last chunk.
    """
    corners, uv = _squares(discs, camera)
    runs = spans(corners[:, :, :2], width, height)
    (u0, du), (v0, dv), (q0, dq) = (
        [a.astype(np.float32) for a in Planes(corners[:, :, :2], data).along(runs)]
        for data in (uv[:, :, 0], uv[:, :, 1], corners[:, :, 2])
    )
    clip = discs.clip.astype(np.float32)
    for part in runs.pieces():
        step = part.step.astype(np.float32)
        u, v = u0[part.span] + du[part.span] * step, v0[part.span] + dv[part.span] * step
        disc = runs.triangle[part.span] // 2
        inside = u * u + v * v < 1
        keep = np.flatnonzero(inside & (u * clip[disc, 0] + v * clip[disc, 1] <= 1))
        span, pixel = part.span[keep], part.pixel[keep]
        q = q0[span] + dq[span] * step[keep]
        np.maximum.at(nearest, pixel, q)
        yield pixel, disc[keep].astype(np.int32), u[keep], v[keep], q


def _without_hidden(discs: Surfels, camera: Camera, width: int, height: int) -> Surfels:
    """The discs without those that lie well behind others in a coarse picture: half of a closed surface."""
    camera = camera.enlarged(1 / _COARSE_PIXELS)
    width, height = -(-width // _COARSE_PIXELS), -(-height // _COARSE_PIXELS)
    nearest = np.zeros(width * height, dtype=np.float32)
    for _ in _draw(discs, camera, width, height, nearest):
        pass
    reach = 2 + int(np.ceil(1.5 * camera.scale * discs.radius.max()))
    front = minimum_filter(nearest.reshape(height, width), 2 * reach + 1, mode="constant")
    x, y, q = camera.project(discs.centre).T
    column, row = np.clip(x, 0, width - 1).astype(int), np.clip(y, 0, height - 1).astype(int)
    some = q + 3 * discs.radius / camera.distance * q**2 > front[row, column]
    return Surfels(*(array[some] for array in vars(discs).values()))


def _squares(discs: Surfels, camera: Camera) -> tuple[NDArray, NDArray]:
    """Two triangles around each disc: corners (2n, 3, 3) on the screen, and (u, v) (2n, 3, 2) in the disc."""
    uv = np.array([[-1.0, -1], [1, -1], [1, 1], [-1, 1]])
    reach = uv @ discs.frame[:, :2] * discs.radius[:, None, None]
    screen = camera.project((discs.centre[:, None] + reach).reshape(-1, 3)).reshape(-1, 4, 3)
    halves = np.array([[0, 1, 2], [0, 2, 3]])
    return screen[:, halves].reshape(-1, 3, 3), np.tile(uv[halves], (len(discs.centre), 1, 1))
