"""The surface that encloses a volume, from bare samples of any density: which Delaunay tetrahedra are inside.

One global field decides it: a value u for each tetrahedron, 1 outside and -1 inside, which minimises

    sum over faces      exp(b c) (u_i - u_j)^2    for the two tetrahedra of a face
    + sum over samples  exp(-b c) (u_p + u_q)^2   for the two poles of a sample,

with u = 1 in the space around. c is the cosine between the radii of the two circumspheres where they meet, and b =
SIGN_CONTRAST. Tetrahedra whose spheres overlap deeply are on one side. The poles of a sample are the largest
tetrahedron at it and the largest on the other side of the sample: on a well sampled surface one is outside and the
other inside. The energy is that of Kolluri, Shewchuk and O'Brien 2004, "Spectral surface reconstruction from noisy
point clouds"; with u given around, its minimum is a linear system instead of an eigenvector.

The surface consists of the faces between u > 0 and u <= 0. No normals are needed, and those of the samples follow. An
open surface gets lids, as its inside must end somewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import coo_array, diags_array
from scipy.sparse.linalg import cg
from torch import Tensor

from lamina.geometry.triangles import dot, triangle_areas, triangle_normals, unit
from lamina.linear.graph import components, first_of_each
from lamina.reconstruction.delaunay import Tetrahedra
from lamina.search.neighbours import k_nearest
from lamina.shapes import Float, Int, shaped

# Exponent b of the weights, as in the paper. At 3 and 6 the same chosen shapes are right; at 2 thin parts are joined.
SIGN_CONTRAST = 4.0
# The field is solved until the residual has fallen by this factor: signs are wanted, not digits.
SIGN_TOLERANCE = 1e-4
MAX_SIGN_ITERATIONS = 3000
# An enclosed region is an artefact, and takes the side around it, if more than this share of the samples on it lie on
# other parts of the surface, too: a sample belongs to one sheet. True cavities share none, artefacts nearly all.
MAX_SHARED_SAMPLES = 0.5
# A triangle is long if its longest edge exceeds this multiple of the distance from a corner to its 12th neighbour.
# Random samples of a surface are never so far apart without a gap between them.
MIN_LONG_EDGES, LONG_NEIGHBOUR = 2.0, 12
# A long triangle is contradicted if the mean cosine between its normal and those of its corners is less than this (46
# degrees) and it separates spheres that overlap more than the second number; either alone also finds triangles of
# coarse meshes. It is contradicted as well if the cosine is negative. A patch of long triangles is a lid if more than
# the third number of its area is contradicted.
MIN_CORNER_COSINE, MIN_LID_OVERLAP, MIN_CONTRADICTED_SHARE = 0.7, -0.6, 0.5
# Patches end where two triangles meet at a larger angle than 60 degrees, as a lid meets the sides of a box.
MIN_PATCH_COSINE = 0.5
# If lids have more than this share of the area of the rest, the samples show an open sheet. Every long triangle is then
# a lid, also in flat openings, where spheres do not tell. An open car body has 0.7, a head cut at the neck 0.1.
MAX_LID_SHARE = 0.25
# A long triangle stays in any case if the mean cosine with the normals of its corners is at least this (8 degrees): a
# flat face between samples along its edges.
MIN_FLAT_COSINE = 0.99


@shaped
@dataclass(frozen=True)
class Enclosure:
    """The triangles between inside and outside, with lids over all openings."""

    faces: Int[Tensor, "k 3"]  # counter-clockwise as seen from outside
    normals: Float[Tensor, "m 3"]  # of the samples: from the pole inside to the one outside
    overlap: Float[Tensor, " k"]  # as in `Tetrahedra`

    def long(self, points: Tensor) -> Tensor:
        """Which triangles (k,) over points (m, 3) are long."""
        corners = points[self.faces]
        edge = corners.roll(-1, 1) - corners
        near = k_nearest(points, min(LONG_NEIGHBOUR + 1, len(points)))[1][:, -1]
        return dot(edge, edge).amax(1).sqrt() > MIN_LONG_EDGES * near[self.faces].amin(1)

    def without_lids(self, points: Tensor, normals: Tensor) -> Tensor:
        """Faces (k, 3) without lids: patches of long triangles that no sample bears out.

        points, normals (m, 3): the samples; the signs of the normals do not matter.
        """
        corners, long = points[self.faces], self.long(points)
        areas, looks = triangle_areas(corners), triangle_normals(corners)
        # Short triangles lie on the surface and tell where outside is.
        side = torch.zeros_like(points)
        weighted = torch.where(long, 1e-6 * areas, areas)[:, None] * looks
        side.index_add_(0, self.faces.reshape(-1), weighted.repeat_interleave(3, 0))
        normals = torch.where(dot(normals, side)[:, None] < 0, -normals, normals)
        agreement = dot(looks[:, None], normals[self.faces]).mean(1)
        contradicted = (self.overlap > MIN_LID_OVERLAP) & (agreement < MIN_CORNER_COSINE) | (agreement < 0)
        rows = long.nonzero()[:, 0]
        patch = connected_patches(self.faces[rows], looks[rows])
        whole, part = (
            torch.zeros_like(areas[rows]).index_add_(0, patch, areas[rows] * share)
            for share in (torch.ones_like(areas[rows]), contradicted[rows].to(areas))
        )
        lid = torch.zeros_like(long)
        lid[rows] = (part > MIN_CONTRADICTED_SHARE * whole)[patch]
        if float(areas[lid].sum()) > MAX_LID_SHARE * float(areas[~lid].sum()):
            lid = long & (agreement < MIN_FLAT_COSINE)
        return self.faces[~lid]


def enclosure(points: Tensor) -> Enclosure | None:
    """The surface through points (m, 3) that encloses a volume; None where there is none.

    The work is done on the CPU, and the result is on the device of the points.
    """
    tets = Tetrahedra.of(points)
    if tets is None or not bool(tets.solid.any()):
        return None
    first, second, out, back = _poles(tets)
    u = _field(tets, first, second, dot(out, back))
    outside = _without_artefacts(tets, u > 0)
    a, b = outside[tets.behind], outside[tets.ahead]
    faces, which = tets.between(~a & b, a & ~b)
    if not len(faces):
        return None
    normals = torch.where((outside[first])[:, None], out, -out)
    found = Enclosure(faces, normals, tets.overlap[which])
    move = {name: value.to(points.device) for name, value in vars(found).items()}
    return Enclosure(**{name: v.to(points) if v.is_floating_point() else v for name, v in move.items()})


def connected_patches(faces: Tensor, normals: Tensor | None = None) -> Tensor:
    """The patch (t,) of each of the triangles (t, 3); triangles with a common edge are in one patch.

    With normals (t, 3), only if the angle between them is less than 60 degrees.
    """
    one, two = faces.reshape(-1), faces.roll(-1, 1).reshape(-1)
    highest = int(faces.max()) + 1 if len(faces) else 1
    _, edge = torch.unique(torch.minimum(one, two) * highest + torch.maximum(one, two), return_inverse=True)
    which = torch.arange(len(faces), device=faces.device).repeat_interleave(3)
    other = which[first_of_each(edge, len(edge))[edge]]
    if normals is not None:
        smooth = dot(normals[which], normals[other]) > MIN_PATCH_COSINE
        which, other = which[smooth], other[smooth]
    return components(len(faces), which, other)


def _poles(tets: Tetrahedra) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The two poles (m,), (m,) of each sample, and the unit vectors (m, 3), (m, 3) from the sample to their centres.

    The first pole of a sample on the convex hull is the space around, in the mean direction of the faces there.
    """
    m, t = len(tets.points), len(tets.corners)
    vertex, tet = tets.corners.reshape(-1), torch.arange(t).repeat_interleave(4)
    offset, radius = tets.centres[tet] - tets.points[vertex], tets.radii[tet]
    first = _largest(vertex, radius, tet, m)
    out = unit(tets.centres[first] - tets.points)
    hull = tets.faces[tets.ahead == t]
    on_hull = torch.zeros(m, dtype=torch.bool).index_fill_(0, hull.reshape(-1), True)
    around = torch.zeros_like(tets.points)
    around.index_add_(0, hull.reshape(-1), triangle_normals(tets.points[hull]).repeat_interleave(3, 0))
    first, out = torch.where(on_hull, t, first), torch.where(on_hull[:, None], unit(around), out)
    behind = dot(offset, out[vertex]) < 0
    second = _largest(vertex, torch.where(behind, radius, -1.0), tet, m)
    return first, second, out, unit(tets.centres[second] - tets.points)


