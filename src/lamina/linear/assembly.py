"""Sparse matrices from element matrices on a lattice, without sorting triplets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from lamina.geometry.lattice import OCTANTS


@dataclass(frozen=True)
class Pattern:
    """Where the entries of a matrix are: row starts (n + 1,) and columns (nnz,), int32, and its diagonal (n,)."""

    crow: Tensor
    column: Tensor
    diagonal: Tensor

    def matrix(self, values: Tensor) -> Tensor:
        """The matrix with these values (nnz,) as CSR."""
        n = len(self.diagonal)
        return torch.sparse_csr_tensor(self.crow, self.column, values, size=(n, n), check_invariants=False)


def assemble(unknown: Tensor, count: int, matrices: list[Tensor]) -> tuple[Pattern, list[Tensor]]:
    """Sum element matrices (e, 8, 8) over the unknowns (e, 8) of hexahedral elements.

    Returns the pattern and the values (nnz,) of each matrix. The column of a pair of corners is found from
    their offset on the lattice, one of 27; where copies of a node for different sheets compete for a place, the
    losers move to spare places.
    """
    device = unknown.device
    row = unknown[:, :, None].expand(-1, 8, 8).reshape(-1)
    column = unknown[:, None, :].expand(-1, 8, 8).reshape(-1)
    place = _offsets(device).expand(len(unknown), 8, 8).reshape(-1).clone()
    table = torch.full((count, 27), -1, dtype=torch.int64, device=device)
    table[row, place] = column
    lost = (table[row, place] != column).nonzero()[:, 0]
    if len(lost):
        pair, which = torch.unique(row[lost] * count + column[lost], return_inverse=True)
        owner = torch.div(pair, count, rounding_mode="floor")
        spare = torch.arange(len(pair), device=device) - torch.searchsorted(owner, owner)
        place[lost] = 27 + spare[which]
        table = torch.nn.functional.pad(table, (0, int(spare.max()) + 1), value=-1)
        table[owner, 27 + spare] = pair % count
    width = table.shape[1]
    used = table >= 0
    crow = torch.zeros(count + 1, dtype=torch.int32, device=device)
    crow[1:] = torch.cumsum(used.sum(1), 0)
    slot = row * width + place
    entry = used.reshape(-1).nonzero()[:, 0]
    # A node is its own neighbour at the middle one of the 27 offsets.
    diagonal = crow[:-1].long() + used[:, :13].sum(1)
    values = [
        torch.zeros(count * width, dtype=m.dtype, device=device).index_add_(0, slot, m.reshape(-1))[entry]
        for m in matrices
    ]
    return Pattern(crow, table.reshape(-1)[entry].to(torch.int32), diagonal), values


@lru_cache
def _offsets(device: torch.device) -> Tensor:
    """Code (8, 8) of the offset from each row corner of a cell to each column corner, 0 to 26."""
    offset = OCTANTS[None] - OCTANTS[:, None] + 1
    return ((offset[..., 0] * 3 + offset[..., 1]) * 3 + offset[..., 2]).to(device)


def plus_product(rest: Tensor, matrix: Tensor, u: Tensor, *, beta: float = 1.0, alpha: float = 1.0) -> Tensor:
    """beta rest + alpha A u in one pass, for vectors (n,) or several of them (n, k)."""
    add = torch.addmv if u.ndim == 1 else torch.addmm
    return add(rest, matrix, u, beta=beta, alpha=alpha)


def rows_to_csr(index: Tensor, values: Tensor, columns: int) -> Tensor:
    """CSR matrix with the same number of entries in every row, int32 indices."""
    rows, width = index.shape
    crow = torch.arange(rows + 1, dtype=torch.int32, device=index.device) * width
    return torch.sparse_csr_tensor(
        crow, index.reshape(-1), values.reshape(-1), size=(rows, columns), check_invariants=False
    )
