"""Element matrices on cut cells: stiffness, mass, and the stabilisation of cells that hold little of the surface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint as recompute_later

from lamina.geometry.basis import Q1, Q2, from_corners, gauss_points
from lamina.geometry.lattice import OCTANTS
from lamina.grid.cut_surface import CutSurface
from lamina.linear.adjoint import System, solve
from lamina.linear.assembly import assemble
from lamina.linear.components import column
from lamina.linear.krylov import KrylovResult, conjugate_gradients
from lamina.linear.operator import SparseOperator


@dataclass(frozen=True)
class StabilisationWeights:
    """The factor rho of the stabilisation, by how much the surface turns within a cell."""

    flat: float
    beside_turn: float
    at_turn: float


# rho for trilinear functions. It is small where the surface turns, because no single normal is right there. Compared
# with 0.1 in all cells, these three values divide the error on CAD models by 4 to 7 and take up to twice as many
# cycles (docs/theory.md).
STABILISATION_Q1 = StabilisationWeights(0.05, 0.02, 3e-3)
# rho for quadratic functions. On the sphere, half of the value for flat cells gives 0.9 times the error and 1.4 times
# the cycles, twice the value gives 1.14 times the error and 0.85 times the cycles. At a turn a larger rho costs
# accuracy: on three balls joined by necks, with 23,000 unknowns, the error is 2.0e-4 if rho is 0.1 in all cells, and
# 6e-5 with these.
STABILISATION_Q2 = StabilisationWeights(0.1, 0.02, 0.01)
# Stiffness in the mass matrix of trilinear functions, in units of dx^2. These functions make a wave of wave number k
# too stiff by a share of 0.038 k^2 dx^2, the mean over all directions in which a plane can cut the lattice. The mass
# with this term is too heavy by the same share, so the two errors cancel. Half of the value would leave half of the
# error, twice the value the same error with the other sign.
MASS_CORRECTION = 0.038
# Stabilisation in the mass matrix, in units of dx^2. With 0.3 a short time step takes 7 iterations, with 0.1 it takes
# 10, and with 0.03 it takes 15. With 0.3 the 81st of 800 modes of a coarse sphere is 8 % too low, with 0.1 less than
# 7 %.
MASS_STABILISATION = 0.1
# A cell with less than this area of surface, in units of dx^2, gets the tangential stiffness of this area. It is a
# tenth of the area below which a neighbour absorbs a cell, so it concerns only cells without such a neighbour. A
# smaller value makes conjugate gradients slower, a larger one stiffens more cells. It was chosen by trial.
MIN_STIFFNESS_AREA = 2e-3
# order="auto" takes order 3 if the RMS difference between the normals of the surface and their trilinear fit is at
# most this number. It was chosen on five shapes at two sizes. On the bunny network order 3 has a sixth of the error
# at 0.06 and 1 / 1.4 of it at 0.16; on ReLU networks (hammer, gear) it has up to 2.4 times the error from 0.18 on.
# Half of the value would give up the gain at 0.06; twice the value would take order 3 on the ReLU networks.
# benchmarks/orders.py tests it on other shapes.
MAX_ROUGHNESS_FOR_ORDER_3 = 0.1
# A direction is the normal of a place without reduction if the largest eigenvalue of the mean of n n^T there exceeds
# the sum of the other two by this number (all three add up to 1). Below, its stabilisation falls linearly to 0. It
# was chosen by trial.
MIN_EIGENVALUE_GAP = 0.1
# The trace of a projected tensor n n^T, which is about 1, is taken as at least this number before dividing by it.
MIN_TENSOR_TRACE = 1e-3
# Relative residual of the projection of normals, far below the error of the projection itself.
NORMALS_TOLERANCE = 1e-9
# Basis functions whose values are made at a time: few enough for the caches of a CPU, many enough to keep a GPU busy.
BASIS_VALUES_PER_CHUNK = {"cpu": 2**16, "cuda": 2**21}


def element_matrices(cut: CutSurface, diffusivity: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """K with its stabilisation, and M, both (e, k, k).

    diffusivity: (q,) or (q, 3, 3) at the quadrature points, 1 unless given. Only its tangential part counts.
    """
    plain, stabilising = surface_stiffness(cut), stabilisation(cut)
    mass = mass_matrices(cut, stiffness=plain, stabilising=stabilising)
    stiffness = plain if diffusivity is None else surface_stiffness(cut, diffusivity)
    if cut.degree == 1:
        stabilising = stabilising + sliver_stiffness(cut)
    return stiffness + _mean_over_elements(cut, diffusivity) * stabilising, mass


def mass_matrices(
    cut: CutSurface,
    density: Tensor | None = None,
    *,
    stiffness: Tensor | None = None,
    stabilising: Tensor | None = None,
) -> Tensor:
    """M (e, k, k) as in `element_matrices`, with a density (q,) at the quadrature points.

    stiffness, stabilising: the stiffness with this density and the stabilisation, where they are known already.

    For trilinear functions the mass gets MASS_CORRECTION dx^2 times the stiffness of the surface. These functions
    make a wave too stiff by a share that grows with its squared wave number times dx^2. The correction makes the wave
    heavier by the same share, so that discrete eigenvalues are several times more accurate. (A lumped mass
    overcorrects them: Fried and Chavez 2004.) Constants have no stiffness, so integrals do not change.

    For all functions the mass gets MASS_STABILISATION dx^2 times the stabilisation. A function that vanishes on the
    surface has no mass otherwise. It would then have next to no energy in K + c M if a time step is short and c is
    large, and conjugate gradients would take 20 to 90 iterations instead of 10.
    """
    mass = consistent_mass(cut, density)
    stabilising = stabilisation(cut) if stabilising is None else stabilising
    mass = mass + MASS_STABILISATION * cut.spacing**2 * _mean_over_elements(cut, density) * stabilising
    if cut.degree > 1:
        return mass
    stiffness = surface_stiffness(cut, density) if stiffness is None else stiffness
    return mass + MASS_CORRECTION * cut.spacing**2 * stiffness


def surface_stiffness(cut: CutSurface, diffusivity: Tensor | None = None) -> Tensor:
    """sum_q w_q a (P grad phi_i).(P grad phi_j) for every element."""
    frames, basis = cut.frames, cut.basis
    weights = cut.quadrature.weights / cut.spacing**2
    if cut.conductivity is not None:
        weights = weights * cut.conductivity
    if diffusivity is not None and diffusivity.ndim == 1:
        weights = weights * diffusivity
    tensor = diffusivity if diffusivity is not None and diffusivity.ndim == 3 else None

    def products(here: slice) -> Tensor:
        gradient = basis.gradients(cut.local[here])
        along = torch.stack([directional_derivatives(gradient, t) for t in frames.flat[here].unbind(1)], 1)  # (q, 2, k)
        flux = along * weights[here, None, None]
        if tensor is not None:
            tangent = frames.lifted[here]
            flux = torch.bmm(torch.bmm(tangent, torch.bmm(tensor[here], tangent.transpose(1, 2))), flux)
        return _over_pieces(cut, along, flux)

    return _over_elements(cut, products, weights, frames.flat, tensor)


def consistent_mass(cut: CutSurface, density: Tensor | None = None) -> Tensor:
    """sum_q w_q density_q phi_i phi_j for every element; density (q,), 1 unless given."""
    weights = cut.quadrature.weights if density is None else cut.quadrature.weights * density
    basis = cut.basis

    def products(here: slice) -> Tensor:
        phi = basis.values(cut.local[here])
        return _over_pieces(cut, phi, phi * weights[here, None])

    return _over_elements(cut, products, weights)


def _over_elements(cut: CutSurface, products: Callable[[slice], Tensor], *carriers: Tensor | None) -> Tensor:
    """The sum (e, k, k) of the products (p, k^2) of the pieces of each element, a chunk of pieces at a time.

    The points of a piece are consecutive. carriers: tensors that may carry gradients, besides the positions of the
    points.
    """
    count = cut.basis.count
    out = cut.local.new_zeros(cut.elements.active, count * count)
    tracked = any(t is not None and t.requires_grad for t in (cut.local, *carriers)) and torch.is_grad_enabled()
    size = cut.per_piece * max(1, 3 * BASIS_VALUES_PER_CHUNK[cut.local.device.type] // (cut.per_piece * count))
    for i in range(0, len(cut.local), size):
        here = slice(i, i + size)
        # The intermediate values of a chunk are many times larger than its result: backward computes them again.
        found = recompute_later(products, here, use_reentrant=False) if tracked else products(here)
        out = out.index_add_(0, cut.element[here][:: cut.per_piece], cast(Tensor, found))
    return out.reshape(-1, count, count)


def _over_pieces(cut: CutSurface, a: Tensor, b: Tensor) -> Tensor:
    """a^T b (p, k^2) for the functions (q, ..., k) at the points of each piece."""
    count = a.shape[-1]
    rows = cut.per_piece * (a[0].numel() // count)
    return torch.bmm(a.reshape(-1, rows, count).transpose(1, 2), b.reshape(-1, rows, count)).reshape(-1, count * count)


def directional_derivatives(gradient: Sequence[Tensor], direction: Tensor) -> Tensor:
    """Derivatives (n, k) of k functions in directions (n, 3), from the three components (n, k) of their gradients."""
    x, y, z = direction.unbind(1)
    out = gradient[0] * x[:, None]
    return out.addcmul_(gradient[1], y[:, None]).addcmul_(gradient[2], z[:, None])


def _mean_over_elements(cut: CutSurface, diffusivity: Tensor | None) -> Tensor | float:
    """Mean of a diffusivity or a density over each element (e, 1, 1). The stabilisation is proportional to it."""
    if diffusivity is None:
        return 1.0
    if diffusivity.ndim == 3:
        normal = cut.quadrature.normals
        across = torch.einsum("qa,qab,qb->q", normal, diffusivity, normal)
        diffusivity = (diffusivity.diagonal(dim1=1, dim2=2).sum(1) - across) / 2
    weights = cut.quadrature.weights
    total = weights.new_zeros(2, cut.elements.active)
    total.index_add_(1, cut.element, torch.stack([weights * diffusivity, weights]))
    return (total[0] / total[1].clamp_min(torch.finfo(total.dtype).tiny))[:, None, None]


# Stabilisation: fields are held constant along normals


def stabilisation(cut: CutSurface) -> Tensor:
    """(rho/dx) times the integral over each whole cell of (n.grad phi_i)(n.grad phi_j).

    For trilinear functions n is the mean normal of the cell. Where the surface turns within the cell, no direction is
    normal to all of the surface, and the faces on both sides determine the gradient already: rho is small there. The
    neighbouring cells share corners with such a cell, so rho is reduced in them, too.

    Quadratic functions need a normal that follows that of the surface to second order within the cell. It is the
    principal direction of `normal_tensors` at 3^3 Gauss points.
    """
    if cut.degree > 1:
        return _stabilisation_q2(cut)
    rho = _stabilisation_factor(cut, STABILISATION_Q1)
    return _quadratic(rho[:, None, None] * cut.normal[:, :, None] * cut.normal[:, None, :])


def _stabilisation_factor(cut: CutSurface, weights: StabilisationWeights) -> Tensor:
    """rho (e,), by how much the surface turns within each cell and within the cells around it."""
    unknown = cut.elements.unknown
    corner = cut.flatness.new_ones(cut.elements.unknowns)
    corner.scatter_reduce_(0, unknown.reshape(-1), cut.flatness.repeat_interleave(8), "amin")
    around = corner[unknown].amin(1)
    flat, beside, turned = weights.flat, weights.beside_turn, weights.at_turn
    return turned + (beside - turned) * cut.flatness**8 + (flat - beside) * around**8


def _stabilisation_q2(cut: CutSurface) -> Tensor:
    corner = normal_tensors(cut)[cut.elements.unknown]  # (e, 8, 6)
    t, weight = gauss_points(3, corner.dtype, corner.device)
    at_corner, gradient = Q1.values(t), torch.stack(Q2.gradients(t), 1)  # (g, 8), (g, 3, 27)
    rho = _stabilisation_factor(cut, STABILISATION_Q2)
    out, size = [], max(1, BASIS_VALUES_PER_CHUNK[corner.device.type] // (len(t) * Q2.count))
    for part, factor in zip(corner.split(size), rho.split(size), strict=True):
        n = _principal(at_corner @ part)  # (c, g, 3)
        slope = torch.einsum("cga,gai->cgi", n, gradient)
        out.append(torch.bmm((factor[:, None, None] * weight[:, None] * slope).transpose(1, 2), slope))
    return torch.cat(out)


def normal_tensors(cut: CutSurface) -> Tensor:
    """n n^T of the surface as a trilinear function (corners, 6), with entries xx, yy, zz, yz, zx, xy.

    It is the L2 projection, stabilised along the mean normal of each cell. It is of second order on a smooth surface
    and around it. The sign of a normal does not count, so faces of a mesh may look to either side.
    """
    basis, unknown, count = Q1, cut.elements.unknown, cut.elements.unknowns
    weights, element = cut.quadrature.weights, cut.element
    mass = weights.new_zeros(cut.elements.active, 64)
    load = weights.new_zeros(cut.elements.active, 48)
    size = cut.per_piece * max(1, 3 * BASIS_VALUES_PER_CHUNK[weights.device.type] // (cut.per_piece * 8))
    for i in range(0, len(element), size):
        here = slice(i, i + size)
        phi = basis.values(cut.local[here])
        weighted = phi * weights[here, None]
        owner = element[here][:: cut.per_piece]
        mass = mass.index_add(0, owner, _over_pieces(cut, phi, weighted))
        rows = (-1, cut.per_piece)
        tensor = _tensor(cut.quadrature.normals[here])
        moment = torch.bmm(weighted.reshape(*rows, 8).transpose(1, 2), tensor.reshape(*rows, 6))
        load = load.index_add(0, owner, moment.reshape(-1, 48))
    stabilising = cut.spacing**2 * _quadratic(STABILISATION_Q1.flat * cut.normal[:, :, None] * cut.normal[:, None, :])
    pattern, (values,) = assemble(unknown, count, [mass.reshape(-1, 8, 8) + stabilising])
    g = weights.new_zeros(count, 6).index_add(0, unknown.reshape(-1), load.reshape(-1, 6))
    constant = values.detach()
    matrix = SparseOperator(pattern.matrix(constant), values if values.requires_grad else None)
    return solve_mass_system(matrix, 1 / constant[pattern.diagonal], g, NORMALS_TOLERANCE)


def _tensor(n: Tensor) -> Tensor:
    """n n^T (..., 6) of vectors (..., 3)."""
    x, y, z = n.unbind(-1)
    return torch.stack([x * x, y * y, z * z, y * z, z * x, x * y], -1)


def _principal(tensor: Tensor) -> Tensor:
    """The eigenvector (..., 3) of the largest eigenvalue of symmetric tensors (..., 6).

    Its length is 1 where that eigenvalue exceeds the sum of the others by MIN_EIGENVALUE_GAP. It is shorter where faces
    of several directions meet: no direction is normal to all of them, and they determine the gradient without it.
    """
    tensor = tensor / tensor[..., :3].sum(-1, keepdim=True).clamp_min(MIN_TENSOR_TRACE)
    power = tensor
    for _ in range(4):  # the 16th power, in which only the largest eigenvalue remains
        xx, yy, zz, yz, zx, xy = power.unbind(-1)
        power = torch.stack(
            [
                xx * xx + xy * xy + zx * zx,
                yy * yy + xy * xy + yz * yz,
                zz * zz + zx * zx + yz * yz,
                xy * zx + yy * yz + yz * zz,
                xx * zx + xy * yz + zx * zz,
                xx * xy + xy * yy + zx * yz,
            ],
            -1,
        )
        power = power / power[..., :3].sum(-1, keepdim=True).clamp_min(torch.finfo(power.dtype).tiny)
    column = power[..., _COLUMNS].reshape(*power.shape[:-1], 3, 3)
    longest = power[..., :3].argmax(-1)
    n = column.gather(-2, longest[..., None, None].expand(*longest.shape, 1, 3))[..., 0, :]
    n = n / n.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(n.dtype).tiny)
    largest = (_tensor(n) * tensor * tensor.new_tensor([1.0, 1.0, 1.0, 2.0, 2.0, 2.0])).sum(-1, keepdim=True)
    return n * ((2 * largest - 1) / MIN_EIGENVALUE_GAP).clamp(0, 1)


_COLUMNS = [0, 5, 4, 5, 1, 3, 4, 3, 2]  # where the entries xx, yy, zz, yz, zx, xy stand in the 3 x 3 matrix


@torch.no_grad()
def roughness(cut: CutSurface) -> float:
    """RMS difference between the normals of the surface, up to their sign, and their trilinear fit on the cells.

    It measures how much of the turning of the surface the grid cannot represent. On a smooth surface it falls like
    dx^2.
    """
    field, weights = normal_tensors(cut), cut.quadrature.weights
    total = weights.new_zeros(())
    size = max(1, 3 * BASIS_VALUES_PER_CHUNK[weights.device.type] // 8)
    for i in range(0, len(weights), size):
        here = slice(i, i + size)
        there = (Q1.values(cut.local[here])[:, None] @ field[cut.elements.unknown[cut.element[here]]])[:, 0]
        away = (there - _tensor(cut.quadrature.normals[here])).square()
        # |n n^T - m m^T|^2 is twice |n - m|^2 for normals that are nearly the same.
        total += (weights[here] * (0.5 * away[:, :3].sum(1) + away[:, 3:].sum(1))).sum()
    return float((total / weights.sum()).sqrt())


def smooth_enough_for_order_3(cut: CutSurface) -> tuple[bool, str]:
    """Whether quadratic functions on these cells should be more accurate than as many trilinear ones on smaller cells.

    The second result is the reason, in words.
    """
    found, limit = roughness(cut), MAX_ROUGHNESS_FOR_ORDER_3
    compared = f"its normals differ from what cells show of them by {found:.2g}, at most {limit:g} for order 3"
    if found <= limit:
        return True, f"the grid sees how the surface turns: {compared}"
    return False, f"the surface turns within cells: {compared}"


def solve_mass_system(matrix: SparseOperator, inverse: Tensor, g: Tensor, tolerance: float) -> Tensor:
    """v with matrix v = g, by conjugate gradients for a mass matrix. inverse: one over its diagonal."""

    def krylov(b: Tensor, size: Tensor | None) -> KrylovResult:
        return conjugate_gradients(
            lambda v: matrix.matrix @ v, b, precondition=lambda r: column(inverse, r) * r, tolerance=tolerance
        )

    entries = () if matrix.values is None else (matrix.values,)
    return solve(System(krylov, krylov, entries, lambda v, u: (-matrix.outer_at_entries(v, u),)), g).solution


def sliver_stiffness(cut: CutSurface) -> Tensor:
    """Tangential stiffness (e, 8, 8) that gives every cell as much as MIN_STIFFNESS_AREA dx^2 of surface would.

    It concerns cells with little surface that no neighbour could absorb, such as the tips of tiny parts. Without it
    conjugate gradients converge very slowly.
    """
    area = torch.zeros_like(cut.normal[:, 0]).index_add_(0, cut.element, cut.quadrature.weights) / cut.spacing**2
    small = (area < MIN_STIFFNESS_AREA).nonzero()[:, 0]
    normal = cut.normal[small]
    tangent = torch.eye(3, dtype=area.dtype, device=area.device) - normal[:, :, None] * normal[:, None, :]
    out = area.new_zeros(len(area), 8, 8)
    out[small] = _quadratic((MIN_STIFFNESS_AREA - area[small])[:, None, None] * tangent)
    return out


def _quadratic(D: Tensor) -> Tensor:
    """The integrals (e, 8, 8) of grad phi_i . D grad phi_j over the unit cell, D (e, 3, 3)."""
    return (D.reshape(-1, 9) @ _gradient_moments(D.dtype, D.device)).reshape(-1, 8, 8)


@lru_cache
def _gradient_moments(dtype: torch.dtype, device: torch.device) -> Tensor:
    """The integrals (9, 64) of d_a phi_i d_b phi_j over the unit cell; two Gauss points an axis are exact."""
    t, weight = gauss_points(2, torch.float64, torch.device("cpu"))
    gradient = torch.stack(Q1.gradients(t), -1)  # (8 points, 8 functions, 3)
    moments = torch.einsum("q,qia,qjb->abij", weight, gradient, gradient)
    return moments.reshape(9, 64).to(device=device, dtype=dtype)


@lru_cache
def child_interpolation(dtype: torch.dtype, device: torch.device) -> Tensor:
    """T (8, 8, 8): T[o, i, j] is the value of coarse function j at corner i of the child cell in octant o."""
    octants = OCTANTS.to(device=device, dtype=dtype)
    position = 0.5 * (octants[:, None] + octants[None])
    return Q1.values(position.reshape(-1, 3)).reshape(8, 8, 8)


def on_corners(E: Tensor) -> Tensor:
    """Element matrices (e, 8, 8) of trilinear functions, from those (e, 27, 27) of quadratic ones on the same cells."""
    T = from_corners(Q2, E.dtype, E.device)
    return T.T @ E @ T
