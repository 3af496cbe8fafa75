"""The shell scheme of the CVPR 2026 paper: extend the data once, then an ordinary Laplacian on the band.

With E an extension, constant along normals, and L the 7-point Laplacian on the nodes within eps of the surface, no
flux through the staircase edge of the band, Poisson's equation and an explicit step of the heat equation are

    L u = E f,          u <- (I + dt L) E u.

What L sees is a shell of thickness 2 eps with a staircase for its edge, as rough at every spacing. The nodes that
stick out of it carry their share of f but no flux along the surface, so the shell conducts too little and u comes out
too large, on the sphere by a share of about dx / (3 eps): with eps / dx fixed the solution does not converge
(tests/test_shell.py has the figures). Heat is better off, for the extension wipes out after every step what the edge
did. The scheme is here to reproduce the paper; `coupled` and `trace` solve the same problems to any accuracy.

K = -L is the Laplacian of the graph of the nodes. Multigrid takes for coarse spaces the trilinear functions on the
lattice of twice the spacing, then four times, and so on: P^T K P is a sum over coarse cells, and the hierarchy of
the trace scheme does the rest.

For eps >= sqrt(3) dx all corners of the cells that the surface meets are in the band: the nodes of a component hang
together, and there is a value to read anywhere on the surface.
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
from lamina.grid.sheets import Elements
from lamina.linear.adjoint import Sparse, sparse_rows
from lamina.linear.assembly import Pattern
from lamina.paper.interpolation import cubic_or_linear_matrix, linear_stencil
from lamina.paper.laplacian import staircase_laplacian
from lamina.paper.rbf import rbf_matrix
from lamina.progress import Update
from lamina.spaces.hierarchy import ChebyshevSmoother, OperatorLevel, build_levels
from lamina.spaces.scheme import Field
from lamina.spaces.symmetric import SymmetricOperators
from lamina.surfaces.base import ClosestPoints

READOUTS = ("interpolation", "rbf")
CUBIC_RADIUS = math.sqrt(12)  # times dx: a node of the cubic stencil is at most 2 nodes an axis from the point


class Shell(SymmetricOperators):
    """The band's nodes with their graph Laplacian L = -K and its hierarchy. A `Scheme` with M = I.

    band: all nodes within eps >= sqrt(3) dx of the surface. E: extension (n, n), sparse CSR, rows that sum to one.
    ambient: what E takes, values at the nodes themselves (True: the learned extension) or at their closest points.
    readout: "interpolation" (cubic, trilinear where the band lacks nodes) or "rbf" (Gaussian, as in the paper).

    Raises InputError for an unknown readout, or an E that does not belong to the band.
    """

    name = "shell"
    nodes_per_cell = 1
    order = 2
    smoother = ChebyshevSmoother(3, 12.0)  # no slivers here: half the work of the trace scheme's, and no more cycles

    def __init__(
        self,
        band: Band,
        E: Sparse | Tensor,
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
        self.extension = E if isinstance(E, Sparse) else Sparse(E)
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

    def source_matrix(self) -> Sparse:
        return self.extension

    def sample(self, u: Field) -> Tensor:
        return u(self.source_points)

    def explicit_step(self, u: Tensor, dt: float, hold: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """(I + dt L) E u; the field that is left is constant along normals only up to the step.

        hold: what is set in E u before L takes it.
        """
        u = self.extension @ u
        if hold is not None:
            u = hold(u)
        return torch.add(u, self.apply(u), alpha=dt)

    def remove_mean(self, u: Tensor, mean_at_points: Callable[[Tensor], Tensor]) -> Tensor:
        # Over the surface: where it is curved its two sides have unequal numbers of nodes.
        return u - mean_at_points(u)[self.component]

    def readout(self, feet: ClosestPoints) -> Sparse:
        if self.readout_kind == "rbf":
            return Sparse(rbf_matrix(self.band, feet.points, feet.component))
        if self.radius >= CUBIC_RADIUS * self.spacing:
            # A band that was cut back to what lies near samples may lack some of the nodes between them.
            return Sparse(cubic_or_linear_matrix(self.band, feet.points, feet.component))
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
    # Node a lies in the coarse cell floor(a / 2), at (a - 2 cell) / 2, one of eight places.
    ijk = band.ijk.long()
    elements, element = Elements.filling(torch.div(ijk, 2, rounding_mode="floor"), band.component)
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


def _coarse_elements(band: Band, elements: Elements, element: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
    """P^T K P and P^T P as element matrices (e, 8, 8) of the coarse cells.

    An edge from node a to a + e_axis lies in the coarse cell of a, perhaps on its far face, so that

        K_cell = sum over edges of (t_a - t_b) (t_a - t_b)^T / dx^2,      M_cell = sum over nodes of t_a t_a^T,

    t the eight trilinear weights. There are only eight places for a and three axes: 24 different terms, and it is
    enough to know which of them a cell has.
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
