"""Time integrators for a `Problem`, M du/dt = A u + load(t).

An integrator is a function of the problem, its first state, the moments to stop at and the settings of the caller; it
returns a `Run`. INTEGRATORS has them by the name that `lamina.heat(method=)` takes: add one of your own there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint as recompute_later

from lamina.pde.problem import Problem
from lamina.pde.runge_kutta import TR_BDF2, Cost, Field, Stepper

# The next step is this part of the one that would just reach the accuracy: with less, steps are refused more rarely and
# there are more of them.
SAFETY_OF_STEPS = 0.9
# A step is at least this part and at most this many times the one before.
SHORTEST_RATIO, LONGEST_RATIO = 0.2, 4.0
# Step sizes are powers of this number, so that few distinct systems are set up.
LADDER = 2 ** (1 / 2)
# The first step is this part of the whole time; the controller takes it from there.
FIRST_STEP_OF_TIME = 1 / 64
# Steps are accepted, whatever their error, from this many squared spacings down, or this part of the whole time. A
# jump, as from initial to boundary values, has the same error for any step, and layers that diffuse in less time are
# thinner than the grid shows.
ACCEPTED_SQUARED_SPACINGS, ACCEPTED_PART_OF_TIME = 0.1, 1e-4
# The accuracy of steps is at least this many times the tolerance of the linear solves, whose errors no step can cure.
ACCURACY_OVER_TOLERANCE = 4


@dataclass
class Run:
    """What an integration leaves behind."""

    snapshots: list[Tensor]
    taken: list[list[tuple[float, float]]]  # time and length of the steps up to each snapshot
    cycles: int = 0
    steps: int = 0
    residual: float = 0.0


@dataclass(frozen=True)
class Settings:
    """What a caller asks of an integrator.

    steps: equal steps up to the last moment, shortened only to hit the moments; None: adapted to `accuracy`, the error
    of a step relative to the state. tolerance: of the linear solves. checkpoint: keep few states for gradients.
    update(fraction, detail) shows progress.
    """

    steps: int | None = None
    accuracy: float = 1e-5
    tolerance: float = 1e-8
    checkpoint: bool = False
    update: Callable[[float, str], None] = lambda fraction, detail: None


class Integrator(Protocol):
    def __call__(self, problem: Problem, u: Tensor, moments: list[float], settings: Settings, /) -> Run:
        """Integrate from u (n,) or (n, k) at time 0; a snapshot at each of the moments, which increase."""
        ...


def tr_bdf2(problem: Problem, u: Tensor, moments: list[float], settings: Settings) -> Run:
    """TR-BDF2: second order, L-stable, steps adapted to the accuracy or equal.

    With settings.checkpoint steps are taken once without gradients, to know their lengths, and again in stretches that
    each keep only their beginning; their inner states are found a third time when backward asks for them.
    """
    stepper = Stepper(TR_BDF2, problem.scheme, settings.tolerance, problem.load)
    if settings.checkpoint and torch.is_grad_enabled():
        with torch.no_grad():
            first = _adaptive(stepper, u, moments, settings)
        return _in_stretches(stepper, u, first)
    return _adaptive(stepper, u, moments, settings)


INTEGRATORS: dict[str, Integrator] = {"tr-bdf2": tr_bdf2}


def _adaptive(stepper: Stepper, u: Tensor, moments: list[float], settings: Settings) -> Run:
    scheme, run, cost = stepper.scheme, Run([], []), Cost()
    t, end = 0.0, moments[-1]
    accuracy = max(settings.accuracy, ACCURACY_OVER_TOLERANCE * settings.tolerance)
    fixed = None if settings.steps is None else end / settings.steps
    shortest = min(ACCEPTED_SQUARED_SPACINGS * scheme.spacing**2, ACCEPTED_PART_OF_TIME * end)
    proposed = fixed or end * FIRST_STEP_OF_TIME
    state, slope = stepper.field(u), None
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
            new, new_slope, error = stepper.step(state, slope, t, dt, cost)
            assert error is not None
            ratio = scheme.norm(error) / (accuracy * scale)
            if fixed is None and ratio > 1:
                ratio = scheme.norm(stepper.filtered(error, dt, cost)) / (accuracy * scale)
            if fixed is None and ratio > 1 and dt > shortest:
                proposed = max(shortest, dt * _ladder(max(SHORTEST_RATIO, SAFETY_OF_STEPS * ratio ** (-1 / 3))))
                continue
            run.taken[-1].append((t, dt))
            state, slope, t = new, new_slope, t + dt
            scale = max(scheme.norm(_unknowns(state)), 1e-3 * scale)
            run.steps += 1
            if fixed is None and dt >= 0.99 * proposed:
                wanted = SAFETY_OF_STEPS * max(ratio, 1e-8) ** (-1 / 3)
                proposed = dt * max(1.0, _ladder(min(LONGEST_RATIO, wanted)))
            settings.update(t / end, f"{run.steps} steps")
        t = moment
        run.snapshots.append(_unknowns(state))
    run.cycles, run.residual = cost.cycles, cost.residual
    return run


def _in_stretches(stepper: Stepper, u: Tensor, first: Run) -> Run:
    """The steps that a first run took, with gradients, about sqrt(steps) of them between two states that are kept."""
    run, cost = Run([], first.taken, steps=first.steps), Cost()

    def stretch(u: Tensor, slope: Tensor | None, taken: list[tuple[float, float]]) -> tuple[Tensor, Tensor | None]:
        state, rate = stepper.field(u), None if slope is None else stepper.field(slope)
        for time, dt in taken:
            state, rate, _ = stepper.step(state, rate, time, dt, cost)
        return _unknowns(state), None if rate is None else _unknowns(rate)

    length, slope = max(1, math.isqrt(first.steps)), None
    for taken in first.taken:
        for i in range(0, len(taken), length):
            some = taken[i : i + length]
            after = recompute_later(stretch, u, slope, some, use_reentrant=False, preserve_rng_state=False)
            u, slope = cast(tuple[Tensor, Tensor], after)
        run.snapshots.append(u)
    run.cycles, run.residual = first.cycles, first.residual
    return run


def _unknowns(field: Field) -> Tensor:
    assert field.unknowns is not None
    return field.unknowns


def _ladder(factor: float) -> float:
    """factor rounded down to a power of LADDER."""
    return LADDER ** math.floor(math.log(factor) / math.log(LADDER))
