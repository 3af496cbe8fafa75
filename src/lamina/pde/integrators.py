"""Time integrators for M du/dt = A u, the semi-discrete heat equation of any scheme."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint as recompute_later

from lamina.pde.poisson import check_convergence
from lamina.spaces.scheme import Scheme

# TR-BDF2 as a diagonally implicit Runge-Kutta method: one implicit coefficient d for both stages
# (Hosea and Shampine 1996, "Analysis and implementation of TR-BDF2").
GAMMA = 2 - math.sqrt(2)
D = GAMMA / 2
W = math.sqrt(2) / 4
# The embedded third-order companion's weights, minus those of the method: the error estimate.
ERROR = ((1 - W) / 3 - W, (3 * W + 1) / 3 - W, D / 3 - D)
SAFETY, SHRINK, GROW = 0.9, 0.2, 4.0
LADDER = 2 ** (1 / 2)  # step sizes are powers of this, so that few distinct systems are set up


@dataclass
class Run:
    """What an integration leaves behind."""

    snapshots: list[Tensor]
    taken: list[list[tuple[float, float]]]  # time and length of the steps up to each snapshot
    cycles: int = 0
    steps: int = 0
    residual: float = 0.0


Explicit = Callable[[Scheme, Tensor, list[float], int | None, Callable[[float, str], None]], Run]


def tr_bdf2(
    scheme: Scheme,
    u: Tensor,
    moments: list[float],
    steps: int | None,
    accuracy: float,
    tolerance: float,
    update: Callable[[float, str], None],
    load: Callable[[float], Tensor] | None = None,
    checkpoint: bool = False,
) -> Run:
    """Integrate from u at time 0 through the moments, second order, L-stable.

    A step from u with k1 = M^-1 A u solves (1 - d dt M^-1 A) twice, for the stages at gamma dt and at dt.
    load(t): what is added to A u.
    steps: equal steps up to the last moment, shortened only to hit the moments; None: adapted to `accuracy`.
    checkpoint: take the steps once without gradients, to know their lengths, and again in stretches that each keep
    only their beginning; their inner states are found a third time when backward asks for them.
    """
    if checkpoint and torch.is_grad_enabled():
        with torch.no_grad():
            first = tr_bdf2(scheme, u, moments, steps, accuracy, tolerance, update, load)
        return _in_stretches(scheme, u, first, tolerance, load)
    run = Run([], [])
    t, end = 0.0, moments[-1]
    # What the linear solves leave behind is not the step's doing, and no step is short enough to cure it.
    accuracy = max(accuracy, 4 * tolerance)
    fixed = None if steps is None else end / steps
    # A jump, as from initial to boundary values, has the same error for any step; what it leaves is soon gone. Layers
    # that diffuse in less than this are thinner than the grid shows.
    shortest = min(0.1 * scheme.spacing**2, 1e-4 * end)
    # The first step must resolve the initial state's fastest visible decay; the controller takes it from there.
    proposed = fixed or end / 64
    slope = None
    scale = scheme.norm(u) or 1.0
    for moment in moments:
        run.taken.append([])
        while t < moment * (1 - 1e-12):
            remaining = moment - t
            dt = (
                remaining
                if remaining <= proposed * (1 + 1e-9)
                else min(proposed, remaining / 2 if fixed is None else proposed)
            )
            new, new_slope, error = _step(scheme, u, slope, t, dt, tolerance, run, load)
            ratio = scheme.norm(error) / (accuracy * scale)
            if fixed is None and ratio > 1:
                ratio = scheme.norm(_filtered(scheme, error, dt, tolerance, run)) / (accuracy * scale)
            if fixed is None and ratio > 1 and dt > shortest:
                proposed = max(shortest, dt * _ladder(max(SHRINK, SAFETY * ratio ** (-1 / 3))))
                continue
            run.taken[-1].append((t, dt))
            u, slope, t = new, new_slope, t + dt
            scale = max(scheme.norm(u), 1e-3 * scale)
            run.steps += 1
            if fixed is None and dt >= 0.99 * proposed:
                proposed = dt * max(1.0, _ladder(min(GROW, SAFETY * max(ratio, 1e-8) ** (-1 / 3))))
            update(t / end, f"{run.steps} steps")
        t = moment
        run.snapshots.append(u)
    return run


def _in_stretches(
    scheme: Scheme, u: Tensor, first: Run, tolerance: float, load: Callable[[float], Tensor] | None
) -> Run:
    """The steps that a first run took, with gradients, about sqrt(steps) of them between two states that are kept."""
    run = Run([], first.taken, steps=first.steps)

    def stretch(u: Tensor, slope: Tensor | None, taken: list[tuple[float, float]]) -> tuple[Tensor, Tensor | None]:
        for time, dt in taken:
            u, slope, _ = _step(scheme, u, slope, time, dt, tolerance, run, load)
        return u, slope

    length, slope = max(1, math.isqrt(first.steps)), None
    for taken in first.taken:
        for i in range(0, len(taken), length):
            some = taken[i : i + length]
            after = recompute_later(stretch, u, slope, some, use_reentrant=False, preserve_rng_state=False)
            u, slope = cast(tuple[Tensor, Tensor], after)
        run.snapshots.append(u)
    run.cycles, run.residual = first.cycles, first.residual
    return run


def _ladder(factor: float) -> float:
    """factor rounded down to a power of LADDER."""
    return LADDER ** math.floor(math.log(factor) / math.log(LADDER))


def _step(
    scheme: Scheme,
    u: Tensor,
    slope: Tensor | None,
    time: float,
    dt: float,
    tolerance: float,
    run: Run,
    load: Callable[[float], Tensor] | None,
):
    """One step: the new state, its slope du/dt (reused by the next step), and the error estimate."""

    def implicit(known: Tensor, start: Tensor, fraction: float) -> tuple[Tensor, Tensor]:
        """v = known + d dt v' and v', from (A - c M) v = -c M known - load, c = 1 / (d dt), the load at a fraction of
        the step."""
        shift = 1 / (D * dt)
        right = -shift * scheme.mass(known)
        if load is not None:
            right = right - load(time + fraction * dt)
        result = scheme.solve(right, shift, tolerance=tolerance, start=start, report=None)
        check_convergence(result, tolerance, True)
        run.cycles += result.iterations
        run.residual = max(run.residual, result.residual)
        return result.solution, (result.solution - known) * shift

    if slope is None:
        # The first stage of the first step is implicit Euler's: a rough u0 has no slope worth the name.
        _, slope = implicit(u, u, D)
    _, slope2 = implicit(u + D * dt * slope, u, GAMMA)
    base = u + (W * dt) * (slope + slope2)
    new, slope3 = implicit(base, u, 1.0)
    estimate = dt * (ERROR[0] * slope + ERROR[1] * slope2 + ERROR[2] * slope3)
    return new, slope3, estimate


def _filtered(scheme: Scheme, error: Tensor, dt: float, tolerance: float, run: Run) -> Tensor:
    """(1 - d dt M^-1 A)^-1 error: without the fast modes, as of a jump from initial to boundary values, which the step
    damps but its estimate does not (Hosea and Shampine 1996)."""
    shift = 1 / (D * dt)
    result = scheme.solve(-shift * scheme.mass(error), shift, tolerance=tolerance, start=None, report=None)
    run.cycles += result.iterations
    return result.solution
