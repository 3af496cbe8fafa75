"""The coupled scheme with a learned extension: A u = E L u - gamma (I - E) u on the band of the shell scheme.

As in `coupled.py`, but here E mixes all nodes of a patch, including those at the edge of the band. So L must be defined
there too: it is the Laplacian of the shell scheme, without flux through the edge. A convex combination E of nearby
values is itself a diffusion: I - E is of order dx^2. The second term adds this diffusion to the Laplacian at every
spacing, so that the scheme does not converge to the solution on the surface (docs/attention.md has figures). The scheme
is here to compare extensions within one scheme. The solver is flexible GMRES, preconditioned by the V-cycle of L.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lamina.linear.adjoint import System, solve
from lamina.linear.krylov import KrylovResult, fgmres
from lamina.paper.coupled_levels import NORMAL_PENALTY
from lamina.paper.shell import Shell
from lamina.spaces.scheme import Report, Shift


class LearnedCoupled(Shell):
    """The coupled operators on the shell's band. A `Scheme` with M = I."""

    name = "coupled"

    @property
    def gamma(self) -> float:
        return NORMAL_PENALTY / self.spacing**2

    def apply(self, u: Tensor) -> Tensor:
        """A u = E (L u + gamma u) - gamma u."""
        return self.extension @ self._carried(u) - self.gamma * u

    def _carried(self, u: Tensor) -> Tensor:
        return torch.sub(self.gamma * u, self.stiffness @ u)

    def explicit_step(self, u: Tensor, dt: float) -> Tensor:
        return self.extension @ torch.sub(u, self.stiffness @ u, alpha=dt)

    def solve(
        self, g: Tensor, shift: Shift, *, tolerance: float, start: Tensor | None = None, report: Report | None = None
    ) -> KrylovResult:
        """GMRES on A - shift I. For shift 0, u is up to a constant on each component and g is made compatible."""
        c = float(shift.detach() if isinstance(shift, Tensor) else shift)
        mean, cycle = self._shifted.levels(c)[0].mean, self._shifted.cycle(c)

        def project(v: Tensor) -> Tensor:
            return v if c else mean.remove(v)

        def gmres(apply: Callable[[Tensor], Tensor], b: Tensor, begin: Tensor | None, report: Report | None):
            return fgmres(
                lambda u: project(torch.sub(apply(u), u, alpha=c)),
                project(b),
                precondition=lambda r: project(-cycle(r)),
                start=begin,
                tolerance=tolerance,
                scale=b.norm(dim=0),
                report=report,
            )

        def apply_transposed(v: Tensor) -> Tensor:
            return self._carried(self.extension.T @ v) - self.gamma * v

        entries = () if self.extension.values is None else (self.extension.values,)
        shifts = (shift,) if isinstance(shift, Tensor) else ()

        def by_entries(v: Tensor, u: Tensor) -> list[Tensor]:
            found = [-self.extension.outer_at_entries(v, self._carried(u))] if entries else []
            return [*found, (v * u).sum()] if shifts else found

        begin = None if start is None else start.detach()
        system = System(
            lambda b, size: gmres(self.apply, b, begin, report),
            lambda b, size: gmres(apply_transposed, b, None, None),
            (*entries, *shifts),
            by_entries,
        )
        return solve(system, g)

    def incompatible(self, g: Tensor, u: Tensor) -> Tensor:
        return self._shifted.levels(0.0)[0].mean(g.detach() - self.apply(u.detach()))
