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
from typing import Any, cast

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from lamina.device import in_own_precision
from lamina.errors import InputError
from lamina.linear.assembly import rows_to_csr
from lamina.linear.krylov import KrylovResult


class Sparse:
    """A CSR matrix with gradients: in what it is multiplied with, and in its entries where `values` carry them.

    matrix: CSR, without gradients. values (nnz,): the same entries with their graph; None: constants.
    """

    def __init__(self, matrix: Tensor, values: Tensor | None = None):
        # Kept apart: inside the transformations of torch.func a CSR tensor may not even be looked at.
        self.crow, self.column, self.shape = matrix.crow_indices(), matrix.col_indices(), matrix.shape
        self.matrix, self.values = matrix, values

    @cached_property
    def row(self) -> Tensor:
        """Row (nnz,) of each entry."""
        return _rows(self.crow)

    @cached_property
    def T(self) -> _Transposed:
        return _Transposed(self)

    @in_own_precision
    def __matmul__(self, u: Tensor) -> Tensor:
        """(rows,) or (rows, k) from u (columns,) or (columns, k)."""
        tracked = u.requires_grad or (self.values is not None and self.values.requires_grad)
        if not transforming() and not (tracked and torch.is_grad_enabled()):
            return self.matrix @ u
        return cast(Tensor, _Product.apply(self, self.values, u))

    def after(self, first: Sparse) -> Sparse:
        """This matrix times another one, neither with gradients in its entries."""
        return Sparse(_matrix_product(self.matrix, first.matrix))

    @property
    def tracked(self) -> bool:
        return self.values is not None and self.values.requires_grad

    def pairs(self, left: Tensor, right: Tensor) -> Tensor:
        """left_i right_j (nnz,) at the entries, summed over columns if there are several."""
        product = left[self.row] * right[self.column.long()]
        return product if product.ndim == 1 else product.sum(1)


def transforming() -> bool:
    """Whether vmap, grad or another transformation of torch.func is at work, which must see the product."""
    return torch._C._functorch.maybe_current_level() is not None  # pyright: ignore[reportAttributeAccessIssue]


def sparse_rows(index: Tensor, values: Tensor, columns: int) -> Sparse:
    """The matrix with entries values (n, m), which may carry gradients, in columns index (n, m) int32."""
    return Sparse(rows_to_csr(index, values.detach(), columns), values.reshape(-1) if values.requires_grad else None)


def _rows(crow: Tensor) -> Tensor:
    counts = torch.diff(crow).long()
    return torch.repeat_interleave(torch.arange(len(counts), device=crow.device), counts)


