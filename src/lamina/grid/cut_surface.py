"""A surface cut into the cells of a lattice: all that the trace scheme knows of a geometry."""

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
from lamina.grid.interface_curves import BoundaryEdges
from lamina.grid.quadrature import Frames, Quadrature
from lamina.grid.rim import CurvedTriangles, Rim, TriangleMap
from lamina.grid.sheets import CutElements
from lamina.linear.graph import members
from lamina.shapes import Float, Int, shaped
from lamina.surfaces.base import ClosestPoints

# An element with less than this area, in dx^2, gives its surface to a neighbour and has no unknowns of its own. With
# half of it ill-conditioned slivers remain; with more, larger pieces are represented by the functions of another cell.
# Chosen by trial.
MIN_ELEMENT_AREA = 0.02
# The same where the surface ends. An element with much rim for its area would need a large penalty to hold boundary
# values. Chosen by trial.
MIN_RIM_ELEMENT_AREA = 0.1
PAIRS_PER_BATCH_OF_LIFT = 2**20  # batch size: points and pieces compared at a time
# Newton steps without gradients to the foot on a lifted piece; one more carries gradients. Steps converge quadratically
# from a start within O(h^3), so that three reach rounding.
NEWTON_STEPS_OF_LIFT = 3
# A Newton step changes a barycentric coordinate by at most this: a larger step is none of a smooth piece. Chosen by
# trial.
MAX_BARYCENTRIC_STEP = 0.5
# Newton's method does nothing where the determinant of its matrix is at most this times the product of the diagonal:
# the matrix is then singular but for rounding. Chosen by trial.
MIN_RELATIVE_DETERMINANT = 1e-6
# A line along a normal meets the plane of a triangle if the squared cosine of the angle between the normal and that of
# the triangle exceeds this, so that the angle is less than 72 degrees. Flatter lines meet the plane far away. Chosen by
# trial.
MIN_SQUARED_COS_TO_PIECE = 0.1
# The fit of a piece whose plane is not met: less than any fit that is computed.
FIT_OF_PIECE_NOT_MET = -1e9
# If the best fit is less than this, no piece is met and the point stays where it is.
MIN_FIT_OF_PIECE = -1e8
# Squarings of the mean of n n^T: to the 64th power only the largest eigenvalue is left.
SQUARINGS_OF_NORMAL_TENSOR = 6


def rule_points(degree: int, refinement: int = 1) -> int:
    """Number of quadrature points for each piece, if cells are cut on a lattice `refinement` times finer.

    Products of quadratic functions have degree 4 along a line. On the plane pieces of a cell 12 points integrate them
    accurately enough for order 3. For pieces of half and a quarter of the size rules of lower degree are enough.
    """
    if degree == 1:
        return 3
    return {1: 12, 2: 6, 4: 3}[refinement]


class Locator(Protocol):
    def find(self, coordinate: Tensor, feet: ClosestPoints) -> Tensor:
        """Element (n,) that holds each foot, at coordinate (n, 3) in units of cells; -1 where there is none."""
        ...


