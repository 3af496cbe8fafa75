"""Split the long edges of a mesh: the same polyhedron, with triangles of similar size, for reference solutions."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lamina.errors import InputError


def split_long_edges(V: ArrayLike, F: ArrayLike, longest: float) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Vertices and triangles without edges longer than `longest`, on the surface of V (n, 3), F (m, 3).

    In every round all edges that are too long are halved, and their triangles are cut into two, three or four. The
    first n vertices stay those of V. Uniform refinement of a mesh with a few large triangles in its flat parts wastes
    vertices elsewhere; splitting brings such a mesh to one size first.
    """
    vertices, faces = np.asarray(V, dtype=np.float64), np.asarray(F, dtype=np.int64)
    if not longest > 0:
        raise InputError(f"longest is {longest}; expected a positive length.")
    while True:
        # Edge k of a triangle leads from its corner k to the next.
        ends = np.stack([faces, np.roll(faces, -1, 1)], -1)  # (m, 3, 2)
        long = np.linalg.norm(vertices[ends[..., 0]] - vertices[ends[..., 1]], axis=-1) > longest
        if not long.any():
            return vertices, faces
        edges, which = np.unique(np.sort(ends[long], axis=-1), axis=0, return_inverse=True)
        middle = np.full(faces.shape, -1)
        middle[long] = len(vertices) + which.reshape(-1)
        vertices = np.concatenate([vertices, vertices[edges].mean(1)])
        faces = np.concatenate(_cut(vertices, faces, middle))


def _cut(vertices: NDArray[np.float64], faces: NDArray[np.int64], middle: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Triangles (m, 3) cut at the middles (m, 3) of their edges, -1 where an edge stays whole."""
    count = (middle >= 0).sum(1)
    parts = [faces[count == 0]]
    # Corners are rotated so that the first edge is the only cut one, or the last edge the only whole one.
    for wanted, turn_to in ((1, lambda cut: np.argmax(cut, 1)), (2, lambda cut: np.argmin(cut, 1) + 1), (3, None)):
        rows = count == wanted
        shift = 0 if turn_to is None else turn_to(middle[rows] >= 0)
        order = (np.arange(3) + np.reshape(shift, (-1, 1))) % 3 if turn_to else np.tile(np.arange(3), (rows.sum(), 1))
        a, b, c = np.take_along_axis(faces[rows], order, 1).T
        ab, bc, ca = np.take_along_axis(middle[rows], order, 1).T
        if wanted == 1:
            triangles = [(a, ab, c), (ab, b, c)]
        elif wanted == 3:
            triangles = [(a, ab, ca), (ab, b, bc), (ca, bc, c), (ab, bc, ca)]
        else:
            # The quadrilateral a, ab, bc, c is cut along its shorter diagonal.
            by_middle = np.linalg.norm(vertices[ab] - vertices[c], axis=1) < np.linalg.norm(
                vertices[a] - vertices[bc], axis=1
            )
            first = np.where(by_middle, c, bc)
            second = np.where(by_middle, ab, a)
            triangles = [(ab, b, bc), (a, ab, first), (second, bc, c)]
        parts += [np.stack(t, 1) for t in triangles]
    return parts
