"""Boundary conditions of the trace scheme, by Nitsche's method.

For u = g on a rim with the unit tangent nu outward, K gets

    - int (a d_nu u) v - int u (a d_nu v) + int beta u v,        the load - int g (a d_nu v) + int beta g v,

which is consistent, symmetric, and positive for beta large enough (Nitsche 1971). How large depends on how little
surface a cell has for its length of rim; beta is found for each element, from the largest eigenvalue of the flux
against the stiffness in it. Neumann and Robin conditions are natural. Places inside the surface are held by a penalty;
a flux g - c u through a part P of the surface adds int_P c u v to K and int_P g v to the load.

With v = 1 at the points of one condition these terms are the flux that enters through it, and no term is left out:
what enters through all conditions is what sources take out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lamina.grid.cut_surface import CutSurface
from lamina.spaces.galerkin import directional
from lamina.spaces.scheme import FLUX, VALUE

SAFE = 2.5  # beta over the largest eigenvalue: with less than 2 it might not be positive
LEAST, MOST = 4.0, 1e5  # beta dx
REGION = 100.0  # penalty dx^2 on a part of the surface
PIN = 1e4  # penalty at a point


@dataclass(frozen=True)
class Asked:
    """What conditions ask for; c of them, by number."""

    condition: Tensor  # (r,) int64 at the points of the rim; -1: nothing
    kind: Tensor  # (r,) FREE, VALUE or FLUX
    robin: Tensor  # (r,) what u is multiplied with where the flux is given
    conductivity: Tensor | None  # (r,) or (r, 3, 3), the diffusivity there
    region: Tensor | None = None  # (q,) int64 at the quadrature points of the surface: the condition, or -1
    region_kind: Tensor | None = None  # (q,) FREE, VALUE or FLUX
    region_robin: Tensor | None = None  # (q,) what u is multiplied with where the flux is given
    pin_element: Tensor | None = None  # (p,) int64
    pin_local: Tensor | None = None  # (p, 3)
    pin_condition: Tensor | None = None  # (p,) int64


@dataclass(frozen=True)
class Boundary:
    """Where conditions want values g (n,), what g adds to the load, and what they add to the stiffness."""

    points: Tensor  # (n, 3)
    condition: Tensor  # (n,) int64
    element: Tensor  # (n,)
    rows: Tensor  # (n, k) of the load, for g = 1
    share: Tensor  # (n,) what multiplies the rows to give the flux that u takes away: 1, or the coefficient of Robin
    matrix: Tensor  # (e, k, k)
    holds: Tensor  # (e,) bool, whether something holds the values in an element, not just the flux

    def load(self, cut: CutSurface, g: Tensor) -> Tensor:
        out = self.rows.new_zeros(cut.unknowns)
        return out.index_add_(0, cut.unknown[self.element].reshape(-1), (self.rows * g[:, None]).reshape(-1))

    def fluxes(self, cut: CutSurface, u: Tensor, g: Tensor, count: int) -> Tensor:
        """What enters the surface (count,) through each condition, for unknowns u and values g (n,)."""
        taken = self.share * (self.rows * u[cut.unknown[self.element]]).sum(1)
        return u.new_zeros(count).index_add_(0, self.condition, self.rows.sum(1) * g - taken)


def boundary(cut: CutSurface, asked: Asked, K: Tensor) -> Boundary:
    """K (e, k, k): stiffness of the elements, without conditions."""
    matrix = torch.zeros_like(K)
    holds = torch.zeros(len(K), dtype=torch.bool, device=K.device)
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
        holds[element] = True
        add(x, number, element, row, torch.ones_like(scale))

    def flow(x: Tensor, number: Tensor, element: Tensor, phi: Tensor, w: Tensor, robin: Tensor) -> None:
        matrix.index_add_(0, element, (w * robin)[:, None, None] * phi[:, :, None] * phi[:, None, :])
        holds[element[robin > 0]] = True
        add(x, number, element, w[:, None] * phi, robin)

    rim, h, basis = cut.rim, cut.spacing, cut.basis
    if rim is not None and len(asked.kind):
        value, given = ((asked.kind == k).nonzero()[:, 0] for k in (VALUE, FLUX))
        if len(value):
            element, w = rim.element[value], rim.weights[value]
            phi, gradient = basis.values(rim.local[value]), basis.gradients(rim.local[value])
            towards = rim.outward[value]
            if asked.conductivity is not None:
                a = asked.conductivity[value]
                towards = a[:, None] * towards if a.ndim == 1 else torch.einsum("nij,nj->ni", a, towards)
            if cut.degree > 1:
                towards = rim.frames.take(value).flat_direction(towards)
            flux = directional(gradient, towards) / h
            beta = _safe_beta(element, flux, w, K, h)
            row = w[:, None] * (beta[:, None] * phi - flux)
            matrix.index_add_(0, element, row[:, :, None] * phi[:, None, :])
            matrix.index_add_(0, element, -w[:, None, None] * phi[:, :, None] * flux[:, None, :])
            add(rim.points[value], asked.condition[value], element, row, torch.ones_like(w))
            holds[element] = True
        if len(given):
            phi = basis.values(rim.local[given])
            flow(
                rim.points[given], asked.condition[given], rim.element[given], phi, rim.weights[given],
                asked.robin[given],
            )  # fmt: skip
    if asked.region is not None and asked.region_kind is not None and asked.region_robin is not None:
        for kind in (VALUE, FLUX):
            here = (asked.region_kind == kind).nonzero()[:, 0]
            x, number, element = cut.quadrature.points[here], asked.region[here], cut.element[here]
            phi, w = basis.values(cut.local[here]), cut.quadrature.weights[here]
            if kind == VALUE:
                penalise(x, number, element, phi, REGION / h**2 * w)
            else:
                flow(x, number, element, phi, w, asked.region_robin[here])
    if asked.pin_element is not None and asked.pin_local is not None and asked.pin_condition is not None:
        x = cut.lattice.position(cut.elements.cell[asked.pin_element]) + h * asked.pin_local
        phi = basis.values(asked.pin_local)
        penalise(x, asked.pin_condition, asked.pin_element, phi, torch.full_like(phi[:, 0], PIN))
    n, c, e, r, s = (torch.cat(parts) for parts in (points, condition, elements, rows, shares))
    return Boundary(n, c, e, r, s, matrix, holds)


def _safe_beta(element: Tensor, flux: Tensor, weights: Tensor, K: Tensor, spacing: float) -> Tensor:
    """beta (n,) for the points of each element: SAFE times the largest eigenvalue of int flux flux^T against K."""
    own, place = torch.unique(element, return_inverse=True)
    count = flux.shape[1]
    products = (weights[:, None, None] * flux[:, :, None] * flux[:, None, :]).reshape(-1, count**2)
    total = flux.new_zeros(len(own), count**2).index_add_(0, place, products).reshape(-1, count, count).cpu()
    stiffness = K[own].cpu()
    # Constants have neither stiffness nor flux.
    lift = max(1e-9, 16 * torch.finfo(K.dtype).eps) * stiffness.diagonal(dim1=1, dim2=2).mean(1)
    values, vectors = torch.linalg.eigh(stiffness + lift[:, None, None] * torch.eye(count, dtype=K.dtype))
    half = vectors / values.clamp_min(torch.finfo(K.dtype).tiny).sqrt()[:, None, :]
    scaled = half.transpose(1, 2) @ total @ half
    largest = torch.linalg.eigvalsh(0.5 * (scaled + scaled.transpose(1, 2)))[:, -1].to(K)
    return (SAFE * largest).clamp(LEAST / spacing, MOST / spacing)[place]
