"""Empty discs beside samples as one Triton kernel; `rims.py` is its reference."""

from __future__ import annotations

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from lamina.geometry.vector_kernel import frame_around
from lamina.search import neighbours

MIN_LINK_COSINE = tl.constexpr(neighbours.MIN_LINK_COSINE)


def empty_discs(
    points: Tensor, normals: Tensor, near: Tensor, ray: Tensor, last: int, factor: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Along which of the rays (r, 2) an empty disc with a radius above the distance of the neighbour `last` touches the
    samples near[:, 0], along which one with a radius above `factor` times that distance does, and that distance (n, 1).
    """
    (n, k), rays = near.shape, len(ray)
    roomy, wide = (torch.empty(n, rays, dtype=torch.bool, device=points.device) for _ in range(2))
    reach = points.new_empty(n, 1)
    near = near if near.stride(1) == 1 else near.contiguous()
    with torch.cuda.device_of(points):
        _empty_discs[(n,)](  # pyright: ignore[reportIndexIssue]
            points.contiguous(), normals.contiguous(), near, ray.contiguous(), roomy, wide, reach,
            near.stride(0), k, last, factor, rays, num_warps=1,
        )  # fmt: skip
    return roomy, wide, reach


@triton.jit(do_not_specialize=["stride", "k"])
def _empty_discs(
    POINTS, NORMALS, NEAR, RAY, ROOMY, WIDE, REACH, stride, k, LAST: tl.constexpr, FACTOR: tl.constexpr,
    RAYS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    own = tl.load(NEAR + row * stride)
    px, py, pz = _vector(POINTS, own)
    nx, ny, nz = _vector(NORMALS, own)
    ux, uy, uz, vx, vy, vz = frame_around(nx, ny, nz)
    r = tl.arange(0, RAYS)
    ea, eb = tl.load(RAY + 2 * r)[None, :], tl.load(RAY + 2 * r + 1)[None, :]
    nearest = tl.zeros((RAYS,), ea.dtype)
    for start in range(1, k, 16):
        place = start + tl.arange(0, 16)
        other = tl.load(NEAR + row * stride + place, place < k, own)
        x, y, z = _vector(POINTS, other)
        x, y, z = x - px, y - py, z - pz
        a, b = ux * x + uy * y + uz * z, vx * x + vy * y + vz * z
        x, y, z = _vector(NORMALS, other)
        square = a * a + b * b
        counted = (nx * x + ny * y + nz * z > MIN_LINK_COSINE) & (square > 0)
        scale = tl.where(counted, 2 / tl.where(counted, square, 1), 0)
        nearest = tl.maximum(nearest, tl.max((a * scale)[:, None] * ea + (b * scale)[:, None] * eb, 0))
    x, y, z = _vector(POINTS, tl.load(NEAR + row * stride + LAST))
    reach = tl.sqrt((x - px) * (x - px) + (y - py) * (y - py) + (z - pz) * (z - pz))
    radius = 1 / nearest  # infinite where nothing is near
    tl.store(ROOMY + row * RAYS + r, radius > reach)
    tl.store(WIDE + row * RAYS + r, radius > FACTOR * reach)
    tl.store(REACH + row, reach)


@triton.jit
def _vector(V, i):
    return tl.load(V + 3 * i), tl.load(V + 3 * i + 1), tl.load(V + 3 * i + 2)
