"""Triangles through clean oriented samples, however unevenly these are spread: a cut of their Delaunay tetrahedra.

Every tetrahedron is inside or outside, and the surface is where the two meet. Two terms decide (Labatut, Pons and
Keriven 2009, "Robust and efficient surface reconstruction from range data", with normals in place of lines of sight):

- Around each sample a tetrahedron takes up a solid angle w, in the direction d. With d . n > 0 it costs w (d . n)^3 to
  call it inside, with d . n < 0 it costs w |d . n|^3 to call it outside.
- A triangle of the surface costs LOOSE (1 - min(cos a, cos b)), a and b the angles at which the circumspheres of its
  two tetrahedra meet it: little where both are large and empty, as they are where the surface is.

The smallest total is a minimum cut of a graph. The world around is outside, so open surfaces get lids, which the
normals at their corners contradict.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow
from scipy.spatial import Delaunay, QhullError
from torch import Tensor

from lamina.geometry.triangles import dot, triangle_areas, unit
from lamina.search.neighbours import voronoi_areas

POWER, LOOSE, LARGE = 3.0, 0.3, 0.003
UNITS = 10_000  # costs are whole numbers of this part
SHAKE = 1e-9  # of the extent
FACES, ASKEW = 0.9, 0.1  # cosines: of a normal with the mean of the four, and at most of an edge with it, on a face
FLAT = 1e-6  # six volumes, over the cube of the size, of a tetrahedron that is but a piece of a plane
OPPOSITE = torch.tensor([[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]])  # corners of the face across from each corner


def triangulate(points: Tensor, normals: Tensor) -> Tensor | None:
    """Triangles (t, 3) int64 over points (m, 3) with normals (m, 3) of agreeing signs, facing as these do.

    None where there are too few points. On the CPU, wherever the points are.
    """
    p, n = points.detach().double().cpu(), normals.detach().double().cpu()
    areas = voronoi_areas(p, n)
    inwards = float((areas[:, None] * (p - p.mean(0)) * n).sum()) < 0
    n = -n if inwards else n
    p = _shaken(p)
    try:
        found = Delaunay(p.numpy())
    except QhullError:
        return None
    tets, across = (torch.from_numpy(v.astype(np.int64)) for v in (found.simplices, found.neighbors))
    inside_costs, outside_costs = _sky(p[tets], n[tets])
    face, within, beyond, cost = _faces(p, tets, across, float(areas.mean()))
    outside = _cut(inside_costs, outside_costs, within, beyond, cost)
    a, b = outside[within], outside[beyond]
    # `face` looks from `within` to `beyond`.
    triangles = torch.cat([face[~a & b], face[a & ~b].flip(1)])
    return (triangles.flip(1) if inwards else triangles).to(points.device)


def _shaken(p: Tensor) -> Tensor:
    """p moved by next to nothing: points of a plane or a sphere cost Delaunay's algorithm far more time than others."""
    size = SHAKE * (p.amax(0) - p.amin(0)).max()
    return p + size * torch.randn(p.shape, generator=torch.Generator().manual_seed(0), dtype=p.dtype)


def _sky(corner: Tensor, normal: Tensor) -> tuple[Tensor, Tensor]:
    """What it costs (t,) to call tetrahedra with corners (t, 4, 3), and normals there, inside; and outside.

    Flat ones take up nothing of the sky, or, seen from a corner between the others, by mistake the half of it. On a
    face of the surface it would be the same to have them inside or outside, but they go on over its notches, where
    only outside will do: inside they cost more than their triangles usually save.
    """
    edges = corner[:, 1:] - corner[:, :1]
    solid = torch.linalg.det(edges).abs() > FLAT * edges.abs().amax((1, 2)) ** 3
    mean = unit(normal.sum(1))[:, None]
    on_face = (dot(mean, normal).amin(1) > FACES) & (dot(unit(edges), mean).abs().amax(1) < ASKEW)
    inside = 4 * LOOSE * (~solid & on_face).to(corner.dtype)
    outside = torch.zeros_like(inside)
    for k, others in enumerate(OPPOSITE):
        edge = corner[:, others] - corner[:, k, None]
        towards = dot(unit(edge.mean(1)), normal[:, k])
        angle = solid * _solid_angle(edge)
        inside += angle * towards.clamp_min(0) ** POWER
        outside += angle * (-towards).clamp_min(0) ** POWER
    return inside, outside


