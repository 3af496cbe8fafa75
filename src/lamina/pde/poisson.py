"""Poisson and screened Poisson on a surface."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lamina.checks import fraction
from lamina.device import in_own_precision
from lamina.domain import Domain, as_domain
from lamina.errors import InputError
from lamina.expression import as_data
from lamina.grid.sizing import extent
from lamina.linear.krylov import check_convergence
from lamina.pde.boundary import pose
from lamina.pde.conditions import Condition
from lamina.pde.resolution import approximate_unknowns, resolution_warnings
from lamina.pde.variational import Coefficient, Diffusivity
from lamina.progress import progress
from lamina.solution import Solution
from lamina.surfaces.base import Surface

# The removed mean of a right-hand side causes a warning if it exceeds this share of the largest value. The discrete
# mean of a compatible right-hand side is not exactly zero either. With half of the value correct data on coarse grids
# would cause warnings more often; with twice the value wrong data would cause none more often. It was chosen by
# trial.
MAX_UNREPORTED_MEAN = 1e-3
# The default relative residual of linear solves, unless rounding prevents it. The errors of the grid are far above it.
# 8 to 22 cycles reach 1e-9 (docs/theory.md), so a tolerance ten times smaller takes one to three cycles more.
DEFAULT_TOLERANCE = 1e-8
# The default tolerance is at least this many times the estimated rounding error, so that solves in single precision
# end.
TOLERANCE_OVER_ROUNDING = 2


@in_own_precision
def poisson(
    domain: Domain | Surface,
    f: Callable[[Tensor], Tensor] | Tensor | float | str,
    conditions: Sequence[Condition] | Condition | None = None,
    *,
    screening: Coefficient = 0.0,
    diffusivity: Diffusivity | None = None,
    tolerance: float | None = None,
    show_progress: bool | None = None,
    raise_on_failure: bool = True,
) -> Solution:
    """The solution u of div(diffusivity grad u) - screening u = f on a surface.

    Without a diffusivity the first term is the surface Laplacian. If the screening is 0, u has zero mean on every
    connected component on which no Dirichlet or Robin condition holds. There the mean of f and of the flux through the
    rim is removed, with a warning if it is not small. The solution has gradients with respect to every tensor among the
    arguments, and with respect to the shape if the surface carries gradients (docs/layers.md).

    Parameters
    ----------
    domain : Domain or Surface
        Where to solve. For a surface a domain with the default grid is made; it is `u.domain` afterwards.
    f : callable, Tensor, float or str
        The right-hand side: a function of points (n, 3), values (m,) at `domain.points`, a number, or a formula in x,
        y, z such as "sin(5*x) + y".
    conditions : Condition or sequence of Condition, optional
        `Dirichlet`, `Neumann` and `Robin` conditions. Without conditions no flux passes through a rim.
    screening : callable, Tensor, float or str, default 0.0
        A number >= 0, values (m,) at `domain.points`, a function of points, or a formula.
    diffusivity : callable, Tensor, float or str, optional
        A positive number, values (m,) or symmetric tensors (m, 3, 3) at `domain.points`, a function with such values,
        or a formula; 1 unless given. Only the tangential part of a tensor counts.
    tolerance : float, optional
        The relative residual to reach; by default 1e-8, or more if the precision does not allow it.
    show_progress : bool, optional
        Whether to show a bar of progress; by default only if stderr is a terminal.
    raise_on_failure : bool, default True
        Whether to raise SolveError if the tolerance is not reached. Otherwise the solution comes with a warning.

    Returns
    -------
    Solution
        The field, with the number of cycles, the residual and warnings.

    Raises
    ------
    InputError
        If an argument is invalid.
    SolveError
        If the tolerance is not reached.

    Examples
    --------
    >>> import lamina
    >>> domain = lamina.Domain(lamina.Sphere(level=3), spacing=0.3, order=2)
    >>> u = lamina.poisson(domain, "-6*x*y")
    >>> bool((u.values - domain.points[:, 0] * domain.points[:, 1]).abs().max() < 0.02)
    True
    """
    start = time.perf_counter()
    domain = as_domain(domain, "poisson")
    f = as_data(f, "the right-hand side")
    screening = as_data(screening, "the screening")
    shift = checked_number(screening, "screening")
    problem = pose(domain, conditions, diffusivity, None if shift is not None else screening)
    domain, scheme = problem.domain, problem.scheme
    shift = 0.0 if shift is None else shift
    tolerance = default_tolerance(domain, tolerance)
    right = domain.field(f, "the right-hand side")
    g = data_load = domain.load_of(scheme, f, "the right-hand side")
    if problem.load is not None:
        g = g - problem.load(0.0)
    residuals: list[float] = []
    with progress("solving", show_progress) as update:
        result = scheme.solve(
            g,
            shift,
            tolerance=tolerance,
            start=None,
            report=lambda i, r: (
                residuals.append(r) or update(math.log(max(r, tolerance)) / math.log(tolerance), f"residual {r:.1e}")
            ),
        )
    warnings = check_convergence(result, tolerance, raise_on_failure)
    warnings += resolution_warnings(
        domain, f, "the right-hand side", lambda: approximate_unknowns(domain, right, data_load)
    )
    u = result.solution
    if not (isinstance(shift, Tensor) or shift):
        with torch.no_grad():
            given = right(domain.points) if callable(f) or torch.as_tensor(f).ndim == 0 else torch.as_tensor(f)
            warnings += _mean_warning(scheme.incompatible(g, u), given, domain)
        u = scheme.remove_mean(u, lambda u: domain.mean(domain.readout @ u))
    return Solution(
        domain,
        u[None],
        (0.0,),
        cycles=result.iterations,
        residual=result.residual,
        steps=0,
        seconds=time.perf_counter() - start,
        warnings=tuple(warnings),
        residuals=tuple(residuals),
        kept=problem.kept,
    )


def checked_number(data: Coefficient, name: str) -> float | Tensor | None:
    """data as a number >= 0, or as a tensor if it carries gradients; None if it is a field.

    Raises InputError for other numbers.
    """
    if callable(data) or (isinstance(data, Tensor) and data.ndim):
        return None
    value = float(data.detach() if isinstance(data, Tensor) else data)
    if not (math.isfinite(value) and value >= 0):
        raise InputError(f"{name} must be a number >= 0, got {value!r}.")
    if isinstance(data, Tensor) and data.requires_grad:
        if value == 0:
            raise InputError(f"{name} must be positive for gradients with respect to it, got 0.")
        return data
    return value


def default_tolerance(domain: Domain, tolerance: float | None) -> float:
    """The tolerance that was given, or DEFAULT_TOLERANCE, or more where the precision does not allow it.

    The entries of A are of size 1/dx^2, so rounding in A u leaves a residual of about eps (size/dx)^2 relative to f.
    """
    if tolerance is None:
        rounding = torch.finfo(domain.points.dtype).eps * (extent(domain.surface) / domain.spacing) ** 2
        return max(DEFAULT_TOLERANCE, TOLERANCE_OVER_ROUNDING * rounding)
    return fraction("tolerance", tolerance)


def _mean_warning(mean: Tensor, f: Tensor, domain: Domain) -> list[str]:
    scale = float(f.abs().max())
    if float(mean.abs().max()) <= MAX_UNREPORTED_MEAN * scale:
        return []
    shown = ", ".join(f"{float(m):.4g}" for m in mean[:6]) + (", ..." if len(mean) > 6 else "")
    each = "" if domain.component_count == 1 else " on its components"
    return [
        f"The right-hand side, less any flux through rims, has mean {shown}{each}; it was removed, because "
        "without held values there is a solution only for mean zero."
    ]
