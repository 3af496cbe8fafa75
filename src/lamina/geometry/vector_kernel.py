"""Vectors of three numbers inside Triton kernels: reading, writing, and tangent frames."""

from __future__ import annotations

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]


@triton.jit
def load_vector(V, i, counted):
    """Rows i of V (n, 3); zero where they are not counted."""
    return tl.load(V + 3 * i, counted, 0), tl.load(V + 3 * i + 1, counted, 0), tl.load(V + 3 * i + 2, counted, 0)


@triton.jit
def load_double(V, i):
    """Rows i of V (n, 3) in float64."""
    return (
        tl.load(V + 3 * i).to(tl.float64),
        tl.load(V + 3 * i + 1).to(tl.float64),
        tl.load(V + 3 * i + 2).to(tl.float64),
    )


@triton.jit
def store_vector(V, i, counted, x, y, z):
    """Write rows i of V (n, 3) that are counted."""
    tl.store(V + 3 * i, x, counted)
    tl.store(V + 3 * i + 1, y, counted)
    tl.store(V + 3 * i + 2, z, counted)


@triton.jit
def frame_around(x, y, z):
    """Unit vectors t1, t2 that make a frame with a unit vector, as `geometry.frames.tangent_basis`."""
    sign = tl.where(z >= 0, 1.0, -1.0).to(z.dtype)
    a = -1 / (sign + z)
    b = x * y * a
    return 1 + sign * x * x * a, sign * b, -sign * x, b, sign + y * y * a, -y
