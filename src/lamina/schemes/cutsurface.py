"""A surface cut into the cells of a lattice: what the trace scheme needs of any geometry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from lamina.errors import InputError
from lamina.geometry.lattice import Lattice
from lamina.geometry.triangles import safe_sqrt
from lamina.quadrature import Quadrature
from lamina.schemes.rim import Rim, Shape
from lamina.schemes.seams import Sides
from lamina.schemes.sheets import Elements
from lamina.surfaces.base import ClosestPoints

SLIVER = 0.02  # dx^2 of surface in a cell: with less, a neighbour takes it
RIM_SLIVER = 0.1  # the same where the surface ends


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
    element: Tensor  # (q,) the element that holds each quadrature point
    local: Tensor  # (q, 3) its coordinates in that element's cell: 0 to 1, or just outside for an absorbed sliver
    normal: Tensor  # (e, 3) mean unit normal of each element
    flatness: Tensor  # (e,) 1 where all normals of an element agree, 0 for an even mixture
    locator: Locator
    host: Tensor  # (l,) the element for each that the locator names
    conductivity: Tensor | None = None  # (q,) corrects the stiffness near singular points; None: 1
    rim: Rim | None = None  # where the surface ends; None: nowhere
    corners: Tensor | None = None  # (q / 3, 3, 3) of the curved pieces, three quadrature points each; None: of a mesh
    face: Tensor | None = None  # (q,) of the mesh that each quadrature point lies on; None: of no mesh
    unresolved: str = ""  # what is wrong where parts are too thin or too rough for the pieces, and what helps
    torn: float = 0.0  # share of the samples on the largest part that came off its component of the surface
    specks: int = 0  # parts that lie apart and were left out for their size,
    speck_share: float = 0.0  # and their share of the surface

    @classmethod
    def build(
        cls,
        lattice: Lattice,
        elements: Elements,
        quadrature: Quadrature,
        element: Tensor,
        locator: Locator,
        sheets: bool,
        sides: Sides | None = None,
        shape: Shape | None = None,
        find: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> CutSurface:
        """elements and element as cut; `sheets` False takes all sheets of a cell for one.

        sides of the triangles in `shape`: the rims and seams; find(triangle, place) gives an element as cut.
        """
        host = torch.arange(len(elements.cell), device=element.device)
        if not sheets:
            elements, host = elements.without_copies()
            element = host[element]
        area = quadrature.weights.new_zeros(len(elements.cell)).index_add_(0, element, quadrature.weights.detach())
        rim = None
        if sides is not None and shape is not None and find is not None and len(sides.source):
            rim = Rim.of(sides, shape, find)
            # There an element that has much rim for its surface would have to be held with great force.
            area[host[rim.element]] *= SLIVER / RIM_SLIVER
        elements, absorber = elements.absorbed(area / lattice.spacing**2, SLIVER)
        element, host = absorber[element], absorber[host]
        local = (quadrature.points - lattice.origin) / lattice.spacing - elements.cell[element]
        normal, flatness = mean_normals(quadrature, element, elements.active)
        if rim is not None:
            held = host[rim.element]
            place = (rim.points - lattice.origin) / lattice.spacing - elements.cell[held]
            rim = replace(rim, element=held, local=place)
        return cls(lattice, elements, quadrature, element, local, normal, flatness, locator, host, rim=rim)

    @property
    def spacing(self) -> float:
        return self.lattice.spacing

    def locate(self, feet: ClosestPoints) -> tuple[Tensor, Tensor]:
        """Element (n,) and local coordinates (n, 3) of points on the surface."""
        coordinate = (feet.points - self.lattice.origin) / self.spacing
        element = self.locator.find(coordinate.detach(), feet.detach())
        lost = int((element < 0).sum())
        if lost:
            raise InputError(
                f"{lost} of {len(element)} points lie on parts of the surface that cells of spacing "
                f"{self.spacing:g} miss, being too thin for them; use a smaller spacing."
            )
        element = self.host[element]
        return element, self.local_in(element, feet.points)

    def local_in(self, element: Tensor, points: Tensor) -> Tensor:
        """Coordinates (n, 3) of points (n, 3) in the cells of their elements (n,)."""
        return (points - self.lattice.origin) / self.spacing - self.elements.cell[element]


def mean_normals(quadrature: Quadrature, element: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Principal direction (count, 3) of the mean of n n^T, which does not care about the signs of the normals,
    by power steps; and the gap (count,) between the two largest eigenvalues."""
    n = quadrature.normals
    moment = (n[:, :, None] * n[:, None, :] * quadrature.weights[:, None, None]).reshape(-1, 9)
    total = n.new_zeros(count, 9).index_add_(0, element, moment).reshape(-1, 3, 3)
    mean = total = total / total.diagonal(dim1=1, dim2=2).sum(1)[:, None, None]
    for _ in range(6):
        total = torch.bmm(total, total)
        total = total / total.diagonal(dim1=1, dim2=2).sum(1)[:, None, None]
    column = total.diagonal(dim1=1, dim2=2).argmax(1)
    direction = total[torch.arange(count, device=n.device), :, column]
    direction = direction / direction.norm(dim=1, keepdim=True)
    # The eigenvalues add up to 1 and their squares to |mean|^2, so the largest gives the others.
    first = torch.einsum("ea,eab,eb->e", direction, mean, direction)
    rest = 1 - first
    # Where both are rounding, as on a plane, no gradient is to be had of it.
    square = 2 * (mean.square().sum((1, 2)) - first**2) - rest**2
    apart = safe_sqrt(square, 1e-12)
    return direction, (first - 0.5 * (rest + apart)).clamp(0, 1)
