"""Cut cells of any surface that has closest points: signed offsets, tetrahedra, curved pieces.

At the corners of the cells near the surface the signed offset is (x - cp(x)).n. Each cell is six tetrahedra
(Kuhn's, the same in every cell, so that neighbours agree), each cut where the offset, linear in it, vanishes.
The corners and mid-edges of the flat pieces are then moved to the surface, and integrals taken over the
curved six-node triangles through them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lamina.band import Band
from lamina.errors import InputError
from lamina.geometry.lattice import OCTANTS, Lattice
from lamina.linear.graph import components
from lamina.quadrature import TRIANGLE_RULE, Quadrature
from lamina.schemes.cutsurface import CutSurface, mean_normals
from lamina.schemes.sheets import Elements, distinct_glue
from lamina.surfaces.base import ClosestPoints, Surface

# Corners of a cell, as bits (i, j, k) = (4, 2, 1), along the six monotone paths from 000 to 111.
TETRAHEDRA = torch.tensor([[0, a, a | b, 7] for a in (4, 2, 1) for b in (4, 2, 1) if a != b])  # (6, 4)


FRAGMENT = 1e-3  # of its component's area


@dataclass(frozen=True)
class CellLocator:
    """From a point on the surface to its element: by cell, then by the nearest mean normal and centre."""

    low: Tensor
    shape: Tensor
    key: Tensor  # (e,) int64, increasing: key of each element's cell
    order: Tensor  # (e,) element at each place of `key`
    centre: Tensor  # (e, 3) in units of cells
    normal: Tensor  # (e, 3)

    def find(self, coordinate: Tensor, feet: ClosestPoints) -> Tensor:
        """Element (n,) of the best sheet in the cell, or failing that in the nearest neighbours; -1: none."""
        cell = torch.floor(coordinate).long()
        best = torch.full((len(cell),), torch.inf, dtype=coordinate.dtype, device=cell.device)
        element = torch.full((len(cell),), -1, dtype=torch.int64, device=cell.device)
        for radius, offsets in enumerate(_SHELLS):
            rows = (element < 0).nonzero()[:, 0]
            if not len(rows):
                break
            for offset in offsets.to(cell.device):
                key = _cell_key(cell[rows] + offset, self.low, self.shape)
                first = torch.searchsorted(self.key, key)
                count = torch.searchsorted(self.key, key, right=True) - first
                for copy in range(int(count.max())):
                    has = (count > copy).nonzero()[:, 0]
                    found = self.order[first[has] + copy]
                    at = rows[has]
                    away = (coordinate[at] - self.centre[found]).norm(dim=1)
                    # A sheet that faces the other way is not the one that the foot lies on.
                    turned = 1 - (self.normal[found] * feet.normals[at]).sum(1).abs()
                    cost = away + turned + radius
                    better = cost < best[at]
                    best[at[better]], element[at[better]] = cost[better], found[better]
        return element


_SHELLS = [torch.zeros(1, 3, dtype=torch.int64)] + [
    torch.tensor(
        [[i, j, k] for i in (-1, 0, 1) for j in (-1, 0, 1) for k in (-1, 0, 1) if abs(i) + abs(j) + abs(k) == n]
    )
    for n in (1, 2, 3)
]


def _cell_key(cell: Tensor, low: Tensor, shape: Tensor) -> Tensor:
    i, j, k = (cell - low).unbind(-1)
    return (i * shape[1] + j) * shape[2] + k


def cut_closest_points(surface: Surface, lattice: Lattice, sheets: bool = True) -> CutSurface:
    """Cut a surface known by its closest points and oriented normals."""
    band = Band.build(surface, lattice, 1.75 * lattice.spacing)
    x = lattice.position(band.ijk)
    offset = ((x - band.feet.points) * band.feet.normals).sum(1)
    # An offset of exactly zero would put a corner of a piece on a node, and six edges' corners together.
    tiny = 1e-6 * lattice.spacing
    offset = torch.where(offset.abs() < tiny, torch.full_like(offset, tiny), offset)
    cell_node, corner = _whole_cells(band, offset)
    if not len(cell_node):
        raise InputError(
            f"No cell of spacing {lattice.spacing:g} is cut by the surface, which is too thin for them; "
            "use a smaller spacing."
        )
    triangles, owner, ends, fraction = _cut_tetrahedra(corner, offset)
    vertex = x[ends[:, 0]] + fraction[:, None] * (x[ends[:, 1]] - x[ends[:, 0]])
    edge, edge_ends = _edges(triangles, len(vertex))
    vertex = surface.closest_points(vertex).points
    middle = surface.closest_points(0.5 * (vertex[edge_ends[:, 0]] + vertex[edge_ends[:, 1]])).points
    six = torch.cat([vertex[triangles], middle[edge]], 1)  # (t, 6, 3)
    cell = band.ijk[cell_node].long()
    quadrature = _on_curved(six, band.feet.normals[cell_node[owner]])
    element_of_triangle, elements = _elements(cell, owner, edge)
    real = _not_fragments(quadrature, elements.component[element_of_triangle], band.component[cell_node[owner]])
    if not bool(real.all()):
        quadrature = quadrature.take(real.repeat_interleave(3))
        element_of_triangle, elements = _elements(cell, owner[real], edge[real])
    element = element_of_triangle.repeat_interleave(3)
    coordinate = (quadrature.points - lattice.origin) / lattice.spacing
    normal, _ = mean_normals(quadrature, element, len(elements.cell))
    locator = _locator(elements, coordinate, quadrature.weights, element, normal)
    return CutSurface.build(lattice, elements, quadrature, element, locator, sheets)


def _whole_cells(band: Band, offset: Tensor) -> tuple[Tensor, Tensor]:
    """Cells with all corners in the band and offsets of both signs: lowest corner (c,), corners (c, 8)."""
    rows = OCTANTS[::2].to(band.key.device)  # the corners with k = 0; k = 1 follows in memory
    first = band.find(band.ijk.long(), band.component, rows, run=2)
    whole = (first >= 0).all(1).nonzero()[:, 0]
    corner = torch.stack([first[whole], first[whole] + 1], -1).reshape(-1, 8)
    inside = offset[corner] < 0
    # Far from the surface closest points may jump between sheets, and the sign with them: only cells that the
    # surface can reach are cut.
    near = (offset[corner].abs() <= 3**0.5 * band.spacing).any(1)
    cut = (inside.any(1) & ~inside.all(1) & near).nonzero()[:, 0]
    return whole[cut], corner[cut]


def _cut_tetrahedra(corner: Tensor, offset: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Triangles (t, 3) over vertices, the cell (t,) of each; vertex v at fraction (v,) along the edge ends (v, 2)."""
    tets = TETRAHEDRA.to(corner.device)
    nodes = corner[:, tets].reshape(-1, 4)
    owner = torch.arange(len(corner), device=corner.device).repeat_interleave(6)
    negative = offset[nodes] < 0
    count = negative.sum(1)
    # Negative corners first, in their order: then every case looks alike.
    order = torch.argsort((~negative).to(torch.int8), dim=1, stable=True)
    nodes = torch.gather(nodes, 1, order)
    cases = {
        1: [((0, 1), (0, 2), (0, 3))],
        3: [((0, 3), (1, 3), (2, 3))],
        2: [((0, 2), (0, 3), (1, 3)), ((0, 2), (1, 3), (1, 2))],
    }
    edge_nodes, owners = [], []
    for number, pieces in cases.items():
        here = (count == number).nonzero()[:, 0]
        for piece in pieces:
            edge_nodes.append(torch.stack([nodes[here][:, list(pair)] for pair in piece], 1))  # (t, 3, 2)
            owners.append(owner[here])
    pairs = torch.cat(edge_nodes).sort(-1).values
    key, triangle = torch.unique(pairs[..., 0] * len(offset) + pairs[..., 1], return_inverse=True)
    ends = torch.stack([torch.div(key, len(offset), rounding_mode="floor"), key % len(offset)], 1)
    a, b = offset[ends[:, 0]], offset[ends[:, 1]]
    return triangle.reshape(-1, 3), torch.cat(owners), ends, a / (a - b)


