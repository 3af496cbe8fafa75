"""Points of a cloud that do not belong to its surface, and points that say the same as others."""

from __future__ import annotations

import torch
from torch import Tensor

from lamina.geometry.triangles import dot
from lamina.search.neighbours import k_nearest

NEIGHBOURS = 16
OFF, FAR = 6.0, 1.5  # residuals of the neighbours, and spacings, that an outlier lies off their plane
SPARSE, THICK = 3.0, 0.3  # the usual spacings, and height over width, of a place where points fill space
MOST = 0.2  # of a cloud; more than that are no outliers but its shape
ROUNDS = 3  # outliers hide each other
ALIKE = 1e-3  # spacings within which two points are one


def off_surface(points: Tensor) -> Tensor:
    """Which points (n,) lie off the surface that their neighbours make.

    By leave-one-out residuals: a point is an outlier when it is farther from the plane through the 16 points around its
    nearest neighbour, itself left out, than 6 times their RMS distance from it and than 1.5 times their spacing. On a
    smooth surface it is about as far as they are, wherever it lies within the surface; near edges and under noise they
    are far, too. So is one whose neighbourhood is three times sparser than usual and as thick as if the points filled
    space; a sparse part of a surface is flat. More than a fifth of all points is taken for the shape itself, and none
    is named.
    """
    out = torch.zeros(len(points), dtype=torch.bool, device=points.device)
    for _ in range(ROUNDS):
        rows = (~out).nonzero()[:, 0]
        if len(rows) <= 2 * NEIGHBOURS:
            break
        found = rows[_off_plane(points[rows])]
        if len(found) == 0:
            break
        out[found] = True
    return out if int(out.sum()) <= MOST * len(points) else torch.zeros_like(out)


def _off_plane(points: Tensor) -> Tensor:
    index, distance = k_nearest(points, NEIGHBOURS + 1)
    usual = SPARSE * distance[:, 4].median()
    off = []
    for rows in torch.arange(len(points), device=points.device).split(2**16):
        nearest = index[rows, 1]
        around = index[nearest]
        weight = (around != rows[:, None]).to(points.dtype)[..., None]
        offset = points[around] - points[nearest, None]
        mean = (weight * offset).sum(1) / weight.sum(1)
        offset = offset - mean[:, None]
        values, vectors = torch.linalg.eigh((offset.transpose(1, 2) @ (weight * offset)).double())
        height = dot((points[rows] - points[nearest] - mean).double(), vectors[..., 0]).abs()
        residual = (values[:, 0].clamp_min(0) / NEIGHBOURS).sqrt()
        off.append((height > OFF * residual) & (height > FAR * distance[around, 4].median(1).values))
        own = points[index[rows]] - points[index[rows]].mean(1, keepdim=True)
        values = torch.linalg.eigvalsh((own.transpose(1, 2) @ own).double()).clamp_min(1e-300)
        off[-1] |= (distance[rows, 4] > usual) & ((values[:, 0] / values[:, 1]).sqrt() > THICK)
    return torch.cat(off)


def small_pieces(component: Tensor, fewest: int) -> Tensor:
    """Which points (n,) are in pieces, by their component (n,), of fewer than `fewest` or a thousandth of all points.

    The largest piece is never too small.
    """
    size = torch.bincount(component)
    small = size < max(fewest, len(component) // 1000)
    small[size.argmax()] = False
    return small[component]


def distinct(points: Tensor) -> tuple[Tensor, Tensor, int]:
    """The distinct points (m, 3), which of these (n,) each point is, and how many repeat another exactly.

    Two points are one when rounding to a thousandth of the median spacing makes them so; the first in the order of
    coordinates stands for both.
    """
    unique, which = torch.unique(points, dim=0, return_inverse=True)
    exact = len(points) - len(unique)
    distance = k_nearest(unique, min(13, len(unique)))[1][:, -1]
    # The 12th neighbour: up to a dozen scans that were laid over each other may repeat each point.
    cell = ALIKE * 0.5 * float(distance.median())
    if cell > 0:
        rounded = torch.round((unique - unique.amin(0)) / cell)
        group = torch.unique(rounded, dim=0, return_inverse=True)[1]
        first = torch.full((int(group.max()) + 1,), len(unique), device=points.device)
        first = first.scatter_reduce_(0, group, torch.arange(len(unique), device=points.device), "amin")
        kept = torch.sort(first).values
        place = torch.empty_like(first)
        place[torch.argsort(first)] = torch.arange(len(first), device=points.device)
        unique, which = unique[kept], place[group][which]
    return unique, which, exact
