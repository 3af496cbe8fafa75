"""Where boundary conditions hold: on rims and their loops, curves, points and parts of a surface."""

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
from lamina.pde.conditions import INSIDE, Condition, Dirichlet
from lamina.surfaces.base import ClosestPoints


def called(c: Condition, number: int) -> str:
    return f"condition {number + 1} ({c.name})"


def find_curves(domain: Domain, conditions: list[Condition]) -> tuple[InterfaceCurves, dict[int, int]]:
    """The curves inside the surface that conditions are given on, and the curve of each condition that has one."""
    found: list[InterfaceCurve] = []
    curve_of: dict[int, int] = {}
    for number, c in enumerate(conditions):
        for other in range(number):
            if c.same_place(conditions[other]):
                raise InputError(
                    f"{called(conditions[other], other)} and {called(c, number)} hold at the same place; give every "
                    "place one condition."
                )
        curve = _interface_curve(domain, c, number)
        if curve is not None:
            curve_of[number] = len(found)
            found.append(curve)
    return InterfaceCurves(tuple(found)), curve_of


def _interface_curve(domain: Domain, c: Condition, number: int) -> InterfaceCurve | None:
    if c.test is not None:
        return None if tested(c.test, domain.points, c, number).dtype == torch.bool else LevelCurve(c.test)
    if c.line is None:
        return None
    line = c.line.to(domain.points)
    closed = bool((line[0] == line[-1]).all())
    feet = _near_surface(domain, line, f"{called(c, number)} holds on a polyline that runs")
    line, normals = feet.points, feet.normals
    if closed:
        line, normals = torch.cat([line[:-1], line[:1]]), torch.cat([normals[:-1], normals[:1]])
    distinct = torch.cat([(line[1:] != line[:-1]).any(1), torch.ones(1, dtype=torch.bool, device=line.device)])
    if int(distinct.sum()) < 2:
        raise InputError(f"{called(c, number)} holds on a polyline whose points are all one; give lamina.Points.")
    return PolylineCurve(line[distinct], normals[distinct])


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


def tested(where: Callable[[Tensor], Tensor], x: Tensor, c: Condition, number: int) -> Tensor:
    """where(x), checked."""
    found = returned(where(x), f"the place of {called(c, number)}", len(x))
    if found.dtype != torch.bool and not found.is_floating_point():
        raise InputError(
            f"the place of {called(c, number)} returned {found.dtype}; expected truth values, for where it holds, or "
            "real numbers, for the curve where they vanish."
        )
    return found


def on_rim(rim: Rim | None, c: Condition, number: int, curve: int | None) -> Tensor | None:
    """The rim points (r,) where a condition holds; None if it means a part of the surface.

    Raises InputError if there are none.
    """
    where = c.where
    own = None if rim is None else rim.curve < 0
    if curve is not None:
        mask = None if rim is None else rim.curve == curve
        if mask is None or not bool(mask.any()):
            raise InputError(f"{called(c, number)} holds on a curve that does not meet the surface; check it.")
        return mask
    if c.test is not None:
        if rim is not None and own is not None:
            mask = own & tested(c.test, rim.points, c, number)
            if bool(mask.any()):
                return mask
        return None
    if own is None or rim is None or not bool(own.any()):
        raise InputError(no_rim(c, number))
    if isinstance(where, str):
        return own
    check_loop(rim, c, number)
    return rim.loop == where


def no_rim(c: Condition, number: int) -> str:
    return f"{called(c, number)} holds on the rim, but the surface is closed: it has none. Give {INSIDE}."


def check_loop(rim: Rim, c: Condition, number: int) -> None:
    loops = int(rim.loop.max()) + 1
    if not 0 <= c.where < loops:
        raise InputError(
            f"{called(c, number)} holds on loop {c.where} of the rim, which has {loops}: 0 to {loops - 1}, the "
            "longest first."
        )


def refuse_overlap(condition: Tensor, mask: Tensor, conditions: list[Condition], number: int) -> None:
    twice = mask & (condition >= 0)
    if bool(twice.any()):
        other = int(condition[twice][0])
        raise InputError(
            f"{called(conditions[other], other)} and {called(conditions[number], number)} both hold at "
            f"{int(twice.sum())} of {len(mask)} points of the rim; give every place one condition."
        )


def with_region(cut: CutSurface, c: Condition, number: int, before: Tensor | None) -> Tensor:
    """Conditions (q,) at the points of the surface, with one more."""
    mask = tested(c.where, cut.quadrature.points, c, number)
    if not bool(mask.any()):
        raise InputError(f"{called(c, number)} holds nowhere on the surface or its rims; check its place.")
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


def with_pins(domain: Domain, cut: CutSurface, c: Condition, number: int, before: Pins | None) -> Pins:
    """Elements (p,), places in them (p, 3) and conditions (p,) of single points, with those of one more condition."""
    if not isinstance(c, Dirichlet):
        raise InputError(f"{called(c, number)} holds at points; only Dirichlet may.")
    points = c.where.checked().to(domain.points)
    feet = _near_surface(domain, points, f"{called(c, number)} holds at points")
    element, local = cut.locate(feet)
    new = element, local, torch.full_like(element, number)
    return new if before is None else (
        torch.cat([before[0], new[0]]), torch.cat([before[1], new[1]]), torch.cat([before[2], new[2]])
    )  # fmt: skip
