"""Closest points on jets, by Newton's method. They have the gradients of the jets and of the points projected."""

from __future__ import annotations

import torch
from torch import Tensor

from lamina.device import by_kernel
from lamina.fits.jets import MAX_DESIGN_ENTRIES, Jets
from lamina.fits.polynomials import coefficient_count, evaluator, height_derivatives
from lamina.geometry.triangles import unit
from lamina.linear.adjoint import first_order

# Most steps of Newton's method for one foot; a foot that has not converged by then stays at the best point found.
MAX_NEWTON_STEPS = 40
# A Newton step is used as it is if the second derivatives of the squared distance are positive definite, with pivots
# above this share of the unit they have on a plane. Below, the distance is nearly flat, as near a centre of curvature,
# and the curvature of the jet is left out of the step.
MIN_CONVEXITY = 0.05
# After a step that does not come closer the damping d becomes 8 d + 0.5; after one that does it becomes d / 8, or zero
# if d is not above MIN_DAMPING. Smaller damping makes longer steps that fail more often.
DAMPING_FACTOR, FIRST_DAMPING, MIN_DAMPING = 8, 0.5, 0.1
# A foot has gradients unless it lies at the rim of its disc up to this relative distance, or the determinant of the
# second derivatives is not above the second number, as at a centre of curvature, where the closest point jumps.
RIM_TOLERANCE, MIN_DETERMINANT = 1e-9, 1e-6


def project(jets: Jets, x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Closest points (n, 3) to x (n, 3) on the jets index (n,), and unit normals (n, 3) there.

    Newton's method for the minimum of |x - s(a, b)|^2 over the disc |(a, b)| <= reach, with the exact derivatives of
    the polynomial. Steps are damped (Levenberg) where they do not come closer, and leave out the curvature of the jet
    where the Hessian is not positive definite.
    """
    if len(x) and by_kernel(x, jets.centres, jets.coefficients):
        from lamina.fits import project_kernel

        return project_kernel.project(jets, x, index)
    points, normals = [x[:0]], [x[:0]]
    rows = torch.arange(len(x), device=x.device)
    for chunk in rows.split(MAX_DESIGN_ENTRIES[x.device.type] // coefficient_count(jets.degree)):
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
    """The minima (2, n) with the gradients of targets and coefficients; those at the rim of the disc without gradients.

    At a minimum the derivative of the distance vanishes, and it still does after a small change of targets and
    coefficients: one step of Newton's method gives the change of the minimum.
    """
    at = height_derivatives(coefficients, ab[0], ab[1], degree)
    above = at[0] - target[2]
    ga, gb = ab[0] - target[0] + above * at[1], ab[1] - target[1] + above * at[2]
    with torch.no_grad():
        Haa = 1 + at[1] * at[1] + above * at[3]
        Hab = at[1] * at[2] + above * at[4]
        Hbb = 1 + at[2] * at[2] + above * at[5]
        determinant = Haa * Hbb - Hab * Hab
        free = ((ab**2).sum(0).sqrt() < (1 - RIM_TOLERANCE) * reach) & (determinant > MIN_DETERMINANT)
        determinant = torch.where(free, determinant, 1)
    ga, gb = ga - ga.detach(), gb - gb.detach()
    step = torch.stack([Hab * gb - Hbb * ga, Hab * ga - Haa * gb]) / determinant
    return first_order(ab + torch.where(free, step, 0))


def _nearest(target: Tensor, coefficients: Tensor, reach: Tensor, degree: int) -> tuple[Tensor, Tensor]:
    """Where (2, n) in the discs the graphs of polynomials are nearest to targets (3, n); h, h_a, h_b there (3, n)."""
    heights = evaluator(coefficients, degree)
    ab = _inside(target[:2], reach)
    at = heights(ab[0], ab[1])
    gap = _gap(target, ab, at)
    damping = torch.zeros_like(reach)
    tolerance, slack = torch.finfo(target.dtype).eps ** 0.5, 1 + 16 * torch.finfo(target.dtype).eps
    for _ in range(MAX_NEWTON_STEPS):
        new = _inside(ab + _newton_step(target, ab, at, damping), reach)
        there = heights(new[0], new[1])
        # The gap is quadratic in the distance to the minimum: rounding must not reject the last steps.
        closer = _gap(target, new, there)
        better = closer <= gap * slack
        moved = ((new - ab) ** 2).sum(0).sqrt()
        ab = torch.where(better, new, ab)
        at = torch.where(better, there, at)
        gap = torch.where(better, closer, gap)
        damping = torch.where(
            better,
            damping / DAMPING_FACTOR * (damping > MIN_DAMPING),
            DAMPING_FACTOR * damping + FIRST_DAMPING,
        )
        # An undamped Newton step of size e leaves an error of size e^2.
        if bool((moved <= tolerance).all()):
            break
    return ab, at[:3]


def _inside(ab: Tensor, reach: Tensor) -> Tensor:
    """The nearest points (2, n) of the discs of radius reach (n,)."""
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
    convex = (Haa > MIN_CONVEXITY) & (Haa * Hbb - Hab * Hab > MIN_CONVEXITY * Haa)
    Haa = torch.where(convex, Haa, 1 + ha * ha) + damping
    Hab = torch.where(convex, Hab, ha * hb)
    Hbb = torch.where(convex, Hbb, 1 + hb * hb) + damping
    return torch.stack([Hab * gb - Hbb * ga, Hab * ga - Haa * gb]) / (Haa * Hbb - Hab * Hab)