def _solid_angle(edge: Tensor) -> Tensor:
    """Of the cone (t,) over edges (t, 3, 3): Van Oosterom and Strackee 1983, "The solid angle of a plane triangle"."""
    a, b, c = edge.unbind(1)
    la, lb, lc = (dot(v, v).sqrt() for v in (a, b, c))
    over = dot(a, torch.linalg.cross(b, c)).abs()
    return 2 * torch.atan2(over, la * lb * lc + dot(a, b) * lc + dot(a, c) * lb + dot(b, c) * la)


def _faces(p: Tensor, tets: Tensor, across: Tensor, usual: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Each face (f, 3) once, the tetrahedra (f,), (f,) that it looks from and to, and what it costs in the surface.

    usual: area of a triangle that costs LARGE for its size. The world around has the number of tetrahedra, and the
    circumsphere of a half space.
    """
    count = len(tets)
    centre = _circumcentres(p[tets])
    parts = []
    for k, others in enumerate(OPPOSITE):
        own = ((across[:, k] > torch.arange(count)) | (across[:, k] < 0)).nonzero()[:, 0]
        other, face = across[own, k], tets[own][:, others]
        origin = p[face[:, 0]]
        normal = unit(torch.linalg.cross(p[face[:, 1]] - origin, p[face[:, 2]] - origin))
        turned = dot(p[tets[own, k]] - origin, normal) > 0
        face, normal = torch.where(turned[:, None], face.flip(1), face), torch.where(turned[:, None], -normal, normal)
        here = -_height(centre[own] - origin, normal)
        there = torch.where(other < 0, 1.0, _height(centre[other] - origin, normal))
        cost = LOOSE * (1 - torch.minimum(here, there)) + LARGE * triangle_areas(p[face]) / usual
        parts.append((face, own, torch.where(other < 0, count, other), cost))
    face, own, other, cost = (torch.cat(part) for part in zip(*parts, strict=True))
    return face, own, other, cost


def _height(offset: Tensor, normal: Tensor) -> Tensor:
    """Cosine (f,) of the angle between a plane and a sphere with its centre at an offset (f, 3) from a common point."""
    return dot(offset, normal) / dot(offset, offset).sqrt().clamp_min(torch.finfo(offset.dtype).tiny)


def _circumcentres(corner: Tensor) -> Tensor:
    """Centres (t, 3) of the spheres through corners (t, 4, 3); where there is none, the middle of these."""
    edge = corner[:, 1:] - corner[:, :1]
    has = torch.linalg.det(edge) != 0
    centre = corner.mean(1)
    half = 0.5 * dot(edge[has], edge[has])
    centre[has] = corner[has, 0] + torch.linalg.solve(edge[has], half[..., None])[..., 0]
    return centre


def _cut(inside: Tensor, outside: Tensor, first: Tensor, second: Tensor, cost: Tensor) -> Tensor:
    """Which of t tetrahedra and the world around (t + 1,) are outside, given what it costs (t,) to call them inside
    and outside, and what faces between first and second (f,) cost (f,)."""
    count = len(inside)
    source, sink, every = count + 1, count + 2, torch.arange(count)
    rows = torch.cat([first, second, torch.full_like(every, source), every]).numpy()
    columns = torch.cat([second, first, every, torch.full_like(every, sink)]).numpy()
    capacity = (torch.cat([cost, cost, inside, outside]) * UNITS).round().to(torch.int32).numpy()
    # Nothing cuts the world around off from the source.
    rows, columns = np.append(rows, source), np.append(columns, count)
    capacity = np.append(capacity, np.int32(2**30))
    graph = csr_array(coo_array((capacity, (rows, columns)), shape=(count + 3, count + 3)))
    left = graph - maximum_flow(graph, source, sink).flow
    left.data = np.maximum(left.data, 0)
    left.eliminate_zeros()
    reached = torch.from_numpy(breadth_first_order(left, source, return_predecessors=False).astype(np.int64))
    found = torch.zeros(count + 3, dtype=torch.bool)
    found[reached] = True
    return found[: count + 1]
