"""Conditions on a solution: on the rims of a surface, and on curves, points and parts inside it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from lamina.errors import InputError
from lamina.expression import as_data, parse

# A number, values (m,) at domain.points (or values (k,) at the points of a polyline), a function of points (n, 3), a
# function of points and time, or a formula in x, y, z and t.
Value = float | str | Tensor | Callable[..., Tensor]
# "rim", the number of a loop of the rim, points (k, 3) of a polyline, Points, a formula, or a function of points (n,
# 3): see Condition.
Where = Any


@dataclass(frozen=True)
class Points:
    """Single points on a surface, as the place of a `Dirichlet` condition.

    In the continuous problem the value at a point has no effect. Its effect on the discrete solution depends on the
    grid.

    Parameters
    ----------
    points : Tensor or array_like
        The points (p, 3), at most one spacing away from the surface.

    Examples
    --------
    >>> import lamina
    >>> domain = lamina.Domain(lamina.Sphere(level=3), spacing=0.3, order=2)
    >>> u = lamina.poisson(domain, 0.0, lamina.Dirichlet(lamina.Points([[0.0, 0.0, 1.0]]), 5.0))
    >>> bool((u.values - 5).abs().max() < 1e-3)
    True
    """

    points: Tensor

    def checked(self) -> Tensor:
        """The points (p, 3). Raises InputError if they are not points."""
        points = _array(self.points)
        if points is None or points.shape[-1:] != (3,) or points.ndim > 2 or not len(points):
            shape = "no points" if points is None else f"shape {tuple(points.shape)}"
            raise InputError(f"holds at lamina.Points of {shape}; give points (p, 3).")
        if not bool(torch.isfinite(points).all()):
            raise InputError("holds at lamina.Points with coordinates that are NaN or infinite; check them.")
        return points.reshape(-1, 3)


def _array(data: Any) -> Tensor | None:
    """data as a floating-point tensor; None if this is impossible."""
    try:
        found = data if isinstance(data, Tensor) else torch.from_numpy(np.asarray(data, dtype=np.float64))
    except (TypeError, ValueError, RuntimeError):
        return None
    return found if found.is_floating_point() else found.double()


# The places inside a surface where a condition may hold, for messages.
PLACES_INSIDE = (
    'a formula or function ("z > 0.5" is that part of the surface, "z - 0.5" the curve where it vanishes), a polyline '
    "of points (k, 3), or lamina.Points"
)


def read_place(text: str) -> str | Callable[[Tensor], Tensor]:
    """ "rim", or the function that a formula stands for: with truth values for "z > 0", with real values for "z - 0.3".

    Raises InputError, whose message is the rest of a sentence, if the text is neither.
    """
    if text.strip() == "rim":
        return "rim"
    try:
        found = parse(text)
    except InputError as error:
        raise InputError(
            f'holds on {text!r}; expected "rim", where the surface ends (a closed one has no rim), the number of one '
            f"of its loops, {PLACES_INSIDE}. As a formula it cannot be read: {error}"
        ) from None
    return found.holds if found.is_comparison else found


@dataclass(frozen=True, eq=False)
class Condition:
    """The common base of `Dirichlet`, `Neumann` and `Robin`: where a condition holds, and its value.

    Both sides of a curve inside the surface get the condition, and each side has its own solution.

    Parameters
    ----------
    where : str, int, Tensor, Points or callable
        Where the condition holds:

        - "rim": all rims of the surface; a number: one loop of the rim, 0 being the longest.
        - Points (k, 3): a polyline on the surface, closed if it ends where it began.
        - `Points`: single points, for `Dirichlet` only.
        - A function of points (n, 3) with truth values: the part of the rim where it is true, or, if it is true nowhere
          on a rim, that part of the surface.
        - A function of points (n, 3) with real values: the curve inside the surface where it vanishes.
        - A formula stands for a function: "z > 0.5" has truth values, "z - 0.5" real values.
    value : float, str, Tensor or callable, default 0.0
        A number, a function of points (n, 3), a function of points and time, a formula in x, y, z and t, values (m,) at
        `domain.points`, or values (k,) at the points of a polyline.
    """

    where: Where
    value: Value = 0.0

    @property
    def name(self) -> str:
        """The name of the kind of condition."""
        return type(self).__name__

    @cached_property
    def line(self) -> Tensor | None:
        """`where` if it is a polyline (k, 3), otherwise None. Raises InputError if it is not a place at all."""
        if isinstance(self.where, str | int | Points) or callable(self.where):
            return None
        found = None if self.where is None else _array(self.where)
        if found is None or found.ndim != 2 or found.shape[1] != 3 or len(found) < 2:
            got = f"{type(self.where).__name__}" if found is None else f"an array of shape {tuple(found.shape)}"
            raise InputError(
                f'holds on {got}; expected "rim", the number of a loop, a formula, a function, a '
                "polyline of at least two points (k, 3), or lamina.Points."
            )
        if not bool(torch.isfinite(found).all()):
            raise InputError("holds on a polyline with NaN or infinite points; check them.")
        return found

    def read(self) -> Condition:
        """The condition with functions instead of formulas. Raises InputError, with the rest of a sentence."""
        where = read_place(self.where) if isinstance(self.where, str) else self.where
        value = as_data(self.value, "has a value", time=True) if isinstance(self.value, str) else self.value
        return self if where is self.where and value is self.value else replace(self, where=where, value=value)

    def check(self) -> None:
        """Raise InputError, with the rest of a sentence, if the place or the value is invalid."""
        _ = self.line
        if isinstance(self.where, Points):
            self.where.checked()
        known = callable(self.value) or isinstance(self.value, str) or _array(self.value) is not None
        if self.value is None or not known:
            raise InputError(f"has the value {self.value!r}; expected a number, a formula, an array or a function.")

    def same_place(self, other: Condition) -> bool:
        """Whether both are given the same place in the same way. Other overlaps are found on the rim only."""
        if self.where is other.where and not isinstance(self.where, str | int):
            return True
        if isinstance(self.where, Points) and isinstance(other.where, Points):
            return bool((torch.cdist(self.where.checked().double(), other.where.checked().double()) == 0).any())
        a, b = self.line, other.line
        return a is not None and b is not None and a.shape == b.shape and bool((a == b).all())

    @property
    def test(self) -> Callable[[Tensor], Tensor] | None:
        """`where` if it is a function, otherwise None."""
        return cast("Callable[[Tensor], Tensor]", self.where) if callable(self.where) else None


class Dirichlet(Condition):
    """The condition u = value.

    Parameters
    ----------
    where : str, int, Tensor, Points or callable
        Where the condition holds: "rim" (all rims), the number of one loop of the rim (0 is the longest), points (k, 3)
        of a polyline on the surface, `Points`, a formula, or a function of points; see
        `lamina.pde.conditions.Condition`.
    value : float, str, Tensor or callable, default 0.0
        The value of u: a number, a formula, a function, or values (m,) at `domain.points`.

    Examples
    --------
    >>> import lamina
    >>> half = lamina.clip(lamina.Sphere(level=3), lambda p: p[:, 2])
    >>> domain = lamina.Domain(half, spacing=0.3, order=2)
    >>> u = lamina.poisson(domain, 0.0, lamina.Dirichlet("rim", 3.0))
    >>> bool((u.values - 3).abs().max() < 1e-6)
    True
    """


class Neumann(Condition):
    """The condition diffusivity du/dn = value: the flux out of the surface.

    n is the tangent of the surface that points off it, at right angles to the rim.

    Parameters
    ----------
    where : str, int, Tensor, Points or callable
        Where the condition holds: "rim" (all rims), the number of one loop of the rim (0 is the longest), points (k, 3)
        of a polyline on the surface, `Points`, a formula, or a function of points; see
        `lamina.pde.conditions.Condition`.
    value : float, str, Tensor or callable, default 0.0
        The flux: a number, a formula, a function, or values (m,) at `domain.points`.

    Examples
    --------
    The flux through the rim of a half sphere balances the right-hand side:

    >>> import lamina
    >>> half = lamina.clip(lamina.Sphere(level=3), lambda p: p[:, 2])
    >>> domain = lamina.Domain(half, spacing=0.3, order=2)
    >>> u = lamina.poisson(domain, 1.0, lamina.Neumann("rim", 1.0))
    >>> round(float(u.fluxes[0]), 1)
    6.3
    """


@dataclass(frozen=True, eq=False)
class Robin(Condition):
    """The condition diffusivity du/dn + coefficient u = value, with n as in `Neumann`.

    Parameters
    ----------
    where : str, int, Tensor, Points or callable
        Where the condition holds: "rim" (all rims), the number of one loop of the rim (0 is the longest), points (k, 3)
        of a polyline on the surface, `Points`, a formula, or a function of points; see
        `lamina.pde.conditions.Condition`.
    value : float, str, Tensor or callable, default 0.0
        The right-hand side: a number, a formula, a function, or values (m,) at `domain.points`.
    coefficient : float, str or callable, default 1.0
        The factor of u, a number >= 0, a formula, or a function of points.

    Examples
    --------
    >>> import lamina
    >>> half = lamina.clip(lamina.Sphere(level=3), lambda p: p[:, 2])
    >>> domain = lamina.Domain(half, spacing=0.3, order=2)
    >>> u = lamina.poisson(domain, 0.0, lamina.Robin("rim", 6.0, coefficient=2.0))
    >>> bool((u.values - 3).abs().max() < 1e-6)
    True
    """

    coefficient: float | str | Callable[[Tensor], Tensor] = 1.0

    def read(self) -> Condition:
        if not isinstance(self.coefficient, str):
            return Condition.read(self)
        return Condition.read(replace(self, coefficient=as_data(self.coefficient, "has a coefficient")))


def checked(conditions: Sequence[Condition] | Condition | None) -> list[Condition]:
    """The conditions as a list, with functions instead of formulas. Raises InputError if one is invalid."""
    if conditions is None:
        return []
    if not isinstance(conditions, Condition | list | tuple):
        raise InputError(
            f"conditions must be a list of lamina.Dirichlet, Neumann and Robin, got {type(conditions).__name__}."
        )
    found = [conditions] if isinstance(conditions, Condition) else list(conditions)
    for number, c in enumerate(found):
        if not isinstance(c, Condition) or type(c) is Condition:
            raise InputError(
                f"conditions must be a list of lamina.Dirichlet, Neumann and Robin, got {type(c).__name__} in it."
            )
        try:
            c.check()
            found[number] = c.read()
        except InputError as error:
            raise InputError(f"condition {number + 1} ({c.name}) {error}") from None
    return found


def depends_on_time(value: Value) -> bool:
    """Whether a value is a function of points and time, rather than of points only."""
    if not callable(value):
        return False
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is inspect.Parameter.empty for p in parameters) >= 2