class _Transposed(Sparse):
    """The transpose, made when it is first multiplied with something."""

    def __init__(self, original: Sparse):
        vars(self)["T"] = original
        self.shape = torch.Size((original.shape[1], original.shape[0]))

    @cached_property
    def matrix(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        return transposed(self.T.matrix)[0]

    @cached_property
    def values(self) -> Tensor | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        values = self.T.values
        return None if values is None else values[self._order]

    def pairs(self, left: Tensor, right: Tensor) -> Tensor:
        return self.T.pairs(right, left)[self._order]

    @cached_property
    def _order(self) -> Tensor:
        """The entry (nnz,) of the original that each entry is."""
        with temporarily_clear_interpreter_stack():
            return _turned(self.T.crow, self.T.column, self.T.shape)[2]


def transposed(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The transpose of a CSR matrix as CSR, and the entry (nnz,) of the matrix that each of its entries is."""
    start, row, order = _turned(matrix.crow_indices(), matrix.col_indices(), matrix.shape)
    size = matrix.shape[1], matrix.shape[0]
    return torch.sparse_csr_tensor(start, row, matrix.values()[order], size, check_invariants=False), order


def _turned(crow: Tensor, column: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor, Tensor]:
    """Row starts and columns of the transpose, and the entry (nnz,) of the matrix that each of its entries is."""
    if column.device.type == "cpu":  # where scipy is ten times as fast as a sort
        numbers = np.arange(len(column), dtype=np.int32)
        turned = csr_matrix((numbers, column.numpy(), crow.numpy()), shape=shape).tocsc()
        start, row, order = (torch.from_numpy(v) for v in (turned.indptr, turned.indices, turned.data))
    else:
        order = torch.argsort(column, stable=True)
        start = torch.zeros(shape[1] + 1, dtype=torch.int64, device=column.device)
        start[1:] = torch.cumsum(torch.bincount(column, minlength=shape[1]), 0)
        row = _rows(crow)[order]
    return start.to(crow.dtype), row.to(column.dtype), order.long()


def _matrix_product(a: Tensor, b: Tensor) -> Tensor:
    """a b as CSR with int32 indices."""
    shape = a.shape[0], b.shape[1]
    if a.device.type == "cpu":

        def scipy_matrix(m: Tensor) -> csr_matrix:
            return csr_matrix((m.values().numpy(), m.col_indices().numpy(), m.crow_indices().numpy()), shape=m.shape)

        found = cast(csr_matrix, scipy_matrix(a) @ scipy_matrix(b))
        parts = [torch.from_numpy(v) for v in (found.indptr, found.indices, found.data)]
    else:
        found = torch.sparse.mm(a, b)
        parts = [found.crow_indices(), found.col_indices(), found.values()]
    crow, column, values = parts
    return torch.sparse_csr_tensor(crow.to(torch.int32), column.to(torch.int32), values, shape, check_invariants=False)


def first_order(x: Tensor) -> Tensor:
    """x, marked as what has a first derivative and no second: backward through backward is refused."""
    return cast(Tensor, FirstOrder.apply(x))


class FirstOrder(torch.autograd.Function):
    """Its argument, of which there is a first derivative and no second."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        if torch.is_grad_enabled() and gradients[0].requires_grad:
            raise InputError(
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
    @in_own_precision
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

    forward(g, size), backward(g): solve with A, and with A^T, by any method; size () or (k,): what residuals may be
    measured against besides g. entries: tensors that A was made of.
    by_entries(v, u): the gradient of -v.A u with respect to each of them; called only if one of them wants it.
    """

    forward: Callable[[Tensor, Tensor | None], KrylovResult]
    backward: Callable[[Tensor, Tensor | None], KrylovResult]
    entries: Sequence[Tensor] = ()
    by_entries: Callable[[Tensor, Tensor], Sequence[Tensor | None]] = lambda v, u: ()
    result: KrylovResult | None = field(default=None, init=False)

    def transposed(self) -> System:
        return System(self.backward, self.forward, self.entries, lambda v, u: self.by_entries(u, v))


def solve(system: System, g: Tensor, size: Tensor | None = None) -> KrylovResult:
    """The solution of a system, with gradients to g (n,) or (n, k) and to the entries."""
    u = cast(Tensor, _Solve.apply(system, g, size, *system.entries))
    assert system.result is not None
    return replace(system.result, solution=u)


class _Solve(torch.autograd.Function):
    @staticmethod
    def forward(system: System, g: Tensor, size: Tensor | None, *entries: Tensor) -> Tensor:
        system.result = system.forward(g, size)
        return system.result.solution

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.system = replace(inputs[0])  # without its result, whose solution holds this graph: a cycle
        ctx.save_for_backward(output)

    @staticmethod
    @in_own_precision
    def backward(ctx: Any, *gradients: Tensor) -> tuple:
        (u,) = ctx.saved_tensors
        adjoint = solve(ctx.system.transposed(), gradients[0]).solution
        if not any(ctx.needs_input_grad[3:]):
            return None, adjoint, None, *(None for _ in ctx.system.entries)
        return None, adjoint, None, *ctx.system.by_entries(adjoint, u)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple, system: System, g: Tensor, size: Tensor | None, *entries: Tensor
    ) -> tuple[Tensor, int]:
        if size is not None:
            size = (size if in_dims[2] is None else size.movedim(in_dims[2], -1)).reshape(-1)
        return _columns(g, in_dims[1], lambda v: solve(system, v, size).solution)
