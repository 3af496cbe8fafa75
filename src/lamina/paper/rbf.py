"""Gaussian radial basis function interpolation in the band: the readout of the CVPR 2026 paper."""

from __future__ import annotations

import torch
from torch import Tensor

from lamina.errors import InputError
from lamina.grid.band import Band
from lamina.linear.assembly import rows_to_csr

NEIGHBOURS = 32
# s / dx. Largest error at dx = 0.05 of a smooth function of size 1 on the unit sphere, and condition of G, m = 32:
# s = 0.75: 7.6e-3, 5e1; 1: 5.0e-3, 9e2; 1.5: 2.6e-3, 9e4; 2: 1.6e-3, 3e6; 3: 7.2e-4, 4e8 (trilinear 2.6e-3).
WIDTH = 1.5
REACH = 2  # nodes an axis on either side of the point's cell, among which the nearest are sought
CHUNK = {"cpu": 2**11, "cuda": 2**15}  # points at a time: some 20 kB each


def rbf_matrix(
    band: Band, points: Tensor, component: Tensor, *, neighbours: int = NEIGHBOURS, width: float = WIDTH
) -> Tensor:
    """CSR matrix (n, nodes) of Gaussian interpolation at points (n, 3) from the nearest nodes of their component (n,).

    With x_j the m nearest nodes of the point x, s = width dx, G_ij = exp(-|x_i - x_j|^2 / (2 s^2)) and
    g_j = exp(-|x - x_j|^2 / (2 s^2)), the weights w of the values at the nodes solve

        [ G  1 ] [ w ]   [ g ]
        [ 1' 0 ] [ l ] = [ 1 ],

    so that constants are reproduced and, on a node, its value. Linear functions are not: the error is of first order
    with s / dx fixed. neighbours m: at most 216, those within REACH nodes of the point's cell; where the band has fewer
    there, as many as it has. The weights are computed in double precision whatever that of the points.

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
    size = CHUNK[points.device.type]
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
    """Places (n, count) of the least of the squared distances (n, 216), the first of those equal but for rounding."""
    first = torch.arange(square.shape[1], device=square.device) / 256
    return (torch.round(square * 2**20) + first).topk(count, 1, largest=False).indices


def _weights(kernel: Tensor, near: Tensor, square: Tensor, width: float) -> Tensor:
    """Weights (n, m) of the nodes at places near (n, m) of the box, 0 where the squared distance is infinite."""
    absent = square.isinf()
    G = kernel[near[:, :, None], near[:, None, :]]
    G.masked_fill_(absent[:, :, None] | absent[:, None, :], 0.0)
    G.diagonal(dim1=1, dim2=2).fill_(1.0)
    right = torch.stack([torch.exp(-0.5 / width**2 * square), (~absent).to(G)], 2)
    # w = G^-1 g - l G^-1 1, with l such that the weights sum to one.
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
    side = torch.arange(-REACH, REACH + 2, device=device)
    return torch.stack(torch.meshgrid(side, side, side, indexing="ij"), -1).reshape(-1, 3)
