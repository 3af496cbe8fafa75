"""Tensor-product Lagrange functions on a cell: Q1 with 8 nodes, Q2 with 27.

On the unit cell the functions are products l_i(x) l_j(y) l_k(z) of the Lagrange polynomials of degree 1 or 2 at equally
spaced nodes. Node number (i (p + 1) + j) (p + 1) + k lies at (i, j, k) / p; for p = 1 this is the order of OCTANTS.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Basis:
    """The functions of one degree on the unit cell."""

    degree: int

    @cached_property
    def count(self) -> int:
        """Number of functions, and of nodes."""
        return (self.degree + 1) ** 3

    @cached_property
    def nodes(self) -> Tensor:
        """Nodes (count, 3) int64, in units of 1 / degree."""
        one = torch.arange(self.degree + 1)
        return torch.stack(torch.meshgrid(one, one, one, indexing="ij"), -1).reshape(-1, 3)

    def values(self, t: Tensor) -> Tensor:
        """Values (n, count) at t (n, 3)."""
        x, y, z = self.polynomials(t).unbind(1)
        return (x[:, :, None, None] * (y[:, :, None] * z[:, None, :])[:, None]).reshape(-1, self.count)

    def gradients(self, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The three partial derivatives (n, count) at t (n, 3)."""
        x, y, z = self.polynomials(t).unbind(1)
        dx, dy, dz = self.derivatives(t).unbind(1)
        yz = y[:, :, None] * z[:, None, :]
        xz = x[:, :, None] * z[:, None, :]
        xy = x[:, :, None] * y[:, None, :]
        along_x = dx[:, :, None, None] * yz[:, None]
        along_y = dy[:, None, :, None] * xz[:, :, None]
        along_z = dz[:, None, None, :] * xy[..., None]
        return tuple(d.reshape(-1, self.count) for d in (along_x, along_y, along_z))  # type: ignore[return-value]

    def polynomials(self, t: Tensor) -> Tensor:
        """Values (n, 3, degree + 1) of the polynomials along each axis."""
        if self.degree == 1:
            return torch.stack([1 - t, t], -1)
        return torch.stack([(1 - t) * (1 - 2 * t), 4 * t * (1 - t), t * (2 * t - 1)], -1)

    def derivatives(self, t: Tensor) -> Tensor:
        """The derivatives (n, 3, degree + 1)."""
        if self.degree == 1:
            one = torch.ones_like(t)
            return torch.stack([-one, one], -1)
        return torch.stack([4 * t - 3, 4 - 8 * t, 4 * t - 1], -1)

    @cached_property
    def faces(self) -> tuple[Tensor, Tensor]:
        """Nodes (3, (degree + 1)^2) on the face towards the next cell along each axis, and the same nodes as numbered
        in that next cell."""
        far = torch.stack([(self.nodes[:, axis] == self.degree).nonzero()[:, 0] for axis in range(3)])
        near = torch.stack([(self.nodes[:, axis] == 0).nonzero()[:, 0] for axis in range(3)])
        return far, near

    def at(self, t: Tensor) -> tuple[Tensor, ...]:
        """Values and the three derivatives at t (n, 3)."""
        return (self.values(t), *self.gradients(t))


Q1, Q2 = Basis(1), Basis(2)
BASES = {1: Q1, 2: Q2}  # by degree; the numbering of unknowns and the assembly look their functions up here


@lru_cache
def gauss_points(points: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Points (points^3, 3) and weights of the tensor-product Gauss rule on the unit cell."""
    x, w = np.polynomial.legendre.leggauss(points)
    x, w = torch.from_numpy((x + 1) / 2), torch.from_numpy(w / 2)
    t = torch.stack(torch.meshgrid(x, x, x, indexing="ij"), -1).reshape(-1, 3)
    weight = (w[:, None, None] * w[:, None] * w).reshape(-1)
    return t.to(device, dtype), weight.to(device, dtype)


@lru_cache
def from_corners(basis: Basis, dtype: torch.dtype, device: torch.device) -> Tensor:
    """T (count, 8): T[i, j] is the value of trilinear corner function j at node i."""
    return Q1.values(basis.nodes.to(device, dtype) / basis.degree)
