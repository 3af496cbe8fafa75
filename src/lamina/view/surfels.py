"""Point clouds seen as overlapping discs (surfels), blended so that neither rims nor gaps show.

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
from lamina.view.shade import Seen

_NEIGHBOURS = 20


@dataclass(frozen=True)
class Surfels:
    """Discs around n points."""

    centre: NDArray  # (n, 3)
    frame: NDArray  # (n, 3, 3) rows: two tangents, normal
    radius: NDArray  # (n,)
    value: NDArray  # (n,) at the centre
    slope: NDArray  # (n, 2) of the value along the tangents, per radius


def surfels(points: NDArray, values: NDArray, normals: NDArray | None) -> Surfels:
    """Discs along the normals (n, 3), or along planes fitted to the neighbours, just large enough to overlap.

    A disc reaches most of the way to its nearest neighbour in the emptiest of the four quadrants around
    it: random samples and the lines of a scanner are closed alike, and no disc is larger than it must be.
    """
    n = len(points)
    near = KDTree(points).query(points, k=min(_NEIGHBOURS, n), workers=-1)[1].reshape(n, -1)
    if normals is None:
        spread = points[near] - points[near].mean(1, keepdims=True)
        frame = np.linalg.eigh(np.einsum("nki,nkj->nij", spread, spread))[1].transpose(0, 2, 1)[:, ::-1]
    else:
        normal = unit(normals)
        first = unit(np.cross(normal, np.eye(3)[np.abs(normal).argmin(1)]))
        frame = np.stack([first, np.cross(normal, first), normal], 1)
    offset = np.einsum("nki,nji->njk", points[near] - points[:, None], frame[:, :2])  # (n, 2, k)
    radius = _radius(offset)
    slope = _slope(offset, values[near] - values[:, None]) * radius[:, None]
    return Surfels(points, frame, radius, values, slope)


def _radius(offset: NDArray) -> NDArray:
    distance = np.sqrt((offset**2).sum(1))
    quadrant = np.where(distance > 0, 2 * (offset[:, 0] > 0) + (offset[:, 1] > 0), -1)
    closest = np.stack([np.where(quadrant == i, distance, np.inf).min(1) for i in range(4)], 1)
    # An empty quadrant is a rim or a gap too wide to see across: go some way, to close the latter.
    closest = np.where(np.isfinite(closest), closest, 0.75 * distance.max(1)[:, None])
    radius = 0.9 * closest.max(1)
    typical = float(np.median(radius)) or 1.0
    # A stray point far from the rest must not become a plate, nor repeated points nothing.
    return np.clip(radius, 0.25 * typical, 4 * typical)


def _slope(offset: NDArray, rise: NDArray) -> NDArray:
    """Least-squares gradient (n, 2) of values that differ by rise (n, k) at offset (n, 2, k)."""
    square = np.einsum("nik,njk->nij", offset, offset)
    square += (1e-9 * np.trace(square, axis1=1, axis2=2) + 1e-300)[:, None, None] * np.eye(2)
    slope = np.linalg.solve(square, np.einsum("nik,nk->ni", offset, rise)[:, :, None])[:, :, 0]
    return np.where(np.isfinite(slope), slope, 0)


def see_points(discs: Surfels, camera: Camera, width: int, height: int) -> Seen:
    """What the camera sees of the discs, each pixel the mean of the front-most sheet of them."""
    discs = _without_hidden(discs, camera, width, height)
    normal = camera.turn(discs.frame[:, 2])
    to_eye = np.array([0, 0, camera.distance]) - camera.turn(discs.centre - camera.centre)
    normal *= np.where(dot(normal, to_eye) < 0, -1, 1)[:, None]
    nearest = np.zeros(width * height, dtype=np.float32)
    pieces = list(_draw(discs, camera, width, height, nearest))

    # What lies less than a radius behind the front belongs to the same sheet.
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
    return Seen(pixel, field / weight, unit(np.stack(axes, 1)), camera.height(nearest[pixel]))


def _draw(discs: Surfels, camera: Camera, width: int, height: int, nearest: NDArray) -> Iterator[tuple]:
    """The pixels of the discs in chunks: pixel, disc, u, v, nearness, each (k,).

    nearest (height * width,) is raised to the nearness of the front-most disc, complete after the last chunk.
    """
    corners, uv = _squares(discs, camera)
    runs = spans(corners[:, :, :2], width, height)
    (u0, du), (v0, dv), (q0, dq) = (
        [a.astype(np.float32) for a in Planes(corners[:, :, :2], data).along(runs)]
        for data in (uv[:, :, 0], uv[:, :, 1], corners[:, :, 2])
    )
    for part in runs.pieces():
        step = part.step.astype(np.float32)
        u, v = u0[part.span] + du[part.span] * step, v0[part.span] + dv[part.span] * step
        keep = np.flatnonzero(u * u + v * v < 1)
        span, pixel = part.span[keep], part.pixel[keep]
        q = q0[span] + dq[span] * step[keep]
        np.maximum.at(nearest, pixel, q)
        yield pixel, (runs.triangle[span] // 2).astype(np.int32), u[keep], v[keep], q


def _without_hidden(discs: Surfels, camera: Camera, width: int, height: int) -> Surfels:
    """The discs less those that a coarse picture shows to be well behind others: half of a closed surface."""
    coarse = 8
    camera = camera.enlarged(1 / coarse)
    width, height = -(-width // coarse), -(-height // coarse)
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
