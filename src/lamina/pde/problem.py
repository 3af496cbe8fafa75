"""Problem: what every equation is made of before it is solved, stationary or in time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from lamina.domain import Domain
from lamina.solution import Kept
from lamina.spaces.scheme import Scheme

Load = Callable[[float], Tensor]  # time -> what is added to A u


@dataclass(frozen=True)
class Problem:
    """M du/dt = A u + load(t) on a domain; stationary problems are 0 = A u + load(0) - g.

    scheme: A and M, which keep the conditions. load: what conditions and sources add; None where nothing was asked.
    started: the unknowns of a field, made to keep the conditions at time 0. kept: what the conditions say about the
    solution; None where nothing was asked.
    """

    domain: Domain
    scheme: Scheme
    load: Load | None = None
    started: Callable[[Tensor], Tensor] = lambda u: u
    kept: Kept | None = None
