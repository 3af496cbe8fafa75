"""Maps of the unit sphere to a surface, for a network to learn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from lamina.errors import InputError
from lamina.geometry.sphericalise import sphericalise
from lamina.geometry.triangles import triangle_areas, unit
from lamina.surfaces.base import Surface
from lamina.surfaces.mesh import Mesh
from lamina.surfaces.spherical_map import SphericalMap

Draw = Callable[[int, torch.Generator], Tensor]


def uniform(count: int, generator: torch.Generator) -> Tensor:
    """Random unit vectors (count, 3), float64."""
    return unit(torch.randn(count, 3, generator=generator, dtype=torch.float64))


@dataclass(frozen=True)
class SphereTarget:
    """A map of unit vectors to points, and where on the sphere it is to be looked at."""

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
        # Its samples say on which device fn works; precision is that of a module's parameters.
        return SphereTarget(surface.fn)
    if isinstance(surface, Mesh):
        return mesh_target(surface)
    if isinstance(surface, Surface) or not callable(surface):
        raise InputError(
            f"A spherical neural surface is fitted to a SphericalMap or a closed Mesh, not to {type(surface).__name__}; "
            "make a mesh of it first."
        )
    return SphereTarget(surface)


def mesh_target(mesh: Mesh) -> SphereTarget:
    """The piecewise linear map of the sphere to a mesh, by `sphericalise`; drawn half by its area, half evenly.

    Parts that the map shrinks would hardly be seen if places were drawn on the sphere alone.
    """
    used, corners = torch.unique(mesh.same_vertex[cast(Tensor, mesh.faces)], return_inverse=True)
    points = mesh.points[used].cpu().double()
    corners = corners.cpu()
    sphere = sphericalise(points, corners)
    polyhedron = Mesh(sphere, corners, name="sphere")
    areas = triangle_areas(points[corners])

    def draw(count: int, generator: torch.Generator) -> Tensor:
        face = torch.multinomial(areas, count // 2, True, generator=generator)
        weight = torch.rand(count // 2, 3, generator=generator, dtype=torch.float64).log()
        weight = weight / weight.sum(1, keepdim=True)  # uniform in the triangle: Dirichlet(1, 1, 1)
        by_area = unit(torch.einsum("ni,nic->nc", weight, sphere[corners[face]]))
        return torch.cat([by_area, uniform(count - count // 2, generator)])

    def fn(s: Tensor) -> Tensor:
        # The nearest point of the polyhedron, not that on the ray to s: the two differ by the cube of its edges.
        return polyhedron.interpolate(points, s.cpu().double()).to(s)

    return SphereTarget(fn, draw)
