"""Part of a surface: where a function of space is positive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor

from lamina.checks import returned
from lamina.errors import InputError
from lamina.geometry.lattice import Lattice
from lamina.geometry.tetrahedra import clip as clip_triangles
from lamina.geometry.triangles import dot, unit, vertex_areas
from lamina.linear.graph import components
from lamina.search.neighbours import connected_pieces, k_nearest
from lamina.surfaces.base import RADIUS_SLACK, ClosestPoints, NearNodes, Surface
from lamina.surfaces.mesh import Mesh
from lamina.surfaces.zero_set import value_and_gradient

Function = Callable[[Tensor], Tensor]
# Steps of the search for closest points on a rim. On a straight rim each step leaves 0.2 of the error (see below), so
# that 30 reach rounding; half would leave 3e-11, double cost twice the time.
CLIP_RIM_STEPS = 30
# Share of the way along the rim that a step takes: less than 1, so that curved rims are not overshot; chosen by trial.
# Half leaves 0.6 of the error in each step; double overshoots every time.
CLIP_RIM_STEP_SHARE = 0.8
# The search ends when no point moved by more than this share of the largest coordinate, which is about rounding.
CLIP_RIM_TOLERANCE = 1e-12


def clip(surface: Surface, function: Function) -> Surface:
    """The part of a surface where a function is positive. It ends where the function vanishes.

    Triangles of a mesh are cut as if the function were linear in each. Any other surface keeps its own geometry.

    Parameters
    ----------
    surface : Surface
        The surface.
    function : callable
        A function of points (n, 3) with real values (n,).

    Returns
    -------
    Surface
        The part: a `Mesh` of a mesh, otherwise a surface of the same representation.

    Raises
    ------
    InputError
        If the arguments are invalid, or if the function is positive nowhere on the surface.

    Examples
    --------
    >>> import lamina
    >>> half = lamina.clip(lamina.Sphere(level=3), lambda p: p[:, 2])
    >>> half.open, float(half.points[:, 2].min()) >= 0
    (True, True)
    """
    if not callable(function):
        raise InputError(f"clip needs a function of an (n, 3) tensor, got {type(function).__name__}.")
    if not isinstance(surface, Surface):
        raise InputError(f"clip needs a lamina surface, got {type(surface).__name__}.")
    height = returned(function(surface.points), "the function to clip by", len(surface.points))
    if not height.is_floating_point():
        raise InputError(f"the function to clip by returned {height.dtype}; expected real numbers, such as heights.")
    if not bool((height > 0).any()):
        raise InputError("Nothing is left of the surface: the function to clip by is positive nowhere on it.")
    return _clipped_mesh(surface, height) if surface.faceted else Clipped(surface, function)


def _clipped_mesh(mesh: Surface, height: Tensor) -> Mesh:
    assert mesh.faces is not None
    cut = clip_triangles(mesh.faces, height)
    if not len(cut.triangles):
        raise InputError("Nothing is left of the mesh: no triangle has a part where the function is positive.")
    a, b = mesh.points[cut.ends].unbind(1)
    points = torch.cat([mesh.points, torch.lerp(a, b, cut.fraction[:, None])])
    used, faces = torch.unique(cut.triangles, return_inverse=True)
    return Mesh(points[used], faces, name=mesh.name)


class Clipped(Surface):
    """The part of a surface where a function is positive. Feet that lie outside the part are moved to its rim."""

    open = True

    def __init__(self, base: Surface, function: Function):
        super().__init__(base.name)
        self.base, self.function = base, function
        self.representation, self.reach = base.representation, base.reach
        self.inherit_traits(base)
        # The notes are those of the base, the same list: a cloud adds to it when it is first fitted.
        self.notes, self.facts = base.notes, dict(base.facts)
        if base.faces is not None:
            self._take_faces(base.points, base.faces)
        else:
            rows = (function(base.points) > 0).nonzero()[:, 0]
            self.points, self.normals, self.areas = base.points[rows], base.normals[rows], base.areas[rows]
            self.component = connected_pieces(self.points, self.normals)

    def _take_faces(self, points: Tensor, faces: Tensor) -> None:
        """Take as samples the corners of what is left of triangles (m, 3) over points (n, 3)."""
        cut = clip_triangles(faces, self.function(points))
        a, b = points[cut.ends].unbind(1)
        new = self.base.closest_points(torch.lerp(a, b, cut.fraction[:, None]))
        on_rim = self._to_rim(new.points, new)
        used, faces = torch.unique(cut.triangles, return_inverse=True)
        self.faces = faces
        feet = self.base.own_feet()
        self.points = torch.cat([feet.points, on_rim.points])[used]
        self.normals = torch.cat([feet.normals, on_rim.normals])[used]
        self.areas = vertex_areas(self.points, faces)
        i, j, k = faces.unbind(1)
        self.component = components(len(used), torch.cat([i, j]), torch.cat([j, k]))

    def closest_points(self, x: Tensor) -> ClosestPoints:
        return self._moved_to_part(x, self.base.closest_points(x))

    def nodes_near(self, lattice: Lattice, radius: float) -> NearNodes:
        near = self.base.nodes_near(lattice, radius)
        x = lattice.position(near.ijk)
        feet = self._moved_to_part(x, near.feet)
        offset = x - feet.points
        rows = dot(offset, offset) <= (radius * (1 + RADIUS_SLACK)) ** 2
        return NearNodes(near.ijk[rows], feet.take(rows))

    def own_feet(self) -> ClosestPoints:
        return ClosestPoints(self.points, self.normals, self.component)

    def sample(self, count: int, seed: int = 0) -> ClosestPoints:
        """count random points, uniform by area: the random points of the whole surface that lie on this part."""
        share = float(self.areas.sum() / self.base.areas.sum())
        tries = count
        while True:
            tries = int(1.2 * tries / max(share, 1e-3)) + 100
            feet = self.base.sample(tries, seed)
            rows = (self.function(feet.points) > 0).nonzero()[:, 0][:count]
            if len(rows) == count:
                feet = feet.take(rows)
                return replace(feet, component=self._component_of(feet.points))

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        moved = super().to(device, dtype)
        moved.base = self.base.to(device, dtype)
        moved.notes = moved.base.notes
        return moved

    def _moved_to_part(self, x: Tensor, feet: ClosestPoints) -> ClosestPoints:
        beyond = self.function(feet.points) < 0
        rows = beyond.nonzero()[:, 0]
        if len(rows):
            # The search starts at the nearest sample of the part: the foot outside it may be far from any rim.
            start = self.own_feet().take(k_nearest(self.points, 1, x[rows])[0][:, 0])
            rim = self._to_rim(x[rows], start)
            feet = replace(
                feet, points=feet.points.index_copy(0, rows, rim.points),
                normals=feet.normals.index_copy(0, rows, rim.normals),
            )  # fmt: skip
        before = feet.beyond
        return replace(
            feet, component=self._component_of(feet.points), beyond=beyond if before is None else beyond | before
        )

    def _component_of(self, points: Tensor) -> Tensor:
        if self.component_count == 1:
            return torch.zeros(len(points), dtype=torch.int64, device=points.device)
        return self.component[k_nearest(self.points, 1, points)[0][:, 0]]

    def _to_rim(self, x: Tensor, feet: ClosestPoints) -> ClosestPoints:
        """Closest points of x (n, 3) on the curve where the function vanishes, from feet on the whole surface.

        Each step goes by Newton's method towards the curve and along the curve towards x, both within the surface.
        """
        for _ in range(CLIP_RIM_STEPS if len(x) else 0):
            value, gradient = value_and_gradient(self.function, feet.points)
            slope = gradient - dot(gradient, feet.normals)[:, None] * feet.normals
            steep = dot(slope, slope).clamp_min(torch.finfo(x.dtype).tiny)
            along = unit(torch.linalg.cross(feet.normals, slope))
            towards = CLIP_RIM_STEP_SHARE * dot(x - feet.points, along)
            step = -(value / steep)[:, None] * slope + towards[:, None] * along
            feet = self.base.closest_points(feet.points + step)
            if float(step.abs().max()) < CLIP_RIM_TOLERANCE * float(self.base.bounds.abs().max()):
                break
        return feet
