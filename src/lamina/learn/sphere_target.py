"""Maps of the unit sphere to a surface, for a network to learn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from lamina.errors import InputError
from lamina.geometry.triangles import triangle_areas, unit
from lamina.learn.sphericalise import sphericalise
from lamina.search.neighbours import PointTree
from lamina.surfaces.base import Surface
from lamina.surfaces.mesh import Mesh
from lamina.surfaces.spherical_map import SphericalMap

# Numbers of nearest triangles among which the one around a point is searched for, in turn; at last all are searched.
TRIANGLES_SEARCHED = (8, 64, 512)
# A point is in a triangle if its least weight is above minus this. It allows for rounding at edges.
MAX_NEGATIVE_WEIGHT = 1e-9
WEIGHTS_AT_A_TIME = 2**20  # pairs of point and triangle, to bound the memory

Draw = Callable[[int, torch.Generator], Tensor]


def uniform(count: int, generator: torch.Generator) -> Tensor:
    """Random unit vectors (count, 3), float64."""
    return unit(torch.randn(count, 3, generator=generator, dtype=torch.float64))


@dataclass(frozen=True)
class SphereTarget:
    """A map of unit vectors to points, and the distribution of points on the sphere at which it is fitted."""

    fn: Callable[[Tensor], Tensor]
    draw: Draw = uniform  # (count, generator) -> (count, 3) float64 on the CPU

    @torch.no_grad()
    def __call__(self, s: Tensor) -> Tensor:
        """Points (n, 3) for unit vectors (n, 3), of the same precision and on the same device."""
        like = next(iter(self.fn.parameters()), s) if isinstance(self.fn, nn.Module) else s
        y = self.fn(s.to(like))
        if not isinstance(y, Tensor) or y.shape != s.shape or not bool(y.isfinite().all()):
            got = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
            raise InputError(f"The target must map unit vectors {tuple(s.shape)} to finite points, got {got}.")
        return y.to(s)


def sphere_target(surface: Surface | Callable[[Tensor], Tensor]) -> SphereTarget:
    """The map behind a SphericalMap, or one made for a closed Mesh without handles.

    Raises InputError for other surfaces, and for meshes that cannot be laid over a sphere.
    """
    if isinstance(surface, SphericalMap):
        return SphereTarget(surface.fn)
    if isinstance(surface, Mesh):
        return mesh_target(surface)
    if isinstance(surface, Surface) or not callable(surface):
        raise InputError(
            "A spherical neural surface is fitted to a SphericalMap or a closed Mesh; got "
            f"{type(surface).__name__}: make a mesh of it first."
        )
    return SphereTarget(surface)


def mesh_target(mesh: Mesh) -> SphereTarget:
    """The piecewise linear map of the sphere to a mesh, by `sphericalise`.

    Half of the random points are uniform by the area of the mesh, half uniform on the sphere. Points uniform on the
    sphere alone would hardly ever be in parts that the map to the sphere shrinks.
    """
    used, corners = torch.unique(mesh.same_vertex[cast(Tensor, mesh.faces)], return_inverse=True)
    points, corners = mesh.points[used].cpu().double(), corners.cpu()
    sphere = sphericalise(points, corners)
    find = SphereFaces(sphere[corners])
    areas = triangle_areas(points[corners])

    def draw(count: int, generator: torch.Generator) -> Tensor:
        face = torch.multinomial(areas, count // 2, True, generator=generator)
        weight = torch.rand(count // 2, 3, generator=generator, dtype=torch.float64).log()
        weight = weight / weight.sum(1, keepdim=True)  # uniform in the triangle: Dirichlet(1, 1, 1)
        by_area = unit(torch.einsum("ni,nic->nc", weight, sphere[corners[face]]))
        return torch.cat([by_area, uniform(count - count // 2, generator)])

    def fn(s: Tensor) -> Tensor:
        face, weight = find(s.cpu().double())
        return torch.einsum("ni,nic->nc", weight, points[corners[face]]).to(s)

    return SphereTarget(fn, draw)


class SphereFaces:
    """Triangles (m, 3, 3) between unit vectors that cover the sphere once, prepared for the search of points.

    A point s = w_1 a + w_2 b + w_3 c has weights w >= 0 in the triangle abc that contains it. That triangle is searched
    for among those whose centres are nearest to s: first among few, at last among all.
    """

    def __init__(self, corners: Tensor) -> None:
        self.tree = PointTree(unit(corners.mean(1)))
        self.inverse = torch.linalg.inv(corners.transpose(1, 2))

    def __call__(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """The triangle (n,) int64 around each of the unit vectors s (n, 3), and the weights (n, 3), of sum 1."""
        face, weight = torch.zeros(len(s), dtype=torch.int64), torch.zeros_like(s)
        todo = torch.arange(len(s))
        for k in (*TRIANGLES_SEARCHED, len(self.inverse)):
            missed = []
            for rows in todo.split(max(1, WEIGHTS_AT_A_TIME // k)):
                near, _ = self.tree.query(s[rows], min(k, len(self.inverse)))
                w = torch.einsum("nkij,nj->nki", self.inverse[near], s[rows])
                total = w.sum(2, keepdim=True)
                w = (w / total).masked_fill(total <= 0, -torch.inf)  # not the triangle on the other side
                inside, best = w.amin(2).max(1)
                one = torch.arange(len(rows))
                face[rows], weight[rows] = near[one, best], w[one, best].clamp_min(0)
                missed.append(rows[inside < -MAX_NEGATIVE_WEIGHT])
            todo = torch.cat(missed)
            if len(todo) == 0:
                break
        return face, weight / weight.sum(1, keepdim=True)
