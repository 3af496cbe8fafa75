"""The interface of a scheme. One Poisson solver and one heat solver serve all schemes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from lamina.linear.krylov import KrylovResult
from lamina.linear.operator import SparseOperator
from lamina.surfaces.base import ClosestPoints

FREE, VALUE, FLUX = 0, 1, 2  # what a condition prescribes at a point: nothing, u, or the flux
Field = Callable[[Tensor], Tensor]  # points (n, 3) on the surface -> values (n,)
Shift = float | Tensor  # c in A - c M; a tensor of shape () may carry gradients
Report = Callable[[int, float], None]  # iteration, relative residual


class Scheme(Protocol):
    """M du/dt = A u + load. A discretises the surface Laplacian on a vector u of unknowns, and M is the mass matrix.

    In a Galerkin scheme A is minus the stiffness matrix. In the coupled closest-point scheme M is the identity.
    """

    name: str
    order: int
    spacing: float
    component_count: int
    nodes_per_cell: int  # nodes along an edge of a cell, without the one at its far end

    @property
    def unknowns(self) -> int: ...

    def apply(self, u: Tensor) -> Tensor:
        """A u."""
        ...

    def mass(self, u: Tensor) -> Tensor:
        """M u."""
        ...

    @property
    def component(self) -> Tensor:
        """The component (n,) of each unknown. A solution spreads over a component and no further."""
        ...

    def load(self, f: Field) -> Tensor:
        """The right-hand side load(f) of A u = load(f), which stands for f."""
        ...

    @property
    def source_points(self) -> Tensor:
        """Points (p, 3) where source data are sampled."""
        ...

    @property
    def source_faces(self) -> Tensor | None:
        """The faces (p,) of a mesh on which the source points lie; None if they are not known."""
        ...

    def source_matrix(self) -> SparseOperator:
        """The matrix (unknowns, p) that makes the load of values at the source points."""
        ...

    def sample(self, u: Field) -> Tensor:
        """The unknowns that represent the surface field u."""
        ...

    def solve(
        self, g: Tensor, shift: Shift, *, tolerance: float, start: Tensor | None, report: Report | None
    ) -> KrylovResult:
        """Solve (A - shift M) u = g. For shift 0 g is made compatible, and u is known up to a constant a component.

        The solution has gradients with respect to g (n,) or (n, k) and with respect to everything that A and M depend
        on.
        """
        ...

    def remove_mean(self, u: Tensor, mean_at_points: Callable[[Tensor], Tensor]) -> Tensor:
        """u with zero mean on each component. mean_at_points(u) gives the means (c,) over the samples."""
        ...

    def norm(self, u: Tensor) -> float:
        """Root mean square of the field over the surface."""
        ...

    def incompatible(self, g: Tensor, u: Tensor) -> Tensor:
        """The mean of f (c,) that was subtracted on each component so that A u = g has a solution."""
        ...

    def readout(self, feet: ClosestPoints) -> SparseOperator:
        """The matrix (n, unknowns) that evaluates a field at n points on the surface."""
        ...

    def table(self) -> list[tuple[float, int, int, int]]:
        """A row (spacing, unknowns, non-zeros, bytes) for each level of the hierarchy."""
        ...
