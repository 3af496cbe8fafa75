"""Element matrices on cut cells: stiffness, mass, and what keeps cells stable that the surface barely enters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

STABILISATION = 0.05, 0.02, 3e-3  # rho in flat cells, in those beside a turn of the surface, and at the turn
# The same for quadratic functions. In flat cells half of it gives errors 0.9 times and cycles 1.4 times as large, twice
# as much 1.14 times and 0.85 times (sphere). At a turn more of it costs accuracy: three balls joined by necks, 23,000
# unknowns, have an error of 2.0e-4 with 0.1 everywhere and of 6e-5 with less there.
STABILISATION_Q2 = 0.1, 0.02, 0.01
MASS_CORRECTION = 0.038
# Share of the stabilisation, times dx^2, in the mass. With 0.3 short time steps take 7 iterations instead of 10, but
# the 81st of 800 modes of a coarse sphere is 8% too low instead of less than 7%; with 0.03 steps take 15.
HELD_MASS = 0.1
LEAST_AREA = 2e-3  # dx^2 of surface that every cell is taken to have
# RMS difference between the normals of a surface and what the grid shows of them, up to which order 3 is taken. It was
# chosen on five shapes at two sizes: on the bunny network order 3 errs six times less at 0.06 and 1.4 times less at
# 0.16, on ReLU networks (hammer, gear) up to 2.4 times more from 0.18 on. benchmarks/orders.py judges it on others.
ROUGHEST = 0.1
# By how much the largest eigenvalue of a mean of n n^T must exceed the others together (both add up to 1) for its
# direction to be held in full.
CLEAR = 0.1
CHUNK = {"cpu": 2**16, "cuda": 2**21}  # values of basis functions at a time, times 3


def element_matrices(cut: CutSurface, diffusivity: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """K, stabilisation included, and M, both (e, k, k).

    diffusivity (q,) or (q, 3, 3), of which the tangential part counts, at the quadrature points; 1 unless given.
    """
    plain, held = surface_stiffness(cut), stabilisation(cut)
    mass = mass_matrices(cut, stiffness=plain, held=held)
    stiffness = plain if diffusivity is None else surface_stiffness(cut, diffusivity)
    if cut.degree == 1:
        held = held + sliver_stiffness(cut)
    return stiffness + _mean_over_elements(cut, diffusivity) * held, mass


def mass_matrices(
    cut: CutSurface, density: Tensor | None = None, *, stiffness: Tensor | None = None, held: Tensor | None = None
) -> Tensor:
    """M (e, k, k) as in `element_matrices`, with a density (q,); stiffness and held: those with this density, and the
    stabilisation, if known.

    For trilinear functions the mass gets MASS_CORRECTION dx^2 times the stiffness of the surface. They
    make a wave too stiff, by a share of its squared wave number times dx^2; this makes it heavier by the same share,
    and discrete eigenvalues come out several times more accurate (a lumped mass does so too, to excess: Fried and
    Chavez 2004). Constants have no stiffness, so integrals stay as they are.

    For all functions it gets HELD_MASS dx^2 times the stabilisation. What vanishes on the surface has no mass. It would
    have next to no energy in K + c M when a time step is short and c large, and conjugate gradients would take 20 to 90
    iterations instead of 10.
    """
    mass = consistent_mass(cut, density)
    held = stabilisation(cut) if held is None else held
    mass = mass + HELD_MASS * cut.spacing**2 * _mean_over_elements(cut, density) * held
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
        along = torch.stack([directional(gradient, t) for t in frames.flat[here].unbind(1)], 1)  # (q, 2, k)
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
    """The sum (e, k, k) of the products (p, k^2) of the pieces of each element, some at a time; the points of a piece
    follow each other. carriers: what may carry gradients besides the places of the points."""
    count = cut.basis.count
    out = cut.local.new_zeros(cut.elements.active, count * count)
    tracked = any(t is not None and t.requires_grad for t in (cut.local, *carriers)) and torch.is_grad_enabled()
    size = cut.per_piece * max(1, 3 * CHUNK[cut.local.device.type] // (cut.per_piece * count))
    for i in range(0, len(cut.local), size):
        here = slice(i, i + size)
        # What a chunk makes on the way is many times its result: for gradients it is made again.
        found = recompute_later(products, here, use_reentrant=False) if tracked else products(here)
        out = out.index_add_(0, cut.element[here][:: cut.per_piece], cast(Tensor, found))
    return out.reshape(-1, count, count)


def _over_pieces(cut: CutSurface, a: Tensor, b: Tensor) -> Tensor:
    """a^T b (p, k^2) for the functions (q, ..., k) at the points of each piece."""
    count = a.shape[-1]
    rows = cut.per_piece * (a[0].numel() // count)
    return torch.bmm(a.reshape(-1, rows, count).transpose(1, 2), b.reshape(-1, rows, count)).reshape(-1, count * count)


def directional(gradient: Sequence[Tensor], direction: Tensor) -> Tensor:
    """(n, k) from the three components (n, k) of the gradients and directions (n, 3)."""
    x, y, z = direction.unbind(1)
    out = gradient[0] * x[:, None]
    return out.addcmul_(gradient[1], y[:, None]).addcmul_(gradient[2], z[:, None])


def _mean_over_elements(cut: CutSurface, diffusivity: Tensor | None) -> Tensor | float:
    """Mean of a diffusivity or a density over each element (e, 1, 1): what the stabilisation must keep up with."""
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


# Holding fields constant along normals


def stabilisation(cut: CutSurface) -> Tensor:
    """(rho/dx) times the integral over each whole cell of (n.grad phi_i)(n.grad phi_j).

    For trilinear functions n is the mean normal of the cell. Where the surface turns within the cell, no direction is
    normal to all of it, and its faces hold the gradient between them: there rho is small. The cells beside it share
    corners with it, and must not hold those too fast to their own normal.

    Quadratic functions need a normal that varies within the cell as that of the surface does, to second order:
    the principal direction of `normal_tensors` at 3^3 Gauss points.
    """
    if cut.degree > 1:
        return _stabilisation_q2(cut)
    rho = _holding(cut, *STABILISATION)
    return _quadratic(rho[:, None, None] * cut.normal[:, :, None] * cut.normal[:, None, :])


def _holding(cut: CutSurface, far: float, beside: float, turned: float) -> Tensor:
    """rho (e,) by how much the surface turns within each cell, and within those around."""
    unknown = cut.elements.unknown
    corner = cut.flatness.new_ones(cut.elements.unknowns)
    corner.scatter_reduce_(0, unknown.reshape(-1), cut.flatness.repeat_interleave(8), "amin")
    around = corner[unknown].amin(1)
    return turned + (beside - turned) * cut.flatness**8 + (far - beside) * around**8


def _stabilisation_q2(cut: CutSurface) -> Tensor:
    corner = normal_tensors(cut)[cut.elements.unknown]  # (e, 8, 6)
    t, weight = gauss_points(3, corner.dtype, corner.device)
    at_corner, gradient = Q1.values(t), torch.stack(Q2.gradients(t), 1)  # (g, 8), (g, 3, 27)
    rho = _holding(cut, *STABILISATION_Q2)
    out, size = [], max(1, CHUNK[corner.device.type] // (len(t) * Q2.count))
    for part, held in zip(corner.split(size), rho.split(size), strict=True):
        n = _principal(at_corner @ part)  # (c, g, 3)
        slope = torch.einsum("cga,gai->cgi", n, gradient)
        out.append(torch.bmm((held[:, None, None] * weight[:, None] * slope).transpose(1, 2), slope))
    return torch.cat(out)


def normal_tensors(cut: CutSurface) -> Tensor:
    """n n^T of the surface, entries xx, yy, zz, yz, zx, xy, as a trilinear function (corners, 6): its L2 projection,
    held along the mean normal of each cell. Second order on a smooth surface, on it and around it.

    The sign of a normal does not count: faces of a mesh may look to either side.
    """
    basis, unknown, count = Q1, cut.elements.unknown, cut.elements.unknowns
    weights, element = cut.quadrature.weights, cut.element
    mass = weights.new_zeros(cut.elements.active, 64)
    load = weights.new_zeros(cut.elements.active, 48)
    size = cut.per_piece * max(1, 3 * CHUNK[weights.device.type] // (cut.per_piece * 8))
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
    held = cut.spacing**2 * _quadratic(STABILISATION[0] * cut.normal[:, :, None] * cut.normal[:, None, :])
    pattern, (values,) = assemble(unknown, count, [mass.reshape(-1, 8, 8) + held])
    g = weights.new_zeros(count, 6).index_add(0, unknown.reshape(-1), load.reshape(-1, 6))
    constant = values.detach()
    matrix = SparseOperator(pattern.matrix(constant), values if values.requires_grad else None)
    return projected(matrix, 1 / constant[pattern.diagonal], g, 1e-9)


def _tensor(n: Tensor) -> Tensor:
    """n n^T (..., 6) of vectors (..., 3)."""
    x, y, z = n.unbind(-1)
    return torch.stack([x * x, y * y, z * z, y * z, z * x, x * y], -1)


def _principal(tensor: Tensor) -> Tensor:
    """The eigenvector (..., 3) of the largest eigenvalue of symmetric tensors (..., 6), of unit length where that
    eigenvalue is larger than the others together, and shorter where faces of several directions mix: no direction is
    normal to them all, and their gradients hold each other."""
    tensor = tensor / tensor[..., :3].sum(-1, keepdim=True).clamp_min(1e-3)
    power = tensor
    for _ in range(4):  # to the 16th power, in which the largest eigenvalue stands alone
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
    return n * ((2 * largest - 1) / CLEAR).clamp(0, 1)


_COLUMNS = [0, 5, 4, 5, 1, 3, 4, 3, 2]  # of the entries xx, yy, zz, yz, zx, xy in the 3 x 3 matrix


@torch.no_grad()
def roughness(cut: CutSurface) -> float:
    """RMS difference between the normals of the surface, but for their sign, and what trilinear functions on the cells
    show of them: what the grid does not see of how the surface turns. On a smooth surface it falls like dx^2."""
    field, weights = normal_tensors(cut), cut.quadrature.weights
    total = weights.new_zeros(())
    size = max(1, 3 * CHUNK[weights.device.type] // 8)
    for i in range(0, len(weights), size):
        here = slice(i, i + size)
        there = (Q1.values(cut.local[here])[:, None] @ field[cut.elements.unknown[cut.element[here]]])[:, 0]
        away = (there - _tensor(cut.quadrature.normals[here])).square()
        # |n n^T - m m^T|^2 is twice |n - m|^2 for normals that are nearly the same.
        total += (weights[here] * (0.5 * away[:, :3].sum(1) + away[:, 3:].sum(1))).sum()
    return float((total / weights.sum()).sqrt())


def worth_order_3(cut: CutSurface) -> tuple[bool, str]:
    """Whether quadratic functions on these cells promise more than trilinear ones on as many smaller cells, and why."""
    found = roughness(cut)
    compared = f"its normals differ from what cells show of them by {found:.2g}, at most {ROUGHEST:g} for order 3"
    if found <= ROUGHEST:
        return True, f"the grid sees how the surface turns: {compared}"
    return False, f"the surface turns within cells: {compared}"


def projected(matrix: SparseOperator, inverse: Tensor, g: Tensor, tolerance: float) -> Tensor:
    """v with matrix v = g, for a mass matrix and one over its diagonal."""

    def krylov(b: Tensor, size: Tensor | None) -> KrylovResult:
        return conjugate_gradients(
            lambda v: matrix.matrix @ v, b, precondition=lambda r: column(inverse, r) * r, tolerance=tolerance
        )

    entries = () if matrix.values is None else (matrix.values,)
    return solve(System(krylov, krylov, entries, lambda v, u: (-matrix.outer_at_entries(v, u),)), g).solution


def sliver_stiffness(cut: CutSurface) -> Tensor:
    """Tangential stiffness for cells that the surface barely enters, as if LEAST_AREA dx^2 of it lay in them.

    Slivers that no neighbour could absorb (the tips of tiny parts) hang on a piece of no area; without this
    conjugate gradients crawl.
    """
    area = torch.zeros_like(cut.normal[:, 0]).index_add_(0, cut.element, cut.quadrature.weights) / cut.spacing**2
    small = (area < LEAST_AREA).nonzero()[:, 0]
    normal = cut.normal[small]
    tangent = torch.eye(3, dtype=area.dtype, device=area.device) - normal[:, :, None] * normal[:, None, :]
    out = area.new_zeros(len(area), 8, 8)
    out[small] = _quadratic((LEAST_AREA - area[small])[:, None, None] * tangent)
    return out


def _quadratic(D: Tensor) -> Tensor:
    """The integrals (e, 8, 8) of grad phi_i . D grad phi_j over the unit cell, D (e, 3, 3)."""
    return (D.reshape(-1, 9) @ _gradient_moments(D.dtype, D.device)).reshape(-1, 8, 8)


@lru_cache
def _gradient_moments(dtype: torch.dtype, device: torch.device) -> Tensor:
    """The integrals (9, 64) of d_a phi_i d_b phi_j over the unit cell, exact by two Gauss points an axis."""
    t, weight = gauss_points(2, torch.float64, torch.device("cpu"))
    gradient = torch.stack(Q1.gradients(t), -1)  # (8 points, 8 functions, 3)
    moments = torch.einsum("q,qia,qjb->abij", weight, gradient, gradient)
    return moments.reshape(9, 64).to(device=device, dtype=dtype)


@lru_cache
def child_interpolation(dtype: torch.dtype, device: torch.device) -> Tensor:
    """T (8, 8, 8): T[o, i, j] is the value at corner i of the child cell in octant o of coarse corner function j."""
    octants = OCTANTS.to(device=device, dtype=dtype)
    position = 0.5 * (octants[:, None] + octants[None])
    return Q1.values(position.reshape(-1, 3)).reshape(8, 8, 8)


def on_corners(E: Tensor) -> Tensor:
    """Element matrices (e, 27, 27) of quadratic functions, restricted to the trilinear ones of the same cells."""
    T = from_corners(Q2, E.dtype, E.device)
    return T.T @ E @ T
