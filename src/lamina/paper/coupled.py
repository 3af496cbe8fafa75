"""The coupled scheme: the closest point method as one linear system, with its multigrid hierarchy.

On the band, with E the interpolation at the closest points and L the Cartesian Laplacian, the surface
Laplacian of a field u is

    A u = E L u - gamma (I - E) u,          gamma = NORMAL_PENALTY / dx^2.

E L u is the Laplacian at the closest points. The second term keeps u constant along normals (von Glehn, Maerz and
Macdonald 2013). Their gamma is -L_ii = 6/dx^2, with which a Jacobi step of A is a step of the explicit closest point
iteration. The discrete solution has an error gamma (I - E) u. A smaller gamma is therefore more accurate, until the
smoother no longer damps the modes that vary along normals (docs/theory.md has the measurements). Both orders use the
13-point Laplacian, because the dx^2/12 error of the 7-point Laplacian would be the largest of all errors.

Screened and implicit problems need A - c I. This is the same operator with penalty gamma + c.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from lamina.geometry.lattice import Lattice
from lamina.linear.adjoint import System, solve
from lamina.linear.components import ComponentMean, column
from lamina.linear.krylov import KrylovResult, fgmres, in_blocks
from lamina.linear.multigrid import ShiftedHierarchies, in_single_precision
from lamina.linear.operator import SparseOperator
from lamina.paper.coupled_levels import MAX_DIRECT_NODES, AdjointLevel, ShiftedLevel, build_levels
from lamina.paper.ghosts import ConstrainedGhosts, GhostRule
from lamina.paper.interpolation import interpolation
from lamina.progress import Update
from lamina.spaces.scheme import Field, Report, Shift
from lamina.surfaces.base import ClosestPoints, Surface


class Coupled:
    """The hierarchy of levels for one surface, spacing and order. A `Scheme` with M = I."""

    name = "coupled"
    nodes_per_cell = 1

    def __init__(
        self,
        surface: Surface,
        lattice: Lattice,
        order: int,
        update: Update = lambda fraction, what: None,
        rim_order: int = 2,
    ):
        """rim_order: 2 reflects closest points through rims, 1 leaves them on the rims."""
        self.order, self.rim_order = order, rim_order
        self.spacing = lattice.spacing
        self.component_count = surface.component_count
        self.levels, self.extension = build_levels(surface, lattice, order, update, rim_order)
        self.rule: GhostRule | None = None  # of the finest ghosts; None: no flux through rims
        self._reset()

    @property
    def component(self) -> Tensor:
        """The component (n,) of each unknown."""
        return self.levels[0].band.component

    def _reset(self) -> None:
        """Empty the caches of shifted levels, of their transposes, and of both in single precision."""
        self._shifted, self._adjoint = ShiftedHierarchies(self._shift), ShiftedHierarchies(self._shift_adjoint)
        self._single = ShiftedHierarchies(self._shift_single)
        self._adjoint_single = ShiftedHierarchies(self._shift_adjoint_single)

    def _shift_single(self, c: float) -> list:
        return [level.single() for level in self._shifted.levels(c)]

    def _shift_adjoint_single(self, c: float) -> list:
        return [level.single() for level in self._adjoint.levels(c)]

    def with_rules(self, rules: list[GhostRule | None], determined: Tensor) -> Coupled:
        """This scheme with other rules for the ghosts of each level.

        determined (c,) bool: the components whose conditions fix the constant of u, as values do and fluxes do not.
        """
        other = copy.copy(self)
        levels = []
        for i, (level, rule) in enumerate(zip(self.levels, rules, strict=True)):
            mean = ComponentMean(
                level.band.component, self.component_count, only=None if not determined.any() else ~determined
            )
            coarse = rules[i + 1] if i + 1 < len(rules) else None
            new = replace(level, mean=mean)
            if rule is not None and level.ghosts is not None:
                rows = level.ghosts.rows
                E = multiply_rows(level.E, rows, rule.image_factor)
                if i == 0:
                    other.extension = SparseOperator(E, multiply_entries(self.extension, rows, rule.image_factor))
                new = replace(new, E=E, constrained=ConstrainedGhosts.of(E, rows[rule.image_factor <= 0]))
                if level.from_coarse is not None:
                    new = replace(new, from_coarse=multiply_rows(level.from_coarse, rows, rule.image_factor))
            below = self.levels[i + 1].ghosts if coarse is not None else None
            if coarse is not None and below is not None and level.to_coarse is not None:
                new = replace(new, to_coarse=multiply_rows(level.to_coarse, below.rows, coarse.image_factor))
            levels.append(new)
        other.levels, other.rule = levels, rules[0]
        other._reset()
        return other

    def with_ghosts(self, u: Tensor, g: Tensor) -> Tensor:
        """u with the values of the rule at ghosts, for data g. The argument has the values of their images there."""
        ghosts, rule = self.levels[0].ghosts, self.rule
        assert rule is not None
        assert ghosts is not None
        return u.index_copy(0, ghosts.rows, rule.image_factor * u[ghosts.rows] + rule.data_factor * g)

    def boundary_load(self, g: Tensor) -> Tensor:
        """What data g at the ghosts of the finest level add to A u."""
        level = self.levels[0]
        assert self.rule is not None
        assert level.ghosts is not None
        out = torch.zeros_like(level.band.feet.points[:, 0])
        out[level.ghosts.rows] = level.gamma * self.rule.data_factor * g
        return out

    @property
    def unknowns(self) -> int:
        return len(self.levels[0].band)

    def apply(self, u: Tensor) -> Tensor:
        return self.levels[0].apply(u)

    def mass(self, u: Tensor) -> Tensor:
        return self.levels[0].zero_at_constrained(u)

    def load(self, f: Field) -> Tensor:
        return self.levels[0].zero_at_constrained(self.extension @ self.sample(f))

    @property
    def source_points(self) -> Tensor:
        return self.levels[0].band.feet.points

    @property
    def source_faces(self) -> Tensor | None:
        return self.levels[0].band.feet.face

    def source_matrix(self) -> SparseOperator:
        constrained = self.levels[0].constrained
        if constrained is None:
            return self.extension
        zero = torch.zeros_like(constrained.rows, dtype=self.extension.matrix.dtype)
        values = multiply_entries(self.extension, constrained.rows, zero)
        return SparseOperator(multiply_rows(self.extension.matrix, constrained.rows, zero), values)

    def sample(self, u: Field) -> Tensor:
        return u(self.source_points)

    def solve(
        self, g: Tensor, shift: Shift, *, tolerance: float, start: Tensor | None = None, report: Report | None = None
    ) -> KrylovResult:
        """GMRES on A - shift I, preconditioned by one V-cycle. The adjoint solve does the same with the transposes."""
        c = float(shift.detach() if isinstance(shift, Tensor) else shift)

        def gmres(
            levels: ShiftedHierarchies,
            single: ShiftedHierarchies,
            b: Tensor,
            begin: Tensor | None,
            report: Report | None,
        ):
            finest = levels.levels(c)[0]

            def columns(b: Tensor, part: slice, unit: Tensor) -> KrylovResult:
                many = b.ndim > 1
                return fgmres(
                    lambda u: finest.project(finest.apply(u)),
                    finest.project(b),
                    precondition=in_single_precision(single.cycle(c)) if many else levels.cycle(c),
                    start=None if begin is None else (begin[:, part] if many else begin) / unit,
                    tolerance=tolerance,
                    scale=b.norm(dim=0),  # projection leaves only rounding of a constant right-hand side
                    report=report,
                )

            return in_blocks(columns, b)

        begin = None if start is None else start.detach()
        system = System(
            lambda b, size: gmres(self._shifted, self._single, b, begin, report),
            lambda b, size: gmres(self._adjoint, self._adjoint_single, b, None, None),
            *self._sensitivity(shift),
        )
        return solve(system, g)

    def _sensitivity(self, shift: Shift):
        """The tensors in A - shift M that carry gradients, and the gradients of -v.(A - shift M) u by them."""
        level, E = self.levels[0], self.extension
        entries = () if E.values is None else (E.values,)
        shifts = (shift,) if isinstance(shift, Tensor) else ()

        def by_entries(v: Tensor, u: Tensor) -> list[Tensor]:
            found, free = [], level.zero_at_constrained(v)
            if entries:
                by_E = -E.outer_at_entries(free, self._laplacian @ u + level.gamma * u)
                if level.constrained is not None:
                    by_E = by_E - level.gamma * E.outer_at_entries(v - free, u)
                found.append(by_E)
            if shifts:
                found.append((free * u).sum())
            return found

        return (*entries, *shifts), by_entries

    @cached_property
    def _laplacian(self) -> SparseOperator:
        return SparseOperator(self.levels[0].L)

    def explicit_step(self, u: Tensor, dt: float) -> Tensor:
        return self.extension @ torch.add(u, self._laplacian @ u, alpha=dt)

    def remove_mean(self, u: Tensor, mean_at_points: Callable[[Tensor], Tensor]) -> Tensor:
        mean = mean_at_points(u)
        only = self.levels[0].mean.only
        if only is not None:
            mean = torch.where(column(only, mean), mean, 0)
        return u - (mean if self.component_count == 1 else mean[self.levels[0].band.component])

    def norm(self, u: Tensor) -> float:
        return float(self.levels[0].zero_at_constrained(u.detach()).square().mean().sqrt())

    def incompatible(self, g: Tensor, u: Tensor) -> Tensor:
        mean = self.levels[0].mean
        found = mean(g.detach() - self.apply(u.detach()))
        return found if mean.only is None else torch.where(mean.only, found, 0)

    def readout(self, feet: ClosestPoints) -> SparseOperator:
        return interpolation(self.levels[0].band, feet.points, feet.component, self.levels[0].lines)

    def table(self) -> list[tuple[float, int, int, int]]:
        rows = []
        for level in self.levels:
            matrices = [m for m in (level.E, level.L, level.to_coarse, level.from_coarse) if m is not None]
            entries = sum(m.values().numel() for m in matrices)
            size = sum(m.values().nbytes + m.col_indices().nbytes + m.crow_indices().nbytes for m in matrices)
            rows.append((level.band.spacing, len(level.band), entries, size))
        return rows

    def shifted(self, shift: float) -> list[ShiftedLevel]:
        """The levels of A - shift I, the coarsest one factored. Those of the last few shifts are cached."""
        return self._shifted.levels(shift)

    def _shift(self, shift: float) -> list[ShiftedLevel]:
        levels = [ShiftedLevel(level, shift) for level in self.levels]
        if len(self.levels[-1].band) <= MAX_DIRECT_NODES:
            levels[-1] = ShiftedLevel(self.levels[-1], shift, self._factor(shift))
        return levels

    def _shift_adjoint(self, shift: float) -> list[ShiftedLevel]:
        own = self._shifted.levels(shift)
        return [AdjointLevel(level.level, shift, level.factor) for level in own]

    def _factor(self, shift: float) -> tuple[Tensor, Tensor]:
        """LU of the coarsest A - shift I. For shift 0 it is bordered by the constants of each component."""
        level = self.levels[-1]
        L = level.L.to_dense()
        L.diagonal().add_(level.gamma)
        A = level.E @ L
        A.diagonal().sub_(level.gamma + shift)
        if level.constrained is not None:
            rows = level.constrained.rows
            A[rows] = level.gamma * level.constrained.E.to_dense()
            A[rows, rows] -= level.gamma
        if shift == 0:
            ones = torch.nn.functional.one_hot(level.band.component, self.component_count).to(A)
            if level.mean.only is not None:
                ones = ones[:, level.mean.only]
            A = torch.cat([torch.cat([A, ones], 1), torch.cat([ones.T, A.new_zeros(ones.shape[1], ones.shape[1])], 1)])
        return torch.linalg.lu_factor(A)


def multiply_rows(matrix: Tensor, rows: Tensor, factor: Tensor) -> Tensor:
    """A CSR matrix with some rows (g,) multiplied by factors (g,)."""
    crow = matrix.crow_indices()
    values = matrix.values() * _entry_factors(matrix, rows, factor.detach())
    return torch.sparse_csr_tensor(crow, matrix.col_indices(), values, matrix.shape, check_invariants=False)


def multiply_entries(sparse: SparseOperator, rows: Tensor, factor: Tensor) -> Tensor | None:
    """The entries of the same product with their graph; None if they have none."""
    values = sparse.matrix.values() if sparse.values is None else sparse.values
    values = values * _entry_factors(sparse.matrix, rows, factor)
    return values if values.requires_grad else None


def _entry_factors(matrix: Tensor, rows: Tensor, factor: Tensor) -> Tensor:
    scale = torch.ones(matrix.shape[0], dtype=matrix.dtype, device=matrix.device).index_copy(0, rows, factor)
    return scale.repeat_interleave(torch.diff(matrix.crow_indices()).long())
