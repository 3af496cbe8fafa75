"""What schemes with a symmetric stiffness and a Galerkin hierarchy share: means, the linear solve, the table."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from lamina.linear.components import ComponentMean
from lamina.linear.krylov import KrylovResult, conjugate_gradients
from lamina.linear.multigrid import Shifted
from lamina.schemes.hierarchy import SMOOTHER, ShiftedLevel, TraceLevel


class Symmetric:
    """M du/dt = -K u + load, K and M symmetric, K 1 = 0: so the sum of M u is conserved, component by component.

    levels: the hierarchy, finest first. component_count c: the unknowns belong to components 0, ..., c - 1.
    free (c,) bool: on which of them K 1 = 0; where boundary conditions hold values it is not, and nothing is conserved.
    """

    smoother = SMOOTHER

    def __init__(self, levels: list[TraceLevel], component_count: int, free: Tensor | None = None):
        self.levels = levels
        self.free = None if free is None or bool(free.all()) else free
        self.component = levels[0].component
        self.component_count = component_count
        self._shifted = Shifted(self._shift)

    @property
    def unknowns(self) -> int:
        return self.levels[0].unknowns

    @cached_property
    def K(self) -> Tensor:
        return self.levels[0].matrix(1.0, 0.0)

    @cached_property
    def M(self) -> Tensor:
        return self.levels[0].matrix(0.0, 1.0)

    @cached_property
    def mass_of_one(self) -> Tensor:
        """M 1, whose inner product with u is the integral of u."""
        return self.M @ torch.ones_like(self.levels[0].stiffness[: self.unknowns])

    @cached_property
    def area(self) -> Tensor:
        """Area (c,) of each component."""
        return self._component_sums(self.mass_of_one)

    def apply(self, u: Tensor) -> Tensor:
        return -(self.K @ u)

    def mass(self, u: Tensor) -> Tensor:
        return self.M @ u

    def solve(
        self, g: Tensor, shift: float, *, tolerance: float, start: Tensor | None = None, report=None
    ) -> KrylovResult:
        """Conjugate gradients on K + shift M, preconditioned by one V-cycle; the right-hand side is -g.

        The mean of u on each component is known beforehand; what is solved for is the rest, so that neither the
        tolerance nor rounding touches the integral, and a field near its mean still gets all its digits.
        """
        finest = self._shifted.levels(shift)[0]
        cycle = self._shifted.cycle(shift)
        b = -self.compatible(g)
        # A right-hand side that is all mean leaves only rounding; but a field that diffuses to its mean must not
        # stop short of it.
        scale = float(g.norm())
        if shift:
            scale = max(float(b.norm()), 1e2 * torch.finfo(b.dtype).eps / tolerance * scale)

        def project(v: Tensor) -> Tensor:
            # For shift 0 constants are out of reach; rounding would pile up in them.
            return v if shift else finest.mean.remove(v)

        result = conjugate_gradients(
            lambda u: project(finest.apply(u)),
            project(b),
            precondition=lambda r: project(cycle(r)),
            start=None if start is None else self.without_mean(start),
            tolerance=tolerance,
            scale=scale,
            report=report,
        )
        u = self.without_mean(result.solution)
        if shift:
            u = u - self._on_free(self._component_sums(g) / (shift * self.area))[self.component]
        return KrylovResult(u, result.iterations, result.residual, result.converged)

    def shifted(self, shift: float) -> list[ShiftedLevel]:
        """The levels of K + shift M; the last few are kept."""
        return self._shifted.levels(shift)

    def _shift(self, shift: float) -> list[ShiftedLevel]:
        means = [ComponentMean(level.component, self.component_count, only=self.free) for level in self.levels]
        return [ShiftedLevel(level, shift, mean, self.smoother) for level, mean in zip(self.levels, means, strict=True)]

    def compatible(self, g: Tensor) -> Tensor:
        """g less what makes its sum on each free component zero, spread like a constant f."""
        mean = self._on_free(self._component_sums(g) / self.area)
        return g - mean[self.component] * self.mass_of_one

    def without_mean(self, u: Tensor) -> Tensor:
        """u less its mean on each free component."""
        return u - self._on_free(self._component_sums(self.mass_of_one * u) / self.area)[self.component]

    def _on_free(self, means: Tensor) -> Tensor:
        return means if self.free is None else torch.where(self.free, means, 0)

    def norm(self, u: Tensor) -> float:
        return float((torch.dot(u, self.mass(u)) / self.area.sum()).clamp_min(0).sqrt())

    def incompatible(self, g: Tensor, u: Tensor) -> Tensor:
        return self._on_free(self._component_sums(g) / self.area)

    def table(self) -> list[tuple[float, int, int, int]]:
        rows = []
        for level in self.levels:
            entries = len(level.stiffness)
            size = 2 * level.stiffness.nbytes + level.pattern.column.nbytes + level.pattern.crow.nbytes
            rows.append((level.spacing, level.unknowns, entries, size))
        return rows

    def _component_sums(self, v: Tensor) -> Tensor:
        return v.new_zeros(self.component_count).index_add_(0, self.component, v)
