"""Eigenmodes of the surface Laplacian."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lamina.checks import fraction
from lamina.device import in_own_precision
from lamina.domain import Domain, as_domain
from lamina.errors import InputError, SolveError
from lamina.grid.sizing import extent
from lamina.linear.lobpcg import lobpcg
from lamina.linear.multigrid import v_cycle
from lamina.pde.variational import Diffusivity, variational
from lamina.progress import progress
from lamina.solution import Solution
from lamina.surfaces.base import Surface

# The default relative residual of eigenpairs. Eigenvalues are accurate to about its square, far better than the grid.
DEFAULT_EIGEN_TOLERANCE = 1e-5
# The default tolerance is at least this many times the estimated rounding error, so that single precision converges.
EIGEN_TOLERANCE_OVER_ROUNDING = 16
# At most one mode may be asked for this many unknowns. Higher modes are not resolved by the grid, and the block of
# vectors, with the residuals and directions of each, would no longer be small against the space.
MIN_UNKNOWNS_PER_MODE = 5
# The block holds a quarter more vectors than modes, at least this many more. They make the last modes converge as
# fast as the first ones; more vectors make each iteration dearer.
MIN_EXTRA_VECTORS = 4
# Iterations after which the bar of progress is full. It is typical, not a limit.
TYPICAL_EIGEN_ITERATIONS = 20


@dataclass(frozen=True)
class Eigenmodes:
    """The lowest eigenvalues of minus the surface Laplacian, and their functions.

    eigenvalues (k,) increase from 0 (once for each component); unknowns (k, n) hold the functions on the grid,
    orthonormal over the surface: the integral of the square of each is 1. residual: the largest relative one.
    """

    domain: Domain = field(repr=False)
    eigenvalues: Tensor
    unknowns: Tensor = field(repr=False)
    iterations: int
    residual: float
    seconds: float

    def __len__(self) -> int:
        return len(self.eigenvalues)

    @property
    def values(self) -> Tensor:
        """The functions (k, m) at domain.points."""
        return (self.domain.readout @ self.unknowns.T).T

    def __call__(self, points: Tensor) -> Tensor:
        """The functions (k, n) at points (n, 3) on or near the surface."""
        return torch.stack([self.domain.evaluate(u, points) for u in self.unknowns])

    def mode(self, i: int) -> Solution:
        """Function number i, to plot, save or evaluate."""
        return Solution(
            self.domain, self.unknowns[i][None], (0.0,), self.iterations, self.residual, steps=0, seconds=self.seconds
        )


@in_own_precision
def eigenmodes(
    domain: Domain | Surface,
    k: int,
    *,
    components: str = "all",
    diffusivity: Diffusivity | None = None,
    tolerance: float | None = None,
    show_progress: bool | None = None,
) -> Eigenmodes:
    """The k lowest eigenpairs of -div(diffusivity grad u) = lambda u on the surface.

    domain: as in `poisson`.
    components: "all", where each component has an eigenvalue 0 of its own, or "largest", the modes of the component
    with the largest area, which vanish on the others.
    diffusivity: as in `poisson`, 1 unless given. tolerance: relative residual, 1e-5 or what the precision
    allows; the eigenvalues of the grid are found to about its square.

    Raises InputError for bad input, SolveError when the tolerance is not reached.
    """
    domain = as_domain(domain, "eigenmodes")
    scheme = variational(domain, diffusivity, "eigenmodes")
    most = scheme.unknowns // MIN_UNKNOWNS_PER_MODE
    if not isinstance(k, int) or not 1 <= k <= most:
        raise InputError(
            f"k must be an integer from 1 to {most}, a fifth of the unknowns, got {k!r}; "
            "use a smaller spacing for more."
        )
    if tolerance is None:
        # Rounding in K u, relative to M u: the entries of M shrink with dx, those of K do not.
        rounding = torch.finfo(domain.points.dtype).eps * (extent(domain.surface) / domain.spacing) ** 2
        tolerance = max(DEFAULT_EIGEN_TOLERANCE, EIGEN_TOLERANCE_OVER_ROUNDING * rounding)
    fraction("tolerance", tolerance)
    if components not in ("all", "largest"):
        raise InputError(f'components must be "all" or "largest", got {components!r}.')
    begin = time.perf_counter()
    mass = scheme.mass_of_one.new_zeros(scheme.component_count)
    mass.index_add_(0, scheme.component, scheme.mass_of_one)
    wanted = mass.argsort(descending=True)[: 1 if components == "largest" else None]
    # Weyl's law: lambda_k is about 4 pi k / area. A shift by the first of these makes the operator definite.
    shift = 4 * torch.pi / float(mass[wanted].sum())
    levels = scheme.shifted(shift)
    with progress("eigenmodes", show_progress) as update:
        result = lobpcg(
            lambda v: scheme.K @ v,
            lambda v: scheme.M @ v,
            _start(scheme, k, wanted, lambda v: v_cycle(levels, v)),
            k,
            precondition=lambda r: v_cycle(levels, r),
            scale=shift,
            tolerance=tolerance,
            report=lambda i, r: update(min(1.0, i / TYPICAL_EIGEN_ITERATIONS), f"{k} eigenmodes, residual {r:.1e}"),
        )
    worst = float(result.residuals.max())
    if not worst <= tolerance:
        raise SolveError(
            f"The eigenmodes stopped at a relative residual of {worst:.1e} after {result.iterations} iterations "
            f"(asked: {tolerance:.0e}); use a larger tolerance, or fewer modes."
        )
    return Eigenmodes(
        domain,
        result.values.clamp_min(0),
        result.vectors.T.contiguous(),
        result.iterations,
        worst,
        time.perf_counter() - begin,
    )


def _start(scheme, k: int, wanted: Tensor, smooth: Callable[[Tensor], Tensor]) -> Tensor:
    """The first block: constants on the wanted components, which are exact modes, and smoothed noise there.

    It has more than k columns. The operator and its V-cycle connect no two components, so a vector that is zero on a
    component stays zero there.
    """
    count = k + max(MIN_EXTRA_VECTORS, k // 4)
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(scheme.unknowns, count, generator=generator, dtype=torch.float64) - 0.5
    block = smooth(noise.to(scheme.mass_of_one) * scheme.mass_of_one[:, None])
    for i, component in enumerate(wanted[:k]):
        block[:, i] = scheme.component == component
    return block * torch.isin(scheme.component, wanted)[:, None]
