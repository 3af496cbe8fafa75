"""The levels of a Galerkin scheme, and K + c M on each level as a V-cycle uses it.

Lattices nest, so the coarse spaces are subspaces. The matrix of a coarse element is the sum of T^T K_e T over its
children, where T is the trilinear interpolation. Multigrid is therefore Galerkin without any sparse matrix product.
Vectors are (n,), or (n, k) for k fields at once.
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
from lamina.shapes import Float, Int, shaped
from lamina.spaces.galerkin import child_interpolation, on_corners


@dataclass(frozen=True)
class ChebyshevSmoother:
    """degree: of the polynomial in D^-1 K. spectrum_ratio: largest over smallest of the eigenvalues that it damps."""

    degree: int
    spectrum_ratio: float


# The smoother of trilinear functions. It damps all but the lowest 80th of the spectrum, much more than on a full
# grid, because cells with little surface have eigenvalues far below those of the others. It was chosen by trial. A
# lower degree or a smaller ratio makes each cycle cheaper and takes more cycles.
SMOOTHER = ChebyshevSmoother(6, 80.0)
# The estimate of the largest eigenvalue, a lower bound from a few Lanczos steps, is multiplied by this number. With 1
# the smoother could amplify the highest modes; a larger number damps all modes less.
EIGENVALUE_SAFETY_FACTOR = 1.15
# The hierarchy ends with the first level that has at most this many unknowns, which is factored. On a GPU inverting a
# larger matrix costs less than launching the kernels of one more level. Twice as many unknowns cost 8 times the
# factoring.
MAX_COARSEST_UNKNOWNS = {"cpu": 800, "cuda": 1500}
# The hierarchy also ends where the next level would have more than this share of the unknowns of the last one. That
# happens if many small parts lie in a cell of their own each: they do not coarsen any further.
MAX_COARSENING_RATIO = 0.8
# A CPU factors a coarsest matrix with more unknowns than this as a sparse matrix instead of a dense one.
MAX_DENSE_UNKNOWNS = 1500
# A shift added to the sparse coarsest matrix, whose diagonal is 1, so that constants do not make it singular.
SPARSE_FACTOR_SHIFT = 1e-10
# Smoothing sweeps on the coarsest level if each channel has a shift of its own and the level is too large for a dense
# eigendecomposition. It was chosen by trial: fewer sweeps take more cycles.
COARSEST_SMOOTHING_SWEEPS = 8


@shaped
@dataclass(frozen=True)
class OperatorLevel:
    """K and M of one lattice, on one sparsity pattern, and the interpolation from the next coarser one."""

    spacing: float
    pattern: Pattern
    stiffness: Float[Tensor, " nnz"]
    mass: Float[Tensor, " nnz"]
    component: Int[Tensor, " n"]
    coarse_unknown: Int[Tensor, "n 8"] | None = None
    coarse_weight: Float[Tensor, "n 8"] | None = None
    coarse_count: int = 0

    @property
    def unknowns(self) -> int:
        return len(self.component)

    def in_single_precision(self) -> OperatorLevel:
        """This level in single precision."""
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
    """K + c M on one level, with what a V-cycle needs: smoother, transfer to the coarser level, coarsest solve."""

    level: OperatorLevel
    shift: float
    mean: ComponentMean
    smoother: ChebyshevSmoother = SMOOTHER

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
        """One over the diagonal. Unknowns on which no finer one depends have empty rows, and get 0."""
        diagonal = self.diagonal
        return torch.where(diagonal > 0, 1 / diagonal, 0)

    @cached_property
    def channel_steps(self) -> list[float]:
        """Chebyshev steps for K + c M with any c.

        The eigenvalues of K + c M relative to its diagonal lie between those of K and of M.
        """
        largest = 0.0
        for matrix, diagonal in ((self.matrix, self.diagonal), (self.mass_matrix, self.mass_diagonal)):
            scale = torch.where(diagonal > 0, 1 / diagonal, 0).sqrt()
            bound = largest_eigenvalue(lambda v, A=matrix, s=scale: s * (A @ (s * v)), scale)
            largest = max(largest, EIGENVALUE_SAFETY_FACTOR * bound)
        return self._chebyshev_steps(largest)

    def _chebyshev_steps(self, largest: float) -> list[float]:
        return chebyshev_steps(largest / self.smoother.spectrum_ratio, largest, self.smoother.degree)

    @cached_property
    def modes(self) -> tuple[float, Tensor, Tensor]:
        """b, m (n,) and V (n, n) with V^T (K + c M) V = 1 + (c - b) m for every c. Of the coarsest level only."""
        K, M = self.matrix.to_dense(), self.mass_matrix.to_dense()
        base = float(K.diagonal().sum() / M.diagonal().sum()) / len(K)
        A = K + base * M
        scale = torch.where(A.diagonal() > 0, 1 / A.diagonal(), 0).sqrt()
        A, M = (scale[:, None] * B * scale for B in (A, M))
        factor = _shifted_cholesky(A)
        half = torch.linalg.solve_triangular(factor, M, upper=False)
        half = torch.linalg.solve_triangular(factor, half.T, upper=False)
        share, vectors = torch.linalg.eigh(0.5 * (half + half.T))
        modes = scale[:, None] * torch.linalg.solve_triangular(factor.T, vectors, upper=True)
        return base, share.clamp_min(0), modes

    @cached_property
    def steps(self) -> list[float]:
        """Chebyshev steps for the upper part of the spectrum of D^-1 (K + c M)."""
        scale = self.inverse_diagonal.sqrt()
        bound = largest_eigenvalue(lambda v: scale * (self.matrix @ (scale * v)), scale)
        return self._chebyshev_steps(EIGENVALUE_SAFETY_FACTOR * bound)

    @cached_property
    def factor(self) -> Tensor:
        """Cholesky factor (on a GPU the inverse) of D^-1/2 (K + c M) D^-1/2.

        For c = 0 the constants of each component get stiffness, because K is zero on them. Cells with little surface
        leave modes whose eigenvalues are rounding errors; the smallest sufficient shift makes them positive.
        """
        scale = self.inverse_diagonal.sqrt()
        A = scale[:, None] * self.matrix.to_dense() * scale
        if self.shift == 0:
            root = torch.where(scale > 0, 1 / scale, 0)
            constants = torch.nn.functional.one_hot(self.level.component, self.mean.count).to(A) * root[:, None]
            if self.mean.only is not None:
                constants = constants[:, self.mean.only]
            constants = constants / constants.norm(dim=0).clamp_min(torch.finfo(A.dtype).tiny)
            A = A + constants @ constants.T
        factor = _shifted_cholesky(A)
        return torch.cholesky_inverse(factor) if A.is_cuda else factor

    @cached_property
    def sparse_factor(self) -> SuperLU:
        """Sparse factors of the same matrix, for a coarsest level that is large because it has many small parts."""
        pattern, scale = self.level.pattern, self.inverse_diagonal.double().sqrt().numpy()
        n = len(scale)
        A = csr_matrix(
            (self.matrix.values().double().numpy(), pattern.column.numpy(), pattern.crow.numpy()), shape=(n, n)
        )
        A = diags(scale) @ A @ diags(scale) + SPARSE_FACTOR_SHIFT * identity(n)
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
        """The interpolation from the coarser level and its transpose, as matrices: faster for several fields."""
        unknown, weight = cast(Tensor, self.level.coarse_unknown), cast(Tensor, self.level.coarse_weight)
        matrix = rows_to_csr(unknown.to(torch.int32), weight, self.level.coarse_count)
        return matrix, transposed(matrix)[0]

    def solve(self, g: Tensor) -> Tensor:
        if self.shift == 0:
            g = self.mean.remove(g)
        scale = column(self.inverse_diagonal.sqrt(), g)
        if g.is_cuda:
            return scale * (self.factor @ (scale * g))
        if len(g) > MAX_DENSE_UNKNOWNS:
            u = self.sparse_factor.solve((scale * g).double().numpy())
            return scale * torch.from_numpy(u).to(g)
        return scale * torch.cholesky_solve((scale * g).reshape(len(g), -1), self.factor).reshape(g.shape)


def _shifted_cholesky(A: Tensor) -> Tensor:
    """Cholesky factor of A, which has a unit diagonal, with the smallest sufficient shift added. A is changed."""
    shift = 16 * torch.finfo(A.dtype).eps
    while True:
        A.diagonal().add_(shift)
        factor, info = torch.linalg.cholesky_ex(A)
        if int(info) == 0:
            return factor
        if shift > 1:
            raise SolveError("The coarsest matrix could not be factored; check the surface and the diffusivity.")
        shift *= 10


@shaped
@dataclass(frozen=True)
class ChannelLevel:
    """K + c M on one level, with a shift c > 0 of its own for each column of (n, k)."""

    level: ShiftedLevel  # K alone, and the interpolation between levels
    shift: Float[Tensor, " k"]

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
        """By the common eigenvectors of K and M, which serve every shift; by smoothing where there are too many."""
        if len(g) > MAX_DENSE_UNKNOWNS:
            u = self.relax(None, g)
            for _ in range(COARSEST_SMOOTHING_SWEEPS):
                u = self.relax(u, g)
            return u
        base, share, modes = self.level.modes
        # The fields are rows here: on a CPU a product with few columns takes several times as long as one with few
        # rows.
        along = (g.T.contiguous() @ modes) / (1 + (self.shift - base)[:, None] * share)
        return (along @ modes.T).T.contiguous()


def build_levels(elements: CutElements, unknown: Tensor, spacing: float, K: Tensor, M: Tensor) -> list[OperatorLevel]:
    """K and M on the cut cells of spacing dx, 2dx, 4dx, ..., each the Galerkin restriction of the finer one.

    unknown (e, k): the unknowns of the functions on the finest cells. For quadratic functions, the second level holds
    the trilinear functions on the same cells.
    """
    T = child_interpolation(K.dtype, K.device)
    levels: list[OperatorLevel] = []
    if unknown.shape[1] == Q2.count:
        here = _level(elements, unknown, spacing, K, M)
        owner, node = _owners(unknown, here.unknowns)
        weight = from_corners(Q2, K.dtype, K.device)[node]
        levels.append(_with_interpolation(here, elements.unknown[owner], weight, elements.unknowns))
        K, M, unknown = on_corners(K), on_corners(M), elements.unknown
    while True:
        here = _level(elements, unknown, spacing, K, M)
        levels.append(here)
        if here.unknowns <= MAX_COARSEST_UNKNOWNS[K.device.type]:
            return levels
        coarse, parent = elements.coarsened()
        if coarse.unknowns > MAX_COARSENING_RATIO * here.unknowns:
            return levels
        parent = parent[: elements.active]
        i, j, k = (elements.cell[: elements.active] % 2).unbind(1)
        octant = 4 * i + 2 * j + k
        element, corner = _owners(unknown, here.unknowns)
        interpolation = coarse.unknown[parent[element]], T[octant[element], corner], coarse.unknowns
        levels[-1] = _with_interpolation(here, *interpolation)
        K, M = (_coarse_matrices(E, T[octant], parent, coarse.active) for E in (K, M))
        elements, spacing, unknown = coarse, 2 * spacing, coarse.unknown


def _level(elements: CutElements, unknown: Tensor, spacing: float, K: Tensor, M: Tensor) -> OperatorLevel:
    component = elements.component_of(unknown)
    pattern, (stiffness, mass) = assemble(unknown, len(component), [K, M])
    return OperatorLevel(spacing, pattern, stiffness, mass, component)


def _with_interpolation(level: OperatorLevel, unknown: Tensor, weight: Tensor, count: int) -> OperatorLevel:
    return replace(level, coarse_unknown=unknown, coarse_weight=weight, coarse_count=count)


def _owners(unknown: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """For each unknown, one element (count,) that it belongs to, and the number (count,) of the node there."""
    owner = torch.empty(count, dtype=torch.int64, device=unknown.device)
    owner[unknown.reshape(-1)] = torch.arange(unknown.numel(), device=unknown.device)
    return torch.div(owner, unknown.shape[1], rounding_mode="floor"), owner % unknown.shape[1]


def _coarse_matrices(E: Tensor, T: Tensor, parent: Tensor, count: int) -> Tensor:
    """sum over children of T^T E T, (count, 8, 8)."""
    projected = torch.bmm(T.transpose(1, 2), torch.bmm(E, T))
    return E.new_zeros(count, 64).index_add_(0, parent, projected.reshape(-1, 64)).reshape(-1, 8, 8)
