"""Where conditions hold: on rims and their loops, on curves, at points and on parts of a surface."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lamina.checks import returned
from lamina.domain import Domain
from lamina.errors import InputError
from lamina.grid.cut_surface import CutSurface
from lamina.grid.interface_curves import InterfaceCurve, InterfaceCurves, LevelCurve, PolylineCurve
from lamina.grid.rim import Rim
from lamina.pde.conditions import PLACES_INSIDE, Condition, Dirichlet
from lamina.spaces.nitsche import FixedPoints
from lamina.surfaces.base import ClosestPoints


def condition_name(c: Condition, number: int) -> str:
    """What messages call the condition with this number."""
    return f"condition {number + 1} ({c.name})"


def find_curves(domain: Domain, conditions: list[Condition]) -> tuple[InterfaceCurves, dict[int, int]]:
    """The curves inside the surface that conditions are given on, and the number of the curve of each condition."""
    found: list[InterfaceCurve] = []
    curve_of: dict[int, int] = {}
    for number, c in enumerate(conditions):
        for other in range(number):
            if c.same_place(conditions[other]):
                first, second = condition_name(conditions[other], other), condition_name(c, number)
                raise InputError(f"{first} and {second} hold at the same place; give every place one condition.")
        curve = _interface_curve(domain, c, number)
        if curve is not None:
            curve_of[number] = len(found)
            found.append(curve)
    return InterfaceCurves(tuple(found)), curve_of


def _interface_curve(domain: Domain, c: Condition, number: int) -> InterfaceCurve | None:
    if c.test is not None:
        return None if evaluate_location(c.test, domain.points, c, number).dtype == torch.bool else LevelCurve(c.test)
    if c.line is None:
        return None
    line = c.line.to(domain.points)
    closed = bool((line[0] == line[-1]).all())
    feet = _near_surface(domain, line, f"{condition_name(c, number)} holds on a polyline that runs")
    line, normals = feet.points, feet.normals
    if closed:
        line, normals = torch.cat([line[:-1], line[:1]]), torch.cat([normals[:-1], normals[:1]])
    distinct = torch.cat([(line[1:] != line[:-1]).any(1), torch.ones(1, dtype=torch.bool, device=line.device)])
    if int(distinct.sum()) < 2:
        name = condition_name(c, number)
        raise InputError(f"{name} holds on a polyline whose points are all one; give lamina.Points.")
    return PolylineCurve(line[distinct], normals[distinct])


def _near_surface(domain: Domain, points: Tensor, who: str) -> ClosestPoints:
    """Closest points of points (n, 3). Raises InputError if they are farther from the surface than the spacing."""
    feet = domain.geometry.closest_points(points)
    away = float((feet.points - points).norm(dim=1).max())
    if away > domain.spacing:
        raise InputError(
            f"{who} up to {away:.3g} away from the surface, more than the spacing {domain.spacing:g}; give points on "
            "the surface."
        )
    return feet


def evaluate_location(where: Callable[[Tensor], Tensor], x: Tensor, c: Condition, number: int) -> Tensor:
    """The values (n,) of a location, a function, at points x (n, 3), checked."""
    name = f"the place of {condition_name(c, number)}"
    found = returned(where(x), name, len(x))
    if found.dtype != torch.bool and not found.is_floating_point():
        raise InputError(
            f"{name} returned {found.dtype}; expected truth values, for where it holds, or "
            "real numbers, for the curve where they vanish."
        )
    return found


def on_rim(rim: Rim | None, c: Condition, number: int, curve: int | None) -> Tensor | None:
    """At which points (r,) of the rim a condition holds; None if it holds on a part of the surface instead.

    curve: the number of the curve inside the surface that the condition is given on, if it is given on one.
    Raises InputError if it holds at no point.
    """
    where = c.where
    own = None if rim is None else rim.curve < 0
    if curve is not None:
        mask = None if rim is None else rim.curve == curve
        if mask is None or not bool(mask.any()):
            raise InputError(f"{condition_name(c, number)} holds on a curve that does not meet the surface; check it.")
        return mask
    if c.test is not None:
        if rim is not None and own is not None:
            mask = own & evaluate_location(c.test, rim.points, c, number)
            if bool(mask.any()):
                return mask
        return None
    if own is None or rim is None or not bool(own.any()):
        raise InputError(no_rim_message(c, number))
    if isinstance(where, str):
        return own
    check_loop(rim, c, number)
    return rim.loop == where


def no_rim_message(c: Condition, number: int) -> str:
    name = condition_name(c, number)
    return f"{name} holds on the rim, but the surface is closed: it has none. Give {PLACES_INSIDE}."


def check_loop(rim: Rim, c: Condition, number: int) -> None:
    loops = int(rim.loop.max()) + 1
    if not 0 <= c.where < loops:
        raise InputError(
            f"{condition_name(c, number)} holds on loop {c.where} of the rim, which has {loops}: 0 to {loops - 1}, the "
            "longest first."
        )


def refuse_overlap(condition: Tensor, mask: Tensor, conditions: list[Condition], number: int) -> None:
    twice = mask & (condition >= 0)
    if bool(twice.any()):
        other = int(condition[twice][0])
        raise InputError(
            f"{condition_name(conditions[other], other)} and {condition_name(conditions[number], number)} both hold at "
            f"{int(twice.sum())} of {len(mask)} points of the rim; give every place one condition."
        )


def with_region(cut: CutSurface, c: Condition, number: int, before: Tensor | None) -> Tensor:
    """The number (q,) of the condition at each quadrature point of the surface, with one more condition."""
    mask = evaluate_location(c.where, cut.quadrature.points, c, number)
    if not bool(mask.any()):
        raise InputError(f"{condition_name(c, number)} holds nowhere on the surface or its rims; check its place.")
    region = torch.full_like(cut.element, -1) if before is None else before
    if bool((mask & (region >= 0)).any()):
        other = int(region[mask & (region >= 0)][0])
        raise InputError(
            f"Conditions {other + 1} and {number + 1} both hold on a part of the surface; give every place one "
            "condition."
        )
    region[mask] = number
    return region


def with_fixed_points(
    domain: Domain, cut: CutSurface, c: Condition, number: int, before: FixedPoints | None
) -> FixedPoints:
    """The single points of the conditions before, if there were any, and of one more condition."""
    if not isinstance(c, Dirichlet):
        raise InputError(f"{condition_name(c, number)} holds at points; only Dirichlet may.")
    points = c.where.checked().to(domain.points)
    feet = _near_surface(domain, points, f"{condition_name(c, number)} holds at points")
    element, local = cut.locate(feet)
    new = FixedPoints(element, local, torch.full_like(element, number))
    return new if before is None else before.joined(new)
