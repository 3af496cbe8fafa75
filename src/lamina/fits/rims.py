"""Where a sampled surface ends: its rims, and how far a foot lies beyond them.

A sample lies on a rim when a large empty disc touches it in its tangent plane: the rim of the alpha shape of the
samples (Edelsbrunner, Kirkpatrick and Seidel 1983, "On the shape of a set of points in the plane"). Random samples
leave discs of twice the spacing empty now and then, of three times never: so a rim needs the larger ones somewhere,
and goes on along the smaller ones. Where it runs, a parabola through the samples on it tells, and how far they are
scattered about that: samples that were put on the rim are not, and the surface ends there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lamina.device import by_kernel
from lamina.geometry.frames import tangent_basis
from lamina.geometry.triangles import dot
from lamina.search.neighbours import BEYOND, LINK_TURN, cell_radii, k_nearest, rays, spacing_of

NEIGHBOURS, MORE_NEIGHBOURS = 32, 128  # among which empty discs are looked for, and then surely found
NEAR = 12  # the distance of this neighbour is about two spacings, the radius of discs that may be empty by chance
ENTRIES = {"cpu": 2**19, "cuda": 2**25}  # of what is made on the way
LARGE = 1.5  # times as large, they are not
FEWEST, ALONG = 12, 24  # samples on rims without which nothing is told of them, and that are looked at around each
REACH, SHEET = 5.0, 0.3  # spacings over which a rim is followed, and part of that which another sheet is away at least
REGULAR = 0.02  # deviation of the distances of nearest samples, over their mean, on a lattice
ALIKE = 0.5  # cosine between the directions, and the normals, of samples on the same side of a surface
DEPTH = 1.5  # how deep in the surface, over their deviation, the outermost of random samples are in the mean
MOST = 0.7  # spacings that a surface may go on beyond a sample on its rim
RIDGE = 1e-3  # settles what few samples do not say


@dataclass(frozen=True)
class Rims:
    """For each of m samples the half plane in which its part of the surface ends, (x - p) . outward <= limit."""

    outward: Tensor  # (m, 3) unit tangent that leads off the surface, zero where the sample is on no rim
    limit: Tensor  # (m,) infinite where the sample is on no rim

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Rims:
        return Rims(*(v.to(device=device, dtype=dtype) for v in (self.outward, self.limit)))

    @property
    def count(self) -> int:
        return int(torch.isfinite(self.limit).sum())

    def excess(self, points: Tensor, feet: Tensor, index: Tensor) -> Tensor:
        """How far (n,) feet (n, 3) of samples index (n,) among points (m, 3) lie beyond their rims; 0: not."""
        return (dot(feet - points[index], self.outward[index]) - self.limit[index]).clamp_min(0)


def find_rims(points: Tensor, normals: Tensor, neighbours: Callable[[Tensor, int], Tensor]) -> Rims:
    """The rims of a surface through points (m, 3) with normals (m, 3).

    neighbours(rows, k): the k nearest (n, k) of samples `rows`, first the sample itself. `outward` is the mean of the
    rays along which there is room for a disc; where there is room on all sides, as around a wire, there is no rim.
    """
    outward, limit = torch.zeros_like(points), torch.full_like(points[:, 0], torch.inf)
    every = torch.arange(len(points), device=points.device)
    rows = every[_room(points, normals, neighbours(every, NEIGHBOURS))[0].any(1)]
    if not len(rows):
        return Rims(outward, limit)
    near = neighbours(rows, MORE_NEIGHBOURS)
    roomy, wide, reach = _room(points, normals, near)
    sure = torch.zeros_like(limit, dtype=torch.bool)
    sure[rows] = wide.any(1)
    mean = roomy.to(points.dtype) @ rays(points) / roomy.shape[1]
    size = (mean**2).sum(1).sqrt()
    on_rim = ((size > 0.02) & sure[near[:, : NEAR + 1]].any(1)).nonzero()[:, 0]
    rows = rows[on_rim]
    outward[rows] = ((mean / size.clamp_min(1e-30)[:, None])[on_rim, None] @ tangent_basis(normals[rows]))[:, 0]
    spacing = spacing_of(reach, min(NEAR, near.shape[1] - 1), roomy)[on_rim, 0]
    limit[rows] = BEYOND * spacing
    if len(rows) >= FEWEST and not _regular(points, near[on_rim, : NEAR + 1], neighbours):
        outward[rows], limit[rows] = _aligned(points[rows], normals[rows], outward[rows], spacing)
    return Rims(outward, limit)


def _regular(points: Tensor, near: Tensor, neighbours: Callable[[Tensor, int], Tensor]) -> bool:
    """Whether samples (m, 3) are on a lattice around most of the samples near[:, 0], with neighbours near (r, k): all
    their nearest are at one distance. Then each stands for a cell, which goes on beyond it."""
    around, place = torch.unique(near, return_inverse=True)
    offset = points[neighbours(around, 2)[:, 1]] - points[around]
    distance = dot(offset, offset).sqrt()[place]
    return float((distance.std(1) / distance.mean(1)).nanmedian()) < REGULAR


def _aligned(points: Tensor, normals: Tensor, outward: Tensor, spacing: Tensor) -> tuple[Tensor, Tensor]:
    """Directions (r, 3) that lead off the surface at samples (r, 3) on its rims, and how far it goes on in them (r,).

    outward (r, 3): directions to begin with. In each sample's tangent plane a parabola is laid through those on the rim
    nearby. Samples put on the rim lie on it. If they were put anywhere, the outermost are some way inside, and how much
    they are scattered about the parabola tells how far.
    """
    near, _ = k_nearest(points, min(ALONG, len(points)))
    offset = (points[near] - points[:, None]) / (REACH * spacing)[:, None, None]
    along = torch.linalg.cross(normals, outward)
    s, y = dot(offset, along[:, None]), dot(offset, outward[:, None])
    alike = (dot(outward[near], outward[:, None]) > ALIKE) & (dot(normals[near], normals[:, None]) > ALIKE)
    alike &= (dot(offset, offset) < 1) & (dot(offset, normals[:, None]).abs() < SHEET)
    weight = alike.to(points.dtype)
    columns = torch.stack([torch.ones_like(s), s, s * s], -1)
    gram = columns.transpose(1, 2) @ (weight[..., None] * columns)
    right = columns.transpose(1, 2) @ (weight * y)[..., None]
    middle, slope, bend = torch.linalg.solve(gram + RIDGE * torch.eye(3).to(gram), right)[..., 0].unbind(1)
    scatter = y - middle[:, None] - slope[:, None] * s - bend[:, None] * s * s
    free = weight.sum(1) - 3
    deviation = ((weight * scatter**2).sum(1) / free.clamp_min(1)).sqrt()
    level = (1 + slope**2).rsqrt()
    turned = (outward - slope[:, None] * along) * level[:, None]
    room = (REACH * level * (middle + DEPTH * deviation)).clamp(0, MOST)
    few = free < 2
    return torch.where(few[:, None], outward, turned), torch.where(few, BEYOND, room) * spacing


def _room(points: Tensor, normals: Tensor, near: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Along which rays (n, r) an empty disc touches the samples near[:, 0], and a large one; and the distance (n, 1)
    to compare with.

    Along a ray e the largest empty disc has the radius min_j |p_j|^2 / (2 e . p_j) over the neighbours p_j, laid into
    the tangent plane. Those on a sheet back to back (n_i . n_j <= -1/2) do not count, those across an edge do.
    """
    ray = rays(points)
    last = min(NEAR, near.shape[1] - 1)
    if len(near) and by_kernel(points, normals):
        from lamina.fits.rims_kernel import room

        return room(points, normals, near, ray, last, LARGE)
    found = []
    for block in near.split(max(1, ENTRIES[points.device.type] // (len(ray) * near.shape[1]))):
        own, others = block[:, 0], block[:, 1:]
        offset = points[others] - points[own, None]
        facing = dot(normals[own, None], normals[others]) > LINK_TURN
        reach = dot(offset, offset).sqrt()[:, last - 1, None]
        radius = cell_radii(offset @ tangent_basis(normals[own]).transpose(1, 2), facing[..., None], ray)
        found.append((radius > reach, radius > LARGE * reach, reach))
    roomy, wide, reach = (torch.cat(part) for part in zip(*found, strict=True))
    return roomy, wide, reach
