"""A correction of the stiffness at saddle vertices of a mesh, where the solution is singular.

Around a vertex where the angles of the faces add up to T > 2 pi, the solution behaves like r^a with a = 2 pi / T < 1.
No piecewise smooth function follows that within a cell. A Galerkin scheme is therefore too stiff there, and its error,
of order dx^(2a), spreads over the whole surface. Reducing the stiffness within a cell of the vertex removes most of the
error (Egger, Ruede and Wohlmuth 2014, "Energy-corrected finite element methods for corner singularities"). We multiply
the stiffness by 1 - (1 - a)(1 - r/dx) for r < dx. That is a at the vertex itself, and 1 everywhere if a = 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lamina.grid.cut_surface import CutSurface
from lamina.linear.graph import members
from lamina.surfaces.base import ClosestPoints
from lamina.surfaces.mesh import Mesh

# Vertices with a ratio a of at least this get no correction: their error is small, and a fine mesh of a smooth surface
# has many of them. Chosen by trial.
MAX_CORRECTED_CONE_RATIO = 0.97


def cone_conductivity(mesh: Mesh, cut: CutSurface) -> Tensor | None:
    """Factor (q,) on the stiffness at the quadrature points; None where the mesh has no saddle vertex."""
    ratio = mesh.cone_ratio
    first = mesh.same_vertex == torch.arange(len(ratio), device=ratio.device)  # of the vertices at one position
    vertex = ((ratio < MAX_CORRECTED_CONE_RATIO) & first).nonzero()[:, 0]
    if not len(vertex):
        return None
    feet = mesh.own_feet()
    element, _ = cut.locate(
        ClosestPoints(feet.points[vertex], feet.normals[vertex], feet.component[vertex], mesh.own_face[vertex])
    )
    ratio = ratio[vertex]
    # Each element is corrected for its sharpest vertex only, so that memory stays proportional to the points.
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
    """Pairs (i, e): e is an element that shares an unknown with element[i] (k,), or is that element itself."""
    shared, pair = members(unknown.reshape(-1), unknown.numel(), unknown[element].reshape(-1))
    index, other = (torch.div(i, 8, rounding_mode="floor") for i in (pair, shared))
    key = torch.unique(index * len(unknown) + other)
    return torch.div(key, len(unknown), rounding_mode="floor"), key % len(unknown)
