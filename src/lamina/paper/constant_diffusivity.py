"""A scheme whose Laplacian is multiplied by a number: a constant diffusivity."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lamina.linear.krylov import KrylovResult
from lamina.spaces.scheme import Report, Shift


class ConstantDiffusivity:
    """M du/dt = a A u + load for a scheme of A and M. A `Scheme`; a > 0: a number, or a tensor () with gradients."""

    def __init__(self, scheme: Any, factor: float | Tensor):
        self.scheme, self.factor = scheme, factor

    def __getattr__(self, name: str) -> Any:
        return getattr(self.scheme, name)

    def apply(self, u: Tensor) -> Tensor:
        return self.factor * self.scheme.apply(u)

    def solve(
        self, g: Tensor, shift: Shift, *, tolerance: float, start: Tensor | None = None, report: Report | None = None
    ) -> KrylovResult:
        """Solve (a A - shift M) u = g as (A - shift / a M) u = g / a."""
        shifted = isinstance(shift, Tensor) or shift != 0
        shift = shift / self.factor if shifted else 0.0
        return self.scheme.solve(g / self.factor, shift, tolerance=tolerance, start=start, report=report)

    def incompatible(self, g: Tensor, u: Tensor) -> Tensor:
        return self.factor * self.scheme.incompatible(g / self.factor, u)

    def explicit_step(self, u: Tensor, dt: float) -> Tensor:
        return self.scheme.explicit_step(u, float(self.factor) * dt)
