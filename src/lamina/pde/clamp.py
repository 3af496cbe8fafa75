"""Dirichlet values on rims in the explicit steps of the shell scheme, as the CVPR 2026 paper holds them.

Nodes whose closest points lie on a rim take the rim's value after every extension, before the Laplacian sees them
(Ruuth and Merriman, "A simple embedding method for solving partial differential equations on surfaces", J. Comput.
Phys. 2008): of first order, and here to reproduce the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from lamina.domain import Domain
from lamina.errors import InputError
from lamina.pde.boundary import at_places, values_at
from lamina.pde.conditions import Condition, Dirichlet, checked
from lamina.schemes.shell import Shell


@dataclass(frozen=True)
class Clamp:
    """Conditions, and the band's nodes (m,) on whose feet (m, 3) those with these numbers (m,) hold."""

    domain: Domain
    scheme: Shell
    conditions: list[Condition]
    nodes: Tensor
    feet: Tensor
    number: Tensor

    def __call__(self, u: Tensor, time: float) -> Tensor:
        """u (n,) with the held nodes set to their values at that time."""
        return u.index_copy(0, self.nodes, values_at(self.domain, self.conditions, self.number, self.feet, time))

    def step(self, u: Tensor, dt: float, time: float) -> Tensor:
        return self.scheme.explicit_step(u, dt, lambda extended: self(extended, time))


def clamp(domain: Domain, conditions: Sequence[Condition] | Condition | None) -> Clamp | None:
    """None where there are no conditions. Raises InputError for other than Dirichlet's, or where there is no rim."""
    asked, scheme = checked(conditions), domain.scheme
    if not asked:
        return None
    beyond = scheme.band.feet.beyond if isinstance(scheme, Shell) else None
    if not isinstance(scheme, Shell) or beyond is None or any(type(c) is not Dirichlet for c in asked):
        raise InputError('Explicit steps know Dirichlet conditions on rims alone; use scheme="trace" or "coupled".')
    nodes = beyond.nonzero()[:, 0]
    number = at_places(domain, scheme.band.feet.points[nodes], asked, strict=True)
    nodes, number = nodes[number >= 0], number[number >= 0]
    if not len(nodes):
        raise InputError("The conditions hold nowhere on a rim; check where they are to hold.")
    return Clamp(domain, scheme, asked, nodes, scheme.band.feet.points[nodes], number)
