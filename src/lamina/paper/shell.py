"""The shell scheme of the CVPR 2026 paper: extend the data once, then apply an ordinary Laplacian on the band.

Let E be an extension, constant along normals, and L the 7-point Laplacian on the nodes within eps of the surface,
without flux through the staircase edge of the band. Poisson's equation and an explicit step of the heat equation are

    L u = E f,          u <- (I + dt L) E u.

L acts on a shell of thickness 2 eps whose edge is a staircase, equally rough at every spacing. The nodes that stick out
of the shell carry their share of f but no flux along the surface. The shell therefore conducts too little, and u is too
large, on the sphere by a relative error of about dx / (3 eps). With eps / dx fixed the solution does not converge
(tests/test_shell.py has the figures). The heat equation suffers less, because after every step the extension removes
the error of the edge. The scheme is here to reproduce the paper; `lamina.Domain` solves the same problems to any
accuracy.

K = -L is the Laplacian of the graph of the nodes. The coarse spaces of multigrid are the trilinear functions on the
lattices of spacing 2dx, 4dx, and so on. P^T K P is a sum over coarse cells, and the hierarchy of Galerkin schemes
continues from there.

For eps >= sqrt(3) dx the band contains all corners of the cells that the surface cuts. The nodes of a component are
then connected, and values can be read anywhere on the surface.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from lamina.errors import InputError
from lamina.geometry.basis import Q1
from lamina.geometry.lattice import OCTANTS
from lamina.grid.band import Band
from lamina.grid.sheets import CutElements
from lamina.linear.assembly import Pattern
from lamina.linear.operator import SparseOperator, sparse_rows
from lamina.paper.interpolation import cubic_or_linear_matrix, linear_stencil
from lamina.paper.laplacian import staircase_laplacian
from lamina.paper.rbf_readout import rbf_matrix
from lamina.progress import Update
from lamina.spaces.hierarchy import ChebyshevSmoother, OperatorLevel, build_levels
from lamina.spaces.scheme import Field
from lamina.spaces.symmetric import SymmetricOperators
from lamina.surfaces.base import ClosestPoints

READOUTS = ("interpolation", "rbf")
# Over dx. A band of this radius has all nodes of cubic stencils: they are at most 2 dx from the point along each axis.
MIN_CUBIC_RADIUS = math.sqrt(12)


class Shell(SymmetricOperators):
    """The band's nodes with their graph Laplacian L = -K and its hierarchy. A `Scheme` with M = I.

    band: all nodes within eps >= sqrt(3) dx of the surface. E: extension (n, n), sparse CSR, rows that sum to one.
    ambient: whether E takes values at the nodes themselves (the learned extension) or at their closest points.
    readout: "interpolation" (cubic, trilinear where the band lacks nodes) or "rbf" (Gaussian, as in the paper).

    Raises InputError for an unknown readout, or if E does not belong to the band.
    """

    name = "shell"
    nodes_per_cell = 1
    order = 2
    # Without sliver cells, half the work of the smoother of cut cells takes no more cycles.
    smoother = ChebyshevSmoother(3, 12.0)

    def __init__(
        self,
        band: Band,
        E: SparseOperator | Tensor,
        ambient: bool,
        component_count: int,
        update: Update = lambda fraction, what: None,
        *,
        readout: str = "interpolation",
    ):
        if readout not in READOUTS:
            raise InputError(f"Unknown readout {readout!r}; known: {', '.join(READOUTS)}.")
        if E.shape != (len(band), len(band)):
            raise InputError(
                f"The extension has shape {tuple(E.shape)} and the band {len(band)} nodes; build both from one band."
            )
        self.extension = E if isinstance(E, SparseOperator) else SparseOperator(E)
        self.band, self.E, self.ambient, self.readout_kind = band, self.extension.matrix, ambient, readout
        self.spacing = band.spacing
        update(0.5, f"operators of {len(band)} nodes")
        super().__init__(shell_levels(band), component_count)

    @cached_property
    def mass_of_one(self) -> Tensor:
        return torch.ones_like(self.band.feet.points[:, 0])

    @cached_property
    def radius(self) -> float:
        """Distance of the farthest node from the surface: eps, or just below."""
        return float(self.band.heights.max())

    def mass(self, u: Tensor) -> Tensor:
        return u

    def load(self, f: Field) -> Tensor:
        return self.extension @ self.sample(f)

    @property
    def source_points(self) -> Tensor:
        return self.band.lattice.position(self.band.ijk) if self.ambient else self.band.feet.points

    @property
    def source_faces(self) -> Tensor | None:
        return None if self.ambient else self.band.feet.face

    def source_matrix(self) -> SparseOperator:
        return self.extension

    def sample(self, u: Field) -> Tensor:
        return u(self.source_points)

    def explicit_step(self, u: Tensor, dt: float, hold: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """(I + dt L) E u. The result is constant along normals only up to the size of the step.

        hold: sets the values of Dirichlet conditions in E u before L is applied.
        """
        u = self.extension @ u
        if hold is not None:
            u = hold(u)
        return torch.add(u, self.apply(u), alpha=dt)

    def remove_mean(self, u: Tensor, mean_at_points: Callable[[Tensor], Tensor]) -> Tensor:
        # The mean is over the surface: where this is curved, its two sides have unequal numbers of nodes.
        return u - mean_at_points(u)[self.component]

    def readout(self, feet: ClosestPoints) -> SparseOperator:
        if self.readout_kind == "rbf":
            return SparseOperator(rbf_matrix(self.band, feet.points, feet.component))
        if self.radius >= MIN_CUBIC_RADIUS * self.spacing:
            # A band that was reduced to the nodes near samples may lack some of the nodes between samples.
            return SparseOperator(cubic_or_linear_matrix(self.band, feet.points, feet.component))
        return sparse_rows(*linear_stencil(self.band, feet.points, feet.component), len(self.band))

    def table(self) -> list[tuple[float, int, int, int]]:
        (spacing, unknowns, entries, size), *coarser = super().table()
        E = self.E
        size += E.values().nbytes + E.col_indices().nbytes + E.crow_indices().nbytes
        return [(spacing, unknowns, entries + E.values().numel(), size), *coarser]


def shell_levels(band: Band) -> list[OperatorLevel]:
    """K = -L and M = I on the nodes of the band, and P^T K P, P^T P on the lattices of spacing 2dx, 4dx, ..."""
    L = staircase_laplacian(band)
    crow, column = L.crow_indices(), L.col_indices()
    row = torch.repeat_interleave(torch.arange(len(band), device=column.device), torch.diff(crow))
    diagonal = (column == row).nonzero()[:, 0]
    mass = torch.zeros_like(L.values())
    mass[diagonal] = 1
    # Node a lies in the coarse cell floor(a / 2), at (a - 2 cell) / 2, one of eight positions.
    ijk = band.ijk.long()
    elements, element = CutElements.filling(torch.div(ijk, 2, rounding_mode="floor"), band.component)
    place = ((ijk % 2) * torch.tensor([4, 2, 1], device=ijk.device)).sum(1)
    weight = Q1.values(0.5 * OCTANTS.to(L.values()))[place]
    K, M = _coarse_elements(band, elements, element, place)
    finest = OperatorLevel(
        band.spacing,
        Pattern(crow, column, diagonal),
        -L.values(),
        mass,
        band.component,
        coarse_unknown=elements.unknown[element],
        coarse_weight=weight,
        coarse_count=elements.unknowns,
    )
    return [finest, *build_levels(elements, elements.unknown, 2 * band.spacing, K, M)]


def _coarse_elements(band: Band, elements: CutElements, element: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
    """P^T K P and P^T P as element matrices (e, 8, 8) of the coarse cells.

    An edge from node a to a + e_axis lies in the coarse cell of a, possibly on its far face, so that

        K_cell = sum over edges of (t_a - t_b) (t_a - t_b)^T / dx^2,      M_cell = sum over nodes of t_a t_a^T,

    where t are the eight trilinear weights. There are eight positions for a and three axes, hence 24 different terms,
    and it suffices to know which of them a cell has.
    """
    like = band.feet.points
    ijk, axes = band.ijk.long(), torch.eye(3, dtype=torch.int64, device=element.device)
    nodes, edges = like.new_zeros(len(elements.cell), 8), like.new_zeros(len(elements.cell), 8, 3)
    nodes[element, place] = 1
    edges[element, place] = (band.find(ijk, band.component, axes) >= 0).to(like)
    corner = OCTANTS.to(like)
    here = Q1.values(0.5 * corner)  # (8 places, 8 weights)
    there = Q1.values(0.5 * (corner[:, None] + axes.to(like)).reshape(-1, 3))
    step = here.repeat_interleave(3, 0) - there  # (24, 8)
    K = edges.reshape(-1, 24) @ (step[:, :, None] * step[:, None, :]).reshape(24, 64) / band.spacing**2
    M = nodes @ (here[:, :, None] * here[:, None, :]).reshape(8, 64)
    return K.reshape(-1, 8, 8), M.reshape(-1, 8, 8)
