"""From curved triangles, each in one cell of the lattice, to a cut surface.

Triangles of a cell that share edges are one sheet, an element; sheets of neighbouring cells are glued where an edge
lies in their common face. Integrals are taken over the six-node triangles by a three-point rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lamina.errors import InputError
from lamina.geometry.lattice import Lattice
from lamina.geometry.neighbours import k_nearest
from lamina.geometry.triangles import dot, unit
from lamina.linear.graph import components
from lamina.quadrature import TRIANGLE_RULE, Quadrature
from lamina.schemes.cutsurface import CutSurface, mean_normals
from lamina.schemes.sheets import Elements, distinct_glue
from lamina.surfaces.base import ClosestPoints, Surface

MISSED, MISSING = 0.01, 0.01  # share of the samples far from their pieces, and of the area, with which to cut finer,
GAIN = 0.01  # provided that this part of the area is gained
TOO_MUCH = 0.05  # of the area: tunnels through thin parts add their walls
FARTHEST = 4.0  # cells from a point of the surface to the pieces that speak for it, where it was too thin to be cut


@dataclass(frozen=True)
class CurvedPieces:
    """Curved triangles of a surface, each within a cell."""

    six: Tensor  # (t, 6, 3) corners, then the middles of edges 01, 12, 20
    edge: Tensor  # (t, 3) int64, number of the edge that each middle belongs to
    cell: Tensor  # (t, 3) int64
    outward: Tensor  # (t, 3) the side that normals look to

    def take(self, rows: Tensor) -> CurvedPieces:
        return CurvedPieces(*(v[rows] for v in (self.six, self.edge, self.cell, self.outward)))


def cut_from(pieces: CurvedPieces, lattice: Lattice, least: Tensor | float, sheets: bool) -> CutSurface:
    """The cut surface of the pieces; connected parts of less area than `least`, one for all or (t,), are left out."""
    quadrature = _on_curved(pieces.six, pieces.outward)
    element_of_piece, elements = _elements(pieces)
    area = quadrature.weights.reshape(-1, 3).sum(1)
    part = elements.component[element_of_piece]
    whole = area.new_zeros(int(part.max()) + 1).index_add_(0, part, area)
    real = whole[part] >= least
    if not bool(real.all()):
        quadrature = quadrature.take(real.repeat_interleave(3))
        element_of_piece, elements = _elements(pieces.take(real))
    element = element_of_piece.repeat_interleave(3)
    locator = _locator(elements, quadrature, lattice, element)
    return CutSurface.build(lattice, elements, quadrature, element, locator, sheets)


def cut_thin(surface: Surface, lattice: Lattice, cut: Callable[[int], CutSurface | None]) -> CutSurface:
    """cut(n), the surface cut on a lattice n times finer, for the smallest n of 1, 2, 4 that misses no thin parts.

    They are missed where samples are far from every piece that faces their way, where area is missing, unless a finer
    lattice finds no more either, and where tunnels from sheet to sheet join components or add area.
    """
    found, area, total = None, 0.0, float(surface.areas.sum())
    for finer in (1, 2, 4):
        before, found = area, cut(finer) or found
        if found is None:
            continue
        area = float(found.quadrature.weights.sum())
        whole = (1 - MISSING) * total <= area <= (1 + TOO_MUCH) * total or abs(area - before) <= GAIN * total
        missed, joined = _missed(surface, found)
        # Areas of a cloud's samples are estimates, and say little where it is ragged or open.
        if (whole or not surface.exact) and missed <= MISSED and not joined:
            return found
    if found is None:
        raise InputError(
            f"No cell of spacing {lattice.spacing:g} is cut by the surface, which is too thin for them; "
            "use a smaller spacing."
        )
    return replace(found, unresolved=True)


def _missed(surface: Surface, cut: CutSurface) -> tuple[float, bool]:
    """Share of the surface's samples with no piece in the cells around them that faces their way; and whether the
    pieces join components of the surface."""
    assert isinstance(cut.locator, CellLocator)
    feet = surface.own_feet()
    element = cut.locator.near((feet.points - cut.lattice.origin) / cut.spacing, feet)
    facing = dot(cut.locator.normal[element.clamp_min(0)], feet.normals) > 0
    found = (element >= 0) & facing
    pairs = torch.stack([cut.elements.component[cut.host[element[found]]], feet.component[found]], 1).unique(dim=0)
    return float((~found).double().mean()), len(pairs) > len(torch.unique(pairs[:, 0]))


def _elements(pieces: CurvedPieces) -> tuple[Tensor, Elements]:
    """Element of each triangle: triangles of one cell that share edges; glue where an edge joins two cells."""
    flat = pieces.edge.reshape(-1)
    order = torch.argsort(flat, stable=True)
    same = flat[order][1:] == flat[order][:-1]
    a, b = (torch.div(order, 3, rounding_mode="floor")[s] for s in (slice(None, -1), slice(1, None)))
    a, b = a[same], b[same]
    inside = (pieces.cell[a] == pieces.cell[b]).all(1)
    element = components(len(pieces.cell), a[inside], b[inside])
    count = int(element.max()) + 1
    cell = torch.empty(count, 3, dtype=torch.int64, device=flat.device)
    cell[element] = pieces.cell
    a, b = element[a[~inside]], element[b[~inside]]
    step = cell[b] - cell[a]
    backwards = step.sum(1) < 0
    a, b = torch.where(backwards, b, a), torch.where(backwards, a, b)
    return element, Elements(cell, distinct_glue(a, b, step.abs().argmax(1), count), count)


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
    side = dot(normal, outward.repeat_interleave(3, 0))[:, None]
    return Quadrature(points, torch.where(side < 0, -normal, normal), length / 6)


# From points on the surface to elements

_SHELLS = [torch.zeros(1, 3, dtype=torch.int64)] + [
    torch.tensor(
        [[i, j, k] for i in (-1, 0, 1) for j in (-1, 0, 1) for k in (-1, 0, 1) if abs(i) + abs(j) + abs(k) == n]
    )
    for n in (1, 2, 3)
]


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
        """Element (n,) of the best sheet in the cell, or in its neighbours, or failing that not far; -1: none."""
        return self._farther(coordinate, feet, self.near(coordinate, feet))

    def near(self, coordinate: Tensor, feet: ClosestPoints) -> Tensor:
        """Element (n,) of the best sheet in the cell, or failing that in the nearest neighbours; -1: none."""
        cell = torch.floor(coordinate).long()
        best = torch.full((len(cell),), torch.inf, dtype=coordinate.dtype, device=cell.device)
        element = torch.full((len(cell),), -1, dtype=torch.int64, device=cell.device)
        facing = torch.zeros_like(element, dtype=torch.bool)
        for radius, offsets in enumerate(_SHELLS):
            # A sheet that faces the other way is not the one that the foot lies on: it will do if there is no other.
            rows = (~facing).nonzero()[:, 0]
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
                    turned = 1 - dot(self.normal[found], feet.normals[at])
                    cost = away + turned + radius
                    better = cost < best[at]
                    best[at[better]], element[at[better]] = cost[better], found[better]
                    facing[at] |= turned < 1
        return element

    def _farther(self, coordinate: Tensor, feet: ClosestPoints, element: Tensor) -> Tensor:
        """element, with the nearest that faces the same way, up to FARTHEST cells away, where there was none."""
        rows = (element < 0).nonzero()[:, 0]
        if not len(rows):
            return element
        near, distance = k_nearest(self.centre, min(8, len(self.centre)), coordinate[rows])
        turned = 1 - (self.normal[near] * feet.normals[rows, None]).sum(-1)
        cost, which = (distance + turned).min(1)
        element = element.clone()
        element[rows] = torch.where(cost <= FARTHEST, near.gather(1, which[:, None])[:, 0], -1)
        return element


def _cell_key(cell: Tensor, low: Tensor, shape: Tensor) -> Tensor:
    i, j, k = (cell - low).unbind(-1)
    inside = ((cell >= low) & (cell < low + shape)).all(-1)
    return torch.where(inside, (i * shape[1] + j) * shape[2] + k, -1)


def _locator(elements: Elements, quadrature: Quadrature, lattice: Lattice, element: Tensor) -> CellLocator:
    count, weights = len(elements.cell), quadrature.weights
    coordinate = (quadrature.points - lattice.origin) / lattice.spacing
    total = weights.new_zeros(count).index_add_(0, element, weights).clamp_min(torch.finfo(weights.dtype).tiny)
    centre = torch.zeros_like(coordinate[:count]).index_add_(0, element, coordinate * weights[:, None])
    towards = torch.zeros_like(centre).index_add_(0, element, quadrature.normals * weights[:, None])
    # Round an edge normals may cancel; then the axis that most of them lie along must do.
    axis, _ = mean_normals(quadrature, element, count)
    short = dot(towards, towards).sqrt() < 0.2 * total
    normal = torch.where(short[:, None], axis, unit(towards))
    low = elements.cell.amin(0) - 2
    shape = elements.cell.amax(0) + 3 - low
    key, order = torch.sort(_cell_key(elements.cell, low, shape))
    return CellLocator(low, shape, key, order, centre / total[:, None], normal)
