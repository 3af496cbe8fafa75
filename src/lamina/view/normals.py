"""Normals for pictures: smooth where the surface is smooth, broken along its creases."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_CREASE = np.cos(np.radians(38.0))
_LARGEST_FAN = 64


def unit(vectors: NDArray) -> NDArray:
    """Vectors (..., 3) divided by their lengths; zero stays zero."""
    length = np.sqrt(dot(vectors, vectors))[..., None]
    return vectors / np.where(length > 0, length, 1)


def dot(a: NDArray, b: NDArray) -> NDArray:
    """Inner products (...) of vectors (..., 3)."""
    return np.einsum("...i,...i->...", a, b)


def corner_normals(points: NDArray, faces: NDArray, normals: NDArray | None = None) -> NDArray:
    """Unit normals (m, 3, 3) at the corners of triangles, by vertex unless a crease meets the vertex.

    normals (n, 3): what to use at smooth vertices, the area-weighted mean of the triangles' unless given.
    At a vertex with a triangle more than 38 degrees off that mean, each corner averages only the
    triangles of the vertex that lie within 38 degrees of its own.
    """
    a, b, c = points[faces].transpose(1, 0, 2)
    weighted = np.cross(b - a, c - a)
    own = unit(weighted)
    mean = np.zeros_like(points)
    for k in range(3):
        for axis in range(3):
            mean[:, axis] += np.bincount(faces[:, k], weighted[:, axis], len(points))
    mean = unit(mean)
    smooth = mean if normals is None else unit(normals)
    result = smooth[faces]
    sharp = np.zeros(len(points), dtype=bool)
    for k in range(3):
        sharp[faces[:, k][dot(own, mean[faces[:, k]]) < _CREASE]] = True
    face, k = np.nonzero(sharp[faces])
    result[face, k] = _creased(faces[face, k], face, own, weighted)
    return result


def _creased(vertex: NDArray, face: NDArray, own: NDArray, weighted: NDArray) -> NDArray:
    """Normals (c, 3) of corners, given the vertex and the triangle of each: the mean of those alike."""
    order = np.argsort(vertex, kind="stable")
    face = face[order]
    _, start, count = np.unique(vertex[order], return_index=True, return_counts=True)
    fan = np.repeat(count, count)
    # Enormous fans would make a quadratic number of pairs: there each corner is its triangle's.
    partners = np.where(fan <= _LARGEST_FAN, fan, 0)
    corner = np.repeat(np.arange(len(face)), partners)
    position = np.arange(len(corner)) - np.repeat(np.cumsum(partners) - partners, partners)
    other = face[np.repeat(start, count)[corner] + position]
    alike = dot(own[face[corner]], own[other]) > _CREASE
    total = np.zeros((len(face), 3))
    for axis in range(3):
        total[:, axis] = np.bincount(corner[alike], weighted[other[alike], axis], len(face))
    total = np.where(np.abs(total).sum(1, keepdims=True) > 0, total, own[face])
    result = np.empty_like(total)
    result[order] = unit(total)
    return result
