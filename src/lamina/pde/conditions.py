"""Boundary conditions: what a solution is held to on the rims of a surface, and on curves and points inside it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor

from lamina.errors import InputError

# A number, values (m,) at domain.points (or (k,) at the k points of a polyline), a function of points (n, 3), or of
# points and time.
Value = float | Tensor | Callable[..., Tensor]
# "rim"; the number of one of its loops; points (k, 3) of a polyline; Points; or a function of points (n, 3) with
# truth values, the part of the rim or of the surface where it holds, or real ones, the curve on the surface where it
# vanishes.
Where = Any


@dataclass(frozen=True)
class Points:
    """Single points (p, 3) on a surface, as a place of a Dirichlet condition.

    In the continuum a point holds nothing: what it does to the solution around it depends on the grid.
    """

    points: Tensor


@dataclass(frozen=True, eq=False)
class Condition:
    """where: "rim", all rims of the surface; a number, one loop of them, 0 being the longest; a polyline (k, 3) on the
    surface, closed if it ends where it began; `Points`; or a function of points (n, 3): one with truth values stands
    for the rim where it holds, or, if it does so nowhere on a rim, for that part of the surface; one with real values
    for the curve inside the surface where it vanishes. Both sides of a curve get the condition, each with its own
    solution.

    value: a number, a function of points (n, 3), a function of points and time, or values (m,) at domain.points.
    """

    where: Where
    value: Value = 0.0

    @property
    def name(self) -> str:
        return type(self).__name__

    @property
    def test(self) -> Callable[[Tensor], Tensor] | None:
        """`where`, if it is a function."""
        return cast("Callable[[Tensor], Tensor]", self.where) if callable(self.where) else None


class Dirichlet(Condition):
    """u = value."""


class Neumann(Condition):
    """The flux out of the surface, diffusivity du/dn with n the tangent that leads off it, is `value`."""


@dataclass(frozen=True, eq=False)
class Robin(Condition):
    """diffusivity du/dn + coefficient u = value, the coefficient a number >= 0 or a function of points."""

    coefficient: float | Callable[[Tensor], Tensor] = 1.0


def checked(conditions: Sequence[Condition] | Condition | None) -> list[Condition]:
    if conditions is None:
        return []
    found = [conditions] if isinstance(conditions, Condition) else list(conditions)
    for c in found:
        if not isinstance(c, Condition) or type(c) is Condition:
            raise InputError(
                f"conditions must be a list of lamina.Dirichlet, Neumann and Robin, got {type(c).__name__} in it."
            )
    return found


def depends_on_time(value: Value) -> bool:
    """Whether a value is a function of points and time."""
    if not callable(value):
        return False
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is inspect.Parameter.empty for p in parameters) >= 2
