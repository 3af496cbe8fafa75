"""Boundary conditions of functions on cut cells, by Nitsche's method.

For u = g on a rim with the unit tangent nu outward, K gets

    - int (a d_nu u) v - int u (a d_nu v) + int beta u v,        the load - int g (a d_nu v) + int beta g v,

which is consistent, symmetric, and positive if beta is large enough (Nitsche 1971). The smallest sufficient beta
depends on how little surface a cell has for its length of rim. It is found for each element, from the largest
eigenvalue of the flux relative to the stiffness of the element. Neumann and Robin conditions are natural. Dirichlet
values on a part of the surface and at single points are enforced by a penalty. A flux g - c u through a part P of the
surface adds int_P c u v to K and int_P g v to the load.

With v = 1 at the points of one condition these terms are the flux that enters through it. No term is left out, so the
flux through all conditions balances the sources exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lamina.grid.cut_surface import CutSurface
from lamina.shapes import Bool, Float, Int, shaped
from lamina.spaces.galerkin import directional_derivatives
from lamina.spaces.scheme import FLUX, VALUE

# beta is this many times the largest eigenvalue of the flux relative to the stiffness of an element. With less than 2
# the matrix might not be positive; a larger factor enforces the values more strictly at a worse condition number.
NITSCHE_SAFETY_FACTOR = 2.5
# beta lies between these bounds, in units of 1/dx. The lower one enforces values where an element has hardly any
# flux, the upper one bounds the condition number where an element has hardly any surface. They were chosen by trial.
MIN_NITSCHE_PENALTY = 4.0
MAX_NITSCHE_PENALTY = 1e5
# Share of its mean diagonal that is added to the stiffness of an element, which is singular, before its inverse is
# used. It is far below all eigenvalues that count, and at least 16 roundings.
STIFFNESS_SHIFT = 1e-9
# Penalty of Dirichlet values on a part of the surface, in units of 1/dx^2. A smaller one lets the solution deviate from
# the values, a larger one takes more cycles. It was chosen by trial.
PART_PENALTY = 100.0
# Penalty of a Dirichlet value at a single point, without unit: the stiffness of a function has none. With half of it
# the solution deviates twice as much from the value. It was chosen by trial.
POINT_PENALTY = 1e4


@shaped
@dataclass(frozen=True)
class FixedPoints:
    """Single points whose values are given by Dirichlet conditions."""

    element: Int[Tensor, " p"]
    local: Float[Tensor, "p 3"]  # coordinates in the cell of the element
    condition: Int[Tensor, " p"]  # the number of the condition

    def joined(self, other: FixedPoints) -> FixedPoints:
        pairs = ((self.element, other.element), (self.local, other.local), (self.condition, other.condition))
        return FixedPoints(*(torch.cat(pair) for pair in pairs))


@shaped
@dataclass(frozen=True)
class ConditionsAtPoints:
    """Which condition holds at each point of the rim and of the surface, and of what kind it is.

    Conditions are known by their numbers; -1 stands for none. A kind is FREE, VALUE or FLUX. robin is the coefficient
    of u in a given flux.
    """

    rim: Int[Tensor, " r"]  # the number of the condition at the points of the rim
    rim_kind: Int[Tensor, " r"]
    rim_robin: Float[Tensor, " r"]
    rim_diffusivity: Tensor | None  # (r,) or (r, 3, 3); None: 1
    part: Int[Tensor, " q"] | None = None  # the number of the condition at the quadrature points of the surface
    part_kind: Int[Tensor, " q"] | None = None
    part_robin: Float[Tensor, " q"] | None = None
    fixed_points: FixedPoints | None = None


@shaped
@dataclass(frozen=True)
class Boundary:
    """The points at which conditions take values g (n,), and what conditions add to the load and to the stiffness."""

    points: Float[Tensor, "n 3"]
    condition: Int[Tensor, " n"]
    element: Int[Tensor, " n"]
    rows: Float[Tensor, "n k"]  # contribution to the load for g = 1
    share: Float[Tensor, " n"]  # factor of the rows in the flux that u takes: 1, or the coefficient of Robin
    matrix: Float[Tensor, "e k k"]  # contribution to the stiffness
    fixes_values: Bool[Tensor, " e"]  # whether a condition fixes values in an element, not only the flux

    def load(self, cut: CutSurface, g: Tensor) -> Tensor:
        out = self.rows.new_zeros(cut.unknowns)
        return out.index_add_(0, cut.unknown[self.element].reshape(-1), (self.rows * g[:, None]).reshape(-1))

    def fluxes(self, cut: CutSurface, u: Tensor, g: Tensor, count: int) -> Tensor:
        """The flux (count,) that enters the surface through each condition, for unknowns u and values g (n,)."""
        taken = self.share * (self.rows * u[cut.unknown[self.element]]).sum(1)
        return u.new_zeros(count).index_add_(0, self.condition, self.rows.sum(1) * g - taken)


def boundary(cut: CutSurface, conditions: ConditionsAtPoints, K: Tensor) -> Boundary:
    """The terms of the conditions. K (e, k, k): stiffness of the elements, without conditions."""
    matrix = torch.zeros_like(K)
    fixes_values = torch.zeros(len(K), dtype=torch.bool, device=K.device)
    points, condition, elements, rows, shares = [], [], [], [], []

    def add(x: Tensor, number: Tensor, element: Tensor, row: Tensor, share: Tensor) -> None:
        points.append(x)
        condition.append(number)
        elements.append(element)
        rows.append(row)
        shares.append(share)

    def penalise(x: Tensor, number: Tensor, element: Tensor, phi: Tensor, scale: Tensor) -> None:
        row = scale[:, None] * phi
        matrix.index_add_(0, element, row[:, :, None] * phi[:, None, :])
        fixes_values[element] = True
        add(x, number, element, row, torch.ones_like(scale))

    def flow(x: Tensor, number: Tensor, element: Tensor, phi: Tensor, w: Tensor, robin: Tensor) -> None:
        matrix.index_add_(0, element, (w * robin)[:, None, None] * phi[:, :, None] * phi[:, None, :])
        fixes_values[element[robin > 0]] = True
        add(x, number, element, w[:, None] * phi, robin)

    rim, h, basis = cut.rim, cut.spacing, cut.basis
    if rim is not None and len(conditions.rim_kind):
        value, given = ((conditions.rim_kind == k).nonzero()[:, 0] for k in (VALUE, FLUX))
        if len(value):
            element, w = rim.element[value], rim.weights[value]
            phi, gradient = basis.values(rim.local[value]), basis.gradients(rim.local[value])
            direction = rim.outward[value]
            if conditions.rim_diffusivity is not None:
                a = conditions.rim_diffusivity[value]
                direction = a[:, None] * direction if a.ndim == 1 else torch.einsum("nij,nj->ni", a, direction)
            if cut.degree > 1:
                direction = rim.frames.take(value).flat_direction(direction)
            flux = directional_derivatives(gradient, direction) / h
            beta = _safe_beta(element, flux, w, K, h)
            row = w[:, None] * (beta[:, None] * phi - flux)
            matrix.index_add_(0, element, row[:, :, None] * phi[:, None, :])
            matrix.index_add_(0, element, -w[:, None, None] * phi[:, :, None] * flux[:, None, :])
            add(rim.points[value], conditions.rim[value], element, row, torch.ones_like(w))
            fixes_values[element] = True
        if len(given):
            phi = basis.values(rim.local[given])
            flow(
                rim.points[given], conditions.rim[given], rim.element[given], phi, rim.weights[given],
                conditions.rim_robin[given],
            )  # fmt: skip
    if conditions.part is not None and conditions.part_kind is not None and conditions.part_robin is not None:
        for kind in (VALUE, FLUX):
            here = (conditions.part_kind == kind).nonzero()[:, 0]
            x, number, element = cut.quadrature.points[here], conditions.part[here], cut.element[here]
            phi, w = basis.values(cut.local[here]), cut.quadrature.weights[here]
            if kind == VALUE:
                penalise(x, number, element, phi, PART_PENALTY / h**2 * w)
            else:
                flow(x, number, element, phi, w, conditions.part_robin[here])
    fixed = conditions.fixed_points
    if fixed is not None:
        x = cut.lattice.position(cut.elements.cell[fixed.element]) + h * fixed.local
        phi = basis.values(fixed.local)
        penalise(x, fixed.condition, fixed.element, phi, torch.full_like(phi[:, 0], POINT_PENALTY))
    n, c, e, r, s = (torch.cat(parts) for parts in (points, condition, elements, rows, shares))
    return Boundary(n, c, e, r, s, matrix, fixes_values)


def _safe_beta(element: Tensor, flux: Tensor, weights: Tensor, K: Tensor, spacing: float) -> Tensor:
    """beta (n,) for the points of each element, from the largest eigenvalue of int flux flux^T relative to K."""
    own, index = torch.unique(element, return_inverse=True)
    count = flux.shape[1]
    products = (weights[:, None, None] * flux[:, :, None] * flux[:, None, :]).reshape(-1, count**2)
    total = flux.new_zeros(len(own), count**2).index_add_(0, index, products).reshape(-1, count, count).cpu()
    stiffness = K[own].cpu()
    # Constants have neither stiffness nor flux: a small shift makes the stiffness definite.
    shift = max(STIFFNESS_SHIFT, 16 * torch.finfo(K.dtype).eps) * stiffness.diagonal(dim1=1, dim2=2).mean(1)
    values, vectors = torch.linalg.eigh(stiffness + shift[:, None, None] * torch.eye(count, dtype=K.dtype))
    half = vectors / values.clamp_min(torch.finfo(K.dtype).tiny).sqrt()[:, None, :]
    scaled = half.transpose(1, 2) @ total @ half
    largest = torch.linalg.eigvalsh(0.5 * (scaled + scaled.transpose(1, 2)))[:, -1].to(K)
    beta = NITSCHE_SAFETY_FACTOR * largest
    return beta.clamp(MIN_NITSCHE_PENALTY / spacing, MAX_NITSCHE_PENALTY / spacing)[index]
