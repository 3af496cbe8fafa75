"""Sums and means over the connected components of a surface."""

from __future__ import annotations

import torch
from torch import Tensor


class ComponentMean:
    """The weighted mean of a field over each of `count` components.

    component (n,): the component of each value. weights (n,): all one unless given. only (count,) bool: the components
    whose means `remove` subtracts; all unless given.
    """

    def __init__(self, component: Tensor, count: int, weights: Tensor | None = None, only: Tensor | None = None):
        self.component, self.count, self.only = component, count, only
        self.weights = weights
        total = self._sum(torch.ones_like(component, dtype=torch.float64) if weights is None else weights)
        self.total = total.clamp_min(torch.finfo(total.dtype).tiny)

    def __call__(self, u: Tensor) -> Tensor:
        """Means (count,) of u (n,), or (count, k) of u (n, k)."""
        return self._sum(u if self.weights is None else u * column(self.weights, u)) / column(self.total.to(u.dtype), u)

    def remove(self, u: Tensor) -> Tensor:
        """u (n,) or (n, k) minus its mean on each component."""
        mean = self(u)
        if self.only is not None:
            mean = torch.where(column(self.only, u), mean, 0)
        return u - (mean if self.count == 1 else mean[self.component])

    def _sum(self, v: Tensor) -> Tensor:
        return component_sums(v, self.component, self.count)


def component_sums(v: Tensor, component: Tensor, count: int) -> Tensor:
    """Sums (count,) or (count, k) of v (n,) or (n, k) over each component."""
    if count == 1:
        return v.sum(0, keepdim=True)
    return v.new_zeros(count, *v.shape[1:]).index_add(0, component, v)


def column(v: Tensor, like: Tensor) -> Tensor:
    """v (n,) in a shape that multiplies the rows of `like`, which is (n,) or (n, k)."""
    return v if like.ndim == 1 else v[:, None]