def _largest(vertex: Tensor, size: Tensor, tet: Tensor, count: int) -> Tensor:
    """For each vertex (count,), the tetrahedron with the largest size (n,) among those (n,) at it."""
    order = torch.from_numpy(np.lexsort((-size.numpy(), vertex.numpy())))
    start = torch.searchsorted(vertex[order].contiguous(), torch.arange(count))
    return tet[order[start.clamp(max=len(order) - 1)]]


def _field(tets: Tetrahedra, first: Tensor, second: Tensor, cosine: Tensor) -> Tensor:
    """The values (t + 1,) that minimise the energy, the last one 1. cosine (m,): between the radii of both poles."""
    t = len(tets.corners)
    alike, opposite = torch.exp(SIGN_CONTRAST * tets.overlap), torch.exp(-SIGN_CONTRAST * cosine)
    i, j = torch.cat([tets.behind, first]), torch.cat([tets.ahead, second])
    weight = torch.cat([alike, opposite])
    off = torch.cat([-alike, opposite])
    rows, columns = torch.cat([i, j, i, j]).numpy(), torch.cat([i, j, j, i]).numpy()
    values = torch.cat([weight, weight, off, off]).numpy()
    A = coo_array((values, (rows, columns)), shape=(t + 1, t + 1)).tocsr()
    inner, right = A[:t, :t], -A[:t, [t]].toarray()[:, 0]
    u, _ = cg(inner, right, rtol=SIGN_TOLERANCE, maxiter=MAX_SIGN_ITERATIONS, M=diags_array(1 / inner.diagonal()))
    return torch.from_numpy(np.append(u, 1.0))


