"""A surface cut into the cells of a lattice: what the trace scheme needs of any geometry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from lamina.errors import InputError
from lamina.geometry.lattice import Lattice
from lamina.quadrature import Quadrature
from lamina.schemes.sheets import Elements
from lamina.surfaces.base import ClosestPoints


class Locator(Protocol):
    def find(self, coordinate: Tensor, feet: ClosestPoints) -> Tensor:
        """Element (n,) that holds each foot, at coordinate (n, 3) in units of cells; -1 where there is none."""
        ...


@dataclass(frozen=True)
class CutSurface:
    """Elements, and a quadrature whose points know their element."""

    lattice: Lattice
    elements: Elements
    quadrature: Quadrature
    element: Tensor  # (q,) the element of each quadrature point
    local: Tensor  # (q, 3) its coordinates in the cell, 0 to 1
    normal: Tensor  # (e, 3) mean unit normal of each element
    locator: Locator

    @property
    def spacing(self) -> float:
        return self.lattice.spacing

    def locate(self, feet: ClosestPoints) -> tuple[Tensor, Tensor]:
        """Element (n,) and local coordinates (n, 3) of points on the surface."""
        coordinate = (feet.points - self.lattice.origin) / self.spacing
        element = self.locator.find(coordinate, feet)
        lost = int((element < 0).sum())
        if lost:
            raise InputError(f"{lost} of {len(element)} points do not lie on the surface; project them to it first.")
        return element, coordinate - self.elements.cell[element]


def mean_normals(quadrature: Quadrature, element: Tensor, count: int) -> Tensor:
    """Principal direction of sum w n n^T, which does not care about the signs of the normals, by power steps."""
    n = quadrature.normals
    moment = (n[:, :, None] * n[:, None, :] * quadrature.weights[:, None, None]).reshape(-1, 9)
    total = n.new_zeros(count, 9).index_add_(0, element, moment).reshape(-1, 3, 3)
    total = total / total.diagonal(dim1=1, dim2=2).sum(1)[:, None, None]
    for _ in range(6):
        total = torch.bmm(total, total)
        total = total / total.diagonal(dim1=1, dim2=2).sum(1)[:, None, None]
    column = total.diagonal(dim1=1, dim2=2).argmax(1)
    direction = total[torch.arange(count, device=n.device), :, column]
    return direction / direction.norm(dim=1, keepdim=True)
