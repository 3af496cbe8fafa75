"""Ghost nodes of the coupled scheme: band nodes beyond the rim of an open surface, and the values they take.

Let x be a node whose closest point c lies on a rim. The closest point of 2c - x is the image of x: it lies inside the
surface, as far from the rim as x. Setting u(x) = u(image) continues u evenly and lets no flux through the rim. Setting
u(x) = 2 g - u(image) continues u oddly and holds the value g on the rim. Both are of second order (Macdonald, Brandman
and Ruuth 2011, "Solving eigenvalue problems on curved surfaces using the closest point method"). To first order, u(x)
is g, or the value at c.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lamina.geometry.triangles import dot
from lamina.grid.band import Band
from lamina.spaces.scheme import FLUX, VALUE
from lamina.surfaces.base import Surface

# An image is rejected if it is farther from the rim than this many times the distance of its node. On a smooth surface
# both distances are about equal, so that 2 leaves room for curvature. An image that is farther lies on another part of
# the surface. Chosen by trial.
MAX_IMAGE_DISTANCE_RATIO = 2.0


@dataclass(frozen=True)
class Ghosts:
    """The nodes of a band beyond a rim."""

    rows: Tensor  # (g,) int64
    rim: Tensor  # (g, 3) their closest points, on the rim
    distance: Tensor  # (g,) from the rim to the image; that to the node is about the same

    @classmethod
    def of(cls, surface: Surface, band: Band, order: int) -> tuple[Band, Ghosts | None]:
        """The band and its ghosts. At order 2 the feet of ghosts are replaced by their images, at order 1 they stay."""
        beyond = band.feet.beyond
        if beyond is None or not bool(beyond.any()):
            return band, None
        rows = beyond.nonzero()[:, 0]
        x, c = band.lattice.position(band.ijk[rows]), band.feet.points[rows]
        image = surface.closest_points(2 * c - x)
        away, offset = image.points - c, x - c
        distance = dot(away, away).sqrt()
        farthest = MAX_IMAGE_DISTANCE_RATIO * dot(offset, offset).sqrt()
        near = (image.component == band.component[rows]) & (distance <= farthest)
        # A node straight above the rim is its own image: its distance is 0.
        rows, c, distance = rows[near], c[near], distance[near]
        if order == 1:
            return band, cls(rows, c, distance)
        feet = replace(
            band.feet,
            points=band.feet.points.index_copy(0, rows, image.points[near]),
            normals=band.feet.normals.index_copy(0, rows, image.normals[near]),
        )
        return replace(band, feet=feet), cls(rows, c, distance)


@dataclass(frozen=True)
class ConstrainedGhosts:
    """Ghosts whose row of the system is their rule alone, without the Laplacian: those with an odd rule.

    The Laplacian of an oddly continued field changes sign at the rim. A ghost near the rim with a Laplacian of its own
    would be unstable.
    """

    rows: Tensor  # (h,) int64
    E: Tensor  # (h, n) the rows of the extension that belong to them

    @classmethod
    def of(cls, E: Tensor, rows: Tensor) -> ConstrainedGhosts | None:
        if not len(rows):
            return None
        crow, count = E.crow_indices().long(), E.shape[1]
        first, length = crow[rows], crow[rows + 1] - crow[rows]
        start = torch.zeros(len(rows) + 1, dtype=torch.int64, device=rows.device)
        start[1:] = length.cumsum(0)
        at = torch.arange(int(start[-1]), device=rows.device) + (first - start[:-1]).repeat_interleave(length)
        part = torch.sparse_csr_tensor(
            start.to(E.crow_indices().dtype), E.col_indices()[at], E.values()[at], (len(rows), count),
            check_invariants=False,
        )  # fmt: skip
        return cls(rows, part)


@dataclass(frozen=True)
class GhostRule:
    """u(x) = image_factor u(image) + data_factor g at the ghosts of a band."""

    image_factor: Tensor  # (g,)
    data_factor: Tensor  # (g,)

    @classmethod
    def from_conditions(cls, ghosts: Ghosts, kind: Tensor, robin: Tensor, order: int) -> GhostRule:
        """kind (g,): VALUE, u = g on the rim; FLUX, du/dn + robin u = g; or FREE, no flux."""
        d = ghosts.distance
        image, data = torch.ones_like(d), torch.zeros_like(d)
        fixed, flux = kind == VALUE, kind == FLUX
        if order == 1:
            image = torch.where(fixed, 0.0, torch.where(flux, 1 / (1 + robin * d), image))
            data = torch.where(fixed, 1.0, torch.where(flux, d / (1 + robin * d), data))
        else:
            # u on the rim is the mean of u at the node and at its image, which are 2d apart.
            image = torch.where(fixed, -1.0, torch.where(flux, (1 - robin * d) / (1 + robin * d), image))
            data = torch.where(fixed, 2.0, torch.where(flux, 2 * d / (1 + robin * d), data))
        return cls(image, data)
