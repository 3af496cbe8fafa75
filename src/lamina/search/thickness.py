"""How thick a shape is, measured on oriented samples."""

from __future__ import annotations

import math

import torch
from scipy.spatial import KDTree
from torch import Tensor

from lamina.geometry.triangles import dot

# Seen from the centre of a ball, two samples that it touches lie on opposite sides of a thin part or a gap
# when they are this far apart (more than across a right-angled crease) ...
OPPOSITE = math.cos(math.radians(100.0))
# ... and on one sheet when they are closer than this: then the ball is fitting noise, and is left.
SAME = math.cos(math.radians(60.0))
NOISE = 4.0
ITERATIONS = 7


def medial_radii(points: Tensor, normals: Tensor, asked: int, largest: float) -> Tensor:
    """Radius (a,) of the smaller of the two balls that touch a sample and an opposite sheet.

    points (n, 3) with unit normals (n, 3); radii for the first `asked` of them. The shrinking ball algorithm
    (Ma, Bae and Choi 2012): a ball tangent at p that holds another sample q is shrunk until it passes through
    q, r = |p - q|^2 / (2 n.(p - q)), until none is inside. Radii are capped at `largest`; where only nearby
    samples of the same sheet stop a ball, its radius is not counted. Nearby means within NOISE sample
    spacings, unless the normals there are opposite: noise is not thickness.
    """
    nearest = _nearest(points)
    own = nearest(points[:asked], k=2)[0][:, 1]
    nearby = (NOISE * float(own.median())) ** 2
    best = points.new_full((min(asked, len(points)),), largest)
    for side in (1.0, -1.0):
        radius, found = torch.full_like(best, largest), torch.full_like(best, largest)
        active = torch.arange(len(best), device=points.device)
        for _ in range(ITERATIONS):
            if not len(active):
                break
            p, inward, r = points[active], -side * normals[active], radius[active]
            distance, index = nearest(torch.addcmul(p, r[:, None], inward))
            q = index[:, 0]
            offset = points[q] - p
            length, along = dot(offset, offset), dot(offset, inward)
            new = length / (2 * along.clamp_min(torch.finfo(p.dtype).tiny))
            # Content with a tenth: inside a round part balls would go on shrinking by a hair.
            inside = (distance[:, 0] < r) & (along > 0) & (length > 0) & (new < 0.9 * r)
            new = torch.where(inside, new, r)
            # Centre to p is -new * inward, centre to q is offset - new * inward; both of length `new`.
            cosine = 1 - along / new.clamp_min(torch.finfo(p.dtype).tiny)
            facing = dot(normals[active], normals[q]) < -0.5
            further = inside & (((cosine < SAME) & (length > nearby)) | facing)
            # Where two sheets face each other half their distance is the radius, however far aside q happens to lie.
            opposite = further & ((cosine < OPPOSITE) | facing)
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
