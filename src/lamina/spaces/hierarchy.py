"""The levels of a Galerkin scheme, and K + c M on them as a V-cycle sees it.

Lattices nest, so the coarse spaces are subspaces: a coarse element's matrix is the sum of T^T K_e T over its
children, T the trilinear interpolation, and multigrid is Galerkin without a single sparse product. Vectors are
(n,), or (n, k) for k fields at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import torch
from scipy.sparse import csr_matrix, diags, identity
from scipy.sparse.linalg import SuperLU, splu
from torch import Tensor

from lamina.errors import SolveError
from lamina.geometry.basis import Q2, from_corners
from lamina.grid.sheets import CutElements
from lamina.linear.assembly import Pattern, assemble, plus_product, rows_to_csr
from lamina.linear.components import ComponentMean, column
from lamina.linear.krylov import largest_eigenvalue
from lamina.linear.multigrid import chebyshev_steps
from lamina.linear.operator import transposed
from lamina.spaces.galerkin import child_interpolation, on_corners

SMOOTHER = 6, 80.0  # degree; largest over smallest eigenvalue that the smoother damps: much, for the sake of slivers
COARSEST_UNKNOWNS = {"cpu": 800, "cuda": 1500}  # a GPU inverts quickly and launches slowly
DENSE_UNKNOWNS = 1500  # beyond, a CPU factors the coarsest matrix as a sparse one
COARSEST_SWEEPS = 8


@dataclass(frozen=True)
class TraceLevel:
    """K and M of one lattice, on one sparsity pattern, and the interpolation from the next coarser one."""

    spacing: float
    pattern: Pattern
    stiffness: Tensor  # (nnz,)
    mass: Tensor  # (nnz,)
    component: Tensor  # (n,) int64
    coarse_unknown: Tensor | None = None  # (n, 8) int64
    coarse_weight: Tensor | None = None  # (n, 8)
    coarse_count: int = 0

    @property
    def unknowns(self) -> int:
        return len(self.component)

    def single(self) -> TraceLevel:
        """The same in single precision."""
        weight = None if self.coarse_weight is None else self.coarse_weight.float()
        return replace(self, stiffness=self.stiffness.float(), mass=self.mass.float(), coarse_weight=weight)

    def matrix(self, stiffness: float, mass: float) -> Tensor:
        """stiffness K + mass M as CSR."""
        values = self.stiffness * stiffness
        if mass:
            values = torch.add(values, self.mass, alpha=mass)
        return self.pattern.matrix(values)


@dataclass(frozen=True)
class ShiftedLevel:
    """K + c M on one level, as the V-cycle sees it."""

    level: TraceLevel
    shift: float
    mean: ComponentMean
    smoother: tuple[int, float] = SMOOTHER

    @cached_property
    def matrix(self) -> Tensor:
        return self.level.matrix(1.0, self.shift)

    @cached_property
    def mass_matrix(self) -> Tensor:
        return self.level.matrix(0.0, 1.0)

    @property
    def diagonal(self) -> Tensor:
        return self.matrix.values()[self.level.pattern.diagonal]

    @property
    def mass_diagonal(self) -> Tensor:
        return self.level.mass[self.level.pattern.diagonal]

    @cached_property
    def inverse_diagonal(self) -> Tensor:
        """Of unknowns that carry something; those that no finer one depends on have empty rows, and get 0."""
        diagonal = self.diagonal
        return torch.where(diagonal > 0, 1 / diagonal, 0)

    @cached_property
    def channel_steps(self) -> list[float]:
        """As `steps`, for K + c M with any c: its eigenvalues against its diagonal lie between those of K and of M."""
        largest = 0.0
        for matrix, diagonal in ((self.matrix, self.diagonal), (self.mass_matrix, self.mass_diagonal)):
            scale = torch.where(diagonal > 0, 1 / diagonal, 0).sqrt()
            largest = max(largest, 1.15 * largest_eigenvalue(lambda v, A=matrix, s=scale: s * (A @ (s * v)), scale))
        degree, ratio = self.smoother
        return chebyshev_steps(largest / ratio, largest, degree)

    @cached_property
    def modes(self) -> tuple[float, Tensor, Tensor]:
        """b, m (n,) and V (n, n) with V^T (K + c M) V = 1 + (c - b) m for every c; coarsest level only."""
        K, M = self.matrix.to_dense(), self.mass_matrix.to_dense()
        base = float(K.diagonal().sum() / M.diagonal().sum()) / len(K)
        A = K + base * M
        scale = torch.where(A.diagonal() > 0, 1 / A.diagonal(), 0).sqrt()
        A, M = (scale[:, None] * B * scale for B in (A, M))
        factor = _lifted_cholesky(A)
        half = torch.linalg.solve_triangular(factor, M, upper=False)
        half = torch.linalg.solve_triangular(factor, half.T, upper=False)
        share, vectors = torch.linalg.eigh(0.5 * (half + half.T))
        modes = scale[:, None] * torch.linalg.solve_triangular(factor.T, vectors, upper=True)
        return base, share.clamp_min(0), modes

    @cached_property
    def steps(self) -> list[float]:
        """Chebyshev steps for the upper part of the spectrum of D^-1 (K + c M)."""
        scale = self.inverse_diagonal.sqrt()
        largest = 1.15 * largest_eigenvalue(lambda v: scale * (self.matrix @ (scale * v)), scale)
        degree, ratio = self.smoother
        return chebyshev_steps(largest / ratio, largest, degree)

    @cached_property
    def factor(self) -> Tensor:
        """Cholesky factor (on a GPU the inverse) of D^-1/2 (K + c M) D^-1/2.

        For c = 0 the constants of each component, which K does not see, are made stiff. Pieces of surface that
        barely enter a cell leave modes that are all rounding; a shift lifts them, as small as will do."""
        scale = self.inverse_diagonal.sqrt()
        A = scale[:, None] * self.matrix.to_dense() * scale
        if self.shift == 0:
            root = torch.where(scale > 0, 1 / scale, 0)
            constants = torch.nn.functional.one_hot(self.level.component, self.mean.count).to(A) * root[:, None]
            if self.mean.only is not None:
                constants = constants[:, self.mean.only]
            constants = constants / constants.norm(dim=0).clamp_min(torch.finfo(A.dtype).tiny)
            A = A + constants @ constants.T
        factor = _lifted_cholesky(A)
        return torch.cholesky_inverse(factor) if A.is_cuda else factor

    @cached_property
    def sparse_factor(self) -> SuperLU:
        """The same for a coarsest level that many small parts keep from becoming small."""
        pattern, scale = self.level.pattern, self.inverse_diagonal.double().sqrt().numpy()
        n = len(scale)
        A = csr_matrix(
            (self.matrix.values().double().numpy(), pattern.column.numpy(), pattern.crow.numpy()), shape=(n, n)
        )
        A = diags(scale) @ A @ diags(scale) + 1e-10 * identity(n)
        return splu(A.tocsc(), permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True})

    def apply(self, u: Tensor) -> Tensor:
        return self.matrix @ u

    def relax(self, u: Tensor | None, g: Tensor) -> Tensor:
        steps, inverse = self.steps, column(self.inverse_diagonal, g)
        if u is None:
            u, steps = steps[0] * inverse * g, steps[1:]
        for step in steps:
            u = torch.addcmul(u, inverse, self.residual(u, g), value=step)
        return u

    def residual(self, u: Tensor, g: Tensor) -> Tensor:
        """g - (K + c M) u, in one pass."""
        return plus_product(g, self.matrix, u, alpha=-1)

    def restrict(self, residual: Tensor) -> Tensor:
        unknown, weight = cast(Tensor, self.level.coarse_unknown), cast(Tensor, self.level.coarse_weight)
        if residual.ndim > 1:
            return self.transfer[1] @ residual
        out = residual.new_zeros(self.level.coarse_count)
        return out.index_add_(0, unknown.reshape(-1), (weight * residual[:, None]).reshape(-1))

    def prolong(self, correction: Tensor) -> Tensor:
        unknown, weight = cast(Tensor, self.level.coarse_unknown), cast(Tensor, self.level.coarse_weight)
        return self.transfer[0] @ correction if correction.ndim > 1 else (weight * correction[unknown]).sum(1)

    @cached_property
    def transfer(self) -> tuple[Tensor, Tensor]:
        """The interpolation from the coarser level and its transpose, as matrices: what is best for several fields."""
        unknown, weight = cast(Tensor, self.level.coarse_unknown), cast(Tensor, self.level.coarse_weight)
        matrix = rows_to_csr(unknown.to(torch.int32), weight, self.level.coarse_count)
        return matrix, transposed(matrix)[0]

    def solve(self, g: Tensor) -> Tensor:
        if self.shift == 0:
            g = self.mean.remove(g)
        scale = column(self.inverse_diagonal.sqrt(), g)
        if g.is_cuda:
            return scale * (self.factor @ (scale * g))
        if len(g) > DENSE_UNKNOWNS:
            u = self.sparse_factor.solve((scale * g).double().numpy())
            return scale * torch.from_numpy(u).to(g)
        return scale * torch.cholesky_solve((scale * g).reshape(len(g), -1), self.factor).reshape(g.shape)


def _lifted_cholesky(A: Tensor) -> Tensor:
    """Cholesky factor of A, scaled to a unit diagonal, lifted by as little as will do; A is changed."""
    lift = 16 * torch.finfo(A.dtype).eps
    while True:
        A.diagonal().add_(lift)
        factor, info = torch.linalg.cholesky_ex(A)
        if int(info) == 0:
            return factor
        if lift > 1:
            raise SolveError("The coarsest matrix could not be factored; check the surface and the diffusivity.")
        lift *= 10


@dataclass(frozen=True)
class ChannelLevel:
    """K + c M on one level, with a shift c > 0 of its own for each column of (n, k)."""

    level: ShiftedLevel  # K alone, and the interpolation between levels
    shift: Tensor  # (k,)

    def apply(self, u: Tensor) -> Tensor:
        return torch.addcmul(self.level.matrix @ u, self.level.mass_matrix @ u, self.shift)

    @cached_property
    def _inverse_diagonal(self) -> Tensor:
        """(n, k)."""
        own = self.level
        diagonal = own.diagonal[:, None] + own.mass_diagonal[:, None] * self.shift
        return torch.where(diagonal > 0, 1 / diagonal, 0)

    def relax(self, u: Tensor | None, g: Tensor) -> Tensor:
        steps, inverse = self.level.channel_steps, self._inverse_diagonal
        if u is None:
            u, steps = steps[0] * inverse * g, steps[1:]
        for step in steps:
            u = torch.addcmul(u, inverse, g - self.apply(u), value=step)
        return u

    def restrict(self, residual: Tensor) -> Tensor:
        return self.level.restrict(residual)

    def prolong(self, correction: Tensor) -> Tensor:
        return self.level.prolong(correction)

    def solve(self, g: Tensor) -> Tensor:
        """By the modes of K and M together, which serve every shift; by smoothing, where they are too many."""
        if len(g) > DENSE_UNKNOWNS:
            u = self.relax(None, g)
            for _ in range(COARSEST_SWEEPS):
                u = self.relax(u, g)
            return u
        base, share, modes = self.level.modes
        # Fields as rows: a product with few columns takes a CPU several times as long as one with few rows.
        along = (g.T.contiguous() @ modes) / (1 + (self.shift - base)[:, None] * share)
        return (along @ modes.T).T.contiguous()


def build_levels(elements: CutElements, unknown: Tensor, spacing: float, K: Tensor, M: Tensor) -> list[TraceLevel]:
    """K and M on the cut cells of spacing dx, 2dx, 4dx, ..., each the Galerkin restriction of the finer one.

    unknown (e, k): of the functions on the finest cells. Below quadratic ones come the trilinear ones of the same
    cells.
    """
    T = child_interpolation(K.dtype, K.device)
    levels: list[TraceLevel] = []
    if unknown.shape[1] == Q2.count:
        here = _level(elements, unknown, spacing, K, M)
        owner, node = _owners(unknown, here.unknowns)
        weight = from_corners(Q2, K.dtype, K.device)[node]
        levels.append(_above(here, elements.unknown[owner], weight, elements.unknowns))
        K, M, unknown = on_corners(K), on_corners(M), elements.unknown
    while True:
        here = _level(elements, unknown, spacing, K, M)
        levels.append(here)
        if here.unknowns <= COARSEST_UNKNOWNS[K.device.type]:
            return levels
        coarse, parent = elements.coarsened()
        # Many small parts, each in a cell of its own, do not coarsen any further.
        if coarse.unknowns > 0.8 * here.unknowns:
            return levels
        parent = parent[: elements.active]
        i, j, k = (elements.cell[: elements.active] % 2).unbind(1)
        octant = 4 * i + 2 * j + k
        element, corner = _owners(unknown, here.unknowns)
        levels[-1] = _above(here, coarse.unknown[parent[element]], T[octant[element], corner], coarse.unknowns)
        K, M = (_coarse_matrices(E, T[octant], parent, coarse.active) for E in (K, M))
        elements, spacing, unknown = coarse, 2 * spacing, coarse.unknown


def _level(elements: CutElements, unknown: Tensor, spacing: float, K: Tensor, M: Tensor) -> TraceLevel:
    component = elements.component_of(unknown)
    pattern, (stiffness, mass) = assemble(unknown, len(component), [K, M])
    return TraceLevel(spacing, pattern, stiffness, mass, component)


def _above(level: TraceLevel, coarse_unknown: Tensor, coarse_weight: Tensor, coarse_count: int) -> TraceLevel:
    return replace(level, coarse_unknown=coarse_unknown, coarse_weight=coarse_weight, coarse_count=coarse_count)


def _owners(unknown: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """An element (count,) that each unknown belongs to, and which of its nodes it is."""
    owner = torch.empty(count, dtype=torch.int64, device=unknown.device)
    owner[unknown.reshape(-1)] = torch.arange(unknown.numel(), device=unknown.device)
    return torch.div(owner, unknown.shape[1], rounding_mode="floor"), owner % unknown.shape[1]


def _coarse_matrices(E: Tensor, T: Tensor, parent: Tensor, count: int) -> Tensor:
    """sum over children of T^T E T, (count, 8, 8)."""
    projected = torch.bmm(T.transpose(1, 2), torch.bmm(E, T))
    return E.new_zeros(count, 64).index_add_(0, parent, projected.reshape(-1, 64)).reshape(-1, 8, 8)
