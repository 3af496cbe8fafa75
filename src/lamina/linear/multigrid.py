"""The V-cycle, for any stack of levels that can apply, relax, restrict and prolong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class Level(Protocol):
    """One grid of a hierarchy: the operator A on it, a smoother, and the way to the next coarser grid."""

    def apply(self, u: Tensor) -> Tensor: ...

    def relax(self, u: Tensor | None, g: Tensor) -> Tensor:
        """Smooth the error of A u = g; u = None means zero."""
        ...

    def restrict(self, residual: Tensor) -> Tensor: ...

    def prolong(self, correction: Tensor) -> Tensor: ...

    def solve(self, g: Tensor) -> Tensor:
        """Solve A u = g directly; asked of the coarsest level only."""
        ...


def v_cycle(levels: Sequence[Level], g: Tensor, u: Tensor | None = None) -> Tensor:
    """One V-cycle for A u = g on levels[0], from u (zero if None).

    Linear in (g, u), and with u = None a fixed linear operator: a preconditioner for any Krylov method.
    """
    level, coarser = levels[0], levels[1:]
    if not coarser:
        return level.solve(g if u is None else g - level.apply(u)) + (0 if u is None else u)
    u = level.relax(u, g)
    u = u + level.prolong(v_cycle(coarser, level.restrict(g - level.apply(u))))
    return level.relax(u, g)


def chebyshev_steps(low: float, high: float, count: int) -> list[float]:
    """Step lengths that damp every eigenvalue in [low, high] by at least 1 / T_count(centre / halfwidth).

    The reciprocals of the roots of the Chebyshev polynomial on the interval; short steps come first, so
    that the long one never amplifies what rounding left at the high end.
    """
    centre, half = (high + low) / 2, (high - low) / 2
    return sorted(1 / (centre + half * math.cos(math.pi * (2 * k + 1) / (2 * count))) for k in range(count))
