"""Where a sampled surface ends: its rims, and how far a foot lies beyond them.

A sample lies on a rim when a large empty disc touches it in its tangent plane: this is the rim of the alpha shape of
the samples (Edelsbrunner, Kirkpatrick and Seidel 1983, "On the shape of a set of points in the plane"). Among random
samples a disc of twice the spacing is empty now and then, a disc of three times the spacing never. A rim therefore
needs a large empty disc somewhere, and continues along samples with small ones. Its position is that of a parabola
through the samples on it, moved outwards by how much they scatter about it: samples placed on the rim do not scatter,
and the surface ends at them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lamina.device import by_kernel
from lamina.geometry.frames import tangent_basis
from lamina.geometry.triangles import dot
from lamina.search.neighbours import (
    MEAN_RIM_EXTENSION,
    MIN_LINK_COSINE,
    cell_radii,
    k_nearest,
    ray_directions,
    spacing_of,
)
from lamina.shapes import Float, shaped

# Neighbours among which empty discs are looked for: few at all samples, then many at those where a disc seemed empty.
FIRST_DISC_NEIGHBOURS, ALL_DISC_NEIGHBOURS = 32, 128
# The distance of this neighbour is about two spacings, the radius of discs that may be empty by chance.
RIM_NEIGHBOUR = 12
DISC_ENTRIES = {"cpu": 2**19, "cuda": 2**25}  # pairs of a neighbour and a ray held at a time
# An empty disc with a radius of more than this many times that distance, three spacings, is not empty by chance. A
# smaller factor takes gaps between random samples for rims; a larger one misses holes a few spacings wide.
LARGE_DISC_FACTOR = 1.5
# A sample with room on all sides, as on a wire, is on no rim: the mean of the rays with room must be longer than this.
MIN_MEAN_RAY = 0.02
# With fewer samples on rims than this their positions are not fitted; parabolas are fitted to this many samples.
MIN_RIM_SAMPLES, PARABOLA_NEIGHBOURS = 12, 24
# A parabola is fitted to samples of the rim within this many spacings; those higher over the tangent plane than the
# second share of that distance are on another sheet.
PARABOLA_RADIUS, MAX_PARABOLA_HEIGHT = 5.0, 0.3
# Samples lie on a lattice if the standard deviation of the distances to nearest neighbours is below this share of their
# mean; random samples have about a half. Each sample of a lattice stands for a cell, which extends beyond it.
MAX_LATTICE_DEVIATION = 0.02
# Two samples are on the same part of a rim if the cosines between their outward directions, and between their normals,
# are above this (60 degrees).
MIN_SAME_RIM_COSINE = 0.5
# The rim is put this many standard deviations of the scatter about the parabola beyond the parabola: the outermost of
# random samples lie that far inside the rim in the mean.
RIM_DEPTH_IN_DEVIATIONS = 1.5
# The surface extends at most this many spacings beyond a sample on its rim.
MAX_RIM_EXTENSION = 0.7
# A parabola has a deviation only if it has at least this many samples more than its three coefficients.
MIN_FREE_SAMPLES = 2
PARABOLA_RIDGE = 1e-3  # added to the diagonal of the normal equations, which few samples leave singular


@shaped
@dataclass(frozen=True)
class Rims:
    """For each of m samples the half-space (x - p) . outward <= limit that its part of the surface lies in."""

    outward: Float[Tensor, "m 3"]  # unit tangent that points off the surface, zero where the sample is on no rim
    limit: Float[Tensor, " m"]  # infinite where the sample is on no rim

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Rims:
        return Rims(*(v.to(device=device, dtype=dtype) for v in (self.outward, self.limit)))

    @property
    def count(self) -> int:
        return int(torch.isfinite(self.limit).sum())

    def excess(self, points: Tensor, feet: Tensor, index: Tensor) -> Tensor:
        """How far (n,) feet (n, 3) that belong to samples index (n,) of points (m, 3) lie beyond the rims; 0 if not."""
        return (dot(feet - points[index], self.outward[index]) - self.limit[index]).clamp_min(0)


def find_rims(points: Tensor, normals: Tensor, neighbours: Callable[[Tensor, int], Tensor]) -> Rims:
    """The rims of a surface through points (m, 3) with normals (m, 3).

    neighbours(rows, k): the k nearest samples (n, k) of samples `rows`, first the sample itself. `outward` is the mean
    of the rays along which there is room for an empty disc. Where there is room on all sides, as around a wire, there
    is no rim.
    """
    outward, limit = torch.zeros_like(points), torch.full_like(points[:, 0], torch.inf)
    every = torch.arange(len(points), device=points.device)
    rows = every[empty_discs(points, normals, neighbours(every, FIRST_DISC_NEIGHBOURS))[0].any(1)]
    if not len(rows):
        return Rims(outward, limit)
    near = neighbours(rows, ALL_DISC_NEIGHBOURS)
    roomy, wide, reach = empty_discs(points, normals, near)
    sure = torch.zeros_like(limit, dtype=torch.bool)
    sure[rows] = wide.any(1)
    mean = roomy.to(points.dtype) @ ray_directions(points) / roomy.shape[1]
    size = (mean**2).sum(1).sqrt()
    on_rim = ((size > MIN_MEAN_RAY) & sure[near[:, : RIM_NEIGHBOUR + 1]].any(1)).nonzero()[:, 0]
    rows = rows[on_rim]
    outward[rows] = ((mean / size.clamp_min(1e-30)[:, None])[on_rim, None] @ tangent_basis(normals[rows]))[:, 0]
    spacing = spacing_of(reach, min(RIM_NEIGHBOUR, near.shape[1] - 1), roomy)[on_rim, 0]
    limit[rows] = MEAN_RIM_EXTENSION * spacing
    if len(rows) >= MIN_RIM_SAMPLES and not _on_lattice(points, near[on_rim, : RIM_NEIGHBOUR + 1], neighbours):
        outward[rows], limit[rows] = _aligned(points[rows], normals[rows], outward[rows], spacing)
    return Rims(outward, limit)


def _on_lattice(points: Tensor, near: Tensor, neighbours: Callable[[Tensor, int], Tensor]) -> bool:
    """Whether samples (m, 3) lie on a lattice around most of the samples near[:, 0], whose neighbours are near (r, k):
    then the nearest neighbours of all of these are at one distance."""
    around, which = torch.unique(near, return_inverse=True)
    offset = points[neighbours(around, 2)[:, 1]] - points[around]
    distance = dot(offset, offset).sqrt()[which]
    return float((distance.std(1) / distance.mean(1)).nanmedian()) < MAX_LATTICE_DEVIATION


def _aligned(points: Tensor, normals: Tensor, outward: Tensor, spacing: Tensor) -> tuple[Tensor, Tensor]:
    """Directions (r, 3) that point off the surface at samples (r, 3) on its rims, and how far (r,) it extends in them.

    outward (r, 3): first directions. In each sample's tangent plane a parabola is fitted to the samples on the rim
    nearby. Samples placed on the rim lie on the parabola. Of samples placed at random the outermost lie some way inside
    the rim, and how much they scatter about the parabola tells how far.
    """
    near, _ = k_nearest(points, min(PARABOLA_NEIGHBOURS, len(points)))
    offset = (points[near] - points[:, None]) / (PARABOLA_RADIUS * spacing)[:, None, None]
    along = torch.linalg.cross(normals, outward)
    s, y = dot(offset, along[:, None]), dot(offset, outward[:, None])
    alike = dot(outward[near], outward[:, None]) > MIN_SAME_RIM_COSINE
    alike &= dot(normals[near], normals[:, None]) > MIN_SAME_RIM_COSINE
    alike &= (dot(offset, offset) < 1) & (dot(offset, normals[:, None]).abs() < MAX_PARABOLA_HEIGHT)
    weight = alike.to(points.dtype)
    columns = torch.stack([torch.ones_like(s), s, s * s], -1)
    gram = columns.transpose(1, 2) @ (weight[..., None] * columns)
    right = columns.transpose(1, 2) @ (weight * y)[..., None]
    middle, slope, bend = torch.linalg.solve(gram + PARABOLA_RIDGE * torch.eye(3).to(gram), right)[..., 0].unbind(1)
    scatter = y - middle[:, None] - slope[:, None] * s - bend[:, None] * s * s
    free = weight.sum(1) - 3
    deviation = ((weight * scatter**2).sum(1) / free.clamp_min(1)).sqrt()
    level = (1 + slope**2).rsqrt()
    turned = (outward - slope[:, None] * along) * level[:, None]
    extension = PARABOLA_RADIUS * level * (middle + RIM_DEPTH_IN_DEVIATIONS * deviation)
    extension = extension.clamp(0, MAX_RIM_EXTENSION)
    few = free < MIN_FREE_SAMPLES
    return torch.where(few[:, None], outward, turned), torch.where(few, MEAN_RIM_EXTENSION, extension) * spacing


def empty_discs(points: Tensor, normals: Tensor, near: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Along which rays (n, r) an empty disc touches the samples near[:, 0], along which a large one does, and the
    distance (n, 1) of the neighbour RIM_NEIGHBOUR that radii are compared with.

    Along a ray e the largest empty disc has the radius min_j |p_j|^2 / (2 e . p_j) over the neighbours p_j, projected
    to the tangent plane. Neighbours on a sheet back to back (n_i . n_j <= -1/2) do not count; those across an edge do.
    """
    ray = ray_directions(points)
    last = min(RIM_NEIGHBOUR, near.shape[1] - 1)
    if len(near) and by_kernel(points, normals):
        from lamina.fits import rims_kernel

        return rims_kernel.empty_discs(points, normals, near, ray, last, LARGE_DISC_FACTOR)
    found = []
    for block in near.split(max(1, DISC_ENTRIES[points.device.type] // (len(ray) * near.shape[1]))):
        own, others = block[:, 0], block[:, 1:]
        offset = points[others] - points[own, None]
        facing = dot(normals[own, None], normals[others]) > MIN_LINK_COSINE
        reach = dot(offset, offset).sqrt()[:, last - 1, None]
        radius = cell_radii(offset @ tangent_basis(normals[own]).transpose(1, 2), facing[..., None], ray)
        found.append((radius > reach, radius > LARGE_DISC_FACTOR * reach, reach))
    roomy, wide, reach = (torch.cat(part) for part in zip(*found, strict=True))
    return roomy, wide, reach
