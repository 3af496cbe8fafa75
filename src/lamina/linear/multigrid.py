"""The V-cycle, for any stack of levels that can apply, relax, restrict and prolong."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

GRAPH_UNKNOWNS = 2**18


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


class Cycle:
    """r -> one V-cycle for A u = r from zero.

    On a GPU a cycle on small grids is many short kernels, and launching them takes longer than running them. A
    CUDA graph launches all at once; it keeps its vectors, so it is recorded where grids are small. The first cycle
    runs without: it makes what the levels keep.
    """

    def __init__(self, levels: Sequence[Level]):
        self.levels = levels
        self.used = 0
        self.replay: Callable[[Tensor], Tensor] | None = None

    def __call__(self, r: Tensor) -> Tensor:
        if self.replay is not None:
            return self.replay(r)
        self.used += 1
        if r.is_cuda and self.used > 1 and len(r) <= GRAPH_UNKNOWNS:
            self.replay = self._recorded(r)
            return self.replay(r)
        return v_cycle(self.levels, r)

    def _recorded(self, like: Tensor) -> Callable[[Tensor], Tensor]:
        held = torch.zeros_like(like)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(like.device)
        # torch.cuda.graph would collect garbage and hand memory back first, which takes longer than the solve.
        with torch.cuda.stream(torch.cuda.Stream(like.device)):
            graph.capture_begin()
            result = v_cycle(self.levels, held)
            graph.capture_end()

        def replay(r: Tensor) -> Tensor:
            held.copy_(r)
            graph.replay()
            return result.clone()

        return replay


class Shifted:
    """The levels of A shifted by c, and the V-cycle on them, for the last few shifts c asked for."""

    def __init__(self, make: Callable[[float], list], keep: int = 4):
        self.make, self.keep = make, keep
        self._levels: dict[float, list] = {}
        self._cycles: dict[float, Cycle] = {}

    def levels(self, shift: float) -> list:
        if shift not in self._levels:
            if len(self._levels) >= self.keep:
                oldest = next(iter(self._levels))
                self._levels.pop(oldest)
                self._cycles.pop(oldest, None)
            self._levels[shift] = self.make(shift)
        return self._levels[shift]

    def cycle(self, shift: float) -> Cycle:
        levels = self.levels(shift)
        if shift not in self._cycles:
            self._cycles[shift] = Cycle(levels)
        return self._cycles[shift]


def in_single_precision(cycle: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A V-cycle on float32 levels for residuals (n, k) of any size and precision.

    Many columns are as many times the traffic of one, which the caches take for one but not for all: half the digits
    are half of it, and a preconditioner needs no more.
    """

    def precondition(r: Tensor) -> Tensor:
        size = r.abs().amax(0).clamp_min(torch.finfo(r.dtype).tiny)
        return cycle((r / size).float()).to(r.dtype) * size

    return precondition
