"""Polynomials h(a, b) = sum_{i + j <= q} c_ij a^i b^j, many at a time: values, derivatives, monomials.

Coefficients and monomials are ordered by i + j, then by j. Horner's rule takes the fewest operations on numbers, but
126 operations on tensors at degree 6. On a GPU the number of operations on tensors counts: there monomials are used.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor


def coefficient_count(degree: int) -> int:
    """Number of coefficients of a polynomial of that degree in two variables."""
    return (degree + 1) * (degree + 2) // 2


def monomials(a: Tensor, b: Tensor, degree: int) -> Tensor:
    """Values (m, c, k) of a^i b^j at (m, k) places, ordered by i + j, then by j."""
    i, j = _powers(degree, a.device)
    both = torch.stack([a, b], 1)
    powers = [torch.ones_like(both), both]
    while len(powers) <= degree:
        powers.append(powers[-1] * both)
    table = torch.stack(powers[: degree + 1], 2)  # (m, 2, degree + 1, k)
    return table[:, 0].index_select(1, i) * table[:, 1].index_select(1, j)


@cache
@torch.inference_mode(False)
def _powers(degree: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Exponents i and j (c,) of the monomials."""
    powers = [(total - j, j) for total in range(degree + 1) for j in range(total + 1)]
    i, j = torch.tensor(powers, device=device).unbind(1)
    return i.contiguous(), j.contiguous()


@cache
@torch.inference_mode(False)
def derivatives(degree: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Derivatives of the monomials with respect to a and b: the number (2, c) of a monomial, and its factor (2, c)."""
    before, factor = [], []
    for axis in (0, 1):
        powers = [(total - j, j) for total in range(degree + 1) for j in range(total + 1)]
        lower = [(max(i - (axis == 0), 0), max(j - (axis == 1), 0)) for i, j in powers]
        before.append([coefficient_count(i + j - 1) + j for i, j in lower])
        factor.append([float(power[axis]) for power in powers])
    return torch.tensor(before, device=device), torch.tensor(factor, dtype=torch.float64, device=device)


def height_derivatives(c: Tensor, a: Tensor, b: Tensor, degree: int) -> Tensor:
    """h, h_a, h_b, h_aa, h_ab, h_bb (6, n) of the polynomials c (c, n) at a, b (n,), by Horner's rule."""
    zero = torch.zeros_like(a)
    h, ha, hb, haa, hab, hbb = (zero,) * 6
    for i in range(degree, -1, -1):
        # The coefficient of a^i is itself a polynomial p in b; p1 = p', p2 = p'' / 2.
        p, p1, p2 = zero, zero, zero
        for j in range(degree - i, -1, -1):
            p2 = torch.addcmul(p1, p2, b)
            p1 = torch.addcmul(p, p1, b)
            p = torch.addcmul(c[coefficient_count(i + j - 1) + j], p, b)
        haa = torch.addcmul(ha, haa, a)
        ha = torch.addcmul(h, ha, a)
        h = torch.addcmul(p, h, a)
        hab = torch.addcmul(hb, hab, a)
        hb = torch.addcmul(p1, hb, a)
        hbb = torch.addcmul(p2, hbb, a)
    return torch.stack([h, ha, hb, 2 * haa, hab, 2 * hbb])


def height_slopes(c: Tensor, a: Tensor, b: Tensor, degree: int) -> tuple[Tensor, Tensor, Tensor]:
    """h, h_a and h_b alone, each (n,), with arguments as of height_derivatives."""
    if a.device.type != "cpu":
        return slopes_by_monomials(c, a, b, degree)
    h = ha = hb = torch.zeros_like(a)
    for i in range(degree, -1, -1):
        p, p1 = c[coefficient_count(degree - 1) + degree - i], torch.zeros_like(a)
        for j in range(degree - i - 1, -1, -1):
            p1 = torch.addcmul(p, p1, b)
            p = torch.addcmul(c[coefficient_count(i + j - 1) + j], p, b)
        ha = torch.addcmul(h, ha, a)
        h = torch.addcmul(p, h, a)
        hb = torch.addcmul(p1, hb, a)
    return h, ha, hb


def slopes_by_monomials(c: Tensor, a: Tensor, b: Tensor, degree: int) -> tuple[Tensor, Tensor, Tensor]:
    """The same as height_slopes, in few operations on tensors."""
    M = monomials(a[None], b[None], degree)[0]
    before, factor = derivatives(degree, c.device)
    ha, hb = ((c * f[:, None] * M.index_select(0, p)).sum(0) for p, f in zip(before, factor.to(c.dtype), strict=True))
    return (c * M).sum(0), ha, hb


def derivatives_by_monomials(c: Tensor, degree: int) -> Callable[[Tensor, Tensor], Tensor]:
    """height_derivatives of the polynomials c (c, n) as a function of a and b (n,), in few operations on tensors."""
    above, factor = _antiderivatives(degree, c.device)
    f = factor.to(c.dtype)[..., None]
    ca, cb = (c.index_select(0, above[axis]) * f[axis] for axis in (0, 1))
    caa, cab = (ca.index_select(0, above[axis]) * f[axis] for axis in (0, 1))
    cbb = cb.index_select(0, above[1]) * f[1]
    table = torch.stack([c, ca, cb, caa, cab, cbb])
    return lambda a, b: (table * monomials(a[None], b[None], degree)).sum(1)


@cache
@torch.inference_mode(False)
def _antiderivatives(degree: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The monomial (2, c) whose derivative with respect to a or b is each monomial, and the factor (2, c) of that
    derivative; the factor is zero if there is no such monomial of this degree."""
    before, factor = derivatives(degree, torch.device("cpu"))
    above, times = torch.zeros_like(before), torch.zeros_like(factor)
    for axis in (0, 1):
        has = factor[axis] > 0
        above[axis, before[axis, has]] = has.nonzero()[:, 0]
        times[axis, before[axis, has]] = factor[axis, has]
    return above.to(device), times.to(device)


def evaluator(c: Tensor, degree: int) -> Callable[[Tensor, Tensor], Tensor]:
    """height_derivatives of the polynomials c (c, n) as a function of a and b (n,), in the way that is faster there."""
    if c.device.type != "cpu":
        return derivatives_by_monomials(c, degree)
    return lambda a, b: height_derivatives(c, a, b, degree)
