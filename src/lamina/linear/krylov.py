"""Krylov methods: conjugate gradients for symmetric systems, flexible GMRES for the others.

Vectors are (n,), or (n, k) for k systems with one matrix. The k systems are solved side by side, each with step lengths
of its own, until the last has converged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lamina.errors import SolveError

COLUMNS_PER_BLOCK = {"cpu": 32, "cuda": 1024}  # batch size: columns solved together so that they fit into the caches
# An iteration stops when the relative residual of its recurrence is at most this times the tolerance. The residual is
# then recomputed from the solution and compared with the tolerance itself; the margin of a tenth keeps rounding in the
# recurrence from making a restart necessary. With 1 such restarts are more frequent; with 0.5 every solve goes on past
# what was asked. Chosen by trial.
RECURRENCE_MARGIN = 0.9
# GMRES gives up if a whole cycle reduces the residual to no less than this times its value before: later cycles start
# from nearly the same residual and would do no better. With 0.5 slow but converging solves are cut off.
MIN_STAGNATION_RATIO = 0.99
# A new Arnoldi vector of at most this times the first residual is rounding in double precision (45 units of it), so
# the Krylov space is exhausted. With double or half of it only vectors at this limit are judged differently.
MAX_EXHAUSTED_NORM = 1e-14
# Times that conjugate gradients compute the true residual and, if it is too large, iterate from it. The second residual
# normally confirms that the first run has converged; if rounding made that run too optimistic, one more follows. At
# least 2 are needed. Chosen by trial.
MAX_CG_STARTS = 3
# Steps of the Lanczos process for the largest eigenvalue. The estimate is from below and callers add a margin to it;
# half as many steps would need a larger margin. Chosen by trial.
LANCZOS_STEPS = 8


@dataclass(frozen=True)
class KrylovResult:
    solution: Tensor  # (n,) or (n, k)
    iterations: int  # applications of the preconditioner
    residual: float  # |b - A x| / |b|, recomputed from x; the largest, where there are several
    converged: bool


def check_convergence(result: KrylovResult, tolerance: float, raise_on_failure: bool) -> list[str]:
    """A list with a sentence about a solve that missed its tolerance, empty if it converged.

    Raises SolveError with that sentence if raise_on_failure.
    """
    if result.converged:
        return []
    message = (
        f"The solve stopped at a relative residual of {result.residual:.1e} after {result.iterations} cycles "
        f"(asked: {tolerance:.0e}); use a larger tolerance, a smaller spacing, or double precision."
    )
    if raise_on_failure:
        raise SolveError(message)
    return [message]


def fgmres(
    apply: Callable[[Tensor], Tensor],
    b: Tensor,
    *,
    precondition: Callable[[Tensor], Tensor],
    start: Tensor | None = None,
    tolerance: float = 1e-8,
    scale: float | Tensor | None = None,
    max_iterations: int = 200,
    restart: int = 30,
    report: Callable[[int, float], None] | None = None,
) -> KrylovResult:
    """Solve A x = b, minimising |b - A x| over the span of the preconditioned directions.

    Stops when |b - A x| <= tolerance scale (scale is |b| unless given), or after max_iterations preconditioner
    applications. If b is zero, so is the solution. `report` is called with (iteration, relative residual).
    Saad (1993), "A flexible inner-outer preconditioned GMRES algorithm".
    """
    scale = _scale(b, scale)
    x = torch.zeros_like(b) if start is None else start
    if not bool((scale > 0).any()):
        return KrylovResult(torch.zeros_like(b), 0, 0.0, True)
    iterations = 0
    residual = b if start is None else b - apply(x)
    relative = _largest(residual, scale)
    while relative > tolerance and iterations < max_iterations:
        length = min(restart, max_iterations - iterations)
        x, used = _arnoldi_cycle(apply, precondition, residual, x, tolerance, length, iterations, scale, report)
        iterations += used
        residual = b - apply(x)
        previous, relative = relative, _largest(residual, scale)
        if not relative < MIN_STAGNATION_RATIO * previous:  # stagnation, or NaN
            break
    return KrylovResult(x, iterations, relative, relative <= tolerance)


def _arnoldi_cycle(apply, precondition, residual, x, tolerance, length, done, scale, report):
    """Up to `length` steps of the Arnoldi process from residual; returns the improved x and the number of steps."""
    beta = residual.norm(dim=0)
    columns, scale = beta.numel(), torch.where(scale > 0, scale, torch.inf).reshape(-1).double().cpu()
    # A column without residual has no directions: its basis stays zero.
    basis, directions = [residual / beta.clamp_min(_tiny(beta))], []
    start = beta.reshape(-1).double().cpu()
    hessenberg = torch.zeros(columns, length + 1, length, dtype=torch.float64)
    for k in range(length):
        directions.append(precondition(basis[k]))
        w = apply(directions[k])
        # Classical Gram-Schmidt, applied twice, is as stable as the modified form and needs fewer synchronisations.
        for _ in range(2):
            h = torch.stack([dots(v, w) for v in basis])
            w = w.clone()
            for v, c in zip(basis, h, strict=True):
                w.addcmul_(v, c, value=-1)
            hessenberg[:, : k + 1, k] += h.double().cpu().reshape(k + 1, columns).T
        norm = w.norm(dim=0)
        norms = norm.reshape(-1).double().cpu()
        if not bool(torch.isfinite(norms).all()):
            return x + directions[0] * torch.nan, k + 1
        hessenberg[:, k + 1, k] = norms
        rhs = torch.zeros(columns, k + 2, 1, dtype=torch.float64)
        rhs[:, 0, 0] = start
        h = hessenberg[:, : k + 2, : k + 1]
        y = torch.linalg.lstsq(h, rhs).solution
        remaining = float(((rhs - h @ y).norm(dim=(1, 2)) / scale).max())
        if report:
            report(done + k + 1, remaining)
        exhausted = bool((norms <= MAX_EXHAUSTED_NORM * start).all())
        if remaining <= RECURRENCE_MARGIN * tolerance or exhausted or remaining != remaining:
            break
        basis.append(torch.where(norm > MAX_EXHAUSTED_NORM * beta, w / norm.clamp_min(_tiny(norm)), 0))
    x = x.clone()
    y = y[:, :, 0].T.to(x)
    for direction, c in zip(directions, y, strict=True):
        x.addcmul_(direction, c)
    return x, len(directions)


def in_blocks(solve: Callable[[Tensor, slice, Tensor], KrylovResult], b: Tensor) -> KrylovResult:
    """Solve for the columns of b (n, k) in blocks that fit into the caches, with each column scaled to maximum 1.

    Without the scaling the squares of small right-hand sides, such as gradients, would underflow.
    solve(block, columns, size): the block, which columns of b it holds, and the factors (k,) that they were divided by.
    """
    size = b.abs().amax(0)
    size = torch.where(size > 0, size, 1)
    if b.ndim == 1:
        result = solve(b / size, slice(None), size)
        return replace(result, solution=result.solution * size)
    width = COLUMNS_PER_BLOCK[b.device.type]
    parts = [slice(i, i + width) for i in range(0, b.shape[1], width)]
    results = [solve(b[:, part] / size[part], part, size[part]) for part in parts]
    return KrylovResult(
        torch.cat([r.solution for r in results], 1) * size,
        max(r.iterations for r in results),
        max(r.residual for r in results),
        all(r.converged for r in results),
    )


def dots(a: Tensor, b: Tensor) -> Tensor:
    """Inner product of vectors (n,), or of each pair of columns (k,) of a and b (n, k)."""
    return torch.dot(a, b) if a.ndim == 1 else (a * b).sum(0)


def _tiny(like: Tensor) -> float:
    return torch.finfo(like.dtype).tiny


def _scale(b: Tensor, scale: float | Tensor | None) -> Tensor:
    """The norm that residuals are divided by, () or (k,)."""
    if scale is None:
        return b.norm(dim=0)
    return torch.as_tensor(scale, dtype=b.dtype, device=b.device).expand(b.shape[1:])


def _largest(residual: Tensor, scale: Tensor) -> float:
    """The largest relative residual over the columns; columns whose scale is zero are not counted."""
    relative = dots(residual, residual).sqrt() / scale.clamp_min(_tiny(scale))
    return float(torch.where(scale > 0, relative, 0).max())


def conjugate_gradients(
    apply: Callable[[Tensor], Tensor],
    b: Tensor,
    *,
    precondition: Callable[[Tensor], Tensor],
    start: Tensor | None = None,
    tolerance: float = 1e-8,
    scale: float | Tensor | None = None,
    max_iterations: int = 500,
    report: Callable[[int, float], None] | None = None,
    flexible: bool = False,
) -> KrylovResult:
    """Solve A x = b for A symmetric positive (semi)definite and a preconditioner of the same kind.

    b must lie in the range of A. Stops when |b - A x| <= tolerance scale (scale is |b| unless given). When the residual
    of the recurrence is small enough, the true residual is computed; if it is still too large, the iteration restarts
    from it. Hestenes and Stiefel (1952).

    flexible: use the formula for a preconditioner of lower precision than the vectors (Golub and Ye 1999).
    """
    scale = _scale(b, scale)
    if not bool((scale > 0).any()):
        return KrylovResult(torch.zeros_like(b), 0, 0.0, True)
    x = torch.zeros_like(b) if start is None else start.clone()
    iterations, relative = 0, torch.inf
    for _ in range(MAX_CG_STARTS):
        r = b - apply(x)
        relative = _largest(r, scale)
        if relative <= tolerance or iterations >= max_iterations:
            break
        z = precondition(r)
        p, rz = z, dots(r, z)
        while iterations < max_iterations:
            q = apply(p)
            step = _ratio(rz, dots(p, q))
            x = torch.addcmul(x, p, step)
            before, r = r, torch.addcmul(r, q, step, value=-1)
            iterations += 1
            current = _largest(r, scale)
            if report:
                report(iterations, current)
            if not current > RECURRENCE_MARGIN * tolerance:  # also if it is NaN
                break
            z = precondition(r)
            rz, previous = dots(r, z), rz
            p = torch.addcmul(z, p, _ratio(rz - dots(before, z) if flexible else rz, previous))
    return KrylovResult(x, iterations, relative, relative <= tolerance)


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """a / b; 0 in columns where both are 0 because they have converged to the last digit."""
    return a / b if a.ndim == 0 else torch.where(b == 0, 0, a / b)


def largest_eigenvalue(apply: Callable[[Tensor], Tensor], like: Tensor, steps: int = LANCZOS_STEPS) -> float:
    """A lower estimate of the largest eigenvalue of a symmetric positive operator, by Lanczos steps from noise.

    like (n,): a vector whose length, dtype and device are those of the operator.
    """
    # A formula for the noise gives the same numbers on every device.
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
