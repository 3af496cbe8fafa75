"""From conditions to a scheme that keeps them, and the values that it needs at every time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, singledispatch

import torch
from torch import Tensor

from lamina.domain import Domain
from lamina.errors import InputError
from lamina.expression import as_data
from lamina.grid.cut_surface import CutSurface
from lamina.grid.interface_curves import PolylineSeam
from lamina.pde.conditions import Condition, Dirichlet, Points, Robin, Value, checked, depends_on_time
from lamina.pde.locations import (
    called,
    check_loop,
    find_seams,
    on_rim,
    refuse_overlap,
    tested,
    with_pins,
    with_region,
)
from lamina.pde.problem import Load, Problem
from lamina.pde.variational import (
    Coefficient,
    Diffusivity,
    on_quadrature,
    screening_on,
    tensor_field,
    variational,
)
from lamina.search.neighbours import k_nearest
from lamina.spaces.nitsche import Asked
from lamina.spaces.scheme import FLUX, FREE, VALUE
from lamina.spaces.trace import Trace


@dataclass(frozen=True)
class KeptConditions:
    """What the conditions of a solve say about its solution."""

    conditions: list[Condition]
    fluxes: Callable[[Tensor, float], Tensor]  # unknowns (n,) and time -> what enters through each condition
    domain: Domain
    regions: tuple[int, ...] = ()  # numbers of the conditions that hold the values on a part of the surface

    def hold(self, points: Tensor, values: Tensor, time: float) -> Tensor:
        """Values (n,) or (n, k) at points (n, 3), with exactly those that a part of the surface is held at."""
        for number in self.regions:
            c = self.conditions[number]
            rows = tested(c.where, points, c, number).nonzero()[:, 0]
            held = value_at(self.domain, c, number, points[rows], time).to(values)
            values = values.index_copy(0, rows, held if values.ndim == 1 else held[:, None].expand(-1, values.shape[1]))
        return values


@singledispatch
def pose(
    domain: Domain,
    conditions: Sequence[Condition] | Condition | None,
    diffusivity: Diffusivity | None,
    screening: Coefficient | None = None,
) -> Problem:
    """The domain with operators that keep the conditions, with a diffusivity and a screening that varies.

    Other kinds of domains register how they keep conditions: `pose.register`.
    Raises InputError for conditions that hold nowhere, or two of which hold at one place.
    """
    asked = checked(conditions)
    diffusivity = None if diffusivity is None else as_data(diffusivity, "the diffusivity")
    scheme = variational(domain, None, what_needs_cells(diffusivity, screening))
    if asked:
        return _with_conditions(domain, scheme, asked, diffusivity, screening)
    if diffusivity is None and screening is None:
        return Problem(domain, scheme)
    coefficient, reaction = _coefficients(domain, scheme.cut, diffusivity, screening)
    return Problem(domain, Trace(scheme.cut, coefficient, screening=reaction))


def what_needs_cells(diffusivity: Diffusivity | None, screening: Coefficient | None) -> str:
    """What only functions on cut cells can keep, for messages."""
    if diffusivity is not None:
        return "a diffusivity"
    if screening is not None:
        return "a screening that varies"
    return "conditions on curves, points or parts of a surface"


def _coefficients(
    domain: Domain, cut: CutSurface, diffusivity: Diffusivity | None, screening: Coefficient | None
) -> tuple[Tensor | None, Tensor | None]:
    """Diffusivity and screening at the points of a cut surface."""
    field = None if diffusivity is None else tensor_field(domain, diffusivity)
    return (
        None if field is None else on_quadrature(field, cut.quadrature),
        None if screening is None else screening_on(domain, screening, cut.quadrature),
    )


def kinds(domain: Domain, conditions: list[Condition], condition: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """What is asked (n,) at places (n, 3) by the conditions with these numbers (n,), and coefficients of Robin (n,)."""
    kind, robin = torch.full_like(condition, FREE), torch.zeros_like(places[:, 0])
    for number, c in enumerate(conditions):
        mask = condition == number
        kind[mask] = VALUE if isinstance(c, Dirichlet) else FLUX
        if isinstance(c, Robin):
            robin[mask] = _coefficient(domain, c)(places[mask])
    return kind, robin


def values_at(domain: Domain, conditions: list[Condition], condition: Tensor, places: Tensor, time: float) -> Tensor:
    """Values (n,) at places (n, 3) of the conditions with these numbers (n,), zero for none."""
    g = torch.zeros_like(places[:, 0])
    for number, c in enumerate(conditions):
        rows = (condition == number).nonzero()[:, 0]
        g[rows] = value_at(domain, c, number, places[rows], time)
    return g


def at_places(domain: Domain, places: Tensor, conditions: list[Condition], strict: bool) -> Tensor:
    """Number (n,) of the condition that holds at places (n, 3) on rims, -1 for none; strict: refuse bad ones."""
    found = torch.full_like(places[:, 0], -1, dtype=torch.int64)
    for number, c in enumerate(conditions):
        if c.test is not None:
            mask = tested(c.test, places, c, number)
        elif isinstance(c.where, int):
            rim = domain.rim
            if rim is None:
                mask = torch.zeros_like(found, dtype=torch.bool)
            else:
                check_loop(rim, c, number)
                mask = rim.loop[k_nearest(rim.points, 1, places)[0][:, 0]] == c.where
        else:
            mask = torch.ones_like(found, dtype=torch.bool)
        if strict:
            refuse_overlap(found, mask, conditions, number)
        found[mask] = number
    return found


def _with_conditions(
    domain: Domain,
    scheme: Trace,
    conditions: list[Condition],
    diffusivity: Diffusivity | None,
    screening: Coefficient | None,
) -> Problem:
    seams, curve_of = find_seams(domain, conditions)
    cut = domain.cut_along(seams) if seams else scheme.cut
    rim = cut.rim
    places = domain.points[:0] if rim is None else rim.points
    condition = torch.full_like(places[:, 0], -1, dtype=torch.int64)
    region = pins = None
    held: list[int] = []
    for number, c in enumerate(conditions):
        if isinstance(c.where, Points):
            pins = with_pins(domain, cut, c, number, pins)
            continue
        mask = on_rim(rim, c, number, curve_of.get(number))
        if mask is None:
            region = with_region(cut, c, number, region)
            held += [number] if isinstance(c, Dirichlet) else []
            continue
        refuse_overlap(condition, mask, conditions, number)
        condition[mask] = number
    kind, robin = kinds(domain, conditions, condition, places)
    field = None if diffusivity is None else tensor_field(domain, diffusivity)
    conductivity = None if field is None or rim is None else field(places)
    parts = (None, None) if region is None else kinds(domain, conditions, region, cut.quadrature.points)
    ask = Asked(condition, kind, robin, conductivity, region, *parts, *(pins or ()))
    coefficient, reaction = _coefficients(domain, cut, diffusivity, screening)
    trace = Trace(cut, coefficient, ask, reaction)
    boundary = trace.boundary
    assert boundary is not None
    given = partial(values_at, domain, conditions, boundary.condition, boundary.points)
    load = steady(lambda time: trace.boundary_load(given(time)), conditions)
    domain = domain.with_scheme(trace)

    def fluxes(u: Tensor, time: float) -> Tensor:
        return trace.boundary_fluxes(u, given(time), len(conditions))

    return Problem(domain, trace, load, kept=KeptConditions(conditions, fluxes, domain, tuple(held)))


def steady(load: Load, conditions: list[Condition]) -> Load:
    """The load, found once if it does not depend on time."""
    if any(depends_on_time(c.value) for c in conditions):
        return load
    steady = load(0.0)
    return lambda time: steady


def with_source(problem: Problem, source: Value | None) -> Problem:
    """The problem with a source, a function of points, or of points and time, besides the load of its conditions."""
    if source is None:
        return problem
    domain, scheme, load = problem.domain, problem.scheme, problem.load
    if callable(source) and depends_on_time(source):
        function = source

        def own(time: float) -> Tensor:
            return scheme.load(domain.field(lambda x: function(x, time), "the source"))

    else:
        constant = domain.load_of(scheme, source, "the source")

        def own(time: float) -> Tensor:
            return constant

    return replace(problem, load=own if load is None else lambda time: load(time) + own(time))


def value_at(domain: Domain, c: Condition, number: int, x: Tensor, time: float) -> Tensor:
    """The value (n,) of a condition at points x (n, 3)."""
    name = f"the value of {called(c, number)}"
    value: Value = c.value
    if callable(value):
        function = (lambda p: value(p, time)) if depends_on_time(value) else value
        return domain.field(function, name)(x)
    if c.line is not None and torch.as_tensor(value).shape == (len(c.line),) != domain.points.shape[:1]:
        return _along(c.line.to(x), domain.finite(torch.as_tensor(value).to(x), name), x)
    return domain.finite(domain.field(value, name)(x), name)


def _along(line: Tensor, values: Tensor, x: Tensor) -> Tensor:
    """Values (n,) at the feet of x (n, 3) on a polyline (k, 3), linear between those (k,) at its points."""
    segment, t = PolylineSeam(line, torch.zeros_like(line)).nearest(x)
    return torch.lerp(values[segment], values[segment + 1], t)


def _coefficient(domain: Domain, c: Robin) -> Callable[[Tensor], Tensor]:
    function = domain.field(c.coefficient, "the coefficient of a Robin condition")

    def positive(x: Tensor) -> Tensor:
        values = function(x)
        if not bool((values >= 0).all()):
            raise InputError(f"the coefficient of a Robin condition must be >= 0, got {float(values.min()):.3g}.")
        return values

    return positive
