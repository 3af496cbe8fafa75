"""Means over the connected components of a surface."""

from __future__ import annotations

import torch
from torch import Tensor


class ComponentMean:
    """Weighted mean of a field over each component; weights all one unless given.

    only (count,) bool: the components whose means are to be removed, all unless given.
    """

    def __init__(self, component: Tensor, count: int, weights: Tensor | None = None, only: Tensor | None = None):
        self.component, self.count, self.only = component, count, only
        self.weights = weights
        total = self._sum(torch.ones_like(component, dtype=torch.float64) if weights is None else weights)
        self.total = total.clamp_min(torch.finfo(total.dtype).tiny)

    def __call__(self, u: Tensor) -> Tensor:
        """Means (count,) of u (n,)."""
        return self._sum(u if self.weights is None else u * self.weights) / self.total.to(u.dtype)

    def remove(self, u: Tensor) -> Tensor:
        """u (n,) less its mean on each component."""
        mean = self(u)
        if self.only is not None:
            mean = torch.where(self.only, mean, 0)
        return u - (mean if self.count == 1 else mean[self.component])

    def _sum(self, v: Tensor) -> Tensor:
        if self.count == 1:
            return v.sum()[None]
        return torch.zeros(self.count, dtype=v.dtype, device=v.device).index_add_(0, self.component, v)
