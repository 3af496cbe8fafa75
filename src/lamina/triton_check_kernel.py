"""A minimal Triton kernel, to test whether Triton works."""

from __future__ import annotations

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]


def runs() -> bool:
    """Whether the kernel was compiled and gave the right result on the current GPU."""
    out = torch.zeros(1, device="cuda")
    _write[(1,)](out)  # pyright: ignore[reportIndexIssue]
    return float(out) == 1


@triton.jit
def _write(OUT):
    tl.store(OUT, 1.0)
