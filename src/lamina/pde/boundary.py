"""From the conditions of a solve to operators that keep them, and the values that these take at every time."""

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
from lamina.grid.interface_curves import PolylineCurve
from lamina.pde.conditions import Condition, Dirichlet, Points, Robin, Value, checked, depends_on_time
from lamina.pde.locations import (
    check_loop,
    condition_name,
    evaluate_location,
    find_curves,
    on_rim,
    refuse_overlap,
    with_fixed_points,
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
from lamina.spaces.nitsche import ConditionsAtPoints, FixedPoints
from lamina.spaces.operators import CutCellOperators
from lamina.spaces.scheme import FLUX, FREE, VALUE


@dataclass(frozen=True)
class KeptConditions:
    """What the conditions of a solve say about its solution."""

    conditions: list[Condition]
    fluxes: Callable[[Tensor, float], Tensor]  # unknowns (n,) and time -> the flux that enters through each condition
    domain: Domain
    regions: tuple[int, ...] = ()  # numbers of the Dirichlet conditions on a part of the surface

    def hold(self, points: Tensor, values: Tensor, time: float) -> Tensor:
        """Values (n,) or (n, k) at points (n, 3), replaced by the given ones on parts with Dirichlet conditions."""
        for number in self.regions:
            c = self.conditions[number]
            rows = evaluate_location(c.where, points, c, number).nonzero()[:, 0]
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
    """The problem on a domain with these conditions, with a diffusivity and with a screening that varies.

    Other kinds of domains register how they keep conditions, with `pose.register`.
    Raises InputError for a condition that holds nowhere, or for two conditions that hold at the same place.
    """
    given = checked(conditions)
    diffusivity = None if diffusivity is None else as_data(diffusivity, "the diffusivity")
    scheme = variational(domain, None, what_needs_cells(diffusivity, screening))
    if given:
        return _with_conditions(domain, scheme, given, diffusivity, screening)
    if diffusivity is None and screening is None:
        return Problem(domain, scheme)
    coefficient, reaction = _coefficients(domain, scheme.cut, diffusivity, screening)
    return Problem(domain, CutCellOperators(scheme.cut, coefficient, screening=reaction))


def what_needs_cells(diffusivity: Diffusivity | None, screening: Coefficient | None) -> str:
    """The option that only functions on cut cells support, for messages."""
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


def kinds_at(domain: Domain, conditions: list[Condition], condition: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """FREE, VALUE or FLUX (n,) and the Robin coefficient (n,) at points (n, 3) of the conditions with these numbers."""
    kind, robin = torch.full_like(condition, FREE), torch.zeros_like(points[:, 0])
    for number, c in enumerate(conditions):
        mask = condition == number
        kind[mask] = VALUE if isinstance(c, Dirichlet) else FLUX
        if isinstance(c, Robin):
            robin[mask] = _coefficient(domain, c)(points[mask])
    return kind, robin


def values_at(domain: Domain, conditions: list[Condition], condition: Tensor, points: Tensor, time: float) -> Tensor:
    """Values (n,) at points (n, 3) of the conditions with these numbers (n,), zero where there is none."""
    g = torch.zeros_like(points[:, 0])
    for number, c in enumerate(conditions):
        rows = (condition == number).nonzero()[:, 0]
        g[rows] = value_at(domain, c, number, points[rows], time)
    return g


def numbers_at(domain: Domain, points: Tensor, conditions: list[Condition], strict: bool) -> Tensor:
    """The number (n,) of the condition that holds at points (n, 3) of rims, -1 for none.

    strict: raise InputError where two conditions hold at one point.
    """
    found = torch.full_like(points[:, 0], -1, dtype=torch.int64)
    for number, c in enumerate(conditions):
        if c.test is not None:
            mask = evaluate_location(c.test, points, c, number)
        elif isinstance(c.where, int):
            rim = domain.rim
            if rim is None:
                mask = torch.zeros_like(found, dtype=torch.bool)
            else:
                check_loop(rim, c, number)
                mask = rim.loop[k_nearest(rim.points, 1, points)[0][:, 0]] == c.where
        else:
            mask = torch.ones_like(found, dtype=torch.bool)
        if strict:
            refuse_overlap(found, mask, conditions, number)
        found[mask] = number
    return found


def _with_conditions(
    domain: Domain,
    scheme: CutCellOperators,
    conditions: list[Condition],
    diffusivity: Diffusivity | None,
    screening: Coefficient | None,
) -> Problem:
    curves, curve_of = find_curves(domain, conditions)
    cut = domain.cut_along(curves) if curves else scheme.cut
    rim = cut.rim
    rim_points = domain.points[:0] if rim is None else rim.points
    at_rim = torch.full_like(rim_points[:, 0], -1, dtype=torch.int64)
    at_part: Tensor | None = None
    fixed_points: FixedPoints | None = None
    held: list[int] = []
    for number, c in enumerate(conditions):
        if isinstance(c.where, Points):
            fixed_points = with_fixed_points(domain, cut, c, number, fixed_points)
            continue
        mask = on_rim(rim, c, number, curve_of.get(number))
        if mask is None:
            at_part = with_region(cut, c, number, at_part)
            held += [number] if isinstance(c, Dirichlet) else []
            continue
        refuse_overlap(at_rim, mask, conditions, number)
        at_rim[mask] = number
    kind, robin = kinds_at(domain, conditions, at_rim, rim_points)
    field = None if diffusivity is None else tensor_field(domain, diffusivity)
    rim_diffusivity = None if field is None or rim is None else field(rim_points)
    part = (None, None) if at_part is None else kinds_at(domain, conditions, at_part, cut.quadrature.points)
    at_points = ConditionsAtPoints(at_rim, kind, robin, rim_diffusivity, at_part, *part, fixed_points)
    coefficient, reaction = _coefficients(domain, cut, diffusivity, screening)
    operators = CutCellOperators(cut, coefficient, at_points, reaction)
    boundary = operators.boundary
    assert boundary is not None
    given = partial(values_at, domain, conditions, boundary.condition, boundary.points)
    load = computed_once_if_steady(lambda time: operators.boundary_load(given(time)), conditions)
    domain = domain.with_scheme(operators)

    def fluxes(u: Tensor, time: float) -> Tensor:
        return operators.boundary_fluxes(u, given(time), len(conditions))

    return Problem(domain, operators, load, kept=KeptConditions(conditions, fluxes, domain, tuple(held)))


def computed_once_if_steady(load: Load, conditions: list[Condition]) -> Load:
    """The load as a function of time, which is computed only once if no condition depends on time."""
    if any(depends_on_time(c.value) for c in conditions):
        return load
    steady = load(0.0)
    return lambda time: steady


def with_source(problem: Problem, source: Value | None) -> Problem:
    """The problem with a source added to the load of its conditions: a function of points, or of points and time."""
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
    name = f"the value of {condition_name(c, number)}"
    value: Value = c.value
    if callable(value):
        function = (lambda p: value(p, time)) if depends_on_time(value) else value
        return domain.field(function, name)(x)
    if c.line is not None and torch.as_tensor(value).shape == (len(c.line),) != domain.points.shape[:1]:
        return _along(c.line.to(x), domain.finite(torch.as_tensor(value).to(x), name), x)
    return domain.finite(domain.field(value, name)(x), name)


def _along(line: Tensor, values: Tensor, x: Tensor) -> Tensor:
    """Values (n,) at the closest points of x (n, 3) on a polyline (k, 3), interpolated linearly between values (k,)."""
    segment, t = PolylineCurve(line, torch.zeros_like(line)).nearest(x)
    return torch.lerp(values[segment], values[segment + 1], t)


def _coefficient(domain: Domain, c: Robin) -> Callable[[Tensor], Tensor]:
    function = domain.field(c.coefficient, "the coefficient of a Robin condition")

    def positive(x: Tensor) -> Tensor:
        values = function(x)
        if not bool((values >= 0).all()):
            raise InputError(f"the coefficient of a Robin condition must be >= 0, got {float(values.min()):.3g}.")
        return values

    return positive
