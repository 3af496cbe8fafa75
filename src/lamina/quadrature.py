"""Quadrature on a surface: integrals, areas and means of fields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lamina.geometry.triangles import triangle_areas

# Strang and Fix: three interior points, exact for quadratics.
TRIANGLE_RULE = ((2 / 3, 1 / 6, 1 / 6), (1 / 6, 2 / 3, 1 / 6), (1 / 6, 1 / 6, 2 / 3))


@dataclass(frozen=True)
class Quadrature:
    """Points with unit normals and weights: the integral of f is sum_q w_q f(x_q)."""

    points: Tensor  # (q, 3)
    normals: Tensor  # (q, 3)
    weights: Tensor  # (q,)

    def take(self, which: Tensor) -> Quadrature:
        return Quadrature(self.points[which], self.normals[which], self.weights[which])

    @property
    def area(self) -> float:
        return float(self.weights.sum())

    def integral(self, f: Callable[[Tensor], Tensor]) -> float:
        return float((self.weights * f(self.points)).sum())

    def mean(self, f: Callable[[Tensor], Tensor]) -> float:
        return self.integral(f) / self.area


def on_triangles(corners: Tensor, normals: Tensor) -> Quadrature:
    """Three points on each of the triangles (m, 3, 3) with unit normals (m, 3), triangle by triangle."""
    rule = torch.tensor(TRIANGLE_RULE, dtype=corners.dtype, device=corners.device)
    points = torch.einsum("qi,mid->mqd", rule, corners).reshape(-1, 3)
    weights = (triangle_areas(corners) / 3).repeat_interleave(3)
    return Quadrature(points, normals.repeat_interleave(3, 0), weights)
