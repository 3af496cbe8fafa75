"""Sparse matrices from element matrices on a lattice, without sorting triplets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from lamina.geometry.basis import BASES

ENTRIES_PER_CHUNK = {"cpu": 2**21, "cuda": 2**24}  # batch size: entries of element matrices handled at a time


@dataclass(frozen=True)
class Pattern:
    """The positions of a matrix's entries: row starts (n + 1,) and columns (nnz,), int32, and the diagonal (n,)."""

    crow: Tensor
    column: Tensor
    diagonal: Tensor

    def matrix(self, values: Tensor) -> Tensor:
        """The matrix with these values (nnz,) as CSR."""
        n = len(self.diagonal)
        return torch.sparse_csr_tensor(self.crow, self.column, values, size=(n, n), check_invariants=False)


def assemble(unknown: Tensor, count: int, matrices: list[Tensor]) -> tuple[Pattern, list[Tensor]]:
    """Sum element matrices (e, k, k) over the unknowns (e, k) of cells with (p + 1)^3 = k nodes.

    Returns the pattern and the values (nnz,) of each matrix. Every row has a slot for each of the (2 p + 1)^3
    offsets on the lattice, and a pair of nodes takes the slot of its offset. A node may have several
    copies, one for each sheet of the surface. If two copies compete for a slot, one gets a spare slot at the end of the
    row. Elements are processed in chunks, because intermediate results take many times the memory of the result.
    """
    device, nodes = unknown.device, unknown.shape[1]
    offsets, slots = _offsets(nodes, device)
    table = torch.full((count * slots,), -1, dtype=torch.int32, device=device)
    size = max(1, ENTRIES_PER_CHUNK[device.type] // nodes**2)
    chunks = [slice(i, i + size) for i in range(0, len(unknown), size)]

    def pairs(part: slice) -> tuple[Tensor, Tensor]:
        """Slot in the table (c k k,) and column of each pair of nodes of some elements."""
        rows = unknown[part]
        slot = (rows[:, :, None] * slots + offsets).reshape(-1)
        return slot, rows[:, None, :].expand(-1, nodes, nodes).reshape(-1)

    for part in chunks:
        slot, column = pairs(part)
        table[slot] = column.to(torch.int32)
    # Pairs that lost their slot to another copy of a node are few. They get spare slots.
    lost_slot, lost_column = [], []
    for part in chunks:
        slot, column = pairs(part)
        lost = (table[slot] != column).nonzero()[:, 0]
        lost_slot.append(slot[lost])
        lost_column.append(column[lost])
    width, table = slots, table.reshape(count, slots)
    owner = torch.div(torch.cat(lost_slot), slots, rounding_mode="floor")
    pair, which = torch.unique(owner * count + torch.cat(lost_column), return_inverse=True)
    spare = torch.zeros_like(pair)
    if len(pair):
        owner = torch.div(pair, count, rounding_mode="floor")
        spare = torch.arange(len(pair), device=device) - torch.searchsorted(owner, owner)
        table = torch.nn.functional.pad(table, (0, int(spare.max()) + 1), value=-1)
        width = table.shape[1]
        table[owner, slots + spare] = (pair % count).to(torch.int32)
        spare = owner * width + slots + spare
    used = table >= 0
    crow = torch.zeros(count + 1, dtype=torch.int32, device=device)
    crow[1:] = torch.cumsum(used.sum(1), 0)
    # The offset of a node from itself is the middle one.
    diagonal = crow[:-1].long() + used[:, : slots // 2].sum(1)
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
            # These are the pairs found above, in the same order.
            losers = (column[entry.reshape(-1)[slot].long()] != columns).nonzero()[:, 0]
            slot[losers] = spare[which[done : done + len(lost)]]
            done += len(lost)
        number = entry.reshape(-1)[slot].long()
        for v, m in zip(values, matrices, strict=True):
            v.index_add_(0, number, m[part].reshape(-1))
    return Pattern(crow, column, diagonal), values


@lru_cache
def _offsets(nodes: int, device: torch.device) -> tuple[Tensor, int]:
    """Number (k, k) of the offset from each row node of a cell to each column node; and how many offsets there are."""
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
