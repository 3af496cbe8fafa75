"""Krylov methods: conjugate gradients for symmetric systems, flexible GMRES for the others."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lamina.errors import SolveError


@dataclass(frozen=True)
class KrylovResult:
    solution: Tensor  # (n,)
    iterations: int  # applications of the preconditioner
    residual: float  # |b - A x| / |b|, recomputed from x
    converged: bool


def fgmres(
    apply: Callable[[Tensor], Tensor],
    b: Tensor,
    *,
    precondition: Callable[[Tensor], Tensor],
    start: Tensor | None = None,
    tolerance: float = 1e-8,
    scale: float | None = None,
    max_iterations: int = 200,
    restart: int = 30,
    report: Callable[[int, float], None] | None = None,
) -> KrylovResult:
    """Solve A x = b, minimising |b - A x| over the span of the preconditioned directions.

    Stops when |b - A x| <= tolerance scale (|b| unless given), or after max_iterations preconditioner applications.
    b may be all zeros (the answer is zero). `report` is called with (iteration, relative residual).
    Saad (1993), "A flexible inner-outer preconditioned GMRES algorithm".
    """
    scale = float(b.norm()) if scale is None else scale
    x = torch.zeros_like(b) if start is None else start
    if scale == 0:
        return KrylovResult(torch.zeros_like(b), 0, 0.0, True)
    iterations = 0
    residual = b if start is None else b - apply(x)
    relative = float(residual.norm()) / scale
    while relative > tolerance and iterations < max_iterations:
        length = min(restart, max_iterations - iterations)
        x, used = _arnoldi_cycle(apply, precondition, residual, x, tolerance * scale, length, iterations, scale, report)
        iterations += used
        residual = b - apply(x)
        previous, relative = relative, float(residual.norm()) / scale
        if not relative < 0.99 * previous:  # stagnation, or NaN: more of the same will not help
            break
    return KrylovResult(x, iterations, relative, relative <= tolerance)


def _arnoldi_cycle(apply, precondition, residual, x, target, length, done, scale, report):
    """Up to `length` steps of the Arnoldi process from residual; returns the improved x and the steps."""
    beta = float(residual.norm())
    basis, directions = [residual / beta], []
    hessenberg = torch.zeros(length + 1, length, dtype=torch.float64)
    for k in range(length):
        directions.append(precondition(basis[k]))
        w = apply(directions[k])
        # Classical Gram-Schmidt, twice: as stable as modified, and the device waits once, not k times.
        for _ in range(2):
            h = torch.stack([torch.dot(v, w) for v in basis])
            w = w.clone()
            for v, c in zip(basis, h, strict=True):
                w.addcmul_(v, c, value=-1)
            hessenberg[: k + 1, k] += h.double().cpu()
        norm = float(w.norm())
        if not math.isfinite(norm):
            return x + directions[0] * torch.nan, k + 1
        hessenberg[k + 1, k] = norm
        rhs = torch.zeros(k + 2, 1, dtype=torch.float64)
        rhs[0] = beta
        h = hessenberg[: k + 2, : k + 1]
        y = torch.linalg.lstsq(h, rhs).solution[:, 0]
        remaining = float((rhs[:, 0] - h @ y).norm())
        if report:
            report(done + k + 1, remaining / scale)
        if remaining <= 0.9 * target or norm <= 1e-14 * beta or remaining != remaining:
            break
        basis.append(w / norm)
    x = x.clone()
    for direction, c in zip(directions, y.tolist(), strict=True):
        x.add_(direction, alpha=c)
    return x, len(directions)


def conjugate_gradients(
    apply: Callable[[Tensor], Tensor],
    b: Tensor,
    *,
    precondition: Callable[[Tensor], Tensor],
    start: Tensor | None = None,
    tolerance: float = 1e-8,
    scale: float | None = None,
    max_iterations: int = 500,
    report: Callable[[int, float], None] | None = None,
) -> KrylovResult:
    """Solve A x = b for A symmetric positive (semi)definite and a preconditioner of the same kind.

    b must lie in the range of A. Stops when |b - A x| <= tolerance scale (|b| unless given); a residual that
    the recurrence says is small is recomputed, and the iteration restarted from it if it is not.
    Hestenes and Stiefel (1952).
    """
    scale = float(b.norm()) if scale is None else scale
    if scale == 0:
        return KrylovResult(torch.zeros_like(b), 0, 0.0, True)
    x = torch.zeros_like(b) if start is None else start.clone()
    iterations, relative = 0, torch.inf
    for _ in range(3):
        r = b - apply(x)
        relative = float(r.norm()) / scale
        if relative <= tolerance or iterations >= max_iterations:
            break
        z = precondition(r)
        p, rz = z, torch.dot(r, z)
        while iterations < max_iterations:
            q = apply(p)
            step = rz / torch.dot(p, q)
            x = x + step * p
            r = r - step * q
            iterations += 1
            current = float(r.norm()) / scale
            if report:
                report(iterations, current)
            if not current > 0.9 * tolerance:  # also when it is NaN
                break
            z = precondition(r)
            rz, previous = torch.dot(r, z), rz
            p = z + (rz / previous) * p
    return KrylovResult(x, iterations, relative, relative <= tolerance)


def largest_eigenvalue(apply: Callable[[Tensor], Tensor], like: Tensor, steps: int = 8) -> float:
    """Of a symmetric positive operator on vectors such as `like`, from below, by Lanczos steps from noise."""
    # The same noise on every device, made where it is needed.
    v = torch.frac(torch.sin(12.9898 * torch.arange(len(like), dtype=like.dtype, device=like.device)) * 43758.5453)
    previous, size = torch.zeros_like(v), v.norm()
    diagonal, beside = [], []
    for _ in range(min(steps, len(like))):
        v = v / size
        w = torch.addcmul(apply(v), previous, size if beside else torch.zeros_like(size), value=-1)
        along = torch.dot(v, w)
        w = torch.addcmul(w, v, along, value=-1)
        previous, v, size = v, w, w.norm()
        diagonal.append(along)
        beside.append(size)
    small = torch.diag(torch.stack(diagonal)) + torch.diag(torch.stack(beside[:-1]), 1)
    if not bool(torch.isfinite(small).all()):
        raise SolveError("The operators are not finite: the surface is too rough for them; use another spacing.")
    return float(torch.linalg.eigvalsh(small.double().cpu(), UPLO="U")[-1])
