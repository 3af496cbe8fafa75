"""Checks of arguments. They are made once, in public functions; inside, the code trusts its callers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lamina.errors import InputError


def positive(name: str, value: object) -> float:
    """The value as a float. Raises InputError unless it is a positive and finite number."""
    if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
        raise InputError(f"{name} must be a positive number, got {value!r}.")
    return float(value)


def positive_integer(name: str, value: object) -> int:
    """The value. Raises InputError unless it is a positive integer."""
    if not (isinstance(value, int) and value > 0):
        raise InputError(f"{name} must be a positive integer, got {value!r}.")
    return value


def fraction(name: str, value: float) -> float:
    """The value of a tolerance or an accuracy. Raises InputError unless it lies between 0 and 1."""
    if not 0 < value < 1:
        raise InputError(f"{name} must lie between 0 and 1, got {value!r}.")
    return value


def returned(values: object, name: str, count: int, *, tails: tuple[str, ...] = ("",)) -> Tensor:
    """The values that a function returned for `count` points. Raises InputError unless their shape is an expected one.

    tails: the dimensions that may follow the first one: "" for one number a point, "k" for any number of channels,
    "3, 3" for tensors.
    """
    if isinstance(values, Tensor):
        shape = tuple(values.shape)
        known = {"": shape == (count,), "k": len(shape) == 2 and shape[0] == count, "3, 3": shape == (count, 3, 3)}
        if any(known[tail] for tail in tails):
            return values
    found = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
    expected = " or ".join(f"({count}, {tail})" if tail else f"({count},)" for tail in tails)
    raise InputError(f"{name} returned {found} for {count} points; expected a tensor of shape {expected}.")


def finite(values: Tensor, name: str, where: str = "") -> Tensor:
    """The values. Raises InputError if some are NaN or infinite. where: the location of the points in messages."""
    bad = int((~torch.isfinite(values)).sum())
    if bad:
        advice = "give its values at domain.points instead" if where else "check it there"
        raise InputError(
            f"{name} is not finite at {bad} of {len(values)} points {where or 'on the surface'}; {advice}."
        )
    return values
