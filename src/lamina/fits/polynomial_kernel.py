"""Polynomials of `polynomials.py` inside Triton kernels, by Horner's rule; coefficients are read from memory."""

from __future__ import annotations

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]


@triton.jit
def height_slopes(C, counted, a, b, DEGREE: tl.constexpr):
    """h, h_a, h_b at a, b of polynomials whose coefficients follow each other from C on; zero where not counted."""
    zero = a * 0
    h, ha, hb = zero, zero, zero
    for s in tl.static_range(DEGREE + 1):
        p, p1 = zero, zero
        for t in tl.static_range(s + 1):
            p1 = p1 * b + p
            p = p * b + tl.load(C + (DEGREE - t) * (DEGREE - t + 1) // 2 + s - t, counted, 0)
        ha = ha * a + h
        h = h * a + p
        hb = hb * a + p1
    return h, ha, hb


@triton.jit
def height_derivatives(C, counted, a, b, DEGREE: tl.constexpr):
    """h, h_a, h_b, h_aa, h_ab, h_bb of the same polynomials."""
    zero = a * 0
    h, ha, hb, haa, hab, hbb = zero, zero, zero, zero, zero, zero
    for s in tl.static_range(DEGREE + 1):
        # The coefficient of a^(DEGREE - s) is itself a polynomial p in b, of degree s; p1 = p', p2 = p'' / 2.
        p, p1, p2 = zero, zero, zero
        for t in tl.static_range(s + 1):
            p2 = p2 * b + p1
            p1 = p1 * b + p
            p = p * b + tl.load(C + (DEGREE - t) * (DEGREE - t + 1) // 2 + s - t, counted, 0)
        haa = haa * a + ha
        ha = ha * a + h
        h = h * a + p
        hab = hab * a + hb
        hb = hb * a + p1
        hbb = hbb * a + p2
    return h, ha, hb, 2 * haa, hab, 2 * hbb
