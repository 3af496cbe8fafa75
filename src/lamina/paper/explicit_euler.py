"""Explicit Euler steps of the CVPR 2026 paper, u <- E (u + dt L u), with Dirichlet conditions on rims.

After every extension, before the Laplacian is applied, the nodes whose closest points lie on a rim are set to the value
of the rim (Ruuth and Merriman, "A simple embedding method for solving partial differential equations on surfaces",
J. Comput. Phys. 2008). This is of first order; it is here to reproduce the paper.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lamina.domain import Domain
from lamina.errors import InputError, SolveError
from lamina.paper.shell import Shell
from lamina.pde.boundary import numbers_at, values_at
from lamina.pde.conditions import Condition, Dirichlet, checked
from lamina.pde.integrators import Run, Settings
from lamina.pde.problem import Problem

STEP_PER_SQUARED_SPACING = 0.1  # dt / dx^2 of the paper's explicit steps, unless the number of steps is given.
# Diffusion does not increase the norm of a field. A norm that has grown by this factor therefore means unstable steps;
# the last 1 % is room for the rounding of a steady field.
MAX_STABLE_GROWTH = 1.01


@dataclass(frozen=True)
class Clamp:
    """Dirichlet conditions on rims, as values of nodes.

    nodes (m,): of the band, with closest points on a rim. feet (m, 3): these points. number (m,): the condition there.
    """

    domain: Domain
    scheme: Shell
    conditions: list[Condition]
    nodes: Tensor
    feet: Tensor
    number: Tensor

    def __call__(self, u: Tensor, time: float) -> Tensor:
        """u (n,) with the clamped nodes set to their values at that time."""
        return u.index_copy(0, self.nodes, values_at(self.domain, self.conditions, self.number, self.feet, time))

    def step(self, u: Tensor, dt: float, time: float) -> Tensor:
        return self.scheme.explicit_step(u, dt, lambda extended: self(extended, time))


def clamp(domain: Domain, conditions: Sequence[Condition] | Condition | None) -> Clamp | None:
    """None without conditions. Raises InputError if one is not a Dirichlet condition, or if there is no rim."""
    asked, scheme = checked(conditions), domain.scheme
    if not asked:
        return None
    beyond = scheme.band.feet.beyond if isinstance(scheme, Shell) else None
    if not isinstance(scheme, Shell) or beyond is None or any(type(c) is not Dirichlet for c in asked):
        raise InputError(
            "Explicit steps take only Dirichlet conditions on rims, and only with the shell scheme; use lamina.Domain."
        )
    nodes = beyond.nonzero()[:, 0]
    number = numbers_at(domain, scheme.band.feet.points[nodes], asked, strict=True)
    nodes, number = nodes[number >= 0], number[number >= 0]
    if not len(nodes):
        raise InputError("The conditions hold nowhere on a rim; check where they hold.")
    return Clamp(domain, scheme, asked, nodes, scheme.band.feet.points[nodes], number)


def explicit_euler(
    problem: Problem, u: Tensor, moments: list[float], settings: Settings, hold: Clamp | None = None
) -> Run:
    """u <- E (u + dt L u), the explicit closest point iteration, with dt = 0.1 dx^2 unless steps are given.

    hold: Dirichlet conditions; its steps then replace those of the scheme.
    """
    scheme: Any = problem.scheme
    run = Run([], [])
    t, end = 0.0, moments[-1]
    if hold is not None:
        u = hold(u, 0.0)
    start = scheme.norm(u)
    max_dt = STEP_PER_SQUARED_SPACING * scheme.spacing**2 if settings.steps is None else end / settings.steps
    for moment in moments:
        count = max(1, math.ceil((moment - t) / max_dt - 1e-9))
        dt = (moment - t) / count
        for i in range(count):
            now = t + i * dt
            u = scheme.explicit_step(u, dt) if hold is None else hold.step(u, dt, now)
            run.steps += 1
            settings.update((now + dt) / end, f"{run.steps} steps")
        t = moment
        size = scheme.norm(u)
        if not (size <= MAX_STABLE_GROWTH * start if hold is None else math.isfinite(size)):
            raise SolveError(f"Explicit steps of {dt:.2g} are unstable at spacing {scheme.spacing:g}; use more steps.")
        run.snapshots.append(u)
    return run
