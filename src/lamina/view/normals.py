"""Normals for pictures and pages: smooth where the surface is smooth, discontinuous along its creases.

The software renderer and the viewer both use the normals of `corner_normals`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Two triangles that meet at less than 30 degrees belong to one smooth surface; at more than 45 degrees they form an
# edge. Between both angles their share in each other's normal falls linearly, so that a fold that slowly sharpens has
# no seam. With half of both angles a ball of 300 triangles shows its facets; with double, edges of a box are rounded.
_COS_SMOOTH = np.cos(np.radians(30.0))
_COS_SHARP = np.cos(np.radians(45.0))
# If all triangles of a vertex are within 15 degrees of their mean, no two of them are more than 30 degrees apart.
_COS_ALL_SMOOTH = np.cos(np.radians(15.0))
# At a crease vertex with more triangles than this, each corner has the normal of its triangle: the number of pairs of
# triangles grows with the square.
_MAX_FAN = 64
# Corners of a vertex whose normals agree when rounded to steps of 1/16, about 4 degrees, share one copy of the vertex.
_NORMAL_STEPS = 16
# Vertices are one if they round to the same point of a grid with this many cells across the surface.
_MERGE_CELLS = 2**20


def unit(vectors: NDArray) -> NDArray:
    """Vectors (..., 3) divided by their lengths; zero stays zero."""
    length = np.sqrt(dot(vectors, vectors))[..., None]
    return vectors / np.where(length > 0, length, 1)


def dot(a: NDArray, b: NDArray) -> NDArray:
    """Inner products (...) of vectors (..., 3)."""
    return np.einsum("...i,...i->...", a, b)


def merged(points: NDArray) -> tuple[NDArray, int]:
    """The number (n,) of the distinct position of each of points (n, 3), and the count of distinct positions.

    Files often repeat a vertex: once for each triangle (STL), or along a seam of a texture.
    """
    low = points.min(0)
    size = float(np.ptp(points, axis=0).max()) or 1.0
    cell = np.rint((points - low) * (_MERGE_CELLS / size)).astype(np.int64)
    _, place = np.unique((cell[:, 0] << 42) | (cell[:, 1] << 21) | cell[:, 2], return_inverse=True)
    return place.reshape(-1), int(place.max()) + 1


def corner_normals(points: NDArray, faces: NDArray, normals: NDArray | None = None) -> NDArray:
    """Unit normals (m, 3, 3) at the corners of triangles, one for each vertex unless a crease meets the vertex.

    Vertices at the same position count as one. normals (n, 3): used at smooth vertices instead of the area-weighted
    mean of the triangles, unless they are more than 45 degrees off this mean. At a crease each corner averages those
    triangles of its vertex that continue its own triangle smoothly.
    """
    place, count = merged(points)
    corner = place[faces]
    a, b, c = points[faces].transpose(1, 0, 2)
    weighted = np.cross(b - a, c - a)
    own = unit(weighted)
    if normals is not None:
        # A triangle is flipped if the normals at all three corners contradict its winding.
        normals = unit(np.nan_to_num(normals))
        turned = (dot(own[:, None], normals[faces]) < -_COS_SHARP).all(1)
        own, weighted = (np.where(turned[:, None], -v, v) for v in (own, weighted))
    mean = unit(_sums(corner.reshape(-1), np.repeat(weighted, 3, axis=0), count))
    smooth = mean if normals is None else _trusted(unit(_sums(place, normals, count)), mean)
    result = smooth[corner]
    off = dot(own[:, None], mean[corner]) < _COS_ALL_SMOOTH
    creased = np.zeros(count, dtype=bool)
    creased[corner[off]] = True
    face, k = np.nonzero(creased[corner])
    result[face, k] = _creased(corner[face, k], face, own, weighted)
    return result


def split_at_creases(
    points: NDArray, faces: NDArray, normals: NDArray | None = None
) -> tuple[NDArray, NDArray, NDArray[np.int8]]:
    """The same surface with one normal for each vertex, for programs without corner normals.

    Returns the vertices (k,) of which copies must be appended to the n points, the faces (m, 3) among all n + k
    vertices, and their normals (n + k, 3) as bytes, 127 being one.
    """
    n = len(points)
    corner = corner_normals(points, faces, normals).reshape(-1, 3)
    x, y, z = (np.rint(_NORMAL_STEPS * corner).astype(np.int64) + _NORMAL_STEPS).T
    kinds, kind = np.unique((faces.reshape(-1).astype(np.int64) << 18) | (x << 12) | (y << 6) | z, return_inverse=True)
    kind = kind.reshape(-1)
    owner = kinds >> 18
    repeated = np.concatenate([[False], owner[1:] == owner[:-1]])
    index = np.where(repeated, n + np.cumsum(repeated) - 1, owner)
    made = np.zeros((n + int(repeated.sum()), 3), dtype=np.int8)
    made[index] = np.rint(127 * unit(_sums(kind, corner, len(kinds))))
    return owner[repeated], index[kind].reshape(-1, 3), made


def _sums(group: NDArray, vectors: NDArray, count: int) -> NDArray:
    """Sums (count, 3) of vectors (k, 3) by group (k,)."""
    return np.stack([np.bincount(group, vectors[:, axis], count) for axis in range(3)], 1)


def _trusted(given: NDArray, mean: NDArray) -> NDArray:
    """Given normals, on the side of the triangles; the mean of the triangles where both contradict each other."""
    cosine = dot(given, mean)
    return np.where((np.abs(cosine) > _COS_SHARP)[:, None], given * np.where(cosine < 0, -1, 1)[:, None], mean)


def _creased(vertex: NDArray, face: NDArray, own: NDArray, weighted: NDArray) -> NDArray:
    """Normals (c, 3) of corners with given vertices and triangles: the mean of triangles that continue the own one."""
    order = np.argsort(vertex, kind="stable")
    face = face[order]
    _, start, count = np.unique(vertex[order], return_index=True, return_counts=True)
    fan = np.repeat(count, count)
    partners = np.where(fan <= _MAX_FAN, fan, 0)
    corner = np.repeat(np.arange(len(face)), partners)
    position = np.arange(len(corner)) - np.repeat(np.cumsum(partners) - partners, partners)
    other = face[np.repeat(start, count)[corner] + position]
    cosine = dot(own[face[corner]], own[other])
    share = np.clip((cosine - _COS_SHARP) / (_COS_SMOOTH - _COS_SHARP), 0, 1)
    some = np.flatnonzero(share)
    total = _sums(corner[some], share[some, None] * weighted[other[some]], len(face))
    total = np.where(np.abs(total).sum(1, keepdims=True) > 0, total, own[face])
    result = np.empty_like(total)
    result[order] = unit(total)
    return result
