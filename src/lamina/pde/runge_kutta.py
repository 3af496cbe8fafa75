"""Diagonally implicit Runge-Kutta steps for M du/dt = A u + load(t), with one coefficient d on the diagonal.

With slopes s_j = du/dt at the stages before it, stage i solves

    (M - d dt A) v_i = M u + dt sum_j a_ij M s_j + d dt load(t + c_i dt),
    s_i = (v_i - u - dt sum_j a_ij s_j) / (d dt),

and the last stage is the new state (the methods are stiffly accurate). All stages have the same matrix, so there is one
factorisation for each step size. Only M u enters, so a field that is known by its load need not be projected first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lamina.linear.krylov import KrylovResult, check_convergence
from lamina.spaces.scheme import Scheme

Load = Callable[[float], Tensor]  # time -> the vector that is added to A u


@dataclass(frozen=True)
class Method:
    """The coefficients of a method.

    diagonal: d.
    rows: for each stage the coefficients a_ij of the slopes before it.
    nodes: c_i.
    explicit_start: whether the first slope is that of the state itself, which the step before has computed.
    error: the coefficients of the slopes in the estimate of the error; None if there is no estimate.
    """

    diagonal: float
    rows: tuple[tuple[float, ...], ...]
    nodes: tuple[float, ...]
    explicit_start: bool
    error: tuple[float, ...] | None = None


def _tr_bdf2() -> Method:
    """TR-BDF2, of second order and L-stable, with the embedded formula of third order for its error.

    Hosea and Shampine 1996, "Analysis and implementation of TR-BDF2".
    """
    gamma, w = 2 - math.sqrt(2), math.sqrt(2) / 4
    d = gamma / 2
    error = ((1 - w) / 3 - w, (3 * w + 1) / 3 - w, d / 3 - d)
    return Method(d, ((d,), (w, w)), (gamma, 1.0), True, error)


def _sdirk2() -> Method:
    """Two stages, second order, L-stable (Alexander 1977, "Diagonally implicit Runge-Kutta methods for stiff ODEs")."""
    d = 1 - math.sqrt(0.5)
    return Method(d, ((), (1 - d,)), (d, 1.0), False)


TR_BDF2, SDIRK2 = _tr_bdf2(), _sdirk2()


@dataclass(frozen=True)
class State:
    """A field, given by its product with the mass matrix, and by its unknowns where these are known."""

    mass: Tensor  # M u
    unknowns: Tensor | None = None

    def plus(self, factor: float | Tensor, other: State) -> State:
        u, v = self.unknowns, other.unknowns
        return State(self.mass + factor * other.mass, None if u is None or v is None else u + factor * v)

    def slope_from(self, start: State, rate: float | Tensor) -> State:
        """The slope (self - start) rate, where rate is one over the step."""
        u, v = self.unknowns, start.unknowns
        return State((self.mass - start.mass) * rate, None if u is None or v is None else (u - v) * rate)


@dataclass
class Cost:
    """Cycles and largest residual of the linear solves of an integration."""

    cycles: int = 0
    residual: float = 0.0

    def add(self, result: KrylovResult) -> None:
        self.cycles += result.iterations
        self.residual = max(self.residual, result.residual)


@dataclass(frozen=True)
class Stepper:
    """Steps of one method for one scheme. warm: whether solves start from the previous state."""

    method: Method
    scheme: Scheme
    tolerance: float
    load: Load | None = None
    warm: bool = True

    def state(self, u: Tensor) -> State:
        return State(self.scheme.mass(u), u)

    def step(
        self, state: State, slope: State | None, time: float, dt: float | Tensor, cost: Cost
    ) -> tuple[State, State, Tensor | None]:
        """The new state, its slope for the next step, and the estimate of the error if the method has one.

        dt: a number, or one number (k,) for each of k channels. slope: du/dt of the state, None if it is not known.
        """
        method = self.method
        slopes = []
        if method.explicit_start:
            # The slope of a rough first state is meaningless. The slope of a stage of implicit Euler replaces it.
            slopes.append(slope or self._implicit(state, state, time, dt, method.diagonal, cost)[1])
        new = state
        for row, node in zip(method.rows, method.nodes, strict=True):
            known = state
            for coefficient, s in zip(row, slopes, strict=True):
                known = known.plus(coefficient * dt, s)
            new, last = self._implicit(known, state, time, dt, node, cost)
            slopes.append(last)
        if method.error is None:
            return new, slopes[-1], None
        weighted = [e * s.unknowns for e, s in zip(method.error, slopes, strict=True) if s.unknowns is not None]
        return new, slopes[-1], dt * torch.stack(weighted).sum(0)

    def _implicit(
        self, known: State, before: State, time: float, dt: float | Tensor, node: float, cost: Cost
    ) -> tuple[State, State]:
        """v = known + d dt v' and v', from (A - c M) v = -c M known - load, c = 1 / (d dt)."""
        rate = 1 / (self.method.diagonal * dt)
        right = -rate * known.mass
        if self.load is not None:
            right = right - self.load(time + node * float(dt))
        v = self.state(self.solved(right, rate, before.unknowns if self.warm else None, cost))
        return v, v.slope_from(known, rate)

    def solved(self, right: Tensor, rate: float | Tensor, start: Tensor | None, cost: Cost) -> Tensor:
        """The solution of (A - rate M) v = right. Raises SolveError where it does not converge."""
        result = self.scheme.solve(right, rate, tolerance=self.tolerance, start=start, report=None)
        check_convergence(result, self.tolerance, True)
        cost.add(result)
        return result.solution

    def filtered(self, error: Tensor, dt: float, cost: Cost) -> Tensor:
        """(1 - d dt M^-1 A)^-1 error: the estimate without fast modes, such as a jump from initial to boundary values.

        The step damps these modes, but its estimate of the error does not (Hosea and Shampine 1996).
        """
        rate = 1 / (self.method.diagonal * dt)
        return self.solved(-rate * self.scheme.mass(error), rate, None, cost)
