"""The levels of the coupled scheme: its operators on bands of spacing dx, 2dx, 4dx, ..., as a V-cycle sees them."""

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
from lamina.paper.ghosts import Ghosts, Held
from lamina.paper.interpolation import Lines, interpolation, interpolation_matrix, linear_stencil
from lamina.paper.laplacian import diagonal, laplacian_matrix
from lamina.progress import Update
from lamina.surfaces.base import Surface

PENALTY = 2.0
# Interpolation for each order of accuracy, and the order of the Laplacian that goes with both.
LINES = {2: Lines.NEAREST, 4: Lines.BILINEAR}
STENCIL = 4
# The part of the spectrum of -A / (diagonal + c) that the smoother must damp: from the tangential
# frequencies that the next coarser grid cannot show up to the highest ones that E lets pass.
SMOOTHER_STEPS = chebyshev_steps(0.25, 1.5, 3)
COARSE_LINES = Lines.NONE
COARSEST_NODES = 1500
DIRECT_NODES = 5000
COARSEST_SWEEPS = 8
HELD_SCALE = 1.5  # times gamma: rows of values that a rule gives have eigenvalues from gamma to 2 gamma


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
    held: Held | None = None  # those of them that a rule alone gives
    to_coarse: Tensor | None = None  # (n_coarse, n) interpolation at the coarse nodes' closest points
    from_coarse: Tensor | None = None  # (n, n_coarse) interpolation at the fine nodes' closest points

    @property
    def gamma(self) -> float:
        return PENALTY / self.band.spacing**2

    def single(self) -> CoupledLevel:
        """The same in single precision."""
        held = None if self.held is None else replace(self.held, E=_single(self.held.E))
        rest = (None if m is None else _single(m) for m in (self.to_coarse, self.from_coarse))
        to_coarse, from_coarse = rest
        band = replace(self.band, feet=replace(self.band.feet, points=self.band.feet.points.detach().float()))
        return replace(
            self, band=band, E=_single(self.E), L=_single(self.L), held=held, to_coarse=to_coarse,
            from_coarse=from_coarse,
        )  # fmt: skip

    def apply(self, u: Tensor) -> Tensor:
        """A u = E (L u + gamma u) - gamma u."""
        out = plus_product(u, self.E, plus_product(u, self.L, u, beta=self.gamma), beta=-self.gamma)
        if self.held is not None:
            out[self.held.rows] = self.gamma * (self.held.E @ u - u[self.held.rows])
        return out

    def without_held(self, u: Tensor) -> Tensor:
        """u with zeros at nodes that a rule alone gives."""
        return u if self.held is None else u.index_fill(0, self.held.rows, 0.0)


@dataclass(frozen=True)
class ShiftedLevel:
    """A - c I on one level, as the V-cycle sees it; constants are the kernel when c = 0."""

    level: CoupledLevel
    shift: float
    factor: tuple[Tensor, Tensor] | None = field(default=None, repr=False)  # coarsest level only

    def single(self) -> Self:
        """The same in single precision."""
        factor = None if self.factor is None else (self.factor[0].float(), self.factor[1])
        return replace(self, level=self.level.single(), factor=factor)

    def apply(self, u: Tensor) -> Tensor:
        u_A = self.level.apply(u)
        return u_A if self.shift == 0 else torch.sub(u_A, self.level.without_held(u), alpha=self.shift)

    def relax(self, u: Tensor | None, g: Tensor) -> Tensor:
        steps = SMOOTHER_STEPS
        scale = diagonal(STENCIL, self.level.band.spacing) + self.shift
        if self.level.held is not None:
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
        """u + step (A u - c u - g), in as few passes over the fields as may be."""
        own = self.level
        rest = torch.add((1 - step * (own.gamma + self.shift)) * u, g, alpha=-step)
        return plus_product(rest, own.E, plus_product(u, own.L, u, beta=own.gamma), alpha=step)

    @cached_property
    def _inverse(self) -> Tensor:
        """One over the scale (n,) of the rows: that of held ones has neither Laplacian nor shift."""
        level = self.level
        assert level.held is not None
        scale = torch.full_like(level.band.feet.points[:, 0], diagonal(STENCIL, level.band.spacing) + self.shift)
        return 1 / scale.index_fill(0, level.held.rows, HELD_SCALE * level.gamma)

    def restrict(self, residual: Tensor) -> Tensor:
        return cast(Tensor, self.level.to_coarse) @ self.project(residual)

    def prolong(self, correction: Tensor) -> Tensor:
        return cast(Tensor, self.level.from_coarse) @ correction

    def project(self, u: Tensor) -> Tensor:
        return self.level.mean.remove(u) if self.shift == 0 else u

    def solve(self, g: Tensor) -> Tensor:
        if self.factor is None:  # too large for a direct solve: smooth, and leave the rest to GMRES
            u = self.relax(None, self.project(g))
            for _ in range(COARSEST_SWEEPS):
                u = self.relax(u, g)
            return u
        return self._direct(self.project(g), adjoint=False)

    def _direct(self, g: Tensor, adjoint: bool) -> Tensor:
        assert self.factor is not None
        n = len(g)
        g_and_border = torch.nn.functional.pad(g.reshape(n, -1), (0, 0, 0, self.factor[0].shape[0] - n))
        return torch.linalg.lu_solve(*self.factor, g_and_border, adjoint=adjoint)[:n].reshape(g.shape)


