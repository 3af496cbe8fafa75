"""Triangles of polygons: a fan from the first corner if that covers the polygon, ears cut off one by one otherwise.

A polygon p_0, ..., p_{c-1} has the normal N = sum_i (p_i - p_0) x (p_{i+1} - p_0). If no triangle (p_0, p_i, p_{i+1})
points against N, these triangles cover the polygon once. Otherwise ears are cut off one after the other (Meisters 1975,
"Polygons have ears"); a cut changes only the two corners beside it (O'Rourke 1998, "Computational geometry in C", 1.3).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Ears of a polygon with c corners take O(c^2) steps, a second for this many; larger ones are split from their first
# corner: at half of it outlines of drawings are split wrongly, at double a file can keep the reader busy for seconds.
MAX_EAR_CORNERS = 5_000
# A triangle of the fan counts as turned over if its normal points against that of the polygon by more than this share
# of the squared area: less can be rounding. Half or double makes no difference in float64.
TURNED_OVER_TOLERANCE = 1e-12


@dataclass(frozen=True)
class Triangulated:
    """Triangles (m, 3), and how many polygons have fewer than three corners or could only be fanned."""

    triangles: NDArray
    too_few: int
    crossing: int


def triangulate(points: NDArray, polygons: NDArray | Sequence[Sequence[int]]) -> Triangulated:
    """Triangles of polygons (k, c), or of a sequence of k lists, over points (n, 3); small polygons come first."""
    if isinstance(polygons, np.ndarray) and polygons.ndim == 2:
        groups = [polygons.astype(np.int64)]
    else:
        rows = list(polygons)
        sizes = np.fromiter(map(len, rows), np.int64, len(rows))
        groups = [np.array([rows[i] for i in np.flatnonzero(sizes == c)], dtype=np.int64) for c in np.unique(sizes)]
    found, too_few, crossing = [np.zeros((0, 3), np.int64)], 0, 0
    for group in groups:
        if group.shape[1] < 3:
            too_few += len(group)
            continue
        triangles = fan(group)
        for i in _concave(points, group):
            ears = _ears(_flattened(points[group[i]])) if group.shape[1] <= MAX_EAR_CORNERS else None
            if ears is None:
                crossing += 1
            else:
                triangles[i] = group[i][ears]
        found.append(triangles.reshape(-1, 3))
    return Triangulated(np.concatenate(found), too_few, crossing)


def fan(polygons: NDArray) -> NDArray:
    """Triangles (k, c - 2, 3) of polygons (k, c), each split from its first corner."""
    first = np.broadcast_to(polygons[:, :1], polygons[:, 2:].shape)
    return np.stack([first, polygons[:, 1:-1], polygons[:, 2:]], 2)


def _concave(points: NDArray, polygons: NDArray) -> NDArray:
    """Rows of the polygons (k, c) that their fan does not cover; none where a corner is no point."""
    if polygons.shape[1] == 3 or not len(polygons) or polygons.min() < 0 or polygons.max() >= len(points):
        return np.zeros(0, np.int64)
    arms = points[polygons[:, 1:]] - points[polygons[:, :1]]
    with np.errstate(invalid="ignore", over="ignore"):
        normals = np.cross(arms[:, :-1], arms[:, 1:])
        total = normals.sum(1, keepdims=True)
        against = (normals * total).sum(2) < -TURNED_OVER_TOLERANCE * (total**2).sum(2)
    return np.flatnonzero(against.any(1))


def _flattened(corners: NDArray) -> NDArray:
    """Corners (c, 3) in the plane of their normal (c, 2), counterclockwise."""
    arms = corners - corners[0]
    normal = np.cross(arms[:-1], arms[1:]).sum(0)
    axis = np.eye(3)[np.abs(normal).argmin()]
    u = np.cross(axis, normal)
    u /= np.linalg.norm(u) or 1.0
    v = np.cross(normal, u)
    v /= np.linalg.norm(v) or 1.0
    return arms @ np.stack([u, v], 1)


def _ears(p: NDArray) -> NDArray | None:
    """Triangles (c - 2, 3) of a polygon with corners p (c, 2), counterclockwise; None if it crosses itself."""
    count = len(p)
    before, after = np.roll(np.arange(count), 1), np.roll(np.arange(count), -1)
    left = np.ones(count, dtype=bool)
    found: list[tuple[int, int, int]] = []
    waiting, queued = deque(range(count)), np.ones(count, dtype=bool)
    while waiting and len(found) < count - 3:
        b = waiting.popleft()
        queued[b] = False
        a, c = int(before[b]), int(after[b])
        if not left[b] or not _is_ear(p[a], p[b], p[c], p[left]):
            continue
        found.append((a, b, c))
        left[b] = False
        after[a], before[c] = c, a
        # The neighbours go to the end of the queue, so that no corner becomes the tip of all triangles.
        for neighbour in (a, c):
            if not queued[neighbour]:
                waiting.append(neighbour)
                queued[neighbour] = True
    if len(found) < count - 3:
        return None
    a, b, c = np.flatnonzero(left)
    return np.array([*found, (a, b, c)]) if _turn(p[a], p[b], p[c]) >= 0 else None


def _is_ear(a: NDArray, b: NDArray, c: NDArray, others: NDArray) -> bool:
    """Whether the triangle a, b, c (2,) has area and holds none of the others (n, 2) away from its own corners."""
    if _turn(a, b, c) <= 0:
        return False
    inside = (_turn(a, b, others) >= 0) & (_turn(b, c, others) >= 0) & (_turn(c, a, others) >= 0)
    corner = (others == a).all(1) | (others == b).all(1) | (others == c).all(1)
    return not bool((inside & ~corner).any())


def _turn(a: NDArray, b: NDArray, c: NDArray) -> NDArray:
    """Twice the signed area of a, b (2,) and c (2,) or (n, 2)."""
    return (b[0] - a[0]) * (c[..., 1] - a[1]) - (b[1] - a[1]) * (c[..., 0] - a[0])
