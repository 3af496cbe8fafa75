"""The sparse operator: A @ u, its transpose A.T, and gradients of products to vectors and to entries.

Backward of a product is made of products and of entry-wise sums, which have gradients themselves. So it can be
differentiated again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from lamina.device import in_own_precision
from lamina.linear.assembly import rows_to_csr


class SparseOperator:
    """A CSR matrix whose products have gradients: to the vector, and to the entries where `values` carries them.

    matrix: CSR, without gradients. values (nnz,): the same entries with their graph; None if they are constants.
    symmetric: whether A.T is A, entries included. It is stated by the caller and not checked.
    """

    def __init__(self, matrix: Tensor, values: Tensor | None = None, symmetric: bool = False):
        # The indices are stored separately because transformations of torch.func cannot read them from a CSR tensor.
        self.crow, self.column, self.shape = matrix.crow_indices(), matrix.col_indices(), matrix.shape
        self.matrix, self.values, self.symmetric = matrix, values, symmetric

    @cached_property
    def row(self) -> Tensor:
        """Row (nnz,) of each entry."""
        return _rows(self.crow)

    @property
    def T(self) -> SparseOperator:
        """The transpose; the operator itself if it is symmetric."""
        return self if self.symmetric else self._transpose

    @cached_property
    def _transpose(self) -> SparseOperator:
        return _Transposed(self)

    @in_own_precision
    def __matmul__(self, u: Tensor) -> Tensor:
        """(rows,) or (rows, k) from u (columns,) or (columns, k)."""
        tracked = u.requires_grad or (self.values is not None and self.values.requires_grad)
        if not transforming() and not (tracked and torch.is_grad_enabled()):
            return self.matrix @ u
        return cast(Tensor, _Product.apply(self, self.values, u))

    def after(self, first: SparseOperator) -> SparseOperator:
        """The product of this matrix with `first`. The entries of both must be constants."""
        return SparseOperator(_matrix_product(self.matrix, first.matrix))

    @property
    def tracked(self) -> bool:
        """Whether the entries carry gradients."""
        return self.values is not None and self.values.requires_grad

    def outer_at_entries(self, left: Tensor, right: Tensor) -> Tensor:
        """left_i right_j (nnz,) for each entry (i, j); summed over the columns if left and right are (n, k)."""
        product = left[self.row] * right[self.column.long()]
        return product if product.ndim == 1 else product.sum(1)


def transforming() -> bool:
    """Whether vmap, grad or another transformation of torch.func is active: then a product must be recorded."""
    return torch._C._functorch.maybe_current_level() is not None  # pyright: ignore[reportAttributeAccessIssue]


def sparse_rows(index: Tensor, values: Tensor, columns: int) -> SparseOperator:
    """The operator with m entries in each of its n rows: values (n, m), with or without gradients, in columns index
    (n, m) int32."""
    matrix = rows_to_csr(index, values.detach(), columns)
    return SparseOperator(matrix, values.reshape(-1) if values.requires_grad else None)


def _rows(crow: Tensor) -> Tensor:
    counts = torch.diff(crow).long()
    return torch.repeat_interleave(torch.arange(len(counts), device=crow.device), counts)


class _Transposed(SparseOperator):
    """The transpose. Its matrix is built at the first product."""

    symmetric = False

    def __init__(self, original: SparseOperator):
        self.original = original
        self.shape = torch.Size((original.shape[1], original.shape[0]))

    @property
    def T(self) -> SparseOperator:
        return self.original

    @cached_property
    def matrix(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        return transposed(self.original.matrix)[0]

    @cached_property
    def values(self) -> Tensor | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        values = self.original.values
        return None if values is None else values[self._order]

    def outer_at_entries(self, left: Tensor, right: Tensor) -> Tensor:
        return self.original.outer_at_entries(right, left)[self._order]

    @cached_property
    def _order(self) -> Tensor:
        """For each entry (nnz,) its number among the entries of the original."""
        with temporarily_clear_interpreter_stack():
            return _transposed_pattern(self.original.crow, self.original.column, self.original.shape)[2]


def transposed(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The transpose of a CSR matrix as CSR; and for each of its entries (nnz,) its number among those of the matrix."""
    start, row, order = _transposed_pattern(matrix.crow_indices(), matrix.col_indices(), matrix.shape)
    size = matrix.shape[1], matrix.shape[0]
    return torch.sparse_csr_tensor(start, row, matrix.values()[order], size, check_invariants=False), order


def _transposed_pattern(crow: Tensor, column: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor, Tensor]:
    """Row starts and columns of the transpose; and for each of its entries (nnz,) its number in the matrix."""
    if column.device.type == "cpu":  # scipy is ten times as fast as a sort there
        numbers = np.arange(len(column), dtype=np.int32)
        by_column = csr_matrix((numbers, column.numpy(), crow.numpy()), shape=shape).tocsc()
        start, row, order = (torch.from_numpy(v) for v in (by_column.indptr, by_column.indices, by_column.data))
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

        product = cast(csr_matrix, scipy_matrix(a) @ scipy_matrix(b))
        parts = [torch.from_numpy(v) for v in (product.indptr, product.indices, product.data)]
    else:
        product = torch.sparse.mm(a, b)
        parts = [product.crow_indices(), product.col_indices(), product.values()]
    crow, column, values = parts
    return torch.sparse_csr_tensor(crow.to(torch.int32), column.to(torch.int32), values, shape, check_invariants=False)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(operator: SparseOperator, values: Tensor | None, u: Tensor) -> Tensor:
        return operator.matrix @ u

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.operator, values, u = inputs
        ctx.save_for_backward(u if values is not None else None)

    @staticmethod
    @in_own_precision
    def backward(ctx: Any, *gradients: Tensor) -> tuple:
        (gradient,) = gradients
        (u,) = ctx.saved_tensors
        by_entry = ctx.operator.outer_at_entries(gradient, u) if ctx.needs_input_grad[1] else None
        by_vector = ctx.operator.T @ gradient if ctx.needs_input_grad[2] else None
        return None, by_entry, by_vector

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple, operator: SparseOperator, values: Tensor | None, u: Tensor
    ) -> tuple[Tensor, int]:
        return with_batch_as_columns(u, in_dims[2], lambda v: operator @ v)


def with_batch_as_columns(u: Tensor, batch: int, function: Callable[[Tensor], Tensor]) -> tuple[Tensor, int]:
    """function(u) with the batch dimension of vmap moved among the columns; and the batch dimension of the result."""
    u = u.movedim(batch, -1)
    out = function(u.reshape(len(u), -1))
    return out.reshape(len(out), *u.shape[1:]), u.ndim - 1
