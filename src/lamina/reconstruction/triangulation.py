"""Triangles through clean oriented samples of any density: a minimum cut of their Delaunay tetrahedra.

Every tetrahedron is labelled inside or outside. The surface consists of the triangles between the two labels. The
labels minimise the sum of two costs (Labatut, Pons and Keriven 2009, "Robust and efficient surface reconstruction from
range data", with normals in place of lines of sight):

- At each of its corners a tetrahedron fills a solid angle w in the mean direction d. Let n be the normal of the sample
  there. If d . n > 0, the label inside costs w (d . n)^3. If d . n < 0, the label outside costs w |d . n|^3.
- A triangle of the surface costs SHAPE_WEIGHT (1 - min(cos a, cos b)), where a and b are the angles between the
  triangle and the circumspheres of its two tetrahedra. On the true surface both spheres are large and empty, so that
  this cost is small. To it comes a small cost in proportion to the area of the triangle.

The labels of least cost are a minimum cut of a graph. The space around the tetrahedra is outside. An open surface
therefore gets lids; the normals at the corners of a lid contradict it.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow
from torch import Tensor

from lamina.geometry.triangles import dot, triangle_areas, triangle_normals, unit
from lamina.reconstruction.delaunay import OPPOSITE_FACE, Tetrahedra
from lamina.reconstruction.enclosure import Enclosure
from lamina.search.neighbours import voronoi_areas

# The three weights below were chosen together, by trial: with several dozen settings on the shapes of docs/neural.md.
# Exponent of the cosine between a direction and a normal in the cost of a label. A larger exponent counts directions
# near the normal only; with 1, directions along the surface, where the normal says least, would count most.
COSINE_POWER = 3.0
# Cost of a triangle whose circumspheres meet it at right angles, against solid angles of up to 4 pi at its corners.
# With more, normals count for less and thin parts are cut away; with less, the triangles get ragged.
SHAPE_WEIGHT = 0.3
# Cost of a triangle as large as the mean area of a sample. It is a hundredth of SHAPE_WEIGHT, so that it decides only
# between surfaces that are otherwise equally good: the smaller one is taken.
AREA_WEIGHT = 0.003
COST_STEPS = 10_000  # costs are rounded to multiples of 1 / COST_STEPS, because the maximum flow takes whole numbers
# A flat tetrahedron lies on a face of the surface if each of its normals has at least this cosine (26 degrees) with the
# mean of the four, chosen by trial.
MIN_NORMAL_COSINE_ON_FACE = 0.9
# A flat tetrahedron lies on a face of the surface if none of its edges has a larger cosine with the mean normal, that
# is, if all edges are within 6 degrees of the tangent plane. Chosen by trial.
MAX_EDGE_COSINE_ON_FACE = 0.1
UNBOUNDED_CAPACITY = 2**30  # capacity of an edge of the graph that no cut may use


def triangulate(points: Tensor, normals: Tensor) -> Enclosure | None:
    """The surface through points (m, 3) with normals (m, 3), oriented like the normals.

    The signs of the normals must agree: all outwards or all inwards. Returns None where there are too few points for
    one tetrahedron. The work is done on the CPU, and the result is on the device of the points.
    """
    tets = Tetrahedra.of(points)
    if tets is None:
        return None
    p, n = tets.points, normals.detach().double().cpu()
    areas = voronoi_areas(p, n)
    inwards = float((areas[:, None] * (p - p.mean(0)) * n).sum()) < 0
    n = -n if inwards else n
    inside_costs, outside_costs = _label_costs(p[tets.corners], n[tets.corners], tets.solid)
    cost = _face_costs(tets, float(areas.mean()))
    outside = _minimum_cut(inside_costs, outside_costs, tets.behind, tets.ahead, cost)
    a, b = outside[tets.behind], outside[tets.ahead]
    faces, which = tets.between(~a & b, a & ~b)
    faces, overlap = faces.to(points.device), tets.overlap[which].to(points)
    return Enclosure(faces.flip(1) if inwards else faces, normals.detach(), overlap)


def _label_costs(corner: Tensor, normal: Tensor, solid: Tensor) -> tuple[Tensor, Tensor]:
    """Costs (t,), (t,) of the labels inside and outside of tetrahedra with corners (t, 4, 3) and normals (t, 4, 3);
    solid (t,): which are not flat.

    A flat tetrahedron fills no solid angle. The formula would give it half the sphere at a corner that lies between
    the other three, so it is left out there. Flat tetrahedra on a face of the surface could have either label, but
    those that span a notch of the face must be outside. So the label inside costs them more than the triangles that it
    would usually save.
    """
    edges = corner[:, 1:] - corner[:, :1]
    mean = unit(normal.sum(1))[:, None]
    alike = dot(mean, normal).amin(1) > MIN_NORMAL_COSINE_ON_FACE
    on_face = alike & (dot(unit(edges), mean).abs().amax(1) < MAX_EDGE_COSINE_ON_FACE)
    inside = 4 * SHAPE_WEIGHT * (~solid & on_face).to(corner.dtype)
    outside = torch.zeros_like(inside)
    for k, others in enumerate(OPPOSITE_FACE):
        edge = corner[:, others] - corner[:, k, None]
        towards = dot(unit(edge.mean(1)), normal[:, k])
        angle = solid * _solid_angle(edge)
        inside += angle * towards.clamp_min(0) ** COSINE_POWER
        outside += angle * (-towards).clamp_min(0) ** COSINE_POWER
    return inside, outside


def _solid_angle(edge: Tensor) -> Tensor:
    """Solid angles (t,) of the cones spanned by edges (t, 3, 3).

    Van Oosterom and Strackee 1983, "The solid angle of a plane triangle".
    """
    a, b, c = edge.unbind(1)
    la, lb, lc = (dot(v, v).sqrt() for v in (a, b, c))
    over = dot(a, torch.linalg.cross(b, c)).abs()
    return 2 * torch.atan2(over, la * lb * lc + dot(a, b) * lc + dot(a, c) * lb + dot(b, c) * la)


def _face_costs(tets: Tetrahedra, mean_area: float) -> Tensor:
    """Cost (f,) of each face in the surface. mean_area: area of a triangle whose area costs AREA_WEIGHT."""
    corner, outermost = tets.points[tets.faces], len(tets.corners)
    normal, ahead = triangle_normals(corner), tets.ahead.clamp(max=outermost - 1)
    here = -dot(tets.centres[tets.behind] - corner[:, 0], normal) / tets.radii[tets.behind]
    there = dot(tets.centres[ahead] - corner[:, 0], normal) / tets.radii[ahead]
    there = torch.where(tets.ahead == outermost, 1.0, there)
    return SHAPE_WEIGHT * (1 - torch.minimum(here, there)) + AREA_WEIGHT * triangle_areas(corner) / mean_area


def _minimum_cut(inside: Tensor, outside: Tensor, first: Tensor, second: Tensor, cost: Tensor) -> Tensor:
    """Whether each of t tetrahedra, and the space around them, is outside: (t + 1,) bool.

    inside, outside (t,): costs of the two labels. cost (f,): of the faces between tetrahedra first and second (f,).
    """
    count = len(inside)
    source, sink, every = count + 1, count + 2, torch.arange(count)
    rows = torch.cat([first, second, torch.full_like(every, source), every]).numpy()
    columns = torch.cat([second, first, every, torch.full_like(every, sink)]).numpy()
    capacity = (torch.cat([cost, cost, inside, outside]) * COST_STEPS).round().to(torch.int32).numpy()
    # The space around is outside: no cut may part it from the source.
    rows, columns = np.append(rows, source), np.append(columns, count)
    capacity = np.append(capacity, np.int32(UNBOUNDED_CAPACITY))
    graph = csr_array(coo_array((capacity, (rows, columns)), shape=(count + 3, count + 3)))
    left = graph - maximum_flow(graph, source, sink).flow
    left.data = np.maximum(left.data, 0)
    left.eliminate_zeros()
    reached = torch.from_numpy(breadth_first_order(left, source, return_predecessors=False).astype(np.int64))
    outside_of = torch.zeros(count + 3, dtype=torch.bool)
    outside_of[reached] = True
    return outside_of[: count + 1]
