"""Rims in the coupled scheme: band nodes beyond the end of an open surface, and what their values are.

A node whose closest point c lies on a rim is reflected through it: the closest point of 2c - x, inside the surface, is
as far from the rim as the node. So u(x) = u there continues u evenly, with no flux, and u(x) = 2 g - u there oddly,
with the value g on the rim, both to second order (Macdonald, Brandman and Ruuth 2011, "Solving eigenvalue problems on
curved surfaces using the closest point method"). To first order u(x) is g, or the value at c itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lamina.geometry.triangles import dot
from lamina.grid.band import Band
from lamina.spaces.scheme import FLUX, VALUE
from lamina.surfaces.base import Surface

FARTHEST = 2.0  # times as far as the node from the rim, and its image is none


@dataclass(frozen=True)
class Ghosts:
    """The nodes of a band beyond a rim."""

    rows: Tensor  # (g,) int64
    rim: Tensor  # (g, 3) their closest points, on the rim
    distance: Tensor  # (g,) from the rim to the image, and about as far to the node

    @classmethod
    def of(cls, surface: Surface, band: Band, order: int) -> tuple[Band, Ghosts | None]:
        """The band with images for feet beyond rims (order 2), or as it is (order 1), and its ghosts."""
        beyond = band.feet.beyond
        if beyond is None or not bool(beyond.any()):
            return band, None
        rows = beyond.nonzero()[:, 0]
        x, c = band.lattice.position(band.ijk[rows]), band.feet.points[rows]
        image = surface.closest_points(2 * c - x)
        away, offset = image.points - c, x - c
        distance = dot(away, away).sqrt()
        near = (image.component == band.component[rows]) & (distance <= FARTHEST * dot(offset, offset).sqrt())
        # A foot on the rim from straight above is its own image.
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
class Held:
    """Ghosts with an odd rule. The Laplacian of an oddly continued field changes sign at the rim, and a ghost near it
    with its own Laplacian would be unstable: these keep the rule, and nothing else."""

    rows: Tensor  # (h,) int64
    E: Tensor  # (h, n) their rows of the extension

    @classmethod
    def of(cls, E: Tensor, rows: Tensor) -> Held | None:
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
class Rule:
    """u(x) = sign u(image) + gain g at the ghosts of a band."""

    sign: Tensor  # (g,)
    gain: Tensor  # (g,)

    @classmethod
    def make(cls, ghosts: Ghosts, kind: Tensor, robin: Tensor, order: int) -> Rule:
        """kind (g,): VALUE, u = g on the rim; FLUX, du/dn + robin u = g; or FREE, no flux."""
        d = ghosts.distance
        sign, gain = torch.ones_like(d), torch.zeros_like(d)
        held, given = kind == VALUE, kind == FLUX
        if order == 1:
            sign = torch.where(held, 0.0, torch.where(given, 1 / (1 + robin * d), sign))
            gain = torch.where(held, 1.0, torch.where(given, d / (1 + robin * d), gain))
        else:
            # With u on the rim the mean of u at the node and at its image, 2d apart.
            sign = torch.where(held, -1.0, torch.where(given, (1 - robin * d) / (1 + robin * d), sign))
            gain = torch.where(held, 2.0, torch.where(given, 2 * d / (1 + robin * d), gain))
        return cls(sign, gain)
