"""Closest points on jets, by Newton's method. They have the gradients of the jets and of the places."""

from __future__ import annotations

import torch
from torch import Tensor

from lamina.device import by_kernel
from lamina.fits.jets import MAX_ENTRIES, Jets
from lamina.fits.polynomials import coefficient_count, evaluator, height_derivatives
from lamina.geometry.triangles import unit
from lamina.linear.adjoint import first_order

NEWTON_STEPS = 40


def project(jets: Jets, x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Closest points (n, 3) to x (n, 3) on the jets index (n,), and unit normals (n, 3) there.

    Newton's method for the minimum of |x - s(a, b)|^2 over the disc |(a, b)| <= reach, with the exact
    derivatives of the polynomial, damped (Levenberg) where it does not come closer, and without the
    curvature term where the Hessian is not positive definite.
    """
    if len(x) and by_kernel(x, jets.centres, jets.coefficients):
        from lamina.fits import project_kernel

        return project_kernel.project(jets, x, index)
    points, normals = [x[:0]], [x[:0]]
    rows = torch.arange(len(x), device=x.device)
    for chunk in rows.split(MAX_ENTRIES[x.device.type] // coefficient_count(jets.degree)):
        foot, normal = _project_chunk(jets, x[chunk], index[chunk])
        points.append(foot)
        normals.append(normal)
    return torch.cat(points), torch.cat(normals)


def _project_chunk(jets: Jets, x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    # index_select: plain indexing takes four times as long to launch.
    centre, frame, scale = (v.index_select(0, index) for v in (jets.centres, jets.frames, jets.scale))
    coefficients, reach = jets.coefficients.index_select(0, index).T.contiguous(), jets.reach.index_select(0, index)
    target = (((x - centre) / scale[:, None])[:, None] @ frame.transpose(1, 2))[:, 0].T
    with torch.no_grad():
        ab, (h, ha, hb) = _nearest(target, coefficients, reach, jets.degree)
    if torch.is_grad_enabled() and (target.requires_grad or coefficients.requires_grad):
        ab = _attached(target, ab, coefficients, reach, jets.degree)
        h, ha, hb, *_ = height_derivatives(coefficients, ab[0], ab[1], jets.degree)
    foot = torch.stack([ab[0], ab[1], h], 1)[:, None] @ frame
    normal = torch.stack([-ha, -hb, torch.ones_like(scale)], 1)[:, None] @ frame
    return torch.addcmul(centre, foot[:, 0], scale[:, None]), unit(normal[:, 0])


def _attached(target: Tensor, ab: Tensor, coefficients: Tensor, reach: Tensor, degree: int) -> Tensor:
    """Places (2, n) of minima, with the gradients of targets and coefficients; at the rim of the disc without.

    There the gradient of the distance vanishes, and goes on doing so: a step of Newton's method follows it.
    """
    at = height_derivatives(coefficients, ab[0], ab[1], degree)
    above = at[0] - target[2]
    ga, gb = ab[0] - target[0] + above * at[1], ab[1] - target[1] + above * at[2]
    with torch.no_grad():
        Haa = 1 + at[1] * at[1] + above * at[3]
        Hab = at[1] * at[2] + above * at[4]
        Hbb = 1 + at[2] * at[2] + above * at[5]
        determinant = Haa * Hbb - Hab * Hab
        free = ((ab**2).sum(0).sqrt() < (1 - 1e-9) * reach) & (determinant > 1e-6)
        determinant = torch.where(free, determinant, 1)
    ga, gb = ga - ga.detach(), gb - gb.detach()
    step = torch.stack([Hab * gb - Hbb * ga, Hab * ga - Haa * gb]) / determinant
    return first_order(ab + torch.where(free, step, 0))


def _nearest(target: Tensor, coefficients: Tensor, reach: Tensor, degree: int) -> tuple[Tensor, Tensor]:
    """Where (2, n) in their discs the graphs of polynomials are nearest to targets (3, n), and h, h_a, h_b (3, n)."""
    heights = evaluator(coefficients, degree)
    ab = _inside(target[:2], reach)
    at = heights(ab[0], ab[1])
    gap = _gap(target, ab, at)
    damping = torch.zeros_like(reach)
    tolerance, slack = torch.finfo(target.dtype).eps ** 0.5, 1 + 16 * torch.finfo(target.dtype).eps
    for _ in range(NEWTON_STEPS):
        new = _inside(ab + _newton_step(target, ab, at, damping), reach)
        there = heights(new[0], new[1])
        # Gaps are quadratic in the distance to the minimum: rounding must not refuse the last steps.
        closer = _gap(target, new, there)
        better = closer <= gap * slack
        moved = ((new - ab) ** 2).sum(0).sqrt()
        ab = torch.where(better, new, ab)
        at = torch.where(better, there, at)
        gap = torch.where(better, closer, gap)
        damping = torch.where(better, damping / 8 * (damping > 0.1), 8 * damping + 0.5)
        # An undamped Newton step of size e leaves an error of size e^2.
        if bool((moved <= tolerance).all()):
            break
    return ab, at[:3]


def _inside(ab: Tensor, reach: Tensor) -> Tensor:
    """The nearest places (2, n) in the disc of radius reach (n,)."""
    return ab * (reach / (ab**2).sum(0).sqrt().clamp_min(1e-30)).clamp(max=1)


def _gap(target: Tensor, ab: Tensor, at: Tensor) -> Tensor:
    return ((target[:2] - ab) ** 2).sum(0) + (target[2] - at[0]) ** 2


def _newton_step(target: Tensor, ab: Tensor, at: Tensor, damping: Tensor) -> Tensor:
    """Newton step (2, n) for |target - (a, b, h)|^2 / 2, with at = h, h_a, h_b, h_aa, h_ab, h_bb (6, n)."""
    h, ha, hb, haa, hab, hbb = at
    above = h - target[2]
    ga = ab[0] - target[0] + above * ha
    gb = ab[1] - target[1] + above * hb
    Haa, Hab, Hbb = 1 + ha * ha + above * haa, ha * hb + above * hab, 1 + hb * hb + above * hbb
    convex = (Haa > 0.05) & (Haa * Hbb - Hab * Hab > 0.05 * Haa)
    Haa = torch.where(convex, Haa, 1 + ha * ha) + damping
    Hab = torch.where(convex, Hab, ha * hb)
    Hbb = torch.where(convex, Hbb, 1 + hb * hb) + damping
    return torch.stack([Hab * gb - Hbb * ga, Hab * ga - Haa * gb]) / (Haa * Hbb - Hab * Hab)
