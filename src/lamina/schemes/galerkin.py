"""Element matrices of the trace scheme: stiffness, mass, and what keeps the cut cells stable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint as recompute_later

from lamina.geometry.lattice import OCTANTS
from lamina.quadrature import tangents
from lamina.schemes.cutsurface import CutSurface

STABILISATION = 0.05, 0.02, 3e-3  # rho in flat cells, in those beside a turn of the surface, and at the turn
MASS_CORRECTION = 0.038
LEAST_AREA = 2e-3  # dx^2 of surface that every cell is taken to have
CHUNK = {"cpu": 2**13, "cuda": 2**19}  # pieces at a time


def element_matrices(cut: CutSurface, diffusivity: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """K, stabilisation included, and M, both (e, 8, 8); diffusivity (q,) or (q, 3, 3), tangential part, at the points.

    M is the consistent mass plus MASS_CORRECTION dx^2 times the stiffness of the surface. Trilinear functions make a
    wave too stiff, by a share of its squared wave number times dx^2; this makes it heavier by the same share, and
    discrete eigenvalues come out several times more accurate (a lumped mass does so too, to excess: Fried and Chavez
    2004). Constants have no stiffness, so integrals stay as they are.
    """
    plain = surface_stiffness(cut)
    mass = mass_matrices(cut, stiffness=plain)
    stiffness = plain if diffusivity is None else surface_stiffness(cut, diffusivity)
    scale = _mean_diffusivity(cut, diffusivity)
    return stiffness + scale * (stabilisation(cut) + sliver_stiffness(cut)), mass


def mass_matrices(cut: CutSurface, density: Tensor | None = None, stiffness: Tensor | None = None) -> Tensor:
    """M (e, 8, 8) as in `element_matrices`, with a density (q,); stiffness: that with this diffusivity, if known."""
    stiffness = surface_stiffness(cut, density) if stiffness is None else stiffness
    return consistent_mass(cut, density) + MASS_CORRECTION * cut.spacing**2 * stiffness


def surface_stiffness(cut: CutSurface, diffusivity: Tensor | None = None) -> Tensor:
    """sum_q w_q a (P grad phi_i).(P grad phi_j) for every element."""
    out = cut.local.new_zeros(cut.elements.active, 64)
    frame = tangents(cut.quadrature.normals)
    weights = cut.quadrature.weights / cut.spacing**2
    if cut.conductivity is not None:
        weights = weights * cut.conductivity
    if diffusivity is not None and diffusivity.ndim == 1:
        weights = weights * diffusivity
    tensor = diffusivity if diffusivity is not None and diffusivity.ndim == 3 else None

    def products(here: slice) -> Tensor:
        gradient = trilinear_with_gradients(cut.local[here])[1:]
        along = torch.stack([directional(gradient, t[here]) for t in frame], 1)  # (q, 2, 8)
        flux = along * weights[here, None, None]
        if tensor is not None:
            basis = torch.stack([t[here] for t in frame], 1)  # (q, 2, 3)
            flux = torch.bmm(torch.bmm(basis, torch.bmm(tensor[here], basis.transpose(1, 2))), flux)
        return _over_pieces(along.reshape(-1, 6, 8), flux.reshape(-1, 6, 8))

    return _over_elements(cut, out, products, weights, tensor)


def consistent_mass(cut: CutSurface, density: Tensor | None = None) -> Tensor:
    """sum_q w_q density_q phi_i phi_j for every element; density (q,), 1 unless given."""
    out = cut.local.new_zeros(cut.elements.active, 64)
    weights = cut.quadrature.weights if density is None else cut.quadrature.weights * density

    def products(here: slice) -> Tensor:
        phi = trilinear(cut.local[here])
        weighted = phi * weights[here, None]
        return _over_pieces(phi.reshape(-1, 3, 8), weighted.reshape(-1, 3, 8))

    return _over_elements(cut, out, products, weights)


def _over_elements(
    cut: CutSurface, out: Tensor, products: Callable[[slice], Tensor], *carriers: Tensor | None
) -> Tensor:
    """out (e, 64) plus the products (p, 64) of each piece, some at a time; points come three to a piece, and all three
    to one element. carriers: what may carry gradients besides the places of the points."""
    tracked = any(t is not None and t.requires_grad for t in (cut.local, *carriers)) and torch.is_grad_enabled()
    size = 3 * CHUNK[cut.local.device.type]
    for i in range(0, len(cut.local), size):
        here = slice(i, i + size)
        # What a chunk makes on the way is many times its result: for gradients it is made again.
        found = recompute_later(products, here, use_reentrant=False) if tracked else products(here)
        out = out.index_add_(0, cut.element[here][::3], cast(Tensor, found))
    return out.reshape(-1, 8, 8)


def _over_pieces(a: Tensor, b: Tensor) -> Tensor:
    """a^T b (p, 64) for the functions at the points of each piece."""
    return torch.bmm(a.transpose(1, 2), b).reshape(-1, 64)


def directional(gradient: Sequence[Tensor], direction: Tensor) -> Tensor:
    """(n, 8) from the three components (n, 8) of the gradients and directions (n, 3)."""
    x, y, z = direction.unbind(1)
    out = gradient[0] * x[:, None]
    return out.addcmul_(gradient[1], y[:, None]).addcmul_(gradient[2], z[:, None])


def _mean_diffusivity(cut: CutSurface, diffusivity: Tensor | None) -> Tensor | float:
    """Mean over each element (e, 1, 1): what the stabilisation must keep up with."""
    if diffusivity is None:
        return 1.0
    if diffusivity.ndim == 3:
        normal = cut.quadrature.normals
        across = torch.einsum("qa,qab,qb->q", normal, diffusivity, normal)
        diffusivity = (diffusivity.diagonal(dim1=1, dim2=2).sum(1) - across) / 2
    weights = cut.quadrature.weights
    total = weights.new_zeros(2, cut.elements.active)
    total.index_add_(1, cut.element, torch.stack([weights * diffusivity, weights]))
    return (total[0] / total[1])[:, None, None]


def stabilisation(cut: CutSurface) -> Tensor:
    """(rho/dx) times the integral over each whole cell of (n.grad phi_i)(n.grad phi_j), n its mean normal.

    Where the surface turns within the cell, no direction is normal to all of it, and its faces hold the
    gradient between them: there rho is small. The cells beside it share corners with it, and must not hold
    those too fast to their own normal.
    """
    far, beside, turned = STABILISATION
    unknown = cut.elements.unknown
    corner = cut.flatness.new_ones(cut.elements.unknowns)
    corner.scatter_reduce_(0, unknown.reshape(-1), cut.flatness.repeat_interleave(8), "amin")
    around = corner[unknown].amin(1)
    rho = turned + (beside - turned) * cut.flatness**8 + (far - beside) * around**8
    return _quadratic(rho[:, None, None] * cut.normal[:, :, None] * cut.normal[:, None, :])


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
    gauss = 0.5 + 0.5 / 3**0.5 * torch.tensor([-1.0, 1.0], dtype=torch.float64)
    t = torch.stack(torch.meshgrid(gauss, gauss, gauss, indexing="ij"), -1).reshape(-1, 3)
    gradient = torch.stack(trilinear_with_gradients(t)[1:], -1)  # (8 points, 8 functions, 3)
    moments = torch.einsum("qia,qjb->abij", gradient, gradient) / 8
    return moments.reshape(9, 64).to(device=device, dtype=dtype)


def trilinear(t: Tensor) -> Tensor:
    """Values (n, 8) of the corner functions at t (n, 3) in the unit cell."""
    s = torch.stack([1 - t, t], -1)  # (n, 3, 2)
    return (s[:, 0, :, None, None] * s[:, 1, None, :, None] * s[:, 2, None, None, :]).reshape(-1, 8)


def trilinear_with_gradients(t: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Values (n, 8) of the corner functions at t (n, 3) in the unit cell, and their three derivatives."""
    x, y, z = torch.stack([1 - t, t], -1).unbind(1)  # (n, 2) each
    slope = torch.tensor([-1.0, 1.0], dtype=t.dtype, device=t.device)[None]
    xy, yz, xz = (a[:, :, None] * b[:, None, :] for a, b in ((x, y), (y, z), (x, z)))
    value = (x[:, :, None, None] * yz[:, None]).reshape(-1, 8)
    dx = (slope[:, :, None, None] * yz[:, None]).reshape(-1, 8)
    dy = (slope[:, None, :, None] * xz[:, :, None]).reshape(-1, 8)
    dz = (slope[:, None, None, :] * xy[..., None]).reshape(-1, 8)
    return value, dx, dy, dz


@lru_cache
def child_interpolation(dtype: torch.dtype, device: torch.device) -> Tensor:
    """T (8, 8, 8): T[o, i, j] is the value at corner i of the child cell in octant o of coarse corner function j."""
    octants = OCTANTS.to(device=device, dtype=dtype)
    position = 0.5 * (octants[:, None] + octants[None])
    return trilinear(position.reshape(-1, 3)).reshape(8, 8, 8)
