"""The trace scheme: Galerkin on the cells that the surface cuts.

Trilinear functions on the cut cells, restricted to the surface: find u with

    sum_q w_q a (P grad u).(P grad v) + (rho/dx) int_cells (n.grad u)(n.grad v) = -sum_q w_q f v   for all v,

P = I - n n^T (Olshanskii, Reusken and Grande 2009; the normal-gradient stabilisation of Burman, Hansbo,
Larson and Massing 2018, which is the closest-point extension in weak form), a the diffusivity. With stiffness K
(the stabilisation included) and mass M the scheme is M du/dt = -K u + load: symmetric, and the integral of u is
conserved exactly.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from lamina.errors import InputError
from lamina.extension.interpolation import rows_to_csr
from lamina.geometry.lattice import Lattice
from lamina.linear.assembly import assemble
from lamina.linear.components import ComponentMean
from lamina.linear.krylov import KrylovResult, conjugate_gradients
from lamina.linear.multigrid import Shifted
from lamina.schemes.base import Field
from lamina.schemes.cutsurface import CutSurface
from lamina.schemes.galerkin import consistent_mass, element_matrices, stabilisation, trilinear
from lamina.schemes.hierarchy import ShiftedLevel, build_levels
from lamina.schemes.meshcut import cut_mesh
from lamina.schemes.tetcut import cut_closest_points
from lamina.surfaces.base import ClosestPoints, Surface
from lamina.surfaces.mesh import Mesh


class Trace:
    """The operators on a cut surface and their hierarchy. A `Scheme`."""

    name = "trace"
    order = 2

    def __init__(self, cut: CutSurface, diffusivity: Tensor | None = None):
        """diffusivity at the quadrature points: (q,), or (q, 3, 3); 1 unless given."""
        self.cut, self.spacing, self.quadrature = cut, cut.spacing, cut.quadrature
        K, M = element_matrices(cut, diffusivity)
        self.levels = build_levels(cut.elements, cut.spacing, K, M)
        self.component = self.levels[0].component
        self.component_count = int(self.component.max()) + 1
        self._shifted = Shifted(self._shift)

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
    def mass_of_one(self) -> Tensor:
        """M 1, whose inner product with u is the integral of u."""
        return self.M @ torch.ones_like(self.levels[0].stiffness[: self.unknowns])

    @cached_property
    def area(self) -> Tensor:
        """Area (c,) of each component."""
        return self._component_sums(self.mass_of_one)

    def apply(self, u: Tensor) -> Tensor:
        return -(self.K @ u)

    def mass(self, u: Tensor) -> Tensor:
        return self.M @ u

    def load(self, f: Field) -> Tensor:
        cut = self.cut
        values = (cut.quadrature.weights * f(cut.quadrature.points))[:, None] * trilinear(cut.local)
        out = values.new_zeros(self.unknowns)
        # The three points of a piece belong to one element.
        values, element = values.reshape(-1, 3, 8).sum(1), cut.element[::3]
        return out.index_add_(0, cut.elements.unknown[element].reshape(-1), values.reshape(-1))

    def sample(self, u: Field) -> Tensor:
        """The L2 projection on the surface, held constant along normals: (M + dx^2 S) v = load(u)."""
        matrix, inverse = self._projection
        result = conjugate_gradients(
            lambda v: matrix @ v, self.load(u), precondition=lambda r: inverse * r, tolerance=1e-12
        )
        return result.solution

    @cached_property
    def _projection(self) -> tuple[Tensor, Tensor]:
        """M + dx^2 S, M consistent, and one over its diagonal."""
        element = consistent_mass(self.cut) + self.spacing**2 * stabilisation(self.cut)
        pattern, (values,) = assemble(self.cut.elements.unknown, self.unknowns, [element])
        return pattern.matrix(values), 1 / values[pattern.diagonal]

    def solve(
        self, g: Tensor, shift: float, *, tolerance: float, start: Tensor | None = None, report=None
    ) -> KrylovResult:
        """Conjugate gradients on K + shift M, preconditioned by one V-cycle; the right-hand side is -g.

        The mean of u on each component is known beforehand; what is solved for is the rest, so that neither the
        tolerance nor rounding touches the integral, and a field near its mean still gets all its digits.
        """
        finest = self._shifted.levels(shift)[0]
        cycle = self._shifted.cycle(shift)
        b = -self.compatible(g)
        # A right-hand side that is all mean leaves only rounding; but a field that diffuses to its mean must not
        # stop short of it.
        scale = float(g.norm())
        if shift:
            scale = max(float(b.norm()), 1e2 * torch.finfo(b.dtype).eps / tolerance * scale)

        def project(v: Tensor) -> Tensor:
            # For shift 0 constants are out of reach; rounding would pile up in them.
            return v if shift else finest.mean.remove(v)

        result = conjugate_gradients(
            lambda u: project(finest.apply(u)),
            project(b),
            precondition=lambda r: project(cycle(r)),
            start=None if start is None else self.without_mean(start),
            tolerance=tolerance,
            scale=scale,
            report=report,
        )
        u = self.without_mean(result.solution)
        if shift:
            u = u - (self._component_sums(g) / (shift * self.area))[self.component]
        return KrylovResult(u, result.iterations, result.residual, result.converged)

    def shifted(self, shift: float) -> list[ShiftedLevel]:
        """The levels of K + shift M; the last few are kept."""
        return self._shifted.levels(shift)

    def _shift(self, shift: float) -> list[ShiftedLevel]:
        count = self.component_count
        return [ShiftedLevel(level, shift, ComponentMean(level.component, count)) for level in self.levels]

    def compatible(self, g: Tensor) -> Tensor:
        """g less what makes its sum on each component zero, spread like a constant f."""
        mean = self._component_sums(g) / self.area
        return g - mean[self.component] * self.mass_of_one

    def without_mean(self, u: Tensor) -> Tensor:
        return u - (self._component_sums(self.mass_of_one * u) / self.area)[self.component]

    def norm(self, u: Tensor) -> float:
        return float((torch.dot(u, self.mass(u)) / self.area.sum()).clamp_min(0).sqrt())

    def incompatible(self, g: Tensor, u: Tensor) -> Tensor:
        return self._component_sums(g) / self.area

    def remove_mean(self, u: Tensor, mean_at_points) -> Tensor:
        return self.without_mean(u)

    def explicit_step(self, u: Tensor, dt: float) -> Tensor:
        raise InputError('Explicit Euler needs a diagonal mass; use scheme="coupled", or method="tr-bdf2".')

    def readout(self, feet: ClosestPoints) -> Tensor:
        element, local = self.cut.locate(feet)
        return rows_to_csr(self.cut.elements.unknown[element].to(torch.int32), trilinear(local), self.unknowns)

    def table(self) -> list[tuple[float, int, int, int]]:
        rows = []
        for level in self.levels:
            entries = len(level.stiffness)
            size = 2 * level.stiffness.nbytes + level.pattern.column.nbytes + level.pattern.crow.nbytes
            rows.append((level.spacing, level.unknowns, entries, size))
        return rows

    def _component_sums(self, v: Tensor) -> Tensor:
        return v.new_zeros(self.component_count).index_add_(0, self.component, v)


def cut_surface(surface: Surface, lattice: Lattice, sheets: bool = True) -> CutSurface:
    """Exact pieces for meshes; from closest points for everything else.

    sheets False: no copies of unknowns for the sheets of a cell, to measure what they are worth.
    """
    cut = cut_mesh if isinstance(surface, Mesh) else cut_closest_points
    return cut(surface, lattice, sheets)
