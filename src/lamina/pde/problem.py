"""Problem: the common form of all equations before they are solved, stationary or in time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from lamina.domain import Domain
from lamina.solution import ConditionsOnSolution
from lamina.spaces.scheme import Scheme

Load = Callable[[float], Tensor]  # time -> the vector that is added to A u


@dataclass(frozen=True)
class Problem:
    """M du/dt = A u + load(t) on a domain. Stationary problems are 0 = A u + load(0) - g.

    scheme: A and M, which include the conditions.
    load: the load of conditions and sources; None without them.
    started: a function that makes the unknowns of a field satisfy the conditions at time 0.
    kept: the values and fluxes of the solution that the conditions determine; None without conditions.
    """

    domain: Domain
    scheme: Scheme
    load: Load | None = None
    started: Callable[[Tensor], Tensor] = lambda u: u
    kept: ConditionsOnSolution | None = None
