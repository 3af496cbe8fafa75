"""Blends of jets, and the steps to where they vanish, as one Triton kernel; `blend.py` is its reference."""

from __future__ import annotations

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from lamina.fits import blend as reference
from lamina.fits.polynomial_kernel import height_slopes
from lamina.geometry.vector_kernel import load_vector, store_vector

BACK_TO_BACK_COSINE = tl.constexpr(reference.BACK_TO_BACK_COSINE)
MAX_EDGE_COSINE = tl.constexpr(reference.MAX_EDGE_COSINE)
MIN_SHEET_GAP = tl.constexpr(reference.MIN_SHEET_GAP)
MIN_EDGE_WEIGHT = tl.constexpr(reference.MIN_EDGE_WEIGHT)
PAIRS_PER_PROGRAM = 256  # pairs of a point and a jet that one program of the kernel holds


def blended(
    blend: reference.Blend, x: Tensor, index: Tensor, tolerance: Tensor | None = None, steps: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """phi (n,) and unit normals (n, 3) at x (n, 3), whose nearest samples are index (n,), and x - phi normal.

    With more steps the same is repeated from there, except for points with |phi| at most tolerance (n,).
    """
    jets, near, j = blend.jets, blend.near, blend.near.shape[1]
    near = near if near.stride(1) == 1 else near.contiguous()
    phi, normals, points = torch.empty_like(x[:, 0]), torch.empty_like(x), torch.empty_like(x)
    width = triton.next_power_of_2(j)
    rows = max(1, PAIRS_PER_PROGRAM // width)
    with torch.cuda.device_of(x):
        _blended[(triton.cdiv(len(x), rows),)](  # pyright: ignore[reportIndexIssue]
            x.contiguous(), index.contiguous(), phi if tolerance is None else tolerance.contiguous(),
            blend.points.contiguous(), blend.normals.contiguous(), near, blend.spacing,
            jets.centres.contiguous(), jets.frames.contiguous(), jets.coefficients.contiguous(),
            jets.scale.contiguous(), jets.reach.contiguous(), phi, normals, points,
            len(x), near.stride(0), steps, j, jets.coefficients.shape[1], blend.reach, jets.degree, blend.sharp,
            torch.finfo(x.dtype).tiny, rows, width, num_warps=4,
        )  # fmt: skip
    return phi, normals, points


@triton.jit(do_not_specialize=["n", "stride", "steps"])
def _blended(
    X, INDEX, TOLERANCE, POINTS, NORMALS, NEAR, SPACING, CENTRES, FRAMES, COEFFICIENTS, SCALE, REACH, PHI, OUT, MOVED,
    n, stride, steps, J: tl.constexpr, COUNT: tl.constexpr, WIDE: tl.constexpr, DEGREE: tl.constexpr,
    SHARP: tl.constexpr, TINY: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < n
    own = tl.load(INDEX + row, inside, 0)
    spacing = tl.load(SPACING + own)
    support = WIDE * spacing * spacing
    column = tl.arange(0, WIDTH)
    valid = inside[:, None] & (column < J)[None, :]
    near = tl.load(NEAR + own[:, None] * stride + column[None, :], valid, 0)
    x, y, z = load_vector(X, row, inside)
    phi, nx, ny, nz = x * 0, x * 0, x * 0, x * 0
    going = inside
    step, looking = 0, True
    while looking:
        phi1, nx1, ny1, nz1 = _at(
            x, y, z, near, valid, column, support, POINTS, NORMALS, CENTRES, FRAMES, COEFFICIENTS, SCALE, REACH,
            COUNT, DEGREE, SHARP, TINY,
        )  # fmt: skip
        phi = tl.where(going, phi1, phi)
        nx, ny, nz = tl.where(going, nx1, nx), tl.where(going, ny1, ny), tl.where(going, nz1, nz)
        x = tl.where(going, x - phi * nx, x)
        y = tl.where(going, y - phi * ny, y)
        z = tl.where(going, z - phi * nz, z)
        step += 1
        if step < steps:
            going = going & (tl.abs(phi) > tl.load(TOLERANCE + row, inside, 0))
        looking = (step < steps) & (tl.max(going.to(tl.int32)) > 0)
    tl.store(PHI + row, phi, inside)
    store_vector(OUT, row, inside, nx, ny, nz)
    store_vector(MOVED, row, inside, x, y, z)


@triton.jit
def _at(
    x, y, z, near, valid, column, support, POINTS, NORMALS, CENTRES, FRAMES, COEFFICIENTS, SCALE, REACH,
    COUNT: tl.constexpr, DEGREE: tl.constexpr, SHARP: tl.constexpr, TINY: tl.constexpr,
):  # fmt: skip
    """phi and normals (n,) at x, y, z (n,)."""
    px, py, pz = load_vector(POINTS, near, valid)
    px, py, pz = px - x[:, None], py - y[:, None], pz - z[:, None]
    square = tl.where(valid, px * px + py * py + pz * pz, float("inf"))
    least = tl.min(square, 1)
    weight = 1 - (square - least[:, None]) / support[:, None]
    weight = tl.where(valid & (weight > 0), weight * weight * weight, 0)
    counted = weight > 0
    # Signed distances g to the jets, and normals.
    scale, reach = tl.load(SCALE + near, counted, 1), tl.load(REACH + near, counted, 1)
    cx, cy, cz = load_vector(CENTRES, near, counted)
    cx, cy, cz = (x[:, None] - cx) / scale, (y[:, None] - cy) / scale, (z[:, None] - cz) / scale
    ux, uy, uz = load_vector(FRAMES, 3 * near, counted)
    vx, vy, vz = load_vector(FRAMES, 3 * near + 1, counted)
    nx, ny, nz = load_vector(FRAMES, 3 * near + 2, counted)
    a, b, c = ux * cx + uy * cy + uz * cz, vx * cx + vy * cy + vz * cz, nx * cx + ny * cy + nz * cz
    size = tl.sqrt(a * a + b * b)
    hold = tl.where(size > reach, reach / size, 1)
    h, ha, hb = height_slopes(COEFFICIENTS + near * COUNT, counted, a * hold, b * hold, DEGREE)
    h = h + (ha * a + hb * b) * (1 - hold)
    level = 1 / tl.sqrt(1 + ha * ha + hb * hb)
    g = (c - h) * level * scale
    nx, ny, nz = (nx - ha * ux - hb * vx) * level, (ny - ha * uy - hb * vy) * level, (nz - ha * uz - hb * vz) * level
    if SHARP:
        phi, mx, my, mz = _sharp(column, weight, g, nx, ny, nz, px, py, pz, support, TINY)
    else:
        # The weighted mean normal tells which sheet x is nearest to: a single sample may be wrong.
        lx, ly, lz = load_vector(NORMALS, near, valid)
        ax, ay, az = _unit(tl.sum(weight * lx, 1), tl.sum(weight * ly, 1), tl.sum(weight * lz, 1), TINY)
        facing = lx * ax[:, None] + ly * ay[:, None] + lz * az[:, None] > BACK_TO_BACK_COSINE
        phi, mx, my, mz = _mean(tl.where(facing, weight, 0), g, nx, ny, nz, TINY)
    return phi, mx, my, mz


@triton.jit
def _sharp(column, weight, g, nx, ny, nz, px, py, pz, support, TINY: tl.constexpr):
    """As _mean, but where jets look two ways, the maximum or the minimum of two means."""
    one = column[None, :] == tl.argmax(weight, 1)[:, None]
    ox, oy, oz = _pick(one, nx), _pick(one, ny), _pick(one, nz)
    to_one = nx * ox[:, None] + ny * oy[:, None] + nz * oz[:, None]
    two = column[None, :] == tl.argmin(tl.where(weight > MIN_EDGE_WEIGHT, to_one, float("inf")), 1)[:, None]
    ox, oy, oz = _pick(two, nx), _pick(two, ny), _pick(two, nz)
    other = nx * ox[:, None] + ny * oy[:, None] + nz * oz[:, None] > to_one
    first, second = tl.where(other, 0, weight), tl.where(other, weight, 0)
    phi1, x1, y1, z1 = _mean(first, g, nx, ny, nz, TINY)
    phi2, x2, y2, z2 = _mean(second, g, nx, ny, nz, TINY)
    total1, total2 = tl.maximum(tl.sum(first, 1), TINY), tl.sum(second, 1)
    part2 = tl.maximum(total2, TINY)
    dx = tl.sum(second * px, 1) / part2 - tl.sum(first * px, 1) / total1
    dy = tl.sum(second * py, 1) / part2 - tl.sum(first * py, 1) / total1
    dz = tl.sum(second * pz, 1) / part2 - tl.sum(first * pz, 1) / total1
    below = (dx * (x1 - x2) + dy * (y1 - y2) + dz * (z1 - z2)) / tl.sqrt(support)
    facing = x1 * x2 + y1 * y2 + z1 * z2
    edge = (facing < MAX_EDGE_COSINE) & (total2 > 0)
    edge = edge & ((facing > BACK_TO_BACK_COSINE) | (tl.abs(below) > MIN_SHEET_GAP))
    take2 = edge & (((below < 0) & (phi2 > phi1)) | ((below >= 0) & (phi2 < phi1)))
    alone = (edge == 0) & (facing > BACK_TO_BACK_COSINE)
    phi, mx, my, mz = _mean(weight, g, nx, ny, nz, TINY)
    phi = tl.where(alone, phi, tl.where(take2, phi2, phi1))
    mx = tl.where(alone, mx, tl.where(take2, x2, x1))
    my = tl.where(alone, my, tl.where(take2, y2, y1))
    mz = tl.where(alone, mz, tl.where(take2, z2, z1))
    return phi, mx, my, mz


@triton.jit
def _mean(weight, g, nx, ny, nz, TINY: tl.constexpr):
    """Means (n,) of g (n, j) and of unit vectors."""
    mx, my, mz = _unit(tl.sum(weight * nx, 1), tl.sum(weight * ny, 1), tl.sum(weight * nz, 1), TINY)
    return tl.sum(weight * g, 1) / tl.maximum(tl.sum(weight, 1), TINY), mx, my, mz


@triton.jit
def _unit(x, y, z, TINY: tl.constexpr):
    size = tl.sqrt(tl.maximum(x * x + y * y + z * z, TINY))
    return x / size, y / size, z / size


@triton.jit
def _pick(which, values):
    return tl.sum(tl.where(which, values, 0), 1)