@shaped
@dataclass(frozen=True)
class Lift:
    """The map between flat pieces, on which functions are evaluated, and the curved pieces that these are lifted to."""

    shape: CurvedTriangles  # t pieces
    source: Int[Tensor, " p"]  # the piece that contains each part with quadrature points
    frames: Frames

    def flat_points(self, feet: ClosestPoints, piece: Tensor, row: Tensor) -> Tensor:
        """The points (n, 3) of flat pieces that feet (n,) on the surface are lifted from.

        piece (c,), row (c,): the candidate pairs of a piece and the number of a foot. The piece chosen is near the foot
        and is met by the line along the normal, inside or as nearly inside as possible. (Where a surface turns back
        within a cell, the line meets its other side, too.) The place where the line meets the piece is within O(h^3) of
        the solution, which Newton's method on the lifted piece then finds.
        """
        x, bary = feet.points.detach(), feet.points.new_full((len(feet.points), 3), 1 / 3)
        chosen = torch.full_like(bary[:, 0], -1, dtype=torch.int64)
        best = torch.full_like(bary[:, 0], -torch.inf)
        for piece_, row_ in zip(piece.split(PAIRS_PER_BATCH_OF_LIFT), row.split(PAIRS_PER_BATCH_OF_LIFT), strict=True):
            shares, fit = _meeting_point(self.shape.flat.detach()[piece_], x[row_], feet.normals.detach()[row_])
            highest = torch.full_like(best, -torch.inf).scatter_reduce_(0, row_, fit, "amax")
            won = ((fit == highest[row_]) & (fit > best[row_])).nonzero()[:, 0]
            chosen[row_[won]], bary[row_[won]] = piece_[won], shares[won]
            best = torch.maximum(best, highest)
        chosen = chosen.clamp_min(0)
        with torch.no_grad():
            for _ in range(NEWTON_STEPS_OF_LIFT):
                bary = bary + self._step(feet.points, chosen, bary)
        bary = bary + self._step(feet.points, chosen, bary)  # this step carries gradients
        foot = self.shape.flat_position(chosen, bary)
        not_met = (best < MIN_FIT_OF_PIECE)[:, None]
        return torch.where(not_met, feet.points, foot)

    def _step(self, x: Tensor, piece: Tensor, bary: Tensor) -> Tensor:
        """Newton's step (n, 3) in barycentric coordinates to the point of the lifted pieces nearest to x (n, 3).

        First derivatives of |x - X|^2 / 2 carry gradients and second derivatives do not. Where the first ones vanish,
        the gradient of the step is then that of the nearest point.
        """
        steps = [bary.new_tensor(s).expand_as(bary) for s in ([-1.0, 1.0, 0.0], [-1.0, 0.0, 1.0])]
        away = x - self.shape.position(piece, bary)
        tangents = [self.shape.derivative(piece, bary, s) for s in steps]
        right = [dot(t, away) for t in tangents]
        with torch.no_grad():
            # Tangents are linear in the coordinates, so differences are second derivatives.
            bends = [
                [self.shape.derivative(piece, bary + r, s) - t for r in steps]
                for s, t in zip(steps, tangents, strict=True)
            ]
            (aa, ab), (_, bb) = (
                [dot(t, u) - dot(away, b) for u, b in zip(tangents, row, strict=True)]
                for t, row in zip(tangents, bends, strict=True)
            )
            determinant = aa * bb - ab * ab
            regular = (aa > 0) & (determinant > MIN_RELATIVE_DETERMINANT * aa * bb)
            determinant = torch.where(regular, determinant, 1)
        p = torch.where(regular, (bb * right[0] - ab * right[1]) / determinant, 0)
        q = torch.where(regular, (aa * right[1] - ab * right[0]) / determinant, 0)
        p, q = (s.clamp(-MAX_BARYCENTRIC_STEP, MAX_BARYCENTRIC_STEP)[:, None] for s in (p, q))
        return p * steps[0] + q * steps[1]


def _meeting_point(flat: Tensor, y: Tensor, normal: Tensor) -> tuple[Tensor, Tensor]:
    """Where lines through points y (c, 3) along normals meet the planes of triangles (c, 3, 3).

    Returns barycentric coordinates (c, 3) and the fit (c,). The fit is 0 for a point on its triangle. It is less by the
    negative coordinate of a meeting point outside, and by the distance to it over the size of the triangle. It is
    FIT_OF_PIECE_NOT_MET for a line that is nearly parallel to the plane.
    """
    a, b, c = flat.unbind(1)
    across = torch.linalg.cross(b - a, c - a)
    size, slope = dot(across, across), dot(across, normal)
    length = size.sqrt().sqrt().clamp_min(torch.finfo(size.dtype).tiny)
    steep = (slope.square() > MIN_SQUARED_COS_TO_PIECE * size) & (size > 0)
    step = torch.where(steep, dot(a - y, across) / torch.where(steep, slope, 1.0), 0.0)
    foot = y + step[:, None] * normal
    size = torch.where(steep, size, 1.0)
    first = dot(torch.linalg.cross(b - foot, c - foot), across) / size
    second = dot(torch.linalg.cross(c - foot, a - foot), across) / size
    shares = torch.stack([first, second, 1 - first - second], 1)
    return shares, torch.where(steep, shares.amin(1).clamp_max(0) - step.abs() / length, FIT_OF_PIECE_NOT_MET)


