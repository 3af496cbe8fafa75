"""Linear solves with gradients.

For A u = g and a loss J(u), the adjoint v solves A^T v = dJ/du and gives

    dJ/dg = v,          dJ/dA_ij = -v_i u_j.

This costs one more solve, however many iterations the first one took, and no iterate is stored. Backward is itself made
of products and solves that have gradients, so it can be differentiated again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor

from lamina.device import in_own_precision
from lamina.errors import InputError
from lamina.linear.krylov import KrylovResult
from lamina.linear.operator import with_batch_as_columns


def first_order(x: Tensor) -> Tensor:
    """x, with a first derivative and no second one: differentiating its backward raises InputError."""
    return cast(Tensor, FirstOrder.apply(x))


class FirstOrder(torch.autograd.Function):
    """The identity, whose second derivative is refused."""

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


@dataclass
class System:
    """A u = g, and what is needed to differentiate its solution.

    forward(g, size) solves with A, and backward(g, size) with A^T, by any method. size () or (k,), or None: another
    measure of g that the stopping rule may use. entries: the tensors that A is made of.
    by_entries(v, u): the gradient of -v.A u with respect to each entry tensor, called only if one of them needs it.
    """

    forward: Callable[[Tensor, Tensor | None], KrylovResult]
    backward: Callable[[Tensor, Tensor | None], KrylovResult]
    entries: Sequence[Tensor] = ()
    by_entries: Callable[[Tensor, Tensor], Sequence[Tensor | None]] = lambda v, u: ()
    result: KrylovResult | None = field(default=None, init=False)

    def transposed(self) -> System:
        return System(self.backward, self.forward, self.entries, lambda v, u: self.by_entries(u, v))


def solve(system: System, g: Tensor, size: Tensor | None = None) -> KrylovResult:
    """The solution of a system, with gradients with respect to g (n,) or (n, k) and to the entries."""
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
        # A copy without the result: the solution in it refers to this graph, which would be a reference cycle.
        ctx.system = replace(inputs[0])
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
        return with_batch_as_columns(g, in_dims[1], lambda v: solve(system, v, size).solution)
