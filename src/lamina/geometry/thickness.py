"""How thick a shape is, measured on oriented samples."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import KDTree

# Seen from the centre of a ball, two samples that it touches lie on opposite sides of a thin part or a gap
# when they are this far apart (more than across a right-angled crease) ...
OPPOSITE = np.cos(np.deg2rad(100.0))
# ... and on one sheet when they are closer than this: then the ball is fitting noise, and is left.
SAME = np.cos(np.deg2rad(60.0))
NOISE = 4.0
ITERATIONS = 12


def medial_radii(points: NDArray, normals: NDArray, asked: NDArray, largest: float) -> NDArray:
    """Radius (a,) of the smaller of the two balls that touch a sample and an opposite sheet, for samples `asked`.

    The shrinking ball algorithm (Ma, Bae and Choi 2012): a ball tangent at p that holds another sample q is
    shrunk until it passes through q, r = |p - q|^2 / (2 n.(p - q)), until none is inside. Radii are capped
    at `largest`; where only nearby samples of the same sheet stop a ball, its radius is not counted. Nearby
    means within NOISE sample spacings, unless the normals there are opposite: noise is not thickness.
    """
    tree = KDTree(points)
    nearby = (NOISE * np.median(tree.query(points[asked], k=2)[0][:, 1])) ** 2
    best = np.full(len(asked), largest)
    for side in (1.0, -1.0):
        inward = -side * normals[asked]
        radius, found = np.full(len(asked), largest), np.full(len(asked), largest)
        active = np.arange(len(asked))
        for _ in range(ITERATIONS):
            if not len(active):
                break
            p, n, r = points[asked[active]], inward[active], radius[active]
            centre = p + r[:, None] * n
            # Approximate, and content with a tenth: at the centre of a round part all samples are equally near,
            # which an exact search would visit one by one.
            distance, q = tree.query(centre, eps=0.1)
            offset = points[q] - p
            length = np.einsum("ij,ij->i", offset, offset)
            along = np.einsum("ij,ij->i", offset, n)
            inside = (distance < 0.9 * r) & (along > 0) & (length > 0)
            new = np.where(inside, length / (2 * np.where(inside, along, 1.0)), r)
            a, b = p - (p + new[:, None] * n), points[q] - (p + new[:, None] * n)
            cosine = np.einsum("ij,ij->i", a, b) / np.maximum(
                np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1), 1e-300
            )
            facing = np.einsum("ij,ij->i", normals[asked[active]], normals[q]) < -0.5
            further = inside & (cosine < SAME) & ((length > nearby) | facing)
            opposite = further & (cosine < OPPOSITE)
            found[active[opposite]] = new[opposite]
            radius[active] = new
            active = active[further]
        best = np.minimum(best, found)
    return best
