"""Exact nearest points by comparing all pairs, as Triton kernels; `bins.py` is their reference."""

from __future__ import annotations

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

# With more pairs of a point and a query than this, bins are faster: for several neighbours of a query, and for one.
MAX_PAIRS_OF_SEVERAL, MAX_PAIRS_OF_ONE = 2**28, 2**33
MAX_NEIGHBOURS = 256  # the kernel ranks all neighbours of a query at once
POINTS_PER_STEP = 1024  # points that a program of the kernel compares at a time


def nearest_one(points: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Index (n, 1) int64 and distance (n, 1) of the point (m, 3) nearest to x (n, 3), the first of several."""
    index, distance = (x.new_empty(len(x), 1, dtype=d) for d in (torch.int64, x.dtype))
    with torch.cuda.device_of(x):
        grid = (triton.cdiv(len(x), 32),)
        _one[grid](x.T.contiguous(), points.T.contiguous(), index, distance, len(x), len(points), 32, 64)  # pyright: ignore[reportIndexIssue]
    return index, distance


def nearest_several(points: Tensor, x: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Indices (n, k) int64 and distances (n, k) of the k points (m, 3) nearest to x (n, 3), nearest first; and whether
    (n,) they were found. They are not found where very many points lie at one distance.

    Around each x a radius is looked for that holds a few more than k points. These points are ranked by comparing each
    pair of them.
    """
    n, m = len(x), len(points)
    room = 128 if k <= 64 else 2 * MAX_NEIGHBOURS  # few sizes: each is compiled separately
    count, found = (torch.empty(n, dtype=d, device=x.device) for d in (torch.int32, torch.bool))
    which = torch.empty(n, room, dtype=torch.int32, device=x.device)
    square, distance = x.new_empty(n, room), x.new_empty(n, k)
    index = torch.empty(n, k, dtype=torch.int64, device=x.device)
    with torch.cuda.device_of(x):
        _around[(n,)](x.contiguous(), points.T.contiguous(), count, found, which, square, m, k, room, POINTS_PER_STEP)  # pyright: ignore[reportIndexIssue]
        _ranked[(n,)](count, which, square, index, distance, k, room)  # pyright: ignore[reportIndexIssue]
    return index, distance, found


@triton.jit(do_not_specialize=["n", "m"])
def _one(X, P, INDEX, DISTANCE, n, m, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < n
    x, y, z = (
        tl.load(X + row, inside)[:, None],
        tl.load(X + n + row, inside)[:, None],
        tl.load(X + 2 * n + row, inside)[:, None],
    )
    least = tl.full((ROWS, COLUMNS), float("inf"), x.dtype)
    which = tl.zeros((ROWS, COLUMNS), tl.int32)
    for start in range(0, m, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        there = column < m
        a = tl.load(P + column, there, float("inf"))[None, :] - x
        b = tl.load(P + m + column, there, float("inf"))[None, :] - y
        c = tl.load(P + 2 * m + column, there, float("inf"))[None, :] - z
        square = a * a + b * b + c * c
        which = tl.where(square < least, column[None, :], which)
        least = tl.minimum(square, least)
    smallest = tl.min(least, 1)
    first = tl.min(tl.where(least == smallest[:, None], which, m), 1)
    tl.store(INDEX + row, first.to(tl.int64), inside)
    tl.store(DISTANCE + row, tl.sqrt(smallest), inside)


@triton.jit
def _squares(P, start, m, x, y, z, BLOCK: tl.constexpr):
    column = start + tl.arange(0, BLOCK)
    there = column < m
    a = tl.load(P + column, there, float("inf")) - x
    b = tl.load(P + m + column, there, float("inf")) - y
    c = tl.load(P + 2 * m + column, there, float("inf")) - z
    return column, a * a + b * b + c * c


@triton.jit(do_not_specialize=["m", "k"])
def _around(X, P, COUNT, FOUND, WHICH, SQUARE, m, k, ROOM: tl.constexpr, BLOCK: tl.constexpr):
    """Points within a radius of x that holds k to ROOM of them, and how many these are."""
    row = tl.program_id(0).to(tl.int64)
    x, y, z = tl.load(X + 3 * row), tl.load(X + 3 * row + 1), tl.load(X + 3 * row + 2)
    low, high = x * 0, x * 0 + float("inf")
    farthest = tl.zeros((BLOCK,), x.dtype)
    for start in range(0, m, BLOCK):
        column, square = _squares(P, start, m, x, y, z, BLOCK)
        farthest = tl.maximum(farthest, tl.where(column < m, square, 0))
    radius = tl.max(farthest) * ((k + ROOM) / (2.0 * m))  # squared; as if the points lay evenly on a disc of that size
    count, tries, looking = 0, 0, True
    while looking:
        counts = tl.zeros((BLOCK,), tl.int32)
        for start in range(0, m, BLOCK):
            _, square = _squares(P, start, m, x, y, z, BLOCK)
            counts += (square <= radius).to(tl.int32)
        count = tl.sum(counts)
        low = tl.where(count < k, radius, low)
        high = tl.where(count > ROOM, radius, high)
        # The radius whose disc has the right area, if it lies between a radius with too few points and one with too
        # many.
        wanted = radius * tl.minimum(tl.maximum((k + ROOM) / (2.0 * tl.maximum(count, 1)), 0.125), 8.0)
        between = tl.where(high < float("inf"), (low + high) / 2, 2 * radius)
        wanted = tl.where((wanted > low) & (wanted < high), wanted, between)
        tries += 1
        looking = ((count < k) | (count > ROOM)) & (tries < 80)
        radius = tl.where(looking, wanted, radius)
    tl.store(COUNT + row, count)
    tl.store(FOUND + row, (count >= k) & (count <= ROOM))
    filled = 0
    for start in range(0, m, BLOCK):
        column, square = _squares(P, start, m, x, y, z, BLOCK)
        kept = (square <= radius).to(tl.int32)
        place = filled + tl.cumsum(kept, 0) - 1
        stored = (kept > 0) & (place < ROOM)
        tl.store(WHICH + row * ROOM + place, column, stored)
        tl.store(SQUARE + row * ROOM + place, square, stored)
        filled += tl.sum(kept)


@triton.jit(do_not_specialize=["k"])
def _ranked(COUNT, WHICH, SQUARE, INDEX, DISTANCE, k, ROOM: tl.constexpr):
    """The k nearest of the points within the radius, in order."""
    row = tl.program_id(0).to(tl.int64)
    count = tl.minimum(tl.load(COUNT + row), ROOM)
    column = tl.arange(0, ROOM)
    square = tl.load(SQUARE + row * ROOM + column, column < count, float("inf"))
    rank = tl.zeros((ROOM,), tl.int32)
    for start in range(0, count, 16):
        other = start + tl.arange(0, 16)
        away = tl.load(SQUARE + row * ROOM + other, other < count, float("inf"))
        nearer = away[None, :] < square[:, None]
        first = (away[None, :] == square[:, None]) & (other[None, :] < column[:, None])
        rank += tl.sum((nearer | first).to(tl.int32), 1)
    kept = (column < count) & (rank < k)
    index = tl.load(WHICH + row * ROOM + column, kept, 0)
    tl.store(INDEX + row * k + rank, index.to(tl.int64), kept)
    tl.store(DISTANCE + row * k + rank, tl.sqrt(square), kept)
