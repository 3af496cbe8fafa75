"""The V-cycle for any list of levels that can apply, relax, restrict, prolong and, on the coarsest, solve."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol
from weakref import WeakMethod

import torch
from torch import Tensor

# Vectors with at most this many unknowns run their V-cycle as a recorded CUDA graph. On small grids launching kernels
# takes longer than running them; on larger ones it does not, and a graph would only hold memory. Chosen by trial.
MAX_UNKNOWNS_OF_CUDA_GRAPH = 2**18
# Shifts whose levels are kept. An integrator comes back to a few shifts again and again, one for each step length and
# stage; each set of levels takes as much memory as the hierarchy itself. Chosen by trial.
MAX_CACHED_SHIFTS = 4


class Level(Protocol):
    """One grid of a hierarchy: the operator A, a smoother, and transfers to and from the next coarser grid."""

    def apply(self, u: Tensor) -> Tensor: ...

    def relax(self, u: Tensor | None, g: Tensor) -> Tensor:
        """u after some smoothing steps for A u = g; u = None means zero."""
        ...

    def restrict(self, residual: Tensor) -> Tensor: ...

    def prolong(self, correction: Tensor) -> Tensor: ...

    def solve(self, g: Tensor) -> Tensor:
        """Solve A u = g directly; called on the coarsest level only."""
        ...


def v_cycle(levels: Sequence[Level], g: Tensor, u: Tensor | None = None) -> Tensor:
    """One V-cycle for A u = g on levels[0], from u (zero if None).

    The result is linear in (g, u). With u = None it is a fixed linear function of g, so it can precondition any Krylov
    method.
    """
    level, coarser = levels[0], levels[1:]
    if not coarser:
        return level.solve(g if u is None else g - level.apply(u)) + (0 if u is None else u)
    u = level.relax(u, g)
    u = u + level.prolong(v_cycle(coarser, level.restrict(g - level.apply(u))))
    return level.relax(u, g)


def chebyshev_steps(low: float, high: float, count: int) -> list[float]:
    """Step lengths that damp every eigenvalue in [low, high] by at least 1 / T_count(centre / halfwidth).

    They are the reciprocals of the roots of the Chebyshev polynomial on the interval. Short steps come first:
    they damp the high end of the spectrum before the long steps, which amplify it.
    """
    centre, half = (high + low) / 2, (high - low) / 2
    return sorted(1 / (centre + half * math.cos(math.pi * (2 * k + 1) / (2 * count))) for k in range(count))


class Cycle:
    """The function r -> one V-cycle for A u = r from zero.

    On a GPU a cycle on small grids consists of many short kernels, and launching them takes longer than running them.
    A CUDA graph launches all of them at once. It holds memory for all vectors, so it is used on small grids only. It is
    recorded at the second call: the first call builds what the levels cache.
    """

    def __init__(self, levels: Sequence[Level]):
        self.levels = levels
        self.calls = 0
        self.replay: Callable[[Tensor], Tensor] | None = None

    def __call__(self, r: Tensor) -> Tensor:
        if self.replay is not None:
            return self.replay(r)
        self.calls += 1
        if r.is_cuda and self.calls > 1 and len(r) <= MAX_UNKNOWNS_OF_CUDA_GRAPH:
            self.replay = self._recorded(r)
            return self.replay(r)
        return v_cycle(self.levels, r)

    def _recorded(self, like: Tensor) -> Callable[[Tensor], Tensor]:
        argument = torch.zeros_like(like)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(like.device)
        # torch.cuda.graph would collect garbage and release memory first, which takes longer than the solve.
        with torch.cuda.stream(torch.cuda.Stream(like.device)):
            graph.capture_begin()
            result = v_cycle(self.levels, argument)
            graph.capture_end()

        def replay(r: Tensor) -> Tensor:
            argument.copy_(r)
            graph.replay()
            return result.clone()

        return replay


class ShiftedHierarchies:
    """The levels of A shifted by c, and their V-cycle, cached for the last few shifts c.

    make(c): a method that builds the levels. Its object, which usually owns this cache, is held weakly: otherwise both
    would keep their tensors on the device until Python's garbage collector runs. keep: how many shifts are cached.
    """

    def __init__(self, make: Callable[[float], list], keep: int = MAX_CACHED_SHIFTS):
        self._make, self.keep = WeakMethod(make), keep
        self._levels: dict[float, list] = {}
        self._cycles: dict[float, Cycle] = {}

    def __getstate__(self) -> dict:
        return {**vars(self), "_make": self._make()}

    def __setstate__(self, state: dict) -> None:
        vars(self).update(state, _make=WeakMethod(state["_make"]))

    def levels(self, shift: float) -> list:
        if shift not in self._levels:
            if len(self._levels) >= self.keep:
                oldest = next(iter(self._levels))
                self._levels.pop(oldest)
                self._cycles.pop(oldest, None)
            make = self._make()
            assert make is not None  # its object owns this cache
            self._levels[shift] = make(shift)
        return self._levels[shift]

    def cycle(self, shift: float) -> Cycle:
        levels = self.levels(shift)
        if shift not in self._cycles:
            self._cycles[shift] = Cycle(levels)
        return self._cycles[shift]


def in_single_precision(cycle: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A V-cycle on float32 levels as a preconditioner for residuals (n, k) of any size and precision.

    With many columns the vectors do not fit into the caches, so memory traffic limits the speed. Single precision
    halves it and is accurate enough for a preconditioner.
    """

    def precondition(r: Tensor) -> Tensor:
        size = r.abs().amax(0).clamp_min(torch.finfo(r.dtype).tiny)
        return cycle((r / size).float()).to(r.dtype) * size

    return precondition
