"""Time integrators for a `Problem`, M du/dt = A u + load(t).

An integrator is a function of the problem, the first state, the moments to stop at and the settings of the caller. It
returns a `Run`. INTEGRATORS holds integrators by the names that `lamina.heat(method=)` takes: add one of your own
there.
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
from lamina.pde.runge_kutta import TR_BDF2, Cost, State, Stepper

# The next step is this fraction of the step whose estimated error equals the accuracy. With a smaller value fewer
# steps are rejected, but more are taken. It is the usual value for embedded methods.
STEP_SAFETY_FACTOR = 0.9
# A rejected step is followed by a step of at least this fraction of it, so that one bad estimate does not make steps
# tiny.
MIN_STEP_RATIO = 0.2
# A step is at most this many times the step before, because the estimate says little about much longer steps.
MAX_STEP_RATIO = 4.0
# Ratios of step sizes are rounded down to powers of this number, so that few different linear systems are set up. A
# larger number makes steps shorter than needed, a smaller one makes more systems.
STEP_RATIO_BASE = 2 ** (1 / 2)
# The first step is this fraction of the whole time. If it is wrong, the controller corrects it at the cost of a few
# steps.
FIRST_STEP_FRACTION = 1 / 64
# A step of at most this many squared spacings is accepted whatever its error. A jump, such as between initial and
# boundary values, has the same error for every step size; layers that diffuse in less time are thinner than the grid
# resolves.
ACCEPTED_STEP_SQUARED_SPACINGS = 0.1
# A step of at most this fraction of the whole time is accepted whatever its error, so that an integration always ends.
ACCEPTED_STEP_FRACTION = 1e-4
# The accuracy of steps is at least this many times the tolerance of the linear solves, because shorter steps do not
# reduce the errors of the solves.
MIN_ACCURACY_OVER_TOLERANCE = 4
# The scale of the state, to which errors are relative, falls by at most this factor in one step, so that a state that
# passes through zero does not stop the integration.
MIN_SCALE_RATIO = 1e-3
# Estimated errors below this many times the accuracy count as this: with it the longest possible step is reached
# anyway.
MIN_ERROR_RATIO = 1e-8
# A moment is reached if the time is at most this share before it: the sum of many steps is rounded.
TIME_ROUNDING = 1e-12
# The last step before a moment may exceed the proposed step by this share, so that no tiny step remains.
MAX_STEP_EXCESS = 1e-9
# The next step may grow only after a step of at least this share of the proposed one. A step that was shortened to
# end at a moment says nothing about longer steps.
FULL_STEP = 0.99


@dataclass
class Run:
    """The result of an integration."""

    snapshots: list[Tensor]
    taken: list[list[tuple[float, float]]]  # time and length of the steps up to each snapshot
    cycles: int = 0
    steps: int = 0
    residual: float = 0.0


@dataclass(frozen=True)
class Settings:
    """What a caller asks of an integrator.

    steps: the number of equal steps up to the last moment, which are shortened only to end at the moments. None: steps
    are adapted to `accuracy`, the error of a step relative to the state.
    tolerance: the relative residual of the linear solves.
    checkpoint: whether to keep only few states for gradients.
    update: called as update(fraction, detail) to show progress.
    """

    steps: int | None = None
    accuracy: float = 1e-5
    tolerance: float = 1e-8
    checkpoint: bool = False
    update: Callable[[float, str], None] = lambda fraction, detail: None


class Integrator(Protocol):
    def __call__(self, problem: Problem, u: Tensor, moments: list[float], settings: Settings, /) -> Run:
        """Integrate from u (n,) or (n, k) at time 0, with a snapshot at each of the moments, which increase."""
        ...


def tr_bdf2(problem: Problem, u: Tensor, moments: list[float], settings: Settings) -> Run:
    """TR-BDF2: second order, L-stable, with adapted or equal steps.

    With settings.checkpoint the steps are taken once without gradients, to find their lengths. They are taken again in
    segments, of which only the first states are kept. Backward computes the inner states of a segment a third time.
    """
    stepper = Stepper(TR_BDF2, problem.scheme, settings.tolerance, problem.load)
    if settings.checkpoint and torch.is_grad_enabled():
        with torch.no_grad():
            first = _adaptive(stepper, u, moments, settings)
        return _in_segments(stepper, u, first)
    return _adaptive(stepper, u, moments, settings)


INTEGRATORS: dict[str, Integrator] = {"tr-bdf2": tr_bdf2}


def _adaptive(stepper: Stepper, u: Tensor, moments: list[float], settings: Settings) -> Run:
    scheme, run, cost = stepper.scheme, Run([], []), Cost()
    t, end = 0.0, moments[-1]
    accuracy = max(settings.accuracy, MIN_ACCURACY_OVER_TOLERANCE * settings.tolerance)
    fixed = None if settings.steps is None else end / settings.steps
    shortest = min(ACCEPTED_STEP_SQUARED_SPACINGS * scheme.spacing**2, ACCEPTED_STEP_FRACTION * end)
    proposed = fixed or end * FIRST_STEP_FRACTION
    state, slope = stepper.state(u), None
    scale = scheme.norm(u) or 1.0
    for moment in moments:
        run.taken.append([])
        while t < moment * (1 - TIME_ROUNDING):
            remaining = moment - t
            dt = (
                remaining
                if remaining <= proposed * (1 + MAX_STEP_EXCESS)
                else min(proposed, remaining / 2 if fixed is None else proposed)
            )
            new, new_slope, error = stepper.step(state, slope, t, dt, cost)
            assert error is not None
            ratio = scheme.norm(error) / (accuracy * scale)
            if fixed is None and ratio > 1:
                ratio = scheme.norm(stepper.filtered(error, dt, cost)) / (accuracy * scale)
            if fixed is None and ratio > 1 and dt > shortest:
                wanted = STEP_SAFETY_FACTOR * ratio ** (-1 / 3)
                proposed = max(shortest, dt * _rounded_ratio(max(MIN_STEP_RATIO, wanted)))
                continue
            run.taken[-1].append((t, dt))
            state, slope, t = new, new_slope, t + dt
            scale = max(scheme.norm(_unknowns(state)), MIN_SCALE_RATIO * scale)
            run.steps += 1
            if fixed is None and dt >= FULL_STEP * proposed:
                wanted = STEP_SAFETY_FACTOR * max(ratio, MIN_ERROR_RATIO) ** (-1 / 3)
                proposed = dt * max(1.0, _rounded_ratio(min(MAX_STEP_RATIO, wanted)))
            settings.update(t / end, f"{run.steps} steps")
        t = moment
        run.snapshots.append(_unknowns(state))
    run.cycles, run.residual = cost.cycles, cost.residual
    return run


def _in_segments(stepper: Stepper, u: Tensor, first: Run) -> Run:
    """The steps of a first run, with gradients: about sqrt(steps) of them between two states that are kept."""
    run, cost = Run([], first.taken, steps=first.steps), Cost()

    def segment(u: Tensor, slope: Tensor | None, taken: list[tuple[float, float]]) -> tuple[Tensor, Tensor | None]:
        state, rate = stepper.state(u), None if slope is None else stepper.state(slope)
        for time, dt in taken:
            state, rate, _ = stepper.step(state, rate, time, dt, cost)
        return _unknowns(state), None if rate is None else _unknowns(rate)

    length, slope = max(1, math.isqrt(first.steps)), None
    for taken in first.taken:
        for i in range(0, len(taken), length):
            some = taken[i : i + length]
            after = recompute_later(segment, u, slope, some, use_reentrant=False, preserve_rng_state=False)
            u, slope = cast(tuple[Tensor, Tensor], after)
        run.snapshots.append(u)
    run.cycles, run.residual = first.cycles, first.residual
    return run


def _unknowns(state: State) -> Tensor:
    assert state.unknowns is not None
    return state.unknowns


def _rounded_ratio(ratio: float) -> float:
    """A ratio of step sizes, rounded down to a power of STEP_RATIO_BASE."""
    return STEP_RATIO_BASE ** math.floor(math.log(ratio) / math.log(STEP_RATIO_BASE))
