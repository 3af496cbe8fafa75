"""Tangent frames: two unit tangents that make a right-handed orthonormal frame with a unit normal.

    t1 = (1 - s x^2 / (s + z), -s x y / (s + z), -s x),
    t2 = (-x y / (s + z), s - y^2 / (s + z), -y),    s = 1 where z >= 0 and -1 elsewhere,

for n = (x, y, z), after Duff et al. (2017), "Building an orthonormal basis, revisited". The denominator is at least 1
in absolute value, so nothing is divided by a small number. Frames jump by an angle about the normal where z changes
sign, so results must not depend on that angle. `vector_kernel.frame_around` is the same formula in Triton.
"""

from __future__ import annotations

import torch
from torch import Tensor


def tangent_basis(normals: Tensor) -> Tensor:
    """Orthonormal tangents t1, t2 (n, 2, 3) for unit normals (n, 3), with t1 x t2 = n."""
    return torch.stack(_tangents(normals), -2)


def tangent_frames(normals: Tensor) -> Tensor:
    """Orthonormal frames (n, 3, 3) with rows t1, t2, n for unit normals (n, 3)."""
    return torch.stack([*_tangents(normals), normals], -2)


def _tangents(normals: Tensor) -> tuple[Tensor, Tensor]:
    x, y, z = normals.unbind(-1)
    sign = torch.where(z >= 0, 1.0, -1.0).to(z)
    a = -1 / (sign + z)
    b = x * y * a
    t1 = torch.stack([1 + sign * x * x * a, sign * b, -sign * x], -1)
    t2 = torch.stack([b, sign + y * y * a, -y], -1)
    return t1, t2
