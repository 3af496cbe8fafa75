"""The network of fits as one Triton kernel; `fit_network.FitNetwork` is its reference."""

from __future__ import annotations

import math

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from lamina.fits.solve_kernel import solve_symmetric
from lamina.geometry.vector_kernel import frame_around, load_double
from lamina.reconstruction import fit_network as reference
from lamina.reconstruction.fit_network import FitNetwork, Neighbourhoods, NetworkOutput, Quadrics

NEIGHBOUR_FEATURES = tl.constexpr(reference.NEIGHBOUR_FEATURES)
SAMPLE_FEATURES = tl.constexpr(reference.SAMPLE_FEATURES)
RIDGE_OVER_DIAGONAL = tl.constexpr(reference.RIDGE_OVER_DIAGONAL)
MIN_RESIDUAL, MAX_COEFFICIENT = tl.constexpr(reference.MIN_RESIDUAL), tl.constexpr(reference.MAX_COEFFICIENT)
MIN_KERNEL_SIZE, MAX_KERNEL_SIZE = 16, 256  # neighbours, and width of the layers, that the kernel can take


def fits_there(network: FitNetwork, near: Neighbourhoods) -> bool:
    """Whether the kernel can compute this network with this number of neighbours."""
    k, width = near.points.shape[1], network.config.width
    single = next(network.parameters()).dtype == torch.float32
    return single and all(size & (size - 1) == 0 and MIN_KERNEL_SIZE <= size <= MAX_KERNEL_SIZE for size in (k, width))


def forward(network: FitNetwork, near: Neighbourhoods) -> NetworkOutput:
    """The same as network(near), without gradients."""
    n, k = near.points.shape[:2]
    made = near.points.new_empty(n, 21, dtype=torch.float64)  # centre, frame, coefficients; error, vote, off
    share = near.points.new_empty(n, k, dtype=torch.float64)
    config = network.config
    with torch.cuda.device_of(made):
        _forward[(n,)](  # pyright: ignore[reportIndexIssue]
            near.points.contiguous(), near.normals.contiguous(), _packed(network), made, share,
            near.radius, math.log(k / 64), k, config.width, config.rounds, num_warps=2 if k <= 64 else 4,
        )  # fmt: skip
    dtype = next(network.parameters()).dtype
    quadrics = Quadrics(made[:, :3], made[:, 3:12].view(n, 3, 3), made[:, 12:18], near.radius)
    return NetworkOutput(quadrics, share, made[:, 18].to(dtype), made[:, 19], made[:, 20].to(dtype))


def _packed(network: FitNetwork) -> Tensor:
    """All weights in one vector: those of each round, then those of the verdict."""
    rounds = zip(network.first, network.context, network.second, network.logits, strict=True)
    layers = [*(layer for layers in rounds for layer in layers), network.verdict[0], network.verdict[2]]
    return torch.cat([p.detach().reshape(-1) for layer in layers for p in (layer.weight, layer.bias)])


