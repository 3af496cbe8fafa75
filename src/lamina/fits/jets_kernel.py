"""Fits of jets as one Triton kernel; `jets.py` is its reference."""

from __future__ import annotations

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from lamina.fits import jets
from lamina.fits.polynomials import coefficient_count
from lamina.fits.solve_kernel import solve_symmetric
from lamina.geometry.vector_kernel import frame_around, load_double

ZERO_WEIGHT_COSINE = tl.constexpr(jets.ZERO_WEIGHT_COSINE)
FULL_WEIGHT_COSINE = tl.constexpr(jets.FULL_WEIGHT_COSINE)
MIN_PIVOT = tl.constexpr(jets.MIN_PIVOT)
MAX_CURVED_COEFFICIENTS = tl.constexpr(jets.MAX_CURVED_COEFFICIENTS)
REACH_NEIGHBOUR = tl.constexpr(jets.REACH_NEIGHBOUR)
REACH_OVER_NEIGHBOUR = tl.constexpr(jets.REACH_OVER_NEIGHBOUR)
MAX_REACH = tl.constexpr(jets.MAX_REACH)


def fit(
    points: Tensor, normals: Tensor, index: Tensor, degree: int, *, slopes: bool, whole: bool = True, left: bool = True
) -> tuple[Tensor, ...]:
    """Jets fitted to neighbours index (m, k) of samples (n, 3), in float64: frames (m, 3, 3), coefficients (m, c),
    scale, reach and residual (m,), and the height (m,) over each sample of the jet fitted without it.

    whole: whether the jets of all neighbours are wanted; otherwise only scale and height have values.
    left: whether the height is wanted. Where no neighbour counts it is zero, or infinite if `whole` is True too.
    """
    (m, k), count = index.shape, coefficient_count(degree)
    index = index if index.stride(1) == 1 else index.contiguous()
    frames, coefficients, figures = (points.new_empty(m, c, dtype=torch.float64) for c in (9, count, 4))
    with torch.cuda.device_of(points):
        _fit[(m,)](  # pyright: ignore[reportIndexIssue]
            points.contiguous(), normals.contiguous(), index, frames, coefficients, figures,
            index.stride(0), k, int(slopes), int(whole), int(left), 128 if k <= 128 else triton.next_power_of_2(k),
            degree, count, triton.next_power_of_2(count), num_warps=1,
        )  # fmt: skip
    scale, reach, residual, height = figures.unbind(1)
    return frames.view(m, 3, 3), coefficients, scale, reach, residual, height


