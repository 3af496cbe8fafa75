"""Sparse matrices from element matrices on a lattice, without sorting triplets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from lamina.geometry.basis import BASES

CHUNK = {"cpu": 2**21, "cuda": 2**24}  # entries of element matrices at a time


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
    """Sum element matrices (e, k, k) over the unknowns (e, k) of cells with (p + 1)^3 = k nodes.

    Returns the pattern and the values (nnz,) of each matrix. The column of a pair of nodes is found from their offset
    on the lattice, one of (2 p + 1)^3; where copies of a node for different sheets compete for a place, the losers move
    to spare places. The elements are taken some at a time: what a chunk needs on the way is many times the result.
    """
    device, nodes = unknown.device, unknown.shape[1]
    offsets, places = _offsets(nodes, device)
    table = torch.full((count * places,), -1, dtype=torch.int32, device=device)
    size = max(1, CHUNK[device.type] // nodes**2)
    chunks = [slice(i, i + size) for i in range(0, len(unknown), size)]

    def pairs(part: slice) -> tuple[Tensor, Tensor]:
        """Place in the table (c k k,) and column of each pair of nodes of some elements."""
        rows = unknown[part]
        slot = (rows[:, :, None] * places + offsets).reshape(-1)
        return slot, rows[:, None, :].expand(-1, nodes, nodes).reshape(-1)

    for part in chunks:
        slot, column = pairs(part)
        table[slot] = column.to(torch.int32)
    # Copies of a node are few: their pairs are kept, and given places of their own.
    lost_slot, lost_column = [], []
    for part in chunks:
        slot, column = pairs(part)
        lost = (table[slot] != column).nonzero()[:, 0]
        lost_slot.append(slot[lost])
        lost_column.append(column[lost])
    width, table = places, table.reshape(count, places)
    owner = torch.div(torch.cat(lost_slot), places, rounding_mode="floor")
    pair, which = torch.unique(owner * count + torch.cat(lost_column), return_inverse=True)
    spare = torch.zeros_like(pair)
    if len(pair):
        owner = torch.div(pair, count, rounding_mode="floor")
        spare = torch.arange(len(pair), device=device) - torch.searchsorted(owner, owner)
        table = torch.nn.functional.pad(table, (0, int(spare.max()) + 1), value=-1)
        width = table.shape[1]
        table[owner, places + spare] = (pair % count).to(torch.int32)
        spare = owner * width + places + spare
    used = table >= 0
    crow = torch.zeros(count + 1, dtype=torch.int32, device=device)
    crow[1:] = torch.cumsum(used.sum(1), 0)
    # A node is its own neighbour at the middle one of the offsets.
    diagonal = crow[:-1].long() + used[:, : places // 2].sum(1)
    entry = (torch.cumsum(used.reshape(-1), 0, dtype=torch.int32) - 1).reshape(count, width)
    column = table[used]
    del table, used
    values = [torch.zeros(len(column), dtype=m.dtype, device=device) for m in matrices]
    done = 0
    for part, lost in zip(chunks, lost_slot, strict=True):
        rows = unknown[part]
        slot = (rows[:, :, None] * width + offsets).reshape(-1)
        if len(lost):
            columns = pairs(part)[1]
            # The pairs that lost are those found above, in the same order.
            losers = (column[entry.reshape(-1)[slot].long()] != columns).nonzero()[:, 0]
            slot[losers] = spare[which[done : done + len(lost)]]
            done += len(lost)
        place = entry.reshape(-1)[slot].long()
        for v, m in zip(values, matrices, strict=True):
            v.index_add_(0, place, m[part].reshape(-1))
    return Pattern(crow, column, diagonal), values


@lru_cache
def _offsets(nodes: int, device: torch.device) -> tuple[Tensor, int]:
    """Code (k, k) of the offset from each row node of a cell to each column node, and the number of codes."""
    basis = next(b for b in BASES.values() if b.count == nodes)
    wide = 2 * basis.degree + 1
    offset = basis.nodes[None] - basis.nodes[:, None] + basis.degree
    return ((offset[..., 0] * wide + offset[..., 1]) * wide + offset[..., 2]).to(device), wide**3


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
