"""Operators of functions on cut cells: the trace finite element method.

The functions are trilinear (order 2) or quadratic (order 3) on the cut cells. Find u with

    sum_q w_q a (P grad u).(P grad v) + (rho/dx) int_cells (n.grad u)(n.grad v) = -sum_q w_q f v   for all v,

where P = I - n n^T and a is the diffusivity (Olshanskii, Reusken and Grande 2009). The second term is the
normal-gradient stabilisation of Burman, Hansbo, Larson and Massing 2018: the closest-point extension in weak form.
With the stiffness K, which includes the stabilisation, and the mass M the scheme is M du/dt = -K u + load. It is
symmetric, and it conserves the integral of u exactly.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from lamina.grid.cut_surface import CutSurface
from lamina.linear.assembly import assemble
from lamina.linear.operator import SparseOperator, sparse_rows
from lamina.spaces.galerkin import (
    consistent_mass,
    element_matrices,
    mass_matrices,
    solve_mass_system,
    stabilisation,
)
from lamina.spaces.hierarchy import ChebyshevSmoother, build_levels
from lamina.spaces.nitsche import ConditionsAtPoints, boundary
from lamina.spaces.scheme import Field
from lamina.spaces.symmetric import SymmetricOperators
from lamina.surfaces.base import ClosestPoints

# The smoother of trilinear functions with boundary conditions, which make some cells stiff. Its degree is higher than
# that of SMOOTHER for this reason; it was chosen by trial.
CONDITIONS_SMOOTHER = ChebyshevSmoother(8, 80.0)
# The smoother of quadratic functions. No neighbour absorbs their cells with little surface, so a larger part of the
# spectrum must be damped. With (6, 80) there are 1.3 times as many cycles, and each costs three quarters as much.
QUADRATIC_SMOOTHER = ChebyshevSmoother(8, 160.0)


class CutCellOperators(SymmetricOperators):
    """Stiffness K and mass M of the functions on cut cells, with their multigrid hierarchy. A `Scheme`."""

    name = "trace"

    def __init__(
        self,
        cut: CutSurface,
        diffusivity: Tensor | None = None,
        conditions: ConditionsAtPoints | None = None,
        screening: Tensor | None = None,
    ):
        """diffusivity: (q,) or (q, 3, 3) at the quadrature points, 1 unless given.

        screening: (q,) >= 0 there, the factor c of u in div(a grad u) - c u, 0 unless given.
        """
        self.cut, self.spacing, self.quadrature, self.order = cut, cut.spacing, cut.quadrature, cut.degree + 1
        self.nodes_per_cell = cut.degree
        K, M = element_matrices(cut, diffusivity)
        component = cut.elements.component[: cut.elements.active]
        free = torch.ones(int(cut.elements.component.max()) + 1, dtype=torch.bool, device=K.device)
        self.boundary = None if conditions is None else boundary(cut, conditions, K.detach())
        if self.boundary is not None:
            K, self.smoother = K + self.boundary.matrix, CONDITIONS_SMOOTHER
            free[component[self.boundary.fixes_values]] = False
        if cut.degree > 1:
            self.smoother = QUADRATIC_SMOOTHER
        if screening is not None:
            K = K + mass_matrices(cut, screening)
            free[component[cut.element[screening > 0]]] = False
        levels = build_levels(cut.elements, cut.unknown, cut.spacing, K.detach(), M.detach())
        super().__init__(levels, int(levels[0].component.max()) + 1, free, self._tracked(K, M))

    def _tracked(self, K: Tensor, M: Tensor) -> tuple[Tensor, Tensor] | None:
        """The entries of K and M with their autograd graph; None if nothing carries gradients."""
        if not (K.requires_grad or M.requires_grad):
            return None
        stiffness, mass = assemble(self.cut.unknown, self.cut.unknowns, [K, M])[1]
        return stiffness, mass

    def load(self, f: Field) -> Tensor:
        cut = self.cut
        values = f(cut.quadrature.points)
        if values.ndim == 2:
            return torch.stack([self._load(channel) for channel in values.unbind(1)], 1)
        return self._load(values)

    def _load(self, f: Tensor) -> Tensor:
        """The load of f (q,) at the quadrature points."""
        cut = self.cut
        values = (cut.quadrature.weights * f)[:, None] * cut.basis.values(cut.local)
        out = values.new_zeros(self.unknowns)
        # The points of a piece belong to one element.
        values, element = values.reshape(-1, cut.per_piece, cut.basis.count).sum(1), cut.element[:: cut.per_piece]
        return out.index_add_(0, cut.unknown[element].reshape(-1), values.reshape(-1))

    @property
    def source_points(self) -> Tensor:
        return self.cut.quadrature.points

    @property
    def source_faces(self) -> Tensor | None:
        return self.cut.face

    def source_matrix(self) -> SparseOperator:
        cut = self.cut
        unknown = cut.unknown[cut.element].to(torch.int32)
        return sparse_rows(unknown, cut.quadrature.weights[:, None] * cut.basis.values(cut.local), self.unknowns).T

    def at_source_points(self, u: Tensor, some: slice) -> Tensor:
        """Values of the field with unknowns u (n,) at some of the source points."""
        return (self.cut.basis.values(self.cut.local[some]) * u[self.cut.unknown[self.cut.element[some]]]).sum(1)

    def sample(self, u: Field) -> Tensor:
        """The L2 projection on the surface, held constant along normals: (M + dx^2 S) v = load(u)."""
        return self.project(self.load(u))

    def project(self, g: Tensor, tolerance: float = 1e-12) -> Tensor:
        """The unknowns (n,) or (n, k) of the field whose integrals with the basis functions are g."""
        return solve_mass_system(*self._projection, g, tolerance)

    @cached_property
    def _projection(self) -> tuple[SparseOperator, Tensor]:
        """M + dx^2 S with the consistent mass M, and one over its diagonal; for quadratic functions the mass matrix."""
        if self.cut.degree > 1:
            finest = self.levels[0]
            return self.mass_matrix, 1 / finest.mass[finest.pattern.diagonal]
        with torch.enable_grad():  # cached: built with gradients even if first requested under no_grad
            element = consistent_mass(self.cut) + self.spacing**2 * stabilisation(self.cut)
            pattern, (values,) = assemble(self.cut.unknown, self.unknowns, [element])
        constant = values.detach()
        return SparseOperator(pattern.matrix(constant), values if values.requires_grad else None), (
            1 / constant[pattern.diagonal]
        )

    def boundary_load(self, g: Tensor) -> Tensor:
        """The vector that values g (n,) at the points of `boundary` add to A u."""
        assert self.boundary is not None
        return self.boundary.load(self.cut, g)

    def boundary_fluxes(self, u: Tensor, g: Tensor, count: int) -> Tensor:
        """The flux (count,) that enters through each condition, for values g (n,) at the points of `boundary`."""
        assert self.boundary is not None
        return self.boundary.fluxes(self.cut, u, g, count)

    def remove_mean(self, u: Tensor, mean_at_points) -> Tensor:
        return self.without_mean(u)

    def readout(self, feet: ClosestPoints) -> SparseOperator:
        return self._in_elements(*self.cut.locate(feet))

    def readout_in(self, element: Tensor, points: Tensor) -> SparseOperator:
        """The readout for points (n, 3) whose elements (n,) are known."""
        return self._in_elements(element, self.cut.local_in(element, points))

    def _in_elements(self, element: Tensor, local: Tensor) -> SparseOperator:
        return sparse_rows(self.cut.unknown[element].to(torch.int32), self.cut.basis.values(local), self.unknowns)