@triton.jit
def _forward(
    POINTS, NORMALS, WEIGHTS, MADE, SHARE, RADIUS: tl.constexpr, MANY: tl.constexpr, K: tl.constexpr,
    WIDTH: tl.constexpr, ROUNDS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    q, o = tl.arange(0, K), tl.arange(0, WIDTH)
    x, y, z = load_double(POINTS + 3 * row * K, q)
    lx, ly, lz = load_double(NORMALS + 3 * row * K, q)
    away = (x * x + y * y + z * z) / (RADIUS * RADIUS)
    kernel = tl.maximum(1 - away, 0)
    kernel = kernel * kernel
    fx, fy, fz = _first(q, lx), _first(q, ly), _first(q, lz)
    side = tl.where(tl.sum(kernel * (fx * lx + fy * ly + fz * lz)) < 0, -1.0, 1.0).to(tl.float64)
    fx, fy, fz = fx * side, fy * side, fz * side
    position = kernel * tl.maximum(0.5 + 0.5 * (fx * lx + fy * ly + fz * lz), 0)
    slope = position
    zero = fx * 0
    cx, cy, cz = zero, zero, zero
    ux, uy, uz, vx, vy, vz = frame_around(fx, fy, fz)
    c0, c1, c2, c3, c4, c5 = zero, zero, zero, zero, zero, zero
    hidden, weight = tl.zeros((K, WIDTH), tl.float32), tl.zeros((K,), tl.float32)
    share, error, agree, total, sigma = position, position, position, zero, zero
    W = WEIGHTS
    for turn in range(ROUNDS + 1):
        cx, cy, cz, ux, uy, uz, vx, vy, vz, fx, fy, fz, c0, c1, c2, c3, c4, c5, a, b, c, na, nb, nc = _weighted_fit(
            x, y, z, lx, ly, lz, position, slope, cx, cy, cz, ux, uy, uz, vx, vy, vz, fx, fy, fz, c0, c1, c2, RADIUS,
        )  # fmt: skip
        error, agree, total, sigma = _residuals(c0, c1, c2, c3, c4, c5, a, b, c, na, nb, nc, position, RADIUS)
        if turn < ROUNDS:
            # Features of the neighbours, and the first layer.
            relative, absolute = _asinh((error / sigma).to(tl.float32)), _asinh((4 * error).to(tl.float32))
            a1, b1, agree1 = a.to(tl.float32), b.to(tl.float32), agree.to(tl.float32)
            told = tl.load(W + WIDTH * NEIGHBOUR_FEATURES + o) + MANY * _column(W, o, 10, NEIGHBOUR_FEATURES)
            hidden = (
                told[None, :]
                + (a1 * a1 + b1 * b1)[:, None] * _column(W, o, 0, NEIGHBOUR_FEATURES)[None, :]
                + away.to(tl.float32)[:, None] * _column(W, o, 1, NEIGHBOUR_FEATURES)[None, :]
                + absolute[:, None] * _column(W, o, 2, NEIGHBOUR_FEATURES)[None, :]
                + tl.abs(absolute)[:, None] * _column(W, o, 3, NEIGHBOUR_FEATURES)[None, :]
                + relative[:, None] * _column(W, o, 4, NEIGHBOUR_FEATURES)[None, :]
                + tl.abs(relative)[:, None] * _column(W, o, 5, NEIGHBOUR_FEATURES)[None, :]
                + agree1[:, None] * _column(W, o, 6, NEIGHBOUR_FEATURES)[None, :]
                + (agree1 * agree1)[:, None] * _column(W, o, 7, NEIGHBOUR_FEATURES)[None, :]
                + nc.to(tl.float32)[:, None] * _column(W, o, 8, NEIGHBOUR_FEATURES)[None, :]
                + c.to(tl.float32)[:, None] * _column(W, o, 9, NEIGHBOUR_FEATURES)[None, :]
            )
            hidden = _silu(hidden)
            W += WIDTH * (NEIGHBOUR_FEATURES + 1)
            # The second layer sees what all neighbours say together.
            weight = (position / total).to(tl.float32)
            told = tl.load(W + WIDTH * (2 * WIDTH + 2) + o) + _pooled(W, o, 2 * WIDTH + 2, weight, hidden, WIDTH)
            told += tl.log(sigma).to(tl.float32) * _column(W, o, 2 * WIDTH, 2 * WIDTH + 2)
            told += tl.log(total / K).to(tl.float32) * _column(W, o, 2 * WIDTH + 1, 2 * WIDTH + 2)
            hidden = _silu(hidden + told[None, :])
            W += WIDTH * (2 * WIDTH + 3)
            second = tl.load(W + o[None, :] * WIDTH + o[:, None])  # transposed
            hidden = _silu(tl.dot(hidden, second, input_precision="ieee") + tl.load(W + WIDTH * WIDTH + o)[None, :])
            W += WIDTH * (WIDTH + 1)
            counts = tl.sum(hidden * tl.load(W + o)[None, :], 1) + tl.load(W + 2 * WIDTH)
            steep = tl.sum(hidden * tl.load(W + WIDTH + o)[None, :], 1) + tl.load(W + 2 * WIDTH + 1)
            W += 2 * WIDTH + 2
            share = 1 / (1 + tl.exp(-(counts.to(tl.float64) + 2)))
            position = kernel * share
            slope = kernel * tl.exp(tl.minimum(tl.maximum(steep.to(tl.float64) - 2, -12), 6))
    # The verdict on the fit.
    SIZE: tl.constexpr = 2 * WIDTH + SAMPLE_FEATURES
    own = _first(q, error)
    verdict = tl.load(W + WIDTH * SIZE + o) + _pooled(W, o, SIZE, weight, hidden, WIDTH)
    verdict += tl.log(sigma).to(tl.float32) * _column(W, o, 2 * WIDTH, SIZE)
    verdict += tl.log(total / K).to(tl.float32) * _column(W, o, 2 * WIDTH + 1, SIZE)
    verdict += _asinh(tl.abs(4 * own)).to(tl.float32) * _column(W, o, 2 * WIDTH + 2, SIZE)
    verdict += _asinh(tl.abs(own / sigma)).to(tl.float32) * _column(W, o, 2 * WIDTH + 3, SIZE)
    verdict = _silu(verdict + MANY * _column(W, o, 2 * WIDTH + 4, SIZE))
    W += WIDTH * (SIZE + 1)
    log_error = tl.sum(verdict * tl.load(W + o)) + tl.load(W + 2 * WIDTH)
    off = tl.sum(verdict * tl.load(W + WIDTH + o)) + tl.load(W + 2 * WIDTH + 1)
    M = MADE + 21 * row
    _store(M, cx, cy, cz)
    _store(M + 3, ux, uy, uz)
    _store(M + 6, vx, vy, vz)
    _store(M + 9, fx, fy, fz)
    _store(M + 12, c0, c1, c2)
    _store(M + 15, c3, c4, c5)
    _store(M + 18, log_error.to(tl.float64), tl.sum(position * agree) / total, off.to(tl.float64))
    tl.store(SHARE + row * K + q, share)


@triton.jit
def _weighted_fit(
    x, y, z, lx, ly, lz, position, slope, cx, cy, cz, ux, uy, uz, vx, vy, vz, fx, fy, fz, c0, c1, c2,
    RADIUS: tl.constexpr,
):  # fmt: skip
    """The weighted fit over the tangent plane of the quadric before: centre, frame and coefficients, and the positions
    and normals of the neighbours in the frame."""
    lift = c0 * RADIUS
    cx, cy, cz = cx + lift * fx, cy + lift * fy, cz + lift * fz
    fx, fy, fz = fx - c1 * ux - c2 * vx, fy - c1 * uy - c2 * vy, fz - c1 * uz - c2 * vz
    size = tl.sqrt(fx * fx + fy * fy + fz * fz)
    fx, fy, fz = fx / size, fy / size, fz / size
    ux, uy, uz, vx, vy, vz = frame_around(fx, fy, fz)
    x, y, z = (x - cx) / RADIUS, (y - cy) / RADIUS, (z - cz) / RADIUS
    a, b, c = ux * x + uy * y + uz * z, vx * x + vy * y + vz * z, fx * x + fy * y + fz * z
    na, nb, nc = ux * lx + uy * ly + uz * lz, vx * lx + vy * ly + vz * lz, fx * lx + fy * ly + fz * lz
    # The normal equations for 1, a, b, a^2, ab, b^2, from weighted sums of a^s b^t.
    p = tl.arange(0, 8)
    pa, pb = (
        tl.where(p == 3, 2, ((p == 1) | (p == 4)).to(tl.int32)),
        tl.where(p == 5, 2, ((p == 2) | (p == 4)).to(tl.int32)),
    )
    pa, pb = tl.where(p < 6, pa, 9), tl.where(p < 6, pb, 9)
    ia, ib, ja, jb = pa[:, None], pb[:, None], pa[None, :], pb[None, :]
    gram, right = tl.zeros((8, 8), tl.float64), tl.zeros((8,), tl.float64)
    turn = slope * nc
    row = position
    for s in tl.static_range(5):
        term = row
        for t in tl.static_range(5 - s):
            gram += tl.where((ia + ja == s) & (ib + jb == t), tl.sum(term), 0)
            if s + t < 3:
                right += tl.where((pa == s) & (pb == t), tl.sum(term * c), 0)
            term *= b
        row *= a
    row = turn
    for s in tl.static_range(3):
        term = row
        for t in tl.static_range(3 - s):
            level = tl.sum(term * nc)
            gram += tl.where((ia + ja == s + 2) & (ib + jb == t), ia * ja * level, 0)
            gram += tl.where((ia + ja == s) & (ib + jb == t + 2), ib * jb * level, 0)
            if s + t < 2:
                right -= tl.where((pa == s + 1) & (pb == t), pa * tl.sum(term * na), 0)
                right -= tl.where((pa == s) & (pb == t + 1), pb * tl.sum(term * nb), 0)
            term *= b
        row *= a
    diagonal = p[:, None] == p[None, :]
    ridge = RIDGE_OVER_DIAGONAL * tl.maximum(tl.sum(tl.where(diagonal, gram, 0)) / 6, 1e-9)
    found, _ = solve_symmetric(gram + tl.where(diagonal, ridge, 0), right, 6, 8)
    found = tl.minimum(tl.maximum(found, -MAX_COEFFICIENT), MAX_COEFFICIENT)
    c0, c1, c2 = _at(p, 0, found), _at(p, 1, found), _at(p, 2, found)
    c3, c4, c5 = _at(p, 3, found), _at(p, 4, found), _at(p, 5, found)
    return cx, cy, cz, ux, uy, uz, vx, vy, vz, fx, fy, fz, c0, c1, c2, c3, c4, c5, a, b, c, na, nb, nc


@triton.jit
def _residuals(c0, c1, c2, c3, c4, c5, a, b, c, na, nb, nc, position, RADIUS: tl.constexpr):
    """Signed distances of neighbours from the fit, cosines with its normals, sum of the weights, RMS distance."""
    h = c0 + a * (c1 + c3 * a + c4 * b) + b * (c2 + c5 * b)
    ha, hb = c1 + 2 * c3 * a + c4 * b, c2 + c4 * a + 2 * c5 * b
    level = 1 / tl.sqrt(1 + ha * ha + hb * hb)
    error = (c - h) * level * RADIUS
    total = tl.maximum(tl.sum(position), 1e-12)
    sigma = tl.sqrt(tl.sum(position * error * error) / total + MIN_RESIDUAL * MIN_RESIDUAL)
    return error, (nc - ha * na - hb * nb) * level, total, sigma


@triton.jit
def _pooled(W, o, size, weight, hidden, WIDTH: tl.constexpr):
    """Weights W (WIDTH, size) times the weighted mean and the maximum of the neighbours' features."""
    i = tl.arange(0, WIDTH)
    mean, largest = tl.sum(weight[:, None] * hidden, 0), tl.max(hidden, 0)
    told = tl.sum(tl.load(W + o[:, None] * size + i[None, :]) * mean[None, :], 1)
    return told + tl.sum(tl.load(W + o[:, None] * size + WIDTH + i[None, :]) * largest[None, :], 1)


@triton.jit
def _column(W, o, i, size):
    return tl.load(W + o * size + i)


@triton.jit
def _silu(x):
    return x / (1 + tl.exp(-x))


@triton.jit
def _asinh(x):
    size = tl.abs(x).to(tl.float64)
    found = tl.log(size + tl.sqrt(size * size + 1))
    return tl.where(x < 0, -found, found).to(x.dtype)


@triton.jit
def _first(q, values):
    return _at(q, 0, values)


@triton.jit
def _at(q, i, values):
    return tl.sum(tl.where(q == i, values, 0))


@triton.jit
def _store(V, x, y, z):
    tl.store(V, x)
    tl.store(V + 1, y)
    tl.store(V + 2, z)
