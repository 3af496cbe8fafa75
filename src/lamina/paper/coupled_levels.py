"""The levels of the coupled scheme: its operators on bands of spacing dx, 2dx, 4dx, ..., for a V-cycle."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self, cast

import torch
from torch import Tensor

from lamina.geometry.lattice import Lattice
from lamina.grid.band import Band, band_radius
from lamina.linear.assembly import plus_product, rows_to_csr
from lamina.linear.components import ComponentMean, column
from lamina.linear.multigrid import chebyshev_steps
from lamina.linear.operator import SparseOperator, transposed
from lamina.paper.ghosts import ConstrainedGhosts, Ghosts
from lamina.paper.interpolation import Lines, interpolation, interpolation_matrix, linear_stencil
from lamina.paper.laplacian import diagonal, laplacian_matrix
from lamina.progress import Update
from lamina.surfaces.base import Surface

# gamma dx^2 in A u = E L u - gamma (I - E) u. The error of the solution grows with gamma, so that a smaller one is more
# accurate; if it is too small, the smoother no longer damps what varies along normals (docs/theory.md).
NORMAL_PENALTY = 2.0
LINES_OF_ORDER = {2: Lines.NEAREST, 4: Lines.BILINEAR}  # Interpolation for each order of accuracy.
# Order of the Cartesian Laplacian at both orders: the error of the 7-point Laplacian, dx^2/12, would be the largest.
LAPLACIAN_ORDER = 4
# The smoother damps the part [0.25, 1.5] of the spectrum of -A / (diagonal + c), by 3 Chebyshev steps. The lower end is
# the tangential frequencies that the next coarser grid cannot represent, the upper end the highest that E lets pass.
COUPLED_SMOOTHER_STEPS = chebyshev_steps(0.25, 1.5, 3)
COARSE_LINES = Lines.NONE  # Interpolation on coarse levels: they only correct, so the cheapest is good enough.
# Coarsening ends at a band of at most this many nodes. Its dense LU then takes a moment; with twice the nodes it takes
# eight times as long. Chosen by trial.
MAX_COARSEST_NODES = 1500
# Coarsening also ends, from the third level on, at a band with more than this share of the nodes of the band before it.
# There bands are so thick that coarser ones save little. Chosen by trial.
MAX_BAND_COARSENING_RATIO = 0.6
# The coarsest level is solved by a dense LU up to this many nodes (200 MB in double precision); beyond, it is smoothed.
MAX_DIRECT_NODES = 5000
COUPLED_COARSEST_SWEEPS = 8  # Smoothing sweeps on a coarsest level without LU; GMRES corrects what they leave.
# Diagonal scale of the rows of constrained ghosts, over gamma: their eigenvalues lie between gamma and 2 gamma.
CONSTRAINT_ROW_SCALE = 1.5


def _single(matrix: Tensor) -> Tensor:
    return torch.sparse_csr_tensor(
        matrix.crow_indices(), matrix.col_indices(), matrix.values().float(), matrix.shape, check_invariants=False
    )


@dataclass(frozen=True)
class CoupledLevel:
    """Operators on the band of one spacing; matrices are CSR with int32 indices."""

    band: Band
    lines: Lines
    E: Tensor  # (n, n) extension
    L: Tensor  # (n, n) Cartesian Laplacian, empty rows where a neighbour is missing
    mean: ComponentMean
    ghosts: Ghosts | None = None  # nodes beyond a rim
    constrained: ConstrainedGhosts | None = None  # those of them whose row is a rule alone
    to_coarse: Tensor | None = None  # (n_coarse, n) interpolation at the coarse nodes' closest points
    from_coarse: Tensor | None = None  # (n, n_coarse) interpolation at the fine nodes' closest points

    @property
    def gamma(self) -> float:
        return NORMAL_PENALTY / self.band.spacing**2

    def single(self) -> CoupledLevel:
        """The same in single precision."""
        constrained = None if self.constrained is None else replace(self.constrained, E=_single(self.constrained.E))
        rest = (None if m is None else _single(m) for m in (self.to_coarse, self.from_coarse))
        to_coarse, from_coarse = rest
        band = replace(self.band, feet=replace(self.band.feet, points=self.band.feet.points.detach().float()))
        return replace(
            self, band=band, E=_single(self.E), L=_single(self.L), constrained=constrained, to_coarse=to_coarse,
            from_coarse=from_coarse,
        )  # fmt: skip

    def apply(self, u: Tensor) -> Tensor:
        """A u = E (L u + gamma u) - gamma u."""
        out = plus_product(u, self.E, plus_product(u, self.L, u, beta=self.gamma), beta=-self.gamma)
        if self.constrained is not None:
            out[self.constrained.rows] = self.gamma * (self.constrained.E @ u - u[self.constrained.rows])
        return out

    def zero_at_constrained(self, u: Tensor) -> Tensor:
        """u with zeros at the constrained ghosts."""
        return u if self.constrained is None else u.index_fill(0, self.constrained.rows, 0.0)


@dataclass(frozen=True)
class ShiftedLevel:
    """A - c I on one level, for the V-cycle. For c = 0 the constants are its kernel."""

    level: CoupledLevel
    shift: float
    factor: tuple[Tensor, Tensor] | None = field(default=None, repr=False)  # coarsest level only

    def single(self) -> Self:
        """The same in single precision."""
        factor = None if self.factor is None else (self.factor[0].float(), self.factor[1])
        return replace(self, level=self.level.single(), factor=factor)

    def apply(self, u: Tensor) -> Tensor:
        u_A = self.level.apply(u)
        return u_A if self.shift == 0 else torch.sub(u_A, self.level.zero_at_constrained(u), alpha=self.shift)

    def relax(self, u: Tensor | None, g: Tensor) -> Tensor:
        steps = COUPLED_SMOOTHER_STEPS
        scale = diagonal(LAPLACIAN_ORDER, self.level.band.spacing) + self.shift
        if self.level.constrained is not None:
            inverse = column(self._inverse, g)
            if u is None:
                u, steps = -steps[0] * inverse * g, steps[1:]
            for step in steps:
                u = torch.addcmul(u, inverse, self.apply(u) - g, value=step)
            return self.project(u)
        if u is None:
            u, steps = g * (-steps[0] / scale), steps[1:]
        for step in steps:
            u = self.relaxed(u, g, step / scale)
        return self.project(u)

    def relaxed(self, u: Tensor, g: Tensor, step: float) -> Tensor:
        """u + step (A u - c u - g), in few passes over the fields."""
        own = self.level
        rest = torch.add((1 - step * (own.gamma + self.shift)) * u, g, alpha=-step)
        return plus_product(rest, own.E, plus_product(u, own.L, u, beta=own.gamma), alpha=step)

    @cached_property
    def _inverse(self) -> Tensor:
        """One over the scale (n,) of the rows. The rows of constrained ghosts have neither Laplacian nor shift."""
        level = self.level
        assert level.constrained is not None
        scale = torch.full_like(
            level.band.feet.points[:, 0], diagonal(LAPLACIAN_ORDER, level.band.spacing) + self.shift
        )
        return 1 / scale.index_fill(0, level.constrained.rows, CONSTRAINT_ROW_SCALE * level.gamma)

    def restrict(self, residual: Tensor) -> Tensor:
        return cast(Tensor, self.level.to_coarse) @ self.project(residual)

    def prolong(self, correction: Tensor) -> Tensor:
        return cast(Tensor, self.level.from_coarse) @ correction

    def project(self, u: Tensor) -> Tensor:
        return self.level.mean.remove(u) if self.shift == 0 else u

    def solve(self, g: Tensor) -> Tensor:
        if self.factor is None:  # the level is too large for a direct solve: GMRES corrects what smoothing leaves
            u = self.relax(None, self.project(g))
            for _ in range(COUPLED_COARSEST_SWEEPS):
                u = self.relax(u, g)
            return u
        return self._direct(self.project(g), adjoint=False)

    def _direct(self, g: Tensor, adjoint: bool) -> Tensor:
        assert self.factor is not None
        n = len(g)
        g_and_border = torch.nn.functional.pad(g.reshape(n, -1), (0, 0, 0, self.factor[0].shape[0] - n))
        return torch.linalg.lu_solve(*self.factor, g_and_border, adjoint=adjoint)[:n].reshape(g.shape)


class AdjointLevel(ShiftedLevel):
    """(A - c I)^T on one level. Restriction and prolongation are exchanged."""

    def relaxed(self, u: Tensor, g: Tensor, step: float) -> Tensor:
        return torch.add(u, self.apply(u) - g, alpha=step)

    @cached_property
    def _transposed(self) -> tuple[Tensor | None, ...]:
        own = self.level
        rules = None if own.constrained is None else own.constrained.E
        matrices = (own.E, own.L, rules, own.to_coarse, own.from_coarse)
        return tuple(None if m is None else transposed(m)[0] for m in matrices)

    def apply(self, u: Tensor) -> Tensor:
        """A^T v = (L + gamma)^T E^T v - gamma v. The rows of constrained ghosts have their rule instead."""
        E, L, rules = (cast(Tensor, m) for m in self._transposed[:3])
        gamma, free = self.level.gamma, self.level.zero_at_constrained(u)
        v = E @ free
        out = torch.add(L @ v, v - u, alpha=gamma)
        if self.level.constrained is not None:
            out = torch.add(out, rules @ u[self.level.constrained.rows], alpha=gamma)
        return out if self.shift == 0 else torch.sub(out, free, alpha=self.shift)

    def restrict(self, residual: Tensor) -> Tensor:
        return cast(Tensor, self._transposed[4]) @ residual

    def prolong(self, correction: Tensor) -> Tensor:
        return self.project(cast(Tensor, self._transposed[3]) @ correction)

    def solve(self, g: Tensor) -> Tensor:
        return super().solve(g) if self.factor is None else self._direct(self.project(g), adjoint=True)


def build_levels(
    surface: Surface, lattice: Lattice, order: int, update: Update, rim_order: int = 2
) -> tuple[list[CoupledLevel], SparseOperator]:
    """Bands of spacing dx, 2dx, 4dx, ... until one is small enough for a direct solve, and the extension of the first.

    Coarse levels only correct. They are of second order, whatever the order of the finest, and carry no gradients.
    """
    bands, kinds, ghosts = [], [], []
    lines = LINES_OF_ORDER[order]
    while True:
        update(0.5 - 0.5 ** (len(bands) + 1), f"closest points at spacing {lattice.spacing:.3g}")
        with torch.set_grad_enabled(torch.is_grad_enabled() and not bands):
            band = Band.build(surface, lattice, band_radius(lattice.spacing, lines, LAPLACIAN_ORDER // 2))
            band, beyond = Ghosts.of(surface, band, rim_order)
        bands.append(band)
        ghosts.append(beyond)
        kinds.append(lines)
        if len(bands[-1]) <= MAX_COARSEST_NODES or (
            len(bands) > 2 and len(bands[-1]) > MAX_BAND_COARSENING_RATIO * len(bands[-2])
        ):
            break
        lattice, lines = lattice.coarsened(), COARSE_LINES
    feet = bands[0].feet
    extension = interpolation(bands[0], feet.points, feet.component, kinds[0])
    levels = []
    for i, (band, lines) in enumerate(zip(bands, kinds, strict=True)):
        coarse = bands[i + 1] if i + 1 < len(bands) else None
        feet = band.feet
        update(1 - 0.5 ** (i + 1), f"operators of {len(band)} nodes")
        levels.append(
            CoupledLevel(
                band,
                lines,
                E=extension.matrix if i == 0 else interpolation_matrix(band, feet.points, feet.component, lines),
                L=laplacian_matrix(band, LAPLACIAN_ORDER),
                mean=ComponentMean(band.component, surface.component_count),
                ghosts=ghosts[i],
                to_coarse=None if coarse is None else _transfer(band, coarse),
                from_coarse=None if coarse is None else _transfer(coarse, band),
            )
        )
    return levels, extension


def _transfer(source: Band, target: Band) -> Tensor:
    """Trilinear interpolation of a field on one band at the closest points of another's nodes.

    Cubic transfers would save one or two of eight cycles and double the memory of the hierarchy.
    """
    index, weights = linear_stencil(source, target.feet.points.detach(), target.feet.component)
    return rows_to_csr(index, weights, len(source))