def _edges(triangles: Tensor, vertices: int) -> tuple[Tensor, Tensor]:
    """Edge (t, 3) opposite to no corner in particular: edge i joins corners i and i + 1; ends (e, 2)."""
    ends = torch.stack([triangles, triangles.roll(-1, 1)], -1).sort(-1).values
    key, edge = torch.unique(ends[..., 0] * vertices + ends[..., 1], return_inverse=True)
    return edge.reshape(-1, 3), torch.stack([torch.div(key, vertices, rounding_mode="floor"), key % vertices], 1)


def _not_fragments(quadrature: Quadrature, piece: Tensor, component: Tensor) -> Tensor:
    """Which triangles (t,) belong to the surface: where closest points jump between two sheets, scraps of a
    third appear between them, cut off from both. They are told by their area."""
    area = quadrature.weights.reshape(-1, 3).sum(1)
    whole = area.new_zeros(int(component.max()) + 1).index_add_(0, component, area)
    part = area.new_zeros(int(piece.max()) + 1).index_add_(0, piece, area)
    return part[piece] >= FRAGMENT * whole[component]


def _elements(cell: Tensor, owner: Tensor, edge: Tensor) -> tuple[Tensor, Elements]:
    """Element of each triangle: triangles of one cell that share edges; glue where an edge joins two cells."""
    t = len(owner)
    flat = edge.reshape(-1)
    order = torch.argsort(flat, stable=True)
    same = flat[order][1:] == flat[order][:-1]
    a, b = (torch.div(order, 3, rounding_mode="floor")[s] for s in (slice(None, -1), slice(1, None)))
    a, b = a[same], b[same]
    inside = owner[a] == owner[b]
    element = components(t, a[inside], b[inside])
    count = int(element.max()) + 1
    element_cell = torch.empty(count, 3, dtype=torch.int64, device=cell.device)
    element_cell[element] = cell[owner]
    a, b = element[a[~inside]], element[b[~inside]]
    step = element_cell[b] - element_cell[a]
    backwards = step.sum(1) < 0
    a, b = torch.where(backwards, b, a), torch.where(backwards, a, b)
    glue = distinct_glue(a, b, step.abs().argmax(1), count)
    return element, Elements(element_cell, glue, count)


