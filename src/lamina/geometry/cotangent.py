"""Matrices of linear finite elements on triangles, summed over any number of triangles at an edge.

With hat functions phi_i over the vertices, stiffness K_ij = int grad phi_i . grad phi_j and mass M_ij = int phi_i
phi_j. On a triangle with angle t_k at corner k the two vertices opposite to it are coupled by K_ij = -cot(t_k) / 2
(Pinkall and Polthier, "Computing discrete minimal surfaces and their conjugates", 1993; Dziuk, "Finite elements for the
Beltrami operator", 1988).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from lamina.errors import InputError

Array = NDArray[np.float64]

# A triangle is left out if twice its area is not above this share of its longest edge squared: coordinates have 16
# digits, so a smaller area is mostly their rounding, and its cotangents would be arbitrary.
MIN_DOUBLE_AREA_SHARE = 1e-13


@dataclass(frozen=True)
class Triangles:
    """The triangles with an area. Row k of `corner` and `cotangent` belongs to corner k."""

    corner: NDArray[np.int32]  # (3, m) vertices
    cotangent: Array  # (3, m) of the angle there
    area: Array  # (m,)
    vertices: int


def cotangent_stiffness(V: ArrayLike, F: ArrayLike) -> sp.csr_array:
    """Stiffness matrix K (n, n) of vertices V (n, 3) and triangles F (m, 3), symmetric and positive semi-definite."""
    return stiffness_matrix(triangles_of(*checked_mesh(V, F)))


def mass_matrix(V: ArrayLike, F: ArrayLike, *, lumped: bool = False) -> sp.csr_array:
    """Mass matrix M (n, n): each triangle adds area / 6 on the diagonal and area / 12 off it.

    lumped: return the diagonal matrix of the row sums instead, a third of the area around each vertex.
    """
    return mass_of(triangles_of(*checked_mesh(V, F)), lumped)


def checked_mesh(V: ArrayLike, F: ArrayLike) -> tuple[Array, NDArray[np.int64]]:
    """V (n, 3) and F (m, 3) as arrays; raises InputError if they are not a triangle mesh."""
    vertices = np.ascontiguousarray(V, dtype=np.float64)
    faces = np.ascontiguousarray(F)
    if vertices.ndim != 2 or vertices.shape[1] != 3 or not np.isfinite(vertices).all():
        raise InputError(f"V has shape {vertices.shape}; expected finite coordinates (n, 3).")
    if faces.ndim != 2 or faces.shape[1] != 3 or faces.dtype.kind not in "iu" or len(faces) == 0:
        raise InputError(f"F has shape {faces.shape} and type {faces.dtype}; expected integers (m, 3), m > 0.")
    if faces.min() < 0 or faces.max() >= len(vertices):
        raise InputError(f"F refers to vertices {faces.min()} to {faces.max()}, but V has {len(vertices)} rows.")
    return vertices, faces.astype(np.int64, copy=False)


def triangles_of(V: Array, F: NDArray[np.int64]) -> Triangles:
    """The triangles F (m, 3) over V (n, 3) that have an area."""
    # Coordinate by coordinate in contiguous arrays, which is several times faster than rows of three.
    corner = np.ascontiguousarray(F.T, dtype=np.int32)
    p = [[x.take(c) for x in np.ascontiguousarray(V.T)] for c in corner]
    # edge[k] is opposite to corner k.
    edge = [[b - a for a, b in zip(p[k - 2], p[k - 1], strict=True)] for k in range(3)]
    (ax, ay, az), (bx, by, bz), _ = edge
    double_area = np.sqrt((ay * bz - az * by) ** 2 + (az * bx - ax * bz) ** 2 + (ax * by - ay * bx) ** 2)
    longest = np.maximum.reduce([_dot(e, e) for e in edge])
    solid = double_area > MIN_DOUBLE_AREA_SHARE * longest
    cosine = np.stack([-_dot(edge[k - 2], edge[k - 1]) for k in range(3)])
    if not solid.all():
        corner, cosine, double_area = corner[:, solid], cosine[:, solid], double_area[solid]
    return Triangles(corner, cosine / double_area, double_area / 2, len(V))


def _dot(a: list[Array], b: list[Array]) -> Array:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def scatter(triangles: Triangles, at_corner: Array) -> Array:
    """Sums (n,) at the vertices of values at the corners (3, m)."""
    total = np.bincount(triangles.corner.reshape(-1), at_corner.reshape(-1), triangles.vertices)
    return total.astype(np.float64, copy=False)


def _edges(triangles: Triangles, weight: Array) -> sp.csr_array:
    """Symmetric matrix without diagonal: weight (3, m) belongs to the edge opposite to each corner, and is summed."""
    i, j = np.roll(triangles.corner, -1, 0).reshape(-1), np.roll(triangles.corner, -2, 0).reshape(-1)
    n = triangles.vertices
    # Only the upper half is sorted: twice as fast as sorting both halves.
    upper = sp.coo_array((weight.reshape(-1), (np.minimum(i, j), np.maximum(i, j))), shape=(n, n)).tocsr()
    return (upper + upper.T.tocsr()).tocsr()


def stiffness_matrix(triangles: Triangles) -> sp.csr_array:
    """Stiffness matrix (n, n), as cotangent_stiffness."""
    edges = _edges(triangles, triangles.cotangent / 2)
    return (sp.diags_array(edges.sum(1)).tocsr() - edges).tocsr()


def vertex_areas(triangles: Triangles) -> Array:
    """A third of the area of the triangles around each vertex (n,)."""
    return scatter(triangles, np.broadcast_to(triangles.area / 3, triangles.corner.shape))


def mass_of(triangles: Triangles, lumped: bool) -> sp.csr_array:
    """Mass matrix (n, n), as mass_matrix."""
    areas = vertex_areas(triangles)
    if lumped:
        return sp.diags_array(areas).tocsr()
    twelfth = np.broadcast_to(triangles.area / 12, triangles.corner.shape)
    return (_edges(triangles, twelfth) + sp.diags_array(areas / 2)).tocsr()
