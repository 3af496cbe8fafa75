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
from lamina.shapes import Float, shaped
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
    """The lowest eigenvalues of minus the surface Laplacian, and their functions; made by `lamina.eigenmodes`.

    Parameters
    ----------
    domain : Domain
        Where they were computed.
    eigenvalues : Tensor
        The eigenvalues (k,) in increasing order. Each component of the surface contributes one 0.
    unknowns : Tensor
        The functions (k, n) on the grid, orthonormal over the surface: the integral of the square of each is 1.
    iterations : int
        The number of iterations.
    residual : float
        The largest relative residual.
    seconds : float
        The time that the computation took.

    Examples
    --------
    >>> import lamina
    >>> modes = lamina.eigenmodes(lamina.Domain(lamina.Sphere(level=3), spacing=0.3, order=2), 4)
    >>> len(modes), modes.values.shape
    (4, torch.Size([4, 642]))
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
    @shaped
    def values(self) -> Float[Tensor, "k m"]:
        """The functions (k, m) at domain.points."""
        return (self.domain.readout @ self.unknowns.T).T

    @shaped
    def __call__(self, points: Float[Tensor, "n 3"]) -> Float[Tensor, "k n"]:
        """The functions at any points of the surface.

        Parameters
        ----------
        points : Tensor
            Points (n, 3) on or near the surface.

        Returns
        -------
        Tensor
            Values (k, n).

        Examples
        --------
        >>> import torch, lamina
        >>> modes = lamina.eigenmodes(lamina.Domain(lamina.Sphere(level=3), spacing=0.3, order=2), 4)
        >>> modes(torch.tensor([[0.0, 0.0, 1.0]])).shape
        torch.Size([4, 1])
        """
        return torch.stack([self.domain.evaluate(u, points) for u in self.unknowns])

    def mode(self, i: int) -> Solution:
        """One of the functions as a `Solution`, to plot, save or evaluate.

        Parameters
        ----------
        i : int
            The number of the function, from 0.

        Returns
        -------
        Solution
            The function.

        Examples
        --------
        >>> import lamina
        >>> modes = lamina.eigenmodes(lamina.Domain(lamina.Sphere(level=3), spacing=0.3, order=2), 4)
        >>> modes.mode(1).values.shape
        torch.Size([642])
        """
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
    """The k lowest eigenpairs of -div(diffusivity grad u) = lambda u on a surface.

    Parameters
    ----------
    domain : Domain or Surface
        Where to solve, as in `poisson`.
    k : int
        The number of modes, at most a fifth of the unknowns.
    components : str, default "all"
        "all": every connected component has its own eigenvalue 0. "largest": only the modes of the component with the
        largest area, which vanish on the others.
    diffusivity : callable, Tensor, float or str, optional
        As in `poisson`, 1 unless given.
    tolerance : float, optional
        The relative residual to reach; by default 1e-5, or more if the precision does not allow it. The eigenvalues of
        the discrete problem are accurate to about its square.
    show_progress : bool, optional
        As in `poisson`.

    Returns
    -------
    Eigenmodes
        The eigenvalues in increasing order, and their functions.

    Raises
    ------
    InputError
        If an argument is invalid.
    SolveError
        If the tolerance is not reached.

    Examples
    --------
    The eigenvalues of the unit sphere are 0, 2, 2, 2, 6, ...:

    >>> import lamina
    >>> domain = lamina.Domain(lamina.Sphere(level=3), spacing=0.3, order=2)
    >>> modes = lamina.eigenmodes(domain, 4)
    >>> [round(float(value), 1) + 0.0 for value in modes.eigenvalues]
    [0.0, 2.0, 2.0, 2.0]
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
