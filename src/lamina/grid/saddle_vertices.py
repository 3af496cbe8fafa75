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

from lamina.grid.cut_surface import CutSurface
from lamina.linear.graph import members
from lamina.surfaces.base import ClosestPoints
from lamina.surfaces.mesh import Mesh

FLAT = 0.97  # vertices with a larger ratio are left alone


def cone_conductivity(mesh: Mesh, cut: CutSurface) -> Tensor | None:
    """Factor (q,) on the stiffness at the quadrature points; None where the mesh has no saddle vertex."""
    ratio = mesh.cone_ratio
    first = mesh.same_vertex == torch.arange(len(ratio), device=ratio.device)  # of those at one position
    vertex = ((ratio < FLAT) & first).nonzero()[:, 0]
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
    point, pair = members(cut.element, cut.elements.active, reached)
    source = source[pair]
    away = (cut.quadrature.points[point] - feet.points[vertex[source]]).norm(dim=1) / cut.spacing
    factor = 1 - (1 - ratio[source]) * (1 - away).clamp_min(0)
    return torch.ones_like(cut.quadrature.weights).scatter_reduce_(0, point, factor, "amin")


def _sharing_corners(unknown: Tensor, element: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs: place in `element` (k,), and each element that shares an unknown with that one, itself included."""
    shared, pair = members(unknown.reshape(-1), unknown.numel(), unknown[element].reshape(-1))
    place, other = (torch.div(i, 8, rounding_mode="floor") for i in (pair, shared))
    key = torch.unique(place * len(unknown) + other)
    return torch.div(key, len(unknown), rounding_mode="floor"), key % len(unknown)
