"""Points of a cloud that do not belong to its surface, points in small pieces, and points that repeat others."""

from __future__ import annotations

import torch
from torch import Tensor

from lamina.fits.normals import EIGEN_BATCH
from lamina.geometry.triangles import dot
from lamina.search.neighbours import k_nearest

# Points whose plane a point is compared with. With half as many the plane is tilted by noise; with twice as many curved
# parts have large residuals, and fewer outliers are found.
OUTLIER_NEIGHBOURS = 16
# An outlier is farther from the plane of its neighbours than this many times their RMS distance from it, and than this
# many of their spacings. The first spares noise, the second spares samples that happen to lie in one plane.
MIN_OUTLIER_RESIDUALS, MIN_OUTLIER_SPACINGS = 6.0, 1.5
# Points are taken for clutter that fills space where the spacing is more than this many times the median, and the
# neighbourhood's height over its width (square roots of its eigenvalues) is more than the second number. A sparse part
# of a surface is flat, and a dense edge is thick: neither alone tells clutter.
MIN_CLUTTER_SPACING, MIN_CLUTTER_THICKNESS = 3.0, 0.3
# If more than this share of the points would be outliers, they are taken for the shape itself, and none is removed.
MAX_OUTLIER_SHARE = 0.2
# Outliers are looked for this many times, each time without those found before, as outliers hide each other.
OUTLIER_ROUNDS = 3
# The distance to this neighbour is the spacing here: it is local, and two points close together do not decide it.
OUTLIER_SPACING_NEIGHBOUR = 4
# Pieces with fewer points than one in this many of all are small, and are left out as debris.
MIN_PIECE_FRACTION = 1000
# Two points closer than about this many spacings are one, as rounding of coordinates makes them.
MAX_REPEAT_DISTANCE = 1e-3


def off_surface(points: Tensor) -> Tensor:
    """Which points (n,) lie off the surface that their neighbours make.

    A plane is fitted to the 16 points around a point's nearest neighbour, without the point itself. The point is an
    outlier if it is farther from that plane than 6 times the RMS distance of the 16 points, and than 1.5 times their
    spacing. On a smooth surface it is about as far from the plane as they are; near edges and under noise they are far
    from it too. A point is an outlier also if its neighbourhood is three times sparser than usual and as thick as if
    its points filled space. If these are more than a fifth of all points, none is an outlier.
    """
    out = torch.zeros(len(points), dtype=torch.bool, device=points.device)
    for _ in range(OUTLIER_ROUNDS):
        rows = (~out).nonzero()[:, 0]
        if len(rows) <= 2 * OUTLIER_NEIGHBOURS:
            break
        found = rows[_off_plane(points[rows])]
        if len(found) == 0:
            break
        out[found] = True
    return out if int(out.sum()) <= MAX_OUTLIER_SHARE * len(points) else torch.zeros_like(out)


def _off_plane(points: Tensor) -> Tensor:
    """Which points (n,) one round finds."""
    index, distance = k_nearest(points, OUTLIER_NEIGHBOURS + 1)
    spacing = distance[:, OUTLIER_SPACING_NEIGHBOUR]
    sparse = MIN_CLUTTER_SPACING * spacing.median()
    off = []
    for rows in torch.arange(len(points), device=points.device).split(EIGEN_BATCH):
        nearest = index[rows, 1]
        around = index[nearest]
        weight = (around != rows[:, None]).to(points.dtype)[..., None]
        offset = points[around] - points[nearest, None]
        mean = (weight * offset).sum(1) / weight.sum(1)
        offset = offset - mean[:, None]
        values, vectors = torch.linalg.eigh((offset.transpose(1, 2) @ (weight * offset)).double())
        height = dot((points[rows] - points[nearest] - mean).double(), vectors[..., 0]).abs()
        residual = (values[:, 0].clamp_min(0) / OUTLIER_NEIGHBOURS).sqrt()
        far = height > MIN_OUTLIER_RESIDUALS * residual
        off.append(far & (height > MIN_OUTLIER_SPACINGS * spacing[around].median(1).values))
        own = points[index[rows]] - points[index[rows]].mean(1, keepdim=True)
        values = torch.linalg.eigvalsh((own.transpose(1, 2) @ own).double()).clamp_min(1e-300)
        off[-1] |= (spacing[rows] > sparse) & ((values[:, 0] / values[:, 1]).sqrt() > MIN_CLUTTER_THICKNESS)
    return torch.cat(off)


def small_pieces(component: Tensor, smallest: int) -> Tensor:
    """Which points (n,) belong to a small component, given the component (n,) of each.

    A component is small if it has fewer points than `smallest` or than a thousandth of all. The largest is never small.
    """
    size = torch.bincount(component)
    small = size < max(smallest, len(component) // MIN_PIECE_FRACTION)
    small[size.argmax()] = False
    return small[component]


def distinct(points: Tensor) -> tuple[Tensor, Tensor, int]:
    """The distinct points (m, 3), the number (n,) of each point among them, and how many points repeat another exactly.

    Points that are equal after rounding to a thousandth of the median spacing count as one, the first of them in the
    order of coordinates.
    """
    unique, which = torch.unique(points, dim=0, return_inverse=True)
    exact = len(points) - len(unique)
    distance = k_nearest(unique, min(13, len(unique)))[1][:, -1]
    # Half the distance of the 12th neighbour is about one spacing (sqrt(pi / 12) = 0.51), and it is not zero if up to a
    # dozen scans laid over each other repeat each point.
    cell = MAX_REPEAT_DISTANCE * 0.5 * float(distance.median())
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
