"""The trace scheme: Galerkin on the cells that the surface cuts.

Trilinear functions on the cut cells, restricted to the surface: find u with

    sum_q w_q (P grad u).(P grad v) + (rho/dx) int_cells (n.grad u)(n.grad v) = -sum_q w_q f v   for all v,

P = I - n n^T (Olshanskii, Reusken and Grande 2009; the normal-gradient stabilisation of Burman, Hansbo,
Larson and Massing 2018, which is the closest-point extension in weak form). With stiffness K (the stabilisation
included) and mass M the scheme is M du/dt = -K u + load: symmetric, and the integral of u is conserved exactly.

Lattices nest, so the coarse spaces are subspaces: a coarse element's matrix is the sum of T^T K_e T over its
children, T the trilinear interpolation, and multigrid is Galerkin without a single sparse product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import torch
from torch import Tensor

from lamina.errors import InputError
from lamina.extension.interpolation import rows_to_csr
from lamina.geometry.lattice import Lattice
from lamina.linear.assembly import assemble
from lamina.linear.components import ComponentMean
from lamina.linear.krylov import KrylovResult, conjugate_gradients
from lamina.linear.multigrid import chebyshev_steps, preconditioner
from lamina.schemes.base import Field, Update
from lamina.schemes.cutsurface import CutSurface
from lamina.schemes.meshcut import cut_mesh
from lamina.schemes.sheets import Elements, child_interpolation, trilinear, trilinear_gradients
from lamina.schemes.tetcut import cut_closest_points
from lamina.surfaces.base import ClosestPoints, Surface
from lamina.surfaces.mesh import Mesh

STABILISATION = 0.1, 3e-3  # rho in flat cells, and where the surface turns within one
LEAST_AREA = 5e-3  # dx^2 of surface that every cell is taken to have
SMOOTHER_DEGREE = 3
SMOOTHER_RATIO = 6.0  # largest over smallest eigenvalue that the smoother damps
COARSEST_UNKNOWNS = {"cpu": 800, "cuda": 3500}  # a GPU inverts quickly and launches slowly
CHUNK = {"cpu": 2**16, "cuda": 2**21}  # quadrature points at a time


@dataclass(frozen=True)
class TraceLevel:
    """K and M of one lattice, on one sparsity pattern, and the interpolation from the next coarser one."""

    spacing: float
    elements: Elements
    crow: Tensor
    column: Tensor
    stiffness: Tensor  # (nnz,)
    mass: Tensor  # (nnz,)
    component: Tensor  # (n,) int64
    coarse_unknown: Tensor | None = None  # (n, 8) int64
    coarse_weight: Tensor | None = None  # (n, 8)
    coarse_count: int = 0

    @property
    def unknowns(self) -> int:
        return len(self.component)

    def matrix(self, stiffness: float, mass: float) -> Tensor:
        """stiffness K + mass M as CSR."""
        values = self.stiffness * stiffness
        if mass:
            values = torch.add(values, self.mass, alpha=mass)
        return torch.sparse_csr_tensor(
            self.crow, self.column, values, size=(self.unknowns, self.unknowns), check_invariants=False
        )


@dataclass(frozen=True)
class ShiftedLevel:
    """K + c M on one level, as the V-cycle sees it."""

    level: TraceLevel
    shift: float
    mean: ComponentMean

    @cached_property
    def matrix(self) -> Tensor:
        return self.level.matrix(1.0, self.shift)

    @cached_property
    def inverse_diagonal(self) -> Tensor:
        row = torch.repeat_interleave(
            torch.arange(self.level.unknowns, device=self.level.crow.device), torch.diff(self.level.crow).long()
        )
        here = row == self.level.column
        diagonal = torch.zeros_like(self.matrix.values()[: self.level.unknowns])
        diagonal[row[here]] = self.matrix.values()[here]
        return 1 / diagonal

    @cached_property
    def steps(self) -> list[float]:
        """Chebyshev steps for the upper part of the spectrum of D^-1 (K + c M), by the power method."""
        generator = torch.Generator().manual_seed(0)
        v = torch.rand(self.level.unknowns, generator=generator, dtype=torch.float64).to(self.matrix)
        for _ in range(12):
            v = self.inverse_diagonal * (self.matrix @ (v / v.norm()))
        largest = float(v.norm())
        return chebyshev_steps(1.1 * largest / SMOOTHER_RATIO, 1.1 * largest, SMOOTHER_DEGREE)

    @cached_property
    def factor(self) -> Tensor:
        """Cholesky factor (on a GPU the inverse) of D^-1/2 (K + c M) D^-1/2.

        For c = 0 the constants of each component, which K does not see, are made stiff. Pieces of surface that
        barely enter a cell leave modes that are all rounding; a shift lifts them, as small as will do."""
        scale = self.inverse_diagonal.sqrt()
        A = scale[:, None] * self.matrix.to_dense() * scale
        if self.shift == 0:
            constants = torch.nn.functional.one_hot(self.level.component).to(A) / scale[:, None]
            constants = constants / constants.norm(dim=0).clamp_min(torch.finfo(A.dtype).tiny)
            A = A + constants @ constants.T
        lift = 16 * torch.finfo(A.dtype).eps
        while True:
            A.diagonal().add_(lift)
            factor, info = torch.linalg.cholesky_ex(A)
            if int(info) == 0:
                return torch.cholesky_inverse(factor) if A.is_cuda else factor
            lift *= 10

    def apply(self, u: Tensor) -> Tensor:
        return self.matrix @ u

    def relax(self, u: Tensor | None, g: Tensor) -> Tensor:
        steps = self.steps
        if u is None:
            u, steps = steps[0] * self.inverse_diagonal * g, steps[1:]
        for step in steps:
            u = torch.addcmul(u, self.inverse_diagonal, g - self.matrix @ u, value=step)
        return u

    def restrict(self, residual: Tensor) -> Tensor:
        unknown, weight = cast(Tensor, self.level.coarse_unknown), cast(Tensor, self.level.coarse_weight)
        out = residual.new_zeros(self.level.coarse_count)
        return out.index_add_(0, unknown.reshape(-1), (weight * residual[:, None]).reshape(-1))

    def prolong(self, correction: Tensor) -> Tensor:
        unknown, weight = cast(Tensor, self.level.coarse_unknown), cast(Tensor, self.level.coarse_weight)
        return (weight * correction[unknown]).sum(1)

    def solve(self, g: Tensor) -> Tensor:
        if self.shift == 0:
            g = self.mean.remove(g)
        scale = self.inverse_diagonal.sqrt()
        if g.is_cuda:
            return scale * (self.factor @ (scale * g))
        return scale * torch.cholesky_solve((scale * g)[:, None], self.factor)[:, 0]


class Trace:
    """Cut cells, their operators and the hierarchy for one surface and spacing. A `Scheme`."""

    name = "trace"
    order = 2

    def __init__(
        self,
        surface: Surface,
        lattice: Lattice,
        update: Update = lambda fraction, what: None,
        *,
        sheets: bool = True,
    ):
        """sheets False: no copies of unknowns for the sheets of a cell, to measure what they are worth."""
        self.spacing = lattice.spacing
        update(0.0, "cutting cells")
        self.cut = cut_surface(surface, lattice, sheets)
        update(0.4, "assembling")
        self.quadrature = self.cut.quadrature
        self.levels = build_levels(self.cut, lattice.spacing)
        self.component_count = int(self.levels[0].component.max()) + 1
        self.area = self._component_sums(self.apply_mass(torch.ones_like(self.levels[0].stiffness[: self.unknowns])))
        self._shifted: dict[float, list[ShiftedLevel]] = {}
        self._cycles: dict[float, Callable[[Tensor], Tensor]] = {}

    @property
    def unknowns(self) -> int:
        return self.levels[0].unknowns

    @cached_property
    def K(self) -> Tensor:
        return self.levels[0].matrix(1.0, 0.0)

    @cached_property
    def M(self) -> Tensor:
        return self.levels[0].matrix(0.0, 1.0)

    def apply(self, u: Tensor) -> Tensor:
        return -(self.K @ u)

    def apply_mass(self, u: Tensor) -> Tensor:
        return self.M @ u

    mass = apply_mass

    def load(self, f: Field) -> Tensor:
        cut = self.cut
        values = (cut.quadrature.weights * f(cut.quadrature.points))[:, None] * trilinear(cut.local)
        out = values.new_zeros(self.unknowns)
        return out.index_add_(0, cut.elements.unknown[cut.element].reshape(-1), values.reshape(-1))

    def sample(self, u: Field) -> Tensor:
        """The L2 projection on the surface, held constant along normals: (M + dx^2 S) v = load(u)."""
        matrix = self._projection
        inverse = 1 / self._projection_diagonal
        result = conjugate_gradients(
            lambda v: matrix @ v, self.load(u), precondition=lambda r: inverse * r, tolerance=1e-12
        )
        return result.solution

    @cached_property
    def _projection_element(self) -> Tensor:
        return element_mass(self.cut) + self.spacing**2 * stabilisation(self.cut)

    @cached_property
    def _projection(self) -> Tensor:
        crow, column, (values,) = assemble(self.cut.elements.unknown, self.unknowns, [self._projection_element])
        return torch.sparse_csr_tensor(
            crow, column, values, size=(self.unknowns, self.unknowns), check_invariants=False
        )

    @cached_property
    def _projection_diagonal(self) -> Tensor:
        diagonal = self._projection_element.diagonal(dim1=1, dim2=2)
        out = diagonal.new_zeros(self.unknowns)
        return out.index_add_(0, self.cut.elements.unknown.reshape(-1), diagonal.reshape(-1))

    def solve(
        self, g: Tensor, shift: float, *, tolerance: float, start: Tensor | None = None, report=None
    ) -> KrylovResult:
        """Conjugate gradients on K + shift M, preconditioned by one V-cycle; the right-hand side is -g."""
        levels = self.shifted(shift)
        finest = levels[0]
        b = -g if shift else -self.compatible(g)

        if shift not in self._cycles:
            self._cycles[shift] = preconditioner(levels, b)
        cycle = self._cycles[shift]

        def precondition(r: Tensor) -> Tensor:
            u = cycle(r)
            return u if shift else finest.mean.remove(u)

        return conjugate_gradients(
            finest.apply,
            b,
            precondition=precondition,
            start=start,
            tolerance=tolerance,
            scale=float(g.norm()),  # a right-hand side that is all mean leaves only rounding once projected
            report=report,
        )

    def shifted(self, shift: float) -> list[ShiftedLevel]:
        """The levels of K + shift M; the last few are kept."""
        if shift not in self._shifted:
            if len(self._shifted) >= 4:
                oldest = next(iter(self._shifted))
                self._shifted.pop(oldest)
                self._cycles.pop(oldest, None)
            count = self.component_count
            self._shifted[shift] = [
                ShiftedLevel(level, shift, ComponentMean(level.component, count)) for level in self.levels
            ]
        return self._shifted[shift]

    def compatible(self, g: Tensor) -> Tensor:
        """g less what makes its sum on each component zero, spread like a constant f."""
        mean = self._component_sums(g) / self.area
        return g - self.apply_mass(mean[self.levels[0].component])

    def norm(self, u: Tensor) -> float:
        return float((torch.dot(u, self.apply_mass(u)) / self.area.sum()).clamp_min(0).sqrt())

    def incompatible(self, g: Tensor, u: Tensor) -> Tensor:
        return self._component_sums(g) / self.area

    def remove_mean(self, u: Tensor, mean_at_points) -> Tensor:
        mean = self._component_sums(self.apply_mass(u)) / self.area
        return u - mean[self.levels[0].component]

    def explicit_step(self, u: Tensor, dt: float) -> Tensor:
        raise InputError('Explicit Euler needs a diagonal mass; use scheme="coupled", or method="tr-bdf2".')

    def readout(self, feet: ClosestPoints) -> Tensor:
        element, local = self.cut.locate(feet)
        return rows_to_csr(self.cut.elements.unknown[element].to(torch.int32), trilinear(local), self.unknowns)

    def table(self) -> list[tuple[float, int, int, int]]:
        rows = []
        for level in self.levels:
            entries = len(level.stiffness)
            size = 2 * level.stiffness.nbytes + level.column.nbytes + level.crow.nbytes
            rows.append((level.spacing, level.unknowns, entries, size))
        return rows

    def _component_sums(self, v: Tensor) -> Tensor:
        return v.new_zeros(self.component_count).index_add_(0, self.levels[0].component, v)


def cut_surface(surface: Surface, lattice: Lattice, sheets: bool = True) -> CutSurface:
    """Exact pieces for meshes; from closest points for everything else."""
    cut = cut_mesh if isinstance(surface, Mesh) else cut_closest_points
    return cut(surface, lattice, sheets)


def element_stiffness(cut: CutSurface) -> Tensor:
    """sum_q w_q (P grad phi_i).(P grad phi_j) for every element (e, 8, 8)."""
    out = cut.local.new_zeros(cut.elements.active, 64)
    weights, normals = cut.quadrature.weights / cut.spacing**2, cut.quadrature.normals
    if cut.conductivity is not None:
        weights = weights * cut.conductivity
    for here in _chunks(cut.local):
        gradient = trilinear_gradients(cut.local[here])
        normal = normals[here, None]
        gradient = gradient - (gradient * normal).sum(-1, keepdim=True) * normal
        product = torch.bmm(gradient * weights[here, None, None], gradient.transpose(1, 2))
        out.index_add_(0, cut.element[here], product.reshape(-1, 64))
    return out.reshape(-1, 8, 8)


def element_mass(cut: CutSurface) -> Tensor:
    """sum_q w_q phi_i phi_j for every element (e, 8, 8)."""
    out = cut.local.new_zeros(cut.elements.active, 64)
    for here in _chunks(cut.local):
        phi = trilinear(cut.local[here])
        product = (phi * cut.quadrature.weights[here, None])[:, :, None] * phi[:, None]
        out.index_add_(0, cut.element[here], product.reshape(-1, 64))
    return out.reshape(-1, 8, 8)


def stabilisation(cut: CutSurface) -> Tensor:
    """(rho/dx) times the integral over each whole cell of (n.grad phi_i)(n.grad phi_j), n its mean normal.

    Where the surface turns within the cell, no direction is normal to all of it, and its faces hold the
    gradient between them: there rho is small.
    """
    flat, turned = STABILISATION
    rho = turned + (flat - turned) * cut.flatness**8
    return torch.einsum("e,ea,eb,abij->eij", rho, cut.normal, cut.normal, _gradient_moments(cut.local))


def sliver_stiffness(cut: CutSurface) -> Tensor:
    """Tangential stiffness for cells that the surface barely enters, as if LEAST_AREA dx^2 of it lay in them.

    Slivers that no neighbour could absorb (the tips of tiny parts) hang on a piece of no area; without this
    conjugate gradients crawl.
    """
    area = torch.zeros_like(cut.normal[:, 0]).index_add_(0, cut.element, cut.quadrature.weights) / cut.spacing**2
    missing = (LEAST_AREA - area).clamp_min(0)
    tangent = torch.eye(3, dtype=area.dtype, device=area.device) - cut.normal[:, :, None] * cut.normal[:, None, :]
    return torch.einsum("e,eab,abij->eij", missing, tangent, _gradient_moments(cut.local))


def _chunks(points: Tensor) -> list[slice]:
    size = CHUNK[points.device.type]
    return [slice(i, i + size) for i in range(0, len(points), size)]


def _gradient_moments(like: Tensor) -> Tensor:
    """Integrals (3, 3, 8, 8) of d_a phi_i d_b phi_j over the unit cell, exact by two Gauss points an axis."""
    gauss = 0.5 + 0.5 / 3**0.5 * torch.tensor([-1.0, 1.0], dtype=like.dtype, device=like.device)
    t = torch.stack(torch.meshgrid(gauss, gauss, gauss, indexing="ij"), -1).reshape(-1, 3)
    gradient = trilinear_gradients(t)  # (8 points, 8 functions, 3)
    return torch.einsum("qia,qjb->abij", gradient, gradient) / 8


def build_levels(cut: CutSurface, spacing: float) -> list[TraceLevel]:
    """K and M on the cut cells of spacing dx, 2dx, 4dx, ..., each the Galerkin restriction of the finer one."""
    elements = cut.elements
    K, M = element_stiffness(cut) + stabilisation(cut) + sliver_stiffness(cut), element_mass(cut)
    T = child_interpolation(K.dtype, K.device)
    levels: list[TraceLevel] = []
    while True:
        crow, column, (k, m) = assemble(elements.unknown, elements.unknowns, [K, M])
        component = elements.component_of_unknowns()
        coarse, parent = elements.coarsened()
        # Many small parts, each in a cell of its own, do not coarsen any further.
        last = elements.unknowns <= COARSEST_UNKNOWNS[K.device.type] or coarse.unknowns > 0.8 * elements.unknowns
        coarse_unknown = coarse_weight = None
        if not last:
            parent = parent[: elements.active]
            octant = (elements.cell[: elements.active] % 2 * torch.tensor([4, 2, 1], device=K.device)).sum(1)
            owner = torch.empty(elements.unknowns, dtype=torch.int64, device=K.device)
            owner[elements.unknown.reshape(-1)] = torch.arange(8 * elements.active, device=K.device)
            coarse_unknown = coarse.unknown[parent[owner // 8]]
            coarse_weight = T[octant[owner // 8], owner % 8]
            K, M = (_coarse_matrices(E, T[octant], parent, coarse.active) for E in (K, M))
        levels.append(
            TraceLevel(spacing, elements, crow, column, k, m, component, coarse_unknown, coarse_weight, coarse.unknowns)
        )
        if last:
            return levels
        elements, spacing = coarse, 2 * spacing


def _coarse_matrices(E: Tensor, T: Tensor, parent: Tensor, count: int) -> Tensor:
    """sum over children of T^T E T, (count, 8, 8)."""
    projected = torch.bmm(T.transpose(1, 2), torch.bmm(E, T))
    return E.new_zeros(count, 64).index_add_(0, parent, projected.reshape(-1, 64)).reshape(-1, 8, 8)