@shaped
@dataclass(frozen=True)
class CutSurface:
    """Elements, and a quadrature on the surface with the element of each point."""

    lattice: Lattice
    elements: CutElements
    quadrature: Quadrature
    element: Int[Tensor, " q"]  # the element of each quadrature point
    local: Float[Tensor, "q 3"]  # its place in that cell: from 0 to 1, or just outside for an absorbed sliver
    normal: Float[Tensor, "e 3"]  # mean unit normal of each element
    flatness: Float[Tensor, " e"]  # 1 where all normals of an element agree, 0 for an even mixture
    locator: Locator
    merged_into: Int[Tensor, " l"]  # the element that each element as cut (the locator names it) is part of
    conductivity: Float[Tensor, " q"] | None = None  # factors on the stiffness near singular points; None: 1
    rim: Rim | None = None  # where the surface ends; None: nowhere
    corners: Tensor | None = None  # (q / per_piece, 3, 3) of the curved pieces; None for a mesh
    flat_corners: Tensor | None = None  # (q / per_piece, 3, 3) of the flat pieces, if functions are evaluated on these
    face: Int[Tensor, " q"] | None = None  # the face of the mesh that each point lies on; None: it is no mesh
    unresolved: str = ""  # what is wrong where parts are too thin or too rough for the pieces, and what helps
    detached_share: float = 0.0  # share of the area, by samples, on the largest part that came off its component
    speck_count: int = 0  # parts that lie apart and were left out because they are small
    speck_share: float = 0.0  # their share of the area, by samples
    degree: int = 1  # of the functions on the cells
    per_piece: int = 3  # quadrature points in each piece; they follow each other
    lift: Lift | None = None  # None: functions are evaluated on the surface itself

    @classmethod
    def build(
        cls,
        lattice: Lattice,
        elements: CutElements,
        quadrature: Quadrature,
        element: Tensor,
        locator: Locator,
        sheets: bool,
        boundary: BoundaryEdges | None = None,
        shape: TriangleMap | None = None,
        find: Callable[[Tensor, Tensor], Tensor] | None = None,
        *,
        degree: int = 1,
        per_piece: int = 3,
        flat: Tensor | None = None,
        lift: Lift | None = None,
    ) -> CutSurface:
        """The cut surface, its slivers absorbed by their neighbours.

        elements, element: as cut, before absorption. sheets: False takes all sheets of a cell for one. boundary: the
        edges of triangles in `shape` along rims and curves; find(triangle, point) gives the element, as cut, of points
        in triangles. degree: of the functions. flat (q, 3), lift: the points where functions are evaluated, if these
        are not the points of the quadrature.
        """
        merged_into = torch.arange(len(elements.cell), device=element.device)
        if not sheets:
            elements, merged_into = elements.without_copies()
            element = merged_into[element]
        area = quadrature.weights.new_zeros(len(elements.cell)).index_add_(0, element, quadrature.weights.detach())
        rim = None
        if boundary is not None and shape is not None and find is not None and len(boundary.source):
            rim = Rim.of(boundary, shape, find)
            area[merged_into[rim.element]] *= MIN_ELEMENT_AREA / MIN_RIM_ELEMENT_AREA
        if degree == 1:
            # Quadratic functions need no absorption, because their normal derivative is held in the whole cell. The
            # continuation of a neighbour's functions would not fit those of the cells beyond, and would cost an order.
            elements, absorber = elements.absorbed(area / lattice.spacing**2, MIN_ELEMENT_AREA)
            element, merged_into = absorber[element], absorber[merged_into]
        points = quadrature.points if flat is None else flat
        local = (points - lattice.origin) / lattice.spacing - elements.cell[element]
        normal, flatness = mean_normals(quadrature, element, elements.active)
        if rim is not None:
            owner = merged_into[rim.element]
            points = rim.points if degree == 1 else rim.flat_points
            rim = replace(rim, element=owner, local=(points - lattice.origin) / lattice.spacing - elements.cell[owner])
        return cls(
            lattice, elements, quadrature, element, local, normal, flatness, locator, merged_into,
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
        return normals[:, :3].reshape(-1, 3)  # the first three points of every rule are nearest to the corners

    @cached_property
    def frames(self) -> Frames:
        return Frames.orthonormal(self.quadrature.normals) if self.lift is None else self.lift.frames

    @property
    def spacing(self) -> float:
        return self.lattice.spacing

    def locate(self, feet: ClosestPoints) -> tuple[Tensor, Tensor]:
        """Element (n,) and local coordinates (n, 3) of points on the surface."""
        coordinate = (feet.points - self.lattice.origin) / self.spacing
        element = self.locator.find(coordinate.detach(), feet.detach())
        missing = int((element < 0).sum())
        if missing:
            raise InputError(
                f"{missing} of {len(element)} points lie on parts of the surface that cells of spacing "
                f"{self.spacing:g} miss, being too thin for them; use a smaller spacing."
            )
        element = self.merged_into[element]
        points = feet.points if self.lift is None else self._flat_points(element, feet)
        return element, self.local_in(element, points)

    def _flat_points(self, element: Tensor, feet: ClosestPoints) -> Tensor:
        """The points (n, 3) of flat pieces in elements (n,) that feet on the surface are lifted from."""
        assert self.lift is not None
        part, row = members(self.element[:: self.per_piece], self.elements.active, element)
        return self.lift.flat_points(feet, self.lift.source[part], row)

    def local_in(self, element: Tensor, points: Tensor) -> Tensor:
        """Coordinates (n, 3) of points (n, 3) in the cells of their elements (n,)."""
        return (points - self.lattice.origin) / self.spacing - self.elements.cell[element]


def mean_normals(quadrature: Quadrature, element: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Principal direction (count, 3) of the mean of n n^T over each element, and the gap (count,) between its two
    largest eigenvalues. The signs of the normals do not matter."""
    n = quadrature.normals
    moment = (n[:, :, None] * n[:, None, :] * quadrature.weights[:, None, None]).reshape(-1, 9)
    total = n.new_zeros(count, 9).index_add_(0, element, moment).reshape(-1, 3, 3)
    mean = total = total / total.diagonal(dim1=1, dim2=2).sum(1)[:, None, None]
    for _ in range(SQUARINGS_OF_NORMAL_TENSOR):
        total = torch.bmm(total, total)
        total = total / total.diagonal(dim1=1, dim2=2).sum(1)[:, None, None]
    column = total.diagonal(dim1=1, dim2=2).argmax(1)
    direction = total[torch.arange(count, device=n.device), :, column]
    direction = direction / direction.norm(dim=1, keepdim=True)
    # The eigenvalues add up to 1 and their squares to |mean|^2, so the largest gives the others.
    first = torch.einsum("ea,eab,eb->e", direction, mean, direction)
    rest = 1 - first
    # On a plane the difference is rounding; safe_sqrt has no gradient there.
    square = 2 * (mean.square().sum((1, 2)) - first**2) - rest**2
    apart = safe_sqrt(square, 1e-12)
    return direction, (first - 0.5 * (rest + apart)).clamp(0, 1)
