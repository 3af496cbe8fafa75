"""Saddle vertices of a mesh, where the solution is singular: a correction for what the grid cannot follow there.

Around a vertex where the faces make an angle T > 2 pi the solution behaves like r^a, a = 2 pi / T < 1. No
piecewise smooth function follows that within a cell; a Galerkin scheme is too stiff there, and the error, of
order dx^(2a), spreads over the whole surface. Weakening the stiffness within a cell of the vertex makes up for
most of it (Egger, Ruede and Wohlmuth 2014, "Energy-corrected finite element methods for corner singularities"). We
multiply it by 1 - (1 - a)(1 - r/dx) for r < dx: by a at the vertex itself, by 1 where a = 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lamina.geometry.nearest import expand
from lamina.schemes.cutsurface import CutSurface
from lamina.surfaces.base import ClosestPoints
from lamina.surfaces.mesh import Mesh

FLAT = 0.97  # vertices with a larger ratio are left alone


def cone_conductivity(mesh: Mesh, cut: CutSurface) -> Tensor | None:
    """Factor (q,) on the stiffness at the quadrature points; None where the mesh has no saddle vertex."""
    ratio = mesh.cone_ratio
    vertex = ((ratio < FLAT) & (mesh.own_face >= 0) & (mesh.same_vertex == _range(ratio))).nonzero()[:, 0]
    if not len(vertex):
        return None
    feet = mesh.own_feet()
    element, _ = cut.locate(
        ClosestPoints(feet.points[vertex], feet.normals[vertex], feet.component[vertex], mesh.own_face[vertex])
    )
    ratio = ratio[vertex]
    # The sharpest vertex of each element stands for it: memory stays proportional to the points.
    sharpest = ratio.new_ones(cut.elements.active).scatter_reduce_(0, element, ratio, "amin")
    keep = (ratio == sharpest[element]).nonzero()[:, 0]
    vertex, ratio, element = vertex[keep], ratio[keep], element[keep]
    source, reached = _sharing_corners(cut.elements.unknown, element)
    order = torch.argsort(cut.element)
    count = torch.bincount(cut.element, minlength=cut.elements.active)
    place, pair = expand((count.cumsum(0) - count)[reached], count[reached])
    point, source = order[place], source[pair]
    away = (cut.quadrature.points[point] - feet.points[vertex[source]]).norm(dim=1) / cut.spacing
    factor = 1 - (1 - ratio[source]) * (1 - away).clamp_min(0)
    return torch.ones_like(cut.quadrature.weights).scatter_reduce_(0, point, factor, "amin")


def _sharing_corners(unknown: Tensor, element: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs: place in `element` (k,), and each element that shares an unknown with that one, itself included."""
    flat = unknown.reshape(-1)
    order = torch.argsort(flat)
    count = torch.bincount(flat)
    start = count.cumsum(0) - count
    corner = unknown[element].reshape(-1)
    place, pair = expand(start[corner], count[corner])
    key = torch.unique(
        torch.div(pair, 8, rounding_mode="floor") * len(unknown) + torch.div(order[place], 8, rounding_mode="floor")
    )
    return torch.div(key, len(unknown), rounding_mode="floor"), key % len(unknown)


def _range(like: Tensor) -> Tensor:
    return torch.arange(len(like), device=like.device)
