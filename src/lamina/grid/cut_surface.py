"""A surface cut into the cells of a lattice: what the trace scheme needs of any geometry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from lamina.errors import InputError
from lamina.geometry.basis import BASES, Basis
from lamina.geometry.lattice import Lattice
from lamina.geometry.triangles import dot, safe_sqrt
from lamina.grid.interface_curves import Sides
from lamina.grid.quadrature import Frames, Quadrature
from lamina.grid.rim import Curved, Rim, Shape
from lamina.grid.sheets import Elements
from lamina.linear.graph import members
from lamina.surfaces.base import ClosestPoints

SLIVER = 0.02  # dx^2 of surface in a cell: with less, a neighbour takes it
RIM_SLIVER = 0.1  # the same where the surface ends
PAIRS = 2**20  # points and pieces compared at a time


def rule_points(degree: int, finer: int = 1) -> int:
    """Quadrature points for each piece of a cell that is cut on a lattice `finer` times finer.

    Products of quadratic functions have degree 4 along a line; on the plane pieces of a cell 12 points integrate them
    well enough for order 3. Pieces of half and a quarter of the size need rules of lower degree.
    """
    if degree == 1:
        return 3
    return {1: 12, 2: 6, 4: 3}[finer]


class Locator(Protocol):
    def find(self, coordinate: Tensor, feet: ClosestPoints) -> Tensor:
        """Element (n,) that holds each foot, at coordinate (n, 3) in units of cells; -1 where there is none."""
        ...


@dataclass(frozen=True)
class Lift:
    """Flat pieces that carry functions, and the curved ones on the surface that they are lifted to."""

    shape: Curved  # t pieces
    source: Tensor  # (p,) int64, the piece that each part with quadrature points lies in
    frames: Frames

    def below(self, feet: ClosestPoints, piece: Tensor, row: Tensor) -> Tensor:
        """The points (n, 3) that points on the surface (n,) are lifted from, given pairs of pieces (c,) and points (c,)
        to choose from.

        The piece is the one that the normal meets inside, or most nearly so, and near the point: where a surface turns
        back within a cell, the normal meets its other side, too. Where it meets the piece is within O(h^3) of the
        point; Newton's method on the lifted piece does the rest.
        """
        x, bary = feet.points.detach(), feet.points.new_full((len(feet.points), 3), 1 / 3)
        chosen = torch.full_like(bary[:, 0], -1, dtype=torch.int64)
        best = torch.full_like(bary[:, 0], -torch.inf)
        for piece_, row_ in zip(piece.split(PAIRS), row.split(PAIRS), strict=True):
            shares, fit = _met(self.shape.flat.detach()[piece_], x[row_], feet.normals.detach()[row_])
            highest = torch.full_like(best, -torch.inf).scatter_reduce_(0, row_, fit, "amax")
            won = ((fit == highest[row_]) & (fit > best[row_])).nonzero()[:, 0]
            chosen[row_[won]], bary[row_[won]] = piece_[won], shares[won]
            best = torch.maximum(best, highest)
        chosen = chosen.clamp_min(0)
        with torch.no_grad():
            for _ in range(3):
                bary = bary + self._step(feet.points, chosen, bary)
        bary = bary + self._step(feet.points, chosen, bary)  # with gradients, where there are any
        foot = self.shape.below(chosen, bary)
        lost = (best < -1e8)[:, None]
        return torch.where(lost, feet.points, foot)

    def _step(self, x: Tensor, piece: Tensor, bary: Tensor) -> Tensor:
        """Newton's step (n, 3) in barycentric coordinates to the place of the lifted pieces nearest to x (n, 3).

        The derivatives of |x - X|^2 / 2 carry gradients and its second derivatives do not: at a root of the first ones
        this is the derivative of the place.
        """
        steps = [bary.new_tensor(s).expand_as(bary) for s in ([-1.0, 1.0, 0.0], [-1.0, 0.0, 1.0])]
        away = x - self.shape.place(piece, bary)
        tangents = [self.shape.along(piece, bary, s) for s in steps]
        right = [dot(t, away) for t in tangents]
        with torch.no_grad():
            # Tangents are linear in the coordinates.
            bends = [
                [self.shape.along(piece, bary + r, s) - t for r in steps] for s, t in zip(steps, tangents, strict=True)
            ]
            (aa, ab), (_, bb) = (
                [dot(t, u) - dot(away, b) for u, b in zip(tangents, row, strict=True)]
                for t, row in zip(tangents, bends, strict=True)
            )
            determinant = aa * bb - ab * ab
            fine = (aa > 0) & (determinant > 1e-6 * aa * bb)
            determinant = torch.where(fine, determinant, 1)
        p = torch.where(fine, (bb * right[0] - ab * right[1]) / determinant, 0)
        q = torch.where(fine, (aa * right[1] - ab * right[0]) / determinant, 0)
        # A step out of all proportion is none of a smooth piece.
        return p.clamp(-0.5, 0.5)[:, None] * steps[0] + q.clamp(-0.5, 0.5)[:, None] * steps[1]


def _met(flat: Tensor, y: Tensor, normal: Tensor) -> tuple[Tensor, Tensor]:
    """Where lines through points y (c, 3) along normals meet the planes of triangles (c, 3, 3): barycentric coordinates
    (c, 3); and how well that fits (c,), 0 for a point on the triangle. What is outside costs its coordinate, what is
    away its distance over the size of the triangle, a line that all but runs along the plane very much."""
    a, b, c = flat.unbind(1)
    across = torch.linalg.cross(b - a, c - a)
    size, slope = dot(across, across), dot(across, normal)
    length = size.sqrt().sqrt().clamp_min(torch.finfo(size.dtype).tiny)
    steep = (slope.square() > 0.1 * size) & (size > 0)
    step = torch.where(steep, dot(a - y, across) / torch.where(steep, slope, 1.0), 0.0)
    foot = y + step[:, None] * normal
    size = torch.where(steep, size, 1.0)
    first = dot(torch.linalg.cross(b - foot, c - foot), across) / size
    second = dot(torch.linalg.cross(c - foot, a - foot), across) / size
    shares = torch.stack([first, second, 1 - first - second], 1)
    return shares, torch.where(steep, shares.amin(1).clamp_max(0) - step.abs() / length, -1e9)


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
    flat_corners: Tensor | None = None  # (q / 3, 3, 3) of the flat pieces below them, where functions live on these
    face: Tensor | None = None  # (q,) of the mesh that each quadrature point lies on; None: of no mesh
    unresolved: str = ""  # what is wrong where parts are too thin or too rough for the pieces, and what helps
    torn: float = 0.0  # share of the samples on the largest part that came off its component of the surface
    specks: int = 0  # parts that lie apart and were left out for their size,
    speck_share: float = 0.0  # and their share of the surface
    degree: int = 1  # of the functions on the cells
    per_piece: int = 3  # quadrature points in each piece; they follow each other
    lift: Lift | None = None  # from the flat pieces that functions live on; None: they live on the surface

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
        *,
        degree: int = 1,
        per_piece: int = 3,
        flat: Tensor | None = None,
        lift: Lift | None = None,
    ) -> CutSurface:
        """elements and element as cut; `sheets` False takes all sheets of a cell for one.

        sides of the triangles in `shape`: the rims and curves; find(triangle, place) gives an element as cut.
        degree of the functions. flat (q, 3), lift: where they live, if not at the points of the quadrature.
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
        if degree == 1:
            # Quadratic functions, whose normal derivative is held in the whole cell, do without: the continuation of a
            # neighbour's would not fit those of the cells beyond, and cost an order.
            elements, absorber = elements.absorbed(area / lattice.spacing**2, SLIVER)
            element, host = absorber[element], absorber[host]
        place = quadrature.points if flat is None else flat
        local = (place - lattice.origin) / lattice.spacing - elements.cell[element]
        normal, flatness = mean_normals(quadrature, element, elements.active)
        if rim is not None:
            held = host[rim.element]
            place = rim.points if degree == 1 else rim.below
            rim = replace(rim, element=held, local=(place - lattice.origin) / lattice.spacing - elements.cell[held])
        return cls(
            lattice, elements, quadrature, element, local, normal, flatness, locator, host,
            rim=rim, degree=degree, per_piece=per_piece, lift=lift,
        )  # fmt: skip

    @property
    def basis(self) -> Basis:
        return BASES[self.degree]

    @cached_property
    def unknown(self) -> Tensor:
        """Number (e, k) int64 of the unknown of each function of each element."""
        return self.elements.unknown if self.degree == 1 else self.elements.numbering(self.degree)

    @cached_property
    def unknowns(self) -> int:
        return int(self.unknown.max()) + 1

    @property
    def corner_normals(self) -> Tensor:
        """Normals (3 p, 3) near the corners of the p pieces."""
        normals = self.quadrature.normals.detach().reshape(-1, self.per_piece, 3)
        return normals[:, :3].reshape(-1, 3)  # the first three points of every rule

    @cached_property
    def frames(self) -> Frames:
        return Frames.across(self.quadrature.normals) if self.lift is None else self.lift.frames

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
        points = feet.points if self.lift is None else self._below(element, feet)
        return element, self.local_in(element, points)

    def _below(self, element: Tensor, feet: ClosestPoints) -> Tensor:
        """The points (n, 3) of flat pieces, in elements (n,), that points on the surface are lifted from."""
        assert self.lift is not None
        part, row = members(self.element[:: self.per_piece], self.elements.active, element)
        return self.lift.below(feet, self.lift.source[part], row)

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