class AdjointLevel(ShiftedLevel):
    """(A - c I)^T on one level; restriction and prolongation change places."""

    def relaxed(self, u: Tensor, g: Tensor, step: float) -> Tensor:
        return torch.add(u, self.apply(u) - g, alpha=step)

    @cached_property
    def _transposed(self) -> tuple[Tensor | None, ...]:
        own = self.level
        held = None if own.held is None else own.held.E
        matrices = (own.E, own.L, held, own.to_coarse, own.from_coarse)
        return tuple(None if m is None else transposed(m)[0] for m in matrices)

    def apply(self, u: Tensor) -> Tensor:
        """A^T v = (L + gamma)^T E^T v - gamma v; held rows have neither, but their rule."""
        E, L, held = (cast(Tensor, m) for m in self._transposed[:3])
        gamma, free = self.level.gamma, self.level.without_held(u)
        v = E @ free
        out = torch.add(L @ v, v - u, alpha=gamma)
        if self.level.held is not None:
            out = torch.add(out, held @ u[self.level.held.rows], alpha=gamma)
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
    """Bands of spacing dx, 2dx, 4dx, ... until one is small enough for a direct solve; and E of the first of them.

    Coarse levels only correct, so they are second order whatever the finest is, and carry no gradients.
    """
    bands, kinds, ghosts = [], [], []
    lines = LINES[order]
    while True:
        update(0.5 - 0.5 ** (len(bands) + 1), f"closest points at spacing {lattice.spacing:.3g}")
        with torch.set_grad_enabled(torch.is_grad_enabled() and not bands):
            band = Band.build(surface, lattice, band_radius(lattice.spacing, lines, STENCIL // 2))
            band, beyond = Ghosts.of(surface, band, rim_order)
        bands.append(band)
        ghosts.append(beyond)
        kinds.append(lines)
        if len(bands[-1]) <= COARSEST_NODES or (len(bands) > 2 and len(bands[-1]) > 0.6 * len(bands[-2])):
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
                L=laplacian_matrix(band, STENCIL),
                mean=ComponentMean(band.component, surface.component_count),
                ghosts=ghosts[i],
                to_coarse=None if coarse is None else _transfer(band, coarse),
                from_coarse=None if coarse is None else _transfer(coarse, band),
            )
        )
    return levels, extension


def _transfer(source: Band, target: Band) -> Tensor:
    """Trilinear interpolation of a field on one band at the closest points of another's nodes.

    Cubic transfers would save a cycle or two in eight and double the memory of the whole hierarchy.
    """
    index, weights = linear_stencil(source, target.feet.points.detach(), target.feet.component)
    return rows_to_csr(index, weights, len(source))
