"""The heat equation du/dt = Laplacian(u) on a surface."""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import singledispatch

import torch
from torch import Tensor

from lamina.checks import fraction, positive
from lamina.device import in_own_precision
from lamina.domain import Domain, as_domain
from lamina.errors import InputError
from lamina.expression import as_data
from lamina.pde.boundary import pose, with_source
from lamina.pde.conditions import Condition, Value, depends_on_time
from lamina.pde.integrators import INTEGRATORS, Integrator, Settings
from lamina.pde.poisson import default_tolerance
from lamina.pde.resolution import approximate_unknowns, resolution_warnings
from lamina.pde.variational import Diffusivity
from lamina.progress import progress
from lamina.solution import Solution
from lamina.surfaces.base import Surface

# Two moments count as the same if they differ by at most this share of the whole time, which is rounding.
SAME_MOMENT = 1e-9


@in_own_precision
def heat(
    domain: Domain | Surface,
    u0: Callable[[Tensor], Tensor] | Tensor | float | str,
    time: float,
    conditions: Sequence[Condition] | Condition | None = None,
    *,
    source: Value | None = None,
    diffusivity: Diffusivity | None = None,
    times: Sequence[float] | None = None,
    frames: int | None = None,
    steps: int | None = None,
    accuracy: float = 1e-5,
    method: str | None = None,
    tolerance: float | None = None,
    checkpoint: bool = False,
    show_progress: bool | None = None,
) -> Solution:
    """The solution of du/dt = div(diffusivity grad u) + source, from u0 at time 0 to a given time.

    Without a diffusivity the first term is the surface Laplacian. The solution has gradients as that of `poisson`.

    Parameters
    ----------
    domain : Domain or Surface
        Where to solve, as in `poisson`.
    u0 : callable, Tensor, float or str
        The initial state: a function of points (n, 3), values (m,) at `domain.points`, a number, or a formula in x, y,
        z. Several channels (n, k) or (m, k) are solved for together, with the same conditions and source.
    time : float
        The time at which to stop, > 0.
    conditions : Condition or sequence of Condition, optional
        As in `poisson`. Their values may also be functions of points and time, or formulas in x, y, z and t.
    source : callable, Tensor, float or str, optional
        The source, 0 unless given. It may also be a function of points and time, or a formula in x, y, z and t.
    diffusivity : callable, Tensor, float or str, optional
        As in `poisson`, 1 unless given.
    times : sequence of float, optional
        Moments in (0, time] at which to keep the state. The state at `time` is always kept.
    frames : int, optional
        The number of further states to keep, equally spaced from time 0 to `time`, for an animation.
    steps : int, optional
        The number of equal steps. By default the steps are adapted to `accuracy`.
    accuracy : float, default 1e-5
        The largest estimated error of a step, relative to the size of u.
    method : str, optional
        "tr-bdf2", of second order and L-stable, or the name of another integrator in
        `lamina.pde.integrators.INTEGRATORS`. A `lamina.paper.BandDomain` also knows "euler", the explicit steps of dt =
        0.1 dx^2 of the CVPR 2026 paper, which is the only method of its shell scheme.
    tolerance : float, optional
        The relative residual of the linear solves, as in `poisson`.
    checkpoint : bool, default False
        Whether to keep only few states for gradients. Backward then computes the steps between them again.
    show_progress : bool, optional
        As in `poisson`.

    Returns
    -------
    Solution
        The states at all moments that were asked for; `values` is the last one.

    Raises
    ------
    InputError
        If an argument is invalid.
    SolveError
        If a linear solve does not reach its tolerance.

    Examples
    --------
    A spherical harmonic of degree 2 decays by exp(-6 t):

    >>> import lamina
    >>> domain = lamina.Domain(lamina.Sphere(level=3), spacing=0.3, order=2)
    >>> u = lamina.heat(domain, "x*y", time=0.1, accuracy=1e-3)
    >>> round(float(u.values.max() / domain.points[:, :2].prod(1).max()), 2)
    0.55
    """
    if frames is not None and frames < 2:
        raise InputError(f"frames must be at least 2, the start and the end, got {frames}.")
    domain = as_domain(domain, "heat")
    source = source if source is None else as_data(source, "the source", time=True)
    moments = _moments(time, times, frames or 0)
    known = [*domain.time_methods, *(name for name in INTEGRATORS if domain.has_weak_forms)]
    method = known[0] if method is None else method
    if method not in known:
        raise InputError(f"Unknown method {method!r}; known for this domain: {', '.join(dict.fromkeys(known))}.")
    if steps is not None and steps < 1:
        raise InputError(f"steps must be at least 1, got {steps}.")
    fraction("accuracy", accuracy)
    start = clock.perf_counter()
    if method == "euler":
        integrate, conditions = explicit_steps(domain, conditions), None
        if source is not None:
            raise InputError("Explicit steps know no source; use lamina.Domain.")
    else:
        integrate = INTEGRATORS[method]
    problem = with_source(pose(domain, conditions, diffusivity), source)
    domain, scheme, load = problem.domain, problem.scheme, problem.load
    u = scheme.sample(domain.field(u0, "the initial state", channels=True))
    said = resolution_warnings(domain, u0, "the initial state", lambda: u) if u.ndim == 1 else []
    if source is not None:
        first = (lambda x: source(x, 0.0)) if callable(source) and depends_on_time(source) else source
        shown = domain.load_of(scheme, first, "the source")
        said += resolution_warnings(
            domain, first, "the source", lambda: approximate_unknowns(domain, domain.field(first, "the source"), shown)
        )
    u = problem.started(u)
    size = 1.0
    if u.ndim == 2 and load is not None:
        one = load
        problem = replace(problem, load=lambda t: one(t)[:, None])  # the same for every channel
    elif u.ndim == 2:
        # The error of a step is measured over all channels; small ones shall be as accurate as large ones.
        norms = u.new_tensor([scheme.norm(channel) for channel in u.T])
        size = torch.where(norms > 0, norms, 1.0)
    with progress("heat", show_progress) as update:
        settings = Settings(steps, accuracy, default_tolerance(domain, tolerance), checkpoint, update)
        run = integrate(problem, u / size, moments, settings)
    return Solution(
        domain,
        torch.stack([*([] if frames is None else [u]), *(state * size for state in run.snapshots)]),
        (*(() if frames is None else (0.0,)), *moments),
        cycles=run.cycles,
        residual=run.residual,
        steps=run.steps,
        seconds=clock.perf_counter() - start,
        warnings=tuple(said),
        kept=problem.kept,
    )


@singledispatch
def explicit_steps(domain: Domain, conditions: Sequence[Condition] | Condition | None) -> Integrator:
    """The integrator of explicit steps, which holds conditions in its own way; baselines register theirs."""
    raise InputError('Functions on cut cells take implicit steps; leave method="euler" out.')


def _moments(time: float, times: Sequence[float] | None, frames: int = 0) -> list[float]:
    time = positive("time", time)
    asked = {float(t) for t in (times or ())} | {float(time)}
    for i in range(1, frames):
        moment = time * (i / (frames - 1))
        if min(abs(moment - t) for t in asked) > SAME_MOMENT * time:
            asked.add(moment)
    moments = sorted(asked)
    if moments[0] <= 0 or moments[-1] > time:
        raise InputError(f"times must lie between 0 and {time:g}, got {moments[0]:g} to {moments[-1]:g}.")
    return moments
