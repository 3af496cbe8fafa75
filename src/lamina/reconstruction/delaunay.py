"""Delaunay tetrahedra of samples, and how their circumspheres meet.

The sphere through the corners of a tetrahedron contains no sample. On a well sampled surface the spheres of two
tetrahedra on one side of it overlap deeply, and those of two tetrahedra on opposite sides hardly do (Amenta, Choi and
Kolluri 2001, "The power crust"). This needs no normals, no spacing and no even density.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.spatial import Delaunay, QhullError
from torch import Tensor

from lamina.geometry.triangles import dot, unit
from lamina.shapes import Bool, Float, Int, shaped

# Standard deviation of the displacement of points before Delaunay's algorithm, over the longest side of their box. It
# is far above rounding and far below any distance that matters.
DISPLACEMENT = 1e-9
# A tetrahedron is flat if six times its volume, over the cube of its largest coordinate difference, is at most this.
# DISPLACEMENT gives a piece of a plane about 1e-9 times the extent of the cloud over the size of the tetrahedron.
MAX_FLAT_VOLUME = 1e-6
OPPOSITE_FACE = torch.tensor([[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]])  # corners of the face opposite each corner


@shaped
@dataclass(frozen=True)
class Tetrahedra:
    """The t Delaunay tetrahedra of m samples. The space around them counts as one more, with the number t."""

    points: Float[Tensor, "m 3"]
    corners: Int[Tensor, "t 4"]
    solid: Bool[Tensor, " t"]  # whether a tetrahedron is not flat
    centres: Float[Tensor, "t 3"]  # of the circumspheres
    radii: Float[Tensor, " t"]
    faces: Int[Tensor, "f 3"]  # each once; its normal points from the tetrahedron behind to the one ahead
    behind: Int[Tensor, " f"]
    ahead: Int[Tensor, " f"]
    # Cosine of the angle between the radii of both circumspheres at the face: 1 if they are one sphere, 0 if they meet
    # at right angles, -1 if they touch from outside. The circumsphere of the space around is a half space.
    overlap: Float[Tensor, " f"]

    @classmethod
    def of(cls, points: Tensor) -> Tetrahedra | None:
        """The tetrahedra of points (m, 3), on the CPU in float64; None if there are too few points for one."""
        p = _displaced(points.detach().double().cpu())
        try:
            delaunay = Delaunay(p.numpy())
        except QhullError:
            return None
        tets, across = (torch.from_numpy(v.astype(np.int64)) for v in (delaunay.simplices, delaunay.neighbors))
        corner = p[tets]
        solid = _volume(corner).abs() > MAX_FLAT_VOLUME * (corner[:, 1:] - corner[:, :1]).abs().amax((1, 2)) ** 3
        centres = _circumcentres(corner)
        radii = (centres - corner[:, 0]).norm(dim=1)
        faces, behind, ahead, overlap = _faces(p, tets, across, centres, radii)
        return cls(p, tets, solid, centres, radii, faces, behind, ahead, overlap)

    def between(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Triangles (k, 3) for which first (f,) is true, and the same turned for which second (f,) is; and the faces
        (k,) that they are."""
        a, b = first.nonzero()[:, 0], second.nonzero()[:, 0]
        return torch.cat([self.faces[a], self.faces[b].flip(1)]), torch.cat([a, b])


def _displaced(p: Tensor) -> Tensor:
    """Points p (m, 3), each moved by a tiny random distance.

    Delaunay's algorithm takes far more time for many points on one plane or one sphere than for others.
    """
    size = DISPLACEMENT * (p.amax(0) - p.amin(0)).max()
    return p + size * torch.randn(p.shape, generator=torch.Generator().manual_seed(0), dtype=p.dtype)


def _volume(corner: Tensor) -> Tensor:
    """Six times the volumes (t,) of tetrahedra with corners (t, 4, 3)."""
    a, b, c = (corner[:, 1:] - corner[:, :1]).unbind(1)
    return dot(a, torch.linalg.cross(b, c))


def _circumcentres(corner: Tensor) -> Tensor:
    """Centres (t, 3) of the spheres through corners (t, 4, 3); the mean of the corners where there is no sphere."""
    a, b, c = (corner[:, 1:] - corner[:, :1]).unbind(1)
    bc, ca, ab = torch.linalg.cross(b, c), torch.linalg.cross(c, a), torch.linalg.cross(a, b)
    volume = dot(a, bc)[:, None]
    offset = (dot(a, a)[:, None] * bc + dot(b, b)[:, None] * ca + dot(c, c)[:, None] * ab) / (2 * volume)
    return torch.where(volume != 0, corner[:, 0] + offset, corner.mean(1))


def _faces(p: Tensor, tets: Tensor, across: Tensor, centres: Tensor, radii: Tensor) -> tuple[Tensor, ...]:
    """Faces, tetrahedra behind and ahead, and overlaps, as in `Tetrahedra`."""
    count = len(tets)
    parts = []
    for k, others in enumerate(OPPOSITE_FACE):
        own = ((across[:, k] > torch.arange(count)) | (across[:, k] < 0)).nonzero()[:, 0]
        other, face = across[own, k], tets[own][:, others]
        origin = p[face[:, 0]]
        normal = unit(torch.linalg.cross(p[face[:, 1]] - origin, p[face[:, 2]] - origin))
        turned = (dot(p[tets[own, k]] - origin, normal) > 0)[:, None]
        face, normal = torch.where(turned, face.flip(1), face), torch.where(turned, -normal, normal)
        here, there = centres[own] - origin, centres[other] - origin
        hull = dot(here, normal) / radii[own]  # the radius of a half space is normal to it
        overlap = torch.where(other < 0, hull, dot(here, there) / (radii[own] * radii[other]))
        parts.append((face, own, torch.where(other < 0, count, other), overlap.clamp(-1, 1)))
    face, own, other, overlap = (torch.cat(part) for part in zip(*parts, strict=True))
    return face, own, other, overlap
