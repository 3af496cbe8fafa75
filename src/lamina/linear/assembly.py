"""Sparse matrices from element matrices on a lattice, without sorting triplets."""

from __future__ import annotations

import torch
from torch import Tensor

from lamina.geometry.lattice import OCTANTS


def assemble(unknown: Tensor, count: int, matrices: list[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Sum element matrices (e, 8, 8) over the unknowns (e, 8) of hexahedral elements.

    Returns row starts (count + 1,) and columns (nnz,), int32, and the values (nnz,) of each matrix. The column
    of a pair of corners is found from their offset on the lattice, one of 27; where copies of a node for
    different sheets compete for a place, the losers move to spare places.
    """
    device = unknown.device
    octants = OCTANTS.to(device)
    offset = octants[None] - octants[:, None] + 1  # (8, 8, 3): from row corner to column corner
    code = (offset[..., 0] * 3 + offset[..., 1]) * 3 + offset[..., 2]
    row = unknown[:, :, None].expand(-1, 8, 8).reshape(-1)
    column = unknown[:, None, :].expand(-1, 8, 8).reshape(-1)
    place = code.expand(len(unknown), 8, 8).reshape(-1).clone()
    table = torch.full((count, 27), -1, dtype=torch.int64, device=device)
    table[row, place] = column
    lost = (table[row, place] != column).nonzero()[:, 0]
    while len(lost):
        spare = torch.full((count, 1), -1, dtype=torch.int64, device=device)
        spare[row[lost], 0] = column[lost]
        won = spare[row[lost], 0] == column[lost]
        place[lost[won]] = table.shape[1]
        table = torch.cat([table, spare], 1)
        lost = lost[~won]
    width = table.shape[1]
    used = table >= 0
    crow = torch.zeros(count + 1, dtype=torch.int32, device=device)
    crow[1:] = torch.cumsum(used.sum(1), 0)
    slot = row * width + place
    values = []
    for matrix in matrices:
        full = torch.zeros(count * width, dtype=matrix.dtype, device=device)
        values.append(full.index_add_(0, slot, matrix.reshape(-1)).reshape(count, width)[used])
    return crow, table[used].to(torch.int32), values
