"""Errors of a computed field: NMAE, NMaxE and NRMSE are defined here and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from lamina.errors import InputError

Field = Tensor | np.ndarray | Sequence[float]

# A field whose range is at most this many roundings of its size counts as constant: subtracting a mean leaves a few.
ROUNDINGS_OF_CONSTANT = 16


@dataclass(frozen=True)
class Errors:
    """Errors e = values - exact over n points, in units of range = max(exact) - min(exact).

    nmae = mean |e| / range,  nmaxe = max |e| / range,  nrmse = sqrt(mean e^2) / range.
    """

    nmae: float
    nmaxe: float
    nrmse: float

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def errors(
    values: Field,
    exact: Field,
    *,
    remove_mean: bool = False,
    component: Tensor | np.ndarray | None = None,
    extent: float | None = None,
) -> Errors:
    """Normalised errors of values (n,) against exact (n,). All points have the same weight.

    remove_mean: whether to subtract the mean from both fields first. This is right if the solution is only defined up
    to a constant, as for Poisson's equation on a closed surface. The range is then that of the shifted exact field.
    component: integers (n,); with remove_mean each connected component has its own mean.
    extent: a range to divide by instead, such as that of the initial state if the heat equation has reached a constant.

    Raises InputError for fields of different shapes, values that are not finite, or an exact field that does not vary.
    """
    u, v = _vector("values", values), _vector("exact", exact)
    if u.shape != v.shape:
        raise InputError(f"values has {len(u)} entries and exact has {len(v)}; give both at the same points.")
    scale = float(v.abs().max())
    if remove_mean:
        label = _labels(component, len(u))
        u, v = _centred(u, label), _centred(v, label)
    if extent is None:
        extent = float(v.max() - v.min())
        varies = extent > ROUNDINGS_OF_CONSTANT * torch.finfo(v.dtype).eps * scale
    else:
        varies = extent > 0
    if not varies:
        raise InputError(
            f"exact does not vary (range {extent:.3g}), so an error relative to its range has no meaning; "
            "compare with a field that is not constant."
        )
    e = (u - v).abs()
    return Errors(float(e.mean()) / extent, float(e.max()) / extent, float(e.square().mean().sqrt()) / extent)


def aligned(exact: Field, values: Field, component: Tensor | np.ndarray | None = None) -> Tensor:
    """exact (n,) plus a constant on each component, such that its mean there is that of values (n,)."""
    v, u = _vector("exact", exact), _vector("values", values)
    label = _labels(component, len(u))
    return _centred(v, label) + (u - _centred(u, label))


def _vector(name: str, field: Field) -> Tensor:
    x = torch.as_tensor(field).detach().to("cpu", torch.float64)
    if x.ndim != 1 or len(x) == 0:
        raise InputError(f"{name} has shape {tuple(x.shape)}; expected one number for each of n > 0 points.")
    bad = int((~torch.isfinite(x)).sum())
    if bad:
        raise InputError(f"{name} has {bad} entries of {len(x)} that are not finite; leave those points out.")
    return x


def _labels(component: Tensor | np.ndarray | None, count: int) -> Tensor:
    if component is None:
        return torch.zeros(count, dtype=torch.int64)
    label = torch.as_tensor(component).detach().cpu()
    if label.shape != (count,) or label.is_floating_point() or label.is_complex():
        raise InputError(
            f"component has shape {tuple(label.shape)} and type {label.dtype}; "
            f"expected one integer for each of {count} points."
        )
    return torch.unique(label, return_inverse=True)[1]


def _centred(x: Tensor, label: Tensor) -> Tensor:
    """x minus its mean over each label; labels (n,) count from 0 without gaps."""
    total = torch.zeros(int(label.max()) + 1, dtype=x.dtype)
    total.index_add_(0, label, x)
    return x - (total / torch.bincount(label))[label]