def _without_artefacts(tets: Tetrahedra, outside: Tensor) -> Tensor:
    """The labels (t + 1,) with enclosed regions turned whose samples lie on other parts of the surface as well."""
    count = len(outside)
    alike = outside[tets.behind] == outside[tets.ahead]
    region = components(count, tets.behind[alike], tets.ahead[alike])
    cross = (~alike).nonzero()[:, 0]
    corner = tets.faces[cross].reshape(-1).repeat(2)
    side = torch.cat([region[tets.behind[cross]], region[tets.ahead[cross]]]).reshape(2, -1, 1).expand(-1, -1, 3)
    # The regions of one label that each sample touches: on one sheet it touches one region of each label.
    label = torch.zeros(int(region.max()) + 1, dtype=torch.bool)
    label[region] = outside
    pairs = torch.unique(corner * len(label) + side.reshape(-1))
    sample, touching = torch.div(pairs, len(label), rounding_mode="floor"), pairs % len(label)
    touched = torch.bincount(2 * sample + label[touching], minlength=2 * len(tets.points))
    shared = touched[2 * sample + label[touching]] > 1
    samples, common = (
        torch.bincount(touching, weights=w, minlength=len(label))
        for w in (torch.ones_like(shared, dtype=torch.float64), shared.double())
    )
    size = torch.bincount(region, minlength=len(label))
    # Of regions that share samples the largest inside and the space around stay.
    keep = torch.zeros_like(label)
    keep[region[-1]] = True
    keep[torch.where(label, 0, size).argmax()] = True
    turned = (common > MAX_SHARED_SAMPLES * samples) & ~keep
    return outside ^ turned[region]
