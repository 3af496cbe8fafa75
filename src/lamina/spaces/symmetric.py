"""The base of schemes with symmetric stiffness and a Galerkin hierarchy: means, linear solve, table of levels."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from lamina.linear.adjoint import System, solve
from lamina.linear.components import ComponentMean, column, component_sums
from lamina.linear.krylov import KrylovResult, conjugate_gradients, in_blocks
from lamina.linear.multigrid import ShiftedHierarchies, in_single_precision, v_cycle
from lamina.linear.operator import SparseOperator
from lamina.spaces.hierarchy import SMOOTHER, ChannelLevel, OperatorLevel, ShiftedLevel
from lamina.spaces.scheme import Report, Shift


class SymmetricOperators:
    """M du/dt = -K u + load with symmetric K and M, and K 1 = 0: the sum of M u is conserved on each component.

    levels: the hierarchy, finest first.
    component_count: the number c of components. The unknowns belong to components 0, ..., c - 1.
    free: (c,) bool, on which components K 1 = 0. Where conditions fix values, K 1 is not 0 and nothing is conserved.
    entries: the entries (nnz,) of K and of M, if they carry gradients.
    Vectors are (n,), or (n, k) for k fields.
    """

    smoother = SMOOTHER

    def __init__(
        self,
        levels: list[OperatorLevel],
        component_count: int,
        free: Tensor | None = None,
        entries: tuple[Tensor, Tensor] | None = None,
    ):
        self.levels = levels
        self.entries = entries
        self.free = None if free is None or bool(free.all()) else free
        self.component = levels[0].component
        self.component_count = component_count
        self._shifted = ShiftedHierarchies(self._shift)

    @property
    def unknowns(self) -> int:
        return self.levels[0].unknowns

    @cached_property
    def K(self) -> Tensor:
        return self.levels[0].matrix(1.0, 0.0)

    @cached_property
    def M(self) -> Tensor:
        return self.levels[0].matrix(0.0, 1.0)

    @cached_property
    def stiffness(self) -> SparseOperator:
        """K, with gradients."""
        return SparseOperator(self.K, None if self.entries is None else self.entries[0], symmetric=True)

    @cached_property
    def mass_matrix(self) -> SparseOperator:
        """M, with gradients."""
        return SparseOperator(self.M, None if self.entries is None else self.entries[1], symmetric=True)

    @cached_property
    def mass_of_one(self) -> Tensor:
        """M 1. Its inner product with u is the integral of u."""
        with torch.enable_grad():  # cached: built with gradients even if first requested under no_grad
            return self.mass_matrix @ torch.ones_like(self.levels[0].stiffness[: self.unknowns])

    @cached_property
    def area(self) -> Tensor:
        """Area (c,) of each component."""
        with torch.enable_grad():
            return self._component_sums(self.mass_of_one)

    def apply(self, u: Tensor) -> Tensor:
        return -(self.stiffness @ u)

    def mass(self, u: Tensor) -> Tensor:
        return self.mass_matrix @ u

    def solve(
        self, g: Tensor, shift: Shift, *, tolerance: float, start: Tensor | None = None, report: Report | None = None
    ) -> KrylovResult:
        """Conjugate gradients on K + shift M, preconditioned by one V-cycle; the right-hand side is -g.

        The mean of u on each component is known beforehand, and only the rest is solved for. Neither the tolerance nor
        rounding therefore changes the integral, and a field close to its mean keeps all its digits.
        shift: a number, or one number (k,) for each column of g.
        """
        moving = isinstance(shift, Tensor) or shift != 0
        size = g.detach().norm(dim=0)
        begin = None if start is None else self.without_mean(start).detach()

        def forward(b: Tensor, size: Tensor | None) -> KrylovResult:
            return self._conjugate_gradients(b, shift, tolerance, begin, size, report)

        def backward(b: Tensor, size: Tensor | None) -> KrylovResult:
            return self._conjugate_gradients(b, shift, tolerance, None, size, None)

        result = solve(System(forward, backward, *self._sensitivity(shift)), -self.compatible(g), size)
        u = self.without_mean(result.solution)
        if moving:
            mean = self._component_sums(g) / (shift * column(self.area, g))
            u = u - self._at_unknowns(self._on_free(mean))
        return KrylovResult(u, result.iterations, result.residual, result.converged)

    def _conjugate_gradients(
        self,
        b: Tensor,
        shift: Shift,
        tolerance: float,
        start: Tensor | None,
        size: Tensor | None,
        report: Report | None,
    ) -> KrylovResult:
        """Solve (K + shift M) u = b, where b has zero sums on free components.

        size: the norms (k,) of b before its mean was subtracted.
        """
        channels = shift.detach() if isinstance(shift, Tensor) and shift.ndim else None
        c = 0.0 if channels is not None else float(shift.detach() if isinstance(shift, Tensor) else shift)
        moving = channels is not None or c != 0
        if channels is not None:  # under vmap each channel has several columns
            channels = channels.repeat_interleave(b.shape[1] // len(channels))

        def columns(b: Tensor, part: slice, unit: Tensor) -> KrylovResult:
            rows = (slice(None), part) if b.ndim > 1 else slice(None)
            begin = None if start is None else start[rows] / unit
            whole = None if size is None else (size[part] if b.ndim > 1 else size) / unit
            finest, cycle = self._cycle(c, None if channels is None else channels[part], many=b.ndim > 1)
            mean = self._unshifted[0].mean
            scale = b.norm(dim=0) if whole is None else whole
            if moving and whole is not None:
                # If the right-hand side is almost constant, b is only rounding and is not solved for. But a field that
                # diffuses to its mean must be solved until it reaches the mean.
                scale = torch.maximum(b.norm(dim=0), 1e2 * torch.finfo(b.dtype).eps / tolerance * whole)

            def project(v: Tensor) -> Tensor:
                # For shift 0 constants are in the kernel of K, and rounding errors would accumulate in them.
                return v if moving else mean.remove(v)

            return conjugate_gradients(
                lambda u: project(finest.apply(u)),
                project(b),
                precondition=lambda r: project(cycle(r)),
                start=begin,
                tolerance=tolerance,
                scale=scale,
                report=report,
                flexible=b.ndim > 1,
            )

        return in_blocks(columns, b)

    def _cycle(self, shift: float, channels: Tensor | None, many: bool):
        """The finest level of K + c M and a V-cycle for it, with one shift c for all columns or one for each column."""
        if channels is not None:
            finest = ChannelLevel(self._unshifted[0], channels)
            levels = [ChannelLevel(base, channels.float()) for base in self._unshifted_single]
            return finest, in_single_precision(lambda r: v_cycle(levels, r))
        finest = self._shifted.levels(shift)[0]
        return finest, in_single_precision(self._single.cycle(shift)) if many else self._shifted.cycle(shift)

    def _sensitivity(self, shift: Shift):
        """The tensors with gradients that K + shift M is made of, and the gradients of -v.(K + shift M) u for them."""
        entries = () if self.entries is None else self.entries
        shifts = (shift,) if isinstance(shift, Tensor) else ()

        def by_entries(v: Tensor, u: Tensor) -> list[Tensor]:
            found = []
            if entries:
                found = [-self.stiffness.outer_at_entries(v, u), -self.mass_matrix.outer_at_entries(shift * v, u)]
            if shifts:
                each = -(v * (self.mass_matrix @ u)).sum(0)
                found.append(each if each.shape == shifts[0].shape else each.sum())
            return found

        return (*entries, *shifts), by_entries

    @cached_property
    def _unshifted(self) -> list[ShiftedLevel]:
        """The levels of K, which serve all shifts of channels."""
        return self._shift(0.0)

    @cached_property
    def _unshifted_single(self) -> list[ShiftedLevel]:
        return self._shift_single(0.0)

    @cached_property
    def _single(self) -> ShiftedHierarchies:
        return ShiftedHierarchies(self._shift_single)

    def shifted(self, shift: float) -> list[ShiftedLevel]:
        """The levels of K + shift M. Those of the last few shifts are cached."""
        return self._shifted.levels(shift)

    def _shift(self, shift: float) -> list[ShiftedLevel]:
        return self._shift_levels(self.levels, shift)

    def _shift_single(self, shift: float) -> list[ShiftedLevel]:
        return self._shift_levels([level.in_single_precision() for level in self.levels], shift)

    def _shift_levels(self, levels: list[OperatorLevel], shift: float) -> list[ShiftedLevel]:
        means = [ComponentMean(level.component, self.component_count, only=self.free) for level in levels]
        return [ShiftedLevel(level, shift, mean, self.smoother) for level, mean in zip(levels, means, strict=True)]

    def compatible(self, g: Tensor) -> Tensor:
        """g minus the load of a constant f on each free component, such that its sums there are zero."""
        mean = self._on_free(self._component_sums(g) / column(self.area, g))
        return g - self._at_unknowns(mean) * column(self.mass_of_one, g)

    def without_mean(self, u: Tensor) -> Tensor:
        """u minus its mean on each free component."""
        sums = self._component_sums(column(self.mass_of_one, u) * u)
        return u - self._at_unknowns(self._on_free(sums / column(self.area, u)))

    def _at_unknowns(self, means: Tensor) -> Tensor:
        """Means (c,) or (c, k) at the unknowns. A single mean is broadcast, which has faster gradients."""
        return means if self.component_count == 1 else means[self.component]

    def _on_free(self, means: Tensor) -> Tensor:
        return means if self.free is None else torch.where(column(self.free, means), means, 0)

    def norm(self, u: Tensor) -> float:
        u = u.detach()
        square = (u * (self.M @ u)).sum() / self.area.detach().sum()
        return float(square.clamp_min(0).sqrt())

    def incompatible(self, g: Tensor, u: Tensor) -> Tensor:
        return self._on_free(self._component_sums(g) / self.area)

    def table(self) -> list[tuple[float, int, int, int]]:
        rows = []
        for level in self.levels:
            entries = len(level.stiffness)
            size = 2 * level.stiffness.nbytes + level.pattern.column.nbytes + level.pattern.crow.nbytes
            rows.append((level.spacing, level.unknowns, entries, size))
        return rows

    def _component_sums(self, v: Tensor) -> Tensor:
        return component_sums(v, self.component, self.component_count)
