"""Gradients through sparse products and linear solves.

For A u = g and a loss J(u), the adjoint v with A^T v = dJ/du gives

    dJ/dg = v,          dJ/dA_ij = -v_i u_j :

one more solve, whatever the number of iterations of the first, and nothing of them is kept. Backward is itself made of
products and solves that have gradients, so it can be differentiated again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from lamina.linear.assembly import rows_to_csr
from lamina.linear.krylov import KrylovResult


class Sparse:
    """A CSR matrix with gradients: in what it is multiplied with, and in its entries where `values` carry them.

    matrix: CSR, without gradients. values (nnz,): the same entries with their graph; None: constants.
    """

    def __init__(self, matrix: Tensor, values: Tensor | None = None):
        self.matrix, self.values = matrix, values

    @property
    def shape(self) -> torch.Size:
        return self.matrix.shape

    @cached_property
    def row(self) -> Tensor:
        """Row (nnz,) of each entry."""
        return _rows(self.matrix)

    @cached_property
    def T(self) -> Sparse:
        matrix, order = transposed(self.matrix)
        other = Sparse(matrix, None if self.values is None else self.values[order])
        other.T = self
        return other

    def __matmul__(self, u: Tensor) -> Tensor:
        """(rows,) or (rows, k) from u (columns,) or (columns, k)."""
        tracked = u.requires_grad or (self.values is not None and self.values.requires_grad)
        if torch._C._functorch.maybe_current_level() is None and not (tracked and torch.is_grad_enabled()):
            return self.matrix @ u
        return _Product.apply(self, self.values, u)  # pyright: ignore[reportReturnType]

    def pairs(self, left: Tensor, right: Tensor) -> Tensor:
        """left_i right_j (nnz,) at the entries, summed over columns if there are several."""
        product = left[self.row] * right[self.matrix.col_indices().long()]
        return product if product.ndim == 1 else product.sum(1)


def sparse_rows(index: Tensor, values: Tensor, columns: int) -> Sparse:
    """The matrix with entries values (n, m), which may carry gradients, in columns index (n, m) int32."""
    return Sparse(rows_to_csr(index, values.detach(), columns), values.reshape(-1) if values.requires_grad else None)


def _rows(matrix: Tensor) -> Tensor:
    counts = torch.diff(matrix.crow_indices()).long()
    return torch.repeat_interleave(torch.arange(matrix.shape[0], device=matrix.device), counts)


def transposed(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The transpose of a CSR matrix as CSR, and the entry (nnz,) of the matrix that each of its entries is."""
    crow, column, size = matrix.crow_indices(), matrix.col_indices(), (matrix.shape[1], matrix.shape[0])
    if matrix.device.type == "cpu":  # where scipy is ten times as fast as a sort
        numbers = np.arange(len(column), dtype=np.int32)
        turned = csr_matrix((numbers, column.numpy(), crow.numpy()), shape=matrix.shape).tocsc()
        start, row, order = (torch.from_numpy(v) for v in (turned.indptr, turned.indices, turned.data))
    else:
        order = torch.argsort(column, stable=True)
        start = torch.zeros(size[0] + 1, dtype=torch.int64, device=column.device)
        start[1:] = torch.cumsum(torch.bincount(column, minlength=size[0]), 0)
        row = _rows(matrix)[order]
    start, row, order = start.to(crow.dtype), row.to(column.dtype), order.long()
    return torch.sparse_csr_tensor(start, row, matrix.values()[order], size, check_invariants=False), order


class FirstOrder(torch.autograd.Function):
    """Its argument, of which there is a first derivative and no second."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        if torch.is_grad_enabled() and gradients[0].requires_grad:
            raise NotImplementedError(
                "Second derivatives with respect to a shape are not available; use create_graph=False, or hold the "
                "surface fixed."
            )
        return gradients[0]


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(sparse: Sparse, values: Tensor | None, u: Tensor) -> Tensor:
        return sparse.matrix @ u

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.sparse, values, u = inputs
        ctx.save_for_backward(u if values is not None else None)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple:
        (gradient,) = gradients
        (u,) = ctx.saved_tensors
        by_entry = ctx.sparse.pairs(gradient, u) if ctx.needs_input_grad[1] else None
        by_vector = ctx.sparse.T @ gradient if ctx.needs_input_grad[2] else None
        return None, by_entry, by_vector

    @staticmethod
    def vmap(info: Any, in_dims: tuple, sparse: Sparse, values: Tensor | None, u: Tensor) -> tuple[Tensor, int]:
        return _columns(u, in_dims[2], lambda v: sparse @ v)


def _columns(u: Tensor, batch: int, function: Callable[[Tensor], Tensor]) -> tuple[Tensor, int]:
    """function of u (n, k), with the batch of vmap among its columns; the result and where the batch is then."""
    u = u.movedim(batch, -1)
    out = function(u.reshape(len(u), -1))
    return out.reshape(len(out), *u.shape[1:]), u.ndim - 1


@dataclass
class System:
    """A u = g, and what is needed to differentiate its solution.

    forward, backward: solve with A, and with A^T, by any method. entries: tensors that A was made of.
    by_entries(v, u): the gradient of -v.A u with respect to each of them; called only if one of them wants it.
    """

    forward: Callable[[Tensor], KrylovResult]
    backward: Callable[[Tensor], KrylovResult]
    entries: Sequence[Tensor] = ()
    by_entries: Callable[[Tensor, Tensor], Sequence[Tensor | None]] = lambda v, u: ()
    result: KrylovResult | None = field(default=None, init=False)

    def transposed(self) -> System:
        return System(self.backward, self.forward, self.entries, lambda v, u: self.by_entries(u, v))


def solve(system: System, g: Tensor) -> KrylovResult:
    """The solution of a system, with gradients to g (n,) or (n, k) and to the entries."""
    u = _Solve.apply(system, g, *system.entries)
    assert system.result is not None
    return replace(system.result, solution=u)  # pyright: ignore[reportArgumentType]


class _Solve(torch.autograd.Function):
    @staticmethod
    def forward(system: System, g: Tensor, *entries: Tensor) -> Tensor:
        system.result = system.forward(g)
        return system.result.solution

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.system = inputs[0]
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple:
        (u,) = ctx.saved_tensors
        adjoint = solve(ctx.system.transposed(), gradients[0]).solution
        if not any(ctx.needs_input_grad[2:]):
            return None, adjoint, *(None for _ in ctx.system.entries)
        return None, adjoint, *ctx.system.by_entries(adjoint, u)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, system: System, g: Tensor, *entries: Tensor) -> tuple[Tensor, int]:
        return _columns(g, in_dims[1], lambda v: solve(system, v).solution)