# Only what must be known to the compiler is a constant: each set of constants takes a second to compile.
@triton.jit(do_not_specialize=["stride", "k", "slopes", "whole", "left"])
def _fit(
    POINTS, NORMALS, INDEX, FRAMES, COEFFICIENTS, FIGURES, stride, k, slopes, whole, left, PLACES: tl.constexpr,
    DEGREE: tl.constexpr, COUNT: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    own = tl.load(INDEX + row * stride)
    nx, ny, nz = load_double(NORMALS, own)
    ux, uy, uz, vx, vy, vz = frame_around(nx, ny, nz)
    px, py, pz = load_double(POINTS, own)
    # All neighbours in the coordinates of the jet.
    place = tl.arange(0, PLACES)
    there = place < k
    near = tl.load(INDEX + row * stride + place, there, 0)
    x, y, z = load_double(POINTS, near)
    x, y, z = x - px, y - py, z - pz
    square = tl.where(there, x * x + y * y + z * z, 0)
    widest = tl.maximum(tl.max(square), 1e-300)
    scale = tl.sqrt(widest)
    a, b, h = ux * x + uy * y + uz * z, vx * x + vy * y + vz * z, nx * x + ny * y + nz * z
    a, b, h = a / scale, b / scale, h / scale
    x, y, z = load_double(NORMALS, near)
    ahead = nx * x + ny * y + nz * z
    inner = tl.maximum(1 - square / widest, 0)
    facing = tl.minimum(tl.maximum((ahead - ZERO_WEIGHT_COSINE) / (FULL_WEIGHT_COSINE - ZERO_WEIGHT_COSINE), 0), 1)
    weight = tl.where(there, inner * inner * facing * facing, 0)
    steep = 1 / tl.where(ahead > ZERO_WEIGHT_COSINE, ahead, 0 * ahead + ZERO_WEIGHT_COSINE)
    sa, sb = (ux * x + uy * y + uz * z) * steep, (vx * x + vy * y + vz * z) * steep
    # The normal equations without the first neighbour; the others are added one after the other.
    gram, right = tl.zeros((SIZE, SIZE), tl.float64), tl.zeros((SIZE,), tl.float64)
    for j in range(1, k):
        aj, bj, hj, wj = _pick(place, j, a), _pick(place, j, b), _pick(place, j, h), _pick(place, j, weight)
        c = _monomials(aj, bj, DEGREE, COUNT, SIZE)
        gram += wj * c[:, None] * c[None, :]
        right += wj * hj * c
        if slopes:
            ca, cb = _derivatives(aj, bj, DEGREE, COUNT, SIZE)
            gram += wj * (ca[:, None] * ca[None, :] + cb[:, None] * cb[None, :])
            right -= wj * (_pick(place, j, sa) * ca + _pick(place, j, sb) * cb)
    i = tl.arange(0, SIZE)
    tl.store(FIGURES + 4 * row, scale)
    for full in range(1 - left, 1 + whole):
        # At the sample itself only the monomial 1, and the slopes of the linear ones, differ from zero.
        mine = (i[:, None] == i[None, :]) & (i[:, None] < (1 + 2 * slopes) * full)
        found = _solve(gram + tl.where(mine, _pick(place, 0, weight), 0), right, DEGREE, SIZE)
        if full == 0:
            height = _pick(i, 0, found) * scale
            height = tl.where((tl.max(tl.abs(found)) == 0) & (whole != 0), float("inf"), height)
            tl.store(FIGURES + 4 * row + 3, height)
        else:
            tl.store(COEFFICIENTS + row * COUNT + i, found, i < COUNT)
            total, missed = tl.sum(weight), scale * 0
            for j in range(k):
                c = _monomials(_pick(place, j, a), _pick(place, j, b), DEGREE, COUNT, SIZE)
                miss = tl.sum(c * found) - _pick(place, j, h)
                missed += _pick(place, j, weight) * miss * miss
            neighbour = tl.minimum(REACH_NEIGHBOUR, k - 1)
            reach = REACH_OVER_NEIGHBOUR * tl.sqrt(_pick(place, neighbour, square)) / scale
            tl.store(FIGURES + 4 * row + 1, tl.minimum(reach, MAX_REACH))
            tl.store(FIGURES + 4 * row + 2, tl.sqrt(missed / tl.maximum(total, 1e-300)) * scale)
            _store_vector(FRAMES, 3 * row, ux, uy, uz)
            _store_vector(FRAMES, 3 * row + 1, vx, vy, vz)
            _store_vector(FRAMES, 3 * row + 2, nx, ny, nz)


@triton.jit
def _store_vector(V, i, x, y, z):
    tl.store(V + 3 * i, x)
    tl.store(V + 3 * i + 1, y)
    tl.store(V + 3 * i + 2, z)


@triton.jit
def _pick(place, j, values):
    return tl.sum(tl.where(place == j, values, 0))


@triton.jit
def _exponents(DEGREE: tl.constexpr, SIZE: tl.constexpr):
    """i and j (SIZE,) of the monomials a^i b^j, ordered by i + j, then by j."""
    p = tl.arange(0, SIZE)
    total = p * 0
    for q in tl.static_range(1, DEGREE + 1):
        total += (p >= q * (q + 1) // 2).to(tl.int32)
    j = p - total * (total + 1) // 2
    return total - j, j


@triton.jit
def _powers(a, b, i, j, DEGREE: tl.constexpr, COUNT: tl.constexpr, SIZE: tl.constexpr):
    """a^i b^j (SIZE,), zero where an exponent is negative and from COUNT on."""
    there = (tl.arange(0, SIZE) < COUNT) & (i >= 0) & (j >= 0)
    found = tl.where(there, 1.0, 0.0).to(tl.float64)
    for q in tl.static_range(1, DEGREE + 1):
        found = tl.where(i >= q, found * a, found)
        found = tl.where(j >= q, found * b, found)
    return found


@triton.jit
def _monomials(a, b, DEGREE: tl.constexpr, COUNT: tl.constexpr, SIZE: tl.constexpr):
    i, j = _exponents(DEGREE, SIZE)
    return _powers(a, b, i, j, DEGREE, COUNT, SIZE)


@triton.jit
def _derivatives(a, b, DEGREE: tl.constexpr, COUNT: tl.constexpr, SIZE: tl.constexpr):
    """Derivatives of the monomials with respect to a and b."""
    i, j = _exponents(DEGREE, SIZE)
    return i * _powers(a, b, i - 1, j, DEGREE, COUNT, SIZE), j * _powers(a, b, i, j - 1, DEGREE, COUNT, SIZE)


@triton.jit
def _solve(gram, right, DEGREE: tl.constexpr, SIZE: tl.constexpr):
    """Coefficients (SIZE,) of the highest degree that the system determines; those of higher degrees are zero."""
    p = tl.arange(0, SIZE)
    found = right * 0
    degree, looking = DEGREE, True
    while looking:
        count = (degree + 1) * (degree + 2) // 2
        x, least = solve_symmetric(gram, right, count, SIZE)
        good = (least > MIN_PIVOT) & (tl.sum(tl.where(p > 2, tl.abs(x), 0)) <= MAX_CURVED_COEFFICIENTS)
        found = tl.where(good, x, found)
        degree -= 1
        looking = (degree >= 0) & (good == 0)
    return found
