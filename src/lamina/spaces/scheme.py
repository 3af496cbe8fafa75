"""What a PDE asks of a scheme, so that one Poisson and one heat solver serve all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from lamina.linear.krylov import KrylovResult
from lamina.linear.operator import SparseOperator
from lamina.surfaces.base import ClosestPoints

FREE, VALUE, FLUX = 0, 1, 2  # what a condition gives at a place of a rim: nothing, u, or the flux
Field = Callable[[Tensor], Tensor]  # points (n, 3) on the surface -> values (n,)
Shift = float | Tensor  # c in A - c M; a tensor () may carry gradients
Report = Callable[[int, float], None]  # iteration, relative residual


class Scheme(Protocol):
    """M du/dt = A u + load: A discretises the surface Laplacian on a vector u of unknowns, M its mass.

    In the coupled scheme M is the identity; in a Galerkin scheme A is minus the stiffness matrix.
    """

    name: str
    order: int
    spacing: float
    component_count: int
    nodes_per_cell: int  # along an edge of a cell, the far end not counted

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
        """The component (n,) of each unknown: what the operator joins."""
        ...

    def load(self, f: Field) -> Tensor:
        """The right-hand side that stands for f in A u = load(f)."""
        ...

    @property
    def places(self) -> Tensor:
        """Points (p, 3) at which a field is known to the load, and ..."""
        ...

    @property
    def place_faces(self) -> Tensor | None:
        """The faces (p,) of a mesh that the places lie on, where they are known."""
        ...

    def from_places(self) -> SparseOperator:
        """... the matrix (unknowns, p) that takes its values there to the load."""
        ...

    def sample(self, u: Field) -> Tensor:
        """The unknowns that stand for the surface field u."""
        ...

    def solve(
        self, g: Tensor, shift: Shift, *, tolerance: float, start: Tensor | None, report: Report | None
    ) -> KrylovResult:
        """Solve (A - shift M) u = g; for shift 0 up to a constant a component, g made compatible.

        The solution has gradients with respect to g (n,), or k of them (n, k), and to all that A and M carry.
        """
        ...

    def remove_mean(self, u: Tensor, mean_at_points: Callable[[Tensor], Tensor]) -> Tensor:
        """u shifted to zero mean on each component; mean_at_points(u) gives the means (c,) over the samples."""
        ...

    def norm(self, u: Tensor) -> float:
        """Root mean square of the field over the surface."""
        ...

    def incompatible(self, g: Tensor, u: Tensor) -> Tensor:
        """What was taken off g on each component for A u = g to have a solution, as a mean of f (c,)."""
        ...

    def readout(self, feet: ClosestPoints) -> SparseOperator:
        """The matrix (n, unknowns) that evaluates a field at n points on the surface."""
        ...

    def table(self) -> list[tuple[float, int, int, int]]:
        """A row (spacing, unknowns, non-zeros, bytes) for each level of the hierarchy."""
        ...