def _on_curved(six: Tensor, outward: Tensor) -> Quadrature:
    """Three points on each six-node triangle (t, 6, 3): x(b) = sum_i b_i (2 b_i - 1) p_i + sum 4 b_i b_j m_ij."""
    bary = torch.tensor(TRIANGLE_RULE, dtype=six.dtype, device=six.device)  # (3, 3)
    b0, b1, b2 = bary.unbind(1)
    shape = torch.stack(
        [b0 * (2 * b0 - 1), b1 * (2 * b1 - 1), b2 * (2 * b2 - 1), 4 * b0 * b1, 4 * b1 * b2, 4 * b2 * b0], 1
    )
    zero = torch.zeros_like(b0)
    along1 = torch.stack([1 - 4 * b0, 4 * b1 - 1, zero, 4 * (b0 - b1), 4 * b2, -4 * b2], 1)
    along2 = torch.stack([1 - 4 * b0, zero, 4 * b2 - 1, -4 * b1, 4 * b1, 4 * (b0 - b2)], 1)
    points = torch.einsum("qs,tsd->tqd", shape, six).reshape(-1, 3)
    u, v = (torch.einsum("qs,tsd->tqd", d, six).reshape(-1, 3) for d in (along1, along2))
    normal = torch.linalg.cross(u, v)
    length = normal.norm(dim=1)
    normal = normal / length.clamp_min(torch.finfo(six.dtype).tiny)[:, None]
    side = (normal * outward.repeat_interleave(3, 0)).sum(1, keepdim=True)
    return Quadrature(points, torch.where(side < 0, -normal, normal), length / 6)


def _locator(elements: Elements, coordinate: Tensor, weights: Tensor, element: Tensor, normal: Tensor) -> CellLocator:
    count = len(elements.cell)
    total = weights.new_zeros(count).index_add_(0, element, weights).clamp_min(torch.finfo(weights.dtype).tiny)
    centre = torch.zeros_like(normal).index_add_(0, element, coordinate * weights[:, None]) / total[:, None]
    low = elements.cell.amin(0) - 2
    shape = elements.cell.amax(0) + 3 - low
    key, order = torch.sort(_cell_key(elements.cell, low, shape))
    return CellLocator(low, shape, key, order, centre, normal)
