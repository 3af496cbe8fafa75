"""Gaussian radial basis function interpolation in the band: the readout of the CVPR 2026 paper."""

from __future__ import annotations

import torch
from torch import Tensor

from lamina.errors import InputError
from lamina.grid.band import Band
from lamina.linear.assembly import rows_to_csr

RBF_NEIGHBOURS = 32  # Nodes that a value is interpolated from; the paper does not say how many it takes.
# Width s of the Gaussians over dx. Wider Gaussians are more accurate and G is worse conditioned. For a smooth function
# of size 1 on the unit sphere, with dx = 0.05 and m = 32, the largest error and the condition of G are:
# s = 0.75: 7.6e-3, 5e1; 1: 5.0e-3, 9e2; 1.5: 2.6e-3, 9e4; 2: 1.6e-3, 3e6; 3: 7.2e-4, 4e8 (trilinear 2.6e-3).
RBF_WIDTH = 1.5
RBF_REACH = 2  # The nearest nodes are sought up to this many nodes beyond the cell of the point, along each axis.
RBF_CHUNK = {"cpu": 2**11, "cuda": 2**15}  # points at a time; each takes about 20 kB


def rbf_matrix(
    band: Band, points: Tensor, component: Tensor, *, neighbours: int = RBF_NEIGHBOURS, width: float = RBF_WIDTH
) -> Tensor:
    """CSR matrix (n, nodes) of Gaussian interpolation at points (n, 3) from the nearest nodes of their component (n,).

    With x_j the m nearest nodes of the point x, s = width dx, G_ij = exp(-|x_i - x_j|^2 / (2 s^2)) and
    g_j = exp(-|x - x_j|^2 / (2 s^2)), the weights w of the values at the nodes solve

        [ G  1 ] [ w ]   [ g ]
        [ 1' 0 ] [ l ] = [ 1 ],

    so that constants are reproduced, and at a node its value. Linear functions are not reproduced: with s / dx fixed
    the error is of first order. neighbours m: at most 216, the nodes within RBF_REACH nodes of the cell of the point.
    If the band has fewer there, all are taken. Weights are computed in double precision, whatever that of the points.

    Raises InputError for points with no node of their component near them, and for a bad m or s.
    """
    box = _box(points.device)
    if not (1 <= neighbours <= len(box) and width > 0):
        raise InputError(
            f"Gaussian interpolation needs 1 to {len(box)} neighbours and a positive width, got {neighbours}, {width}."
        )
    kernel = torch.exp(-0.5 / width**2 * (box[:, None] - box).square().sum(2).double())  # (216, 216)
    index = torch.empty(len(points), neighbours, dtype=torch.int32, device=points.device)
    weights = torch.empty(len(points), neighbours, dtype=points.dtype, device=points.device)
    size = RBF_CHUNK[points.device.type]
    for i in range(0, len(points), size):
        rows = slice(i, i + size)
        coordinate = ((points[rows] - band.lattice.origin) / band.spacing).double()
        cell = torch.floor(coordinate)
        node = band.find(cell.long(), component[rows], box)  # (n, 216)
        _require_some(node, band)
        distance = (coordinate - cell)[:, None] - box  # in units of dx, (n, 216, 3)
        square = distance.square().sum(2).masked_fill_(node < 0, torch.inf)
        near = _nearest(square, neighbours)
        index[rows] = node.gather(1, near).clamp_min(0)
        weights[rows] = _weights(kernel, near, square.gather(1, near), width)
    return rows_to_csr(index, weights, len(band))


def _nearest(square: Tensor, count: int) -> Tensor:
    """Indices (n, count) of the smallest squared distances (n, 216), the first of those equal up to rounding."""
    first = torch.arange(square.shape[1], device=square.device) / 256
    return (torch.round(square * 2**20) + first).topk(count, 1, largest=False).indices


def _weights(kernel: Tensor, near: Tensor, square: Tensor, width: float) -> Tensor:
    """Weights (n, m) of the nodes with indices near (n, m) in the box; 0 where the squared distance is infinite."""
    absent = square.isinf()
    G = kernel[near[:, :, None], near[:, None, :]]
    G.masked_fill_(absent[:, :, None] | absent[:, None, :], 0.0)
    G.diagonal(dim1=1, dim2=2).fill_(1.0)
    right = torch.stack([torch.exp(-0.5 / width**2 * square), (~absent).to(G)], 2)
    # w = G^-1 g - l G^-1 1, where l makes the weights sum to one.
    a, b = torch.linalg.solve(G, right).unbind(2)
    return a + b * ((1 - a.sum(1, keepdim=True)) / b.sum(1, keepdim=True))


def _require_some(node: Tensor, band: Band) -> None:
    missing = int((node < 0).all(1).sum())
    if missing:
        raise InputError(
            f"{missing} of {len(node)} points have no node of the band of spacing {band.spacing:g} near them: "
            "they are off the surface; check the points."
        )


def _box(device: torch.device) -> Tensor:
    """Offsets (216, 3) int64 from the cell's first corner."""
    side = torch.arange(-RBF_REACH, RBF_REACH + 2, device=device)
    return torch.stack(torch.meshgrid(side, side, side, indexing="ij"), -1).reshape(-1, 3)
