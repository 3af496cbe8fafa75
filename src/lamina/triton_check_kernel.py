"""The smallest Triton kernel, to see whether others run."""

from __future__ import annotations

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]


def runs() -> bool:
    """Whether it was compiled and did what it should, on the current GPU."""
    out = torch.zeros(1, device="cuda")
    _write[(1,)](out)  # pyright: ignore[reportIndexIssue]
    return float(out) == 1


@triton.jit
def _write(OUT):
    tl.store(OUT, 1.0)
