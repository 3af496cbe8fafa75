"""How thick a shape is, measured on oriented samples."""

from __future__ import annotations

import math

import torch
from scipy.spatial import KDTree
from torch import Tensor

from lamina.geometry.triangles import dot

# Two samples that a ball touches lie on opposite sides of a thin part or a gap if they are more than 100 degrees apart
# as seen from its centre: across a right-angled crease they are 90 degrees apart.
MAX_OPPOSITE_COSINE = math.cos(math.radians(100.0))
# They lie on one sheet if they are less than 60 degrees apart: then the ball follows noise, and is not shrunk further
# unless they are farther apart than this many spacings.
MAX_THROUGH_COSINE = math.cos(math.radians(60.0))
NOISE_SPACINGS = 4.0
# Two samples look opposite ways if the cosine between their normals is below this.
MAX_FACING_COSINE = -0.5
# A ball is shrunk if its radius becomes less than this share of itself: inside a round part it would go on shrinking
# by ever smaller amounts, and a tenth is accurate enough.
MAX_SHRINK_SHARE = 0.9
MAX_SHRINK_STEPS = 7  # a ball is shrunk at most this often; chosen by trial


def medial_radii(points: Tensor, normals: Tensor, asked: int, largest: float) -> Tensor:
    """Radius (a,) of the smaller of the two balls that touch a sample and an opposite sheet.

    points (n, 3), unit normals (n, 3): the samples; radii are found for the first `asked` of them.
    largest: upper bound of the radii.

    The shrinking ball algorithm (Ma, Bae and Choi 2012): a ball tangent at p that contains another sample q is shrunk
    until it passes through q, r = |p - q|^2 / (2 n.(p - q)), and so on until it contains no sample. If only nearby
    samples of the same sheet stop a ball, its radius does not count, as noise is not thickness. Nearby means within
    NOISE_SPACINGS sample spacings, unless the normals are opposite.
    """
    nearest = _nearest(points)
    own = nearest(points[:asked], k=2)[0][:, 1]
    nearby = (NOISE_SPACINGS * float(own.median())) ** 2
    best = points.new_full((min(asked, len(points)),), largest)
    for side in (1.0, -1.0):
        radius, found = torch.full_like(best, largest), torch.full_like(best, largest)
        active = torch.arange(len(best), device=points.device)
        for _ in range(MAX_SHRINK_STEPS):
            if not len(active):
                break
            p, inward, r = points[active], -side * normals[active], radius[active]
            distance, index = nearest(torch.addcmul(p, r[:, None], inward))
            q = index[:, 0]
            offset = points[q] - p
            length, along = dot(offset, offset), dot(offset, inward)
            new = length / (2 * along.clamp_min(torch.finfo(p.dtype).tiny))
            inside = (distance[:, 0] < r) & (along > 0) & (length > 0) & (new < MAX_SHRINK_SHARE * r)
            new = torch.where(inside, new, r)
            # Centre to p is -new * inward, centre to q is offset - new * inward; both of length `new`.
            cosine = 1 - along / new.clamp_min(torch.finfo(p.dtype).tiny)
            facing = dot(normals[active], normals[q]) < MAX_FACING_COSINE
            further = inside & (((cosine < MAX_THROUGH_COSINE) & (length > nearby)) | facing)
            # Where two sheets face each other the radius is half their distance, however far q lies to the side.
            opposite = further & ((cosine < MAX_OPPOSITE_COSINE) | facing)
            gap = torch.where(facing, torch.minimum(new, 0.5 * along), new)
            found[active[opposite]] = torch.minimum(found[active], gap)[opposite]
            radius[active] = new
            active = active[further]
        best = torch.minimum(best, found)
    return best


def _nearest(points: Tensor):
    """query(x, k) -> distances (n, k), indices (n, k): by a k-d tree on the CPU, by brute force on a GPU."""
    if points.is_cuda:
        return lambda x, k=1: torch.cdist(x, points).topk(k, dim=1, largest=False)
    tree = KDTree(points.numpy())

    def query(x: Tensor, k: int = 1) -> tuple[Tensor, Tensor]:
        distance, index = tree.query(x.numpy(), k=k)
        return torch.from_numpy(distance).to(x.dtype).reshape(len(x), k), torch.from_numpy(index).reshape(len(x), k)

    return query
