"""From conditions to a scheme that keeps them, and the values that it needs at every time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor

from lamina.domain import Domain
from lamina.errors import InputError
from lamina.geometry.neighbours import k_nearest
from lamina.pde.conditions import Condition, Dirichlet, Points, Robin, Value, checked, depends_on_time
from lamina.pde.variational import (
    Coefficient,
    Diffusivity,
    is_number,
    on_quadrature,
    positive_number,
    screening_on,
    tensor_field,
    variational,
)
from lamina.schemes.base import FLUX, FREE, VALUE, Scheme
from lamina.schemes.coupled import Coupled
from lamina.schemes.cutsurface import CutSurface
from lamina.schemes.ghosts import Rule
from lamina.schemes.nitsche import Asked
from lamina.schemes.rim import Rim
from lamina.schemes.scaled import Scaled
from lamina.schemes.seams import LevelSeam, PolylineSeam, Seam, Seams
from lamina.schemes.trace import Trace
from lamina.surfaces.base import ClosestPoints

Load = Callable[[float], Tensor]  # time -> what conditions add to A u


@dataclass(frozen=True)
class Posed:
    """A domain and scheme that keep conditions."""

    domain: Domain
    scheme: Scheme
    load: Load | None  # None where nothing was asked
    started: Callable[[Tensor], Tensor] = lambda u: u  # unknowns of a field, made to keep the conditions at time 0


def posed(
    domain: Domain,
    conditions: Sequence[Condition] | Condition | None,
    diffusivity: Diffusivity | None,
    screening: Coefficient | None = None,
) -> Posed:
    """The domain with operators that keep the conditions, with a diffusivity and a screening that varies.

    Raises InputError for conditions that hold nowhere, or two of which hold at one place.
    """
    asked = checked(conditions)
    if not asked:
        if diffusivity is None and screening is None:
            return Posed(domain, domain.scheme, None)
        if screening is None and isinstance(domain.scheme, Coupled) and is_number(diffusivity):
            return Posed(domain, cast(Scheme, Scaled(domain.scheme, positive_number(diffusivity))), None)
        what = "a diffusivity" if screening is None else "a screening that varies"
        domain, trace = variational(domain, None, what)
        coefficient, reaction = _coefficients(domain, trace.cut, diffusivity, screening)
        return Posed(domain, Trace(trace.cut, coefficient, screening=reaction), None)
    plain = diffusivity is None and screening is None
    if isinstance(domain.scheme, Coupled) and plain and _all_on_rims(domain, domain.scheme, asked):
        return _on_coupled(domain, domain.scheme, asked)
    what = "conditions on curves, points or parts of a surface" if plain else "a coefficient that varies"
    domain, _ = variational(domain, None, "a diffusivity" if diffusivity is not None else what)
    return _on_trace(domain, asked, diffusivity, screening)


def _coefficients(
    domain: Domain, cut: CutSurface, diffusivity: Diffusivity | None, screening: Coefficient | None
) -> tuple[Tensor | None, Tensor | None]:
    """Diffusivity and screening at the points of a cut surface."""
    field = None if diffusivity is None else tensor_field(domain, diffusivity)
    return (
        None if field is None else on_quadrature(field, cut.quadrature),
        None if screening is None else screening_on(domain, screening, cut.quadrature),
    )


def _all_on_rims(domain: Domain, scheme: Coupled, conditions: list[Condition]) -> bool:
    """Whether conditions hold on rims only."""
    ghosts = scheme.levels[0].ghosts
    for number, c in enumerate(conditions):
        if c.test is not None:
            found = _test(c.test, domain.points if ghosts is None else ghosts.rim, c, number)
            if ghosts is None or found.dtype != torch.bool or not bool(found.any()):
                return False
        elif not isinstance(c.where, str | int):
            return False
    return True


def _on_coupled(domain: Domain, scheme: Coupled, conditions: list[Condition]) -> Posed:
    rules: list[Rule | None] = []
    finest = torch.zeros(0, dtype=torch.int64)
    held = torch.zeros(scheme.component_count, dtype=torch.bool, device=domain.points.device)
    for level in scheme.levels:
        ghosts = level.ghosts
        if ghosts is None:
            rules.append(None)
            continue
        condition = _at_places(domain, ghosts.rim, conditions, strict=not rules)
        kind, robin = _kinds(domain, conditions, condition, ghosts.rim)
        if not rules:
            finest = condition
            held[level.band.component[ghosts.rows[(kind == VALUE) | (robin > 0)]]] = True
        rules.append(Rule.make(ghosts, kind, robin, scheme.rim_order))
    ghosts = scheme.levels[0].ghosts
    if ghosts is None:
        raise InputError(f"{_called(conditions[0], 0)} holds on the rim, and the surface has none; give a curve on it.")
    new = scheme.following(rules, held)

    given = partial(_values, domain, conditions, finest, ghosts.rim)
    load = _steady(lambda time: new.boundary_load(given(time)), conditions)
    return Posed(domain.with_scheme(new), new, load, lambda u: new.with_ghosts(u, given(0.0)))


def _kinds(domain: Domain, conditions: list[Condition], condition: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """What is asked (n,) at places (n, 3) by the conditions with these numbers (n,), and coefficients of Robin (n,)."""
    kind, robin = torch.full_like(condition, FREE), torch.zeros_like(places[:, 0])
    for number, c in enumerate(conditions):
        mask = condition == number
        kind[mask] = VALUE if isinstance(c, Dirichlet) else FLUX
        if isinstance(c, Robin):
            robin[mask] = _coefficient(domain, c)(places[mask])
    return kind, robin


def _values(domain: Domain, conditions: list[Condition], condition: Tensor, places: Tensor, time: float) -> Tensor:
    """Values (n,) at places (n, 3) of the conditions with these numbers (n,), zero for none."""
    g = torch.zeros_like(places[:, 0])
    for number, c in enumerate(conditions):
        rows = (condition == number).nonzero()[:, 0]
        g[rows] = value_at(domain, c, number, places[rows], time)
    return g


def _at_places(domain: Domain, places: Tensor, conditions: list[Condition], strict: bool) -> Tensor:
    """Number (n,) of the condition that holds at places (n, 3) on rims, -1 for none; strict: refuse bad ones."""
    found = torch.full_like(places[:, 0], -1, dtype=torch.int64)
    for number, c in enumerate(conditions):
        if c.test is not None:
            mask = _test(c.test, places, c, number)
        elif isinstance(c.where, int):
            rim = domain.rim
            if rim is None:
                mask = torch.zeros_like(found, dtype=torch.bool)
            else:
                _check_loop(rim, c, number)
                mask = rim.loop[k_nearest(rim.points, 1, places)[0][:, 0]] == c.where
        else:
            _check_name(c, number)
            mask = torch.ones_like(found, dtype=torch.bool)
        if strict:
            _refuse_overlap(found, mask, conditions, number)
        found[mask] = number
    return found


def _on_trace(
    domain: Domain, conditions: list[Condition], diffusivity: Diffusivity | None, screening: Coefficient | None
) -> Posed:
    scheme = domain.scheme
    assert isinstance(scheme, Trace)
    seams, curve_of = _seams(domain, conditions)
    cut = domain.cut_along(seams) if seams else scheme.cut
    rim = cut.rim
    places = domain.points[:0] if rim is None else rim.points
    condition = torch.full_like(places[:, 0], -1, dtype=torch.int64)
    region = pins = None
    for number, c in enumerate(conditions):
        if isinstance(c.where, Points):
            pins = _with_pins(domain, cut, c, number, pins)
            continue
        mask = _on_rim(rim, c, number, curve_of.get(number))
        if mask is None:
            region = _with_region(cut, c, number, region)
            continue
        _refuse_overlap(condition, mask, conditions, number)
        condition[mask] = number
    kind, robin = _kinds(domain, conditions, condition, places)
    field = None if diffusivity is None else tensor_field(domain, diffusivity)
    conductivity = None if field is None or rim is None else field(places)
    ask = Asked(condition, kind, robin, conductivity, region, *(pins or ()))
    coefficient, reaction = _coefficients(domain, cut, diffusivity, screening)
    trace = Trace(cut, coefficient, ask, reaction)
    boundary = trace.boundary
    assert boundary is not None
    given = partial(_values, domain, conditions, boundary.condition, boundary.points)
    load = _steady(lambda time: trace.boundary_load(given(time)), conditions)
    return Posed(domain.with_scheme(trace), trace, load)


def _steady(load: Load, conditions: list[Condition]) -> Load:
    """The load, found once if it does not depend on time."""
    if any(depends_on_time(c.value) for c in conditions):
        return load
    steady = load(0.0)
    return lambda time: steady


def with_source(domain: Domain, scheme: Scheme, load: Load | None, source: Value | None) -> Load | None:
    """The load of boundary conditions and of a source, a function of points, or of points and time."""
    if source is None:
        return load
    if callable(source) and depends_on_time(source):
        function = source

        def own(time: float) -> Tensor:
            return scheme.load(domain.field(lambda x: function(x, time), "the source"))

    else:
        steady = domain.load_of(scheme, source, "the source")

        def own(time: float) -> Tensor:
            return steady

    return own if load is None else lambda time: load(time) + own(time)


def value_at(domain: Domain, c: Condition, number: int, x: Tensor, time: float) -> Tensor:
    """The value (n,) of a condition at points x (n, 3)."""
    name = f"the value of {_called(c, number)}"
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


def _called(c: Condition, number: int) -> str:
    return f"condition {number + 1} ({c.name})"


# Where conditions hold


def _seams(domain: Domain, conditions: list[Condition]) -> tuple[Seams, dict[int, int]]:
    """The curves inside the surface that conditions are given on, and the seam of each condition that has one."""
    found: list[Seam] = []
    curve_of: dict[int, int] = {}
    for number, c in enumerate(conditions):
        for other in range(number):
            if c.same_place(conditions[other]):
                raise InputError(
                    f"{_called(conditions[other], other)} and {_called(c, number)} hold at the same place; give every "
                    "place one condition."
                )
        seam = _seam(domain, c, number)
        if seam is not None:
            curve_of[number] = len(found)
            found.append(seam)
    return Seams(tuple(found)), curve_of


def _seam(domain: Domain, c: Condition, number: int) -> Seam | None:
    if c.test is not None:
        return None if _test(c.test, domain.points, c, number).dtype == torch.bool else LevelSeam(c.test)
    if c.line is None:
        return None
    line = c.line.to(domain.points)
    closed = bool((line[0] == line[-1]).all())
    feet = _near_surface(domain, line, f"{_called(c, number)} holds on a polyline that runs")
    line, normals = feet.points, feet.normals
    if closed:
        line, normals = torch.cat([line[:-1], line[:1]]), torch.cat([normals[:-1], normals[:1]])
    distinct = torch.cat([(line[1:] != line[:-1]).any(1), torch.ones(1, dtype=torch.bool, device=line.device)])
    if int(distinct.sum()) < 2:
        raise InputError(f"{_called(c, number)} holds on a polyline whose points are all one; give lamina.Points.")
    return PolylineSeam(line[distinct], normals[distinct])


def _near_surface(domain: Domain, points: Tensor, who: str) -> ClosestPoints:
    """Feet of points (n, 3). Raises InputError if they are farther from the surface than the spacing."""
    feet = domain.geometry.closest_points(points)
    away = float((feet.points - points).norm(dim=1).max())
    if away > domain.spacing:
        raise InputError(
            f"{who} up to {away:.3g} away from the surface, more than the spacing {domain.spacing:g}; give points on "
            "the surface."
        )
    return feet


def _test(where: Callable[[Tensor], Tensor], x: Tensor, c: Condition, number: int) -> Tensor:
    """where(x), checked."""
    found = where(x)
    if not isinstance(found, Tensor) or found.shape != (len(x),):
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise InputError(
            f"the place of {_called(c, number)} returned {shape} for {len(x)} points; expected a tensor of shape "
            f"({len(x)},)."
        )
    if found.dtype != torch.bool and not found.is_floating_point():
        raise InputError(
            f"the place of {_called(c, number)} returned {found.dtype}; expected truth values, for where it holds, or "
            "real numbers, for the curve where they vanish."
        )
    return found


def _on_rim(rim: Rim | None, c: Condition, number: int, curve: int | None) -> Tensor | None:
    """The rim points (r,) where a condition holds; None if it means a part of the surface.

    Raises InputError if there are none.
    """
    where = c.where
    own = None if rim is None else rim.curve < 0
    if curve is not None:
        mask = None if rim is None else rim.curve == curve
        if mask is None or not bool(mask.any()):
            raise InputError(f"{_called(c, number)} holds on a curve that does not meet the surface; check it.")
        return mask
    if c.test is not None:
        if rim is not None and own is not None:
            mask = own & _test(c.test, rim.points, c, number)
            if bool(mask.any()):
                return mask
        return None
    if own is None or rim is None or not bool(own.any()):
        raise InputError(
            f"{_called(c, number)} holds on the rim, and the surface has none; give a curve on it instead."
        )
    if isinstance(where, str):
        _check_name(c, number)
        return own
    _check_loop(rim, c, number)
    return rim.loop == where


def _check_name(c: Condition, number: int) -> None:
    if c.where != "rim":
        raise InputError(f'{_called(c, number)} holds on {c.where!r}; the only name known is "rim".')


def _check_loop(rim: Rim, c: Condition, number: int) -> None:
    loops = int(rim.loop.max()) + 1
    if not 0 <= c.where < loops:
        raise InputError(
            f"{_called(c, number)} holds on loop {c.where} of the rim, which has {loops}: 0 to {loops - 1}, the "
            "longest first."
        )


def _refuse_overlap(condition: Tensor, mask: Tensor, conditions: list[Condition], number: int) -> None:
    twice = mask & (condition >= 0)
    if bool(twice.any()):
        other = int(condition[twice][0])
        raise InputError(
            f"{_called(conditions[other], other)} and {_called(conditions[number], number)} both hold at "
            f"{int(twice.sum())} of {len(mask)} points of the rim; give every place one condition."
        )


def _with_region(cut: CutSurface, c: Condition, number: int, before: Tensor | None) -> Tensor:
    """Conditions (q,) at the points of the surface, with one more."""
    if not isinstance(c, Dirichlet):
        raise InputError(f"{_called(c, number)} holds on no rim; only Dirichlet may hold on a part of a surface.")
    mask = _test(c.where, cut.quadrature.points, c, number)
    if not bool(mask.any()):
        raise InputError(f"{_called(c, number)} holds nowhere on the surface or its rims; check its place.")
    region = torch.full_like(cut.element, -1) if before is None else before
    if bool((mask & (region >= 0)).any()):
        other = int(region[mask & (region >= 0)][0])
        raise InputError(
            f"Conditions {other + 1} and {number + 1} both hold on a part of the surface; give every place one "
            "condition."
        )
    region[mask] = number
    return region


Pins = tuple[Tensor, Tensor, Tensor]


def _with_pins(domain: Domain, cut: CutSurface, c: Condition, number: int, before: Pins | None) -> Pins:
    """Elements (p,), places in them (p, 3) and conditions (p,) of single points, with those of one more condition."""
    if not isinstance(c, Dirichlet):
        raise InputError(f"{_called(c, number)} holds at points; only Dirichlet may.")
    points = c.where.checked().to(domain.points)
    feet = _near_surface(domain, points, f"{_called(c, number)} holds at points")
    element, local = cut.locate(feet)
    new = element, local, torch.full_like(element, number)
    return new if before is None else (
        torch.cat([before[0], new[0]]), torch.cat([before[1], new[1]]), torch.cat([before[2], new[2]])
    )  # fmt: skip


def _coefficient(domain: Domain, c: Robin) -> Callable[[Tensor], Tensor]:
    function = domain.field(c.coefficient, "the coefficient of a Robin condition")

    def positive(x: Tensor) -> Tensor:
        values = function(x)
        if not bool((values >= 0).all()):
            raise InputError(f"the coefficient of a Robin condition must be >= 0, got {float(values.min()):.3g}.")
        return values

    return positive
