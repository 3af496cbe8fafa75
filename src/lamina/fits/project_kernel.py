"""Closest points on jets as one Triton kernel; `project.py` is its reference."""

from __future__ import annotations

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from lamina.fits import project as reference
from lamina.fits.jets import Jets
from lamina.fits.polynomial_kernel import height_derivatives
from lamina.geometry.vector_kernel import load_vector, store_vector

MIN_CONVEXITY, MIN_DAMPING = tl.constexpr(reference.MIN_CONVEXITY), tl.constexpr(reference.MIN_DAMPING)
DAMPING_FACTOR, FIRST_DAMPING = tl.constexpr(reference.DAMPING_FACTOR), tl.constexpr(reference.FIRST_DAMPING)
POINTS_PER_PROGRAM = 64  # points that one program of the kernel projects


def project(jets: Jets, x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Closest points and unit normals as `project.project` finds them, without gradients."""
    points, normals = torch.empty_like(x), torch.empty_like(x)
    eps = torch.finfo(x.dtype).eps
    with torch.cuda.device_of(x):
        _project[(triton.cdiv(len(x), POINTS_PER_PROGRAM),)](  # pyright: ignore[reportIndexIssue]
            x.contiguous(), index.contiguous(), jets.centres.contiguous(), jets.frames.contiguous(),
            jets.coefficients.contiguous(), jets.scale.contiguous(), jets.reach.contiguous(), points, normals,
            len(x), jets.coefficients.shape[1], jets.degree, reference.MAX_NEWTON_STEPS, eps, POINTS_PER_PROGRAM,
            num_warps=2,
        )  # fmt: skip
    return points, normals


@triton.jit(do_not_specialize=["n"])
def _project(
    X, INDEX, CENTRES, FRAMES, COEFFICIENTS, SCALE, REACH, POINTS, NORMALS, n, COUNT: tl.constexpr,
    DEGREE: tl.constexpr, STEPS: tl.constexpr, EPS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < n
    own = tl.load(INDEX + row, inside, 0)
    scale, reach = tl.load(SCALE + own, inside, 1), tl.load(REACH + own, inside, 1)
    px, py, pz = load_vector(CENTRES, own, inside)
    ux, uy, uz = load_vector(FRAMES, 3 * own, inside)
    vx, vy, vz = load_vector(FRAMES, 3 * own + 1, inside)
    nx, ny, nz = load_vector(FRAMES, 3 * own + 2, inside)
    x, y, z = load_vector(X, row, inside)
    x, y, z = (x - px) / scale, (y - py) / scale, (z - pz) / scale
    ta, tb, tc = ux * x + uy * y + uz * z, vx * x + vy * y + vz * z, nx * x + ny * y + nz * z
    C = COEFFICIENTS + own * COUNT
    a1, b1 = _inside(ta, tb, reach)
    a, b, damping, gap = a1, b1, a1 * 0, a1 * 0 + float("inf")
    h, ha, hb, haa, hab, hbb = damping, damping, damping, damping, damping, damping
    step, looking = 0, True
    while looking:
        h1, ha1, hb1, haa1, hab1, hbb1 = height_derivatives(C, inside, a1, b1, DEGREE)
        closer = (ta - a1) * (ta - a1) + (tb - b1) * (tb - b1) + (tc - h1) * (tc - h1)
        # The gap is quadratic in the distance to the minimum: rounding must not reject the last steps.
        better = closer <= gap + gap * (16 * EPS)
        moved = (a1 - a) * (a1 - a) + (b1 - b) * (b1 - b)
        a, b, gap = tl.where(better, a1, a), tl.where(better, b1, b), tl.where(better, closer, gap)
        h, ha, hb = tl.where(better, h1, h), tl.where(better, ha1, ha), tl.where(better, hb1, hb)
        haa, hab, hbb = tl.where(better, haa1, haa), tl.where(better, hab1, hab), tl.where(better, hbb1, hbb)
        relaxed = tl.where(damping > MIN_DAMPING, damping / DAMPING_FACTOR, 0 * damping)
        damping = tl.where(better, relaxed, DAMPING_FACTOR * damping + FIRST_DAMPING)
        far = tl.max((inside & (moved > EPS)).to(tl.int32))
        looking = (step == 0) | ((far > 0) & (step < STEPS))
        step += 1
        above = h - tc
        ga, gb = a - ta + above * ha, b - tb + above * hb
        Haa, Hab, Hbb = 1 + ha * ha + above * haa, ha * hb + above * hab, 1 + hb * hb + above * hbb
        convex = (Haa > MIN_CONVEXITY) & (Haa * Hbb - Hab * Hab > MIN_CONVEXITY * Haa)
        Haa = tl.where(convex, Haa, 1 + ha * ha) + damping
        Hab = tl.where(convex, Hab, ha * hb)
        Hbb = tl.where(convex, Hbb, 1 + hb * hb) + damping
        determinant = Haa * Hbb - Hab * Hab
        a1, b1 = a + (Hab * gb - Hbb * ga) / determinant, b + (Hab * ga - Haa * gb) / determinant
        a1, b1 = _inside(a1, b1, reach)
    level = 1 / tl.sqrt(1 + ha * ha + hb * hb)
    a, b, h = a * scale, b * scale, h * scale
    store_vector(
        POINTS, row, inside, px + a * ux + b * vx + h * nx, py + a * uy + b * vy + h * ny, pz + a * uz + b * vz + h * nz
    )
    store_vector(
        NORMALS, row, inside,
        (nx - ha * ux - hb * vx) * level, (ny - ha * uy - hb * vy) * level, (nz - ha * uz - hb * vz) * level,
    )  # fmt: skip


@triton.jit
def _inside(a, b, reach):
    """The nearest point of the disc of radius reach."""
    size = tl.sqrt(a * a + b * b)
    hold = tl.where(size > reach, reach / size, 1)
    return a * hold, b * hold
