"""The coupled scheme with a learned extension: A u = E L u - gamma (I - E) u on the band of the shell scheme.

As in `coupled`, but E mixes all nodes of a patch, those at the edge of the band too, so L must mean something there:
it is the Laplacian of the shell scheme, without flux through the edge. A convex combination E of nearby values is
itself a diffusion, I - E of order dx^2, and the second term adds it to the Laplacian, whatever the spacing: the scheme
does not converge to the surface's solution (docs/attention.md has figures). It is here to compare extensions in one
scheme. Flexible GMRES, preconditioned by the V-cycle of L.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lamina.linear.krylov import KrylovResult, fgmres
from lamina.schemes.coupled import PENALTY
from lamina.schemes.shell import Shell


class LearnedCoupled(Shell):
    """The coupled operators on the shell's band. A `Scheme` with M = I."""

    name = "coupled"

    @property
    def gamma(self) -> float:
        return PENALTY / self.spacing**2

    def apply(self, u: Tensor) -> Tensor:
        """A u = E (L u + gamma u) - gamma u."""
        return self.E @ torch.sub(self.gamma * u, self.K @ u) - self.gamma * u

    def explicit_step(self, u: Tensor, dt: float) -> Tensor:
        return self.E @ torch.sub(u, self.K @ u, alpha=dt)

    def solve(
        self, g: Tensor, shift: float, *, tolerance: float, start: Tensor | None = None, report=None
    ) -> KrylovResult:
        """GMRES on A - shift I; for shift 0 up to a constant a component, g made compatible."""
        mean, cycle = self._shifted.levels(shift)[0].mean, self._shifted.cycle(shift)

        def project(v: Tensor) -> Tensor:
            return v if shift else mean.remove(v)

        return fgmres(
            lambda u: project(torch.sub(self.apply(u), u, alpha=shift)),
            project(g),
            precondition=lambda r: project(-cycle(r)),
            start=start,
            tolerance=tolerance,
            scale=float(g.norm()),
            report=report,
        )

    def incompatible(self, g: Tensor, u: Tensor) -> Tensor:
        return self._shifted.levels(0.0)[0].mean(g - self.apply(u))
