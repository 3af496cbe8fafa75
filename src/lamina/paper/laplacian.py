"""The Cartesian Laplacian on the nodes of a band."""

from __future__ import annotations

import torch
from torch import Tensor

from lamina.grid.band import Band

# Second-difference weights along one axis, for the offsets -s, ..., s.
SECOND_DIFFERENCE = {
    2: (1.0, -2.0, 1.0),
    4: (-1 / 12, 4 / 3, -5 / 2, 4 / 3, -1 / 12),
}


def diagonal(order: int, spacing: float) -> float:
    """gamma = -L_ii: 6/dx^2 for the 7-point, 7.5/dx^2 for the 13-point Laplacian."""
    weights = SECOND_DIFFERENCE[order]
    return -3 * weights[len(weights) // 2] / spacing**2


def laplacian_matrix(band: Band, order: int) -> Tensor:
    """CSR matrix (n, n) of the 7-point (order 2) or 13-point (order 4) Laplacian.

    Nodes at the edge of the band that lack a neighbour get an empty row. No interpolation stencil reads them (see
    `band_radius`).
    """
    weights = SECOND_DIFFERENCE[order]
    reach = len(weights) // 2
    n, device = len(band), band.key.device
    key_step = (int(band.shape[1]) * int(band.shape[2]), int(band.shape[2]), 1)
    columns, values = [torch.arange(n, device=device)], [-diagonal(order, 1.0)]
    complete = torch.ones(n, dtype=torch.bool, device=device)
    for axis in range(3):
        for offset in range(-reach, reach + 1):
            if offset == 0:
                continue
            wanted = band.key + offset * key_step[axis]
            index = torch.searchsorted(band.key, wanted).clamp_(max=n - 1)
            complete &= band.key[index] == wanted
            columns.append(index)
            values.append(weights[offset + reach])
    index = torch.stack([c.to(torch.int32) for c in columns], 1)[complete]
    value = torch.tensor(values, dtype=band.feet.points.dtype, device=device) / band.spacing**2
    crow = torch.zeros(n + 1, dtype=torch.int32, device=device)
    crow[1:] = torch.cumsum(complete, 0) * len(values)
    return torch.sparse_csr_tensor(
        crow, index.reshape(-1), value.repeat(len(index)), size=(n, n), check_invariants=False
    )


def staircase_laplacian(band: Band) -> Tensor:
    """CSR matrix (n, n) of the 7-point Laplacian with zero normal derivative at the staircase edge of the band.

    A missing neighbour is replaced by the node itself. This gives the Laplacian of the graph of the nodes,

        (L u)_a = sum over neighbours b of a in the band of (u_b - u_a) / dx^2.

    It is symmetric, negative semidefinite, and zero on the constants of each component. Columns increase along a row.
    """
    i, j = int(band.shape[1]) * int(band.shape[2]), int(band.shape[2])
    step = torch.tensor([-i, -j, -1, 0, 1, j, i], device=band.key.device)  # in the order of the keys
    wanted = band.key[:, None] + step
    index = torch.searchsorted(band.key, wanted).clamp_(max=len(band) - 1)
    present = band.key[index] == wanted  # (n, 7)
    value = torch.full_like(present, 1 / band.spacing**2, dtype=band.feet.points.dtype)
    value[:, 3] *= 1 - present.sum(1)
    crow = torch.zeros(len(band) + 1, dtype=torch.int32, device=band.key.device)
    crow[1:] = torch.cumsum(present.sum(1), 0)
    return torch.sparse_csr_tensor(
        crow, index[present].to(torch.int32), value[present], size=(len(band), len(band)), check_invariants=False
    )
