"""Small symmetric systems inside Triton kernels."""

from __future__ import annotations

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]


@triton.jit
def solve_symmetric(A, right, count, SIZE: tl.constexpr):
    """Solution (SIZE,) of the first `count` equations of A (SIZE, SIZE) x = right (SIZE,), zero beyond them, and the
    smallest pivot. A is symmetric and positive definite; it is first scaled to a diagonal of ones."""
    p = tl.arange(0, SIZE)
    i, j = p[:, None], p[None, :]
    A = tl.where((i < count) & (j < count), A, tl.where(i == j, 1.0, 0.0).to(A.dtype))
    diagonal = tl.sum(tl.where(i == j, A, 0), 1)
    balance = 1 / tl.sqrt(tl.where(diagonal > 0, diagonal, 1.0))
    A = A * balance[:, None] * balance[None, :]
    x = tl.where(p < count, right, 0) * balance
    least = tl.max(balance * 0) + 1
    for q in range(count):
        row = tl.sum(tl.where(i == q, A, 0), 0)  # also the column: the part of A that is left stays symmetric
        pivot, value = tl.sum(tl.where(p == q, row, 0)), tl.sum(tl.where(p == q, x, 0))
        least = tl.where(pivot < least, pivot, tl.where(pivot == pivot, least, pivot))  # a NaN stays one
        factor = tl.where(p > q, row, 0) / pivot
        A -= factor[:, None] * row[None, :]
        x -= factor * value
    for back in range(count):
        q = count - 1 - back
        row = tl.sum(tl.where(i == q, A, 0), 0)
        rest = tl.sum(tl.where(p == q, x, 0)) - tl.sum(tl.where(p > q, row * x, 0))
        x = tl.where(p == q, rest / tl.sum(tl.where(p == q, row, 0)), x)
    return x * balance, least
